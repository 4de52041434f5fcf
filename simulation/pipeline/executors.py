"""The report of a cluster's executors about their machines. It needs only Python and PySpark."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class ExecutorReport(NamedTuple):
    """The findings of one executor."""

    host: str
    machine: str
    """Operating system, processor and Python version: compiled libraries must match these."""
    versions: dict[str, str]
    """The versions of the requested libraries that are installed."""
    files: dict[str, bool]
    """For each requested path, true if there is a file."""


def machine() -> str:
    """Return this process's operating system, processor and Python, such as `linux x86_64 cpython-311`."""
    return f"{sys.platform} {platform.machine()} {sys.implementation.cache_tag}"


def look(libraries: Sequence[str], files: Sequence[str], rows: Iterator[object]) -> Iterator[ExecutorReport]:
    """Report about this executor, once for each partition; for `RDD.mapPartitions`."""
    from importlib.metadata import PackageNotFoundError, version

    for _ in rows:
        pass
    versions = {}
    for name in libraries:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    yield ExecutorReport(
        socket.gethostname(), machine(), versions, {path: os.path.isfile(path) for path in files}
    )
