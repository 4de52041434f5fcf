"""OffsetDelete: forgets committed offsets, except those of topics that members still subscribe to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from fencepost.coordinator.offsets.store import OffsetStore, tombstone
from fencepost.coordinator.offsets.transactions import pending_tombstone
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest, OffsetDeleteResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage

IsSubscribed: TypeAlias = Callable[[str], bool]
"""True if any member of the group subscribes to the topic of that name, by name or by expression."""


def delete(
    request: OffsetDeleteRequest,
    store: OffsetStore,
    *,
    image: TopicsImage,
    group_exists: bool,
    is_subscribed: IsSubscribed,
) -> Outcome:
    """Return the tombstones and the reply. A partition that exists and has no offset is deleted all the
    same."""
    if not group_exists and request.group_id not in store:
        return Outcome(reply=OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
    errors = {}
    records: list[Record] = []
    for partition in dict.fromkeys(request.partitions):
        topic = image.by_name.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif is_subscribed(partition.topic):
            errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            errors[partition] = ErrorCode.NONE
            records += _tombstones(store, request.group_id, partition)
    return Outcome(records=tuple(records), reply=OffsetDeleteResponse(errors=errors))


def _tombstones(store: OffsetStore, group_id: str, partition: TopicPartition) -> Iterator[Record]:
    """Yield tombstones of the partition's committed offset, and of its offsets in open transactions."""
    if store.get(group_id, partition) is not None:
        yield tombstone(group_id, partition)
    for producer_id, partitions in sorted(store.pending(group_id).items()):
        if partition in partitions:
            yield pending_tombstone(group_id, producer_id, partition)
