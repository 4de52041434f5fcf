"""What all tests share: async tests run in virtual time, unless they are marked `real`; a Kafka to start."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.lab.clusters.artifacts import Installation, prepare
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, NEWEST_KAFKA, KafkaVersion
from tests.costs import Costs
from tests.orphans import Guard
from tests.shares import divide, is_share
from tests.watchdog import Watchdog, may_start_processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tests share asserts too, and a failure tells both sides there as well.
pytest.register_assert_rewrite("tests.conformance", "tests.property", "tests.unit")

# How long an example takes is the machine's affair.
# One commit, one verdict: the examples are the same in each run. `explore` tries others, and more of them.
settings.register_profile(
    "any-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    max_examples=30,
)
settings.load_profile("any-machine")
# What `make test` asks for (--hypothesis-profile) without ALL=1.
settings.register_profile("short", settings.get_profile("any-machine"), max_examples=10)
# To look for what those examples miss: make test ARGS="--hypothesis-profile explore tests/property"
settings.register_profile("explore", settings.get_profile("any-machine"), derandomize=False, max_examples=100)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real") is not None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": lambda: VirtualLoop(max_events=5_000_000)}


FETCH_SECONDS = 120


@pytest.hookimpl(trylast=True)  # behind what keeps the real stderr
def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in its background with SIGINT ignored: tests send it, and programs obey it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Guard())
    config.pluginmanager.register(Watchdog(config.stash[fault_handler_stderr_fd_key]))
    if os.environ.get("FENCEPOST_TESTS_COSTS"):
        config.pluginmanager.register(Costs())
    divide(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests stay until the end: nobody need look through them for garbage again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if may_start_processes(item):
            item.add_marker(pytest.mark.processes)
            # A busy machine may starve the other process once; the summary counts the second tries.
            item.add_marker(pytest.mark.flaky(reruns=1))
    yield  # here -m leaves out what the run is not for
    if not is_share(config):
        items[:] = _in_shares(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count the tests that needed a second try."""
    tries = len(terminalreporter.stats.get("rerun", ()))
    terminalreporter.write_line(f"second tries: {tries}")


def _in_shares(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """One behind the other what each process begins with: equal parts, of whose ends others steal later.

    Only the first one starts Spark. The others begin with tests that wait for other processes while Spark
    computes, those with processes first. What computes is left for the end, and keeps all cores busy there.
    """
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        with_spark = "spark" in getattr(item, "fixturenames", ())
        (shares[0] if with_spark else files.setdefault(item.path, [])).append(item)
    waiting = [file for file in files.values() if _has(file, "real")]
    waiting.sort(key=lambda file: not _has(file, "processes"))
    others = shares[1:] or shares
    for number, file in enumerate(waiting):
        others[number % len(others)].extend(file)
    computing = [item for file in files.values() if not _has(file, "real") for item in file]
    for number, share in enumerate(shares):
        left = len(items) - sum(map(len, shares[:number]))
        room = max(left // (processes - number) - len(share), 0)
        share.extend(computing[:room])
        del computing[:room]
    return [item for share in shares for item in share] + computing


def _has(file: list[pytest.Item], marker: str) -> bool:
    return any(item.get_closest_marker(marker) is not None for item in file)


@pytest.fixture(scope="session")
def processes() -> None:
    """Lets a test or a fixture start processes, or use those of others: `make test` leaves such tests out."""


@pytest.fixture(scope="session")
def spark(processes: None) -> Iterator[SparkSession]:
    """The one session of all tests: one that runs already is used by everything that asks for one."""
    from fencepost.simulation.pipeline.session import spark_session

    with spark_session("local[2]") as session:
        yield session


@pytest.fixture(scope="session")
def kafka_installation(processes: None) -> Installation:
    """Java and Kafka's jars, fetched if need be; the test is skipped where they can't be had.

    FENCEPOST_TESTS_WITHOUT_KAFKA, if set, is the reason why nobody should try.
    """
    return installation_of(KAFKA_VERSION)


@pytest.fixture(scope="session")
def newest_kafka_installation(processes: None) -> Installation:
    """The same of the newest Kafka."""
    return installation_of(NEWEST_KAFKA)


def installation_of(version: KafkaVersion) -> Installation:
    if reason := os.environ.get("FENCEPOST_TESTS_WITHOUT_KAFKA"):
        pytest.skip(reason)

    async def prepared() -> Installation:
        async with asyncio.timeout(FETCH_SECONDS):
            return await prepare(version)

    try:
        return asyncio.run(prepared())
    except (EnvironmentLacks, TimeoutError) as error:
        pytest.skip(str(error) or f"Maven does not fetch Kafka {version} within {FETCH_SECONDS} s")


@pytest.fixture(scope="session")
def pem(processes: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 which signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    folder = tmp_path_factory.mktemp("pem")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(autouse=True)
def _logs_are_not_configured() -> Iterator[None]:
    """The command line configures logs for its process; the next test is another program."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
