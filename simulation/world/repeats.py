"""Repeats a failing seed: a program that is not repeatable gets no list of faults, and the reasons that are
known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.simulation.world.apart import run_apart
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest

RUNS: Final = 5
"""The number of runs that show how often a seed fails that is not repeatable."""


def is_same(one: WorldResult, other: WorldResult) -> bool:
    """Return true if two runs of a seed are the same, as far as anyone can see."""
    return (one.digest, one.invariant, one.where) == (other.digest, other.invariant, other.where)


def repeats(
    function: WorldTest, settings: WorldSettings, first: WorldResult, *, runs: int = 0
) -> list[WorldResult]:
    """Run a seed again with other addresses in memory, and return these runs.

    It is one run if it is the same as the first one, else there are some more. With `runs` it is run so
    often in any case.
    """
    further: list[WorldResult] = []
    while len(further) + 1 < (runs or RUNS):
        further.append(
            run_apart(
                function, settings, first.seed, shaken=True, plan=first.plan, keep_rows=True, watch=True
            )
        )
        if not runs and is_same(first, further[0]):
            break
    return further


def why_not_repeatable(first: WorldResult, further: Sequence[WorldResult]) -> list[str]:
    """Return lines about a program whose runs of one seed differ."""
    runs = [first, *further]
    digests, failed = len({each.digest for each in runs}), sum(each.failed for each in runs)
    lines = [
        f"This program is not repeatable: {len(runs)} runs of the seed gave {digests} different "
        f"digest{'' if digests == 1 else 's'}, and {failed} of them failed. So a list of faults would mean "
        "nothing, and there is none.",
    ]
    one = further[0]
    other = next((each for each in further if not is_same(one, each)), None)
    if other is None:
        lines.append(
            "All runs but the first are the same, so a run leaves something behind that the next one finds: "
            "a variable of a module, or a file outside of the run's folder."
        )
    else:
        lines.append(_difference(one, other))
    kinds = list(dict.fromkeys(kind for each in further for kind in each.unordered))
    if kinds:
        some = ", ".join(kinds[:5]) + (", ..." if len(kinds) > 5 else "")
        lines.append(
            f"Sets in it have an order that follows memory addresses: of {some}. If a program iterates over "
            "such a set, a dict with these objects as keys, or a `__hash__`, makes it repeatable."
        )
    elif other is not None:
        lines.append(
            "The reason is not known. Usual ones are real time or randomness that a C library reads, and "
            "state outside of the world."
        )
    return lines


def _difference(one: WorldResult, other: WorldResult) -> str:
    """Return the line about the first difference of two runs."""
    for mine, theirs in zip(one.sent, other.sent, strict=False):
        if mine != theirs:
            return f"The first difference: {_sending(mine)}; in another run {_sending(theirs)}."
    if len(one.sent) != len(other.sent):
        longer, shorter = sorted((one.sent, other.sent), key=len, reverse=True)
        return f"The first difference: {_sending(longer[len(shorter)])}; another run was over by then."
    return "All that was sent is the same, and what was done with it differs."


def _sending(sent: tuple[int, str, str, int]) -> str:
    at_us, source, target, size = sent
    return f"at {at_us / 1e6:.6f} s {source} sent {size} bytes to {target}"
