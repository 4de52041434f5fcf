"""The world's side of a program in its own process: answers its questions when what it waits for has come."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import marshal
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.settings import whole
from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.world import wire
from fencepost.simulation.world.crashes import Crash
from fencepost.simulation.world.folder import host_folder, started_in
from fencepost.simulation.world.processes import PROCESS, SignalHandler, WorldProcess
from fencepost.simulation.world.programs import NotAProgram
from fencepost.simulation.world.readiness import events_of
from fencepost.simulation.world.shaking import shaken_by
from fencepost.simulation.world.sockets import VirtualSocket
from fencepost.simulation.world.standstill import MOVED_US, OWN_LIMIT_CPU_S, StandsStill
from fencepost.simulation.world.telling import HeldLoop
from fencepost.simulation.world.template import LOOK_S, STACKS_SIGNAL, Birth, ProgramSpec, start_process

if TYPE_CHECKING:
    from fencepost.simulation.world.world import SimulatedWorld

_NAME: Final = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
_CANCELLED: Final = "CancelledError"
_OF_PYTEST: Final = "PYTEST_CURRENT_TEST"
"""A variable that differs in each test, and is no part of a program's surroundings."""
_CALLS: Final = frozenset(
    {
        "accept",
        "bind",
        "close",
        "connect_ex",
        "getpeername",
        "getsockname",
        "getsockopt",
        "listen",
        "recv",
        "send",
        "setsockopt",
        "shutdown",
    }
)


class _Originals:
    kill = staticmethod(os.kill)
    thread_time = staticmethod(time.thread_time)

    @staticmethod
    def poll(fd: int, seconds: float = 0.2, select: Any = select.select) -> bool:
        """Return true if there is something to read, at most after that many seconds of the machine."""
        return bool(select([fd], [], [], seconds)[0])


def _shown(stacks: bytes) -> str:
    """Return the stacks that Python writes at a fatal error, without what differs between runs."""
    lines = stacks.decode(errors="replace").splitlines()
    own = os.path.dirname(__file__)
    kept = [re.sub(r"0x[0-9a-f]+ ", "", each) for each in lines if own not in each and "<frozen" not in each]
    return "\n".join(kept)


class EndedByError(Exception):
    """The exception that has ended a program in its own process."""

    def __init__(self, crash: Crash, text: str) -> None:
        super().__init__(crash.message)
        self.crash = crash
        self.add_note(text)


def check_named(name: str, program: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Check that a program by its name can be started; return the port on which to serve it.

    :raises FencepostError: if it can't.
    """
    if not _NAME.fullmatch(program):
        raise FencepostError(
            f'process({name!r}, {program!r}): expected a name such as "orders.main:run" or "orders.main"'
        )
    port = whole("port", options.pop("port", 8000), 1, 65_535)
    if options:
        raise FencepostError(
            f"process({name!r}, {program!r}, {next(iter(options))}=...): a program by its name takes "
            "arguments without names; the only option is port="
        )
    if not hasattr(os, "fork") or not Path("/proc/self").exists():
        raise FencepostError(f"process({name!r}, {program!r}): processes of their own need Linux")
    try:
        marshal.dumps(arguments)
    except ValueError:
        raise FencepostError(
            f"process({name!r}, {program!r}, ...): arguments of a program in its own process are plain data, "
            f"such as numbers, text and lists of them; got {arguments!r}"
        ) from None
    return port


async def run_named(
    world: SimulatedWorld, program: str, arguments: tuple[Any, ...], port: int, *, logs: bool
) -> None:
    """Run a program in a process of its own, to its end.

    :raises EndedByError: if an exception ends it.
    :raises SystemExit: if it exits with a status.
    """
    process = PROCESS.get()
    assert process is not None
    module, _, attribute = program.partition(":")
    host = process.host
    spec = ProgramSpec(
        module=module,
        attribute=attribute,
        path=tuple(os.path.join(started_in(), each) for each in sys.path),
        folder=started_in(),
        environment=tuple(sorted(each for each in os.environ.items() if each[0] != _OF_PYTEST)),
    )
    birth = Birth(
        host=host.name,
        address=host.address,
        number=process.number,
        seed=world.draws.seed,
        folder=host_folder(host.name),
        arguments=arguments,
        port=port,
        logs=logs,
        shaken_by=shaken_by(),
    )
    try:
        fd, pid, why = start_process(spec, birth)
    except (EOFError, OSError):
        raise NotAProgram(
            f"process({host.name!r}, {program!r}): the process that imports it has died; what it wrote to "
            "stderr says why"
        ) from None
    if why:
        world.imported_anew[program] = why
    own = _OwnProcess(world, process, fd, pid)
    process.at_end.append(own.kill)
    await own.serve()


class _OwnProcess:
    """One process, as the world drives it."""

    def __init__(self, world: SimulatedWorld, process: WorldProcess, fd: int, pid: int) -> None:
        self._world = world
        self._loop = world.loop
        self._process = process
        self._fd = fd
        self._pid = pid
        self._signals: list[int] = []
        self._was_signalled = False
        self._waiting: asyncio.Future[None] | None = None
        self._moved_us = self._loop.now_us
        self._answers_cpu_s = 0.0
        """The CPU time of this thread for answers since virtual time last moved."""
        self._counted_cpu_s = _Originals.thread_time()
        """The CPU time of this thread when it was last counted."""
        self._cpu_ticks = -1
        """The CPU time that it had taken when it was last found waiting for the machine."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            process.signal_handlers[number] = SignalHandler(None, partial(self._deliver, number))

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(ProcessLookupError):
                _Originals.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(EOFError):
                while True:
                    wire.read(fd)  # until the system has ended it
            os.close(fd)

    def _deliver(self, number: int) -> None:
        self._signals.append(number)
        self._was_signalled = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def serve(self) -> None:
        """Answer questions until it has ended."""
        answers: dict[str, Callable[..., Awaitable[Any]]] = {
            "poll": self._poll,
            "socket": self._call,
            "open": self._open,
            "resolve": self._resolve,
            "name": self._name,
            "begin": self._begin,
        }
        while True:
            try:
                kind, *arguments = wire.read(self._fd)
            except BlockingIOError:
                if self._is_blocked():
                    self._world.fail(StandsStill(self._where_blocked()))
                    self.kill()
                    return
                continue
            except EOFError:
                self.kill()
                if self._was_signalled:
                    return
                raise SystemExit("ended by a signal") from None
            if kind in answers:
                await self._answer(answers[kind](*arguments))
            elif kind == "note":
                self._note(*arguments)
            elif kind == "held":
                at_us, lasts_us, place = arguments
                name = self._process.host.name
                self._loop.held.append(HeldLoop(program=name, at_us=at_us, lasts_us=lasts_us, place=place))
            elif kind == "spins":
                self.kill()
                now_s = self._loop.now_us / 1e6
                self._world.fail(StandsStill(f"virtual time stands still at {now_s:.6f} s: {arguments[0]}"))
                return
            else:
                self._ended(*arguments)
                return

    def _is_blocked(self) -> bool:
        """Return true if it has waited for the machine, twice in a row, and has computed nothing between."""
        ticks = 0
        for file in Path(f"/proc/{self._pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                state, *fields = file.read_text().rpartition(")")[2].split()
                ticks += int(fields[10]) + int(fields[11])
                if state in "RD":
                    ticks = -1
                    break
        before, self._cpu_ticks = self._cpu_ticks, ticks
        return before == ticks >= 0

    def _where_blocked(self) -> str:
        """Return a text about the lines in which the threads of a blocked process wait."""
        _Originals.kill(self._pid, STACKS_SIGNAL)
        text = b""
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self._fd, 1 << 16):
                text += found
                if not _Originals.poll(self._fd):
                    break
        return (
            f"{self._process.host.name} waits for the machine, for {2 * LOOK_S} s of real time now, and "
            "nothing in the world ends that. Wait for sockets, locks or time instead. Its threads, each with "
            f"the innermost call first:\n{_shown(text)}"
        )

    def _ended(self, kind: str, value: Any) -> None:
        """Raise what has ended it, unless that is no error."""
        self.kill()
        if kind == "refused":
            raise OutsideWorld(value)
        if kind == "stuck":
            self._world.fail(StandsStill(value))
        if kind == "no program":
            raise NotAProgram(value)
        if kind == "error" and not (self._was_signalled and value[0].error == _CANCELLED):
            raise EndedByError(*value)
        if kind == "exit" and value not in (None, 0):
            raise SystemExit(value)

    def _note(self, groups: list[str], transactional_ids: list[str], place: str) -> None:
        process = self._process
        process.group_ids.update(dict.fromkeys(groups))
        process.transactional_ids.update(dict.fromkeys(transactional_ids))
        process.commit_place = place

    async def _answer(self, work: Any) -> None:
        """Answer with a result, or with an error that a system may give."""
        try:
            kind, value = "value", await work
        except socket.gaierror as error:
            kind, value = "name", error.args
        except OSError as error:
            kind, value = "errno", error.errno or errno.EIO
        except OutsideWorld as error:
            kind, value = "refused", str(error)
        except (TypeError, ValueError, OverflowError) as error:  # of wrong arguments
            kind, value = "wrong", error
        if self._answered_without_end():
            kind = "spins"
        process = self._process
        orders = None
        if process.busy_until_us or process.callback_takes_us or process.callback_fails:
            orders = process.busy_until_us, process.callback_takes_us, process.callback_fails
            process.busy_until_us = process.callback_takes_us = 0
            process.callback_fails = False
        signals, self._signals = self._signals, []
        try:
            wire.write(self._fd, (kind, value, self._loop.now_us, signals, orders))
        except OSError:
            return  # it has ended, which the next read sees

    def _answered_without_end(self) -> bool:
        """Return true if its questions have kept this thread busy while virtual time stands still."""
        self._count_cpu()
        if self._loop.now_us - self._moved_us >= MOVED_US:
            self._moved_us, self._answers_cpu_s = self._loop.now_us, 0.0
        return self._answers_cpu_s > OWN_LIMIT_CPU_S

    def _count_cpu(self) -> None:
        """Count the CPU time of this thread since it was last counted."""
        cpu_s = _Originals.thread_time()
        self._answers_cpu_s += cpu_s - self._counted_cpu_s
        self._counted_cpu_s = cpu_s

    # -- questions --------------------------------------------------------------------------------------

    async def _poll(self, wait_s: float | None, watched: list[tuple[int, int]]) -> list[tuple[int, int]]:
        ready = self._ready(watched)
        if ready or wait_s == 0 or self._signals:
            return ready
        await self._wait(wait_s, watched)
        return self._ready(watched)

    async def _wait(self, wait_s: float | None, watched: list[tuple[int, int]]) -> None:
        """Wait for a socket, a signal, or that many seconds."""
        self._waiting = self._loop.create_future()
        timer = None if wait_s is None else self._loop.call_later(wait_s, self._wake)
        socks = [(sock, mask) for fd, mask in watched if (sock := self._loop.socket_at(fd)) is not None]
        for sock, mask in socks:
            if mask & select.POLLIN:
                sock.when_readable(self._ready_now, (socks,))
            if mask & select.POLLOUT:
                sock.when_writable(self._ready_now, (socks,))
        self._count_cpu()
        try:
            await self._waiting
        finally:
            self._counted_cpu_s = _Originals.thread_time()  # others have used what passed meanwhile
            self._forget(socks)
            if timer is not None:
                timer.cancel()

    def _ready_now(self, socks: list[tuple[VirtualSocket, int]]) -> None:
        self._forget(socks)
        self._wake()

    @staticmethod
    def _forget(socks: list[tuple[VirtualSocket, int]]) -> None:
        for sock, _ in socks:
            sock.not_when_readable()
            sock.not_when_writable()

    def _ready(self, watched: list[tuple[int, int]]) -> list[tuple[int, int]]:
        found = []
        for fd, mask in watched:
            sock = self._loop.socket_at(fd)
            events = select.POLLNVAL if sock is None else events_of(sock)
            if events := events & (mask | _ALWAYS):
                found.append((fd, events))
        return found

    async def _open(self, family: int, kind: int, proto: int) -> int:
        sock = VirtualSocket(family, kind, proto, loop=self._loop, host=self._process.host)
        sock.setblocking(False)
        return sock.fileno()

    async def _name(self, address: str) -> str:
        return self._loop.network.name_of(address)

    async def _begin(self) -> None:
        """Begin at the present time."""

    async def _call(self, fd: int, name: str, arguments: tuple[Any, ...]) -> Any:
        sock = self._loop.socket_at(fd)
        if sock is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        assert name in _CALLS, name
        result = getattr(sock, name)(*arguments)
        if name == "accept":
            accepted, address = result
            accepted.setblocking(False)
            return accepted.fileno(), address
        return result

    async def _resolve(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        return [
            (int(family), int(kind), proto, name, address)
            for family, kind, proto, name, address in self._loop.network.resolve(*arguments, **options)
        ]
