"""Parses the words of one subcommand with cyclopts, and declares options that subcommands share."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, TypeAlias

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, Token, UnusedCliTokensError
from cyclopts.validators import Number

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.commands import Command

Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", show_default=False, help="Print one JSON document on stdout.")
]


def whole(_: object, tokens: Sequence[Token]) -> int:
    """Convert text to a whole number: cyclopts would round 1.5 to 2.

    :raises ValueError: if it is not.
    """
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {token.value!r}") from None


def within(least: int, most: int | None = None, help: str | None = None) -> Parameter:
    """Return the parameter of a whole number between two limits."""
    return Parameter(validator=Number(gte=least, lte=most), converter=whole, help=help)


Count: TypeAlias = Annotated[int, within(1)]
Seed: TypeAlias = Annotated[int, within(0)]
TraceConfig: TypeAlias = Annotated[
    Path | None,
    Parameter(help="With --trace-topic: a file of Kafka's client settings, for brokers with TLS or a login."),
]

HELP_WIDTH = 80
_MAY_BE_EMPTY = "--mutant"
"""The option that may be empty: it then names no mutant."""


class UsageError(Exception):
    """The words on the command line do not make sense; the text is one line."""


def call(command: Command, words: Sequence[str]) -> int:
    """Import the subcommand, parse its words, run it and return its exit code.

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
    """Return a docstring without the line breaks in its paragraphs: a terminal has its own width."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse empty values, such as those of unset shell variables: an empty path would mean the
    current folder."""
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
                return f"{text}; a value that begins with - is written {before}={word}"
    return text


def key_values(words: Sequence[str], option: str) -> dict[str, str]:
    """Return KEY=VALUE words as a mapping; the last value of a key wins.

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
    """Return the path after checking that a file can be written there: better now than after a long run.

    :raises FencepostError: if it cannot.
    """
    if path is None:
        return None
    try:
        existed = path.exists()
        if existed and not path.is_file():
            raise FencepostError(f"{option} {path}: cannot be written: not a regular file")
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise FencepostError(f"{option} {path}: cannot be written: {_reason(error)}") from error
    return path


def given_options(group: Any) -> Iterator[str]:
    """Yield the options of a group, an instance of a dataclass, whose values are not the defaults."""
    for field in dataclasses.fields(group):
        if field.init and getattr(group, field.name) != field.default:
            yield f"--{field.name.replace('_', '-')}"


def only_with(needed: str, *given: str) -> None:
    """Refuse the options that were `given`, as they have no effect without `needed`.

    :raises FencepostError: if there is one.
    """
    if given:
        raise FencepostError(f"{', '.join(given)}: needs {needed}")


def writable_files(files: Mapping[str, Path | None], *, read: str | Path | None = None) -> None:
    """Check each file with `writable_file`, and that no two are the same and none is the one that is `read`.

    :raises FencepostError: if a file cannot be written, or must not be overwritten.
    """
    taken = {} if read is None else {os.path.realpath(read): "read"}
    for option, path in files.items():
        if path is None:
            continue
        written = f"written by {option}"
        if (other := taken.setdefault(os.path.realpath(path), written)) != written:
            raise FencepostError(f"{option} {path}: is also {other}, expected another file")
        writable_file(path, option)


def writable_folder(path: Path, option: str) -> Path:
    """Return the path, created as a folder if missing, after checking that files can be written into it.

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
    """Do the same as `writable_folder` for a folder that must be empty.

    :raises FencepostError: if files cannot be written into it, or it is not empty.
    """
    writable_folder(path, option)
    if any(path.iterdir()):
        raise FencepostError(f"{option} {path}: is not empty: expected a new directory")
    return path


def writable_results(
    out: Path, report: Path | None, *, make: Callable[[Path, str], Path] = writable_folder
) -> None:
    """Create the folder of `--out` with `make`, and check that `--report`, which may be in it, is writable.

    If `--report` cannot be written, the folders that were created are deleted.

    :raises FencepostError: if one of them cannot be written.
    """
    made = [each for each in (out, *out.parents) if not os.path.exists(each)]  # never raises
    make(out, "--out")
    try:
        writable_file(report, "--report")
    except FencepostError:
        for each in made:
            each.rmdir()
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
