"""The effect of time and of deleted topics on committed offsets."""

from __future__ import annotations

from fencepost.coordinator.offsets.delete import IsSubscribed
from fencepost.coordinator.offsets.store import OffsetStore, tombstone
from fencepost.coordinator.offsets.transactions import pending_tombstone
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.records import OffsetCommitValue, Record
from fencepost.coordinator.protocol.topics import TopicsImage


def expired(
    store: OffsetStore,
    group_id: str,
    *,
    is_subscribed: IsSubscribed,
    retention_ms: int,
    now_ms: int,
    since_ms: int | None = None,
) -> tuple[Record, ...]:
    """Return the tombstones of one group's expired offsets.

    An offset expires if no member subscribes to its topic and it is older than the retention time. In a group
    without members no topic has a subscriber. The age counts from the commit, or from `since_ms`: offsets of
    a classic group age from the time when it became empty, those of a consumer group do not. An offset with
    its own expiry time expires at that time.
    """
    return tuple(
        tombstone(group_id, TopicPartition(topic, partition))
        for topic, partitions in sorted(store.topics(group_id).items())
        if not is_subscribed(topic)
        for partition, value in sorted(partitions.items())
        if not store.is_pending(group_id, TopicPartition(topic, partition))
        if _due(value, since_ms, retention_ms, now_ms)
    )


def of_deleted_topics(store: OffsetStore, before: TopicsImage, after: TopicsImage) -> tuple[Record, ...]:
    """Return the tombstones, over all groups, of offsets whose topics are in the older image only.

    Those in open transactions go too. A topic that was created again has another id. Offsets without an id go
    with the topic of their name.
    """
    deleted = {
        topic.name: topic.topic_id for topic in before.by_id.values() if topic.topic_id not in after.by_id
    }
    if not deleted:
        return ()

    def is_gone(topic: str, topic_id: TopicId | None) -> bool:
        return topic in deleted and topic_id in {None, deleted[topic]}

    records: list[Record] = []
    for group_id in store.group_ids:
        records.extend(
            tombstone(group_id, partition)
            for partition, value in store.committed(group_id)
            if is_gone(partition.topic, value.topic_id)
        )
        records.extend(
            pending_tombstone(group_id, producer_id, partition)
            for producer_id, offsets in sorted(store.pending(group_id).items())
            for partition, pending in sorted(offsets.items())
            if is_gone(partition.topic, pending.topic_id)
        )
    return tuple(records)


def _due(value: OffsetCommitValue, since_ms: int | None, retention_ms: int, now_ms: int) -> bool:
    if value.expire_timestamp_ms >= 0:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - (value.commit_timestamp_ms if since_ms is None else since_ms) >= retention_ms
