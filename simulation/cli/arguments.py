"""Parsing one subcommand's words with cyclopts, and the options that subcommands share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, TypeAlias

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.commands import Command

Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", show_default=False, help="Print one JSON document on stdout.")
]
Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1))]
Seed: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0))]

HELP_WIDTH = 80


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
        help_format="plaintext",
        version_flags=(),
        suppress_keyboard_interrupt=False,
    )
    app["--help"].show = False
    if not {"--help", "-h"}.isdisjoint(words):
        from fencepost.simulation.cli.terminal import Terminal

        app.console = Terminal(file_width=HELP_WIDTH)
    try:
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split()).removesuffix(".")) from error
    return code or 0


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


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
