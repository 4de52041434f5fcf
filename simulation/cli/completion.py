"""`fencepost --completion SHELL`: a script for the shell, and the values that it requests on Tab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from cyclopts import App, Parameter

from fencepost.simulation.cli.commands import COMMANDS

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

Shell = Literal["bash", "zsh", "fish"]
SHELLS: Final[tuple[str, ...]] = get_args(Shell)


_ZSH_END: Final = """
if [[ $funcstack[1] == _fencepost ]]; then
  _cyclopts_fencepost "$@"
else
  compdef _cyclopts_fencepost fencepost
fi
"""
"""The script only defines a function. zsh loads the file from `fpath` and runs it, or the user sources it."""


def script(shell: str) -> str:
    """Return the completion script of one of `SHELLS`."""
    made = _app().generate_completion(prog_name="fencepost", shell=cast("Shell", shell))
    return made + _ZSH_END if shell == "zsh" else made


def complete(words: Sequence[str]) -> None:
    """Print the values that can follow these words, for the script of a shell."""
    _app()(["__complete", *words], exit_on_error=False, print_error=False, result_action="return_value")


def _app() -> App:
    """Return all commands in one application; each module is imported when its command is completed."""
    app = App(name="fencepost", default_parameter=Parameter(negative=()), help_format="plaintext")
    for command in COMMANDS:
        app.command(command.function, name=command.name, help=command.summary)
    return app


def scenario_names(_: CompletionContext) -> Iterator[tuple[str, str]]:
    """Yield the scenarios of the library with their summaries, and the TOML files of this directory."""
    from fencepost.simulation.scenarios.load import library

    for entry in library():
        yield entry.name, entry.summary
    for file in sorted(Path().glob("*.toml")):
        yield file.name, "a file"


def machine_names(_: CompletionContext) -> Iterator[str]:
    """Yield the names of the state machines."""
    from fencepost.simulation.machines import TABLES

    return (table.name for table in TABLES)


def mutant_names(_: CompletionContext) -> Iterator[str]:
    """Yield the names of the known bugs."""
    from fencepost.simulation.mutants.registry import MUTANTS

    yield from MUTANTS
