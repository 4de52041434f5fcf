"""One run of a campaign, in a child process: a row of its summary, and its trace, whatever the run does.

A hang or a crash of the child process costs only one run. A Spark worker can't be that process: when one
dies, Spark fails its task, and in local mode the whole job. An exception that a timer raises does not stop
code that swallows it, or that is inside a call to C.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import math
import os
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from fencepost.simulation.interrupts import die_with_parent, leave_signals_to_parent
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.pipeline.tasks import CampaignCell, Task
from fencepost.simulation.trace.parquet import ArrowTrace
from fencepost.simulation.trace.rows import OwnershipTrace

if TYPE_CHECKING:
    from types import FrameType

    from fencepost.simulation.run import RunResult


class JobSpec(msgspec.Struct, frozen=True):
    """Everything that workers need to know; it is sent to them with the code."""

    cells: tuple[CampaignCell, ...]
    tasks: tuple[Task, ...]
    root: str
    generation: int
    time_limit_s: float
    trace_violations: bool
    """True if the trace of a run that broke an invariant is kept even if it would not be otherwise."""
    until: float | None = None
    """The end of the job, in seconds since 1970: runs that are not finished by then leave nothing."""
    only_ownership: bool = False
    """True if traces have only the rows that show rebalances and ownership."""

    @property
    def is_over(self) -> bool:
        """True if the job's time is over, so no run begins any more."""
        return _left(self.until) == 0


class TimeLimitReached(KeyboardInterrupt):
    """Raised if a run takes too long. It is a KeyboardInterrupt, because an event loop lets only interrupts
    out of callbacks."""


class Limit:
    """Bounds the wall time of a block."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.place = ""
        """The place in the code where the run was when its time was over; empty until then."""
        self._left = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raise TimeLimitReached in the block once its time is over, repeatedly until the block is left."""
        before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
        self._left = False
        try:
            try:
                yield
            finally:
                self._left = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._left:
            return  # the time ended just now: the following code is no part of the run
        if not self.place:
            self.place = "somewhere" if frame is None else _place(frame)
        raise TimeLimitReached

    def error(self) -> str:
        """Return the error for the row of the run."""
        return f"took longer than {self.seconds:g} s; then it was at {self.place}"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, in {code.co_qualname}"


def begun_row(cell: CampaignCell, task: Task) -> dict[str, Any]:
    """Return the row of a run without results yet."""
    return {
        "run_id": cell.run_id(task.seed),
        "scenario": cell.name,
        "parameters": json.dumps(cell.parameters, sort_keys=True),
        "seed": task.seed,
        "command": cell.command(task.seed),
        "violations": 0,
        "traced": False,
        "error": None,
    }


def run_one(
    job: JobSpec, cell: CampaignCell, task: Task, again: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
    """Do one run, and return the row for its summary, and its trace if that is kept. Any exception is in the
    row.

    `again` is called before a run is repeated for its trace: the time limit applies to each.
    """
    row = begun_row(cell, task)
    kept = ArrowTrace(row["run_id"])
    began = time.perf_counter()
    result = _run(job, cell, task.seed, kept if task.traced else None)
    if isinstance(result, str):
        row["error"] = result
        kept.batches.clear()
    else:
        row |= _summary(result)
        if result.violations and job.trace_violations and not task.traced:
            # The same seed gives the same run: recording it now is cheaper than recording all.
            again()
            if isinstance(_run(job, cell, task.seed, kept), str):
                kept.batches.clear()
    row["traced"] = bool(kept.batches)
    row["wall_seconds"] = time.perf_counter() - began
    return row, kept.batches


def _run(job: JobSpec, cell: CampaignCell, seed: int, trace: ArrowTrace | None) -> RunResult | str:
    """Return the result, or the error."""
    from fencepost.simulation.mutants.registry import with_mutant
    from fencepost.simulation.run import run

    limit = Limit(job.time_limit_s)
    result: RunResult | str
    try:
        with limit(), with_mutant(cell.mutant):
            sink = None if trace is None else OwnershipTrace(trace) if job.only_ownership else trace
            result = run(cell.scenario, seed, trace=sink, raises=False)
            if result.violations and result.violations[0].invariant.startswith(RAISED):
                run(cell.scenario, seed)  # nothing else is known, and the traceback shows its origin
    except TimeLimitReached:
        return limit.error()
    except Exception:
        result = traceback.format_exc()
    # A run that swallowed the interrupt, or raised another exception instead, continued in a way that is not
    # valid.
    return limit.error() if limit.place else result


def _summary(result: RunResult) -> dict[str, Any]:
    first = result.violations[0] if result.violations else None
    return {
        "members": result.members,
        "partitions": result.partitions,
        "virtual_seconds": result.virtual_seconds,
        "events": result.events,
        "heartbeats": result.heartbeats,
        "rebalances": result.rebalances,
        "converged": result.converged,
        "violations": len(result.violations),
        "invariant": first.invariant if first is not None else None,
        "message": first.message if first is not None else None,
        "digest": result.digest,
    }


GRACE_S: Final = 5.0
"""Time beyond its limit that a run may take to react to an interrupt, in seconds."""
_DYING_S: Final = 2.0
_LOOK_S: Final = 0.005
_MOST_FILES: Final = 4096
_AGAIN: Final = None
_CALL = re.compile(r'File "(.+)", line (\d+) in (.+)')


EndedRun: TypeAlias = tuple[dict[str, Any], list[pa.RecordBatch]]
"""The row of a run, and its trace if that is kept."""


class RunGivenUp(Exception):
    """The job's time is over, and this run was not finished."""


class ChildProcess:
    """Carries out the tasks of a job in a process that it forks; if that process is lost, it forks a new one.

    `stack` is a file for the Python stack of a lost process.
    """

    def __init__(self, job: JobSpec, stack: IO[str]) -> None:
        self.job = job
        self.task: Task | None = None
        """The run that is under way."""
        self._overdue_at = 0.0
        self._child = 0
        self._connection: Connection | None = None
        self._stack = stack

    def run(self, task: Task, until: float | None = None) -> EndedRun:
        """Do a run, and return its row, and its trace if that is kept.

        :raises RunGivenUp: if it is not finished by `until`, in seconds since 1970.
        """
        self.begin(task)
        while (ended := self.ended(_left(until))) is None:
            if not _left(until):
                self.give_up()
                raise RunGivenUp
        return ended

    def begin(self, task: Task) -> None:
        """Begin a run; the one before it has ended."""
        connection = self._connection or self._fork()
        self.task = task
        self._wait_anew()
        with contextlib.suppress(ConnectionError):  # it died: `ended` finds that
            connection.send(task)

    def _wait_anew(self) -> None:
        self._overdue_at = time.monotonic() + self.job.time_limit_s + GRACE_S

    def give_up(self) -> None:
        """End the process with its run, which leaves nothing."""
        self.task = None
        self._end(0.0)

    def ended(self, wait_s: float) -> EndedRun | None:
        """Return the run's row, and its trace if that is kept; None if it has not ended in that time."""
        connection = self._connection
        assert connection is not None
        until = time.monotonic() + wait_s
        overdue = False
        try:
            while connection.poll(max(0.0, min(until, self._overdue_at) - time.monotonic())):
                found: EndedRun | None = connection.recv()
                if found is not _AGAIN:
                    self.task = None
                    return found
                self._wait_anew()
            if not (overdue := time.monotonic() >= self._overdue_at):
                return None
        except (EOFError, ConnectionError):
            pass  # it died and sends nothing more
        return self._lost(overdue)

    def _lost(self, overdue: bool) -> EndedRun:
        """End the process, and return the row of its run."""
        assert self.task is not None
        task, self.task = self.task, None
        limit = self.job.time_limit_s
        status = self._end(0.0 if overdue else _DYING_S)
        place = self._last_place()
        row = begun_row(self.job.cells[task.cell], task)
        if overdue:
            row["error"] = f"took longer than {limit:g} s and could not be interrupted{place}"
            row["wall_seconds"] = limit + GRACE_S
        else:
            row["error"] = f"its process {_death(status)}{place}"
            row["wall_seconds"] = 0.0
        return row, []

    def fileno(self) -> int:
        """The connection with the process, for `multiprocessing.connection.wait`."""
        assert self._connection is not None
        return self._connection.fileno()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._connection is not None:
            self._end(_DYING_S if self.task is None else 0.0)

    def _fork(self) -> Connection:
        ours, theirs = Pipe()
        self._stack.seek(0)
        self._stack.truncate()
        with warnings.catch_warnings():
            # Python warns about other threads: these are Arrow's, which can handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if not self._child:
            code = 1
            try:
                ours.close()
                _serve(self.job, theirs, self._stack)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._connection = ours
        return ours

    def _end(self, patience_s: float) -> int:
        """Make the process end, and return its status. On SIGABRT it writes its Python stack."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        status = _waited(self._child, patience_s)
        if status is None:
            os.kill(self._child, signal.SIGABRT)
            status = _waited(self._child, _DYING_S)
        if status is None:
            os.kill(self._child, signal.SIGKILL)
            status = os.waitpid(self._child, 0)[1]
        return status

    def _last_place(self) -> str:
        """Return the innermost Python call in the stack that a signal wrote."""
        self._stack.seek(0)
        found = _CALL.search(self._stack.read())
        if found is None:
            return ""
        return f"; then it was at {os.path.basename(found[1])}:{found[2]}, in {found[3]}"


@contextlib.contextmanager
def child_for(job: JobSpec) -> Iterator[ChildProcess]:
    """Yield a child, and end its process on exit."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stack:
        child = ChildProcess(job, stack)
        try:
            yield child
        finally:
            child.close()


def _left(until: float | None) -> float:
    """Return the seconds that are left until then."""
    return math.inf if until is None else max(0.0, until - time.time())


def _waited(child: int, seconds: float) -> int | None:
    """Return the process's status if it ends within that many seconds."""
    until = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOK_S)
    return ended[1]


def _death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "was killed, as the system does when memory runs out"
    return f"ended with exit code {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"


def _serve(job: JobSpec, connection: Connection, stack: IO[str]) -> None:
    """Serve as the forked process: do runs until no more are requested."""
    leave_signals_to_parent()
    die_with_parent()  # Spark kills workers without a signal to their children
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # All other open files belong to the parent: no process must wait until this one closes them.
    first, second = sorted((connection.fileno(), stack.fileno()))
    for low, high in ((3, first), (first + 1, second), (second + 1, _MOST_FILES)):
        os.closerange(low, high)
    faulthandler.enable(stack, all_threads=False)
    gc.freeze()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task: Task = connection.recv()
            cell = job.cells[task.cell]
            connection.send(run_one(job, cell, task, lambda: connection.send(_AGAIN)))
