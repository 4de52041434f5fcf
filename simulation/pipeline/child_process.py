"""A process of its own for runs: what hangs or dies there costs one run, and nobody else notices.

A Spark worker can't be that process: when one dies, Spark fails its task, and in local mode the whole job.
An exception that a timer raises does not reach code that swallows it, or that is inside of a call to C.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Final

import pyarrow as pa

from fencepost.simulation.pipeline.runs import JobSpec, begun_row, run_one
from fencepost.simulation.pipeline.tasks import Task

GRACE_S: Final = 5.0
"""How much longer than its limit a run may take to let itself be interrupted."""
_DYING_S: Final = 2.0
_LOOK_S: Final = 0.005
_MOST_FILES: Final = 4096
_AGAIN: Final = None
_CALL = re.compile(r'File "(.+)", line (\d+) in (.+)')


class ChildProcess:
    """Carries out tasks of these orders in a process that it forks, and forks anew when that one is lost.

    `stack` is a file of its own, for where the process was when it was lost.
    """

    def __init__(self, orders: JobSpec, stack: IO[str]) -> None:
        self.orders = orders
        self._child = 0
        self._connection: Connection | None = None
        self._stack = stack

    def run(self, task: Task) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
        """The row of the run, and its trace if that is kept."""
        connection = self._connection or self._fork()
        limit = self.orders.time_limit_s
        overdue = False
        try:
            connection.send(task)
            while not (overdue := not connection.poll(limit + GRACE_S)):
                answer: tuple[dict[str, Any], list[pa.RecordBatch]] | None = connection.recv()
                if answer is not _AGAIN:
                    return answer
        except (EOFError, ConnectionError):
            pass  # it died, and says no more
        status = self._end(0.0 if overdue else _DYING_S)
        place = self._last_place()
        row = begun_row(self.orders.cells[task.cell], task)
        if overdue:
            row["error"] = f"took longer than {limit:g} s and could not be interrupted{place}"
            row["wall_seconds"] = limit + GRACE_S
        else:
            row["error"] = f"its process {_death(status)}{place}"
            row["wall_seconds"] = 0.0
        return row, []

    def close(self) -> None:
        """End the process, if there is one."""
        if self._connection is not None:
            self._end(_DYING_S)

    def _fork(self) -> Connection:
        ours, theirs = Pipe()
        self._stack.seek(0)
        self._stack.truncate()
        with warnings.catch_warnings():
            # Python warns where threads run beside: those are Arrow's, which knows about forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if not self._child:
            code = 1
            try:
                ours.close()
                _serve(self.orders, theirs, self._stack)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._connection = ours
        return ours

    def _end(self, patience_s: float) -> int:
        """See to it that the process is gone; answers its status. On SIGABRT it leaves its Python stack."""
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
        """The innermost call of Python's that a signal found."""
        self._stack.seek(0)
        found = _CALL.search(self._stack.read())
        if found is None:
            return ""
        return f"; then it was at {os.path.basename(found[1])}:{found[2]}, in {found[3]}"


@contextlib.contextmanager
def hand_for(orders: JobSpec) -> Iterator[ChildProcess]:
    """A hand, whose process is ended on exit."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stack:
        hand = ChildProcess(orders, stack)
        try:
            yield hand
        finally:
            hand.close()


def _waited(child: int, seconds: float) -> int | None:
    """The process's status, if it ends within so many seconds."""
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


def _serve(orders: JobSpec, connection: Connection, stack: IO[str]) -> None:
    """What the forked process does: runs, until nobody asks for more."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever else was open belongs to the parent: nobody must wait for this process to close it.
    first, second = sorted((connection.fileno(), stack.fileno()))
    for low, high in ((3, first), (first + 1, second), (second + 1, _MOST_FILES)):
        os.closerange(low, high)
    faulthandler.enable(stack, all_threads=False)
    gc.freeze()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task: Task = connection.recv()
            cell = orders.cells[task.cell]
            connection.send(run_one(orders, cell, task, lambda: connection.send(_AGAIN)))


def _die_with_parent() -> None:
    """Spark kills workers without a word; on Linux this process then goes as well, whatever it is doing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
