"""Records of `__consumer_offsets` as Kafka's bytes, in the versions that Kafka 4.3.1 writes.

The other direction is `group_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.codec import group_record_schemas as s
from fencepost.coordinator.codec import streams_records
from fencepost.coordinator.codec.writer import written
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import Partitions, TopicId
from fencepost.coordinator.protocol.records import Record

_INT16: Final = struct.Struct(">h")
_INT16_MAX: Final = 2**15 - 1


class MalformedRecord(FencepostError):
    """Bytes that announce a known record and do not hold one; or a record that Kafka has no bytes for."""


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """The record's key and value; the value is None for a tombstone.

    An offset that expires at a time of its own is written as Kafka does it, in version 1, which has neither
    leader epoch nor topic id.

    :raises MalformedRecord: if a text of the key is longer than 32,767 bytes.
    """
    record_type, form = _written_key(record.key)
    if any(isinstance(text, str) and len(text.encode()) > _INT16_MAX for text in vars(form).values()):
        raise MalformedRecord(f"a text of {record.key} is longer than a key can hold")
    key = _INT16.pack(record_type) + _bytes_of(form)
    return key, None if record.value is None else _written_value(record.value)


def _written_key(key: r.RecordKey) -> tuple[int, Any]:
    match key:
        case r.OffsetCommitKey():
            return 1, s.OffsetCommitKeySchema(group=key.group_id, topic=key.topic, partition=key.partition)
        case r.ConsumerGroupMetadataKey():
            return 3, s.GroupKey(group=key.group_id)
        case r.GroupMetadataKey():
            return 2, s.GroupKey(group=key.group_id)
        case r.ConsumerGroupTargetAssignmentMetadataKey():
            return 6, s.GroupKey(group=key.group_id)
        case r.ConsumerGroupRegularExpressionKey():
            return 16, s.RegularExpressionKey(group=key.group_id, regular_expression=key.regular_expression)
        case r.ConsumerGroupMemberMetadataKey():
            return 5, s.MemberKey(group=key.group_id, member=key.member_id)
        case r.ConsumerGroupTargetAssignmentMemberKey():
            return 7, s.MemberKey(group=key.group_id, member=key.member_id)
        case r.ConsumerGroupCurrentMemberAssignmentKey():
            return 8, s.MemberKey(group=key.group_id, member=key.member_id)
        case r.PendingOffsetCommitKey():
            raise MalformedRecord(f"{key}: Kafka writes it as an offset, in a batch of its transaction")
        case _:
            return streams_records.written_key(key)


def _versioned(version: int, form: Any) -> bytes:
    return _INT16.pack(version) + _bytes_of(form)


def _bytes_of(form: Any) -> bytes:
    data: bytes = written(form)
    return data


def _written_value(value: r.RecordValue) -> bytes:
    match value:
        case r.OffsetCommitValue():
            return _written_offset(value)
        case r.GroupMetadataValue():
            return _written_classic_group(value)
        case _:
            return _versioned(0, _written_form(value))


def _written_form(value: r.RecordValue) -> Any:
    match value:
        case r.ConsumerGroupMetadataValue():
            return s.GroupMetadataValueSchema(epoch=value.epoch, metadata_hash=value.metadata_hash)
        case r.ConsumerGroupMemberMetadataValue():
            return _member(value)
        case r.ConsumerGroupTargetAssignmentMetadataValue():
            return s.TargetMetadataValue(
                assignment_epoch=value.assignment_epoch, assignment_timestamp=value.assignment_timestamp_ms
            )
        case r.ConsumerGroupTargetAssignmentMemberValue():
            return s.TargetMemberValue(
                topic_partitions=tuple(
                    s.TopicPartitionsSchema(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in value.partitions.items()
                )
            )
        case r.ConsumerGroupCurrentMemberAssignmentValue():
            return s.CurrentAssignmentValue(
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                state=value.state,
                assigned_partitions=_since(value.assigned, value.assignment_epochs),
                partitions_pending_revocation=_since(value.pending_revocation, value.assignment_epochs),
            )
        case r.ConsumerGroupRegularExpressionValue():
            return s.RegularExpressionValue(
                topics=value.topics, version=value.image_version, timestamp=value.timestamp_ms
            )
        case r.OffsetCommitValue() | r.GroupMetadataValue() | r.PendingOffsetCommitValue():
            raise TypeError(f"no form of its own: {type(value).__name__}")
        case _:
            return streams_records.written_form(value)


def _written_offset(value: r.OffsetCommitValue) -> bytes:
    common: dict[str, Any] = {
        "offset": value.offset,
        "metadata": value.metadata,
        "commit_timestamp": value.commit_timestamp_ms,
    }
    if value.expire_timestamp_ms != -1:
        return _versioned(1, s.OffsetCommitValue1(**common, expire_timestamp=value.expire_timestamp_ms))
    form = s.OffsetCommitValue4(**common, leader_epoch=value.leader_epoch, topic_id=value.topic_id)
    return _versioned(4, form)


def _written_classic_group(value: r.GroupMetadataValue) -> bytes:
    form = s.ClassicGroupValue3(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        current_state_timestamp=value.current_state_timestamp_ms,
        members=tuple(
            s.ClassicMember3(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in value.members
        ),
    )
    return _versioned(3, form)


def _member(value: r.ConsumerGroupMemberMetadataValue) -> s.MemberMetadataValue:
    classic = value.classic
    fields = msgspec.structs.asdict(value)
    fields["classic"] = classic and s.ClassicMemberMetadataSchema(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=tuple(
            s.ClassicProtocolSchema(name=name, metadata=metadata)
            for name, metadata in classic.supported_protocols
        ),
    )
    return s.MemberMetadataValue(**fields)


def _since(
    partitions: Partitions, epochs: Mapping[TopicId, Mapping[int, int]]
) -> tuple[s.TopicPartitionsSince, ...]:
    """Epochs go with a topic if each of its partitions has one: there are as many, or none at all."""
    found = []
    for topic_id, numbers in partitions.items():
        known = epochs.get(topic_id, {})
        since = tuple(known[number] for number in numbers) if known.keys() >= {*numbers} else None
        found.append(s.TopicPartitionsSince(topic_id=topic_id, partitions=numbers, assignment_epochs=since))
    return tuple(found)
