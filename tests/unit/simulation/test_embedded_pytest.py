"""The pytest plugin, in pytest runs of their own: every kind of test gets its Kafka."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.forks import LOOP_SCOPE, PLUGIN, PYTEST
from tests.unit.simulation.pytest_runs import Runs, outcomes

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def test_a_plain_test_gets_one_that_blocks(run_pytest: Runs) -> None:
    printed = run_pytest(
        """
        import pytest
        from fencepost import EmbeddedKafka

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


def test_what_did_not_go_wrong_is_a_warning(run_pytest: Runs) -> None:
    tests = """
        def test_nothing(kafka) -> None:
            kafka.fail_next("OffsetCommit", "NOT_COORDINATOR")

        def test_closed(kafka) -> None:
            kafka.fail_next("OffsetCommit", "NOT_COORDINATOR")
            kafka.close()

        async def test_awaited(kafka) -> None:
            kafka.lose_next_response("Fetch", "m", times=2)
        """
    printed = run_pytest(tests, "-o", "asyncio_mode=auto")
    assert outcomes(printed) == {"passed": 3}
    assert "kafka.fail_next('OffsetCommit', 'NOT_COORDINATOR') met 0 of 1 requests" in printed
    assert "kafka.lose_next_response('Fetch', 'm') met 0 of 2 requests" in printed
    assert "2 warnings" in printed
    assert outcomes(run_pytest(tests, "-o", "asyncio_mode=auto", "-Werror")) == {"passed": 3, "error": 2}


ASYNC = """
    import pytest
    from fencepost import AsyncEmbeddedKafka

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
def test_pytest_asyncio(run_pytest: Runs, mode: str) -> None:
    marker = "@pytest.mark.asyncio" if mode == "strict" else ""
    printed = run_pytest(ASYNC.format(marker=marker), "-o", f"asyncio_mode={mode}", "-Werror")
    assert outcomes(printed) == {"passed": 2}, printed


def test_anyio_s_plugin(run_pytest: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """
    printed = run_pytest(
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
def test_hypothesis_awaits_in_an_async_test(run_pytest: Runs, plugin: str) -> None:
    conftest = """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """
    tests = BY_HYPOTHESIS.format(marker=f"@pytest.mark.{plugin}")
    printed = run_pytest(tests, "-o", "asyncio_mode=strict", conftest=conftest)
    assert outcomes(printed) == {"passed": 3}, printed


def test_an_async_fixture_serves_plain_and_async_tests(run_pytest: Runs) -> None:
    printed = run_pytest(
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


def test_settings_of_the_session_and_markers_over_them(run_pytest: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            return {"topics": {"base": 1}, "config": {"group.max.size": 7}}
    """
    printed = run_pytest(
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


NONSENSE = {
    "kafka(brokers=0)": "kafka can't be made: brokers=0: expected a whole number, 1 to 100",
    "kafka(topics={'orders': 'many'})": "kafka can't be made: topics: orders='many': expected a whole",
    "kafka(topics={'a b': 1})": "kafka can't be made: topic name 'a b'",
    "kafka(journal='/no/where/j')": "kafka can't be made: journal /no/where/j: /no/where does",
    "kafka(broker=3)": "kafka has no setting 'broker'; there are brokers, topics, config",
    "kafka(3)": "@pytest.mark.kafka(3,): expected names",
    "parametrize('kafka', [{'brokers': 3}], indirect=True)": "kafka takes no parameter of pytest.mark.param",
}
"""Markers, and what is told of each."""


def test_a_marker_that_makes_no_sense(run_pytest: Runs) -> None:
    tests = "".join(
        f"@pytest.mark.{marker}\ndef test_{number}(kafka):\n    pass\n"
        for number, marker in enumerate(NONSENSE)
    )
    printed = run_pytest(f"import pytest\n{tests}")
    assert outcomes(printed) == {"error": len(NONSENSE)}, printed
    assert "Traceback" not in printed
    for told in NONSENSE.values():
        assert printed.count(told) <= 2, "once in full, once in the summary"
        assert told in printed


def test_a_marker_for_the_kafka_of_the_session_is_a_warning(run_pytest: Runs) -> None:
    tests = """
        import pytest

        @pytest.mark.kafka(brokers=3)
        def test_shared(kafka_session): pass

        @pytest.mark.kafka(brokers=3)
        def test_both(kafka_session, kafka): pass

        @pytest.mark.kafka
        def test_picked_by_its_marker(kafka_session): pass
        """
    printed = run_pytest(tests)
    assert outcomes(printed) == {"passed": 3}
    assert (
        printed.count("which this test does not use: kafka_session takes its arguments from kafka_settings")
        == 1
    )
    assert outcomes(run_pytest(tests, "-Werror")) == {"passed": 2, "error": 1}


def test_settings_of_the_session_that_make_no_sense(run_pytest: Runs) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            {"brokers": 3}
    """
    printed = run_pytest(
        "def test_own(kafka): pass\ndef test_shared(kafka_session): pass\n", conftest=conftest
    )
    assert outcomes(printed) == {"error": 2}, printed
    assert printed.count("\nkafka_settings gives None: expected arguments by their names\n") == 2
    assert "Traceback" not in printed


def test_a_run_that_does_not_use_it_imports_nothing_of_it(run_pytest: Runs) -> None:
    (run_pytest.folder / "test_it.py").write_text(
        "import json, sys\n\ndef test_nothing():\n    print('LOADED', json.dumps(sorted(sys.modules)))\n"
    )
    plain = [sys.executable, *PYTEST, *LOOP_SCOPE, "-p", "no:anyio", "-p", "no:xdist", "-s", "test_it.py"]
    done = subprocess.run(plain, cwd=run_pytest.folder, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    found = re.search(r"LOADED (\[.*\])", printed)
    assert found is not None, printed
    loaded = set(json.loads(found[1]))
    ours = {name for name in loaded if name.startswith("fencepost.")}
    assert ours == {"fencepost.simulation", "fencepost.simulation.embedded", PLUGIN}
    assert loaded & {"msgspec", "kio", "aiokafka", "structlog", "rich", "anyio"} == set()


def test_a_mistake_is_told_at_the_line_that_made_it(run_pytest: Runs) -> None:
    printed = run_pytest(
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
