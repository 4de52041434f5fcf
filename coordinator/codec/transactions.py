"""InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28).

InitProducerId: 3 brings the previous id and epoch of a producer. AddPartitionsToTxn: 4 is for brokers,
several transactions at once. EndTxn 5 and TxnOffsetCommit 5 come from clients with an epoch for each
transaction (KIP-890), which add no partitions and no offsets by themselves. TxnOffsetCommit: 3 brings the
member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fencepost.coordinator.codec.layout import Layout, Via, row
from fencepost.coordinator.codec.offsets import COMMITTED, ERRORS, CommittedPartition, PartitionError
from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH, TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic


class AddPartitionsCall(msgspec.Struct, frozen=True, kw_only=True):
    """An AddPartitionsToTxn request: one transaction of a client, or several from a broker."""

    transactions: tuple[transactions.AddPartitionsToTxnRequest, ...]
    api_version: int

    @property
    def is_of_broker(self) -> bool:
        """True for a version that only brokers send to each other."""
        return self.api_version >= _OF_BROKERS_FROM


class AddPartitionsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each transaction of the request, in its order."""

    transactions: tuple[tuple[str, transactions.AddPartitionsToTxnResponse], ...] = ()
    error_code: ErrorCode = ErrorCode.NONE


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


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Return the numbers of partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def topic_partitions_of(topics: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TopicPartition, ...]:
    """Return partitions one by one."""
    return tuple(TopicPartition(topic, number) for topic, numbers in topics for number in numbers)


def _older(first: int) -> Via:
    """Return an error code; before the version `first`, clients do not know PRODUCER_FENCED (KIP-588)."""
    return Via(codes={ErrorCode.PRODUCER_FENCED: (first, ErrorCode.INVALID_PRODUCER_EPOCH)})


_PARTITIONS = Via(
    of=row("name", "partitions"),
    read=topic_partitions_of,
    write=lambda partitions: partitions_by_topic(partitions).items(),
)
_V3 = "v3_and_below_"
_OF_BROKERS_FROM = 4


def _add_partitions(values: dict[str, Any], context: Any) -> AddPartitionsCall:
    found = values.get("transactions")
    if found is None:
        only = transactions.AddPartitionsToTxnRequest(
            transactional_id=values[f"{_V3}transactional_id"],
            producer_id=values[f"{_V3}producer_id"],
            producer_epoch=values[f"{_V3}producer_epoch"],
            partitions=values[f"{_V3}topics"],
        )
        found = (only,)
    return AddPartitionsCall(transactions=found, api_version=context.api_version)


def _results(topics: Iterable[tuple[str, Any]]) -> transactions.AddPartitionsToTxnResponse:
    errors = {TopicPartition(topic, number): code for topic, codes in topics for number, code in codes}
    return transactions.AddPartitionsToTxnResponse(errors=errors)


def _result_rows(reply: transactions.AddPartitionsToTxnResponse) -> Any:
    by_topic: dict[str, list[tuple[int, ErrorCode]]] = {}
    for (topic, number), code in reply.errors.items():
        by_topic.setdefault(topic, []).append((number, code))
    return by_topic.items()


_RESULTS = Via(
    of=row(
        "name",
        "results_by_partition",
        fields={
            "results_by_partition": row(
                "partition_index", "partition_error_code", fields={"partition_error_code": _older(2)}
            )
        },
    ),
    read=_results,
    write=_result_rows,
)
_RESULTS_OF_ONE = "results_by_topic_v3_and_below"


INIT_PRODUCER_ID_REQUEST = Layout(transactions.InitProducerIdRequest, {"timeout_ms": "transaction_timeout"})
INIT_PRODUCER_ID_RESPONSE = Layout(transactions.InitProducerIdResponse, fields={"error_code": _older(4)})
ADD_PARTITIONS_TO_TXN_REQUEST = Layout(
    AddPartitionsCall,
    fields={
        "transactions": Layout(
            transactions.AddPartitionsToTxnRequest,
            {"partitions": "topics"},
            fields={"partitions": _PARTITIONS},
        ),
        f"{_V3}topics": _PARTITIONS,
    },
    write={
        f"{_V3}transactional_id": lambda call, _: call.transactions[0].transactional_id,
        f"{_V3}producer_id": lambda call, _: call.transactions[0].producer_id,
        f"{_V3}producer_epoch": lambda call, _: call.transactions[0].producer_epoch,
        f"{_V3}topics": lambda call, _: call.transactions[0].partitions,
    },
    read=_add_partitions,
)
ADD_PARTITIONS_TO_TXN_RESPONSE = Layout(
    AddPartitionsReply,
    {"transactions": "results_by_transaction"},
    fields={
        "transactions": row("transactional_id", "topic_results", fields={"topic_results": _RESULTS}),
        _RESULTS_OF_ONE: _RESULTS,
    },
    write={
        _RESULTS_OF_ONE: lambda reply, _: reply.transactions[0][1] if reply.transactions else _results(())
    },
    read=lambda values, _: AddPartitionsReply(
        transactions=values["transactions"] if "transactions" in values else (("", values[_RESULTS_OF_ONE]),)
    ),
)
ADD_OFFSETS_TO_TXN_REQUEST = Layout(transactions.AddOffsetsToTxnRequest)
ADD_OFFSETS_TO_TXN_RESPONSE = Layout(transactions.AddOffsetsToTxnResponse, fields={"error_code": _older(2)})
END_TXN_REQUEST = Layout(
    transactions.EndTxnRequest,
    read=lambda values, context: transactions.EndTxnRequest(
        **values, client_version=transactions.EPOCH_PER_TRANSACTION if context.api_version >= 5 else 0
    ),
)
END_TXN_RESPONSE = Layout(transactions.EndTxnResponse, fields={"error_code": _older(2)})
TXN_OFFSET_COMMIT_REQUEST = Layout(
    TxnOffsetCommitCall,
    {"member_epoch": "generation_id", "instance_id": "group_instance_id"},
    fields={"topics": COMMITTED},
)
TXN_OFFSET_COMMIT_RESPONSE = Layout(TxnOffsetCommitReply, fields={"topics": ERRORS})
