"""Judges whether a simulated figure is near enough to the real one, if the samples can tell.

What happens within one disturbance is not independent: a coordinator that is slow is slow for all members,
and a rebalance moves many partitions. So groups of values are resampled, not single values (`occasions`):
each rebalance, the partitions that were down at the same time, the heartbeats of one second. The interval of
the ratio is a bootstrap's, as in `analyses.comparison`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fencepost.simulation.analyses.comparison import QUANTILES, MeasureComparison, Sample, compare

SECOND_US: Final = 1_000_000


class TimedValue(NamedTuple):
    """A duration that was measured in a run, and when it began, by the run's time."""

    run: str
    begin_us: int
    seconds: float


Measured: TypeAlias = Mapping[str, Iterable[TimedValue]]
"""The measured values of one world, by figure."""


class Tolerances(msgspec.Struct, frozen=True):
    """Tolerated distance of simulated from real: 0.1 is a tenth more, or as much less as evens that out."""

    median: float = 0.10
    p90: float = 0.20

    def of(self, quantile: str) -> float:
        """Return the tolerance of that quantile."""
        return self.median if quantile == "median" else self.p90


class FidelityVerdict(enum.StrEnum):
    """The verdict on a figure."""

    WITHIN = "within"
    """The whole interval of the ratio is within the tolerance."""
    DIFFERS = "differs"
    """The whole interval is outside."""
    TOO_FEW = "too few"
    """The interval has parts of both, or there are too few values for an interval."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of both worlds. Times are in seconds; null if there is nothing to measure."""

    figure: str
    quantile: str
    simulated: float | None
    real: float | None
    ratio: float | None
    """Simulated over real."""
    ratio_low: float | None
    ratio_high: float | None
    tolerance: float
    verdict: FidelityVerdict


FIGURES: Final = ("rebalances", "downtime", "heartbeats")


def judge(simulated: Measured, real: Measured, tolerances: Tolerances) -> list[Judged]:
    """Return the verdicts on all figures: median and p90 of each."""
    found: list[Judged] = []
    for figure in FIGURES:
        sides = [_sample(world.get(figure, ()), figure) for world in (real, simulated)]
        compared = {each.quantile: each for each in compare(*sides, measures=[figure])}
        found += [_judged(figure, name, compared.get(name), tolerances.of(name)) for name in QUANTILES]
    return found


def _judged(figure: str, quantile: str, compared: MeasureComparison | None, tolerance: float) -> Judged:
    ratio = low = high = None
    if compared is not None:
        ratio, low, high = compared.ratio, compared.ratio_low, compared.ratio_high
    return Judged(
        figure=figure,
        quantile=quantile,
        simulated=None if compared is None else compared.after,
        real=None if compared is None else compared.before,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        tolerance=tolerance,
        verdict=verdict_of(low, high, tolerance),
    )


def verdict_of(low: float | None, high: float | None, tolerance: float) -> FidelityVerdict:
    """Return the verdict on a ratio that is between these, as far as the samples show."""
    if low is None or high is None:
        return FidelityVerdict.TOO_FEW
    least, most = 1 / (1 + tolerance), 1 + tolerance
    if least <= low and high <= most:
        return FidelityVerdict.WITHIN
    return FidelityVerdict.DIFFERS if high < least or low > most else FidelityVerdict.TOO_FEW


def _sample(values: Iterable[TimedValue], figure: str) -> Sample:
    by_run: dict[str, list[TimedValue]] = {}
    for each in values:
        by_run.setdefault(each.run, []).append(each)
    grouped: dict[str, list[float]] = {}
    for run, found in by_run.items():
        for number, chosen in enumerate(occasions(found, by_second=figure == "heartbeats")):
            grouped[f"{run}/{number}"] = [each.seconds for each in chosen]
    return Sample(tuple(grouped), {figure: grouped})


def occasions(values: Iterable[TimedValue], *, by_second: bool = False) -> Iterable[list[TimedValue]]:
    """Return one run's values in groups: those that overlap in time; `by_second`, those of a second."""
    groups: list[list[TimedValue]] = []
    until_us = -1
    for each in sorted(values, key=lambda value: value.begin_us):
        if each.begin_us > until_us:
            groups.append([])
            until_us = each.begin_us
            if by_second:
                until_us = each.begin_us // SECOND_US * SECOND_US + SECOND_US - 1
        groups[-1].append(each)
        if not by_second:
            until_us = max(until_us, each.begin_us + round(each.seconds * SECOND_US))
    return groups
