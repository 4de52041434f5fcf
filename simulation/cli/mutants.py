"""`fencepost mutants`: known historic bugs, put back one at a time; a checker must catch each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fencepost.simulation.cli.arguments import Count, Json
from fencepost.simulation.cli.completion import mutant_names
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.pipeline.progress import progress_for

if TYPE_CHECKING:
    from fencepost.simulation.lab.hunt import MutantResult


def mutants(
    *names: Annotated[str, Parameter(help="Mutants by name; without, all of them.", completer=mutant_names)],
    seeds: Annotated[Count, Parameter(help="How many seeds each has to show itself, from 0 on.")] = 20,
    json: Json = False,
) -> int:
    """Are the checkers awake? Each mutant is a bug that somebody really had, put back from outside.

    A mutant is caught if a checker that is meant to see it does, and healthy code passes the same runs.
    """
    from fencepost.simulation.lab.hunt import hunt_all
    from fencepost.simulation.mutants.registry import MUTANTS

    configure_logs()
    with progress_for(json=json).step("hunting", len(names or MUTANTS)) as advance:
        results = hunt_all(seeds, names=names, progress=lambda _: advance(1))
    if json:
        print_json(results)
    else:
        _print(results)
    return 0 if all(result.caught for result in results.values()) else 1


def _print(results: Mapping[str, MutantResult]) -> None:
    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal
    from fencepost.simulation.mutants.registry import MUTANTS

    out = Terminal()
    rows = []
    for name, result in results.items():
        caught = Text("caught", "green") if result.caught else Text("missed", "red")
        if not result.healthy:
            caught = Text("healthy code fails too", "red")
        by = ", ".join(result.by)
        needed = "-" if result.seeds_needed is None else f"{result.seeds_needed:,}"
        rows.append((name, caught, needed, by, MUTANTS[name].summary))
    out.table(("mutant", "verdict", "seeds", "by", "the bug"), rows)
