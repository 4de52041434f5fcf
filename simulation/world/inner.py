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
import sqlite3
import sys
import threading
import types
import warnings
from asyncio import events, selector_events
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from fencepost.simulation.kernel.loop import OutsideWorld, VirtualFuture, VirtualTask, first_us
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.world import wire
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.machine import Machine
from fencepost.simulation.world.network import LOOPBACK
from fencepost.simulation.world.places import importing_place, place_in, stack_of, user_place
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
from fencepost.simulation.world.sqlite import connect_patiently
from fencepost.simulation.world.standstill import MOVED_US, OWN_LIMIT_CPU_S, what_runs_again
from fencepost.simulation.world.telling import HELD_US
from fencepost.simulation.world.threads import Threads

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
        self.threads: Threads
        self.loop = self.network = self
        self.process: OwnProcess
        self._moved_us = -MOVED_US
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
        if self.now_us - self._moved_us >= MOVED_US:
            self._moved_us = self.now_us
            Originals.setitimer(signal.ITIMER_PROF, OWN_LIMIT_CPU_S)
        if orders is not None:
            process, (busy_us, takes_us, fails) = self.process, orders
            process.busy_until_us = busy_us or process.busy_until_us
            process.callback_takes_us = takes_us or process.callback_takes_us
            process.callback_fails = fails or process.callback_fails
        for each in signals:
            self.threads.take_signal(each)
        if kind == "value":
            return value
        if kind == "spins":
            self.spins()
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

    def spins(self, *_: object) -> None:
        """Report the line that runs while virtual time stands still, and end."""
        loop: Any = asyncio._get_running_loop() if self.threads.current is self.threads.main else None
        place = place_in(stack_of(self.threads.frame()))
        if loop is None or place:
            told = f"{self.name} does not return from {place or 'a line that is not known'}"
        else:
            told = what_runs_again(loop)
        wire.write(self._fd, ("spins", told))
        Originals.end(1)

    def end_run(self, kind: str, text: str) -> NoReturn:
        """End this process, and the run, with the text of a refusal or of a failure."""
        wire.write(self._fd, ("end", kind, text))
        Originals.end(1)

    def poll(
        self, timeout: float | None, watched: list[tuple[int, int]], *, by_loop: bool = False
    ) -> list[tuple[int, int]]:
        """Wait until a socket is ready, or that many seconds; return descriptors with events of `poll`."""
        return self.threads.park(timeout, watched, by_loop=by_loop)

    def tell_held(self, at_us: int, lasts_us: int) -> None:
        """Report that an event loop was held, if that was long."""
        if lasts_us >= HELD_US:
            place = place_in(stack_of(sys._getframe(2)))
            wire.write(self._fd, ("held", at_us, lasts_us, place))

    # -- what a machine asks of a loop and its network --------------------------------------------------

    @property
    def here_us(self) -> int:
        """Virtual microseconds since the run began."""
        return self.now_us

    def time(self) -> float:
        """The same in seconds."""
        return self.now_us / 1_000_000

    def sleep_blocking(self, seconds: float) -> None:
        """Sleep, as `time.sleep` does: a signal whose handler returns does not end it."""
        if asyncio._get_running_loop() is not None:
            self.tell_held(self.now_us, round(seconds * 1e6))
        until_us = max(first_us(self.time() + seconds), self.now_us + 1)
        while self.now_us < until_us:
            self.poll((until_us - self.now_us) / 1e6, [], by_loop=True)

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
    end: Callable[[int], NoReturn] = staticmethod(os._exit)


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

    patient_reads = 2_000
    read_us = 20
    """Each pass of a loop that waits for the clock asks the world several times, at the cost of real time."""
    loop: Any
    thread: Any = property(lambda _: threading.get_ident(), lambda *_: None)
    """The thread that asks: all threads of the process have this machine."""

    def __init__(self) -> None:
        super().__init__(cast("WorldLoop", _Importing(self)), Draws(0))
        self.touched: dict[str, None] = {}
        self.has_begun = False
        """True in the process of a program."""
        self._state: object = None

    def touch(self, what: str, place_of: Callable[[types.FrameType], str] = user_place) -> None:
        """Note what a line of the program depends on, unless `place_of` finds that a library asks."""
        if not self.has_begun and (place := place_of(sys._getframe(2))):
            self.touched[f"{what} at {place}"] = None

    def watch_files(self) -> None:
        """Note files and folders that imports use."""
        self._state = random.getstate()
        getcwd = os.getcwd

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "_thread.start_new_thread" and not self.has_begun:
                self.touched["it starts a thread"] = None
            if event not in _FILES or self.has_begun:
                return
            path = str(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
            by_import = sys._getframe(1).f_code.co_filename.startswith(_IMPORTS)
            if path not in ("", ":memory:") and not by_import and not path.endswith((".py", ".pyc", ".so")):
                self.touch(f"it opens {path}" if event == "open" else f"it uses {path}", importing_place)

        def look() -> str:
            self.touch("it asks for the working directory", importing_place)
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
        self.loop, self.has_begun = link, True
        link.threads = Threads(link, draws.random(f"process/{which}/threads"))
        self.seed_generators()

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

    def connect_sqlite(self, connect: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        """Return a new connection to a database, which waits in virtual time while another one holds it."""
        connection: sqlite3.Connection = connect_patiently(connect, *args, **options)
        return connection

    def socket(self, *arguments: Any, **options: Any) -> Any:
        """Return a new socket."""
        return RemoteSocket(self.loop, *arguments, **options)

    @property
    def process(self) -> WorldProcess | None:
        """The process that runs; None while a template imports."""
        found: WorldProcess | None = getattr(self.loop, "process", None) if self.has_begun else None
        return found

    def socketpair(self) -> tuple[RemoteSocket, RemoteSocket]:
        """Return two sockets that are connected, on the loopback interface."""
        with RemoteSocket(self.loop) as listening:
            listening.bind((LOOPBACK, 0))
            listening.listen(1)
            mine = RemoteSocket(self.loop)
            mine.settimeout(None)
            mine.connect(listening.getsockname())
            return mine, listening.accept()[0]

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

    here_us = 0

    def __init__(self, machine: OwnMachine) -> None:
        self._machine = machine
        self.network = self

    def __getattr__(self, name: str) -> Any:
        self._machine.touch("it uses the network or the clock")
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
        """Wake the thread that runs this loop, and maybe let it run."""
        selector: Any = self._selector  # type: ignore[attr-defined]
        if selector.turn is not None:
            self._link.threads.wake(selector.turn)
        self._link.threads.may_change()

    if not TYPE_CHECKING:  # the refusals are those of a world's loop
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
