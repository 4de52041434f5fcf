"""Counts the bytes that the messages of a membership take on the wire, without encoding them.

Whole frames with their length, of the newest versions: ConsumerGroupHeartbeat 1, JoinGroup 9, SyncGroup 5,
Heartbeat 4 and LeaveGroup 5. All of them are flexible (KIP-482): lengths are variable, and each header and
structure ends with its tagged fields, which are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.ids import Partitions

_REQUEST_HEADER: Final = 15
"""Length, API key, version, correlation id, length of the client id, tags."""
_RESPONSE_HEADER: Final = 9
"""Length, correlation id, tags."""
_TAGS: Final = 1
_NULL: Final = 1
_UUID: Final = 16
_SHORT: Final = 127
"""A shorter text, or list, has a length of one byte."""
_THROTTLE_AND_ERROR: Final = 6


def message_sizes(request: Any, reply: Any, client: str) -> str:
    """Return the bytes of a request and of its response, as a trace has them: `152+49`. `client` is the
    client id.

    :raises KeyError: if one of them is not one of the messages above.
    """
    asked = _REQUEST_HEADER + len(client) + _BODIES[type(request)](request) + _TAGS
    answered = _RESPONSE_HEADER + _THROTTLE_AND_ERROR + _BODIES[type(reply)](reply) + _TAGS
    return f"{asked}+{answered}"


def _heartbeat(request: consumer.ConsumerGroupHeartbeatRequest) -> int:
    names = request.subscribed_topic_names
    epoch_and_timeout = 8
    texts = (
        request.group_id,
        request.member_id,
        request.instance_id,
        request.rack_id,
        request.subscribed_topic_regex,
        request.server_assignor,
    )
    return (
        epoch_and_timeout
        + _texts(texts)
        + (_NULL if names is None else _length(len(names)) + _texts(names))
        + (_NULL if request.topic_partitions is None else _topics(request.topic_partitions))
    )


def _heartbeat_answer(reply: consumer.ConsumerGroupHeartbeatResponse) -> int:
    epoch_and_interval = 8
    # An assignment is a structure that may be null: a byte says whether it is there, and its tags end it.
    assignment = 1 + (0 if reply.assignment is None else _topics(reply.assignment) + _TAGS)
    return epoch_and_interval + _texts((reply.error_message, reply.member_id)) + assignment


def _topics(partitions: Partitions) -> int:
    size = _length(len(partitions))
    for numbers in partitions.values():
        size += _UUID + _length(len(numbers)) + 4 * len(numbers) + _TAGS
    return size


def _join(request: classic.JoinGroupRequest) -> int:
    two_timeouts = 8
    protocols = sum(_texts((each.name,)) + _data(each.metadata) + _TAGS for each in request.protocols)
    reason = _NULL
    texts = request.group_id, request.member_id, request.instance_id, request.protocol_type
    return two_timeouts + _texts(texts) + _length(len(request.protocols)) + protocols + reason


def _join_answer(reply: classic.JoinGroupResponse) -> int:
    generation_and_skip = 5
    members = sum(
        _texts((each.member_id, each.instance_id)) + _data(each.metadata) + _TAGS for each in reply.members
    )
    texts = reply.protocol_type, reply.protocol_name, reply.leader, reply.member_id
    return generation_and_skip + _texts(texts) + _length(len(reply.members)) + members


def _sync(request: classic.SyncGroupRequest) -> int:
    generation = 4
    assignments = sum(_texts((to,)) + _data(given) + _TAGS for to, given in request.assignments.items())
    texts = (
        request.group_id,
        request.member_id,
        request.instance_id,
        request.protocol_type,
        request.protocol_name,
    )
    return generation + _texts(texts) + _length(len(request.assignments)) + assignments


def _classic_heartbeat(request: classic.HeartbeatRequest) -> int:
    generation = 4
    return generation + _texts((request.group_id, request.member_id, request.instance_id))


def _leave(request: consumer.LeaveGroupRequest) -> int:
    reason = _NULL
    one_member = _length(1) + reason + _TAGS
    return one_member + _texts((request.group_id, request.member_id, request.instance_id))


def _leave_answer(reply: consumer.LeaveGroupResponse) -> int:
    error = 2
    return _length(1) + _texts((reply.member_id, reply.instance_id)) + error + _TAGS


_BODIES: Final[dict[type, Callable[[Any], int]]] = {
    consumer.ConsumerGroupHeartbeatRequest: _heartbeat,
    consumer.ConsumerGroupHeartbeatResponse: _heartbeat_answer,
    classic.JoinGroupRequest: _join,
    classic.JoinGroupResponse: _join_answer,
    classic.SyncGroupRequest: _sync,
    classic.SyncGroupResponse: lambda reply: (
        _texts((reply.protocol_type, reply.protocol_name)) + _data(reply.assignment)
    ),
    classic.HeartbeatRequest: _classic_heartbeat,
    classic.HeartbeatResponse: lambda _: 0,
    consumer.LeaveGroupRequest: _leave,
    consumer.LeaveGroupResponse: _leave_answer,
}


def _texts(texts: Iterable[str | None]) -> int:
    """Return the bytes of several texts; null takes as many as an empty text."""
    total = 0
    for text in texts:
        size = 0 if text is None else len(text) if text.isascii() else len(text.encode())
        total += size + (1 if size < _SHORT else _length(size))  # nearly all are short
    return total


def _data(data: bytes) -> int:
    return _length(len(data)) + len(data)


def _length(count: int) -> int:
    """Return the bytes of a length: one more than it, as a variable-length number."""
    return ((count + 1).bit_length() + 6) // 7
