"""Randomness of a run: named sequences of draws from one seed.

Each name has a sequence of its own, so that one more draw in one place changes nothing elsewhere. There are
two kinds. `Draws.random` returns a random.Random, for plans and jitter. `Draws.samples` draws from a
distribution with a few bytes of state, for the latency of each of thousands of links.
"""

from __future__ import annotations

import hashlib
import math
import random
import uuid
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import TypeAlias

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicId, topic_id_from_uuid

Quantiles: TypeAlias = tuple[int, ...]
"""A distribution as 1,024 equally likely values."""

_SIZE = 1024
_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator; its high bits are good enough for a table lookup
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1


class Draws:
    """The draws of one seed.

    :raises FencepostError: if the seed is not a whole number, because only these are printed and stored
        exactly.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise FencepostError(f"seed={seed!r}: expected a whole number")
        self.seed = seed

    def number(self, name: str, bits: int = 128) -> int:
        """Return a number for that name."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=bits // 8)
        return int.from_bytes(digest.digest(), "big")

    def random(self, name: str) -> random.Random:
        """Return a generator for that name."""
        return random.Random(self.number(name))

    def samples(self, name: str, quantiles: Quantiles) -> Samples:
        """Return draws from a distribution for that name."""
        return Samples(self.number(name, 64), quantiles)

    def small_random(self, name: str) -> SmallRandom:
        """Return a small generator for that name."""
        return SmallRandom(self.number(name, 64))

    def uuid(self, name: str) -> TopicId:
        """Return a UUID of version 4 for that name, as Kafka prints it."""
        return topic_id_from_uuid(uuid.UUID(int=self.number(name), version=4))


class Samples:
    """Draws from a table of quantiles: a generator in one integer."""

    __slots__ = ("draw",)

    def __init__(self, state: int, quantiles: Quantiles) -> None:
        self.draw: Callable[[], int] = _draws(state, quantiles).__next__
        """Returns the next value. A run calls it a million times, and resuming a generator is the cheapest
        way."""


def _draws(state: int, quantiles: Quantiles) -> Iterator[int]:
    while True:
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        yield quantiles[state >> 54]


class SmallRandom:
    """A replacement for random.Random that takes a few bytes instead of 2,500: for a host's jitter, not for
    plans."""

    __slots__ = ("_state",)

    def __init__(self, state: int) -> None:
        self._state = state

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        self._state = state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return (state >> 11) / (1 << 53)

    def uniform(self, a: float, b: float) -> float:
        """Return a number between the two."""
        return a + (b - a) * self.random()


def quantiles(inverse: Callable[[float], float]) -> Quantiles:
    """Return the table of a distribution from its inverse cumulative function, rounded to whole numbers."""
    return tuple(max(0, round(inverse((i + 0.5) / _SIZE))) for i in range(_SIZE))


def constant(value: int) -> Quantiles:
    """Return the distribution of a constant."""
    return (value,) * _SIZE


def uniform(low: int, high: int) -> Quantiles:
    """Return the uniform distribution between the two."""
    return quantiles(lambda p: low + p * (high - low))


def lognormal(median: int, p99: int) -> Quantiles:
    """Return a lognormal distribution: most values are near the median, and one in a hundred exceeds `p99`.

    :raises ValueError: unless 0 < median <= p99.
    """
    if not 0 < median <= p99:
        raise ValueError(f"a lognormal needs 0 < median <= p99, got median {median} and p99 {p99}")
    normal = NormalDist()
    sigma = math.log(p99 / median) / normal.inv_cdf(0.99)
    return quantiles(lambda p: median * math.exp(sigma * normal.inv_cdf(p)))


def exponential(mean: int) -> Quantiles:
    """Return the distribution of waiting times for events that are equally likely at any moment."""
    return quantiles(lambda p: -mean * math.log(1 - p))
