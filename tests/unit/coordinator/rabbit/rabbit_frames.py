"""Parts of frames that tests write often."""

from __future__ import annotations

from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.codes import OffsetType
from fencepost.coordinator.rabbit_codec.entries import message
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification

LAST = WireOffsetSpecification(OffsetType.LAST)


def at(offset: int) -> WireOffsetSpecification:
    return WireOffsetSpecification(OffsetType.OFFSET, offset)


def since(time_ms: int) -> WireOffsetSpecification:
    return WireOffsetSpecification(OffsetType.TIMESTAMP, time_ms)


def entries(*ids: int) -> list[ChunkEntry]:
    return [ChunkEntry(number, message(b"%d" % number)) for number in ids]
