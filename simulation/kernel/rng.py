"""Randomness of a run: named streams from one seed.

Each name has a stream of its own, so that one more draw in one place moves nothing elsewhere. Two kinds:
`Streams.random` gives a random.Random for plans and jitter, `Streams.samples` a few bytes of state that
draw from a distribution, for the latency of each of thousands of links.
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
_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator; its high bits are good enough for a table look-up
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1


class Streams:
    """All streams of one seed.

    :raises FencepostError: if the seed is no whole number, since only these are told and kept as they are.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise FencepostError(f"seed={seed!r}: expected a whole number")
        self.seed = seed

    def number(self, name: str, bits: int = 128) -> int:
        """One number for that name."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=bits // 8)
        return int.from_bytes(digest.digest(), "big")

    def random(self, name: str) -> random.Random:
        """A generator for that name."""
        return random.Random(self.number(name))

    def samples(self, name: str, quantiles: Quantiles) -> Samples:
        """Draws from a distribution for that name."""
        return Samples(self.number(name, 64), quantiles)

    def small_random(self, name: str) -> SmallRandom:
        """A small generator for that name."""
        return SmallRandom(self.number(name, 64))

    def uuid(self, name: str) -> TopicId:
        """A UUID of version 4 for that name, as Kafka prints it."""
        return topic_id_from_uuid(uuid.UUID(int=self.number(name), version=4))


class Samples:
    """Draws from a table of quantiles: a generator in one integer."""

    __slots__ = ("draw",)

    def __init__(self, state: int, quantiles: Quantiles) -> None:
        self.draw: Callable[[], int] = _draws(state, quantiles).__next__
        """Answers the next value. A run asks a million times: to resume a generator is the cheapest way."""


def _draws(state: int, quantiles: Quantiles) -> Iterator[int]:
    while True:
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        yield quantiles[state >> 54]


class SmallRandom:
    """What a host needs of random.Random, in a few bytes instead of 2,500: for jitter, not for plans."""

    __slots__ = ("_state",)

    def __init__(self, state: int) -> None:
        self._state = state

    def random(self) -> float:
        """A number from 0 up to, but not, 1."""
        self._state = state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return (state >> 11) / (1 << 53)

    def uniform(self, a: float, b: float) -> float:
        """A number between the two."""
        return a + (b - a) * self.random()


def quantiles(inverse: Callable[[float], float]) -> Quantiles:
    """The table of a distribution from its inverse cumulative function, rounded to whole numbers."""
    return tuple(max(0, round(inverse((i + 0.5) / _SIZE))) for i in range(_SIZE))


def constant(value: int) -> Quantiles:
    """Always that value."""
    return (value,) * _SIZE


def uniform(low: int, high: int) -> Quantiles:
    """Each value between the two equally likely."""
    return quantiles(lambda p: low + p * (high - low))


def lognormal(median: int, p99: int) -> Quantiles:
    """Most near the median, a long tail above; one in a hundred is beyond `p99`.

    :raises ValueError: unless 0 < median <= p99.
    """
    if not 0 < median <= p99:
        raise ValueError(f"a lognormal needs 0 < median <= p99, got median {median} and p99 {p99}")
    normal = NormalDist()
    sigma = math.log(p99 / median) / normal.inv_cdf(0.99)
    return quantiles(lambda p: median * math.exp(sigma * normal.inv_cdf(p)))


def exponential(mean: int) -> Quantiles:
    """Waiting times of something that comes at any moment with equal chance."""
    return quantiles(lambda p: -mean * math.log(1 - p))
