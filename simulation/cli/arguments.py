"""Parsing one subcommand's words with cyclopts, and the options that subcommands share."""

from __future__ import annotations

import importlib
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, TypeAlias

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, Token, UnusedCliTokensError
from cyclopts.validators import Number

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.commands import Command

Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", show_default=False, help="Print one JSON document on stdout.")
]


def whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number, written as one: cyclopts would round 1.5 to 2.

    :raises ValueError: if it is not.
    """
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {token.value!r}") from None


Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1), converter=whole)]
Seed: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0), converter=whole)]

HELP_WIDTH = 80
_MAY_BE_EMPTY = "--mutant"
"""Empty for none."""


class UsageError(Exception):
    """The words on the command line do not make sense; the text is one line."""


def call(command: Command, words: Sequence[str]) -> int:
    """Import the subcommand, parse its words, run it and answer its exit code.

    :raises UsageError: if the words do not fit its parameters.
    """
    module, _, name = command.function.partition(":")
    function: Callable[..., int] = getattr(importlib.import_module(module), name)
    app = App(
        name=f"fencepost {command.name}",
        default_command=function,
        default_parameter=Parameter(negative=()),
        help=paragraphs(inspect.getdoc(function) or ""),
        help_format="plaintext",
        version_flags=(),
        suppress_keyboard_interrupt=False,
    )
    app["--help"].show = False
    if not {"--help", "-h"}.isdisjoint(words):
        from fencepost.simulation.cli.terminal import Terminal

        app.console = Terminal(file_width=HELP_WIDTH)
    _refuse_empty(words)
    try:
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(_explained(error, words)) from error
    return code or 0


def paragraphs(text: str) -> str:
    """A docstring without the line breaks within its paragraphs: a terminal has a width of its own."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _refuse_empty(words: Sequence[str]) -> None:
    """As of a variable of a shell that is not set: an empty path would be the current directory."""
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        given = option if word.startswith("--") and equals and not value else ""
        if not word:
            given = before if before.startswith("-") and "=" not in before else "an argument"
        if given and given != _MAY_BE_EMPTY:
            raise UsageError(f"{given}: expected a value, got an empty one")


def _explained(error: CycloptsError, words: Sequence[str]) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"unexpected argument {shlex.join(error.unused_tokens[:1])}"
    text = " ".join(str(error).split()).removesuffix(".")
    if isinstance(error, MissingArgumentError):
        for before, word in pairwise(words):
            if word.startswith("-") and not word.startswith("--") and before in text.split():
                return f"{text}; one that begins with - is given as {before}={word}"
    return text


def key_values(words: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE words as a mapping; the last value of a key wins.

    :raises FencepostError: if a word has no key or no "=".
    """
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise FencepostError(f"{option} {word}: expected KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def writable_file(path: Path | None, option: str) -> Path | None:
    """The path, once it is known that a file can be written there: better now than after a long run.

    :raises FencepostError: if it cannot.
    """
    if path is None:
        return None
    existed = path.exists()
    if existed and not path.is_file():
        raise FencepostError(f"{option} {path}: cannot be written: not a regular file")
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise FencepostError(f"{option} {path}: cannot be written: {_reason(error)}") from error
    return path


def only_with(needed: str, options: Mapping[str, tuple[object, object]]) -> None:
    """Refuse options that mean nothing without what is needed; a value and its default each.

    :raises FencepostError: if a value is not the default.
    """
    given = [option for option, (value, default) in options.items() if value != default]
    if given:
        raise FencepostError(f"{', '.join(given)}: expected with {needed}")


def writable_files(files: Mapping[str, Path | None], *, read: str | Path | None = None) -> None:
    """As `writable_file` of each, by its option: two of one name, or what is `read`, would be lost.

    :raises FencepostError: if one cannot be written, or must not.
    """
    taken = {} if read is None else {Path(read).resolve(): "read"}
    for option, path in files.items():
        if path is None:
            continue
        if (other := taken.setdefault(path.resolve(), f"written by {option}")) != f"written by {option}":
            raise FencepostError(f"{option} {path}: is {other} as well, expected another file")
        writable_file(path, option)


def writable_folder(path: Path, option: str) -> Path:
    """The path, made a folder if there is none, once it is known that files can be written into it.

    :raises FencepostError: if they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise FencepostError(f"{option} {path}: cannot be written: {_reason(error)}") from error
    return path


def new_folder(path: Path, option: str) -> Path:
    """As `writable_folder`, of a folder in which nothing is yet.

    :raises FencepostError: if files cannot be written into it, or there are some.
    """
    if path.is_dir() and any(path.iterdir()):
        raise FencepostError(f"{option} {path}: is not empty: expected a new directory")
    return writable_folder(path, option)


def writable_results(
    out: Path, report: Path | None, *, make: Callable[[Path, str], Path] = writable_folder
) -> None:
    """The folder of `--out`, made as `make` does it, and `--report`, which may be in it, as `writable_file`.

    A folder that was made for nothing goes again.

    :raises FencepostError: if one of them cannot be written.
    """
    made = [each for each in (out, *out.parents) if not each.exists()]
    make(out, "--out")
    try:
        writable_file(report, "--report")
    except FencepostError:
        for each in made:
            each.rmdir()
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
