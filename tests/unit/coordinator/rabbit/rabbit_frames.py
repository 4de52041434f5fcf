"""Parts of frames that tests write often."""

from __future__ import annotations

from fencepost.coordinator.rabbit_codec.base import Entry
from fencepost.coordinator.rabbit_codec.codes import OffsetType
from fencepost.coordinator.rabbit_codec.entries import message
from fencepost.coordinator.rabbit_codec.fields import OffsetSpecification

LAST = OffsetSpecification(OffsetType.LAST)


def at(offset: int) -> OffsetSpecification:
    return OffsetSpecification(OffsetType.OFFSET, offset)


def since(time_ms: int) -> OffsetSpecification:
    return OffsetSpecification(OffsetType.TIMESTAMP, time_ms)


def entries(*ids: int) -> list[Entry]:
    return [Entry(number, message(b"%d" % number)) for number in ids]
