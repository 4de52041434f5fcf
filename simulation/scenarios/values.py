"""Values of scenario files: durations, moments of the run, spans that the seed draws.

A duration is a number and a unit, or several, the largest first: "250ms", "40s", "1h30m". A moment is a
duration since the start, or a share of the run: "30%". A span is a duration that is drawn each time: one
value "5s", "1s..30s" with each equally likely, or a table, {median = "1ms", p99 = "20ms"} or {mean = "40s"}.
"""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

from fencepost.simulation.kernel import rng
from fencepost.simulation.scenarios.toml_text import shown

_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_PART = r"(\d+(?:\.\d+)?)\s*%s"
_DURATION = re.compile(r"\s*".join(rf"(?:{_PART % unit})?" for unit in _UNITS))
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LONGEST_US = 365 * 24 * 3_600_000_000


class _Value:
    """A value of a file: equal to another with the same fields. (msgspec would read a struct as a table.)"""

    __slots__: tuple[str, ...] = ()

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._fields()}"


class Duration(_Value):
    """A length of time in microseconds."""

    __slots__ = ("us",)

    def __init__(self, us: int) -> None:
        self.us = us

    expected: ClassVar[str] = 'a duration such as "250ms", "40s" or "1h"'

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Return the duration that a file holds.

        :raises ValueError: if the value is no duration.
        """
        match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not match[0]:
            raise ValueError(f"expected {cls.expected}, got {shown(value)}")
        parts = zip(match.groups(), _UNITS.values(), strict=True)
        us = sum(round(float(count) * unit) for count, unit in parts if count is not None)
        if us > _LONGEST_US:
            raise ValueError(f"expected a duration of at most a year, got {shown(value)}")
        return cls(us)

    @property
    def ms(self) -> int:
        """Duration in whole milliseconds."""
        return self.us // 1_000

    def __str__(self) -> str:
        for unit in ("h", "m", "s", "ms"):  # a day is shown in hours
            if self.us and self.us % _UNITS[unit] == 0:
                return f"{self.us // _UNITS[unit]}{unit}"
        return f"{self.us}us" if self.us else "0s"


class Moment(_Value):
    """A time of the run: a duration after its start, or a share of the run."""

    __slots__ = ("share", "us")

    def __init__(self, us: int = 0, share: float | None = None) -> None:
        self.us = us
        self.share = share

    expected: ClassVar[str] = 'a time since the start such as "90s", or a share of the run such as "30%"'

    @classmethod
    def parse(cls, value: object) -> Moment:
        """Return the moment that a file holds.

        :raises ValueError: if the value is no moment.
        """
        if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
            if float(match[1]) > 100:
                raise ValueError(f"expected a share of at most 100%, got {shown(value)}")
            return cls(share=float(match[1]) / 100)
        try:
            return cls(us=Duration.parse(value).us)
        except ValueError:
            raise ValueError(f"expected {cls.expected}, got {shown(value)}") from None

    def within(self, length_us: int) -> int:
        """Return the microseconds since the start of a run of that length."""
        return self.us if self.share is None else round(self.share * length_us)


class Span(_Value):
    """A distribution of durations, in microseconds."""

    __slots__ = ("high", "kind", "low")

    def __init__(self, kind: str, low: int, high: int = 0) -> None:
        self.kind = kind
        self.low = low
        self.high = high

    expected: ClassVar[str] = (
        'a duration ("5s"), a range ("1s..30s"), {median = "1ms", p99 = "20ms"} or {mean = "40s"}'
    )

    @classmethod
    def parse(cls, value: object) -> Span:
        """Return the span that a file holds.

        :raises ValueError: if the value is no span.
        """
        if isinstance(value, str) and ".." in value:
            low, _, high = value.partition("..")
            return cls._ordered("uniform", low, high, value)
        if isinstance(value, str):
            try:
                return cls("constant", Duration.parse(value).us)
            except ValueError:
                raise ValueError(f"expected {cls.expected}, got {shown(value)}") from None
        if isinstance(value, dict) and value.keys() == {"median", "p99"}:
            return cls._ordered("lognormal", value["median"], value["p99"], value)
        if isinstance(value, dict) and value.keys() == {"mean"}:
            return cls("exponential", Duration.parse(value["mean"]).us)
        raise ValueError(f"expected {cls.expected}, got {shown(value)}")

    @classmethod
    def _ordered(cls, kind: str, low: object, high: object, value: object) -> Span:
        first, last = Duration.parse(low).us, Duration.parse(high).us
        if first > last or (kind == "lognormal" and first == 0):
            raise ValueError(f"expected the smaller end first and above zero, got {shown(value)}")
        return cls(kind, first, last)

    @property
    def quantiles(self) -> rng.Quantiles:
        """1,024 equally likely values, in microseconds."""
        return _quantiles(self)

    @property
    def longest_us(self) -> int:
        """The longest duration that is ever drawn, in microseconds."""
        return self.quantiles[-1]


@functools.cache
def _quantiles(span: Span) -> rng.Quantiles:
    if span.kind == "constant":
        return rng.constant(span.low)
    if span.kind == "uniform":
        return rng.uniform(span.low, span.high)
    if span.kind == "lognormal":
        return rng.lognormal(span.low, span.high)
    return rng.exponential(span.low)


def decode_value(kind: type, value: Any) -> Any:
    """msgspec's hook for the types of this module."""
    if kind in (Duration, Moment, Span):
        return kind.parse(value)
    raise ValueError(f"{kind.__name__} is no value of a scenario")
