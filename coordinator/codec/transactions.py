"""InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28).

InitProducerId: 3 brings the producer that goes on. AddPartitionsToTxn: 4 is for brokers, several transactions
at once. EndTxn 5 and TxnOffsetCommit 5 come from clients with an epoch for each transaction (KIP-890), which
add no partitions and no offsets by themselves. TxnOffsetCommit: 3 brings the member.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.offsets import CommittedPartition, PartitionError, committed_partition
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH, TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic

_BATCHED_FROM = 4


class AddPartitionsCall(msgspec.Struct, frozen=True, kw_only=True):
    """An AddPartitionsToTxn request: one transaction of a client, or several that a broker asks about."""

    transactions: tuple[transactions.AddPartitionsToTxnRequest, ...]
    api_version: int


class AddPartitionsReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each transaction of the request, in its order."""

    transactions: tuple[tuple[str, transactions.AddPartitionsToTxnResponse], ...]


class TxnOffsetCommitCall(msgspec.Struct, frozen=True, kw_only=True):
    """A TxnOffsetCommit request before its topics are looked up."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    member_id: str = ""
    member_epoch: int = NO_EPOCH
    instance_id: str | None = None
    topics: tuple[OfTopic[CommittedPartition], ...]
    api_version: int


class TxnOffsetCommitReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each partition of the request, in its order."""

    topics: tuple[OfTopic[PartitionError], ...]


def decode_init_producer_id(
    values: dict[str, Any], context: RequestContext
) -> transactions.InitProducerIdRequest:
    """InitProducerId, versions 0 to 5."""
    return transactions.InitProducerIdRequest(
        transactional_id=values["transactional_id"],
        timeout_ms=values["transaction_timeout"],
        producer_id=values.get("producer_id", transactions.NO_PRODUCER_ID),
        producer_epoch=values.get("producer_epoch", transactions.NO_PRODUCER_EPOCH),
    )


def encode_init_producer_id(reply: transactions.InitProducerIdResponse, shape: Shape) -> Any:
    """Versions before 4 do not know PRODUCER_FENCED."""
    return shape.InitProducerIdResponse(
        throttle_time=0,
        error_code=_fenced_before(reply.error_code, shape.version, 4),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


def _fenced_before(code: ErrorCode, version: int, first: int) -> ErrorCode:
    """What older clients are told when they were fenced (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and version < first:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def decode_add_partitions(values: dict[str, Any], context: RequestContext) -> AddPartitionsCall:
    """AddPartitionsToTxn, versions 0 to 5."""
    if context.api_version >= _BATCHED_FROM:
        found = tuple(
            _transaction(one, "", "topics", verify_only=one["verify_only"]) for one in values["transactions"]
        )
    else:
        found = (_transaction(values, "v3_and_below_", "v3_and_below_topics", verify_only=False),)
    return AddPartitionsCall(transactions=found, api_version=context.api_version)


def _transaction(
    values: dict[str, Any], prefix: str, topics: str, *, verify_only: bool
) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        transactional_id=values[f"{prefix}transactional_id"],
        producer_id=values[f"{prefix}producer_id"],
        producer_epoch=values[f"{prefix}producer_epoch"],
        verify_only=verify_only,
        partitions=tuple(
            TopicPartition(topic["name"], number)
            for topic in values[topics]
            for number in topic["partitions"]
        ),
    )


def encode_add_partitions(reply: AddPartitionsReply, shape: Shape) -> Any:
    """Versions before 2 do not know PRODUCER_FENCED."""
    results = [(transactional_id, _topic_results(one, shape)) for transactional_id, one in reply.transactions]
    if shape.version >= _BATCHED_FROM:
        return shape.AddPartitionsToTxnResponse(
            throttle_time=0,
            error_code=ErrorCode.NONE,
            results_by_transaction=tuple(
                shape.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
                for transactional_id, topics in results
            ),
        )
    return shape.AddPartitionsToTxnResponse(
        throttle_time=0, results_by_topic_v3_and_below=results[0][1] if results else ()
    )


def _topic_results(reply: transactions.AddPartitionsToTxnResponse, shape: Shape) -> tuple[Any, ...]:
    by_topic: dict[str, list[Any]] = {}
    for (topic, number), code in reply.errors.items():
        by_topic.setdefault(topic, []).append(
            shape.AddPartitionsToTxnPartitionResult(
                partition_index=number,
                partition_error_code=_fenced_before(code, shape.version, 2),
            )
        )
    return tuple(
        shape.AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=tuple(partitions),
        )
        for topic, partitions in by_topic.items()
    )


def decode_add_offsets(
    values: dict[str, Any], context: RequestContext
) -> transactions.AddOffsetsToTxnRequest:
    """AddOffsetsToTxn, versions 0 to 4."""
    return transactions.AddOffsetsToTxnRequest(
        transactional_id=values["transactional_id"],
        producer_id=values["producer_id"],
        producer_epoch=values["producer_epoch"],
        group_id=values["group_id"],
    )


def encode_add_offsets(reply: transactions.AddOffsetsToTxnResponse, shape: Shape) -> Any:
    """Versions before 2 do not know PRODUCER_FENCED."""
    code = _fenced_before(reply.error_code, shape.version, 2)
    return shape.AddOffsetsToTxnResponse(throttle_time=0, error_code=code)


def decode_end(values: dict[str, Any], context: RequestContext) -> transactions.EndTxnRequest:
    """EndTxn, versions 0 to 5."""
    return transactions.EndTxnRequest(
        transactional_id=values["transactional_id"],
        producer_id=values["producer_id"],
        producer_epoch=values["producer_epoch"],
        committed=values["committed"],
        client_version=transactions.EPOCH_PER_TRANSACTION if context.api_version >= 5 else 0,
    )


def encode_end(reply: transactions.EndTxnResponse, shape: Shape) -> Any:
    """Versions before 2 do not know PRODUCER_FENCED."""
    return shape.EndTxnResponse(
        throttle_time=0,
        error_code=_fenced_before(reply.error_code, shape.version, 2),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


def decode_offset_commit(values: dict[str, Any], context: RequestContext) -> TxnOffsetCommitCall:
    """TxnOffsetCommit, versions 0 to 5."""
    return TxnOffsetCommitCall(
        transactional_id=values["transactional_id"],
        group_id=values["group_id"],
        producer_id=values["producer_id"],
        producer_epoch=values["producer_epoch"],
        member_id=values.get("member_id", ""),
        member_epoch=values.get("generation_id", NO_EPOCH),
        instance_id=values.get("group_instance_id"),
        api_version=context.api_version,
        topics=tuple(
            OfTopic(name=topic["name"], partitions=tuple(map(committed_partition, topic["partitions"])))
            for topic in values["topics"]
        ),
    )


def encode_offset_commit(reply: TxnOffsetCommitReply, shape: Shape) -> Any:
    """TxnOffsetCommit, versions 0 to 5."""
    return shape.TxnOffsetCommitResponse(
        throttle_time=0,
        topics=tuple(
            shape.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    shape.TxnOffsetCommitResponsePartition(
                        partition_index=one.partition, error_code=one.error_code
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )
