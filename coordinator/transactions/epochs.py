"""Checks of the producer that writes under a transactional id: producer ids and epochs, and their order
(KIP-360, KIP-890)."""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.transaction_records import TransactionValue
from fencepost.coordinator.transactions.states import TransactionState

LAST_EPOCH = 32_767
EXHAUSTED_EPOCH = LAST_EPOCH - 1
"""No producer gets a higher epoch: the last one is left for fencing it."""


def initialized(now: TransactionValue, request: transactions.InitProducerIdRequest) -> TransactionValue:
    """Return the state with the next epoch, for a producer that begins or continues after an error; a retry
    changes nothing.

    :raises ProtocolError: PRODUCER_FENCED if the requesting producer has been replaced.
    """
    mine = {transactions.NO_PRODUCER_EPOCH, now.producer_epoch}
    if now.producer_epoch == LAST_EPOCH:  # the end of its last transaction used up its epochs
        mine.add(now.last_producer_epoch)
    if now.producer_epoch >= EXHAUSTED_EPOCH and request.producer_epoch in mine:
        return msgspec.structs.replace(
            now,
            producer_id=request.next_producer_id,
            producer_epoch=0,
            last_producer_id=now.producer_id,
            last_producer_epoch=request.producer_epoch,
        )
    if request.producer_id == transactions.NO_PRODUCER_ID:
        last = transactions.NO_PRODUCER_EPOCH
    elif now.producer_epoch in {transactions.NO_PRODUCER_EPOCH, request.producer_epoch}:
        last = now.producer_epoch
    elif request.producer_epoch == now.last_producer_epoch:
        return now
    else:
        raise _fenced(now, request.producer_id, request.producer_epoch)
    return msgspec.structs.replace(now, producer_epoch=now.producer_epoch + 1, last_producer_epoch=last)


def check_successor(now: TransactionValue, request: transactions.InitProducerIdRequest) -> None:
    """Check that a producer with an id and an epoch is this one, is new here, or missed that its epochs ran
    out.

    :raises ProtocolError: PRODUCER_FENCED if not.
    """
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id not in {transactions.NO_PRODUCER_ID, now.producer_id} and not (
        now.producer_epoch == transactions.NO_PRODUCER_EPOCH
        or (producer_id == now.last_producer_id and epoch >= EXHAUSTED_EPOCH)
    ):
        raise _fenced(now, producer_id, epoch)


def check_producer(now: TransactionValue, producer_id: int, epoch: int) -> None:
    """Check that the requesting producer is the present one.

    :raises ProtocolError: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED.
    """
    if producer_id != now.producer_id:
        raise _unknown(now, producer_id)
    if epoch != now.producer_epoch:
        raise _fenced(now, producer_id, epoch)


def is_retry(now: TransactionValue, request: transactions.EndTxnRequest) -> bool:
    """Return true if it repeats a request whose response got lost: the epoch, or even the id, has advanced
    since.

    :raises ProtocolError: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED.
    """
    if request.client_version < transactions.EPOCH_PER_TRANSACTION:
        check_producer(now, request.producer_id, request.producer_epoch)
        return False
    state = TransactionState.of_code(now.status)
    overflown = (
        request.producer_id == now.last_producer_id
        and request.producer_epoch == EXHAUSTED_EPOCH
        and now.producer_epoch == 0
    )
    bumped = request.producer_epoch + 1 == now.producer_epoch
    current = request.producer_epoch == now.producer_epoch
    if request.producer_id != now.producer_id and not overflown:
        raise _unknown(now, request.producer_id)
    if state in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}:
        allowed = bumped
    elif state in {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}:
        allowed = bumped or overflown or current
    else:
        allowed = current
    if not allowed:
        raise _fenced(now, request.producer_id, request.producer_epoch)
    return bumped or overflown


def after_end(now: TransactionValue, client_version: int, next_producer_id: int) -> TransactionValue:
    """Return the state with the epoch of the markers: the next one, if each transaction has its own. It may
    be the id's last."""
    if client_version < transactions.EPOCH_PER_TRANSACTION:
        return now
    exhausted = now.producer_epoch >= EXHAUSTED_EPOCH
    return msgspec.structs.replace(
        now,
        producer_epoch=min(now.producer_epoch + 1, LAST_EPOCH),
        last_producer_epoch=now.producer_epoch,
        next_producer_id=next_producer_id if exhausted else transactions.NO_PRODUCER_ID,
    )


def after_fence(now: TransactionValue) -> TransactionValue:
    """Return the state with the epoch at which an open transaction is aborted; its producer may only ask for
    the next one."""
    return msgspec.structs.replace(
        now,
        producer_epoch=min(now.producer_epoch + 1, LAST_EPOCH),
        last_producer_epoch=now.producer_epoch,
    )


def after_markers(now: TransactionValue) -> TransactionValue:
    """Return the state for the next transaction: its producer has another id if the epochs of this one ran
    out."""
    if now.next_producer_id == transactions.NO_PRODUCER_ID:
        return now
    return msgspec.structs.replace(
        now,
        producer_id=now.next_producer_id,
        producer_epoch=0,
        last_producer_id=now.producer_id,
        next_producer_id=transactions.NO_PRODUCER_ID,
    )


def _unknown(now: TransactionValue, producer_id: int) -> ProtocolError:
    """Return the refusal of a producer that has another id."""
    return ProtocolError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"producer id {producer_id}, {now.producer_id} is known"
    )


def _fenced(now: TransactionValue, producer_id: int, epoch: int) -> ProtocolError:
    """Return the refusal of a producer that was replaced."""
    return ProtocolError(
        ErrorCode.PRODUCER_FENCED,
        f"producer {producer_id} at epoch {epoch}, it is now {now.producer_id} at {now.producer_epoch}",
    )
