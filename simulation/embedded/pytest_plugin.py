"""The pytest plugin: fixtures `kafka` and `kafka_session`, a marker, and timelines of failed tests.

Nothing except pytest is imported before a test asks for a Kafka.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fencepost.simulation.embedded.kafka import AsyncEmbeddedKafka, EmbeddedKafka
    from fencepost.simulation.embedded.thread import LoopThread
    from fencepost.simulation.trace.schema import Row

FOLDER = "kafka-trace"
_MARKER = "kafka(brokers=1, topics=None, config=None, ...): arguments for the fixture `kafka` of this test"
_AWAITS = pytest.StashKey[bool]()
"""True if a test is async; some plugins replace async functions by sync ones when they run them."""
_MADE = pytest.StashKey[dict[str, "EmbeddedKafka | AsyncEmbeddedKafka"]]()
"""The Kafkas that fixtures have made, by fixture name; they may be closed by now."""
_SEEN = pytest.StashKey[dict["LoopThread", int]]()
"""By the thread of a Kafka, the number of the last row of its trace when the test began."""
_TRACED = pytest.StashKey[dict[str, "tuple[list[Row], Mapping[str, str]]"]]()
"""By the name of a fixture, the rows of a test and the names in them as its teardown began."""
_FAILED = pytest.StashKey[bool]()
"""True if the timelines of a test are written."""
_WORLDS = "simulated worlds"
_configs: list[pytest.Config] = []
_running_items: list[pytest.Item] = []
_PAGES = pytest.StashKey[dict[str, str]]()
"""The titles of the written timelines, by their files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of this plugin."""
    group = parser.getgroup("fencepost")
    group.addoption(
        "--kafka-trace",
        action="store_true",
        help=f"leave a timeline of each failed test that used an embedded Kafka, as HTML in {FOLDER}/",
    )
    group.addoption(
        "--kafka-trace-dir",
        metavar="DIR",
        help="the same, in another folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this plugin."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_MADE] = {}
    config.stash[_PAGES] = {}
    _configs.append(config)


def pytest_unconfigure() -> None:
    """Forget the configuration."""
    if _configs:
        _configs.pop()


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """Let the streams of the process be those that a person sees."""
    capture = _configs[-1].pluginmanager.getplugin("capturemanager") if _configs else None
    with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
        yield


def add_to_summary(text: str) -> bool:
    """Add a text about the running test to the summary of pytest; return false if no test runs."""
    if _running_items:
        _running_items[-1].add_report_section("call", _WORLDS, text)
    return bool(_running_items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remember the test that runs."""
    _running_items.append(item)
    try:
        return (yield)
    finally:
        _running_items.pop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what simulated worlds tell about tests that have passed."""
    texts = [
        text
        for report in terminalreporter.getreports("passed")
        for title, text in report.sections
        if title == f"Captured {_WORLDS} call"
    ]
    if texts:
        terminalreporter.section(_WORLDS)
        for text in texts:
            terminalreporter.line(text)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Remember whether the test is async; for a hypothesis test, whether the wrapped function is."""
    function = getattr(item, "function", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    item.stash[_AWAITS] = inspect.iscoroutinefunction(inner)


@pytest.fixture(scope="session")
def kafka_settings() -> Mapping[str, Any]:
    """Return arguments for every `EmbeddedKafka` of the session. Override this fixture to change them."""
    return {}


@pytest.fixture
def kafka(
    request: pytest.FixtureRequest, kafka_settings: Mapping[str, Any]
) -> Iterator[EmbeddedKafka | AsyncEmbeddedKafka]:
    """Yield an embedded Kafka for this test alone. In an async test, its waiting methods are awaited.

    `@pytest.mark.kafka(brokers=3, topics={"orders": 12})` gives its arguments, over those of
    `kafka_settings`. A fault of the test that never met its requests gives a warning.
    """
    if hasattr(request, "param"):
        pytest.fail(
            "kafka takes no parameter of pytest.mark.parametrize: give each case its arguments with "
            "pytest.param(..., marks=pytest.mark.kafka(...))",
            pytrace=False,
        )
    with _running(kafka_settings, _marked(request.node)) as running:
        yield running.awaited if request.node.stash.get(_AWAITS, False) else running
        for each in running.unmet() if running.is_running else ():
            request.node.warn(
                pytest.PytestWarning(f"kafka.{each} requests: the fault did not happen as often as set")
            )


@pytest.fixture(scope="session")
def kafka_session(kafka_settings: Mapping[str, Any]) -> Iterator[EmbeddedKafka]:
    """Yield an embedded Kafka for all tests of the session, with the arguments of `kafka_settings`.

    Tests that share it need topics and groups with names of their own. Its methods block; an async test uses
    `kafka_session.awaited`.
    """
    with _running(kafka_settings) as running:
        yield running


def _marked(node: pytest.Item) -> dict[str, Any]:
    """Return the arguments of all markers; those of the function override those of its class and module."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("kafka"))):
        if marker.args:
            pytest.fail(
                f"@pytest.mark.kafka{marker.args!r}: expected names, as in topics={{...}}", pytrace=False
            )
        settings.update(marker.kwargs)
    return settings


def _warn_of_idle_marker(item: pytest.Item) -> None:
    """Warn if a marker of the test itself has no effect because the test does not use the fixture."""
    names = getattr(item, "fixturenames", ())
    idle = "kafka_session" in names and "kafka" not in names
    for marker in item.own_markers if idle else ():
        if marker.name == "kafka" and marker.kwargs:
            item.warn(
                pytest.PytestWarning(
                    "@pytest.mark.kafka is about the fixture kafka, which this test does not use:"
                    " kafka_session takes its arguments from kafka_settings"
                )
            )


@contextlib.contextmanager
def _running(general: Any, marked: Mapping[str, Any] = MappingProxyType({})) -> Iterator[EmbeddedKafka]:
    """Start an embedded Kafka with the arguments of `kafka_settings`, overridden by those of markers."""
    from fencepost.coordinator.protocol.errors import FencepostError
    from fencepost.simulation.embedded.kafka import EmbeddedKafka

    if not isinstance(general, Mapping):
        pytest.fail(f"kafka_settings gives {general!r}: expected arguments by their names", pytrace=False)
    settings = {**general, **marked}
    known = [*inspect.signature(EmbeddedKafka).parameters]
    unknown = [name for name in settings if name not in known]
    if unknown:
        pytest.fail(f"kafka has no setting {unknown[0]!r}; there are {', '.join(known)}", pytrace=False)
    try:
        made = EmbeddedKafka(**settings)
        made.start()
    except FencepostError as error:
        problem = f"kafka can't be made: {error}"
    else:
        with contextlib.closing(made):
            yield made
        return
    pytest.fail(problem, pytrace=False)  # outside the handler: pytest would also show the original error


# -- timelines ------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Remember each Kafka that a fixture yields. A test gets its fixtures only when all of them are set
    up."""
    value = yield
    module = sys.modules.get("fencepost.simulation.embedded.controls")
    if module is not None and isinstance(value, module.KafkaControls):
        request.config.stash[_MADE][fixturedef.argname] = value
    return value


def _used(item: pytest.Item) -> Iterator[tuple[str, EmbeddedKafka | AsyncEmbeddedKafka]]:
    """Yield the running Kafkas among a test's fixtures, each with the name of the fixture that made it."""
    made = item.config.stash[_MADE]
    names = [name for name in getattr(item, "fixturenames", ()) if name in made and made[name].is_running]
    for name in {made[name].thread: name for name in names}.values():
        yield name, made[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check the marker, and remember where the test begins in the trace of a shared Kafka."""
    _warn_of_idle_marker(item)
    if _folder(item.config) is not None:
        item.stash[_FAILED] = False
        item.stash[_SEEN] = {kafka.thread: kafka.last_event for _, kafka in _used(item)}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep the traces: a fixture may fail after its Kafka is closed."""
    if _folder(item.config) is not None:
        item.stash[_TRACED] = _traced(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the timelines of a test that failed; its first failure is their verdict."""
    report = yield
    folder = _folder(item.config)
    if folder is not None and (call.when == "call" or report.failed):
        for _, kafka in _used(item):
            kafka.end_of_test(call.excinfo.value if report.failed and call.excinfo is not None else None)
    if folder is not None and report.failed and not item.stash[_FAILED]:
        item.stash[_FAILED] = True
        kept = item.stash[_TRACED] if call.when == "teardown" else {}
        raised = "" if call.excinfo is None else call.excinfo.exconly().splitlines()[0]
        what = "A fixture failed after the test" if call.when == "teardown" else "The test failed"
        for name, traced in (kept | _traced(item)).items():
            title = item.nodeid if name == "kafka" else f"{item.nodeid}-{name}"
            taken = item.config.stash[_PAGES]
            timelines = _timelines(
                *traced, folder, title, f"{what}: {raised}", taken=taken, whole=report.longreprtext
            )
            report.sections.append((f"timeline of {name}", timelines))
    return report


def _traced(item: pytest.Item) -> dict[str, tuple[list[Row], Mapping[str, str]]]:
    """Return the rows of a test from the traces of its running Kafkas, with the names of members."""
    since = item.stash.get(_SEEN, {})
    return {
        name: ([row for row in kafka.events() if row.seq > since.get(kafka.thread, 0)], kafka.member_names())
        for name, kafka in _used(item)
    }


def _timelines(
    rows: list[Row],
    names: Mapping[str, str],
    folder: Path,
    title: str,
    verdict: str,
    *,
    taken: dict[str, str],
    whole: str,
) -> str:
    from fencepost.coordinator.protocol.errors import FencepostError
    from fencepost.simulation.embedded.timeline import write_timelines

    try:
        return "\n".join(
            map(str, write_timelines(rows, folder, title, verdict, names, taken=taken, whole=whole))
        )
    except FencepostError as error:
        return f"it could not be written: {error}"
    except OSError as error:
        return f"{folder} could not be written: {(error.strerror or type(error).__name__).lower()}"


def _folder(config: pytest.Config) -> Path | None:
    """Return the folder for timelines; None if no option asks for them."""
    chosen: str | None = config.getoption("kafka_trace_dir")
    if chosen is not None:
        return config.invocation_params.dir / chosen
    return config.invocation_params.dir / FOLDER if config.getoption("kafka_trace") else None
