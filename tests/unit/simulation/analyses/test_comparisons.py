"""Comparisons of two sets of runs: right on average, honest about doubt, the same every time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulation.analyses.comparison import (
    MeasureComparison,
    Sample,
    compare,
    comparison_rows,
)


def sample(*runs: Sequence[float], measure: str = "rebalance", first: int = 0) -> Sample:
    names = tuple(f"{number:06d}" for number in range(first, first + len(runs)))
    return Sample(names, {measure: dict(zip(names, runs, strict=True))})


def median(before: Sample, after: Sample, **options: float) -> MeasureComparison:
    found = compare(before, after, **options)  # type: ignore[arg-type]
    return next(each for each in found if each.quantile == "median")


def test_values_are_those_of_all_runs_together() -> None:
    found = compare(sample([1.0, 2.0], [3.0], [10.0]), sample([4.0], [], [6.0]))
    assert [each.quantile for each in found] == ["median", "p90"]
    assert (found[0].before, found[0].after, found[0].before_count, found[0].after_count) == (2.0, 4.0, 4, 2)
    assert found[1].before == 10.0
    assert found[0].ratio == 2.0
    assert found[0].difference == 2.0


def test_the_same_runs_do_not_differ() -> None:
    runs = sample(*([float(value)] for value in range(1, 21)))
    same = median(runs, runs)
    assert (same.ratio, same.ratio_low, same.ratio_high) == (1.0, 1.0, 1.0), (
        "the same seeds are drawn for both"
    )
    assert same.differs is False


def test_other_seeds_are_drawn_apart() -> None:
    values = [[float(value)] for value in range(1, 21)]
    other = median(sample(*values), sample(*values, first=100))
    assert other.ratio_low is not None
    assert other.ratio_high is not None
    assert other.ratio_low < 1.0 < other.ratio_high


def test_a_clear_difference_is_seen() -> None:
    source = random.Random(1)
    before = [[source.uniform(4, 6) for _ in range(5)] for _ in range(30)]
    after = [[2 * source.uniform(4, 6) for _ in range(5)] for _ in range(30)]
    found = median(sample(*before), sample(*after))
    assert found.ratio == pytest.approx(2, rel=0.1)
    assert found.ratio_low is not None
    assert found.ratio_low > 1.8
    assert found.differs is True


def test_events_of_one_run_are_not_taken_for_independent_ones() -> None:
    source = random.Random(2)
    levels = [source.uniform(1, 9) for _ in range(20)]
    once = median(sample(*([level] for level in levels)), sample(*([5.0] for _ in levels), first=50))
    often = median(sample(*([level] * 40 for level in levels)), sample(*([5.0] for _ in levels), first=50))
    for interval in (once, often):
        assert interval.difference_low is not None
        assert interval.difference_high is not None
    widths = [(each.difference_high or 0) - (each.difference_low or 0) for each in (once, often)]
    assert widths[1] == pytest.approx(widths[0], rel=0.3), "forty copies of each value say nothing new"
    assert widths[0] > 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    source = random.Random(3)

    def drawn(scale: float) -> list[list[float]]:
        return [
            [scale * level * source.lognormvariate(0, 0.3) for _ in range(4)]
            for level in (source.lognormvariate(0, 0.5) for _ in range(30))
        ]

    held = 0
    for _ in range(100):
        found = median(sample(*drawn(1.0)), sample(*drawn(1.5), first=100), resamples=200)
        assert found.ratio_low is not None
        assert found.ratio_high is not None
        held += found.ratio_low <= 1.5 <= found.ratio_high
    assert 88 <= held <= 100


def test_one_run_has_no_interval_and_nothing_no_comparison() -> None:
    single = median(sample([1.0, 2.0]), sample([2.0], [3.0]))
    assert (single.ratio_low, single.difference_low, single.differs) == (None, None, None)
    assert compare(sample([], []), sample([1.0], [2.0])) == []
    assert compare(sample([1.0], measure="rebalance"), sample([1.0], measure="downtime")) == []


def test_five_runs_cannot_tell_a_difference_from_chance() -> None:
    """Of five fair coins all show the same side in one of sixteen throws."""
    found = median(sample(*([value] for value in (1, 2, 3, 4, 5))), sample(*([11.0] for _ in range(5))))
    assert (found.ratio_low, found.difference_low, found.differs) == (None, None, None)
    found = median(sample(*([value] for value in (1, 2, 3, 4, 5, 6))), sample(*([11.0] for _ in range(6))))
    assert found.differs


def test_runs_without_a_value_make_nothing_surer() -> None:
    """One value of each side, in twenty runs, is one value: every resample that has it has it alone."""
    runs: list[list[float]] = [[]] * 19
    found = median(sample([5.0], *runs), sample([6.0], *runs))
    assert (found.ratio, found.ratio_low, found.difference_low, found.differs) == (1.2, None, None, None)


def test_the_largest_of_few_values_has_no_interval() -> None:
    """Resampled, the largest of nine would seem to differ without a reason, in more than a tenth."""
    for count, told in ((9, False), (10, True)):
        values = [[float(value)] for value in range(count)]
        middle, p90 = compare(sample(*values), sample(*values, first=100))
        assert middle.difference_low is not None
        assert (p90.difference_low is not None) is told
        assert (p90.differs is not None) is told


def test_nothing_is_divided_by_zero() -> None:
    found = median(sample(*([0.0] for _ in range(6))), sample([1.0], [1.5], [2.0], [2.0], [2.5], [3.0]))
    assert (found.ratio, found.ratio_low) == (None, None)
    assert found.difference == 2.0
    assert found.difference_low is not None


def test_each_cell_is_compared_with_the_first_of_its_scenario() -> None:
    cells = {
        ("a", '{"members": "3"}'): sample([1.0], [2.0]),
        ("a", '{"members": "5"}'): sample([2.0], [4.0]),
        ("b", "{}"): sample([1.0]),
    }
    rows = comparison_rows(cells)
    assert [(row["parameters"], row["against"], row["quantile"]) for row in rows] == [
        ('{"members": "5"}', '{"members": "3"}', "median"),
        ('{"members": "5"}', '{"members": "3"}', "p90"),
    ]
    assert rows[0]["ratio"] == 2.0


runs = st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=4), min_size=6, max_size=9)


@given(before=runs, after=runs)
def test_the_same_input_gives_the_same_answer_within_what_was_seen(
    before: list[list[float]], after: list[list[float]]
) -> None:
    first = compare(sample(*before), sample(*after), resamples=50)
    assert first == compare(sample(*before), sample(*after), resamples=50)
    lowest, highest = min(map(min, before)), max(map(max, before))
    for each in first:
        assert lowest <= each.before <= highest
        if each.quantile == "p90" and min(each.before_count, each.after_count) < 10:
            assert (each.difference_low, each.difference_high) == (None, None)
            continue
        assert each.difference_low is not None
        assert each.difference_high is not None
        assert each.difference_low <= each.difference_high
