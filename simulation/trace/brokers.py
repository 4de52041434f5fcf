"""What a Kafka cluster has, asked of whichever broker answers: its topics, by one Metadata request.

The question blocks, and needs no client: it is asked before a client is made, so that a broker which is away
or a topic that is not there is told plainly.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicId

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
_VERSION: Final = 12
_LONGEST_ANSWER: Final = 64 << 20
_LENGTH: Final = struct.Struct(">i")


class KnownTopic(msgspec.Struct, frozen=True):
    """A topic of a cluster."""

    topic_id: TopicId | None
    partitions: int


class ClusterTopics(msgspec.Struct, frozen=True):
    """The topics of a cluster, by name, and where its brokers are."""

    topics: Mapping[str, KnownTopic]
    brokers: frozenset[str]
    """HOST:PORT of each."""


def addresses(servers: str, option: str) -> list[tuple[str, int]]:
    """Host and port of each broker of a list with commas.

    :raises FencepostError: if one is not HOST:PORT; `option` is where it was given.
    """
    found = []
    for word in servers.split(","):
        host, _, port = word.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise FencepostError(f"{option}: expected HOST:PORT, such as 127.0.0.1:9092, got {servers}")
        found.append((host.strip("[]"), int(port)))
    return found


def ask_topics(servers: str, option: str) -> ClusterTopics:
    """The cluster's topics, as the first broker of the list knows them that answers.

    :raises FencepostError: if the list is none.
    :raises EnvironmentLacks: if none of them answers as a Kafka broker does.
    """
    reasons = []
    for host, port in addresses(servers, option):
        try:
            with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
                connection.settimeout(ANSWER_SECONDS)
                return _ask(connection)
        except TimeoutError:
            reasons.append("no answer in time")
        except (OSError, ValueError) as error:
            strerror = getattr(error, "strerror", None)
            reasons.append(strerror.lower() if strerror else str(error))
    why = "; ".join(dict.fromkeys(reasons))
    raise EnvironmentLacks(f"{option}: no Kafka broker answers at {servers} ({why})")


def require_topic(servers: str, topic: str, option: str) -> KnownTopic:
    """The topic of that name.

    :raises FencepostError: if the cluster has none, or its brokers' address is none.
    :raises EnvironmentLacks: if no broker answers.
    """
    known = ask_topics(servers, option).topics.get(topic)
    if known is None:
        raise FencepostError(f"{option}: {servers} has no topic {topic!r}: create it, or name another")
    return known


def _ask(connection: socket.socket) -> ClusterTopics:
    from fencepost.coordinator.codec.client import read_response, request_frame
    from fencepost.coordinator.codec.framing import MalformedFrame
    from fencepost.coordinator.codec.registry import ApiKey
    from fencepost.coordinator.protocol.cluster import MetadataRequest

    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    connection.sendall(request_frame(ApiKey.METADATA, _VERSION, 1, "fencepost", request))
    (size,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if not 0 < size < _LONGEST_ANSWER:
        raise ValueError("its answer is none of Kafka's")
    answer = _receive(connection, size)
    try:
        metadata = read_response(ApiKey.METADATA, _VERSION, answer)[1]
    except MalformedFrame as error:
        raise ValueError("its answer is none of Kafka's") from error
    return ClusterTopics(
        {
            topic.name: KnownTopic(topic.topic_id, len(topic.partitions))
            for topic in metadata.topics
            if topic.name and topic.error_code is ErrorCode.NONE
        },
        frozenset(f"{node.host}:{node.port}" for node in metadata.brokers),
    )


def _receive(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 16))
        if not part:
            raise ValueError("it closed the connection: is that a Kafka broker?")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
