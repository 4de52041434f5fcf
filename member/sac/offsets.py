"""Where a consumer starts to read a stream (RabbitMQ's stream protocol, OffsetSpecification)."""

from __future__ import annotations

import enum
from typing import NamedTuple


class OffsetKind(enum.IntEnum):
    """How the place is given, by its number in the protocol."""

    NONE = 0
    """Nothing is said: the answer to a step-down, or the offset of the subscription."""
    FIRST = 1
    LAST = 2
    """The last chunk."""
    NEXT = 3
    """What is published from now on."""
    OFFSET = 4
    TIMESTAMP = 5


class OffsetSpecification(NamedTuple):
    """A place in a stream. `value` is an offset, or a timestamp in milliseconds; else 0."""

    kind: OffsetKind
    value: int = 0

    @classmethod
    def at(cls, offset: int) -> OffsetSpecification:
        """From this offset on: one behind the one that is stored.

        :raises ValueError: if it is negative.
        """
        if offset < 0:
            raise ValueError(f"an offset is at least 0, got {offset}")
        return cls(OffsetKind.OFFSET, offset)


NONE = OffsetSpecification(OffsetKind.NONE)
FIRST = OffsetSpecification(OffsetKind.FIRST)
LAST = OffsetSpecification(OffsetKind.LAST)
NEXT = OffsetSpecification(OffsetKind.NEXT)
