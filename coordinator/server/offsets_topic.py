"""`__consumer_offsets`: the journals of the group coordinators as a topic that any consumer can read.

A partition has no log before its first read. Then its log is written from the journal, and grows with it.
Offsets in open transactions are left out: they come as plain records once the transaction is committed.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.codec.group_records import MalformedRecord, encode_record
from fencepost.coordinator.codec.record_writing import BatchWriter
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.ids import TopicId, topic_id_from_uuid
from fencepost.coordinator.protocol.records import PendingOffsetCommitKey, Record, RecordKey
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic
from fencepost.coordinator.server.leaders import Leadership, running
from fencepost.coordinator.server.logs import MAX_BATCH_BYTES, PartitionLog

if TYPE_CHECKING:
    from fencepost.coordinator.server.cluster import KafkaCluster
    from fencepost.coordinator.server.groups import GroupCoordinators, KeptJournal, Shard

log = structlog.get_logger(__name__)

_REMEMBERED_GROUPS: Final = 4_096
_Dated: TypeAlias = tuple[int, Record]
"""A record after the time of its append in ms, 0 if that is not known."""
_Batch: TypeAlias = tuple[int, Iterable[Record]]


class OffsetsTopic:
    """The topic of a cluster, in which each partition is led by the coordinator of its groups."""

    def __init__(self, cluster: KafkaCluster, groups: GroupCoordinators) -> None:
        config = groups.config
        self._cluster, self._groups = cluster, groups
        self.topic = Topic(
            topic_id=_id_in(cluster.cluster_id),
            name=OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            replicas=min(config.offsets_topic_replication_factor, len(groups.node_ids)),
        )
        self.configs: Mapping[str, str] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        """The settings that Kafka creates it with."""
        self._largest = config.offsets_topic_segment_bytes
        self._logs: dict[int, PartitionLog] = {}
        self._limits: dict[int, int] = {}
        """Sizes in bytes at which logs are compacted next."""
        self._unread: dict[int, dict[int, list[_Dated]]] = {}
        """By shard, the records of partitions that are not read yet. It is kept until there are more."""
        self._partition_of = lru_cache(_REMEMBERED_GROUPS)(
            lambda group_id: offsets_partition(group_id, self.topic.partitions)
        )
        groups.on_leader = self._led

    def leadership(self, partition: int, replicas: tuple[int, ...]) -> Leadership:
        """Return the leader, its epoch and the replicas of a partition.

        Its replicas may all be stopped: unlike Kafka's coordinators, ours then move on to another broker.
        """
        shard = self._shard_of(partition)
        if shard.node_id not in replicas:
            replicas = (shard.node_id, *replicas[1:])
        return Leadership(replicas, running(replicas, self._cluster.stopped), shard.node_id, shard.epoch)

    def fill(self, partition: int, empty: PartitionLog) -> None:
        """Write the log of a partition at its first read, and keep it up to date from now on."""
        shard = self._shard_of(partition)
        if not isinstance(shard.journal, _ReadJournal):
            shard.journal = _ReadJournal(shard.journal, self)
            if shard.host is not None:
                shard.host.journal = shard.journal
        if shard.number not in self._unread:
            self._unread[shard.number] = self._sorted(_dated(shard.journal))
        self._write(empty, self._unread[shard.number].pop(partition, ()))
        self._logs[partition] = empty

    def append(self, records: tuple[Record, ...]) -> None:
        """Append records that a journal has taken to the logs that are read."""
        for partition, own in self._sorted([(self._groups.now_ms(), records)]).items():
            found = self._logs.get(partition)
            if found is None:
                self._unread.pop(partition % len(self._groups.shards), None)
                continue
            self._write(found, own)
            if found.size > self._limits.get(partition, self._largest):
                self._compact(partition, found)

    def _sorted(self, batches: Iterable[_Batch]) -> dict[int, list[_Dated]]:
        """Return the records of batches by partition."""
        found: dict[int, list[_Dated]] = {}
        for time_ms, records in batches:
            for record in records:
                found.setdefault(self._partition_of(record.key.group_id), []).append((time_ms, record))
        return found

    def _shard_of(self, partition: int) -> Shard:
        return self._groups.shards[partition % len(self._groups.shards)]

    def _led(self, shard: Shard) -> None:
        """Let the logs of a shard have its leader epoch, and clients see the leader."""
        for partition, each in self._logs.items():
            if self._shard_of(partition) is shard:
                each.lead(shard.epoch)
        self._cluster.offsets_led()

    def _write(self, target: PartitionLog, records: Iterable[_Dated]) -> None:
        """Append records as one batch, or several if they are large."""
        now_ms = self._groups.now_ms()
        writer = BatchWriter(MAX_BATCH_BYTES)
        for time_ms, record in records:
            if type(record.key) is PendingOffsetCommitKey:
                continue
            try:
                key, value = encode_record(record)
            except (MalformedRecord, struct.error) as error:
                log.warning("record_not_readable", group_id=record.key.group_id, reason=str(error))
                continue
            if not writer.add(time_ms or now_ms, key, value, ()):
                target.append_own(writer.batch())
                writer = BatchWriter(MAX_BATCH_BYTES)
                writer.add(time_ms or now_ms, key, value, ())
        if writer:
            target.append_own(writer.batch())

    def _compact(self, partition: int, large: PartitionLog) -> None:
        """Replace the records of a large log by the newest ones of their keys, at new offsets.

        Kafka's cleaner keeps them at their offsets. Those who have read them read them again.
        """
        newest: dict[RecordKey, _Dated] = {}
        for dated in self._sorted(_dated(self._shard_of(partition).journal)).get(partition, ()):
            newest.pop(dated[1].key, None)
            if dated[1].value is not None:
                newest[dated[1].key] = dated
        large.clear()
        self._write(large, newest.values())
        self._limits[partition] = max(self._largest, 2 * large.size)


class _ReadJournal:
    """The journal of a shard with partitions that are read."""

    def __init__(self, journal: KeptJournal, topic: OffsetsTopic) -> None:
        self.kept = journal
        self._topic = topic

    def append(self, records: tuple[Record, ...]) -> None:
        """Keep one batch, and let consumers read it."""
        self.kept.append(records)
        self._topic.append(records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.kept)


def _dated(journal: KeptJournal) -> Iterable[_Batch]:
    """Return a journal's batches with their times in ms. Only one in memory knows them; others have 0."""
    if isinstance(journal, _ReadJournal):
        return _dated(journal.kept)
    return journal.dated() if isinstance(journal, MemoryJournal) else [(0, journal)]


def _id_in(cluster_id: str) -> TopicId:
    """Return the topic's id, which a cluster has forever: it is drawn from no random numbers."""
    names = (f"{OFFSETS_TOPIC} {cluster_id} {number}" for number in itertools.count())
    ids = (topic_id_from_uuid(uuid.uuid5(uuid.NAMESPACE_OID, name)) for name in names)
    return next(each for each in ids if not each.startswith("-"))
