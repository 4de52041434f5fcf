"""The entry point: it turns the words on the command line into an exit code.

Only the table of commands is loaded here: `fencepost --help` imports no library, and a subcommand imports
only what it needs. Exit codes: 0 fine, 1 an invariant was violated or a comparison differed, 2 wrong
usage or input, 3 the environment lacks something; 130, 143, 129 and 141, as shells have it, for Ctrl-C, for
SIGTERM, for SIGHUP and for a reader that closed the pipe.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import TextIO

from fencepost.coordinator.reading import visible
from fencepost.simulation.cli.commands import BY_NAME, COMMANDS
from fencepost.simulation.interrupts import ending_signals

USAGE = "Usage: fencepost COMMAND [OPTIONS]"
EXIT_CODES = (
    "Exit codes: 0 fine, 1 an invariant was violated or a comparison differed,\n"
    "2 wrong usage or input, 3 the environment lacks something,\n"
    "4 a simulation differs too much from real brokers."
)

EXTRAS = {
    "aiokafka": "kafka",
    "cramjam": "embedded",
    "crc32c": "embedded",
    "kio": "embedded",
    "jinja2": "spark",
    "pandas": "spark",
    "plotly": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "time_machine": "world",
}
"""The extra that installs each library that the core installation does not have."""

_EXTRA_OF_COMMAND = {"chaos": "kafka", "compare": "all", "conform": "kafka", "proxy": "control"}
"""The extra of each command that needs more than `embedded`, whichever library it misses first."""

COMMAND_BEGAN: ContextVar[float] = ContextVar("COMMAND_BEGAN")
"""The time at which a command began, before it imported anything, in seconds of `time.monotonic`."""

_SENT_AGAIN_S = 0.01
"""Pause before the next check whether the code that swallowed an interrupt has ended, in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. An error that a user can fix shows no traceback."""
    COMMAND_BEGAN.set(time.monotonic())
    _open_closed_streams()
    _write_any_text()
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _terminated_like_interrupted() as came, _interrupted_again_if_lost():
        try:
            return _run_words(words)
        except KeyboardInterrupt:
            return 128 + (came or [signal.SIGINT])[0]


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[list[int]]:
    """Treat other signals that end a process like Ctrl-C, so that unfinished work is cleaned up. Yield those
    that came. Commands may have their own handlers."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def terminate(number: int, _: object) -> None:
        came.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells start background jobs this way
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    treated = [each for each in ending_signals() if signal.getsignal(each) is signal.SIG_DFL]
    for number in treated:
        signal.signal(number, terminate)
    try:
        yield came
    finally:
        for number in treated:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _interrupted_again_if_lost() -> Iterator[None]:
    """Send an interrupt again if Python swallows it, as it does inside a weak reference's callback."""
    before, ended, senders = sys.unraisablehook, threading.Event(), list[threading.Thread]()

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
        elif threading.current_thread() is threading.main_thread():
            senders.append(threading.Thread(target=send, daemon=True))
            senders[-1].start()

    def send() -> None:
        main_id = threading.main_thread().ident
        assert main_id is not None
        while not ended.wait(_SENT_AGAIN_S):
            if not _is_inside(hook.__code__, main_id):  # where it would be swallowed as well
                ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                signal.pthread_kill(main_id, signal.SIGTERM if ignored else signal.SIGINT)
                return

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        ended.set()
        for sender in senders:
            sender.join()


def _is_inside(code: CodeType, thread_id: int) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _run_words(words: list[str]) -> int:
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_stdout_up()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _give_stdout_up()
        return _complain("", f"{(error.strerror or 'no space left').lower()}: make room and run again", 3)
    return code


def _open_closed_streams() -> None:
    """Open the null device for streams that were closed at the start: Python sets them to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _write_any_text() -> None:
    """Make streams write a question mark for each character that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _give_stdout_up() -> None:
    """Redirect stdout to the null device: it is broken, and Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    for word in words:
        if not word.isascii() and word != word.encode(errors="replace").decode():
            return _complain("", f"{word.encode(errors='replace').decode()}: expected UTF-8 text", 2)
    match words:
        case [] | ["--help" | "-h" | "help"]:
            sys.stdout.write(_help(sys.stdout))
            return 0
        case ["--version" | "-V"]:
            sys.stdout.write(f"fencepost {_version()}\n")
            return 0
        case ["--completion", *shells]:
            from fencepost.simulation.cli.completion import SHELLS, script

            if len(shells) != 1 or shells[0] not in SHELLS:
                return _complain("", f"--completion: expected one shell of {', '.join(SHELLS)}", 2)
            sys.stdout.write(script(shells[0]))
            return 0
        case ["__complete", *rest]:
            from fencepost.simulation.cli.completion import complete

            complete(rest)
            return 0
        case ["help", name]:
            return _dispatch([name, "--help"])
        case [name, *rest] if name in BY_NAME:
            return _run(name, rest)
        case _:
            return _complain("", f"{_unknown(words[0])} (see: fencepost --help)", 2)


def _run(name: str, words: list[str]) -> int:
    with _quick_start() if name == "serve" else contextlib.nullcontext():
        return _called(name, words)


@contextlib.contextmanager
def _quick_start() -> Iterator[None]:
    """Make a command ready sooner, by a third: one that turns garbage collection on when it is ready.

    Imports make many objects and no garbage. structlog imports rich if it can, for tracebacks that the logs
    of this program do not have.
    """
    gc.disable()
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # Python's way to say that there is none
        import structlog  # noqa: F401

        del sys.modules["rich"]
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _called(name: str, words: list[str]) -> int:
    from fencepost.coordinator.protocol.errors import FencepostError
    from fencepost.simulation.cli.arguments import UsageError, call

    try:
        return call(BY_NAME[name], words)
    except UsageError as error:
        return _complain(name, f"{error} (see: fencepost {name} --help)", 2)
    except FencepostError as error:
        return _complain(name, str(error), error.exit_code)
    except OSError as error:
        if error.filename is None or error.errno not in (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP):
            raise
        reason = os.strerror(error.errno).lower()
        return _complain(name, f"{error.filename}: {reason}; choose another path", 2)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        extra = EXTRAS[library]
        if extra != "spark":
            extra = _EXTRA_OF_COMMAND.get(name, extra)
        return _complain(
            name, f"needs {library}, which is not installed: pip install 'fencepost[{extra}]'", 3
        )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fencepost")
    except PackageNotFoundError:
        return "(from a source tree that is not installed)"


def _complain(name: str, message: str, code: int) -> int:
    command = f"fencepost {name}".strip()
    sys.stderr.write(visible(f"{command}: {message}") + "\n")
    return code


def _unknown(name: str) -> str:
    if name.startswith("-"):
        return f"unknown option {name}"
    from fencepost.coordinator.suggestions import suggestion

    pages = "an option of simulate, campaign, plan and analyze: --report FILE"
    hint = pages if name == "report" else suggestion(name, BY_NAME, "")
    return f"unknown command {name!r}" + (f"; {hint}" if hint else "")


def _help(out: TextIO) -> str:
    bold, plain = ("\x1b[1m", "\x1b[0m") if out.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    width = max(len(command.name) for command in COMMANDS)
    rows = (f"  {bold}{command.name:<{width}}{plain}  {command.summary}\n" for command in COMMANDS)
    return (
        f"{USAGE}\n\n"
        "A Kafka group coordinator and its members: simulated in virtual time, served to\n"
        "real clients, checked after every event.\n\n"
        f"{bold}Commands{plain}\n{''.join(rows)}\n"
        f"{bold}Options{plain}\n"
        "  --help, -h          this text; fencepost COMMAND --help describes one command\n"
        "  --version, -V       the version\n"
        "  --completion SHELL  a completion script for bash, zsh or fish\n\n"
        f"Every command has --json: one JSON document on stdout. NO_COLOR is honoured.\n{EXIT_CODES}\n"
    )
