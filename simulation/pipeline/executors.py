"""What executors of a cluster find where they run. This module needs nothing but Python and PySpark."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class ExecutorReport(NamedTuple):
    """What one executor found."""

    host: str
    machine: str
    """Operating system, processor and Python's version: compiled libraries must be made for these."""
    versions: dict[str, str]
    """Of the libraries that were asked for, as far as they are there."""
    files: dict[str, bool]
    """Of the paths that were asked for, whether there is a file."""


def machine() -> str:
    """This process's operating system, processor and Python, such as `linux x86_64 cpython-311`."""
    return f"{sys.platform} {platform.machine()} {sys.implementation.cache_tag}"


def look(libraries: Sequence[str], files: Sequence[str], rows: Iterator[object]) -> Iterator[ExecutorReport]:
    """Look around, once a partition; for `RDD.mapPartitions`."""
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
