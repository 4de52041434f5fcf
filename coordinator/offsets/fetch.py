"""OffsetFetch: reads committed offsets, for a member that proves its epoch or for anyone without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    NO_OFFSET,
    OffsetAndMetadata,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import OffsetCommitValue
from fencepost.coordinator.protocol.topics import TopicsImage

FetchFence: TypeAlias = Callable[[OffsetFetchRequest], None]
"""Raises ProtocolError if the request's member is unknown, or its epoch is not the member's."""


def fetch(
    request: OffsetFetchRequest, store: OffsetStore, *, image: TopicsImage, fence: FetchFence | None
) -> Outcome:
    """Return the group's offsets. `fence` is None without a group, and for one that never had members.

    A partition without an offset gets -1, as does one whose topic was deleted and created again since. With
    `require_stable`, the reply names partitions whose offset may change with the end of a transaction
    (KIP-447).
    """
    if fence is not None:
        try:
            fence(request)
        except ProtocolError as refused:
            return Outcome(reply=OffsetFetchResponse(group_id=request.group_id, error_code=refused.code))
    if request.partitions is None:
        offsets = {
            partition: _position(value)
            for partition, value in store.committed(request.group_id)
            if _is_current(value, partition.topic, image)
        }
    else:
        offsets = {}
        for partition in request.partitions:
            value = store.get(request.group_id, partition)
            if value is None or not _is_current(value, partition.topic, image):
                offsets[partition] = NO_OFFSET
            else:
                offsets[partition] = _position(value)
    unstable: frozenset[TopicPartition] = frozenset()
    if request.require_stable and store.pending(request.group_id):
        unstable = frozenset(one for one in offsets if store.is_pending(request.group_id, one))
    return Outcome(reply=OffsetFetchResponse(group_id=request.group_id, offsets=offsets, unstable=unstable))


def _is_current(value: OffsetCommitValue, topic: str, image: TopicsImage) -> bool:
    """Return true unless the offset was committed for an earlier topic of this name, by its topic id."""
    now = image.by_name.get(topic)
    return now is None or value.topic_id is None or now.topic_id == value.topic_id


def _position(value: OffsetCommitValue) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata)
