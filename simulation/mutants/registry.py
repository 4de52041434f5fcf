"""All mutants by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.mutants.automatic import is_automatic, mutant_named, with_automatic_mutant
from fencepost.simulation.mutants.coded import CODED
from fencepost.simulation.mutants.known import EDITS
from fencepost.simulation.mutants.mutant import Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {mutant.name: mutant for mutant in (*EDITS, *CODED)}


def check_mutant(name: str) -> None:
    """Accept the name of a known bug, or of an automatic mutant.

    :raises FencepostError: if it is neither, with the name that was probably meant.
    """
    if is_automatic(name):
        mutant_named(name)
    else:
        known_names([name])


def known_names(names: Iterable[str]) -> list[str]:
    """Return the names of known bugs, or those of all of them if there are none.

    :raises FencepostError: if a name is not theirs, with the one that was probably meant.
    """
    chosen = list(names)
    for name in chosen:
        if name not in MUTANTS:
            hint = suggestion(name, MUTANTS, "`fencepost mutants --list` lists them")
            raise FencepostError(f"there is no mutant {name}; {hint}")
    return chosen or list(MUTANTS)


def with_mutant(name: str) -> AbstractContextManager[None]:
    """Run the block with that bug; with none if the name is empty.

    :raises FencepostError: if there is no such mutant.
    """
    if not name:
        return nullcontext()
    check_mutant(name)
    return with_automatic_mutant(name) if is_automatic(name) else MUTANTS[name].apply()
