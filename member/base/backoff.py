"""The delay before a retry."""

from __future__ import annotations

import functools
import random
from typing import Self

from fencepost.member.base.config import ConsumerConfig

JITTER = 0.2


class Backoff:
    """Waits that double from `initial_ms` to `max_ms`, each spread by a fifth to either side (KIP-580).

    No wait is shorter than 1 ms or longer than `max_ms` (KAFKA-19813).
    """

    __slots__ = ("_attempts", "_initial_ms", "_max_ms", "_rng")

    def __init__(self, initial_ms: int, max_ms: int, rng: random.Random) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._rng = rng
        self._attempts = 0

    @classmethod
    def of(cls, config: ConsumerConfig, rng: random.Random) -> Self:
        """Make a back-off with the limits of a member's configuration."""
        return cls(config.retry_backoff_ms, config.retry_backoff_max_ms, rng)

    def next_ms(self) -> int:
        """Return the wait before the next attempt."""
        term = min(self._initial_ms << min(self._attempts, 30), self._max_ms)
        self._attempts += 1
        spread = self._rng.uniform(1 - JITTER, 1 + JITTER)
        return max(1, min(self._max_ms, round(term * spread)))

    def reset(self) -> None:
        """Note a successful attempt: the next wait is the initial one again."""
        self._attempts = 0


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two times; None stands for never."""
    if one is None or other is None:
        return one if other is None else other
    return one if one < other else other


def earliest(*moments: int | None) -> int | None:
    """Return the smallest of the times; None stands for never."""
    return functools.reduce(earlier, moments, None)
