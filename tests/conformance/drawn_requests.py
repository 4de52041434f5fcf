"""Requests drawn by a seed, field by field, as their schemas have them: such as are sent, and odd ones.

Their own names begin with "~", which stands for a prefix that nobody else has. Ids that brokers make up are
numbers: of topics in the order of their names, of producers in the order in which they were told.
"""

from __future__ import annotations

import dataclasses
import random
import typing
import uuid
from collections.abc import Sequence
from typing import Any, Final

from kio.index import load_request_schema

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.server.topic_configs import TOPIC_SETTINGS

TOPICS: Final = ("~a", "~b", "~c", "~d.x")
KEPT: Final = "~c"
"""A topic that is never deleted: of the group "~g" there is an offset in it."""
GROUPS: Final = ("~g", "~h", "~i")
INHABITED: Final = "~h"
"""A group with a member."""
MEMBER: Final = "m"
TRANSACTIONS: Final = ("~t", "~u")
UNKNOWN: Final = 500_000
"""Ids of producers from here on nobody has."""

_TOPICS: Final = (*TOPICS * 6, "~none", "~d_x", "~ b", "~\u00e9", "~" + "x" * 250, ".", "..", "")
_GROUPS: Final = (*GROUPS * 3, "~none", "", "~ ")
_NAMES: Final = (*GROUPS, *TRANSACTIONS, "~none", "")
_PARTITIONS: Final = (0, 0, 0, 0, 1, 1, 2, 3, 9, -1, -2, 2**31 - 1, -(2**31))
_EPOCHS: Final = (-1, -1, 0, 0, 1, -2, 5, 2**31 - 1)
_TYPES: Final = (0, 1, 2, 2, 3, 3, 4, 5, 7, 13, 15, 99, -1, -128)
_LEFT_ALONE: Final = {"segment.index.bytes", "max.message.bytes", "retention.bytes", "retention.ms"}
"""Kafka takes index sizes with which it can make no log, and limits that its own markers exceed. What is
retained is decided every second here, and every five minutes there."""
_TOPIC_SETTINGS: Final = (
    *(name for name in TOPIC_SETTINGS if name not in _LEFT_ALONE),
    *("nope", "", "consumer.session.timeout.ms"),
)
_GROUP_SETTINGS: Final = (
    *(
        field.replace("_", ".")
        for field in GroupConfig.__struct_fields__
        # Kafka 4.3.1 does not know the one, and the other is held against sessions, which are longer here.
        if field not in {"consumer_assignor_offload_enable", "streams_heartbeat_interval_ms"}
    ),
    *("nope", "", "retention.ms"),
)
_NUMBERS: Final = ("0", "1", "-1", "-2", "4", " 5 ", "+7", "1000", "5000", "45000", "50000", "2147483648")
_VALUES: Final = (
    *(*_NUMBERS, *_NUMBERS, "0.5", ".5d", "1e-1", "1_0", "0x10", "x", "", ",", None),
    *("true", "TRUE", "false", "no", "delete", "compact", "compact,delete", "delete , compact"),
    *("delete,delete", "producer", "zstd", "gzip", "CreateTime", "LogAppendTime", "*", "0:1", "0:1,1:1"),
)
_GROUP_VALUES: Final = tuple(value for value in _VALUES if value is None or value == value.strip())
"""Spaces around it Kafka takes and tells, and then the group has none of its settings."""
_PATTERNS: Final = (None, None, "", ".*", "~.", "~t|x", "~", "[", "(?=x)", "\\p{Lower}+", "a{2000}")

_NAMED_ONCE: Final = {"group_ids", "groups", "groups_names", "transactional_ids", "coordinator_keys"}
"""Lists in which our endpoint answers a name once, however often it comes."""

_POOLS: Final[dict[str | tuple[int, str], Sequence[Any]]] = {
    "assignment": (b"", b"x"),
    "broker_ids": (1, 1, 1, 1, 2, 0, -1),
    "config_operation": (0, 0, 0, 1, 2, 3),
    "coordinator_keys": _NAMES,
    "count": (1, 2, 3, 4, 5, 0, -1, -(2**31)),
    "current_leader_epoch": _EPOCHS,
    "duration_filter": (-1, -1, 0, 10**9, -5, 2**63 - 1, -(2**63)),
    "endpoint_type": (1, 1, 1, 0, 2, 3, -1),
    "generation_id": (-1, 0, 0, 1, 2, 5),
    "group_id": _GROUPS,
    "group_ids": _GROUPS,
    "group_instance_id": (None, None, "", "i"),
    "groups": _GROUPS,
    "groups_names": _GROUPS,
    "host": ("*", "", "127.0.0.1"),
    "host_filter": ("*", "", None),
    "isolation_level": (0, 1),
    "key": _NAMES,
    "key_type": (0, 0, 1, 1, 2, 3, -1),
    "leader_epoch": _EPOCHS,
    "member_id": (MEMBER, "", "x", "x"),
    "name": _TOPICS,
    (ApiKey.DELETE_TOPICS, "name"): tuple(name for name in _TOPICS if name != KEPT),
    (ApiKey.DELETE_TOPICS, "topic_names"): tuple(name for name in _TOPICS if name != KEPT),
    # Kafka answers UNKNOWN_SERVER_ERROR to a request with an empty one.
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "name"): tuple(filter(None, _TOPICS)),
    "num_partitions": (1, 2, 3, -1, 0, -2, 9),
    "offset": (0, 1, 2, 3, 5, -1, -2, 10**9, 2**63 - 1, -(2**63)),
    "operation": _TYPES,
    "partition": _PARTITIONS,
    "partition_index": _PARTITIONS,
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "partition_index"): (0, 0, 1, 2, 9, -1),
    "partition_indexes": _PARTITIONS,
    "partitions": _PARTITIONS,
    "pattern_type_filter": _TYPES,
    "permission_type": _TYPES,
    "principal": ("User:a", "", "a", "User:*"),
    "principal_filter": ("User:a", "", "a", None),
    "producer_epoch": (-1,),
    "producer_id": (-1,),
    "producer_id_filters": (0, 1, 2, UNKNOWN),
    "protocol_name": (None, "range", ""),
    "protocol_type": (None, "consumer", "", "connect"),
    "reason": (None, "", "r"),
    "replica_id": (-1,),
    "replication_factor": (1, 1, 1, 1, -1, 0, 2, -2),
    "resource_name": _TOPICS,
    "resource_name_filter": (*TOPICS, "", None),
    "resource_pattern_type": _TYPES,
    "resource_type": (2, 2, 2, 32, 32, 0, 1, 3, 99, -1),
    (ApiKey.CREATE_ACLS, "resource_type"): _TYPES,
    "resource_type_filter": _TYPES,
    "resource_types": (2, 2, 4, 8, 16, 32, 32, 0, 3, 99, -1),
    "response_partition_limit": (1, 2, 3, 0, -1, 2000, 2**31 - 1, -(2**31)),
    "state_filters": ("Empty", "Ongoing", "CompleteAbort", "Dead", "PrepareEpochFence", "ongoing", "", "No"),
    "states_filter": ("Stable", "Empty", "empty", "DEAD", "PreparingRebalance", "Assigning", "", "nope"),
    "timeout": (5_000,),
    # Not -3: of the largest timestamp Kafka may name a record that was deleted. Nor a time with records after
    # it, which are compacted earlier here.
    "timestamp": (-1, -1, -2, -2, -4, -5, -6, -7, 10**15, 2**63 - 1, -(2**63)),
    "topic": _TOPICS,
    "topic_name": _TOPICS,
    "topic_id": (*(uuid.UUID(int=number) for number in (0, 1, 2, 3, 77)), None),
    (ApiKey.DELETE_TOPICS, "topic_id"): (*(uuid.UUID(int=number) for number in (1, 3, 77)), None, None, None),
    "transaction_timeout": (60_000, 60_000, 0, -1, 900_000, 900_001),
    "transactional_id": (None,),
    "transactional_id_pattern": _PATTERNS,
    "transactional_ids": (*TRANSACTIONS * 3, "~none", ""),
    "types_filter": ("classic", "Classic", "consumer", "CONSUMER", "share", "streams", "unknown", "", "nope"),
    "value": _VALUES,
}
"""What is drawn for a field, by its name; for one API only where its key stands before."""

_OF_GROUPS: Final = {
    # Not the one with a member: its session is not to end.
    "resource_name": tuple(name for name in _GROUPS if name != INHABITED),
    "value": _GROUP_VALUES,
}

_OLD: Final = "v3_and_below_"
_NEVER_EMPTY: Final = {ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.ADD_PARTITIONS_TO_TXN}
"""The first one would tell of all topics, with those of others between; of the second see the deviations."""


class Draw:
    """Draws requests. Beside a transactional id are mostly the producer and epoch that were told last."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.epochs = dict.fromkeys(TRANSACTIONS, 0)
        self._key = 0
        self._about: int = ResourceType.TOPIC

    def request(self, key: int, version: int) -> dict[str, Any]:
        """The fields of a request, with dictionaries for structs."""
        self._key, self._about = key, ResourceType.TOPIC
        drawn = self._struct(load_request_schema(key, version))
        for name in _NAMED_ONCE & drawn.keys():
            if drawn[name] and isinstance(drawn[name][0], str | int):
                drawn[name] = list(dict.fromkeys(drawn[name]))
        match key:
            case ApiKey.DESCRIBE_PRODUCERS:
                drawn["topics"] = _once(drawn["topics"], "name")
                for topic in drawn["topics"]:
                    topic["partition_indexes"] = list(dict.fromkeys(topic["partition_indexes"]))
            case ApiKey.DESCRIBE_CONFIGS:
                drawn["resources"] = _once(drawn["resources"], "resource_name")
            case ApiKey.METADATA:  # Kafka answers UNKNOWN_SERVER_ERROR if one has neither name nor id
                for topic in drawn["topics"] or ():
                    if topic["name"] is topic.get("topic_id") is None:
                        topic["name"] = KEPT
            case ApiKey.ALTER_CONFIGS:  # Kafka never answers if one comes twice
                drawn["resources"] = _once(drawn["resources"], "resource_name")
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                drawn["v3_and_below_topics"] = _once(drawn["v3_and_below_topics"], "name")
                for topic in drawn["v3_and_below_topics"]:
                    topic["partitions"] = list(dict.fromkeys(topic["partitions"]))
        return drawn

    def hear(self, request: dict[str, Any], answer: Any) -> None:
        """What the transactional id's epoch is after that."""
        name = request.get("transactional_id")
        if name in self.epochs and answer["error_code"] == "none":
            self.epochs[name] = max(answer.get("producer_epoch", -1), self.epochs[name])

    def _struct(self, kind: Any) -> dict[str, Any]:
        hints = typing.get_type_hints(kind)
        drawn = {
            field.name: self._value(hints[field.name], field.name, self._pool(kind, field.name))
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING or field.name in _POOLS or self.rng.random() < 0.5
        }
        prefix = _OLD if f"{_OLD}producer_id" in drawn else ""
        if f"{prefix}transactional_id" in drawn:
            producer = self._producer()
            drawn |= {
                f"{prefix}{name}": value for name, value in producer.items() if f"{prefix}{name}" in drawn
            }
        return drawn

    def _producer(self) -> dict[str, Any]:
        name: str | None = self.rng.choice((*TRANSACTIONS * 4, "~none", ""))
        known = self.rng.random() < 0.9 and name in TRANSACTIONS
        number = TRANSACTIONS.index(name) if known else self.rng.choice((0, 1, 2, UNKNOWN))
        epoch = self.epochs.get(name, 0) + self.rng.choice((0, 0, 0, 0, 0, 1, -1))
        if self._key == ApiKey.INIT_PRODUCER_ID and self.rng.random() < 0.6:
            name, number, epoch = self.rng.choice((name, name, None)), -1, -1
        return {"transactional_id": name, "producer_id": number, "producer_epoch": epoch}

    def _pool(self, kind: Any, name: str) -> Sequence[Any]:
        is_group = self._about == ResourceType.GROUP
        if name == "configuration_keys" or (name == "name" and "Config" in kind.__name__):
            return _GROUP_SETTINGS if is_group else _TOPIC_SETTINGS
        if is_group and name in _OF_GROUPS:
            return _OF_GROUPS[name]
        return _POOLS.get((self._key, name)) or _POOLS.get(name.removeprefix(_OLD)) or ()

    def _value(self, hint: Any, name: str, pool: Sequence[Any]) -> Any:
        options = typing.get_args(hint)
        if type(None) in options:
            if None not in pool and self.rng.random() < 0.3:
                return None
            hint = next(option for option in options if option is not type(None))
        if typing.get_origin(hint) is tuple:
            element = typing.get_args(hint)[0]
            return [self._value(element, name, pool) for _ in range(self._length(name))]
        if dataclasses.is_dataclass(hint):
            return self._struct(hint)
        if hint is bool:
            return self.rng.random() < 0.4
        value = self.rng.choice(pool)
        if name == "resource_type":
            self._about = value
        return value

    def _length(self, name: str) -> int:
        if name == "assignments" and self.rng.random() < 0.8:
            return 0
        length = self.rng.choice((0, 1, 1, 1, 1, 2, 2, 3))
        return max(1, length) if self._key in _NEVER_EMPTY else length


def _once(structs: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return list({each[name]: each for each in structs}.values())
