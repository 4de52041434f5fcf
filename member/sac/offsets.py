"""The start offset of a consumer in a stream (RabbitMQ's stream protocol, OffsetSpecification)."""

from __future__ import annotations

import enum
from typing import NamedTuple


class OffsetKind(enum.IntEnum):
    """The kinds of start offset, by their numbers in the protocol."""

    NONE = 0
    """No offset: the response to a step-down, or the offset of the subscription."""
    FIRST = 1
    LAST = 2
    """The last chunk."""
    NEXT = 3
    """The messages that are published from now on."""
    OFFSET = 4
    TIMESTAMP = 5


class OffsetSpecification(NamedTuple):
    """A place in a stream. `value` is an offset, or a timestamp in milliseconds; else 0."""

    kind: OffsetKind
    value: int = 0

    @classmethod
    def at(cls, offset: int) -> OffsetSpecification:
        """Return the place at this offset; to continue, pass the stored offset plus one.

        :raises ValueError: if it is negative.
        """
        if offset < 0:
            raise ValueError(f"an offset is at least 0, got {offset}")
        return cls(OffsetKind.OFFSET, offset)


NONE = OffsetSpecification(OffsetKind.NONE)
FIRST = OffsetSpecification(OffsetKind.FIRST)
LAST = OffsetSpecification(OffsetKind.LAST)
NEXT = OffsetSpecification(OffsetKind.NEXT)
