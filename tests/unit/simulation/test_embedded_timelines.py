"""Timelines of tests that fail on an embedded Kafka, in pytest runs of their own."""

from __future__ import annotations

import pytest

from tests.unit.simulation.pytest_runs import Runs, outcomes

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


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
        from fencepost import EmbeddedKafka
        with EmbeddedKafka() as kafka:
            yield kafka

    def test_with_my_own(mine):
        assert False
"""


def test_a_failed_test_leaves_a_timeline(run_pytest: Runs) -> None:
    printed = run_pytest(FAILING, "--kafka-trace")
    assert outcomes(printed) == {"failed": 4, "passed": 1}, printed
    pages = sorted(path.name for path in (run_pytest.folder / "kafka-trace").iterdir())
    assert pages == [
        "test_it.py-test_fails.html",
        "test_it.py-test_shared_fails-kafka_session.html",
        "test_it.py-test_with_my_own-mine.html",
    ]
    page = (run_pytest.folder / "kafka-trace" / pages[0]).read_text()
    assert "The test failed: TimeoutError: group &#x27;g&#x27; is not stable" in page
    assert "timeline of kafka" in printed
    assert str(run_pytest.folder / "kafka-trace" / pages[0]) in printed


def test_a_fixture_that_fails_leaves_a_timeline_too(run_pytest: Runs) -> None:
    printed = run_pytest(
        """
        import pytest
        from fencepost.simulation.trace.schema import RowKind

        def seen(kafka, group):
            kafka.endpoint.observer.note("fence", RowKind.FAULT, group=group, state_to="begin")

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
    pages = {path.name: path.read_text() for path in (run_pytest.folder / "kafka-trace").iterdir()}
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


def test_a_fixture_that_fails_behind_the_test_leaves_a_timeline(run_pytest: Runs) -> None:
    printed = run_pytest(
        """
        import pytest
        from fencepost.simulation.trace.schema import RowKind

        @pytest.fixture
        def consumer(kafka):
            kafka.endpoint.observer.note("fence", RowKind.FAULT, group="g", state_to="begin")
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
    pages = {path.name: path.read_text() for path in (run_pytest.folder / "kafka-trace").iterdir()}
    assert len(pages) == 3
    passed = pages["test_it.py-test_passes.html"]
    assert "A fixture failed after the test: RuntimeError: did not close" in passed
    assert "test_passes, group g" in passed
    assert "A fixture failed after the test: RuntimeError: closed too" in pages["test_it.py-test_closes.html"]
    assert "The test failed: ValueError: not even this" in pages["test_it.py-test_fails.html"]


def test_another_folder_for_timelines_and_none_without_the_option(run_pytest: Runs) -> None:
    run_pytest(FAILING)
    assert not (run_pytest.folder / "kafka-trace").exists()
    run_pytest(FAILING, "--kafka-trace-dir", "out/pages", "-k", "test_fails")
    assert [path.name for path in (run_pytest.folder / "out" / "pages").iterdir()] == [
        "test_it.py-test_fails.html"
    ]


def test_timelines_do_not_take_each_other_s_place(run_pytest: Runs) -> None:
    printed = run_pytest(
        """
        import pytest

        @pytest.mark.parametrize("name", ["a/b", "a:b", "A b"])
        def test_fails(kafka, name):
            assert name is None
        """,
        "--kafka-trace",
    )
    pages = {path.name: path.read_text() for path in (run_pytest.folder / "kafka-trace").iterdir()}
    assert sorted(pages) == [
        "test_it.py-test_fails-A-b-3.html",
        "test_it.py-test_fails-a-b-2.html",
        "test_it.py-test_fails-a-b.html",
    ], printed
    assert "test_fails[a:b]" in pages["test_it.py-test_fails-a-b-2.html"]


def test_a_folder_that_cannot_be_written_is_told(run_pytest: Runs) -> None:
    (run_pytest.folder / "taken").write_text("")
    printed = run_pytest(FAILING, "--kafka-trace-dir", "taken", "-k", "test_fails")
    assert "taken could not be written: file exists" in printed
    assert outcomes(printed)["failed"] == 2


def test_a_failure_with_text_that_utf_8_cannot_express_leaves_a_timeline(run_pytest: Runs) -> None:
    printed = run_pytest(
        """
        def test_fails(kafka):
            raise ValueError("no such file: \\ud800")

        def test_events(kafka_session):
            kafka_session.end_of_test(ValueError("\\ud800"))
            assert kafka_session.events()[-1].detail == r"ValueError: \\ud800"
        """,
        "--kafka-trace",
    )
    assert outcomes(printed) == {"failed": 1, "passed": 1}, printed
    (page,) = (run_pytest.folder / "kafka-trace").iterdir()
    assert r"no such file: \ud800" in page.read_text()
