"""Records of `__consumer_offsets` as Kafka's bytes, and back (KIP-848, KIP-1071; as in Kafka 4.3.1).

A key is its record type as int16 and the key's fields, a value its version as int16 and the value's fields;
no value is a tombstone. Unknown types and versions, and records of other kinds of groups, are kept as bytes:
a log may be newer than its reader. Records are written in the versions that Kafka 4.3.1 writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.codec import group_record_schemas as s
from fencepost.coordinator.codec.consumer import PARTITIONS
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.layout import Layout, Via, row
from fencepost.coordinator.codec.reader import Reader
from fencepost.coordinator.codec.streams import ENDPOINT, PAIRS, SUBTOPOLOGY, TAGS, TASK_IDS, sorted_pairs
from fencepost.coordinator.codec.writer import Write
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams_records as sr
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import NO_TOPIC_ID
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import Tasks

_INT16: Final = struct.Struct(">h")
_INT16_MAX: Final = 2**15 - 1
_NEWEST_TYPE: Final = 23
"""The last of the streams groups' types, in Kafka 4.3: StreamsGroupTopology."""
_UNREADABLE: Final = (MalformedFrame, struct.error, IndexError, UnicodeDecodeError)
"""The exceptions that readers raise for malformed bytes."""
K = TypeVar("K")


class MalformedRecord(FencepostError):
    """Bytes that announce a known record and do not hold one; or a record that Kafka has no bytes for."""


class OpaqueRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of another kind of group, or of an unknown version, as it was read."""

    record_type: int
    version: int | None
    """The value's version; None for a tombstone."""
    group_id: str | None
    """The group id; None if the key's form is not known either."""
    key: bytes
    value: bytes | None


Decoded: TypeAlias = Record | OpaqueRecord


class _Type(NamedTuple):
    """One record type, with the layouts of its key and its value."""

    key: Layout
    key_schema: s.RecordSchema
    value: Layout
    value_schema: s.RecordSchema
    newest: int = 0
    """The newest version of the value that can be read."""
    written: Callable[[Any], int] = lambda value: 0
    """The version in which a value is written."""


# -- values with another form on the wire --------------------------------------------------------------------


def _classic_member(values: dict[str, Any], _: int) -> r.GroupMetadataMember:
    """Before a member had a rebalance time-out, its session time-out was used."""
    values.setdefault("rebalance_timeout_ms", values["session_timeout_ms"])
    values.setdefault("instance_id", None)
    return r.GroupMetadataMember(**values)


class _Since(NamedTuple):
    """Partitions of one topic, or tasks of one subtopology, and the epoch at which each was assigned."""

    key: Any
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


def _since(held: Mapping[K, tuple[int, ...]], epochs: Mapping[K, Mapping[int, int]]) -> tuple[_Since, ...]:
    """Epochs are written with a topic if each of its partitions has one, and left out otherwise."""
    found = []
    for key, numbers in held.items():
        known = epochs.get(key, {})
        since = tuple(known[number] for number in numbers) if known.keys() >= {*numbers} else None
        found.append(_Since(key, numbers, since))
    return tuple(found)


def _epochs(entries: Iterable[_Since]) -> dict[Any, dict[int, int]]:
    epochs: dict[Any, dict[int, int]] = {}
    for key, numbers, since in entries:
        if since is not None:
            epochs.setdefault(key, {}).update(sorted(zip(numbers, since, strict=True)))
    return {key: known for key, known in sorted(epochs.items()) if known}


def _pairs(entries: Iterable[_Since]) -> Iterable[tuple[Any, tuple[int, ...]]]:
    return ((each.key, each.partitions) for each in entries)


_TOPICS = Layout(_Since, {"key": "topic_id"})


def _current(values: dict[str, Any], _: int) -> r.ConsumerGroupCurrentMemberAssignmentValue:
    assigned, pending = values["assigned"], values["pending_revocation"]
    for _key, numbers, since in (*assigned, *pending):
        if since is not None and len(since) != len(numbers):
            raise ValueError(f"{len(numbers)} partitions with {len(since)} assignment epochs")
    canonical = PARTITIONS.read
    assert canonical is not None
    return r.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=values["member_epoch"],
        previous_member_epoch=values["previous_member_epoch"],
        state=values["state"],
        assigned=canonical(_pairs(assigned)),
        pending_revocation=canonical(_pairs(pending)),
        assignment_epochs=_epochs(
            each._replace(key=each.key or NO_TOPIC_ID) for each in (*assigned, *pending)
        ),
    )


_PENDING: Final = "_pending_revocation"
_ROLES: Final = ("active", "standby", "warmup")
_ROLE_TASKS = Layout(_Since, {"key": "subtopology_id"})


def _tasks(values: dict[str, Any], suffix: str) -> Tasks:
    canonical = TASK_IDS.read
    assert canonical is not None
    return Tasks(*(canonical(_pairs(values[f"{role}_tasks{suffix}"])) for role in _ROLES))


def _streams_current(values: dict[str, Any], _: int) -> sr.StreamsGroupCurrentMemberAssignmentValue:
    """Epochs that are not as many as their tasks are left out: the member's stands for them, as in Kafka."""
    active = (*values["active_tasks"], *values[f"active_tasks{_PENDING}"])
    return sr.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=values["member_epoch"],
        previous_member_epoch=values["previous_member_epoch"],
        state=values["state"],
        assigned=_tasks(values, ""),
        pending_revocation=_tasks(values, _PENDING),
        assignment_epochs=_epochs(each for each in active if each[2] is None or len(each[1]) == len(each[2])),
    )


def _held(role: str, attribute: str) -> Callable[[Any, int], tuple[_Since, ...]]:
    """Only active tasks have epochs."""

    def held(value: sr.StreamsGroupCurrentMemberAssignmentValue, _: int) -> tuple[_Since, ...]:
        tasks = getattr(getattr(value, attribute), role)
        return _since(tasks, value.assignment_epochs if role == "active" else {})

    return held


_HELD: Final = {
    f"{role}_tasks{suffix}": _held(role, attribute)
    for suffix, attribute in (("", "assigned"), (_PENDING, "pending_revocation"))
    for role in _ROLES
}

# -- all types -----------------------------------------------------------------------------------------------

_OFFSETS: Final = _Type(
    Layout(r.OffsetCommitKey),
    s.OFFSET_KEY,
    Layout(r.OffsetCommitValue, absent={"leader_epoch": -1}),
    s.OFFSET,
    newest=4,
    # As in Kafka: a version with a time of expiry has neither leader epoch nor topic id.
    written=lambda value: 4 if value.expire_timestamp_ms == -1 else 1,
)
_TYPES: Final[Mapping[int, _Type]] = {
    0: _OFFSETS,
    1: _OFFSETS,
    2: _Type(
        Layout(r.GroupMetadataKey),
        s.GROUP_KEY,
        Layout(r.GroupMetadataValue, fields={"members": Layout(r.GroupMetadataMember, read=_classic_member)}),
        s.CLASSIC_GROUP,
        newest=4,
        written=lambda value: 3,
    ),
    3: _Type(Layout(r.ConsumerGroupMetadataKey), s.GROUP_KEY, Layout(r.ConsumerGroupMetadataValue), s.GROUP),
    5: _Type(
        Layout(r.ConsumerGroupMemberMetadataKey),
        s.MEMBER_KEY,
        Layout(
            r.ConsumerGroupMemberMetadataValue,
            fields={
                "subscribed_topic_names": Via(read=lambda names: tuple(sorted(set(names)))),
                "classic": Layout(
                    r.ClassicMemberMetadata, fields={"supported_protocols": row("name", "metadata")}
                ),
            },
        ),
        s.MEMBER,
    ),
    6: _Type(
        Layout(r.ConsumerGroupTargetAssignmentMetadataKey),
        s.GROUP_KEY,
        Layout(r.ConsumerGroupTargetAssignmentMetadataValue),
        s.TARGET,
    ),
    7: _Type(
        Layout(r.ConsumerGroupTargetAssignmentMemberKey),
        s.MEMBER_KEY,
        Layout(
            r.ConsumerGroupTargetAssignmentMemberValue,
            {"partitions": "topic_partitions"},
            fields={"partitions": PARTITIONS},
        ),
        s.TARGET_OF_MEMBER,
    ),
    8: _Type(
        Layout(r.ConsumerGroupCurrentMemberAssignmentKey),
        s.MEMBER_KEY,
        Layout(
            r.ConsumerGroupCurrentMemberAssignmentValue,
            fields={"assigned": _TOPICS, "pending_revocation": _TOPICS},
            write={
                "assigned": lambda value, _: _since(value.assigned, value.assignment_epochs),
                "pending_revocation": lambda value, _: _since(
                    value.pending_revocation, value.assignment_epochs
                ),
            },
            read=_current,
        ),
        s.CURRENT,
    ),
    16: _Type(
        Layout(r.ConsumerGroupRegularExpressionKey),
        s.EXPRESSION_KEY,
        Layout(r.ConsumerGroupRegularExpressionValue),
        s.EXPRESSION,
    ),
    17: _Type(
        Layout(sr.StreamsGroupMetadataKey),
        s.GROUP_KEY,
        Layout(
            sr.StreamsGroupMetadataValue,
            fields={"last_assignment_configs": TAGS},
            write={"last_assignment_configs": lambda value, _: value.last_assignment_configs or None},
        ),
        s.STREAMS_GROUP,
    ),
    19: _Type(
        Layout(sr.StreamsGroupMemberMetadataKey),
        s.MEMBER_KEY,
        Layout(
            sr.StreamsGroupMemberMetadataValue,
            fields={
                "user_endpoint": ENDPOINT,
                "client_tags": Via(
                    of=PAIRS, read=sorted_pairs, write=lambda tags: sorted_pairs(tags.items()).items()
                ),
            },
        ),
        s.STREAMS_MEMBER,
    ),
    20: _Type(
        Layout(sr.StreamsGroupTargetAssignmentMetadataKey),
        s.GROUP_KEY,
        Layout(sr.StreamsGroupTargetAssignmentMetadataValue),
        s.TARGET,
    ),
    21: _Type(
        Layout(sr.StreamsGroupTargetAssignmentMemberKey),
        s.MEMBER_KEY,
        Layout(
            sr.StreamsGroupTargetAssignmentMemberValue,
            {f"tasks.{role}": f"{role}_tasks" for role in _ROLES},
            fields={f"tasks.{role}": TASK_IDS for role in _ROLES},
            read=lambda values, _: sr.StreamsGroupTargetAssignmentMemberValue(Tasks(*values.values())),
        ),
        s.STREAMS_TARGET_OF_MEMBER,
    ),
    22: _Type(
        Layout(sr.StreamsGroupCurrentMemberAssignmentKey),
        s.MEMBER_KEY,
        Layout(
            sr.StreamsGroupCurrentMemberAssignmentValue,
            fields={name: _ROLE_TASKS for name in _HELD},
            write=_HELD,
            read=_streams_current,
        ),
        s.STREAMS_CURRENT,
    ),
    23: _Type(
        Layout(sr.StreamsGroupTopologyKey),
        s.GROUP_KEY,
        Layout(sr.StreamsGroupTopologyValue, fields={"subtopologies": SUBTOPOLOGY}),
        s.STREAMS_TOPOLOGY,
    ),
}


@cache
def _reader(layout: Layout, schema: s.RecordSchema, version: int) -> Reader:
    return layout.reader(schema.at(version), version)


@cache
def _writer(layout: Layout, schema: s.RecordSchema, version: int) -> Write:
    return layout.writer(schema.at(version), version)


# -- writing -------------------------------------------------------------------------------------------------


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Return the record's key and value; the value is None for a tombstone.

    :raises MalformedRecord: if a text of the key is longer than 32,767 bytes.
    """
    key, value = record.key, record.value
    if isinstance(key, r.PendingOffsetCommitKey):
        raise MalformedRecord(f"{key}: Kafka writes it as an offset, in a batch of its transaction")
    texts = (text for text in msgspec.structs.astuple(key) if isinstance(text, str))
    if any(len(text.encode()) > _INT16_MAX for text in texts):
        raise MalformedRecord(f"a text of {key} is longer than a key can hold")
    number = _number(key)
    of_key = _TYPES[number]
    written = _INT16.pack(number) + _writer(of_key.key, of_key.key_schema, 0)(key)
    if value is None:
        return written, None
    of_value = _TYPES[_number(value)]
    version = of_value.written(value)
    return written, _INT16.pack(version) + _writer(of_value.value, of_value.value_schema, version)(value)


def _number(part: r.RecordKey | r.RecordValue) -> int:
    return int(type(part).__struct_config__.tag)  # type: ignore[arg-type]  # ours are numbers


# -- reading -------------------------------------------------------------------------------------------------


def decode_record(key: bytes | None, value: bytes | None) -> Decoded:
    """Return the record of a key and a value.

    :raises MalformedRecord: if they are too short, too long, or do not fit their type and version.
    """
    if key is None or len(key) < _INT16.size:
        raise MalformedRecord(f"a key has a record type of two bytes at least, this one is {key!r}")
    (record_type,) = _INT16.unpack_from(key)
    version = _version(value)
    known = _TYPES.get(record_type)
    if known is None:
        return OpaqueRecord(record_type, version, _group_of(record_type, key), key, value)
    found = _body(_reader(known.key, known.key_schema, 0), key, what=f"key of type {record_type}")
    if version is None or value is None:
        return Record(found, None)
    if not 0 <= version <= known.newest:
        return OpaqueRecord(record_type, version, found.group_id, key, value)
    what = f"value of type {record_type}, version {version}"
    return Record(found, _body(_reader(known.value, known.value_schema, version), value, what=what))


def _body(read: Reader, data: bytes, *, what: str) -> Any:
    try:
        found, end = read(data, _INT16.size)
    except _UNREADABLE as error:
        raise MalformedRecord(f"{what} can't be read from {len(data)} bytes: {error}") from error
    except ValueError as error:
        raise MalformedRecord(f"{what}: {error}") from error
    if end != len(data):
        raise MalformedRecord(f"{what} has {end} bytes, {len(data)} are there")
    return found


def _version(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) < _INT16.size:
        raise MalformedRecord(f"a value has a version of two bytes at least, this one is {value!r}")
    (version,) = _INT16.unpack_from(value)
    return int(version)


def _group_of(record_type: int, key: bytes) -> str | None:
    """Return the group's id, with which each known key begins."""
    if not 0 <= record_type <= _NEWEST_TYPE:
        return None
    read = _reader(_TYPES[3].key, s.GROUP_KEY, 0)
    try:
        found, _ = read(key, _INT16.size)
    except _UNREADABLE as error:
        raise MalformedRecord(f"key of type {record_type} can't be read: {error}") from error
    return str(found.group_id)
