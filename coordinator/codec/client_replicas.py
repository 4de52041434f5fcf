"""The client's half of moving a partition's leader: ElectLeaders (43), AlterPartitionReassignments (45)."""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol.errors import ErrorCode

_TIMEOUT = 10_000
_PREFERRED = 0


class ReassignCall(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers that are to hold one partition, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


class ElectCall(msgspec.Struct, frozen=True, kw_only=True):
    """Let the preferred leader of one partition lead it."""

    topic: str
    partition: int


class ReplicaReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of either: the request's error, or its one partition's."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def encode_reassign(call: ReassignCall, shape: Shape) -> Any:
    """AlterPartitionReassignments, version 0."""
    partition = shape.ReassignablePartition(partition_index=call.partition, replicas=call.replicas)
    return shape.AlterPartitionReassignmentsRequest(
        timeout=_TIMEOUT, topics=(shape.ReassignableTopic(name=call.topic, partitions=(partition,)),)
    )


def decode_reassign(values: dict[str, Any], version: int) -> ReplicaReply:
    """AlterPartitionReassignments, version 0, for one partition."""
    return _reply(values, [one for topic in values["responses"] for one in topic["partitions"]])


def encode_elect(call: ElectCall, shape: Shape) -> Any:
    """ElectLeaders, versions 1 and 2."""
    return shape.ElectLeadersRequest(
        election_type=_PREFERRED,
        topic_partitions=(shape.TopicPartitions(topic=call.topic, partitions=(call.partition,)),),
        timeout=_TIMEOUT,
    )


def decode_elect(values: dict[str, Any], version: int) -> ReplicaReply:
    """ElectLeaders, versions 1 and 2, for one partition."""
    results = values["replica_election_results"]
    return _reply(values, [one for topic in results for one in topic["partition_result"]])


def _reply(values: dict[str, Any], partitions: list[dict[str, Any]]) -> ReplicaReply:
    whole = error_of(values["error_code"])
    if whole is not ErrorCode.NONE or not partitions:
        return ReplicaReply(error_code=whole, error_message=values.get("error_message"))
    return ReplicaReply(
        error_code=error_of(partitions[0]["error_code"]), error_message=partitions[0]["error_message"]
    )
