"""`fencepost explore`: every interleaving of a small world, each state judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from fencepost.simulation.cli.arguments import Count, Json, within
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.runs import MutantName
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.progress import progress_for

if TYPE_CHECKING:
    from fencepost.simulation.lab.explorer.explore import Exploration


def explore(
    world: Annotated[
        Literal["consumer"], Parameter(help="The world to explore: a KIP-848 group.")
    ] = "consumer",
    /,
    *,
    members: Annotated[int, within(1, 9, "Number of members.")] = 2,
    partitions: Annotated[int, within(1, 100, "Number of partitions of their topic.")] = 2,
    faults: Annotated[int, within(0, None, "Number of faults that may happen, each at any moment.")] = 1,
    kinds: Annotated[
        str,
        Parameter(
            help="Kinds of faults, separated by commas: breaks, late, crashes, unsubscribes, stalls, closes, "
            "expires, failover, grows. Default: all except late."
        ),
    ] = "",
    static: Annotated[
        bool, Parameter(help="Make the members static: each place is kept for the member's next process.")
    ] = False,
    full: Annotated[
        bool, Parameter(help="Take steps that commute in every order: more states, and the shortest paths.")
    ] = False,
    max_states: Annotated[Count, Parameter(help="Stop after this many states.")] = 2_000_000,
    mutant: MutantName = "",
    json: Json = False,
) -> int:
    """Explore every interleaving of a small world: all orders of messages, timers, callbacks and faults.

    The explorer steps the cores of the coordinator and of the members directly, without a loop or a network.
    It checks the invariants in each state, and that the group can settle from there. A violation is shown
    with the steps that lead to it. Steps that commute are taken in one order only.
    """
    from fencepost.simulation.lab.explorer.explore import explore as walk
    from fencepost.simulation.lab.explorer.roles import USUAL_FAULTS
    from fencepost.simulation.mutants.registry import with_mutant

    configure_logs()
    with (
        with_mutant(mutant),
        progress_for(json=json).step("states", max_states) as advance,
    ):
        found = walk(
            members=members,
            partitions=partitions,
            faults=faults,
            kinds=[each.strip() for each in kinds.split(",")] if kinds else USUAL_FAULTS,
            static=static,
            full=full,
            max_states=max_states,
            progress=advance,
        )
    print_result(found, _print, json=json)
    if found.interrupted:
        raise KeyboardInterrupt  # the results so far are printed; the exit code says that more are missing
    return 1 if found.violations else 0


def _print(walk: Exploration) -> None:
    out = Terminal()
    out.say(
        f"{walk.states:,} states, {walk.transitions:,} transitions,"
        f" {walk.wall_seconds:.1f} s ({walk.states_per_second:,} states a second)"
    )
    if walk.complete:
        out.say(f"complete: every state was seen; in {walk.settled:,} of them the group has settled")
    elif walk.interrupted:
        out.say(
            "interrupted: there are more states. The results below are those found so far; whether the group"
        )
        out.say("can settle from each of them is open")
    elif not walk.violations:
        out.say("not complete: there are more states than --max-states. None of these breaks an invariant;")
        out.say("whether the group can settle from each of them is open")
    if walk.complete and not walk.violations:
        out.say(Text("no violation, and from every state the group can settle", style="green"))
    for found in walk.violations:
        out.say()
        out.say(Text(found.invariant, style="red"), Text(found.message))
        for number, each in enumerate(found.steps, 1):
            out.say(f"{number:4} {each}")
