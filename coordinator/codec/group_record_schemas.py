"""The schemas of records of `__consumer_offsets` (KIP-848, KIP-1071), which layouts are compiled with.

Field by field and in their order as in Kafka 4.3.1's group coordinator, but under our names. Keys are never
flexible. Values of consumer and streams groups always are, those of classic groups and of offsets from
version 4 on. A tagged field may be left out, then it has its default (KIP-482); a tagged field without a
default is always written.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fencepost.coordinator.codec.fields import REQUIRED, RecordForm, WireField

NEVER: Final = 1 << 15


class SchemaField(NamedTuple):
    """One field, and the versions that have it."""

    name: str
    kind: str | RecordSchema
    is_array: bool = False
    null: bool = False
    since: int = 0
    until: int = NEVER
    tag: int | None = None
    default: Any = REQUIRED


class RecordSchema:
    """A key, a value, or a struct in one, in all its versions."""

    def __init__(self, *fields: SchemaField, flexible_from: int = 0) -> None:
        self._fields = fields
        self._flexible_from = flexible_from

    def at(self, version: int) -> RecordForm:
        """Return the form of one version."""
        fields = (field for field in self._fields if field.since <= version < field.until)
        return RecordForm(
            tuple(
                WireField(
                    name=field.name,
                    kafka_type=field.kind if isinstance(field.kind, str) else None,
                    struct=None if isinstance(field.kind, str) else field.kind.at(version),
                    is_array=field.is_array,
                    is_nullable=field.null,
                    tag=field.tag,
                    default=field.default,
                )
                for field in fields
            ),
            is_flexible=version >= self._flexible_from,
        )


def _strings(*names: str) -> tuple[SchemaField, ...]:
    return tuple(SchemaField(name, "string") for name in names)


def _list(name: str, kind: str | RecordSchema, **more: Any) -> SchemaField:
    return SchemaField(name, kind, is_array=True, **more)


def _nullable(name: str, **more: Any) -> SchemaField:
    return SchemaField(name, "string", null=True, **more)


F: Final = SchemaField

# -- keys ------------------------------------------------------------------------------------------------

GROUP_KEY: Final = RecordSchema(*_strings("group_id"), flexible_from=NEVER)
MEMBER_KEY: Final = RecordSchema(*_strings("group_id", "member_id"), flexible_from=NEVER)
EXPRESSION_KEY: Final = RecordSchema(*_strings("group_id", "regular_expression"), flexible_from=NEVER)
OFFSET_KEY: Final = RecordSchema(*_strings("group_id", "topic"), F("partition", "int32"), flexible_from=NEVER)

# -- values of offsets and classic groups ------------------------------------------------------------------

OFFSET: Final = RecordSchema(
    F("offset", "int64"),
    F("leader_epoch", "int32", since=3),
    F("metadata", "string"),
    F("commit_timestamp_ms", "int64"),
    F("expire_timestamp_ms", "int64", since=1, until=2),
    F("topic_id", "uuid", since=4, tag=0, default=None),
    flexible_from=4,
)
_CLASSIC_MEMBER: Final = RecordSchema(
    F("member_id", "string"),
    _nullable("instance_id", since=3),
    *_strings("client_id", "client_host"),
    F("rebalance_timeout_ms", "int32", since=1),
    F("session_timeout_ms", "int32"),
    F("subscription", "bytes"),
    F("assignment", "bytes"),
    flexible_from=4,
)
CLASSIC_GROUP: Final = RecordSchema(
    F("protocol_type", "string"),
    F("generation", "int32"),
    _nullable("protocol"),
    _nullable("leader"),
    F("current_state_timestamp_ms", "int64", since=2),
    _list("members", _CLASSIC_MEMBER),
    flexible_from=4,
)

# -- values of consumer groups -----------------------------------------------------------------------------

GROUP: Final = RecordSchema(F("epoch", "int32"), F("metadata_hash", "int64", tag=0, default=0))
_CLASSIC_PROTOCOL: Final = RecordSchema(F("name", "string"), F("metadata", "bytes"))
_CLASSIC_METADATA: Final = RecordSchema(
    F("session_timeout_ms", "int32"), _list("supported_protocols", _CLASSIC_PROTOCOL)
)
MEMBER: Final = RecordSchema(
    _nullable("instance_id"),
    _nullable("rack_id"),
    *_strings("client_id", "client_host"),
    _list("subscribed_topic_names", "string"),
    _nullable("subscribed_topic_regex"),
    F("rebalance_timeout_ms", "int32"),
    _nullable("server_assignor"),
    F("classic", _CLASSIC_METADATA, null=True, tag=0),
)
"""Kafka writes the tag for every member, for most of them with null in it."""
TARGET: Final = RecordSchema(
    F("assignment_epoch", "int32"), F("assignment_timestamp_ms", "int64", tag=0, default=0)
)
_TOPIC: Final = (F("topic_id", "uuid"), _list("partitions", "int32"))
_EPOCHS: Final = _list("assignment_epochs", "int32", tag=0, default=None)
_TOPIC_SINCE: Final = RecordSchema(*_TOPIC, _EPOCHS)
"""Partitions of one topic, with the member epoch at which each was assigned (KIP-1251)."""
TARGET_OF_MEMBER: Final = RecordSchema(_list("topic_partitions", RecordSchema(*_TOPIC)))
CURRENT: Final = RecordSchema(
    F("member_epoch", "int32"),
    F("previous_member_epoch", "int32"),
    F("state", "int8"),
    _list("assigned", _TOPIC_SINCE),
    _list("pending_revocation", _TOPIC_SINCE),
)
EXPRESSION: Final = RecordSchema(
    _list("topics", "string"), F("image_version", "int64"), F("timestamp_ms", "int64")
)

# -- values of streams groups ------------------------------------------------------------------------------

_PAIR: Final = RecordSchema(*_strings("key", "value"))
STREAMS_GROUP: Final = RecordSchema(
    F("epoch", "int32"),
    F("metadata_hash", "int64"),
    F("validated_topology_epoch", "int32", tag=0, default=-1),
    _list("last_assignment_configs", _PAIR, tag=1, default=None),
)
STREAMS_MEMBER: Final = RecordSchema(
    _nullable("instance_id"),
    _nullable("rack_id"),
    *_strings("client_id", "client_host"),
    F("rebalance_timeout_ms", "int32"),
    F("topology_epoch", "int32"),
    F("process_id", "string"),
    F("user_endpoint", RecordSchema(F("host", "string"), F("port", "uint16")), null=True),
    _list("client_tags", _PAIR),
)
_TASKS: Final = (F("subtopology_id", "string"), _list("partitions", "int32"))
_ROLES: Final = ("active_tasks", "standby_tasks", "warmup_tasks")
STREAMS_TARGET_OF_MEMBER: Final = RecordSchema(*(_list(role, RecordSchema(*_TASKS)) for role in _ROLES))
STREAMS_CURRENT: Final = RecordSchema(
    F("member_epoch", "int32"),
    F("previous_member_epoch", "int32"),
    F("state", "int8"),
    *(_list(role, RecordSchema(*_TASKS, _EPOCHS)) for role in _ROLES),
    *(_list(f"{role}_pending_revocation", RecordSchema(*_TASKS, _EPOCHS)) for role in _ROLES),
)
_TOPIC_INFO: Final = RecordSchema(
    F("name", "string"),
    F("partitions", "int32"),
    F("replication_factor", "int16"),
    _list("topic_configs", _PAIR),
)
_COPARTITION_GROUP: Final = RecordSchema(
    *(_list(name, "int16") for name in ("source_topics", "source_topic_regex", "repartition_source_topics"))
)
STREAMS_TOPOLOGY: Final = RecordSchema(
    F("epoch", "int32"),
    _list(
        "subtopologies",
        RecordSchema(
            F("subtopology_id", "string"),
            _list("source_topics", "string"),
            _list("source_topic_regex", "string"),
            _list("state_changelog_topics", _TOPIC_INFO),
            _list("repartition_sink_topics", "string"),
            _list("repartition_source_topics", _TOPIC_INFO),
            _list("copartition_groups", _COPARTITION_GROUP),
        ),
    ),
)
