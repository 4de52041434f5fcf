"""Records of `__consumer_offsets` from Kafka's bytes (KIP-848, Records; Kafka 4.3.1's schemas).

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
from fencepost.coordinator.codec.group_record_encoder import MalformedRecord
from fencepost.coordinator.codec.reader import Reader, entity_reader
from fencepost.coordinator.codec.streams_records import STREAMS_TYPES
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import NO_TOPIC_ID, Partitions, TopicId, partitions_of
from fencepost.coordinator.protocol.records import Record

_INT16: Final = struct.Struct(">h")
_NEWEST_TYPE: Final = 23
"""The last of the streams groups' types, in Kafka 4.3: StreamsGroupTopology and its like."""


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
    values = _body(form, value, what=what)
    try:
        return Record(known.read_key(parts), known.read_value(values))
    except ValueError as error:
        raise MalformedRecord(f"{what}: {error}") from error


@cache
def _reader(form: type) -> Reader:
    return entity_reader(form)


def _body(form: type, data: bytes, *, what: str) -> dict[str, Any]:
    values: dict[str, Any]
    try:
        values, end = _reader(form)(data, _INT16.size)
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
    classic = values.pop("classic", None)
    return r.ConsumerGroupMemberMetadataValue(
        subscribed_topic_names=names,
        classic=classic
        and r.ClassicMemberMetadata(
            classic["session_timeout_ms"],
            tuple((one["name"], one["metadata"]) for one in classic["supported_protocols"]),
        ),
        **values,
    )


def _partitions(topics: Iterable[dict[str, Any]]) -> Partitions:
    return partitions_of(
        (topic["topic_id"] or NO_TOPIC_ID, number) for topic in topics for number in topic["partitions"]
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
        of_topic = epochs.setdefault(topic["topic_id"] or NO_TOPIC_ID, {})
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
    s.OffsetCommitKeySchema,
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
        {0: s.GroupMetadataValueSchema},
        lambda key: r.ConsumerGroupMetadataKey(key["group"]),
        lambda value: r.ConsumerGroupMetadataValue(value["epoch"], value.get("metadata_hash", 0)),
    ),
    5: _Type(
        s.MemberKey,
        {0: s.MemberMetadataValue},
        lambda key: r.ConsumerGroupMemberMetadataKey(key["group"], key["member"]),
        _member,
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
    **{
        number: _Type(one.key_form, {0: one.value_form}, one.read_key, one.read_value)
        for number, one in STREAMS_TYPES.items()
    },
}
