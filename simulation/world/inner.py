"""The inside of a program's own process: its event loop, its sockets and its clock are questions to a world.

The process runs until it waits, for a socket or for time, and the world answers when that has come. So all
processes and the world run in lock step, one at a time.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import socket
import sys
import types
import warnings
from asyncio import events, selector_events
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.simulation.kernel.loop import OutsideWorld, VirtualFuture, VirtualTask, first_us
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.world import wire
from fencepost.simulation.world.loop import WorldLoop, run_at_once
from fencepost.simulation.world.places import place_in, stack_of, user_place
from fencepost.simulation.world.processes import WorldProcess
from fencepost.simulation.world.remote import (
    READ,
    WRITE,
    RemoteEpoll,
    RemotePoll,
    RemoteSelector,
    RemoteSocket,
    number_of,
)
from fencepost.simulation.world.standstill import what_runs_again
from fencepost.simulation.world.substitutes import Machine
from fencepost.simulation.world.telling import HELD_US

LIMIT_CPU_S: Final = 4.0
"""The CPU seconds that a process may take while virtual time moves by less than `_MOVED_US`."""
_MOVED_US: Final = 10_000
_FILES: Final = frozenset({"open", "sqlite3.connect", "os.listdir", "os.scandir"}).union(
    f"os.{each}" for each in ("link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate")
)
"""Audit events of calls that read or change files; their first argument is a path."""
_IMPORTS: Final = "<frozen importlib"


class WorldLink:
    """The way to the world. It stands for the loop and the network of the world, as far as a machine asks."""

    def __init__(self, fd: int, name: str, address: str) -> None:
        self._fd = fd
        self.name = name
        self.address = address
        self.now_us = 0
        self.ahead_us = 0
        """The time for which the function of an executor that runs has slept."""
        self.in_executor = False
        self.loop = self.network = self
        self.process: OwnProcess
        self._moved_us = -_MOVED_US
        self._known: tuple[int, int, str] = (0, 0, "")

    def ask(self, *question: Any) -> Any:
        """Return the world's answer; signals that have come meanwhile are delivered first.

        :raises OSError: if the call fails as it may on a machine.
        """
        try:
            self._tell_what_is_new()
            wire.write(self._fd, question)
            kind, value, self.now_us, signals, orders = wire.read(self._fd)
        except (EOFError, OSError):
            Originals.end(0)  # the run is over
        if self.now_us - self._moved_us >= _MOVED_US:
            self._moved_us = self.now_us
            Originals.setitimer(signal.ITIMER_PROF, LIMIT_CPU_S)
        if orders is not None:
            process, (busy_us, takes_us, fails) = self.process, orders
            process.busy_until_us = busy_us or process.busy_until_us
            process.callback_takes_us = takes_us or process.callback_takes_us
            process.callback_fails = fails or process.callback_fails
        for each in signals:
            Originals.raise_signal(each)
        if kind == "value":
            return value
        if kind == "errno":
            raise OSError(value, os.strerror(value))
        if kind == "name":
            raise socket.gaierror(*value)
        if kind == "wrong":
            raise value
        raise OutsideWorld(value)

    def _tell_what_is_new(self) -> None:
        process = self.process
        known = (len(process.group_ids), len(process.transactional_ids), process.commit_place)
        if known != self._known:
            self._known = known
            wire.write(
                self._fd,
                ("note", list(process.group_ids), list(process.transactional_ids), process.commit_place),
            )

    def spins(self, _: int, frame: types.FrameType | None) -> None:
        """Report the line that runs while virtual time stands still, and end."""
        loop: Any = asyncio._get_running_loop()
        place = place_in(stack_of(frame))
        if loop is None or place:
            told = f"{self.name} does not return from {place or 'a line that is not known'}"
        else:
            told = what_runs_again(loop)
        wire.write(self._fd, ("spins", told))
        Originals.end(1)

    def poll(self, timeout: float | None, watched: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Wait until a socket is ready, or that many seconds; return descriptors with events of `poll`."""
        found: list[tuple[int, int]] = self.ask("poll", timeout, watched)
        return found

    # -- what a machine asks of a loop and its network --------------------------------------------------

    @property
    def here_us(self) -> int:
        """Virtual microseconds since the run began."""
        return self.now_us + self.ahead_us

    def time(self) -> float:
        """The same in seconds."""
        return self.here_us / 1_000_000

    def sleep_blocking(self, seconds: float) -> None:
        """Sleep, as `time.sleep` does: a signal whose handler returns does not end it."""
        if self.in_executor:
            self.ahead_us += max(1, -int(-seconds * 1_000_000 // 1))
            return
        place = ""
        if seconds * 1e6 >= HELD_US:
            place = place_in(stack_of(sys._getframe(2)))
        until_us = first_us(self.time() + seconds)
        self.ask("sleep", seconds, place)
        while self.now_us < until_us:
            self.ask("sleep", (until_us - self.now_us) / 1e6, "")

    def here(self) -> WorldLink:
        """Return what has the name of this host."""
        return self

    def resolve(self, *arguments: Any, **options: Any) -> list[Any]:
        """Return addresses as `socket.getaddrinfo` does."""
        return [
            (socket.AddressFamily(family), socket.SocketKind(kind), proto, name, address)
            for family, kind, proto, name, address in self.ask("resolve", arguments, options)
        ]

    def name_of(self, address: str) -> str:
        """Return the name of a host by its address."""
        return str(self.ask("name", address))


class Originals:
    """Functions of the machine, kept where no substitute replaces them."""

    setitimer = staticmethod(signal.setitimer)
    raise_signal = staticmethod(signal.raise_signal)
    signal = staticmethod(signal.signal)
    end = staticmethod(os._exit)


class OwnProcess(WorldProcess):
    """The process of a program, as it sees itself: signals are those of the system."""

    def get_signal(self, number: int) -> None:
        """Send itself a signal."""
        Originals.raise_signal(number)


class OwnMachine(Machine):
    """The machine of a program that has a process of its own.

    Until `begin` a template imports the program's modules. `touched` then has the lines of the program that
    depend on more than the modules: those can't be imported once for all processes.
    """

    loop: Any

    def __init__(self) -> None:
        super().__init__(cast("WorldLoop", _Importing(self)), Draws(0))
        self.touched: dict[str, None] = {}
        self._state: object = None

    def touch(self, what: str) -> None:
        """Note what a line of the program depends on, unless a library asks."""
        if isinstance(self.loop, _Importing) and (place := user_place(sys._getframe(2))):
            self.touched[f"{what} at {place}"] = None

    def watch_files(self) -> None:
        """Note files and folders that imports use."""
        self._state = random.getstate()
        getcwd = os.getcwd

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in _FILES or not isinstance(self.loop, _Importing):
                return
            path = str(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
            by_import = sys._getframe(1).f_code.co_filename.startswith(_IMPORTS)
            if path not in ("", ":memory:") and not by_import and not path.endswith((".py", ".pyc", ".so")):
                self.touch(f"it opens {path}" if event == "open" else f"it uses {path}")

        def look() -> str:
            self.touch("it asks for the working directory")
            return getcwd()

        sys.addaudithook(hear)
        vars(os)["getcwd"] = look

    def imported(self) -> None:
        """End the imports."""
        if random.getstate() != self._state:
            self.touched["it draws random numbers"] = None

    def begin(self, link: WorldLink, draws: Draws, which: str) -> None:
        """Become the machine of a process."""
        self.random = draws.random(f"process/{which}")
        self.seeds = draws.random(f"process/{which}/seeds")
        self.loop = link
        random.seed(self.seeds.getrandbits(64))

    def now_us(self) -> int:
        """Microseconds since the run began."""
        self.touch("it reads the clock")
        return super().now_us()

    def urandom(self, size: int) -> bytes:
        """Return random bytes."""
        self.touch("it draws random numbers")
        return super().urandom(size)

    def seed(self) -> int:
        """Return the seed of a generator of random numbers."""
        self.touch("it draws random numbers")
        return super().seed()

    def socket(self, *arguments: Any, **options: Any) -> Any:
        """Return a new socket."""
        return RemoteSocket(self.loop, *arguments, **options)

    def poll(self) -> Any:
        """Return what `select.poll` does."""
        return RemotePoll(self.loop)

    def epoll(self) -> Any:
        """Return what `select.epoll` does."""
        return RemoteEpoll(self.loop)

    def select(self, wanted: tuple[Iterable[Any], ...], timeout: float | None) -> Any:
        """Do what `select.select` does."""
        readers, writers = list(wanted[0]), list(wanted[1])
        masks: dict[int, int] = {}
        for items, mask in ((readers, READ), (writers, WRITE)):
            for each in items:
                masks[number_of(each)] = masks.get(number_of(each), 0) | mask
        ready = dict(self.loop.poll(timeout, list(masks.items())))
        return (
            [each for each in readers if ready.get(number_of(each), 0) & ~WRITE],
            [each for each in writers if ready.get(number_of(each), 0) & ~READ],
            [],
        )


class _Importing:
    """Stands for the loop while a template imports: there is no world yet."""

    ahead_us = here_us = 0

    def __init__(self, machine: OwnMachine) -> None:
        self._machine = machine
        self.network = self

    def __getattr__(self, name: str) -> Any:
        self._machine.touched["it uses the network or the clock"] = None
        raise OutsideWorld(f"{name}: there is no network while a program is imported for several processes")


_link: list[WorldLink] = []


class OwnLoop(asyncio.SelectorEventLoop):
    """The event loop of a program in its own process: asyncio's, over the sockets of a world."""

    def __init__(self, selector: object = None) -> None:
        self._link = _link[-1]
        self.hashed = 0
        self._unnamed_tasks = 0
        super().__init__(cast("selectors.BaseSelector", RemoteSelector(self._link)))

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._link.time()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run the callback at that time, never before it: asyncio itself fires up to a nanosecond early."""
        if when < float("inf"):
            when = first_us(when) / 1_000_000
        return super().call_at(when, callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run the callback after that many virtual seconds, at least a microsecond."""
        return super().call_later(max(delay, 0.000_001), callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a task that hashes and is named by counters."""
        if options.get("name") is None:
            self._unnamed_tasks += 1
            options["name"] = f"Task-{self._unnamed_tasks}"
        return VirtualTask(coro, loop=self, **options)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future that hashes by a counter."""
        return VirtualFuture(loop=self)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Resolve names of the world's hosts."""
        return self._link.resolve(host, port, **options)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Return the name of a host of the world by its address."""
        return self._link.name_of(sockaddr[0]), str(sockaddr[1])

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the function at once. If it sleeps, the program goes on meanwhile."""
        return run_at_once(self, self._link, func, args)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Call back in the loop when the process gets the signal."""
        handle = events.Handle(callback, args, self, None)
        Originals.signal(sig, lambda *_: self._handle_signal_of(handle))
        self._signal_handlers[sig] = handle  # type: ignore[attr-defined]

    def _handle_signal_of(self, handle: events.Handle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)  # type: ignore[attr-defined]

    def remove_signal_handler(self, sig: int) -> bool:
        """Forget the handler; True if there was one."""
        found = self._signal_handlers.pop(sig, None)  # type: ignore[attr-defined]
        if found is not None:
            default = signal.default_int_handler if sig == signal.SIGINT else signal.SIG_DFL
            Originals.signal(sig, default)
        return found is not None

    def close(self) -> None:
        """Close it, without the pipe that it does not have."""
        for sig in list(self._signal_handlers):  # type: ignore[attr-defined]
            self.remove_signal_handler(sig)
        selector_events.BaseSelectorEventLoop.close(self)

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        """Do nothing: there is no such pipe."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""

    if not TYPE_CHECKING:  # the refusals are those of a world's loop
        create_connection = WorldLoop.create_connection
        create_server = WorldLoop.create_server
        start_tls = WorldLoop.start_tls
        create_datagram_endpoint = WorldLoop.create_datagram_endpoint
        subprocess_exec = WorldLoop.subprocess_exec
        subprocess_shell = WorldLoop.subprocess_shell
        create_unix_connection = WorldLoop.create_unix_connection
        create_unix_server = WorldLoop.create_unix_server


def take_event_loops_over(link: WorldLink) -> None:
    """Let asyncio, and what stands for it, make loops of this world."""
    _link.append(link)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policy: Any = asyncio.get_event_loop_policy()
        type(policy)._loop_factory = OwnLoop
        asyncio.set_event_loop(None)
    kinds = ("SelectorEventLoop", "EventLoop")
    vars(asyncio).update({each: OwnLoop for each in kinds if hasattr(asyncio, each)})
    uvloop: Any = types.ModuleType("uvloop")
    uvloop.Loop, uvloop.new_event_loop = OwnLoop, OwnLoop
    uvloop.install, uvloop.run, uvloop.EventLoopPolicy = _install, asyncio.run, type(policy)
    sys.modules["uvloop"] = uvloop


def _install() -> None:
    """Do nothing: each loop is one of the world."""
