"""Starts members' processes, ends them, and receives their events; see `template`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.template import Began, Ended, Fork, Report, Signal, TemplateReady

_READY_SECONDS = 60.0
_READ_BYTES = 1 << 18


class ForkedProcess:
    """One member's process: `on_event` gets its events; `on_end` is called after it has ended and all were
    read."""

    def __init__(
        self, nursery: ForkServer, on_event: Callable[[m.Event], None], on_end: Callable[[], None]
    ) -> None:
        self._nursery = nursery
        self._on_event = on_event
        self._on_end = on_end
        self._frames = m.Frames(m.Event)
        self._pid: int | None = None
        self._signals: list[signal.Signals] = []
        self._gone = self._silent = False
        self.status = 0
        """The wait status, once it has ended."""
        ours, self.theirs = socket.socketpair()
        self._channel = ours
        ours.setblocking(False)
        nursery.loop.add_reader(ours, self._hear)

    def order(self, order: m.Order) -> None:
        """Send the process an order. One that has ended ignores it."""
        try:
            self._channel.send(m.frame(order))
        except OSError:
            return

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, as soon as it runs."""
        if self._pid is None:
            self._signals.append(number)
        else:
            self._nursery.ask(Signal(self._pid, number))

    def began(self, pid: int) -> None:
        """Note that the process runs."""
        self._pid = pid
        signals, self._signals = self._signals, []
        for number in signals:
            self.send(number)

    def ended(self, status: int) -> None:
        """Note that the process has ended, with this wait status."""
        self._gone, self.status = True, status
        self._finish()

    def close(self) -> None:
        """Receive nothing more."""
        if not (self._gone and self._silent):
            self._nursery.loop.remove_reader(self._channel)
            self._channel.close()

    def _hear(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._nursery.loop.remove_reader(self._channel)
            self._silent = True
            self._finish()
            return
        for event in self._frames.feed(data):
            self._on_event(event)

    def _finish(self) -> None:
        """Finish after it has ended, and all that it sent is read."""
        if self._gone and self._silent:
            self._channel.close()
            self._on_end()


class ForkServer:
    """All members' processes of a run.

        async with ForkServer("fencepost") as nursery:
            process = nursery.start(terms, on_event, on_end)

    No process is left when the block ends.
    """

    def __init__(self, program: m.ProgramName) -> None:
        self._program = program
        self._ready = asyncio.Event()
        self._starting: deque[ForkedProcess] = deque()
        self._processes: dict[int, ForkedProcess] = {}
        self._reports = m.Frames(Report)
        self._template: subprocess.Popen[bytes] | None = None
        self._lost = False

    async def __aenter__(self) -> ForkServer:
        """Start the template, and wait until it has imported everything.

        :raises EnvironmentLacks: if it does not.
        """
        self.loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            self._template = _template(theirs.fileno(), self._program)
        self.loop.add_reader(self._channel, self._hear)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._ready.wait()
            if self._lost:
                raise TimeoutError
        except TimeoutError:
            reason = self._end()
            raise EnvironmentLacks(f"members' processes can't be started: {reason}") from None
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all processes that are left."""
        self._end()

    def _end(self) -> str:
        """End the template and, with it, its processes; return its last output."""
        self.loop.remove_reader(self._channel)
        self._channel.close()
        for process in (*self._starting, *self._processes.values()):
            process.close()
        template = self._template
        assert template is not None
        try:
            _, errors = template.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            template.kill()
            _, errors = template.communicate()
        return (errors.decode(errors="replace").strip().splitlines() or ["no reason was given"])[-1]

    def start(
        self, terms: m.AnyTerms, on_event: Callable[[m.Event], None], on_end: Callable[[], None]
    ) -> ForkedProcess:
        """Start a process."""
        process = ForkedProcess(self, on_event, on_end)
        self._starting.append(process)
        message = m.frame(Fork(terms))
        with process.theirs as theirs, contextlib.suppress(BrokenPipeError):
            socket.send_fds(self._channel, [message], [theirs.fileno()])
        return process

    def ask(self, request: Signal) -> None:
        """Send the template a request. One that has ended is about to be missed."""
        with contextlib.suppress(BrokenPipeError):
            self._channel.send(m.frame(request))

    def _hear(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._lost = True
            self.loop.remove_reader(self._channel)
            self._ready.set()
            for process in (*self._starting, *self._processes.values()):
                process.ended(signal.SIGKILL)  # they die with the template
            return
        for report in self._reports.feed(data):
            self._take(report)

    def _take(self, report: Any) -> None:
        match report:
            case TemplateReady():
                self._ready.set()
            case Began(pid):
                process = self._processes[pid] = self._starting.popleft()
                process.began(pid)
            case Ended(pid, status):
                self._processes.pop(pid).ended(status)


def _template(fd: int, program: m.ProgramName) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost.simulation.lab.chaos.template", str(fd), program],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
