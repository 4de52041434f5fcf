"""The states of a transactional id, and the arrows between them.

::

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                    \\-> PrepareAbort  -> CompleteAbort  -> Ongoing ...

Kafka also names PrepareEpochFence, which it never writes: a producer is fenced and its transaction aborted in
one step, here too.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import CodedState, StateTable


class TransactionState(CodedState):
    """The state of a transactional id, under the name that DescribeTransactions shows."""

    EMPTY = "Empty", 0
    """No transaction has begun since the producer was initialized."""
    ONGOING = "Ongoing", 1
    """A transaction is open and has partitions or offsets."""
    PREPARE_COMMIT = "PrepareCommit", 2
    """The commit is decided. The coordinator writes the markers."""
    PREPARE_ABORT = "PrepareAbort", 3
    """The abort is decided. The coordinator writes the markers."""
    COMPLETE_COMMIT = "CompleteCommit", 4
    """The last transaction committed, and all its markers are written."""
    COMPLETE_ABORT = "CompleteAbort", 5
    """The last transaction aborted, and all its markers are written."""
    DEAD = "Dead", 6
    """The transactional id was unused for too long and is forgotten."""

    @classmethod
    def of_code(cls, code: int) -> TransactionState:
        """Return the state for a record's number.

        :raises KeyError: if there is no such state.
        """
        return _STATES[code]


_STATES = {state.code: state for state in TransactionState}


class TransactionEvent(enum.StrEnum):
    """An event of a transactional id."""

    PRODUCER_INITIALIZED = "producer initialized"
    """A producer sent InitProducerId."""
    PARTITIONS_ADDED = "partitions added"
    """The producer added partitions, or the offsets of a group."""
    COMMIT_REQUESTED = "commit requested"
    """The producer asked to commit."""
    ABORT_REQUESTED = "abort requested"
    """The producer asked to abort."""
    PRODUCER_FENCED = "producer fenced"
    """Another producer took the transactional id. The open transaction is aborted."""
    TIMED_OUT = "timed out"
    """The transaction was open longer than its timeout."""
    MARKERS_WRITTEN = "markers written"
    """Every partition and group has its marker."""
    EXPIRED = "expired"
    """The transactional id was unused for transactional.id.expiration.ms."""


_S, _E = TransactionState, TransactionEvent

TRANSACTION_TABLE: StateTable[TransactionState, TransactionEvent] = StateTable(
    "transaction",
    source="KIP-98, Transaction Coordinator; KIP-890; TransactionState in Kafka 4.3",
    states=TransactionState,
    initial=_S.EMPTY,
    terminal=(_S.DEAD,),
    transitions=(
        (_S.EMPTY, _E.PRODUCER_INITIALIZED, _S.EMPTY),
        (_S.EMPTY, _E.PARTITIONS_ADDED, _S.ONGOING),
        (_S.EMPTY, _E.ABORT_REQUESTED, _S.PREPARE_ABORT),
        (_S.EMPTY, _E.EXPIRED, _S.DEAD),
        (_S.ONGOING, _E.PARTITIONS_ADDED, _S.ONGOING),
        (_S.ONGOING, _E.COMMIT_REQUESTED, _S.PREPARE_COMMIT),
        (_S.ONGOING, _E.ABORT_REQUESTED, _S.PREPARE_ABORT),
        (_S.ONGOING, _E.PRODUCER_FENCED, _S.PREPARE_ABORT),
        (_S.ONGOING, _E.TIMED_OUT, _S.PREPARE_ABORT),
        (_S.PREPARE_COMMIT, _E.MARKERS_WRITTEN, _S.COMPLETE_COMMIT),
        (_S.PREPARE_ABORT, _E.MARKERS_WRITTEN, _S.COMPLETE_ABORT),
        (_S.COMPLETE_COMMIT, _E.PRODUCER_INITIALIZED, _S.EMPTY),
        (_S.COMPLETE_COMMIT, _E.PARTITIONS_ADDED, _S.ONGOING),
        (_S.COMPLETE_COMMIT, _E.ABORT_REQUESTED, _S.PREPARE_ABORT),
        (_S.COMPLETE_COMMIT, _E.EXPIRED, _S.DEAD),
        (_S.COMPLETE_ABORT, _E.PRODUCER_INITIALIZED, _S.EMPTY),
        (_S.COMPLETE_ABORT, _E.PARTITIONS_ADDED, _S.ONGOING),
        (_S.COMPLETE_ABORT, _E.ABORT_REQUESTED, _S.PREPARE_ABORT),
        (_S.COMPLETE_ABORT, _E.EXPIRED, _S.DEAD),
    ),
)
