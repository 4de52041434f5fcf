"""The bytes that consumers put into the classic protocol: subscriptions and assignments (ConsumerProtocol).

First there is a version, then a body that is never flexible. Later versions only add fields at the end, so a
reader can read the known fields of an unknown version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec

NO_OWNED: Mapping[str, tuple[int, ...]] = {}
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
NEWEST_VERSION = 3
"""The version of subscriptions and of assignments; each version adds fields at the end, or no fields."""


class MalformedConsumerProtocol(ValueError):
    """Bytes that are no subscription, or no assignment."""


class ConsumerProtocolSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription that a consumer sends when it joins."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: Mapping[str, tuple[int, ...]] = NO_OWNED
    """Partitions by topic that it has not released; version 1."""
    generation: int = -1
    rack_id: str | None = None


class ConsumerProtocolAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of a consumer."""

    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None = None


MAX_ELEMENTS = 120_000
"""The most topics and partitions that are read from one subscription or assignment."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._left = MAX_ELEMENTS

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedConsumerProtocol(f"{size} bytes at {self._at} are not in {len(self._data)} bytes")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedConsumerProtocol(str(error)) from error

    def nullable_text(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self.text(length)

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._take(length)

    def length(self) -> int:
        length = self.int32()
        if not 0 <= length <= len(self._data):
            raise MalformedConsumerProtocol(f"an array of {length} elements in {len(self._data)} bytes")
        self._left -= length
        if self._left < 0:
            raise MalformedConsumerProtocol(f"more than {MAX_ELEMENTS} topics and partitions (MAX_ELEMENTS)")
        return length

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.length()):
            topic = self.text(self.int16())
            numbers = {self.int32() for _ in range(self.length())}
            found[topic] = tuple(sorted(numbers.union(found.get(topic, ()))))
        return found


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Return the subscription in the bytes.

    :raises MalformedConsumerProtocol: if they are not a subscription.
    """
    reader = _Reader(data)
    version, topics, user_data = _first_of_subscription(reader)
    return ConsumerProtocolSubscription(
        topics=topics,
        user_data=user_data,
        owned=reader.partitions() if version >= 1 else NO_OWNED,
        generation=reader.int32() if version >= 2 else -1,
        rack_id=reader.nullable_text() if version >= 3 else None,
    )


def read_subscribed_topics(data: bytes) -> tuple[str, ...]:
    """Return only the topics, from the part that all versions begin with, as a broker does; the rest may be
    missing.

    :raises MalformedConsumerProtocol: if the bytes are not a subscription.
    """
    _, topics, _ = _first_of_subscription(_Reader(data))
    return topics


def _first_of_subscription(reader: _Reader) -> tuple[int, tuple[str, ...], bytes | None]:
    """Return the version, and everything in version 0: topics and the assignor's own data."""
    version = reader.int16()
    if version < 0:
        raise MalformedConsumerProtocol(f"version {version}")
    topics = tuple(reader.text(reader.int16()) for _ in range(reader.length()))
    return version, topics, reader.nullable_bytes()


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Return the assignment in the bytes; no bytes are an empty assignment.

    :raises MalformedConsumerProtocol: if they are not an assignment.
    """
    if not data:
        return ConsumerProtocolAssignment(partitions={})
    reader = _Reader(data)
    if (version := reader.int16()) < 0:
        raise MalformedConsumerProtocol(f"version {version}")
    return ConsumerProtocolAssignment(partitions=reader.partitions(), user_data=reader.nullable_bytes())


def write_subscription(subscription: ConsumerProtocolSubscription) -> bytes:
    """Return the subscription's bytes, in the newest version."""
    rack_id = subscription.rack_id
    parts = [
        _INT16.pack(NEWEST_VERSION),
        _INT32.pack(len(subscription.topics)),
        *map(_text, subscription.topics),
        _bytes(subscription.user_data),
        *_partitions(subscription.owned),
        _INT32.pack(subscription.generation),
        _INT16.pack(-1) if rack_id is None else _text(rack_id),
    ]
    return b"".join(parts)


def write_assignment(assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION) -> bytes:
    """Return the assignment's bytes; versions 0 to 3 differ in their number only."""
    parts = [_INT16.pack(version), *_partitions(assignment.partitions), _bytes(assignment.user_data)]
    return b"".join(parts)


def version_of(data: bytes) -> int:
    """Return the version of a subscription or an assignment.

    :raises MalformedConsumerProtocol: if there is no version.
    """
    return _Reader(data).int16()


def _text(value: str) -> bytes:
    raw = value.encode()
    return _INT16.pack(len(raw)) + raw


def _bytes(value: bytes | None) -> bytes:
    return _INT32.pack(-1) if value is None else _INT32.pack(len(value)) + value


def _partitions(partitions: Mapping[str, Iterable[int]]) -> list[bytes]:
    parts = [_INT32.pack(len(partitions))]
    for topic, numbers in partitions.items():
        listed = tuple(numbers)
        parts += [_text(topic), _INT32.pack(len(listed)), *map(_INT32.pack, listed)]
    return parts
