"""The number of runs of a plan: as many as it takes to tell which option costs least, and no more.

All options get the same seeds, and their costs are compared seed by seed. Costs are compared after 3 runs of
each option, then after twice as many, and so on, at most `LOOKS` times. Repeated comparisons find a
difference by chance sooner or later. So each one uses a level of 1 %, and all of them together mislead about
an option in at most 5 % of plans.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.simulation.pipeline.progress import rough_time
from fencepost.simulation.pipeline.question import ask, choices, options, scenario_text
from fencepost.simulation.pipeline.session import wall_clock
from fencepost.simulation.scenarios.load import loads
from fencepost.simulation.scenarios.values import Duration

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.question import Choice, Question

FIRST_RUNS: Final = 3
"""Number of runs of each option before the first comparison: fewer runs give no useful interval."""
LOOKS: Final = 5
ALIKE: Final = 0.1
"""Two options whose costs differ by less than this share count as equally good."""
_T: Final = {
    1: 31.82,
    2: 6.965,
    3: 4.541,
    4: 3.747,
    5: 3.365,
    6: 3.143,
    7: 2.998,
    9: 2.821,
    11: 2.718,
    15: 2.602,
    20: 2.528,
    30: 2.457,
    60: 2.390,
}
"""The 99 % quantile of Student's t by degrees of freedom; for other values, use that of the next smaller
one."""

Costs = Mapping[str, Mapping[str, float]]
"""Costs of options, by name and run."""


def look_sizes(most: int) -> list[int]:
    """Return the numbers of runs of each option after which costs are compared; `most` is the last one."""
    factor = max(2.0, (most / FIRST_RUNS) ** (1 / (LOOKS - 1)))
    sizes = [round(FIRST_RUNS * factor**number) for number in range(LOOKS)]
    return [*(size for size in sizes if size < most), most]


def interval(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[float, float] | None:
    """Return bounds of the extra cost of the second over the first, over the runs of both.

    The difference is below the lower bound with a chance of 1 %, and above the upper bound with the same
    chance. None if there are fewer than two such runs.
    """
    differences = _differences(first, second)
    return _bounds(differences, len(differences)) if len(differences) > 1 else None


def _differences(first: Mapping[str, float], second: Mapping[str, float]) -> list[float]:
    return [second[run] - first[run] for run in first if run in second]


def _bounds(differences: Sequence[float], runs: int) -> tuple[float, float]:
    """Return the interval of `runs` differences with the same scatter as these."""
    factor = _T[max(freedom for freedom in _T if freedom < runs)]
    half = factor * statistics.stdev(differences) / math.sqrt(runs)
    middle = statistics.fmean(differences)
    return middle - half, middle + half


def undecided(costs: Costs, failed: Mapping[str, int]) -> list[str]:
    """Return the cheapest option and those that may or may not cost more; an empty list if everything is
    clear.

    Options with failed runs are left out, because their cost is unknown.
    """
    best = _cheapest(costs, failed)
    if best is None:
        return []
    open_ = [name for name in _sound(costs, failed) if name != best and _is_open(costs[best], costs[name])]
    return [best, *open_] if open_ else []


def _sound(costs: Costs, failed: Mapping[str, int]) -> list[str]:
    return [name for name, found in costs.items() if found and not failed.get(name)]


def _cheapest(costs: Costs, failed: Mapping[str, int]) -> str | None:
    sound = _sound(costs, failed)
    if len(sound) < 2:
        return None
    return min(sound, key=lambda name: statistics.fmean(costs[name].values()))


def _is_open(best: Mapping[str, float], other: Mapping[str, float], runs: int | None = None) -> bool:
    """Return true if the comparison is open, or would be open after `runs` runs like these."""
    differences = _differences(best, other)
    if len(differences) < 2:
        return True
    low, high = _bounds(differences, runs or len(differences))
    near = ALIKE * statistics.fmean(best.values())
    return low <= 0 and not (-near <= low and high <= near)


def next_look(costs: Costs, open_: Sequence[str], sizes: Sequence[int], done: int) -> int:
    """Return the number of runs of each option for the next comparison.

    That is the next of the `sizes`. It is the one after that if the costs scatter so much that the next
    comparison would leave everything open.
    """
    ahead = [size for size in sizes if size > done]
    best, *others = open_
    hopeless = all(_is_open(costs[best], costs[name], ahead[0]) for name in others)
    return ahead[1] if hopeless and len(ahead) > 1 else ahead[0]


class RunTimes(msgspec.Struct, frozen=True):
    """The time that runs take on this machine, in seconds by option, and the number of runs at the
    same time."""

    seconds: Mapping[str, float]
    cores: int

    @classmethod
    def estimated(
        cls, questions: Mapping[str, Question], chosen: Mapping[str, Choice], cores: int, speed: float
    ) -> RunTimes:
        """Estimate the times; `speed` is the factor by which a short run took longer than usual."""
        return cls({name: speed * _run_seconds(questions[name], chosen[name]) for name in chosen}, cores)

    def of(self, names: Sequence[str], runs: int) -> float:
        """Return the time of `runs` runs of each of these options, run in parallel."""
        together = runs * sum(self.seconds[name] for name in names) / self.cores
        return max(together, max(self.seconds[name] for name in names) if runs else 0.0)


_RESERVE: Final = 0.05
"""The share of the time that is kept for measuring the runs; at least `_LEAST_RESERVE_S` seconds."""
_LEAST_RESERVE_S: Final = 5.0
_MEASURE: Final = 0.6
_END: Final = 0.1
"""The times that measuring and the end of the process take at least, as shares of the time that its start
took: a busy machine delays all of them."""


class TimeLimit(msgspec.Struct, frozen=True):
    """The wall time that a plan may take in all."""

    seconds: float
    began: float
    """On the clock of `wall_clock`."""
    start_s: float = 0.0
    """The time that the start of the process took."""

    @property
    def started(self) -> TimeLimit:
        """The limit for a process that has started just now."""
        return msgspec.structs.replace(self, start_s=wall_clock() - self.began)

    @property
    def left_s(self) -> float:
        """The seconds that are left for runs: some are kept for measuring them."""
        reserve = max(_LEAST_RESERVE_S, _RESERVE * self.seconds, _MEASURE * self.start_s)
        return max(0.0, self.ends - reserve - wall_clock())

    @property
    def ends(self) -> float:
        """The end of the plan, on the clock of `wall_clock`."""
        return self.began + self.seconds - _END * self.start_s

    def __str__(self) -> str:
        return f"within {Duration(round(self.seconds * 1_000_000))}"

    def reason(
        self, ran: Mapping[str, int], open_: Sequence[str], *, all_at_once: bool, unmeasured: int = 0
    ) -> str:
        """Return the reason for the end, and what is still open, in a few sentences.

        `ran` is the number of runs of each option, `open_` is as `undecided` returns it, and `unmeasured` is
        the number of finished runs that could not be measured in time.
        """
        few = sorted(set(ran.values()))
        count = f"{few[0]} to {few[-1]} runs" if len(few) > 1 else f"{few[0]} run{'' if few[0] == 1 else 's'}"
        text = f"The time was over {self}, after {count} of each."
        if unmeasured:
            one = unmeasured == 1
            text += f" {unmeasured} more {'was' if one else 'were'} done, but could not be measured in time."
        if all_at_once or len(ran) < 2:
            return text
        if open_:
            text += f" Not decided yet: {' or '.join(open_)}."
        if none := [name for name, runs in ran.items() if not runs]:
            text += f" Not known yet, as no run ended: {', '.join(none)}."
        elif not open_:
            text += " It is decided which option costs least."
        return text


_UNSURE: Final = 1.5
"""The factor by which runs may take longer than estimated."""
_START_S: Final = 15.0
"""Time of Spark's first task and of the first comparison, in seconds."""
_LOOK_S: Final = 3.0
_LONG_S: Final = 300.0
"""More than this is worth a word about `--within`."""


def estimate(times: RunTimes, first: int, most: int, limit: TimeLimit | None = None) -> str:
    """Return the least and the most time that the runs may take, in a sentence.

    It adds the effect of a time `limit` if the runs may take longer, or how to set one if they take minutes.
    """
    names, cores = [*times.seconds], times.cores
    low = times.of(names, first) + _START_S
    high = times.of(names, most) * _UNSURE + _START_S + _LOOK_S * (len(look_sizes(most)) - 1)
    each = f"{first} to {most} runs" if most > first else f"{first} run{'s' if first > 1 else ''}"
    count = f"{len(names)} option{'s' if len(names) > 1 else ''}"
    spans = list(dict.fromkeys(map(rough_time, (low, high))))
    text = f"{count}, {each} of each: {' to '.join(spans)} on {cores} core{'s' if cores > 1 else ''}"
    if limit is None:
        return f"{text}; --within 5m ends sooner, with what is known by then" if low > _LONG_S else text
    if high <= limit.seconds:
        return text
    return f"{text}; {limit} it may stay open which one costs least"


_SHORT: Final = {"members": 8, "partitions": 24, "start_up": "5s", "protocol": "consumer", "static": False}
_SHORT_S: Final = 0.08
"""Seconds that a run of this question took on the machine on which the figures below were measured."""
_TRIES: Final = 3
_MEMBER_S: Final = 17e-6
"""Processor time for a second of a member's life."""
_MOVE_S: Final = 12e-6
"""Processor time for each partition when a member restarts and the consumer protocol moves its partitions."""
_JOIN_S: Final = 2e-3
"""Processor time for each member when a member restarts and all members join again, as in the classic
protocol."""
_DEAL_S: Final = 80e-6
"""Processor time for each partition when a leader of the classic protocol assigns all of them again."""


def machine_speed(tries: int = _TRIES) -> float:
    """Return the factor by which a short run takes longer than usual on this machine with its present
    load."""
    from fencepost.simulation.run import run

    question = ask(_SHORT, {})
    chosen = choices(question)
    (option,) = options(chosen, {})
    settings = [f"{key}={value}" for key, value in option.settings.items()]
    scenario = loads(scenario_text(question, chosen), overrides=settings)
    taken = []
    for seed in range(tries):
        began = wall_clock()
        run(scenario, seed)
        taken.append(wall_clock() - began)
    return statistics.median(taken) / _SHORT_S


def _run_seconds(question: Question, choice: Choice) -> float:
    """Return a rough estimate of a run's processor time, from measurements with 20 and with 200 members."""
    seconds = _MEMBER_S * question.members * question.seconds(choice)
    restarts = question.restarts
    if choice.static and question.event == "deploy":
        return seconds
    if choice.protocol == "consumer":
        return seconds + restarts * question.partitions * _MOVE_S
    return seconds + restarts * (question.members * _JOIN_S + question.partitions * _DEAL_S)
