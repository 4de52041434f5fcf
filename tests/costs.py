"""The CPU time of each file of tests, with that of its processes, and where workers wait."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.watchdog import may_start_processes

SHOWN = 25
_PROPERTY = "cpu_s"
_BEGAN = pytest.StashKey[float]()
_FIRST_TIME = 11
"""Number of fields of a process's `stat` between its command and the first of four times."""


def cpu_s(item: pytest.Item) -> float:
    """Return the CPU time of this process, in seconds, and of its descendants if the test may start some.

    Descendants that still run count on Linux only.
    """
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(each.ru_utime + each.ru_stime for each in own)
    if not may_start_processes(item):
        return total
    for child in _descendants(str(os.getpid())):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{child}/stat").read_text(errors="replace").rpartition(")")[2].split()
            total += sum(map(int, fields[_FIRST_TIME : _FIRST_TIME + 4])) / os.sysconf("SC_CLK_TCK")
    return total


def _descendants(pid: str) -> Iterator[str]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                yield child
                yield from _descendants(child)


class Costs:
    """A plugin that lists the files that take most."""

    def __init__(self) -> None:
        self._files: dict[str, float] = defaultdict(float)
        self._lasted: dict[str, float] = defaultdict(float)
        self._ends: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[_BEGAN] = cpu_s(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            item.user_properties.append((_PROPERTY, cpu_s(item) - item.stash[_BEGAN]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._lasted[report.location[0]] += report.duration
        self._ends[getattr(report, "worker_id", "main")] = report.stop
        if report.when == "teardown":
            self._files[report.location[0]] += sum(
                float(str(value)) for name, value in report.user_properties if name == _PROPERTY
            )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"CPU seconds of {SHOWN} files, of {sum(self._files.values()):.0f} in all")
        most = sorted(self._files.items(), key=lambda each: -each[1])
        for file, seconds in most[:SHOWN]:
            waits = self._lasted[file] - seconds
            terminalreporter.write_line(f"{seconds:7.1f} {file}" + f" waits for {waits:.0f} s" * (waits > 10))
        last = max(self._ends.values(), default=0.0)
        idle = ", ".join(f"{name} {last - end:.0f} s" for name, end in sorted(self._ends.items()))
        terminalreporter.write_line(f"workers without a test at the end: {idle}")
