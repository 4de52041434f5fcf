"""Shares of the test files: with `--dist each`, a process collects and runs its own share, and nothing else.

With other modes of xdist each process collects all tests, which takes longer than most tests do.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
S_PER_KB = 0.045
"""What a kilobyte of tests takes, in seconds of one core."""
LONGER_S = {
    "test_classic_clients.py": 3,
    "test_classic_world.py": 6,
    "test_cli_refusals.py": 3,
    "test_cli_simulate.py": 3,
    "test_codec_reader.py": 3,
    "test_conform_suite.py": 6,
    "test_docstrings.py": 2,
    "test_embedded_clients.py": 4,
    "test_explorer.py": 13,
    "test_failures.py": 4,
    "test_interrupted_runs.py": 2,
    "test_journal_damage.py": 5,
    "test_members.py": 5,
    "test_mutants_registry.py": 5,
    "test_mutation.py": 5,
    "test_proxy_real.py": 7,
    "test_record_checks.py": 3,
    "test_run.py": 11,
    "test_run_views.py": 5,
    "test_scenarios.py": 3,
    "test_server_fuzz.py": 4,
    "test_server_hostile.py": 5,
    "test_server_large_batches.py": 8,
    "test_slow_networks.py": 5,
    "test_streams_world.py": 16,
    "test_trace_schema.py": 3,
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
    """Cut the sorted files into parts that take about the same time: neighbours import the same things."""
    ordered = sorted(files)
    seconds = [LONGER_S.get(file.name, file.stat().st_size / 1000 * S_PER_KB) for file in ordered]
    total = sum(seconds)
    parts: list[list[Path]] = [[] for _ in range(count)]
    for file, own, before in zip(ordered, seconds, itertools.accumulate(seconds, initial=0.0), strict=False):
        parts[int((before + own / 2) / total * count)].append(file)
    return parts


class Share:
    """A plugin of a process that collects one share."""

    def __init__(self, number: int, count: int) -> None:
        self._files = frozenset(shares(TESTS.rglob("test_*.py"), count)[number])

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
