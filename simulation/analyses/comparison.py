"""Comparison of two sets of runs: the size of the difference, and its confidence interval.

The events of one run are not independent of each other, so whole runs are resampled: a cluster bootstrap
(Davison and Hinkley, Bootstrap Methods and Their Application, 3.8), with percentile intervals. If both sets
have the same seeds, each draw takes the same seeds from both, so that effects of the seeds cancel out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from fencepost.simulation.analyses.declaration import CELL, Column, Declared, Unit
from fencepost.simulation.analyses.measures import MEASURES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

QUANTILES: Final = {"median": 0.5, "p90": 0.9}
"""The quantiles that are compared for each measure, by name."""
RESAMPLES: Final = 1_000
CONFIDENCE: Final = 0.95
FEWEST_RUNS: Final = 6
"""Minimum number of runs for an interval: the widest interval of five runs, from the least to the largest,
covers only 94 %."""
_LEAST: Final = 1e-6
"""Smallest value that is used as a divisor: a trace's time is in microseconds."""
_CELLS_AT_ONCE: Final = 4_000_000
"""Numbers that a step holds in memory at most: resamples times values."""


class Sample(msgspec.Struct, frozen=True):
    """A set of runs with its measurements."""

    runs: tuple[str, ...]
    """Names of all runs, unique within the set: their seeds, or their ids."""
    values: Mapping[str, Mapping[str, Sequence[float]]]
    """By measure and run; runs without any value may be left out."""


class MeasureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A measure of two sets of runs, in the measure's unit; None if there are too few values."""

    measure: str
    quantile: str
    """median or p90."""
    before: float
    after: float
    before_count: int
    """Number of values in the first set."""
    after_count: int
    ratio: float | None
    """After by before; None if before is 0."""
    ratio_low: float | None
    """The 95 % interval of the ratio. None if there are too few values, as below, or before may be 0."""
    ratio_high: float | None
    difference: float
    """After less before."""
    difference_low: float | None
    """The 95 % interval of the difference. None if fewer than six runs of a set have values, or if the
    quantile is its largest value, as the p90 of fewer than ten is."""
    difference_high: float | None

    @property
    def differs(self) -> bool | None:
        """True if the interval of the difference leaves 0 out; None if there is no interval."""
        if self.difference_low is None or self.difference_high is None:
            return None
        return self.difference_low > 0 or self.difference_high < 0


def compare(
    before: Sample,
    after: Sample,
    *,
    measures: Iterable[str] = MEASURES,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[MeasureComparison]:
    """Compare each measure that both sets have values of: median and p90, their ratio and difference, with
    intervals.

    The same input gives the same result: draws come from `seed`.
    """
    drawn = _draws(before.runs, after.runs, resamples, seed)
    comparisons: list[MeasureComparison] = []
    for name in measures:
        sides = before.values.get(name, {}), after.values.get(name, {})
        if all(any(len(values) for values in side.values()) for side in sides):
            comparisons += _compare(name, before, after, drawn, confidence)
    return comparisons


def samples(measured: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Sample]:
    """Return a sample for each scenario and its parameters in the table `measures`.

    Runs are told apart by their seed if it ends their id, as in a campaign: rolling-deploy-000017.
    """
    found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    runs: dict[tuple[str, str], set[str]] = {}
    for row in measured:
        cell = row["scenario"], row["parameters"]
        run = _run_name(row["run_id"])
        runs.setdefault(cell, set()).add(run)
        if row["measure"] is not None and row["value"] is not None:
            found.setdefault(cell, {}).setdefault(row["measure"], {}).setdefault(run, []).append(row["value"])
    return {cell: Sample(tuple(sorted(names)), found.get(cell, {})) for cell, names in sorted(runs.items())}


def _run_name(run_id: str) -> str:
    seed = run_id.rpartition("-")[2]
    return seed if seed.isdecimal() else run_id


def _draws(before: Sequence[str], after: Sequence[str], resamples: int, seed: int) -> tuple[Any, Any] | None:
    """Return how often each resample contains each run of each set; None if a set is too small to be
    resampled."""
    import numpy as np

    if min(len(before), len(after)) < FEWEST_RUNS:
        return None
    source = random.Random(seed)
    sides = []
    for runs in (before,) if before == after else (before, after):
        size = len(runs)
        drawn = np.array(source.choices(range(size), k=size * resamples)).reshape(resamples, size)
        drawn += np.arange(resamples)[:, None] * size
        counts = np.bincount(drawn.ravel(), minlength=resamples * size)
        sides.append(counts.reshape(resamples, size).astype(np.int32))
    return sides[0], sides[-1]


def _compare(
    name: str, before: Sample, after: Sample, drawn: tuple[Any, Any] | None, confidence: float
) -> Iterable[MeasureComparison]:
    import numpy as np

    flat = [_flat(sample, name) for sample in (before, after)]
    chances = np.array(list(QUANTILES.values()))
    found = [np.quantile(values, chances, method="inverted_cdf") for values, _ in flat]
    spread = None
    if drawn is not None and all(len(set(owners.tolist())) >= FEWEST_RUNS for _, owners in flat):
        each = [_resampled(*side, weights, chances) for side, weights in zip(flat, drawn, strict=True)]
        whole = ~(np.isnan(each[0]) | np.isnan(each[1])).any(axis=1)
        spread = (each[0][whole], each[1][whole]) if whole.any() else None
    for at, quantile in enumerate(QUANTILES):
        was, now = float(found[0][at]), float(found[1][at])
        ratio: tuple[float | None, float | None] = None, None
        difference: tuple[float | None, float | None] = None, None
        if spread is not None and not any(_is_largest(chances[at], len(values)) for values, _ in flat):
            first, second = spread[0][:, at], spread[1][:, at]
            difference = _interval(second - first, confidence)
            if (first >= _LEAST).all():
                ratio = _interval(second / first, confidence)
        yield MeasureComparison(
            measure=name,
            quantile=quantile,
            before=was,
            after=now,
            before_count=len(flat[0][0]),
            after_count=len(flat[1][0]),
            ratio=now / was if was >= _LEAST else None,
            ratio_low=ratio[0],
            ratio_high=ratio[1],
            difference=now - was,
            difference_low=difference[0],
            difference_high=difference[1],
        )


def _is_largest(chance: float, count: int) -> bool:
    """Return true if the quantile is the largest value: no resample has a larger one, so no interval can be
    given."""
    return math.ceil(chance * count) == count


def _flat(sample: Sample, measure: str) -> tuple[Floats, NDArray[np.intp]]:
    """Return all values in order, and the index of each value's run."""
    import numpy as np

    by_run = sample.values[measure]
    chosen = [(number, by_run.get(run, ())) for number, run in enumerate(sample.runs)]
    values = np.concatenate([np.asarray(given, float) for _, given in chosen])
    owners = np.repeat([number for number, _ in chosen], [len(given) for _, given in chosen])
    order = np.argsort(values, kind="stable")
    return values[order], owners[order]


def _resampled(values: Floats, owners: Any, weights: Any, chances: Floats) -> Floats:
    """Return the quantiles of each resample, by the nearest rank; NaN if it has no value."""
    import numpy as np

    answers = np.full((len(weights), len(chances)), np.nan)
    step = max(1, _CELLS_AT_ONCE // len(values))
    for first in range(0, len(weights), step):
        ends = np.cumsum(weights[first : first + step][:, owners], axis=1)
        for row, end in enumerate(ends):
            if total := int(end[-1]):
                answers[first + row] = values[np.searchsorted(end, np.ceil(chances * total))]
    return answers


def _interval(values: Floats, confidence: float) -> tuple[float, float]:
    import numpy as np

    chances = (1 - confidence) / 2, (1 + confidence) / 2
    low, high = np.quantile(values, chances, method="inverted_cdf")
    return float(low), float(high)


COMPARISONS: Final = Declared(
    name="comparisons",
    title="Compared",
    summary=(
        "Each choice of parameters, compared with the first one of its scenario. Intervals are 95 %, from"
        " resampling whole runs."
    ),
    columns=(
        *CELL,
        Column("against", Unit.PARAMETERS, "The parameters that this is compared with."),
        Column("measure", Unit.TEXT, "The name of the measure."),
        Column("quantile", Unit.TEXT, "The median, or p90."),
        Column("before", Unit.MEASURED, "That quantile of the runs compared with."),
        Column("after", Unit.MEASURED, "That quantile of these runs."),
        Column("ratio", Unit.RATIO, "After by before; null if before is 0."),
        Column(
            "ratio_low", Unit.RATIO, "The lower bound of its interval; null if a side has too few values."
        ),
        Column(
            "ratio_high", Unit.RATIO, "The upper bound of its interval; null if a side has too few values."
        ),
    ),
)


def comparison_rows(cells: Mapping[tuple[str, str], Sample]) -> list[dict[str, Any]]:
    """Return the table of comparisons of the cells of each scenario: each with the first one."""
    rows = []
    first: dict[str, str] = {}
    for (scenario, parameters), sample in cells.items():
        base = first.setdefault(scenario, parameters)
        if base == parameters:
            continue
        labels = {"scenario": scenario, "parameters": parameters, "against": base}
        chosen = [column.name for column in COMPARISONS.columns if column.name not in labels]
        rows += [
            labels | {name: getattr(each, name) for name in chosen}
            for each in compare(cells[scenario, base], sample)
        ]
    return rows


T = TypeVar("T")


def nearest_rank(ordered: Sequence[T], share: float) -> T:
    """Return the smallest of the ordered values that a share of them, 0 to 1, does not exceed. There must be
    a value."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def share_interval(hits: int, tries: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson interval of a share that was hit `hits` times in `tries`; 0 to 1 without tries."""
    if not tries:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = hits / tries, z * z
    middle = share + square / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + square / (4 * tries * tries))
    whole = 1 + square / tries
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)
