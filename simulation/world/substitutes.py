"""Substitutes for the machine during a run: clocks, randomness, sockets, and refusals for the rest.

Each substitute is a function of this module that asks for the run of its thread. Without one, or in another
thread, it does what the original does. So references that a module keeps for itself are harmless later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes.util
import errno
import functools
import os
import platform
import random
import resource
import select
import selectors
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NoReturn

import time_machine

from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.world.clients import blocking_client_methods, client_methods, set_members
from fencepost.simulation.world.foreign import ForeignImports, foreign_calls
from fencepost.simulation.world.machine import MACHINES, Machine, machine_here, numpy_generator
from fencepost.simulation.world.places import BLOCKS, refusal
from fencepost.simulation.world.processes import PROCESS, SignalHandler
from fencepost.simulation.world.sockets import VirtualSocket
from fencepost.simulation.world.sqlite import take_clock_and_randomness
from fencepost.simulation.world.threads import functions_of_threads, methods_of_threads
from fencepost.simulation.world.tls import plain_object, plain_socket

EPOCH_S: Final = 1_767_225_600
"""The time of day when a run begins: 2026-01-01 00:00 UTC."""
_NODE: Final = 0x0242AC110002
"""The hardware address that `uuid.uuid1` sees."""
_THREADS = "a second thread has no virtual time"
_PROGRAMS = "another program has no virtual time"


_real_connect: Final = sqlite3.connect
_real_clock: Final = time.perf_counter
_real_seed: Final = random.Random.seed
_RealSocket: Final = socket.socket
_REPLACED: Final[list[tuple[ModuleType, str, Any]]] = []
"""Functions that have substitutes: module, name, and the substitute."""


def wall_clock() -> float:
    """Seconds of the machine's own clock, also during a run."""
    return _real_clock()


def _in_run(original: Any, substitute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is the original outside of runs.

    In a run the substitute gets the machine, and leaves a call to the original by returning NotImplemented.
    """

    def call(*args: Any, **options: Any) -> Any:
        machine = machine_here()
        if machine is None:
            return original(*args, **options)
        found = substitute(machine, *args, **options)
        return original(*args, **options) if found is NotImplemented else found

    call.__name__ = call.__qualname__ = getattr(original, "__name__", "call")
    return call


def _replaces(module: ModuleType, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function stand in for a function of a module, where the platform has it."""

    def replace(substitute: Callable[..., Any]) -> Callable[..., Any]:
        call = _in_run(getattr(module, name, None), substitute)
        call.__qualname__ = substitute.__qualname__  # where pickle finds it
        if hasattr(module, name):
            _REPLACED.append((module, name, call))
        return call

    return replace


# -- clocks -------------------------------------------------------------------------------------------------


def _clock(name: str, *, whole: bool) -> None:
    """Let a function stand in for a clock. Programs read clocks often, so it is one call."""
    original = getattr(time, name)

    def read() -> Any:
        machine = machine_here()
        if machine is None:
            return original()
        return machine.now_ns() if whole else machine.now_us() / 1_000_000

    read.__name__ = read.__qualname__ = name
    _REPLACED.append((time, name, read))


for _name in ("monotonic", "perf_counter", "process_time", "thread_time"):
    _clock(_name, whole=False)
    _clock(f"{_name}_ns", whole=True)


@_replaces(time, "clock_gettime")
def _clock_gettime(machine: Machine, clock: int) -> Any:
    # time_machine has that of the day
    return NotImplemented if clock == time.CLOCK_REALTIME else machine.now_us() / 1_000_000


@_replaces(time, "clock_gettime_ns")
def _clock_gettime_ns(machine: Machine, clock: int) -> Any:
    return NotImplemented if clock == time.CLOCK_REALTIME else machine.now_ns()


@_replaces(time, "ctime")
def _ctime(_: Machine, seconds: float | None = None) -> Any:
    return NotImplemented if seconds is not None else time.ctime(time.time())


@_replaces(time, "asctime")
def _asctime(_: Machine, *at: Any) -> Any:
    return NotImplemented if at else time.ctime(time.time())


@_replaces(time, "sleep")
def _sleep(machine: Machine, seconds: float) -> None:
    if machine.process is None:
        raise refusal(
            "time.sleep()", "it blocks the test, and the test moves the clock", "await asyncio.sleep()"
        )
    machine.loop.sleep_blocking(seconds)


# -- randomness ---------------------------------------------------------------------------------------------


@_replaces(os, "urandom")
def _urandom(machine: Machine, size: int) -> bytes:
    return machine.urandom(size)


@_replaces(os, "getrandom")
def _getrandom(machine: Machine, size: int, flags: int = 0) -> bytes:
    return machine.urandom(size)


@_replaces(ssl, "RAND_bytes")
def _rand_bytes(machine: Machine, size: int) -> bytes:
    return machine.urandom(size)


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    if a is None and (machine := machine_here()) is not None and self is not machine.seeds:
        a = machine.seed()
    _real_seed(self, a, version)


@_replaces(os, "getpid")
def _getpid(machine: Machine) -> int:
    process = machine.process
    return 1 if process is None else process.pid


@_replaces(resource, "getrlimit")
def _getrlimit(_: Machine, which: int) -> Any:
    """Let no limit of this machine decide how many virtual sockets there may be."""
    infinite = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    return infinite if which == resource.RLIMIT_NOFILE else NotImplemented


@_replaces(sqlite3, "connect")
def _connect_sqlite(machine: Machine, *args: Any, **options: Any) -> sqlite3.Connection:
    connection = machine.connect_sqlite(_real_connect, *args, **options)
    take_clock_and_randomness(connection)
    return connection


# -- sockets ------------------------------------------------------------------------------------------------


class _SocketType(type):
    """Makes a virtual socket in a run and a real one elsewhere; both count as its instances."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        machine = machine_here()
        return (_RealSocket if machine is None else machine.socket)(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        """Return what the real class has; its methods call those of the socket that they get."""
        original = getattr(_RealSocket, name)
        if not callable(original):
            return original

        @functools.wraps(original)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            return getattr(self, name)(*args, **options)

        return call

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, VirtualSocket | _RealSocket) or hasattr(instance, "is_remote")


class _Socket(metaclass=_SocketType):
    """The class that replaces `socket.socket` during a run."""


@_replaces(socket, "socketpair")
def _socketpair(machine: Machine, *_: Any, **__: Any) -> Any:
    return machine.socketpair()


@_replaces(socket, "getaddrinfo")
def _getaddrinfo(machine: Machine, host: Any, port: Any, *args: Any, **options: Any) -> Any:
    return machine.loop.network.resolve(host, port, *args, **options)


def _addresses(machine: Machine, name: str) -> list[str]:
    return [str(each[4][0]) for each in machine.loop.network.resolve(name, None)]


@_replaces(socket, "gethostbyname")
def _gethostbyname(machine: Machine, name: str) -> str:
    return _addresses(machine, name)[0]


@_replaces(socket, "gethostbyname_ex")
def _gethostbyname_ex(machine: Machine, name: str) -> tuple[str, list[str], list[str]]:
    return name, [], _addresses(machine, name)


@_replaces(socket, "gethostbyaddr")
def _gethostbyaddr(machine: Machine, name: str) -> tuple[str, list[str], list[str]]:
    address = _addresses(machine, name)[0]
    return machine.loop.network.name_of(address), [], [address]


@_replaces(socket, "getnameinfo")
def _getnameinfo(machine: Machine, address: Any, flags: int) -> tuple[str, str]:
    return machine.loop.network.name_of(address[0]), str(address[1])


@_replaces(socket, "gethostname")
def _gethostname(machine: Machine) -> str:
    return machine.loop.network.here().name


@_replaces(socket, "getfqdn")
def _getfqdn(machine: Machine, name: str = "") -> str:
    return name or machine.loop.network.here().name


@_replaces(select, "select")
def _select(machine: Machine, *wanted: Any) -> Any:
    return machine.select(wanted[:3], *(wanted[3:] or (None,)))


@_replaces(select, "poll")
def _poll(machine: Machine) -> Any:
    return machine.poll()


@_replaces(select, "epoll")
def _epoll(machine: Machine, *_: Any, **__: Any) -> Any:
    return machine.epoll()


# -- tasks and signals --------------------------------------------------------------------------------------


@_replaces(asyncio, "all_tasks")
def _all_tasks(_: Machine, loop: asyncio.AbstractEventLoop | None = None) -> Any:
    """Return the tasks of the program that runs: others share its loop, but not its process."""
    process = PROCESS.get()
    return NotImplemented if process is None else {task for task in process.tasks if not task.done()}


@_replaces(signal, "signal")
def _signal(_: Machine, number: int, handler: Any) -> Any:
    process = PROCESS.get()
    if process is None:
        return NotImplemented
    sig = signal.Signals(number)
    before = _getsignal(sig)
    if handler is signal.SIG_IGN:
        process.signal_handlers[sig] = SignalHandler(handler, lambda: None)
    elif callable(handler):
        loop, context = process.host.loop, contextvars.copy_context()
        process.signal_handlers[sig] = SignalHandler(
            handler, lambda: loop.call_soon(handler, sig, None, context=context)
        )
    else:
        process.signal_handlers.pop(sig, None)
    return before


@_replaces(signal, "getsignal")
def _getsignal(_: Machine, number: int) -> Any:
    process = PROCESS.get()
    if process is None:
        return NotImplemented
    handler = process.signal_handlers.get(signal.Signals(number))
    return signal.SIG_DFL if handler is None else handler.given


@_replaces(os, "kill")
def _kill(machine: Machine, pid: int, number: int) -> None:
    process = machine.process
    if process is None:
        raise refusal("os.kill()", "processes of the world are not the machine's", "program.stop() or kill()")
    if pid != process.pid:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if number:
        process.get_signal(number)


@_replaces(signal, "raise_signal")
def _raise_signal(_: Machine, number: int) -> None:
    _kill(_getpid(), number)


# -- threads ------------------------------------------------------------------------------------------------


def _wait_for_thread(machine: Machine, _: threading.Condition, timeout: float | None = None) -> bool:
    """Stand in for all waits of `threading`, `queue` and `concurrent.futures`: no thread can end them."""
    if timeout is None or PROCESS.get() is None:
        raise refusal(
            "a wait for another thread (threading, queue, concurrent.futures)",
            BLOCKS,
            "asyncio, and await what a thread would wait for",
        )
    machine.loop.sleep_blocking(timeout)
    return False


# -- refusals -----------------------------------------------------------------------------------------------


def _refusing(original: Any, call: str, reason: str, instead: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise refusal(call, reason, instead)

    return _in_run(original, refuse)


def _about_the_machine(original: Any) -> Any:
    """Let a function ask other programs about this machine: the answer is the same in each run.

    Libraries do so when they are imported, such as trio, which httpx imports where it is installed.
    """

    def ask(machine: Machine, *args: Any, **options: Any) -> Any:
        MACHINES.pop()
        try:
            return original(*args, **options)
        finally:
            MACHINES.append(machine)

    return _in_run(original, ask)


_OWN_CODE = "world.process() for your own code, or a substitute in the test"
_REAL_TIME = "it counts real time"
_ENDS_ALL = "it would end the run"
_REFUSED: Final[tuple[tuple[ModuleType, str, str, str], ...]] = (
    *(
        (os, name, _PROGRAMS, _OWN_CODE)
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen")
    ),
    (os, "killpg", "it would reach processes of the machine", "os.kill(os.getpid(), ...)"),
    *((os, name, _ENDS_ALL, "sys.exit()") for name in ("execv", "execve", "abort", "_exit")),
    (asyncio, "new_event_loop", "a world has one loop", "the loop that runs"),
    *((signal, name, _REAL_TIME, "loop.call_later()") for name in ("alarm", "setitimer")),
    *((signal, name, BLOCKS, "a handler") for name in ("pause", "sigwait", "sigwaitinfo", "sigtimedwait")),
)
"""Functions that have no place in a run: module, name, reason and what to use."""
_OF_A_PROCESS: Final = frozenset(
    {
        signal.signal,
        signal.getsignal,
        signal.raise_signal,
        asyncio.all_tasks,
        asyncio.new_event_loop,
        os._exit,
        os.abort,
    }
)
"""Functions that a program in its own process may call as on a machine."""


def _functions(*, is_own_process: bool) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield each function that has a substitute: its module, its name and the substitute."""
    if is_own_process:
        yield from functions_of_threads()
    yield from _REPLACED
    yield ctypes.util, "find_library", _about_the_machine(ctypes.util.find_library)
    yield platform, "processor", _about_the_machine(platform.processor)
    for module, name, reason, instead in _REFUSED:
        if (original := getattr(module, name, None)) is not None:
            yield module, name, _refusing(original, f"{module.__name__}.{name}()", reason, instead)
    yield socket, "socket", _Socket


def _methods(*, is_own_process: bool) -> Iterator[tuple[type, str, Any]]:
    """Yield each method that has a substitute: its class, its name and the substitute."""
    yield random.Random, "seed", _seed
    if is_own_process:
        yield from methods_of_threads()
    else:
        yield from _methods_without_threads()
    for name in ("PollSelector", "EpollSelector"):
        if (selector := getattr(selectors, name, None)) is not None:
            yield selector, "_selector_cls", staticmethod(_poll if name == "PollSelector" else _epoll)
    yield (
        subprocess.Popen,
        "__init__",
        _refusing(subprocess.Popen.__init__, "subprocess.Popen()", _PROGRAMS, _OWN_CODE),
    )
    yield ssl.SSLContext, "wrap_socket", _in_run(ssl.SSLContext.wrap_socket, plain_socket)
    yield ssl.SSLContext, "wrap_bio", _in_run(ssl.SSLContext.wrap_bio, plain_object)
    yield from client_methods()
    yield from set_members()


def _methods_without_threads() -> Iterator[tuple[type, str, Any]]:
    """Yield those of the test's interpreter: all programs in it are one thread."""
    named = 'asyncio.to_thread(), or the program by its name, as "shop.main:run": threads run in its process'
    yield (
        threading.Thread,
        "start",
        _refusing(threading.Thread.start, "threading.Thread.start()", _THREADS, named),
    )
    yield threading.Condition, "wait", _in_run(threading.Condition.wait, _wait_for_thread)
    from anyio._backends._asyncio import AsyncIOBackend

    original: Any = AsyncIOBackend.run_sync_in_worker_thread

    async def run_at_once(_: Any, /, func: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:
        """Stand in for anyio's worker threads."""
        if machine_here() is None:
            return await original(func, args, **options)
        return await asyncio.get_running_loop().run_in_executor(None, func, *args)

    yield AsyncIOBackend, "run_sync_in_worker_thread", classmethod(run_at_once)


class _References:
    """References that modules keep to functions that have substitutes."""

    def __init__(self, *, is_own_process: bool) -> None:
        self._is_own_process = is_own_process
        self.table: dict[int, tuple[Any, Any]] = {
            id(original): (original, substitute)
            for module, name, substitute in _functions(is_own_process=is_own_process)
            if (original := getattr(module, name, None)) is not None
        }
        self.found: list[tuple[dict[str, Any], str, Any, Any]] = []
        self.methods: list[tuple[type, str, Any]] = []
        """Methods of classes that lead out of a world, with their substitutes."""
        self.before: list[tuple[type, str, Any]] = []
        """The attributes of classes that were replaced in this run."""
        self._seen: set[str] = set()

    def look(self) -> None:
        """Look through the modules that were loaded since the last time."""
        for name, module in tuple(sys.modules.items()):
            if name in self._seen or not isinstance(module, ModuleType):
                continue
            self._seen.add(name)
            if name in (__name__, "time_machine"):
                continue
            for key, value in tuple(vars(module).items()):
                known = self.table.get(id(value))
                if known is not None and known[0] is value:
                    self.found.append((vars(module), key, *known))
            self.refuse_foreign(module)

    def refuse_foreign(self, module: ModuleType) -> None:
        """Refuse the calls of a module that lead out of the world, and let faults reach its other ones."""
        if self._is_own_process:
            self.methods.extend(blocking_client_methods(module))
        for call in foreign_calls(module, may_block=self._is_own_process):
            original = getattr(call.owner, call.name)
            substitute = _refusing(original, call.label, call.reason, call.instead)
            if isinstance(call.owner, ModuleType):
                self.table[id(original)] = (original, substitute)
                self.found.append((vars(module), call.name, original, substitute))
            else:
                self.methods.append((call.owner, call.name, substitute))

    def imported(self, module: ModuleType) -> None:
        """Refuse the calls of a module that a program has imported in the run, or seed its generator."""
        if module is numpy_generator():
            MACHINES[-1].seed_numpy()
        self._seen.add(module.__name__)
        known = len(self.found), len(self.methods)
        self.refuse_foreign(module)
        for names, key, _, substitute in self.found[known[0] :]:
            names[key] = substitute
        for owner, name, substitute in self.methods[known[1] :]:
            self.before.append((owner, name, owner.__dict__.get(name, _INHERITED)))
            setattr(owner, name, substitute)


_references: _References | None = None
_INHERITED: Final = object()
"""Stands for the original of a method that its class inherits."""


@contextlib.contextmanager
def substituted(machine: Machine, *, is_own_process: bool = False) -> Iterator[None]:
    """Let the machine of the run stand in for the real one, in this thread.

    In the own process of a program, signals and event loops are the system's and asyncio's.

    :raises OutsideWorld: if a run is under way already.
    """
    global _references  # noqa: PLW0603  # one table for the process
    if MACHINES:
        raise OutsideWorld("a simulated world can't run inside of another one")
    if _references is None:
        _references = _References(is_own_process=is_own_process)
    _references.look()
    methods = [
        *_methods(is_own_process=is_own_process),
        *_references.methods,
    ]  # imports the modules of the methods
    before = [(owner, name, owner.__dict__.get(name, _INHERITED)) for owner, name, _ in methods]
    _references.before = before
    imports = ForeignImports(_references.imported)
    state, node = random.getstate(), uuid._node  # type: ignore[attr-defined]
    numpy_state = None if (generator := numpy_generator()) is None else generator.get_state()
    travel = time_machine.travel(EPOCH_S, tick=False)
    traveller = travel.start()
    traveller.time_ns = lambda: EPOCH_S * 1_000_000_000 + machine.now_ns()  # type: ignore[method-assign]
    MACHINES.append(machine)
    try:
        for names, key, original, substitute in _references.found:
            if not (is_own_process and original in _OF_A_PROCESS):
                names[key] = substitute
        for owner, name, substitute in methods:
            setattr(owner, name, substitute)
        uuid._node = _NODE  # type: ignore[attr-defined]
        tempfile._name_sequence = None  # type: ignore[attr-defined]  # it has a random state of its own
        machine.seed_generators()
        sys.meta_path.insert(0, imports)
        yield
    finally:
        if imports in sys.meta_path:
            sys.meta_path.remove(imports)
        MACHINES.pop()
        for owner, name, original in reversed(before):
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        for names, key, original, _ in _references.found:
            names[key] = original
        travel.stop()
        random.setstate(state)
        if generator is not None:
            generator.set_state(numpy_state)
        uuid._node = node  # type: ignore[attr-defined]
        tempfile._name_sequence = None  # type: ignore[attr-defined]
