"""How many runs a plan takes: as many as it needs to tell which option costs least, and no more.

All options get the same seeds, so that their costs are compared seed by seed: what a seed makes all options
do alike cancels out. An option is decided once the 99 % interval of its difference to the cheapest one (by
Student's t) leaves 0 out, or is so narrow that the two may as well be the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fencepost.simulation.pipeline.progress import rough_time

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.question import Choice, Question

FIRST_RUNS: Final = 3
"""Of each option, before anything is decided: fewer have no interval that is worth the name."""
ALIKE: Final = 0.05
"""Two options whose costs differ by less than this share are as good as each other."""
_T: Final = {
    1: 63.66,
    2: 9.925,
    3: 5.841,
    4: 4.604,
    5: 4.032,
    6: 3.707,
    7: 3.499,
    9: 3.250,
    11: 3.106,
    15: 2.947,
    20: 2.845,
    30: 2.750,
    60: 2.660,
}
"""Half of a 99 % interval in standard errors, by degrees of freedom; between two, that of the fewer."""

Costs = Mapping[str, Mapping[str, float]]
"""What options cost, by name and run."""


def interval(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the 99 % interval of how much more the second costs than the first, over the runs of both.

    None if there are fewer than two of these.
    """
    differences = [second[run] - first[run] for run in first if run in second]
    if len(differences) < 2:
        return None
    factor = _T[max(freedom for freedom in _T if freedom < len(differences))]
    half = factor * statistics.stdev(differences) / math.sqrt(len(differences))
    middle = statistics.fmean(differences)
    return middle - half, middle + half


def undecided(costs: Costs, failed: Mapping[str, int]) -> list[str]:
    """Return the cheapest option and those of which it is open whether they cost more; none if none is open.

    Options with runs that failed are not among them: what they cost is not known.
    """
    sound = [name for name, found in costs.items() if found and not failed.get(name)]
    if len(sound) < 2:
        return []
    best = min(sound, key=lambda name: statistics.fmean(costs[name].values()))
    open_ = [name for name in sound if name != best and _is_open(costs[best], costs[name])]
    return [best, *open_] if open_ else []


def _is_open(best: Mapping[str, float], other: Mapping[str, float]) -> bool:
    found = interval(best, other)
    if found is None:
        return True
    low, high = found
    near = ALIKE * statistics.fmean(best.values())
    return low <= 0 and not (-near <= low and high <= near)


def next_round(done: int) -> int:
    """Return how many runs undecided options have after the next round: half as many again."""
    return done + max(1, done // 2)


def estimate(
    questions: Sequence[Question], chosen: Sequence[Choice], cores: int, first: int, most: int
) -> str:
    """Return how long the runs may take at least and at most, in a sentence."""
    once = sum(map(_run_seconds, questions, chosen))
    low, high = (runs * once / max(1, min(cores, runs * len(chosen))) + _SPARK_S for runs in (first, most))
    each = f"{first} to {most} runs" if most > first else f"{first} run{'s' if first > 1 else ''}"
    count = f"{len(chosen)} option{'s' if len(chosen) > 1 else ''}"
    span = rough_time(low) if most == first else f"{rough_time(low)} to {rough_time(high)}"
    return f"{count}, {each} of each: about {span} on {cores} core{'s' if cores > 1 else ''}"


_SPARK_S: Final = 15.0
_MEMBER_S: Final = 17e-6
"""Processor time for a second of a member's life."""
_MOVE_S: Final = 12e-6
"""That for each partition, whenever a member restarts and the consumer protocol moves what it had."""
_JOIN_S: Final = 2e-3
"""That for each member, whenever a member restarts and all join again, as in the classic protocol."""
_DEAL_S: Final = 80e-6
"""That for each partition, whenever a leader of the classic protocol deals them out again."""


def _run_seconds(question: Question, choice: Choice) -> float:
    """Roughly how much processor time a run takes, as measured with 20 and with 200 members."""
    seconds = _MEMBER_S * question.members * question.seconds(choice)
    restarts = question.restarts
    if choice.static and question.event == "deploy":
        return seconds
    if choice.protocol == "consumer":
        return seconds + restarts * question.partitions * _MOVE_S
    return seconds + restarts * (question.members * _JOIN_S + question.partitions * _DEAL_S)
