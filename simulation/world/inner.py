"""The inside of a program's own process: its event loop, its sockets and its clock are questions to a world.

The process runs until it waits, for a socket or for time, and the world answers when that has come. So all
processes and the world run in lock step, one at a time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import select
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
from fencepost.simulation.world.sockets import WINDOW, Address
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
_READ: Final = select.POLLIN
_WRITE: Final = select.POLLOUT


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
        for items, mask in ((readers, _READ), (writers, _WRITE)):
            for each in items:
                masks[_number(each)] = masks.get(_number(each), 0) | mask
        ready = dict(self.loop.poll(timeout, list(masks.items())))
        return (
            [each for each in readers if ready.get(_number(each), 0) & ~_WRITE],
            [each for each in writers if ready.get(_number(each), 0) & ~_READ],
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


def _number(item: Any) -> int:
    number: int = item if isinstance(item, int) else item.fileno()
    return number


class RemotePoll:
    """The object that `select.poll()` returns in the process of a program."""

    per_second = 1_000
    """The unit of timeouts."""

    def __init__(self, link: WorldLink) -> None:
        self._link = link
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """Watch a socket for these events."""
        self._masks[_number(fd)] = eventmask

    modify = register

    def unregister(self, fd: Any) -> None:
        """Watch a socket no longer."""
        del self._masks[_number(fd)]

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """Return the sockets that are ready, at most after the timeout."""
        seconds = None if timeout is None or timeout < 0 else timeout / self.per_second
        return self._link.poll(seconds, list(self._masks.items()))

    def close(self) -> None:
        """Forget all."""
        self._masks.clear()


class RemoteEpoll(RemotePoll):
    """The object that `select.epoll()` returns. Its timeouts are in seconds."""

    per_second = 1


_PASSED_ON: Final = frozenset(
    {"bind", "listen", "shutdown", "getsockname", "getpeername", "setsockopt", "getsockopt"}
)


class RemoteSocket:
    """A socket of the world, which the process reaches through its link."""

    is_remote = True

    def __init__(
        self,
        link: WorldLink,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,  # as the real one has it
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        self._link = link
        self.family = socket.AddressFamily(family if family != -1 else socket.AF_INET)
        self.type = socket.SocketKind(type if type != -1 else socket.SOCK_STREAM)
        self.proto = proto
        self._timeout: float | None = socket.getdefaulttimeout()
        self._fd: int = link.ask("open", int(family), int(type), proto) if fileno is None else fileno

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._link.ask("socket", self._fd, name, arguments)

    def _patiently(self, mask: int, name: str, *arguments: Any) -> Any:
        """Call, and wait if the call would block and the socket may."""
        while True:
            try:
                return self._call(name, *arguments)
            except BlockingIOError:
                if self._timeout == 0:
                    raise
            if not self._link.poll(self._timeout, [(self._fd, mask)]):
                raise TimeoutError("timed out")

    def accept(self) -> tuple[RemoteSocket, Address]:
        """Return the next connection, and the address of its client."""
        number, address = self._patiently(_READ, "accept")
        return RemoteSocket(self._link, self.family, self.type, self.proto, number), address

    def connect(self, address: Any) -> None:
        """Connect, or begin to."""
        number = self.connect_ex(address)
        if number == errno.EINPROGRESS and self._timeout != 0:
            if not self._link.poll(self._timeout, [(self._fd, _WRITE)]):
                raise TimeoutError("timed out")
            number = self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    def connect_ex(self, address: Any) -> int:
        """Begin to connect; returns the error number."""
        return int(self._call("connect_ex", tuple(address)))

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as much as there is room for."""
        return int(self._patiently(_WRITE, "send", bytes(memoryview(data).cast("B")[:WINDOW])))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """Send several buffers as one."""
        return self.send(b"".join(buffers))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what has arrived."""
        return bytes(self._patiently(_READ, "recv", size))

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Put what has arrived into a buffer."""
        view = memoryview(buffer).cast("B")
        found = self.recv(size or len(view))
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            self._call("close")
            self._fd = -1

    def detach(self) -> int:
        """Return the descriptor."""
        return self._fd

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _PASSED_ON:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, *arguments)

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._fd

    def setblocking(self, flag: bool) -> None:
        """Set whether calls wait."""
        self._timeout = None if flag else 0.0

    def getblocking(self) -> bool:
        """Return true if calls wait."""
        return self._timeout != 0.0

    def settimeout(self, value: float | None) -> None:
        """Set for how many seconds calls wait."""
        self._timeout = value

    def gettimeout(self) -> float | None:
        """Return the timeout."""
        return self._timeout

    def get_inheritable(self) -> bool:
        """Return false: there is no other process that could inherit it."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Do nothing."""

    def __enter__(self) -> RemoteSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteSocket fd={self._fd}>"


_BaseSelector: Any = selectors._BaseSelectorImpl


class _RemoteSelector(_BaseSelector):  # type: ignore[misc]
    """A selector whose wait is a step of the world."""

    def __init__(self, link: WorldLink) -> None:
        super().__init__()
        self._link = link

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait until a socket is ready, or that many seconds."""
        watched = [
            (
                fd,
                (_READ if key.events & selectors.EVENT_READ else 0)
                | (_WRITE if key.events & selectors.EVENT_WRITE else 0),
            )
            for fd, key in self._fd_to_key.items()
        ]
        found = []
        for fd, events_ in self._link.poll(None if timeout is None else max(0, timeout), watched):
            key = self._fd_to_key.get(fd)
            if key is not None:
                mask = (selectors.EVENT_WRITE if events_ & ~_READ else 0) | (
                    selectors.EVENT_READ if events_ & ~_WRITE else 0
                )
                if mask & key.events:
                    found.append((key, mask & key.events))
        return found


_link: list[WorldLink] = []


class OwnLoop(asyncio.SelectorEventLoop):
    """The event loop of a program in its own process: asyncio's, over the sockets of a world."""

    def __init__(self, selector: object = None) -> None:
        self._link = _link[-1]
        self.hashed = 0
        self._unnamed_tasks = 0
        super().__init__(cast("selectors.BaseSelector", _RemoteSelector(self._link)))

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
