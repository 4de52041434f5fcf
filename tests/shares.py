"""Shares of the test files: with `--dist each`, a process collects and runs its own share, and nothing else.

With other modes of xdist each process collects all tests, which takes longer than most tests do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
S_PER_KB = 0.045
"""What a kilobyte of tests takes, in seconds of one core."""
LONGER_S = {
    "test_brokers_come_and_go.py": 3,
    "test_campaign_notebook.py": 2,
    "test_cancelled_members.py": 3,
    "test_classic_clients.py": 8,
    "test_classic_world.py": 6,
    "test_cli_completion.py": 2,
    "test_cli_refusals.py": 3,
    "test_cli_simulate.py": 3,
    "test_client_transactions.py": 7,
    "test_codec_reader.py": 3,
    "test_confluent_producer.py": 3,
    "test_conform_suite.py": 14,
    "test_control.py": 5,
    "test_docstrings.py": 2,
    "test_embedded_brokers.py": 4,
    "test_embedded_clients.py": 36,
    "test_embedded_failures.py": 3,
    "test_embedded_fault_rules.py": 4,
    "test_embedded_logs.py": 4,
    "test_embedded_quotas.py": 3,
    "test_embedded_users.py": 4,
    "test_explorer.py": 13,
    "test_failures.py": 4,
    "test_faulty_proxy.py": 5,
    "test_fidelity.py": 3,
    "test_interrupted_runs.py": 2,
    "test_journal_damage.py": 5,
    "test_kip848_consumer.py": 4,
    "test_kip848_consumer_groups.py": 14,
    "test_kip848_consumer_migration.py": 6,
    "test_lost_static_joins.py": 3,
    "test_members.py": 5,
    "test_mutants_registry.py": 5,
    "test_mutation.py": 5,
    "test_proxy.py": 5,
    "test_proxy_faults.py": 3,
    "test_proxy_real.py": 15,
    "test_rabbit_sockets.py": 7,
    "test_record_checks.py": 3,
    "test_rstream.py": 5,
    "test_run.py": 11,
    "test_run_views.py": 5,
    "test_scenarios.py": 3,
    "test_server_fuzz.py": 4,
    "test_server_hostile.py": 26,
    "test_server_large_batches.py": 8,
    "test_slow_networks.py": 5,
    "test_streams_app.py": 12,
    "test_streams_changelog_failures.py": 4,
    "test_streams_refusals.py": 4,
    "test_streams_restoring.py": 3,
    "test_streams_static.py": 4,
    "test_streams_world.py": 16,
    "test_topic_reader.py": 3,
    "test_trace_schema.py": 3,
    "test_trace_topic.py": 5,
    "test_what_if.py": 3,
    "test_world.py": 5,
    "test_world_faults.py": 3,
    "test_world_planted.py": 9,
    "test_world_reports.py": 5,
    "test_world_settings.py": 3,
    "test_world_standstill.py": 6,
    "test_world_telling.py": 5,
}
"""Files that take much longer than their size says. A wrong number costs balance, and nothing else."""


def shares(files: Iterable[Path], count: int) -> list[list[Path]]:
    """Return parts that take about the same time, in files that wait as well as in those that compute."""
    ordered = sorted(files)
    waiting = _cut([file for file in ordered if waits(file)], count)
    computing = _cut([file for file in ordered if not waits(file)], count)
    return [[*first, *second] for first, second in zip(waiting, computing, strict=True)]


@functools.cache
def waits(file: Path) -> bool:
    """Return true if tests of the file mostly wait for clients and sockets."""
    return b"mark.real" in file.read_bytes()


def _cut(files: Sequence[Path], count: int) -> list[list[Path]]:
    """Cut the files into parts that take about the same time: neighbours import the same things."""
    seconds = [LONGER_S.get(file.name, file.stat().st_size / 1000 * S_PER_KB) for file in files]
    total = sum(seconds)
    parts: list[list[Path]] = [[] for _ in range(count)]
    for file, own, before in zip(files, seconds, itertools.accumulate(seconds, initial=0.0), strict=False):
        parts[int((before + own / 2) / total * count)].append(file)
    return parts


class Share:
    """A plugin of a process that collects one share.

    Every other process begins with the tests that wait, while the rest compute.
    """

    def __init__(self, number: int, count: int) -> None:
        self._files = frozenset(shares(TESTS.rglob("test_*.py"), count)[number])
        self._waits_first = number % 2 == 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        waiting = {path: waits(path) for path in {item.path for item in items}}
        items.sort(key=lambda item: waiting[item.path] != self._waits_first)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".py" and collection_path not in self._files else None


class Shares:
    """A plugin of the process that gives each other process its share."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._collected = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["share"] = next(self._numbers)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected += len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        self._session = session
        return (yield)

    def pytest_runtest_logstart(self) -> None:
        """Let percentages be of all tests: xdist knows how many one process has."""
        self._session.testscollected = self._collected


def is_share(config: pytest.Config) -> bool:
    """Return true in a process that collects its share only."""
    return "share" in getattr(config, "workerinput", {})


def divide(config: pytest.Config) -> None:
    """Let this process deal shares, or collect its own, if the run is divided into them."""
    if is_share(config):
        given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
        config.pluginmanager.register(Share(given["share"], given["workercount"]))
    elif config.getoption("dist", "no") == "each":
        config.pluginmanager.register(Shares())
