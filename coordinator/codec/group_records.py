"""Records of `__consumer_offsets` from and to Kafka's bytes (KIP-848, Records; Kafka 4.3.1's schemas).

A key is its record type as int16 and the key's fields, a value its version as int16 and the value's fields;
no value is a tombstone. What this version does not know, and records of other kinds of groups, come back as
they are: a log may be newer than its reader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.codec import group_record_schemas as s
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import Reader, entity_reader, read_unsigned_varint
from fencepost.coordinator.codec.schema import uuid_of, write
from fencepost.coordinator.codec.writer import unsigned_varint
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import Partitions, TopicId, partitions_of
from fencepost.coordinator.protocol.records import Record

_INT16: Final = struct.Struct(">h")
_INT16_MAX: Final = 2**15 - 1
_NO_TOPIC: Final[TopicId] = "A" * 22
"""The zero UUID, which no topic has."""

_NEWEST_TYPE: Final = 23
"""The last of the streams groups' types, in Kafka 4.3: StreamsGroupTopology and its like."""


class MalformedRecord(FencepostError):
    """Bytes that announce a known record and do not hold one; or a record that Kafka has no bytes for."""


class OpaqueRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of another kind of group, or of a version that is not known here, as it was read."""

    record_type: int
    version: int | None
    """The value's; None for a tombstone."""
    group_id: str | None
    """None where the key's form is not known either."""
    key: bytes
    value: bytes | None


Decoded: TypeAlias = Record | OpaqueRecord

_UNREADABLE: Final = (MalformedFrame, struct.error, IndexError, UnicodeDecodeError)
"""What readers raise where bytes are not what they were announced as."""


class _Type(NamedTuple):
    """One record type: the forms of its key and of its value's versions, and the way from each to ours."""

    key_form: type
    value_forms: Mapping[int, type]
    read_key: Callable[[dict[str, Any]], r.RecordKey]
    read_value: Callable[[dict[str, Any]], r.RecordValue]
    complete: Callable[[dict[str, Any], bytes], None] = lambda values, data: None
    """Adds what the form of a value does not tell."""


def decode_record(key: bytes | None, value: bytes | None) -> Decoded:
    """The record behind a key and a value.

    :raises MalformedRecord: if they are cut short, too long, or not what their type and version announce.
    """
    if key is None or len(key) < _INT16.size:
        raise MalformedRecord(f"a key has a record type of two bytes at least, this one is {key!r}")
    (record_type,) = _INT16.unpack_from(key)
    version = _version(value)
    known = _TYPES.get(record_type)
    if known is None:
        return OpaqueRecord(record_type, version, _group_of(record_type, key), key, value)
    parts = _body(known.key_form, key, what=f"key of type {record_type}")
    if version is None or value is None:
        return Record(known.read_key(parts), None)
    form = known.value_forms.get(version)
    if form is None:
        return OpaqueRecord(record_type, version, parts["group"], key, value)
    what = f"value of type {record_type}, version {version}"
    values = _body(form, value, known.complete, what=what)
    try:
        return Record(known.read_key(parts), known.read_value(values))
    except ValueError as error:
        raise MalformedRecord(f"{what}: {error}") from error


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """The record's key and value; the value is None for a tombstone.

    An offset that expires at a time of its own is written as Kafka does it, in version 1, which has neither
    leader epoch nor topic id.

    :raises MalformedRecord: if a text of the key is longer than 32,767 bytes.
    """
    record_type, form = _written_key(record.key)
    if any(isinstance(text, str) and len(text.encode()) > _INT16_MAX for text in vars(form).values()):
        raise MalformedRecord(f"a text of {record.key} is longer than a key can hold")
    key = _INT16.pack(record_type) + b"".join(write(form))
    return key, None if record.value is None else _written_value(record.value)


@cache
def _reader(form: type) -> Reader:
    return entity_reader(form)


def _body(
    form: type,
    data: bytes,
    complete: Callable[[dict[str, Any], bytes], None] | None = None,
    *,
    what: str,
) -> dict[str, Any]:
    values: dict[str, Any]
    try:
        values, end = _reader(form)(data, _INT16.size)
        if complete is not None:
            complete(values, data)
    except _UNREADABLE as error:
        raise MalformedRecord(f"{what} can't be read from {len(data)} bytes: {error}") from error
    if end != len(data):
        raise MalformedRecord(f"{what} has {end} bytes, {len(data)} are there")
    return values


def _version(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) < _INT16.size:
        raise MalformedRecord(f"a value has a version of two bytes at least, this one is {value!r}")
    (version,) = _INT16.unpack_from(value)
    return int(version)


def _group_of(record_type: int, key: bytes) -> str | None:
    """Each key that exists so far begins with the group's id."""
    if not 0 <= record_type <= _NEWEST_TYPE:
        return None
    try:
        values, _ = _reader(s.GroupKey)(key, _INT16.size)
    except _UNREADABLE as error:
        raise MalformedRecord(f"key of type {record_type} can't be read: {error}") from error
    return str(values["group"])


# -- reading -------------------------------------------------------------------------------------------------


def _offset(values: dict[str, Any]) -> r.OffsetCommitValue:
    return r.OffsetCommitValue(
        offset=values["offset"],
        leader_epoch=values.get("leader_epoch", -1),
        metadata=values["metadata"],
        commit_timestamp_ms=values["commit_timestamp"],
        expire_timestamp_ms=values.get("expire_timestamp", -1),
        topic_id=values.get("topic_id"),
    )


def _classic_group(values: dict[str, Any]) -> r.GroupMetadataValue:
    return r.GroupMetadataValue(
        protocol_type=values["protocol_type"],
        generation=values["generation"],
        protocol=values["protocol"],
        leader=values["leader"],
        current_state_timestamp_ms=values.get("current_state_timestamp", -1),
        members=tuple(
            r.GroupMetadataMember(
                member_id=member["member_id"],
                instance_id=member.get("group_instance_id"),
                client_id=member["client_id"],
                client_host=member["client_host"],
                # Before there was one the session time-out stood for it.
                rebalance_timeout_ms=member.get("rebalance_timeout", member["session_timeout"]),
                session_timeout_ms=member["session_timeout"],
                subscription=member["subscription"],
                assignment=member["assignment"],
            )
            for member in values["members"]
        ),
    )


def _member(values: dict[str, Any]) -> r.ConsumerGroupMemberMetadataValue:
    names = tuple(sorted(set(values.pop("subscribed_topic_names"))))
    return r.ConsumerGroupMemberMetadataValue(subscribed_topic_names=names, **values)


def _add_classic(values: dict[str, Any], data: bytes) -> None:
    """The tag of value 5. Kafka writes it for every member: a byte 0 for none, or a byte 1 and the rest."""
    untagged = _INT16.size + len(_untagged(values))
    values["classic"] = None
    count, at = read_unsigned_varint(data, untagged)
    for _ in range(count):
        tag, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        if tag == 0 and data[at] != 0:
            classic, end = _reader(s.ClassicMemberMetadata)(data, at + 1)
            if end != at + size:
                raise MalformedFrame(f"tag 0 has {end - at} bytes, {size} are announced")
            values["classic"] = r.ClassicMemberMetadata(
                classic["session_timeout_ms"],
                tuple((one["name"], one["metadata"]) for one in classic["supported_protocols"]),
            )
        at += size


def _partitions(topics: Iterable[dict[str, Any]]) -> Partitions:
    return partitions_of(
        (topic["topic_id"] or _NO_TOPIC, number) for topic in topics for number in topic["partitions"]
    )


def _current(values: dict[str, Any]) -> r.ConsumerGroupCurrentMemberAssignmentValue:
    assigned, pending = values["assigned_partitions"], values["partitions_pending_revocation"]
    epochs: dict[TopicId, dict[int, int]] = {}
    for topic in (*assigned, *pending):
        since = topic.get("assignment_epochs")
        if since is None:
            continue
        if len(since) != len(topic["partitions"]):
            raise ValueError(f"{len(topic['partitions'])} partitions with {len(since)} assignment epochs")
        of_topic = epochs.setdefault(topic["topic_id"] or _NO_TOPIC, {})
        of_topic.update(sorted(zip(topic["partitions"], since, strict=True)))
    return r.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=values["member_epoch"],
        previous_member_epoch=values["previous_member_epoch"],
        state=values["state"],
        assigned=_partitions(assigned),
        pending_revocation=_partitions(pending),
        assignment_epochs={topic_id: of_topic for topic_id, of_topic in sorted(epochs.items()) if of_topic},
    )


_OFFSETS: Final = _Type(
    s.OffsetCommitKey,
    {
        0: s.OffsetCommitValue0,
        1: s.OffsetCommitValue1,
        2: s.OffsetCommitValue0,
        3: s.OffsetCommitValue3,
        4: s.OffsetCommitValue4,
    },
    lambda key: r.OffsetCommitKey(key["group"], key["topic"], key["partition"]),
    _offset,
)
_TYPES: Final[Mapping[int, _Type]] = {
    0: _OFFSETS,
    1: _OFFSETS,
    2: _Type(
        s.GroupKey,
        {
            0: s.ClassicGroupValue0,
            1: s.ClassicGroupValue1,
            2: s.ClassicGroupValue2,
            3: s.ClassicGroupValue3,
            4: s.ClassicGroupValue4,
        },
        lambda key: r.GroupMetadataKey(key["group"]),
        _classic_group,
    ),
    3: _Type(
        s.GroupKey,
        {0: s.GroupMetadataValue},
        lambda key: r.ConsumerGroupMetadataKey(key["group"]),
        lambda value: r.ConsumerGroupMetadataValue(value["epoch"], value.get("metadata_hash", 0)),
    ),
    5: _Type(
        s.MemberKey,
        {0: s.MemberMetadataValue},
        lambda key: r.ConsumerGroupMemberMetadataKey(key["group"], key["member"]),
        _member,
        _add_classic,
    ),
    6: _Type(
        s.GroupKey,
        {0: s.TargetMetadataValue},
        lambda key: r.ConsumerGroupTargetAssignmentMetadataKey(key["group"]),
        lambda value: r.ConsumerGroupTargetAssignmentMetadataValue(
            value["assignment_epoch"], value.get("assignment_timestamp", 0)
        ),
    ),
    7: _Type(
        s.MemberKey,
        {0: s.TargetMemberValue},
        lambda key: r.ConsumerGroupTargetAssignmentMemberKey(key["group"], key["member"]),
        lambda value: r.ConsumerGroupTargetAssignmentMemberValue(_partitions(value["topic_partitions"])),
    ),
    8: _Type(
        s.MemberKey,
        {0: s.CurrentAssignmentValue},
        lambda key: r.ConsumerGroupCurrentMemberAssignmentKey(key["group"], key["member"]),
        _current,
    ),
    16: _Type(
        s.RegularExpressionKey,
        {0: s.RegularExpressionValue},
        lambda key: r.ConsumerGroupRegularExpressionKey(key["group"], key["regular_expression"]),
        lambda value: r.ConsumerGroupRegularExpressionValue(
            tuple(value["topics"]), value["version"], value["timestamp"]
        ),
    ),
}


# -- writing -------------------------------------------------------------------------------------------------


def _written_key(key: r.RecordKey) -> tuple[int, Any]:
    match key:
        case r.OffsetCommitKey():
            return 1, s.OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
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


def _versioned(version: int, form: Any) -> bytes:
    return b"".join((_INT16.pack(version), *write(form)))


def _written_value(value: r.RecordValue) -> bytes:
    match value:
        case r.OffsetCommitValue():
            return _written_offset(value)
        case r.GroupMetadataValue():
            return _written_classic_group(value)
        case r.ConsumerGroupMemberMetadataValue():
            return _written_member(value)
        case _:
            return _versioned(0, _written_form(value))


def _written_form(value: r.RecordValue) -> Any:
    match value:
        case r.ConsumerGroupMetadataValue():
            return s.GroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)
        case r.ConsumerGroupTargetAssignmentMetadataValue():
            return s.TargetMetadataValue(
                assignment_epoch=value.assignment_epoch, assignment_timestamp=value.assignment_timestamp_ms
            )
        case r.ConsumerGroupTargetAssignmentMemberValue():
            return s.TargetMemberValue(
                topic_partitions=tuple(
                    s.TopicPartitions(topic_id=uuid_of(topic_id), partitions=numbers)
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
    raise TypeError(f"no form of its own: {type(value).__name__}")


def _written_offset(value: r.OffsetCommitValue) -> bytes:
    common: dict[str, Any] = {
        "offset": value.offset,
        "metadata": value.metadata,
        "commit_timestamp": value.commit_timestamp_ms,
    }
    if value.expire_timestamp_ms != -1:
        return _versioned(1, s.OffsetCommitValue1(**common, expire_timestamp=value.expire_timestamp_ms))
    topic_id = None if value.topic_id is None else uuid_of(value.topic_id)
    return _versioned(4, s.OffsetCommitValue4(**common, leader_epoch=value.leader_epoch, topic_id=topic_id))


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


def _untagged(values: Mapping[str, Any]) -> bytes:
    """The fields of value 5 up to its tags."""
    fields = dict(values)
    fields["subscribed_topic_names"] = tuple(fields["subscribed_topic_names"])
    return b"".join(write(s.MemberMetadataValue(**fields))).removesuffix(b"\x00")


def _written_member(value: r.ConsumerGroupMemberMetadataValue) -> bytes:
    fields = msgspec.structs.asdict(value)
    classic: r.ClassicMemberMetadata | None = fields.pop("classic")
    tag = b"\x00"
    if classic is not None:
        protocols = tuple(
            s.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.supported_protocols
        )
        form = s.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms, supported_protocols=protocols
        )
        tag = b"\x01" + b"".join(write(form))
    one_tag_of = b"\x01\x00" + unsigned_varint(len(tag))
    return _INT16.pack(0) + _untagged(fields) + one_tag_of + tag


def _since(
    partitions: Partitions, epochs: Mapping[TopicId, Mapping[int, int]]
) -> tuple[s.TopicPartitionsSince, ...]:
    """Epochs go with a topic if each of its partitions has one: there are as many, or none at all."""
    found = []
    for topic_id, numbers in partitions.items():
        known = epochs.get(topic_id, {})
        since = tuple(known[number] for number in numbers) if known.keys() >= {*numbers} else None
        found.append(
            s.TopicPartitionsSince(topic_id=uuid_of(topic_id), partitions=numbers, assignment_epochs=since)
        )
    return tuple(found)
