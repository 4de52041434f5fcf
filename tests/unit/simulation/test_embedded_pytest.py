"""The pytest plugin, in pytest runs of their own: every kind of test gets its Kafka."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PLUGIN = "fencepost.simulation.embedded.pytest_plugin"
INSTALLED = any(each.value == PLUGIN for each in entry_points(group="pytest11"))


class Runs:
    """Runs pytest on a file of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, tests: str, *options: str, conftest: str = "") -> str:
        """What pytest prints."""
        (self.folder / "test_it.py").write_text(textwrap.dedent(tests))
        (self.folder / "conftest.py").write_text(textwrap.dedent(conftest))
        named = [] if INSTALLED else ["-p", PLUGIN]
        loops = ["-o", "asyncio_default_fixture_loop_scope=function"]
        command = [sys.executable, "-m", "pytest", *named, "-p", "no:cacheprovider", "-rA", *loops, *options]
        done = subprocess.run(
            [*command, "test_it.py"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        )
        return done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def outcomes(printed: str) -> dict[str, int]:
    """The counts of the last line that pytest itself prints."""
    (*_, last) = re.findall(r"^=+ (.* in [\d.]+s.*) =+$", printed, re.MULTILINE)
    return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error)", last)}


def test_a_plain_test_gets_one_that_blocks(run: Runs) -> None:
    printed = run(
        """
        import pytest
        from fencepost.simulation.embedded import EmbeddedKafka

        @pytest.mark.kafka(topics={"orders": 3}, brokers=2)
        def test_plain(kafka: EmbeddedKafka) -> None:
            assert len(kafka.bootstrap_servers.split(",")) == 2
            kafka.produce("orders", "a")
            assert [record.value for record in kafka.records("orders")] == [b"a"]
            with pytest.raises(TimeoutError):
                kafka.group("g").wait_stable(timeout=0.01)

        def test_each_has_its_own(kafka) -> None:
            assert kafka.events()[-1].kind == "coordinator"
        """,
        "--strict-markers",
        "-Werror",
    )
    assert outcomes(printed) == {"passed": 2}, printed


def test_what_did_not_go_wrong_is_a_warning(run: Runs) -> None:
    tests = """
        def test_nothing(kafka) -> None:
            kafka.fail_next("OffsetCommit", "NOT_COORDINATOR")

        def test_closed(kafka) -> None:
            kafka.fail_next("OffsetCommit", "NOT_COORDINATOR")
            kafka.close()

        async def test_awaited(kafka) -> None:
            kafka.lose_next_response("Fetch", "m", times=2)
        """
    printed = run(tests, "-o", "asyncio_mode=auto")
    assert outcomes(printed) == {"passed": 3}
    assert "kafka.fail_next('OffsetCommit', 'NOT_COORDINATOR') met 0 of 1 requests" in printed
    assert "kafka.lose_next_response('Fetch', 'm') met 0 of 2 requests" in printed
    assert "2 warnings" in printed
    assert outcomes(run(tests, "-o", "asyncio_mode=auto", "-Werror")) == {"passed": 3, "error": 2}


ASYNC = """
    import pytest
    from fencepost.simulation.embedded import AsyncEmbeddedKafka

    {marker}
    @pytest.mark.kafka(topics=["orders"])
    async def test_it(kafka: AsyncEmbeddedKafka) -> None:
        kafka.produce("orders", "a")
        with pytest.raises(TimeoutError):
            await kafka.group("g").wait_stable(timeout=0.01)

    {marker}
    async def test_shared(kafka_session) -> None:
        with pytest.raises(TimeoutError):
            await kafka_session.awaited.group("g").wait_stable(timeout=0.01)
"""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_pytest_asyncio(run: Runs, mode: str) -> None:
    marker = "@pytest.mark.asyncio" if mode == "strict" else ""
    printed = run(ASYNC.format(marker=marker), "-o", f"asyncio_mode={mode}", "-Werror")
    assert outcomes(printed) == {"passed": 2}, printed


def test_anyio_s_plugin(run: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """
    printed = run(
        ASYNC.format(marker="@pytest.mark.anyio"), "-o", "asyncio_mode=strict", "-Werror", conftest=conftest
    )
    assert outcomes(printed) == {"passed": 2}, printed


BY_HYPOTHESIS = """
    import pytest
    from hypothesis import HealthCheck, given, settings, strategies

    {marker}
    @pytest.mark.parametrize("number", [1, 2])
    @given(text=strategies.text())
    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    async def test_it(kafka, number, text):
        assert await kafka.group("g").wait_stable(members=0) == []

    @given(text=strategies.text())
    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def test_plain(kafka, text):
        assert kafka.group("g").wait_stable(members=0) == []
"""


@pytest.mark.parametrize("plugin", [pytest.param("asyncio", marks=pytest.mark.long), "anyio"])
def test_hypothesis_awaits_in_an_async_test(run: Runs, plugin: str) -> None:
    conftest = """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """
    tests = BY_HYPOTHESIS.format(marker=f"@pytest.mark.{plugin}")
    printed = run(tests, "-o", "asyncio_mode=strict", conftest=conftest)
    assert outcomes(printed) == {"passed": 3}, printed


def test_an_async_fixture_serves_plain_and_async_tests(run: Runs) -> None:
    printed = run(
        """
        import pytest

        @pytest.fixture
        async def prepared(kafka):
            await kafka.awaited.group("g").wait_stable(members=0)
            return "prepared"

        def test_plain(prepared, kafka):
            assert kafka.group("g").wait_stable(members=0) == []

        async def test_async(prepared, kafka):
            assert await kafka.group("g").wait_stable(members=0) == []
        """,
        "-o",
        "asyncio_mode=auto",
    )
    assert outcomes(printed) == {"passed": 2}, printed


def test_settings_of_the_session_and_markers_over_them(run: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            return {"topics": {"base": 1}, "config": {"group.max.size": 7}}
    """
    printed = run(
        """
        import pytest

        pytestmark = pytest.mark.kafka(brokers=2)

        def test_session(kafka_session):
            assert kafka_session.records("base") == []
            assert "," not in kafka_session.bootstrap_servers
            kafka_session.produce("base", "kept")

        def test_session_again(kafka_session):
            assert len(kafka_session.records("base")) == 1

        class TestMore:
            pytestmark = pytest.mark.kafka(brokers=3)

            def test_module_and_class(self, kafka):
                assert kafka.bootstrap_servers.count(",") == 2
                assert kafka.endpoint.brokers.config.group_max_size == 7

            @pytest.mark.kafka(brokers=1, topics={"own": 1})
            def test_own(self, kafka):
                assert "," not in kafka.bootstrap_servers
                assert kafka.records("own") == []
        """,
        conftest=conftest,
    )
    assert outcomes(printed) == {"passed": 4}, printed


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ("kafka(brokers=0)", "kafka can't be made: brokers=0: expected a whole number, 1 to 100"),
        ("kafka(topics={'orders': 'many'})", "kafka can't be made: topics: orders='many': expected a whole"),
        ("kafka(topics={'a b': 1})", "kafka can't be made: topic name 'a b'"),
        ("kafka(journal='/no/where/j')", "kafka can't be made: journal /no/where/j: /no/where does"),
        ("kafka(broker=3)", "kafka has no setting 'broker'; there are brokers, topics, config"),
        ("kafka(3)", "@pytest.mark.kafka(3,): expected names"),
    ],
)
def test_a_marker_that_makes_no_sense(run: Runs, marker: str, told: str) -> None:
    printed = run(
        f"""
        import pytest

        @pytest.mark.{marker}
        def test_it(kafka):
            pass
        """
    )
    assert outcomes(printed) == {"error": 1}, printed
    assert told in printed
    assert "Traceback" not in printed
    assert printed.count("expected ") <= 2, "once in full, once in the summary"


def test_a_marker_for_the_kafka_of_the_session_is_a_warning(run: Runs) -> None:
    tests = """
        import pytest

        @pytest.mark.kafka(brokers=3)
        def test_shared(kafka_session): pass

        @pytest.mark.kafka(brokers=3)
        def test_both(kafka_session, kafka): pass

        @pytest.mark.kafka
        def test_picked_by_its_marker(kafka_session): pass
        """
    printed = run(tests)
    assert outcomes(printed) == {"passed": 3}
    assert printed.count("which this test does not use: kafka_session is as kafka_settings says") == 1
    assert outcomes(run(tests, "-Werror")) == {"passed": 2, "error": 1}


def test_settings_of_the_session_that_make_no_sense(run: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            {"brokers": 3}
    """
    printed = run("def test_own(kafka): pass\ndef test_shared(kafka_session): pass\n", conftest=conftest)
    assert outcomes(printed) == {"error": 2}, printed
    assert printed.count("\nkafka_settings gives None: expected arguments by their names\n") == 2
    assert "Traceback" not in printed


FAILING = """
    import pytest

    @pytest.mark.kafka(topics=["orders"])
    def test_fails(kafka):
        kafka.group("g").wait_stable(timeout=0.01)

    def test_passes(kafka):
        pass

    def test_fails_without(tmp_path):
        assert False

    def test_shared_fails(kafka_session):
        kafka_session.create_topic("second")
        assert kafka_session.events() == []

    @pytest.fixture
    def mine():
        from fencepost.simulation.embedded import EmbeddedKafka
        with EmbeddedKafka() as kafka:
            yield kafka

    def test_with_my_own(mine):
        assert False
"""


def test_a_failed_test_leaves_a_timeline(run: Runs) -> None:
    printed = run(FAILING, "--kafka-trace")
    assert outcomes(printed) == {"failed": 4, "passed": 1}, printed
    pages = sorted(path.name for path in (run.folder / "kafka-trace").iterdir())
    assert pages == [
        "test_it.py-test_fails.html",
        "test_it.py-test_shared_fails-kafka_session.html",
        "test_it.py-test_with_my_own-mine.html",
    ]
    page = (run.folder / "kafka-trace" / pages[0]).read_text()
    assert "The test failed: TimeoutError: group &#x27;g&#x27; is not stable" in page
    assert "timeline of kafka" in printed
    assert str(run.folder / "kafka-trace" / pages[0]) in printed


def test_a_fixture_that_fails_leaves_a_timeline_too(run: Runs) -> None:
    printed = run(
        """
        import pytest
        from fencepost.simulation.trace.schema import Kind

        def seen(kafka, group):
            kafka.endpoint.watch.note("fence", Kind.FAULT, group=group, state_to="begin")

        @pytest.fixture
        def consumer(kafka):
            seen(kafka, "g")
            raise RuntimeError("could not start")

        @pytest.fixture
        def shared(kafka_session):
            seen(kafka_session, "of-this-test")
            raise RuntimeError("could not start either")

        def test_passes(kafka_session):
            seen(kafka_session, "of-another-test")

        def test_consumer(consumer):
            pass

        def test_both(kafka, consumer):
            pass

        def test_shared(shared):
            pass

        @pytest.fixture
        def ready(kafka):
            seen(kafka, "g")
            return kafka

        def test_ready(ready):
            assert False
        """,
        "--kafka-trace",
    )
    assert outcomes(printed) == {"passed": 1, "error": 3, "failed": 1}, printed
    pages = {path.name: path.read_text() for path in (run.folder / "kafka-trace").iterdir()}
    assert sorted(pages) == [
        "test_it.py-test_both.html",
        "test_it.py-test_consumer.html",
        "test_it.py-test_ready.html",
        "test_it.py-test_shared-kafka_session.html",
    ], "one for each Kafka, and for one group: what another test did is left out"
    assert "The test failed: RuntimeError: could not start" in pages["test_it.py-test_consumer.html"]
    assert (
        "test_shared-kafka_session, group of-this-test" in pages["test_it.py-test_shared-kafka_session.html"]
    )
    assert "test_ready, group g" in pages["test_it.py-test_ready.html"], "what fixtures did is in it"


def test_a_fixture_that_fails_behind_the_test_leaves_a_timeline(run: Runs) -> None:
    printed = run(
        """
        import pytest
        from fencepost.simulation.trace.schema import Kind

        @pytest.fixture
        def consumer(kafka):
            kafka.endpoint.watch.note("fence", Kind.FAULT, group="g", state_to="begin")
            yield kafka
            raise RuntimeError("did not close")

        @pytest.fixture
        def closed(kafka):
            yield
            kafka.close()
            raise RuntimeError("closed too much")

        def test_passes(consumer):
            pass

        def test_closes(closed):
            pass

        def test_fails(consumer):
            raise ValueError("not even this")
        """,
        "--kafka-trace",
    )
    assert outcomes(printed) == {"passed": 2, "failed": 1, "error": 3}, printed
    pages = {path.name: path.read_text() for path in (run.folder / "kafka-trace").iterdir()}
    assert len(pages) == 3
    passed = pages["test_it.py-test_passes.html"]
    assert "A fixture failed behind the test: RuntimeError: did not close" in passed
    assert "test_passes, group g" in passed
    assert (
        "A fixture failed behind the test: RuntimeError: closed too" in pages["test_it.py-test_closes.html"]
    )
    assert "The test failed: ValueError: not even this" in pages["test_it.py-test_fails.html"]


def test_another_folder_for_timelines_and_none_without_the_option(run: Runs) -> None:
    run(FAILING)
    assert not (run.folder / "kafka-trace").exists()
    run(FAILING, "--kafka-trace-dir", "out/pages", "-k", "test_fails")
    assert [path.name for path in (run.folder / "out" / "pages").iterdir()] == ["test_it.py-test_fails.html"]


def test_timelines_do_not_take_each_other_s_place(run: Runs) -> None:
    printed = run(
        """
        import pytest

        @pytest.mark.parametrize("name", ["a/b", "a:b", "A b"])
        def test_fails(kafka, name):
            assert name is None
        """,
        "--kafka-trace",
    )
    pages = {path.name: path.read_text() for path in (run.folder / "kafka-trace").iterdir()}
    assert sorted(pages) == [
        "test_it.py-test_fails-A-b-3.html",
        "test_it.py-test_fails-a-b-2.html",
        "test_it.py-test_fails-a-b.html",
    ], printed
    assert "test_fails[a:b]" in pages["test_it.py-test_fails-a-b-2.html"]


def test_a_folder_that_cannot_be_written_is_told(run: Runs) -> None:
    (run.folder / "taken").write_text("")
    printed = run(FAILING, "--kafka-trace-dir", "taken", "-k", "test_fails")
    assert "it could not be written" in printed
    assert outcomes(printed)["failed"] == 2


def test_a_run_that_does_not_use_it_imports_nothing_of_it(run: Runs) -> None:
    printed = run(
        """
        import json, sys

        def test_nothing():
            print("LOADED", json.dumps(sorted(sys.modules)))
        """,
        "-p",
        "no:anyio",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:xdist",
        "-s",
    )
    found = re.search(r"LOADED (\[.*\])", printed)
    assert found is not None, printed
    loaded = set(json.loads(found[1]))
    ours = {name for name in loaded if name.startswith("fencepost.")}
    assert ours == {"fencepost.simulation", "fencepost.simulation.embedded", PLUGIN}
    assert loaded & {"msgspec", "kio", "aiokafka", "structlog", "rich", "anyio"} == set()


def test_a_mistake_is_told_at_the_line_that_made_it(run: Runs) -> None:
    printed = run(
        """
        import pytest

        def test_topic(kafka):
            kafka.produce("nowhere", "x")

        def test_waits(kafka):
            kafka.group("g").wait_stable(timeout=0.01)

        @pytest.mark.asyncio
        async def test_awaits(kafka):
            await kafka.group("g").wait_stable(timeout=0.01)

        def test_closed(kafka):
            kafka.close()
            kafka.check()
        """
    )
    assert outcomes(printed) == {"failed": 4}
    assert len(re.findall(r"^test_it.py:\d+: (FencepostError|TimeoutError)$", printed, re.MULTILINE)) == 4
    assert not re.search(r"\.py:\d+: in ", printed), "a frame of ours"
