"""SubscriptionInfo, versions 7 to 11: the data that a thread of Kafka Streams sends when it joins.

Version 7 has offset sums, 8 a byte that makes each join differ from the last, 9 the error code of KIP-671, 10
the names of topologies, 11 the tags of the client. The order is that of the mappings, except for the groups
of versions 7 to 9, which have that of Java's hash table.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignors.java_bytes import (
    JavaBytesReader,
    MalformedUserData,
    in_hash_order,
    int32,
)
from fencepost.member.classic.assignors.streams_metadata import (
    EARLIEST_VERSION,
    LATEST_VERSION,
    NAMED_TOPOLOGY_VERSION,
    check_version,
)

RUNS_ACTIVE = -2
"""Offset sum of an active task of the thread itself."""

ERROR_CODE_VERSION = 9
"""The first version in which a member can ask for a shutdown."""

_UNIQUE_FIELD_VERSION = 8
_CLIENT_TAGS_VERSION = 11
_LAST_PLAUSIBLE_VERSION = 1_000
"""Four bytes of text are a larger number: a member that sends them is not a thread of a future Kafka Streams.
"""
_NO_PROCESS = uuid.UUID(int=0)


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one thread about itself and its process.

    If its version is newer than ours, only the two version numbers are known; the rest is at its default.
    """

    version: int = LATEST_VERSION
    latest_supported_version: int = LATEST_VERSION
    process_id: uuid.UUID = _NO_PROCESS
    user_endpoint: str | None = None
    """The address at which the process serves queries, as host:port."""
    task_offset_sums: Mapping[TaskId[int], int] = {}
    """Sum of the offsets of each task's state; RUNS_ACTIVE for the active tasks of the thread."""
    unique_field: int = 0
    """From -128 to 127; it changes with each join."""
    error_code: int = 0
    """An AssignorError; SHUTDOWN_REQUESTED requests the end of the application from the leader."""
    client_tags: Mapping[str, str] = {}


def write_subscription_info(info: SubscriptionInfo) -> bytes:
    """The bytes of `info`, in its version. Fields that the version does not have are left out.

    :raises ValueError: if the version is not 7 to 11, above what the sender supports, or can't name a task.
    """
    check_version(info.version)
    if info.version > info.latest_supported_version:
        raise ValueError(f"version {info.version} is above {info.latest_supported_version}, the latest")
    endpoint = (info.user_endpoint or "").encode()
    parts = [
        int32(info.version),
        int32(info.latest_supported_version),
        info.process_id.bytes,
        _sized(endpoint),
    ]
    if info.version >= NAMED_TOPOLOGY_VERSION:
        parts += _named_sums(info.task_offset_sums)
    else:
        parts += _grouped_sums(info.task_offset_sums)
    if info.version >= _UNIQUE_FIELD_VERSION:
        parts.append(struct.pack(">b", info.unique_field))
    if info.version >= ERROR_CODE_VERSION:
        parts.append(int32(info.error_code))
    if info.version >= _CLIENT_TAGS_VERSION:
        parts.append(int32(len(info.client_tags)))
        for key, value in info.client_tags.items():
            parts += [_sized(key.encode()), _sized(value.encode())]
    return b"".join(parts)


def read_subscription_info(data: bytes | None) -> SubscriptionInfo:
    """Read a subscription from bytes.

    :raises MalformedUserData: if they are not of a version from 7 on.
    """
    reader = JavaBytesReader(data or b"")
    version, latest = reader.int32(), reader.int32()
    if not EARLIEST_VERSION <= version <= latest <= _LAST_PLAUSIBLE_VERSION:
        raise MalformedUserData(
            f"version {version} of at most {latest}, expected {EARLIEST_VERSION} to {LATEST_VERSION}"
        )
    if version > LATEST_VERSION:
        return SubscriptionInfo(version=version, latest_supported_version=latest)
    process_id = uuid.UUID(bytes=reader.take(16))
    endpoint = _text(reader)
    sums = _read_named_sums(reader) if version >= NAMED_TOPOLOGY_VERSION else _read_grouped_sums(reader)
    unique_field = reader.number(1) if version >= _UNIQUE_FIELD_VERSION else 0
    error_code = reader.int32() if version >= ERROR_CODE_VERSION else 0
    tags: dict[str, str] = {}
    if version >= _CLIENT_TAGS_VERSION:
        for _ in range(reader.count(8)):
            key = _text(reader)
            tags[key] = _text(reader)
    return SubscriptionInfo(
        version=version,
        latest_supported_version=latest,
        process_id=process_id,
        user_endpoint=endpoint or None,
        task_offset_sums=sums,
        unique_field=unique_field,
        error_code=error_code,
        client_tags=tags,
    )


def _sized(data: bytes) -> bytes:
    return int32(len(data)) + data


def _text(reader: JavaBytesReader) -> str:
    return reader.take(reader.int32()).decode("utf-8", "replace")


def _named_sums(sums: Mapping[TaskId[int], int]) -> list[bytes]:
    parts = [int32(len(sums))]
    for task, offset_sum in sums.items():
        parts.append(struct.pack(">iiq", task.subtopology, task.partition, offset_sum))
        if task.topology is None:
            parts.append(struct.pack(">h", -1))
        else:
            name = task.topology.encode()
            parts.append(struct.pack(">h", len(name)) + name)
    return parts


def _grouped_sums(sums: Mapping[TaskId[int], int]) -> list[bytes]:
    groups: dict[int, list[tuple[int, int]]] = {}
    for task, offset_sum in sums.items():
        if task.topology is not None:
            raise ValueError(f"task {task} is of a named topology: it takes version {NAMED_TOPOLOGY_VERSION}")
        groups.setdefault(task.subtopology, []).append((task.partition, offset_sum))
    parts = [int32(len(groups))]
    # HashMap.computeIfAbsent, which fills the table, puts a new key before the rest of its bucket.
    for subtopology in in_hash_order(reversed(groups), int):
        parts += [int32(subtopology), int32(len(groups[subtopology]))]
        parts += [struct.pack(">iq", partition, offset_sum) for partition, offset_sum in groups[subtopology]]
    return parts


def _read_named_sums(reader: JavaBytesReader) -> dict[TaskId[int], int]:
    sums: dict[TaskId[int], int] = {}
    for _ in range(reader.count(18)):
        subtopology, partition, offset_sum = reader.int32(), reader.int32(), reader.number(8)
        length = reader.number(2)
        name = None if length < 0 else reader.take(length).decode("utf-8", "replace")
        sums[TaskId(subtopology, partition, name)] = offset_sum
    return sums


def _read_grouped_sums(reader: JavaBytesReader) -> dict[TaskId[int], int]:
    sums: dict[TaskId[int], int] = {}
    for _ in range(reader.count(8)):
        subtopology = reader.int32()
        for _ in range(reader.count(12)):
            partition = reader.int32()
            sums[TaskId(subtopology, partition)] = reader.number(8)
    return sums
