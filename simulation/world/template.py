"""Processes from which those of programs are forked, with the programs' modules loaded.

The first one is forked or started before a test is loaded, so it has none of the test's modules. For each
module that programs are given from it forks a template, which imports the module. If the import
depends on more than code (the clock, randomness, files, the network), the template imports only the
libraries, and each process imports the program anew.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import inspect
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.world import wire
from fencepost.simulation.world.folder import import_folder, say_started_in
from fencepost.simulation.world.places import is_of_user
from fencepost.simulation.world.shaking import shake

_ARGUMENT: Final = "--serve"
_FD: Final = 0
_MOST_TEMPLATES: Final = 16
_ANY: Final = "*"
"""The attribute of a template: programs of one module share it."""
_IMPORT_CPU_S: Final = 30.0
LOOK_S: Final = 4
"""The interval in which the world looks at a silent process, in seconds of the machine."""
STACKS_SIGNAL: Final = getattr(signal, "SIGRTMIN", 34) + 7
"""The signal at which a process writes the stacks of its threads to the world, whatever it does."""
_MOST_REASONS: Final = 3
"""The reasons that a report has, at most, why a program is imported anew."""
_ASGI: Final = ["scope", "receive", "send"]
"""The parameters of a function that is an ASGI application."""


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A program by its name, and the surroundings of its import."""

    module: str
    attribute: str
    """The part of the module that is run; empty if the module itself is run, as `python -m` does it."""
    path: tuple[str, ...]
    folder: str
    """The working directory of the import."""
    environment: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name that the test gave."""
        return f"{self.module}:{self.attribute}" if self.attribute else self.module


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """The data with which one process of a program begins."""

    host: str
    address: str
    number: int
    seed: int
    folder: str
    arguments: tuple[Any, ...]
    port: int
    logs: bool
    shaken_by: int
    """The seed for the addresses of objects; 0 if they stay as the template has them."""


class _First:
    """The link to the process that forks templates, if there is one."""

    sock: Any = None


def fork_first(closes: int) -> None:
    """Fork the process that forks templates, from one that has loaded nothing of the user's.

    `closes` is a descriptor that only this process may have.
    """
    mine, other = wire.Pair.make()
    pid = os.fork()
    if pid == 0:
        mine.close()
        os.close(closes)
        _serve_and_end(other)
    other.close()
    _First.sock = mine


def _first() -> Any:
    """Return the link to the process that forks templates. The first call starts that process."""
    if _First.sock is None:
        mine, other = wire.Pair.make()
        _Originals.popen(
            [sys.executable, "-m", __name__, _ARGUMENT],
            stdin=other.fileno(),
            stdout=2,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            process_group=0,
        )
        other.close()
        _First.sock = mine
    return _First.sock


class _Originals:
    """Functions of the machine, kept where no substitute replaces them."""

    fork = staticmethod(os.fork)
    end = staticmethod(os._exit)

    @staticmethod
    def popen(command: list[str], **options: Any) -> None:
        """Start a process, also during a run."""
        process: Any = object.__new__(subprocess.Popen)
        _POPEN(process, command, **options)


_POPEN: Final = subprocess.Popen.__init__


def start_process(spec: ProgramSpec, birth: Birth) -> tuple[int, int, str]:
    """Start a process of a program; return the descriptor of the way to it, its id, and the reason why it
    imports the program anew.

    :raises EOFError: if its template has died.
    :raises OSError: if the process that forks templates has died.
    """
    first = _first()
    mine, other = wire.Pair.make()
    try:
        wire.write(first.fileno(), (spec, birth))
        wire.pass_on(first, other.fileno())
        other.close()
        pid, why = wire.read(mine.fileno())
    except (EOFError, OSError):
        mine.close()
        other.close()
        raise
    wire.limit_waits(mine, LOOK_S)
    return mine.detach(), pid, why


# -- the first process, and templates -----------------------------------------------------------------


def _serve_and_end(sock: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is to be waited for
    try:
        _serve(sock)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _serve(sock: Any) -> None:
    """Give each request to the template of its program's module."""
    templates: dict[ProgramSpec, Any] = {}
    while True:
        spec, birth = wire.read(sock.fileno())
        shared = msgspec.structs.replace(spec, attribute=_ANY if spec.attribute else "")
        if shared not in templates:
            if len(templates) == _MOST_TEMPLATES:
                templates.pop(next(iter(templates))).close()  # which ends it
            place = import_folder(birth.folder, spec.folder)
            templates[shared] = _template(shared, place, [sock, *templates.values()])
        fd = wire.take(sock)  # only now: a template would keep it open
        try:
            wire.write(templates[shared].fileno(), (spec.attribute, birth))
            wire.pass_on(templates[shared], fd)
        except OSError:  # it has died
            templates.pop(shared).close()
        os.close(fd)


def _template(spec: ProgramSpec, place: str, others: Sequence[Any]) -> Any:
    """Fork the template of a module, and return the way to it."""
    way, found = _fork_template(spec, place, others, libraries=None)
    if found is None:
        return way
    way.close()
    return _fork_template(spec, place, others, libraries=found)[0]


def _fork_template(
    spec: ProgramSpec, place: str, others: Sequence[Any], libraries: tuple[str, list[str]] | None
) -> tuple[Any, tuple[str, list[str]] | None]:
    """Fork a template. If the import of the program depends on more than code, return why, and the libraries
    that it has loaded."""
    mine, other = wire.Pair.make()
    pid = os.fork()
    if pid == 0:
        try:
            for each in (mine, *others):
                each.close()
            _be_template(spec, place, other, libraries)
        except EOFError:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    other.close()
    try:
        return mine, wire.read(mine.fileno())
    except EOFError:
        return mine, ("its import ends the process", [])


def _be_template(spec: ProgramSpec, place: str, sock: Any, libraries: tuple[str, list[str]] | None) -> None:
    """Import what processes of a program share, and fork them."""
    from fencepost.simulation.world.inner import Originals, OwnMachine
    from fencepost.simulation.world.substitutes import substituted
    from fencepost.simulation.world.threads import replace_locks

    sys.path[:] = spec.path
    os.chdir(place)
    say_started_in(spec.folder)
    os.environ.clear()
    os.environ.update(spec.environment)
    machine = OwnMachine()
    why = "" if libraries is None else libraries[0]
    with substituted(machine, is_own_process=True):
        replace_locks()
        if libraries is None:
            machine.watch_files()
            Originals.signal(signal.SIGPROF, _interrupt)
            Originals.setitimer(signal.ITIMER_PROF, _IMPORT_CPU_S)
            with _unheard():
                why = _imports(spec, machine)
            Originals.setitimer(signal.ITIMER_PROF, 0)
            if why:
                loaded = [name for name in sys.modules if not is_of_user(sys.modules[name])]
                wire.write(sock.fileno(), (why, loaded))
                os._exit(0)
        else:
            for name in libraries[1]:
                try:
                    importlib.import_module(name)
                except BaseException:
                    continue  # it is no module of its own
        wire.write(sock.fileno(), None)
        os.chdir(spec.folder)
        gc.collect()
        gc.freeze()
        while True:
            attribute, birth = wire.read(sock.fileno())
            fd = wire.take(sock)
            if _Originals.fork() == 0:
                sock.close()
                _live(msgspec.structs.replace(spec, attribute=attribute), birth, machine, fd, why)
            os.close(fd)


class _Endless(BaseException):
    """Raised in an import that does not end."""


def _interrupt(*_: object) -> None:
    raise _Endless


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Drop what an import writes: if it does more than to define, each process does it again."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    quiet = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(quiet, number)
    os.close(quiet)
    try:
        yield
        gc.collect()  # with what destructors write
        sys.stdout.flush()
    finally:
        for number, each in zip((1, 2), kept, strict=True):
            os.dup2(each, number)
            os.close(each)


def _imports(spec: ProgramSpec, machine: Any) -> str:
    """Import a program, and return why it must be imported anew by each process; "" if it need not be."""
    try:
        importlib.import_module(spec.module)
    except _Endless:
        return f"its import takes more than {_IMPORT_CPU_S:g} s of CPU time"
    except BaseException as error:
        return f"its import raises {type(error).__name__} outside of a world: {error}"
    machine.imported()
    if not spec.attribute:
        return "it is run as python -m runs it"
    found = list(machine.touched)
    more = [f"and {len(found) - _MOST_REASONS} more"] if len(found) > _MOST_REASONS else []
    return "; ".join(found[:_MOST_REASONS] + more)


# -- the process of a program -------------------------------------------------------------------------


def _live(spec: ProgramSpec, birth: Birth, machine: Any, fd: int, why: str) -> None:
    """Run a program to its end in this process."""
    from fencepost.simulation.world.inner import Originals, OwnProcess, WorldLink, take_event_loops_over
    from fencepost.simulation.world.processes import PROCESS

    for number in (signal.SIGINT, signal.SIGCHLD):
        Originals.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(birth.folder)
    os.environ.update(HOME=birth.folder, PWD=birth.folder, TMPDIR=os.path.join(birth.folder, "tmp"))
    if not birth.logs:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    link = WorldLink(fd, birth.host, birth.address)
    tempfile.tempdir = None  # that of a library's import
    sys.breakpointhook = lambda *_, **__: None
    vars(os)["_exit"] = partial(_end_at_once, fd)
    link.process = OwnProcess(link, birth.number, leave=_leave, kill=_leave)  # type: ignore[arg-type]
    PROCESS.set(link.process)
    wire.write(fd, (_pid(), why))
    Originals.signal(signal.SIGPROF, link.spins)
    faulthandler.register(STACKS_SIGNAL, fd)
    if birth.shaken_by:
        shake(birth.shaken_by)
    machine.begin(link, Draws(birth.seed), f"{birth.host}/{birth.number}")
    take_event_loops_over(link)
    link.ask("begin")
    end = _run_to_its_end(spec, birth, link.threads)
    try:
        with contextlib.suppress(Exception):  # of handlers, and of streams that the program has closed
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        wire.write(fd, ("end", *end))
    finally:
        _Originals.end(0)


def _run_to_its_end(spec: ProgramSpec, birth: Birth, threads: Any) -> tuple[str, Any]:
    """Run a program and its threads, and return a report of its end for the world."""
    try:
        try:
            _run(spec, birth)
        except OutsideWorld:
            raise
        except BaseException as error:
            if not isinstance(error, SystemExit | _NoProgram):
                traceback.print_exc()
            threads.finish()
            raise
        threads.finish()
    except SystemExit as raised:
        code = raised.code
        return "exit", code if code is None else int(code) if isinstance(code, int) else str(code)
    except OutsideWorld as error:
        return "refused", str(error)
    except _NoProgram as error:
        return "no program", f"process({birth.host!r}, {spec.name!r}): {error}"
    except BaseException as error:
        if isinstance(error, SyntaxError) and error.filename and os.path.exists(error.filename):
            where = f"{error.filename}:{error.lineno}"
            return "no program", f"process({birth.host!r}, {spec.name!r}): {where}: SyntaxError: {error.msg}"
        from fencepost.simulation.world.crashes import crash_of

        return "error", (crash_of("", 0, error), "".join(traceback.format_exception(error)))
    return "ended", None


def _pid() -> int:
    return int(os.readlink("/proc/self"))


def _end_at_once(fd: int, status: int) -> None:
    wire.write(fd, ("end", "exit", status))
    _Originals.end(status)


def _leave(*_: object) -> None:
    raise SystemExit


class _NoProgram(Exception):
    """Raised if there is no program of a name."""


def _run(spec: ProgramSpec, birth: Birth) -> None:
    """Run a program as its kind is run in production."""
    sys.argv = [spec.module]
    _check_module(spec.module)
    if not spec.attribute:
        sys.argv += map(str, birth.arguments)
        runpy.run_module(spec.module, run_name="__main__", alter_sys=True)
        return
    found: Any = importlib.import_module(spec.module)
    for part in spec.attribute.split("."):
        if not hasattr(found, part):
            raise _NoProgram(f"{spec.module} has no {spec.attribute!r}; expected a function or application")
        found = getattr(found, part)
    kinds = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(found).__mro__}
    if "faststream.FastStream" in kinds:
        asyncio.run(found.run())
    elif inspect.isfunction(found) and [*inspect.signature(found).parameters] == _ASGI:
        _serve_http(found, birth.port)
    elif inspect.iscoroutinefunction(found):
        asyncio.run(found(*birth.arguments))
    elif inspect.isroutine(found) or inspect.isclass(found):
        result = found(*birth.arguments)
        if inspect.iscoroutine(result):
            asyncio.run(_awaited(result))
    elif callable(found):
        _serve_http(found, birth.port)
    else:
        raise _NoProgram(f"{found!r} is no function, FastStream application or ASGI application")


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not name.startswith(f"{error.name}."):
            raise  # a module that the package imports
        found = None
    if found is None:
        raise _NoProgram(f"there is no module {name!r}; expected one on the test's sys.path")


async def _awaited(work: Any) -> Any:
    return await work


def _serve_http(app: Any, port: int) -> None:
    """Run an ASGI application by uvicorn."""
    if importlib.util.find_spec("uvicorn") is None:
        raise _NoProgram("an ASGI application is served by uvicorn, which is not installed; install it")
    workers = os.environ.get("WEB_CONCURRENCY", "1")
    if workers != "1":
        raise OutsideWorld(
            f"uvicorn can't run with WEB_CONCURRENCY={workers} in a simulated world: its workers are further "
            "processes, which have no virtual time. Unset the variable, and call world.process() once for "
            "each worker"
        )
    uvicorn: Any = importlib.import_module("uvicorn")
    uvicorn.run(app, host="0.0.0.0", port=port)


if __name__ == "__main__" and _ARGUMENT in sys.argv:
    import _socket

    from fencepost.simulation.world.template import _serve_and_end as serve

    sock = _socket.socket(fileno=os.dup(_FD))
    os.dup2(os.open(os.devnull, os.O_RDONLY), _FD)  # programs have an empty stdin
    serve(sock)
