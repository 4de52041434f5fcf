"""Kafka's classes as a JVM has them once a node is up: a node that maps them starts in half the time.

Java calls it class data sharing. A JVM that can't use such a file does without.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fencepost.simulation.lab.clusters.layout import PROPERTIES, lay_out, new_id
from fencepost.simulation.lab.clusters.ports import free_ports
from fencepost.simulation.lab.clusters.processes import start_program
from fencepost.simulation.lab.clusters.settings import NodeState

RECORD_SECONDS = 60.0
RETRY_SECONDS = 3600.0
"""Time until recording is tried again, in seconds: a machine that was too busy is not so forever."""

_STARTED = b"Kafka Server started"


def classes_file(folder: Path, java: Path, jars: Iterable[Path]) -> Path:
    """Return the file in which the classes of these jars are kept for this Java."""
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in (java.resolve(), *jars)]
    return folder / f"classes-{zlib.crc32(repr((str(java), told)).encode()):08x}.jsa"


def options(classes: Path) -> tuple[str, ...]:
    """Return the options of a JVM that are about its classes."""
    if not classes.is_file() or classes.stat().st_size == 0:
        return ()
    return (f"-XX:SharedArchiveFile={classes}",)


def is_wanted(classes: Path) -> bool:
    """Return true if classes should be recorded: that was not tried yet, or an hour ago and in vain."""
    try:
        status = classes.stat()
    except FileNotFoundError:
        return True
    return status.st_size == 0 and time.time() - status.st_mtime > RETRY_SECONDS


async def record(command: Callable[..., Sequence[str]], formatted: Path, classes: Path) -> None:
    """Start a node, end it, and keep its classes: in an empty file if this Java keeps none, or took too long.

    `command` gives the words that run a class of Kafka's.
    """
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=classes.parent) as scratch:
        home = Path(scratch)
        node = NodeState.on_loopback(1, free_ports(3))
        lay_out(home, formatted, node, [node], cluster_id=new_id(), profile="stock", more={})
        made = home / "classes.jsa"
        java, *words = command("kafka.Kafka", str(home / PROPERTIES))
        if not await _ran([java, f"-XX:ArchiveClassesAtExit={made}", *words], home) or not made.is_file():
            made.write_bytes(b"")
        for other in classes.parent.glob("classes-*.jsa"):
            other.unlink()
        made.replace(classes)


async def _ran(words: Sequence[str], home: Path) -> bool:
    """Run a node until it is up, and ask it to end; return true if it did."""
    log = home / "log"
    process = start_program(words, log)
    try:
        async with asyncio.timeout(RECORD_SECONDS):
            while process.poll() is None and _STARTED not in log.read_bytes():  # noqa: ASYNC110  # no notice comes
                await asyncio.sleep(0.05)
            process.terminate()
            while process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return True
