"""Processes that outlive the one that started them, identified by pid and start time."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, and not a later one that happens to get its number."""

    pid: int
    started: str


class Condition(enum.StrEnum):
    """The condition of a node's process."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Sight(NamedTuple):
    """The system's information about a process."""

    started: str
    stopped: bool
    """True if it was stopped by SIGSTOP."""


def look_at(pid: int) -> Sight | None:
    """Return the process with this number; None if it does not exist, or only its parent has not collected
    it."""
    return _look_in_proc(pid) if sys.platform == "linux" else _look_with_ps(pid)


def _look_in_proc(pid: int) -> Sight | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZX" else Sight(f"{boot}:{started}", state in "Tt")


def _look_with_ps(pid: int) -> Sight | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    state, _, started = done.stdout.strip().partition(" ")
    if done.returncode or not state or state[0] == "Z":
        return None
    return Sight(" ".join(started.split()), state[0] == "T")


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process that runs."""
    sight = look_at(pid)
    return None if sight is None else ProcessIdentity(pid, sight.started)


def myself() -> ProcessIdentity:
    """Return the identity of this process."""
    identity = identify(os.getpid())
    assert identity is not None, "this process runs"
    return identity


def sight_of(identity: ProcessIdentity) -> Sight | None:
    """Return the state of this very process; None once it has ended."""
    sight = look_at(identity.pid)
    return sight if sight is not None and sight.started == identity.started else None


def signal_group(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to the group that this process leads; return false, and send nothing, if it has ended."""
    if sight_of(identity) is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(identity.pid, number)
        return True
    return False


_TELLING = ("No space left", "BindException", "OutOfMemory", "[ERROR]", "ERROR", "Exception", "rror")
_EXCEPTION = re.compile(r"[\w.$]+(Exception|Error)\b: ")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_LINE = 300


def telling_line(output: str) -> str:
    """Return the line of a program's output that most likely says why it ended."""
    lines = [line for each in output.splitlines() if (line := _COLOURS.sub("", each).strip())]
    for word in _TELLING:
        for line, following in pairwise([*lines, ""]):
            if word in line:
                if _EXCEPTION.match(following):
                    return _shortened(following)  # a log has the reason below what it led to
                return _shortened(line.removeprefix("[ERROR]").strip())
    return _shortened(lines[-1]) if lines else "it said nothing"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"


class Finished(NamedTuple):
    """The end of a program: its exit code, and its output."""

    code: int
    output: str


async def run_program(
    words: Sequence[str], *, seconds: float, environ: Mapping[str, str] | None = None
) -> Finished:
    """Run a program to its end. If cancelled or late, it and what it started are killed.

    :raises OSError: if it cannot be started.
    :raises TimeoutError: if it takes longer than `seconds`.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(errors="replace"))


def start_program(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program that leads a group of its own, in the folder of its log, to which it appends.

    :raises OSError: if it cannot be started.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            start_new_session=True,
        )
