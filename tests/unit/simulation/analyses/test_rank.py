"""Percentiles by the nearest rank: those that numpy and Spark call discrete."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulation.analyses.comparison import nearest_rank


@given(st.lists(st.integers(), min_size=1, max_size=300), st.sampled_from([0.0, 0.025, 0.5, 0.9, 0.99, 1.0]))
def test_it_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, share)
    assert found == ordered[int(np.quantile(range(len(ordered)), share, method="inverted_cdf"))]
    assert sum(value <= found for value in ordered) >= share * len(ordered)
