"""AssignmentInfo, versions 7 to 11: data that the leader of Kafka Streams sends each thread.

The versions differ in their number, and from 10 on in how they name a task. The order is that of the
mappings, except that the dictionary of topics has the order of Java's hash tables.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignors.java_bytes import (
    JavaBytesReader,
    MalformedUserData,
    hash_of_text,
    in_hash_order,
    int32,
    modified_utf8,
)
from fencepost.member.classic.assignors.streams_metadata import (
    EARLIEST_VERSION,
    LATEST_VERSION,
    NAMED_TOPOLOGY_VERSION,
    HostInfo,
    check_version,
)

NO_REBALANCE_MS = 2**63 - 1
"""No further rebalance is requested."""

HostPartitions = Mapping[HostInfo, tuple[TopicPartition, ...]]


class AssignmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one thread, as its leader has assigned it."""

    version: int = LATEST_VERSION
    commonly_supported_version: int = LATEST_VERSION
    """The newest version that all members of the group support."""
    active_tasks: tuple[TaskId[int], ...] = ()
    """A task for each assigned partition, in the order of the partitions when they are sorted."""
    standby_tasks: Mapping[TaskId[int], tuple[TopicPartition, ...]] = {}
    partitions_by_host: HostPartitions = {}
    standby_partitions_by_host: HostPartitions = {}
    error_code: int = 0
    """An AssignorError. Unless it is NONE, ignore the other fields."""
    next_rebalance_ms: int = NO_REBALANCE_MS
    """Time at which this thread has to join again, in milliseconds since 1970; 0 is at once."""


def write_assignment_info(info: AssignmentInfo) -> bytes:
    """Return the bytes of `info`, in its version.

    :raises ValueError: if the version is not 7 to 11, or can't name a task.
    """
    check_version(info.version)
    parts = [int32(info.version), int32(info.commonly_supported_version), int32(len(info.active_tasks))]
    parts += [_task(task, info.version) for task in info.active_tasks]
    parts.append(int32(len(info.standby_tasks)))
    for task, partitions in info.standby_tasks.items():
        parts += [_task(task, info.version), int32(len(partitions))]
        parts += [modified_utf8(each.topic) + int32(each.partition) for each in partitions]
    parts += _hosts(info.partitions_by_host, info.standby_partitions_by_host)
    parts += [int32(info.error_code), struct.pack(">q", info.next_rebalance_ms)]
    return b"".join(parts)


def read_assignment_info(data: bytes | None) -> AssignmentInfo:
    """Read an assignment from bytes.

    :raises MalformedUserData: if they are not of version 7 to 11.
    """
    reader = JavaBytesReader(data or b"")
    version = reader.int32()
    if not EARLIEST_VERSION <= version <= LATEST_VERSION:
        raise MalformedUserData(f"version {version}, expected {EARLIEST_VERSION} to {LATEST_VERSION}")
    commonly = reader.int32()
    active = tuple(_read_task(reader, version) for _ in range(reader.count(8)))
    standby: dict[TaskId[int], tuple[TopicPartition, ...]] = {}
    for _ in range(reader.count(12)):
        task = _read_task(reader, version)
        standby[task] = tuple(TopicPartition(reader.text(), reader.int32()) for _ in range(reader.count(6)))
    topics: dict[int, str] = {}
    for _ in range(reader.count(6)):
        number = reader.int32()
        topics[number] = reader.text()
    return AssignmentInfo(
        version=version,
        commonly_supported_version=commonly,
        active_tasks=active,
        standby_tasks=standby,
        partitions_by_host=_read_hosts(reader, topics),
        standby_partitions_by_host=_read_hosts(reader, topics),
        error_code=reader.int32(),
        next_rebalance_ms=reader.number(8),
    )


def _task(task: TaskId[int], version: int) -> bytes:
    ids = struct.pack(">ii", task.subtopology, task.partition)
    if version >= NAMED_TOPOLOGY_VERSION:
        name = (task.topology or "").encode("utf-16-be", "surrogatepass")
        return ids + int32(len(name) // 2) + name
    if task.topology is not None:
        raise ValueError(f"task {task} is of a named topology: it takes version {NAMED_TOPOLOGY_VERSION}")
    return ids


def _read_task(reader: JavaBytesReader, version: int) -> TaskId[int]:
    subtopology, partition = reader.int32(), reader.int32()
    if version < NAMED_TOPOLOGY_VERSION:
        return TaskId(subtopology, partition)
    name = reader.take(2 * reader.int32()).decode("utf-16-be", "surrogatepass")
    return TaskId(subtopology, partition, name or None)


def _hosts(*maps: HostPartitions) -> list[bytes]:
    """The dictionary of the topics, and the maps that use it."""
    partitions = (one for hosts in maps for each in hosts.values() for one in each)
    numbers: dict[str, int] = {}
    for partition in in_hash_order(partitions, _hash_of_partition):
        numbers.setdefault(partition.topic, len(numbers))
    parts = [int32(len(numbers))]
    parts += [int32(numbers[topic]) + modified_utf8(topic) for topic in in_hash_order(numbers, hash_of_text)]
    for hosts in maps:
        parts.append(int32(len(hosts)))
        for host, hosted in hosts.items():
            parts += [modified_utf8(host.host), int32(host.port), int32(len(hosted))]
            parts += [struct.pack(">ii", numbers[one.topic], one.partition) for one in hosted]
    return parts


def _hash_of_partition(partition: TopicPartition) -> int:
    return 31 * (31 + partition.partition) + hash_of_text(partition.topic)


def _read_hosts(
    reader: JavaBytesReader, topics: Mapping[int, str]
) -> dict[HostInfo, tuple[TopicPartition, ...]]:
    hosts: dict[HostInfo, tuple[TopicPartition, ...]] = {}
    for _ in range(reader.count(10)):
        host = HostInfo(reader.text(), reader.int32())
        hosts[host] = tuple(_partition(reader, topics) for _ in range(reader.count(8)))
    return hosts


def _partition(reader: JavaBytesReader, topics: Mapping[int, str]) -> TopicPartition:
    number = reader.int32()
    if number not in topics:
        raise MalformedUserData(f"topic {number} is not in the dictionary")
    return TopicPartition(topics[number], reader.int32())
