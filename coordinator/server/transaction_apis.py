"""Handlers of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fencepost.coordinator.codec.transactions import (
    AddPartitionsCall,
    AddPartitionsReply,
    TxnOffsetCommitCall,
    TxnOffsetCommitReply,
)
from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
)
from fencepost.coordinator.server.existing_topics import commit_existing
from fencepost.coordinator.server.services import Asked, May, Services
from fencepost.coordinator.server.turns import Work, in_turns

R = TypeVar("R")
_ABORTABLE_FROM, _ADDED_BY_BROKER_FROM = 4, 5
"""Versions of TxnOffsetCommit: the first that knows TRANSACTION_ABORTABLE, the first whose group is added."""
_AS_OLDER_CLIENTS_KNOW_IT = {
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION,
}


def init_producer_id(
    services: Services, request: transactions.InitProducerIdRequest, asked: Asked
) -> transactions.InitProducerIdResponse:
    """Return a fresh id, or the next epoch of a transactional id."""
    if request.names_half:
        return transactions.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        producer_id = services.cluster.next_producer_id()
        return transactions.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    return services.transactions.ask(request, services.node_id)


@in_turns
def add_partitions(services: Services, call: AddPartitionsCall, asked: Asked) -> Work[AddPartitionsReply]:
    """Add all partitions of a transaction, or none: a missing one prevents the others."""
    added = []
    for one in call.transactions:
        added.append((one.transactional_id, _added(services, one, None if call.is_of_broker else asked.may)))
        yield _TRANSACTION + len(one.partitions)
    return AddPartitionsReply(transactions=tuple(added))


_TRANSACTION = 50
"""Cost of a query about one transaction, in elements of a request."""


def _added(
    services: Services, request: transactions.AddPartitionsToTxnRequest, may: May | None
) -> transactions.AddPartitionsToTxnResponse:
    wrong = {
        one: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for one in request.partitions if not _exists(services, one)
    }
    if may is not None:
        denied = (
            one for one in request.partitions if not may(AclOperation.WRITE, AclResourceType.TOPIC, one.topic)
        )
        wrong |= dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if wrong:
        return transactions.AddPartitionsToTxnResponse(
            errors={one: wrong.get(one, ErrorCode.OPERATION_NOT_ATTEMPTED) for one in request.partitions}
        )
    return services.transactions.ask(request, services.node_id)


def _exists(services: Services, partition: TopicPartition) -> bool:
    topic = services.cluster.image.by_name.get(partition.topic)
    return topic is not None and 0 <= partition.partition < topic.partitions


def ask(services: Services, request: Asks[R], asked: Asked) -> R:
    """Return the transaction coordinator's reply. EndTxn gets it when the markers are written."""
    return services.transactions.ask(request, services.node_id)


def offset_commit(services: Services, call: TxnOffsetCommitCall, asked: Asked) -> TxnOffsetCommitReply:
    """Commit positions with the transaction; first the transaction is checked, then the member."""

    def commit(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ErrorCode]:
        code = _refusal(services, call)
        if code is not ErrorCode.NONE:
            return dict.fromkeys(offsets, code)
        reply = services.ask(
            OffsetCommitRequest(
                group_id=call.group_id,
                member_id=call.member_id,
                member_epoch=call.member_epoch,
                instance_id=call.instance_id,
                offsets=offsets,
                producer_id=call.producer_id,
            )
        )
        return {one: _AS_OLDER_CLIENTS_KNOW_IT.get(code, code) for one, code in reply.errors.items()}

    limit = services.config.offset_metadata_max_bytes
    topics = commit_existing(services.cluster, call.topics, commit, metadata_max_bytes=limit)
    return TxnOffsetCommitReply(topics=topics)


def _refusal(services: Services, call: TxnOffsetCommitCall) -> ErrorCode:
    """Return the error that prevents the commit, or NONE. Only the group's coordinator adds the group to the
    transaction."""
    if not call.group_id:
        return ErrorCode.INVALID_GROUP_ID
    code = services.groups.absence(call.group_id, services.node_id)
    return _transaction_code(services, call) if code is ErrorCode.NONE else code


def _transaction_code(services: Services, call: TxnOffsetCommitCall) -> ErrorCode:
    """Return the error of the transaction, or NONE. For newer clients, add the group to the transaction."""
    added = call.api_version >= _ADDED_BY_BROKER_FROM
    code = services.transactions.check_offsets(
        transactions.AddOffsetsToTxnRequest(
            transactional_id=call.transactional_id,
            producer_id=call.producer_id,
            producer_epoch=call.producer_epoch,
            group_id=call.group_id,
            verify_only=not added,
            client_version=transactions.EPOCH_PER_TRANSACTION if added else 0,
        )
    )
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and call.api_version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return code
