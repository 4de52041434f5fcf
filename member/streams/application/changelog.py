"""The changes of stores, as records of a topic from which any process can restore them.

A changelog has a partition for each partition that is processed, under the name that Kafka Streams gives it.
Keys and values are MessagePack, so that numbers, text and bytes stay different; a deleted key has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.application.store import Key, TaskStore, Value

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class ChangelogUnavailable(Exception):
    """The changelog can't be read now; a retry may succeed."""


class Changelog(Protocol):
    """The changelogs of one client."""

    async def restore(self, partition: TopicPartition, store: TaskStore) -> None:
        """Bring the store of a processed partition up to the end of its changelog.

        An empty changelog leaves a store without a checkpoint unchanged: the store is older than the
        changelog.

        :raises ChangelogUnavailable: if that is not possible now; the store may be half restored.
        :raises StreamsError: if it never will be.
        """

    async def write(self, partition: TopicPartition, changes: Mapping[Key, Value | None]) -> int:
        """Write the changes, in this order; return the offset after the last change.

        :raises CommitRefused: if not everything was written.
        :raises StreamsError: if it never will be.
        """

    async def close(self) -> None:
        """Disconnect. Never raises."""


def changelog_topic(application_id: str, topic: str) -> str:
    """Return the changelog of a topic: `<application.id>-<store>-changelog`; the store has the name of the
    topic."""
    return f"{application_id}-{topic}-changelog"


def encode_change(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """Return the record of a change."""
    return _encode(key), None if value is None else _encode(value)


def decode_change(key: bytes, value: bytes | None) -> tuple[Key, Value | None]:
    """Return the change of a record.

    :raises ValueError: if it is not one of ours.
    """
    try:
        found, written = _decode(key), None if value is None else _decode(value)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, str | bytes | int) or not isinstance(written, str | bytes | int | float | None):
        raise ValueError(f"{found!r} and {written!r} are not the key and value of a store")
    return found, written
