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
from typing import Any, Final

import time_machine

from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.world.clients import blocking_client_methods, client_methods, set_members
from fencepost.simulation.world.foreign import ForeignImports, foreign_calls
from fencepost.simulation.world.machine import MACHINES, Machine, machine_here
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


class _Real:
    """The originals."""

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    perf_counter = staticmethod(time.perf_counter)
    perf_counter_ns = staticmethod(time.perf_counter_ns)
    process_time = staticmethod(time.process_time)
    process_time_ns = staticmethod(time.process_time_ns)
    thread_time = staticmethod(time.thread_time)
    thread_time_ns = staticmethod(time.thread_time_ns)
    clock_gettime = staticmethod(time.clock_gettime)
    clock_gettime_ns = staticmethod(time.clock_gettime_ns)
    sleep = staticmethod(time.sleep)
    urandom = staticmethod(os.urandom)
    getpid = staticmethod(os.getpid)
    getrlimit = staticmethod(resource.getrlimit)
    kill = staticmethod(os.kill)
    set_handler = staticmethod(signal.signal)
    get_handler = staticmethod(signal.getsignal)
    raise_signal = staticmethod(signal.raise_signal)
    wait_for_thread = threading.Condition.wait
    tcp_socket = socket.socket
    socketpair = staticmethod(socket.socketpair)
    getaddrinfo = staticmethod(socket.getaddrinfo)
    gethostbyname = staticmethod(socket.gethostbyname)
    gethostbyname_ex = staticmethod(socket.gethostbyname_ex)
    gethostbyaddr = staticmethod(socket.gethostbyaddr)
    getnameinfo = staticmethod(socket.getnameinfo)
    gethostname = staticmethod(socket.gethostname)
    getfqdn = staticmethod(socket.getfqdn)
    seed = random.Random.seed
    select_ready = staticmethod(select.select)
    poll: Any = getattr(select, "poll", None)
    epoll: Any = getattr(select, "epoll", None)
    all_tasks = staticmethod(asyncio.all_tasks)
    connect_sqlite: Any = staticmethod(sqlite3.connect)


def wall_clock() -> float:
    """Seconds of the machine's own clock, also during a run."""
    return _Real.perf_counter()


# -- clocks -------------------------------------------------------------------------------------------------


def _clock(original: Callable[[], Any], *, whole: bool) -> Callable[[], Any]:
    def read() -> Any:
        machine = machine_here()
        if machine is None:
            return original()
        return machine.now_ns() if whole else machine.now_us() / 1_000_000

    read.__name__ = read.__qualname__ = original.__name__
    return read


def _clock_gettime(clock: int) -> float:
    machine = machine_here()
    if machine is None or clock == time.CLOCK_REALTIME:  # time_machine has this one
        return _Real.clock_gettime(clock)
    return machine.now_us() / 1_000_000


def _clock_gettime_ns(clock: int) -> int:
    machine = machine_here()
    if machine is None or clock == time.CLOCK_REALTIME:
        return _Real.clock_gettime_ns(clock)
    return machine.now_ns()


def _sleep(seconds: float) -> None:
    machine = machine_here()
    if machine is None:
        _Real.sleep(seconds)
        return
    if machine.process is None:
        raise refusal(
            "time.sleep()", "it blocks the test, and the test moves the clock", "await asyncio.sleep()"
        )
    machine.loop.sleep_blocking(seconds)


# -- randomness ---------------------------------------------------------------------------------------------


def _urandom(size: int) -> bytes:
    machine = machine_here()
    return _Real.urandom(size) if machine is None else machine.urandom(size)


def _getrandom(size: int, flags: int = 0) -> bytes:
    return _urandom(size)


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    if a is None and (machine := machine_here()) is not None and self is not machine.seeds:
        a = machine.seed()
    _Real.seed(self, a, version)


def _getpid() -> int:
    machine = machine_here()
    if machine is None:
        return _Real.getpid()
    process = machine.process
    return 1 if process is None else process.pid


def _getrlimit(which: int) -> tuple[int, int]:
    """Let no limit of this machine decide how many virtual sockets there may be."""
    if machine_here() is None or which != resource.RLIMIT_NOFILE:
        return _Real.getrlimit(which)
    return resource.RLIM_INFINITY, resource.RLIM_INFINITY


def _connect_sqlite(*args: Any, **options: Any) -> sqlite3.Connection:
    machine = machine_here()
    if machine is None:
        found: sqlite3.Connection = _Real.connect_sqlite(*args, **options)
        return found
    connection = machine.connect_sqlite(_Real.connect_sqlite, *args, **options)
    take_clock_and_randomness(connection)
    return connection


# -- sockets ------------------------------------------------------------------------------------------------


class _SocketType(type):
    """Makes a virtual socket in a run and a real one elsewhere; both count as its instances."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        machine = machine_here()
        if machine is None:
            return _Real.tcp_socket(*args, **options)
        return machine.socket(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        """Return what the real class has; its methods call those of the socket that they get."""
        original = getattr(_Real.tcp_socket, name)
        if not callable(original):
            return original

        @functools.wraps(original)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            return getattr(self, name)(*args, **options)

        return call

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, VirtualSocket | _Real.tcp_socket) or hasattr(instance, "is_remote")


class _Socket(metaclass=_SocketType):
    """The class that replaces `socket.socket` during a run."""


def _socketpair(*args: Any, **options: Any) -> Any:
    machine = machine_here()
    return _Real.socketpair(*args, **options) if machine is None else machine.socketpair()


def _getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
    machine = machine_here()
    if machine is None:
        return _Real.getaddrinfo(host, port, *args, **options)
    return machine.loop.network.resolve(host, port, *args, **options)


def _gethostbyname(name: str) -> str:
    machine = machine_here()
    if machine is None:
        return _Real.gethostbyname(name)
    return str(machine.loop.network.resolve(name, None)[0][4][0])


def _gethostbyname_ex(name: str) -> tuple[str, list[str], list[str]]:
    machine = machine_here()
    if machine is None:
        return _Real.gethostbyname_ex(name)
    return name, [], [str(each[4][0]) for each in machine.loop.network.resolve(name, None)]


def _gethostbyaddr(name: str) -> tuple[str, list[str], list[str]]:
    machine = machine_here()
    if machine is None:
        return _Real.gethostbyaddr(name)
    network = machine.loop.network
    address = str(network.resolve(name, None)[0][4][0])
    return network.name_of(address), [], [address]


def _getnameinfo(address: Any, flags: int) -> tuple[str, str]:
    machine = machine_here()
    if machine is None:
        return _Real.getnameinfo(address, flags)
    return machine.loop.network.name_of(address[0]), str(address[1])


def _gethostname() -> str:
    machine = machine_here()
    return _Real.gethostname() if machine is None else machine.loop.network.here().name


def _getfqdn(name: str = "") -> str:
    return _Real.getfqdn(name) if machine_here() is None else name or _gethostname()


def _select(rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None, /) -> Any:
    machine = machine_here()
    if machine is None:
        return _Real.select_ready(rlist, wlist, xlist, timeout)
    return machine.select((rlist, wlist, xlist), timeout)


def _poll() -> Any:
    machine = machine_here()
    return _Real.poll() if machine is None else machine.poll()


def _epoll(*args: Any, **options: Any) -> Any:
    machine = machine_here()
    return _Real.epoll(*args, **options) if machine is None else machine.epoll()


# -- tasks --------------------------------------------------------------------------------------------------


def _all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[Any]]:
    """Return the tasks of the program that runs: others share its loop, but not its process."""
    process = PROCESS.get()
    if machine_here() is None or process is None:
        return _Real.all_tasks(loop)
    return {task for task in process.tasks if not task.done()}


# -- signals ------------------------------------------------------------------------------------------------


def _signal(number: int, handler: Any) -> Any:
    process = PROCESS.get()
    if machine_here() is None or process is None:
        return _Real.set_handler(number, handler)
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


def _getsignal(number: int) -> Any:
    process = PROCESS.get()
    if machine_here() is None or process is None:
        return _Real.get_handler(number)
    handler = process.signal_handlers.get(signal.Signals(number))
    return signal.SIG_DFL if handler is None else handler.given


def _kill(pid: int, number: int) -> None:
    machine = machine_here()
    if machine is None:
        _Real.kill(pid, number)
        return
    process = machine.process
    if process is None:
        raise refusal("os.kill()", "processes of the world are not the machine's", "program.stop() or kill()")
    if pid != process.pid:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if number:
        process.get_signal(number)


def _raise_signal(number: int) -> None:
    if machine_here() is None:
        _Real.raise_signal(number)
    else:
        _kill(_getpid(), number)


# -- threads ------------------------------------------------------------------------------------------------


def _wait_for_thread(self: threading.Condition, timeout: float | None = None) -> bool:
    """Stand in for all waits of `threading`, `queue` and `concurrent.futures`: no thread can end them."""
    machine = machine_here()
    if machine is None:
        return _Real.wait_for_thread(self, timeout)
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
    def refuse(*args: Any, **options: Any) -> Any:
        if machine_here() is None:
            return original(*args, **options)
        raise refusal(call, reason, instead)

    refuse.__name__ = getattr(original, "__name__", call)
    return refuse


def _in_world(original: Any, substitute: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        return (original if machine_here() is None else substitute)(*args, **options)

    return call


def _about_the_machine(original: Any) -> Any:
    """Let a function ask other programs about this machine: the answer is the same in each run.

    Libraries do so when they are imported, such as trio, which httpx imports where it is installed.
    """

    def ask(*args: Any, **options: Any) -> Any:
        if machine_here() is None:
            return original(*args, **options)
        machine = MACHINES.pop()
        try:
            return original(*args, **options)
        finally:
            MACHINES.append(machine)

    return ask


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
        _Real.set_handler,
        _Real.get_handler,
        _Real.raise_signal,
        _Real.all_tasks,
        asyncio.new_event_loop,
        os._exit,
        os.abort,
    }
)
"""Functions that a program in its own process may call as on a machine."""
_SOCKETS: Final[tuple[tuple[str, Any], ...]] = (
    ("socket", _Socket),
    ("getaddrinfo", _getaddrinfo),
    ("gethostbyname", _gethostbyname),
    ("gethostbyname_ex", _gethostbyname_ex),
    ("gethostbyaddr", _gethostbyaddr),
    ("getnameinfo", _getnameinfo),
    ("gethostname", _gethostname),
    ("getfqdn", _getfqdn),
)


def _functions(*, is_own_process: bool) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield each function that has a substitute: its module, its name and the substitute."""
    if is_own_process:
        yield from functions_of_threads()
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        yield time, name, _clock(getattr(_Real, name), whole=False)
        yield time, f"{name}_ns", _clock(getattr(_Real, f"{name}_ns"), whole=True)
    yield time, "clock_gettime", _clock_gettime
    yield time, "clock_gettime_ns", _clock_gettime_ns
    yield time, "sleep", _sleep
    yield os, "urandom", _urandom
    yield os, "getpid", _getpid
    yield os, "kill", _kill
    yield resource, "getrlimit", _getrlimit
    if hasattr(os, "getrandom"):
        yield os, "getrandom", _getrandom
    yield signal, "signal", _signal
    yield signal, "getsignal", _getsignal
    yield signal, "raise_signal", _raise_signal
    yield asyncio, "all_tasks", _all_tasks
    yield sqlite3, "connect", _connect_sqlite
    yield ctypes.util, "find_library", _about_the_machine(ctypes.util.find_library)
    yield platform, "processor", _about_the_machine(platform.processor)
    for name, substitute in (("select", _select), ("poll", _poll), ("epoll", _epoll)):
        yield select, name, substitute
    for module, name, reason, instead in _REFUSED:
        if (original := getattr(module, name, None)) is not None:
            yield module, name, _refusing(original, f"{module.__name__}.{name}()", reason, instead)
    for name, substitute in _SOCKETS:
        yield socket, name, substitute
    yield socket, "socketpair", _socketpair


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
    yield ssl.SSLContext, "wrap_socket", _in_world(ssl.SSLContext.wrap_socket, plain_socket)
    yield ssl.SSLContext, "wrap_bio", _in_world(ssl.SSLContext.wrap_bio, plain_object)
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
    yield threading.Condition, "wait", _wait_for_thread
    from anyio._backends._asyncio import AsyncIOBackend

    yield AsyncIOBackend, "run_sync_in_worker_thread", classmethod(_run_at_once)


async def _run_at_once(
    cls: Any,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    abandon_on_cancel: bool = False,
    limiter: Any = None,
) -> Any:
    """Stand in for anyio's worker threads."""
    if machine_here() is None:
        original = _anyio_threads
        return await original(cls, func, args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    return await asyncio.get_running_loop().run_in_executor(None, func, *args)


_anyio_threads: Any = None


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
        """Refuse the calls of a module that a program has imported in the run."""
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
    global _references, _anyio_threads  # noqa: PLW0603  # one table for the process
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
    of_anyio = [old.__func__ for _, name, old in before if name == "run_sync_in_worker_thread"]
    _anyio_threads = of_anyio[0] if of_anyio else None
    state, node = random.getstate(), uuid._node  # type: ignore[attr-defined]
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
        random.seed(machine.seeds.getrandbits(64))
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
        uuid._node = node  # type: ignore[attr-defined]
        tempfile._name_sequence = None  # type: ignore[attr-defined]
