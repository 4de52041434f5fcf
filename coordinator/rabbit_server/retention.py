"""How long a stream keeps what it was given, and the other arguments that a stream is created with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.refusal import RabbitRequestRefused

_AGE: Final = re.compile(r"(\d{1,9})([YMDhms])", re.ASCII)
_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_LOCATORS: Final = frozenset({"client-local", "balanced", "least-leaders", "random"})
_BOUNDS: Final = {
    "max-length-bytes": (0, None),
    "stream-max-segment-size-bytes": (0, 3_000_000_000),
    "initial-cluster-size": (1, None),
    "stream-filter-size-bytes": (16, 255),
}
"""Lowest and highest number of each argument that is one."""
ARGUMENTS: Final = frozenset(_BOUNDS) | {"queue-leader-locator", "max-age"}
"""Those that mean something; others are passed over."""


class Retention(NamedTuple):
    """Bytes and age up to which chunks are kept; None is no limit. The newest chunk is always kept."""

    max_bytes: int | None = None
    max_age_ms: int | None = None

    @staticmethod
    def of(arguments: Mapping[str, str]) -> Retention:
        """What a stream's arguments say. Those that are unknown are passed over, as RabbitMQ does.

        :raises Refused: for a value that RabbitMQ would refuse.
        """
        numbers = {name: _number(name, arguments[name]) for name in _BOUNDS if name in arguments}
        locator = arguments.get("queue-leader-locator", "balanced")
        if locator not in _LOCATORS:
            raise _invalid("queue-leader-locator", locator, f"one of {', '.join(sorted(_LOCATORS))}")
        age = arguments.get("max-age")
        return Retention(numbers.get("max-length-bytes"), None if age is None else _age_ms(age))

    def exceeded(self, size: int, age_ms: int) -> bool:
        """Whether the oldest of so many bytes has to go."""
        return (self.max_bytes is not None and size > self.max_bytes) or (
            self.max_age_ms is not None and age_ms > self.max_age_ms
        )


def _number(name: str, value: str) -> int:
    low, high = _BOUNDS[name]
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise _invalid(name, value, "a whole number")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise _invalid(name, value, f"{low} to {high}" if high else f"{low} or more")
    return number


def _age_ms(value: str) -> int:
    match = _AGE.fullmatch(value)
    if match is None:
        raise _invalid("max-age", value, "a number and one of Y, M, D, h, m, s")
    return int(match[1]) * _SECONDS[match[2]] * 1000


def _invalid(name: str, value: str, expected: str) -> RabbitRequestRefused:
    return RabbitRequestRefused(ResponseCode.PRECONDITION_FAILED, f"{name}={value!r}: expected {expected}")
