"""The parts of two responses that must be equal: everything except the freedoms of a coordinator.

A coordinator is free to choose the texts of error messages, and the order of members, topics and groups in
lists, also in the bytes of an assignment of the classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import DescribedClassicMember, SyncGroupResponse
from fencepost.coordinator.protocol.consumer import ListGroupsResponse
from fencepost.coordinator.protocol.errors import ErrorCode

_NAMED = frozenset(
    {
        "topics",
        "groups",
        "members",
        "assignment",
        "target_assignment",
        "partitions",
        "subscribed_topic_names",
        "partitions_by_endpoint",
        "active",
        "standby",
    }
)
"""Fields that hold lists without an order; `assignment` of a heartbeat is a mapping and stays one."""


def comparable(answer: Any, group_id: str) -> Any:
    """Return a response as plain values, without its free parts."""
    if isinstance(answer, ListGroupsResponse):
        answer = msgspec.structs.replace(
            answer, groups=tuple(group for group in answer.groups if group.group_id == group_id)
        )
    return _plain(answer)


def _plain(value: Any) -> Any:
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, SyncGroupResponse | DescribedClassicMember):
        fields = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        return {**fields, "assignment": _plain_assignment(value.assignment)}
    if isinstance(value, msgspec.Struct):
        return {
            name: _plain(_ordered(name, getattr(value, name)))
            for name in value.__struct_fields__
            if name != "error_message"
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def _plain_assignment(data: bytes) -> Any:
    """Return the assignment in these bytes with its version; the bytes themselves if they are of another
    kind."""
    try:
        found = consumer_protocol.read_assignment(data)
        return {"version": consumer_protocol.version_of(data) if data else None, **_plain(found)}
    except consumer_protocol.MalformedConsumerProtocol:
        return data


def _ordered(name: str, value: Any) -> Any:
    if name in _NAMED and isinstance(value, tuple):
        return sorted(value, key=_KEYS.get(name, repr))
    return value


_KEYS: dict[str, Callable[[Any], Any]] = {
    "members": lambda member: (member.member_id, member.instance_id or ""),
    # Threads of one process share an endpoint: their topics distinguish them, and have no order either.
    "partitions_by_endpoint": lambda entry: repr(_plain(entry)),
}


def differing(kafka: Any, ours: Any, path: str = "") -> list[str]:
    """Return the fields in which two comparable responses differ, with both values: `path: Kafka's, ours`."""
    if isinstance(kafka, dict) and isinstance(ours, dict) and kafka.keys() == ours.keys():
        return [
            line for key in kafka for line in differing(kafka[key], ours[key], f"{path}.{key}".lstrip("."))
        ]
    if isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        pairs = enumerate(zip(kafka, ours, strict=True))
        return [line for index, (one, other) in pairs for line in differing(one, other, f"{path}[{index}]")]
    return [] if kafka == ours else [f"{path or 'answer'}: Kafka {_short(kafka)}, fencepost {_short(ours)}"]


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode()
