"""Percentiles by the nearest rank, as in Spark's `percentile_disc`: each of them is one of the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def nearest_rank(ordered: Sequence[T], share: float) -> T:
    """The least of the ordered values, one or more, that this share of them, 0 to 1, does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
