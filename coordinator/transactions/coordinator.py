"""The transaction coordinator: one pure object that takes events and returns records, a reply and effects.

It runs like the group coordinator: append the records of an outcome, apply them, then send the reply and
carry out the effects. `MarkersWritten` is the response to `WriteMarkers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.transaction_records import (
    TransactionKey,
    TransactionRecord,
    TransactionValue,
)
from fencepost.coordinator.protocol.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER_EPOCH,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MarkersWritten,
    WriteMarkers,
)
from fencepost.coordinator.timers import Timers
from fencepost.coordinator.transactions import epochs
from fencepost.coordinator.transactions.states import TRANSACTION_TABLE, TransactionEvent, TransactionState


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a broker for transactions, in ms."""

    transaction_max_timeout_ms: int = 900_000
    """The limit of a producer's timeout; a longer one is refused."""
    transactional_id_expiration_ms: int = 604_800_000
    """Time after which an unused transactional id is forgotten."""


_S, _E = TransactionState, TransactionEvent

_LAST_EPOCHS = 32_760
"""From here on a producer id may run out of epochs with the next few transactions."""
_LOOK_AGAIN_MS = 10_000
"""Kafka's default for transaction.abort.timed.out.transaction.cleanup.interval.ms."""

TransactionRequest: TypeAlias = (
    InitProducerIdRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest
)
TransactionResponse: TypeAlias = (
    InitProducerIdResponse | AddPartitionsToTxnResponse | AddOffsetsToTxnResponse | EndTxnResponse
)


class TransactionOutcome(msgspec.Struct, frozen=True, gc=False):
    """The value of one step."""

    records: tuple[TransactionRecord, ...] = ()
    reply: TransactionResponse | None = None
    effects: tuple[WriteMarkers, ...] = ()


class TransactionCoordinator:
    """All transactional ids whose records are in one journal."""

    __slots__ = ("_handlers", "_timers", "_transactions", "config", "transactions")

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self._transactions: dict[str, TransactionValue] = {}
        self.transactions: Mapping[str, TransactionValue] = MappingProxyType(self._transactions)
        """The state of each transactional id."""
        self._timers: Timers[str] = Timers()
        self._handlers: Mapping[type, Callable[[Any, int], TransactionOutcome]] = {
            InitProducerIdRequest: self._init_producer_id,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            EndTxnRequest: self._end,
            MarkersWritten: self._markers_written,
            DeadlineReached: self._deadline_reached,
        }

    def handle(
        self, event: TransactionRequest | MarkersWritten | DeadlineReached, now_ms: int
    ) -> TransactionOutcome:
        """Return the outcome of an event. A request that breaks a rule gets Kafka's error."""
        try:
            return self._handlers[type(event)](event, now_ms)
        except ProtocolError as error:
            return TransactionOutcome(reply=refusal(event, error.code))

    def apply(self, record: TransactionRecord) -> None:
        """Make a record true."""
        transactional_id, value = record.key.transactional_id, record.value
        if value is None:
            self._transactions.pop(transactional_id, None)
            self._timers.cancel(transactional_id)
            return
        self._transactions[transactional_id] = value
        state = TransactionState.of_code(value.status)
        if state is _S.ONGOING:
            self._timers.set(transactional_id, value.start_ms + value.timeout_ms)
        elif state in {_S.PREPARE_COMMIT, _S.PREPARE_ABORT}:
            self._timers.cancel(transactional_id)
        else:
            expires_ms = value.last_update_ms + self.config.transactional_id_expiration_ms
            self._timers.set(transactional_id, expires_ms)

    def apply_batch(self, records: tuple[TransactionRecord, ...]) -> None:
        """Make the records of one outcome true."""
        for record in records:
            self.apply(record)

    def not_written(
        self,
        event: TransactionRequest | MarkersWritten | DeadlineReached,
        outcome: TransactionOutcome,
        code: ErrorCode,
        now_ms: int,
    ) -> TransactionOutcome:
        """Return the outcome to use instead of one that could not be written: nothing happened.

        A timer that fired is set again, as it still has something to end.
        """
        if isinstance(event, DeadlineReached):
            for record in outcome.records:
                self._timers.set(record.key.transactional_id, now_ms + _LOOK_AGAIN_MS)
        return TransactionOutcome(reply=refusal(event, ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def needs_producer_id(self, event: object) -> bool:
        """Return true if the event may need a fresh producer id, its `next_producer_id`.

        It does for a new transactional id, and when epochs run out.
        """
        if not isinstance(event, InitProducerIdRequest | EndTxnRequest):
            return False
        known = self._transactions.get(event.transactional_id or "")
        return known is None or known.producer_epoch >= _LAST_EPOCHS

    def replay(self, records: Iterable[TransactionRecord]) -> tuple[WriteMarkers, ...]:
        """Load a journal; return the markers of transactions whose end was decided, and perhaps not carried
        out."""
        for record in records:
            self.apply(record)
        prepared = {_S.PREPARE_COMMIT.code, _S.PREPARE_ABORT.code}
        return tuple(
            self._markers(transactional_id, value)
            for transactional_id, value in self._transactions.items()
            if value.status in prepared
        )

    def id_of(self, producer_id: int) -> str | None:
        """Return the transactional id whose producer this is now, or None."""
        known = self._transactions.items()
        return next((name for name, value in known if value.producer_id == producer_id), None)

    def next_deadline(self) -> int | None:
        """Return the time at which to hand in `DeadlineReached`, in ms; None if nothing is timed."""
        return self._timers.next_deadline()

    # -- requests ---------------------------------------------------------------------------------------

    def _init_producer_id(self, request: InitProducerIdRequest, now_ms: int) -> TransactionOutcome:
        transactional_id = request.transactional_id
        if not transactional_id or request.names_half:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "no transactional id, or only one of producer id and epoch"
            )
        if not 0 < request.timeout_ms <= self.config.transaction_max_timeout_ms:
            raise ProtocolError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"timeout {request.timeout_ms}, expected 1 to {self.config.transaction_max_timeout_ms} ms",
            )
        now = self._transactions.get(transactional_id) or TransactionValue(
            request.next_producer_id, NO_PRODUCER_EPOCH, request.timeout_ms, _S.EMPTY.code
        )
        state = TransactionState.of_code(now.status)
        if state in {_S.PREPARE_COMMIT, _S.PREPARE_ABORT}:
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not over yet")
        epochs.check_successor(now, request)
        if state is _S.ONGOING:
            # No producer gets this epoch: it fences the old producer, and the next attempt gets a later one.
            reply = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
            after = epochs.after_fence(now)
            return self._prepare(transactional_id, after, _E.PRODUCER_FENCED, reply, now_ms)
        value = self._moved(
            epochs.initialized(now, request),
            _E.PRODUCER_INITIALIZED,
            _S.EMPTY,
            timeout_ms=request.timeout_ms,
            partitions=(),
            groups=(),
            start_ms=-1,
            last_update_ms=now_ms,
        )
        return TransactionOutcome(
            records=(_record(transactional_id, value),),
            reply=InitProducerIdResponse(producer_id=value.producer_id, producer_epoch=value.producer_epoch),
        )

    def _add_partitions(self, request: AddPartitionsToTxnRequest, now_ms: int) -> TransactionOutcome:
        now = self._open_for(request.transactional_id, request.producer_id, request.producer_epoch)
        if request.verify_only:
            return TransactionOutcome(
                reply=AddPartitionsToTxnResponse(
                    errors={
                        one: ErrorCode.NONE if one in now.partitions else ErrorCode.TRANSACTION_ABORTABLE
                        for one in request.partitions
                    }
                )
            )
        reply = AddPartitionsToTxnResponse(errors=dict.fromkeys(request.partitions, ErrorCode.NONE))
        added = msgspec.structs.replace(
            now,
            partitions=tuple(sorted({*now.partitions, *request.partitions})),
            client_version=request.client_version,
        )
        return self._add(request.transactional_id, now, added, reply, now_ms)

    def _add_offsets(self, request: AddOffsetsToTxnRequest, now_ms: int) -> TransactionOutcome:
        now = self._open_for(request.transactional_id, request.producer_id, request.producer_epoch)
        if request.verify_only and request.group_id not in now.groups:
            raise ProtocolError(ErrorCode.TRANSACTION_ABORTABLE, "the group is not part of the transaction")
        reply = AddOffsetsToTxnResponse()
        if request.verify_only:
            return TransactionOutcome(reply=reply)
        added = msgspec.structs.replace(
            now, groups=tuple(sorted({*now.groups, request.group_id})), client_version=request.client_version
        )
        return self._add(request.transactional_id, now, added, reply, now_ms)

    def _open_for(self, transactional_id: str, producer_id: int, epoch: int) -> TransactionValue:
        """Return the state of a transactional id, if its producer may add to a transaction.

        :raises ProtocolError: if it may not.
        """
        now = self._known(transactional_id)
        epochs.check_producer(now, producer_id, epoch)
        if now.status in {_S.PREPARE_COMMIT.code, _S.PREPARE_ABORT.code}:
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not over yet")
        return now

    def _known(self, transactional_id: str) -> TransactionValue:
        if not transactional_id:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "a transactional id can't be empty")
        now = self._transactions.get(transactional_id)
        if now is None:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id!r} is not known"
            )
        return now

    def _add(
        self,
        transactional_id: str,
        now: TransactionValue,
        added: TransactionValue,
        reply: TransactionResponse,
        now_ms: int,
    ) -> TransactionOutcome:
        """Add partitions or groups to the transaction, or begin one with them."""
        ongoing = now.status == _S.ONGOING.code
        if ongoing and added == now:
            return TransactionOutcome(reply=reply)
        start_ms = now.start_ms if ongoing else now_ms
        value = self._moved(added, _E.PARTITIONS_ADDED, _S.ONGOING, start_ms=start_ms, last_update_ms=now_ms)
        return TransactionOutcome(records=(_record(transactional_id, value),), reply=reply)

    def _end(self, request: EndTxnRequest, now_ms: int) -> TransactionOutcome:
        """Handle EndTxn, by the tables of TransactionCoordinator.endTransaction for both client versions."""
        now = self._known(request.transactional_id)
        own_epochs = request.client_version >= EPOCH_PER_TRANSACTION
        retry = epochs.is_retry(now, request)
        state = TransactionState.of_code(now.status)
        wanted = _COMMITTED if request.committed else _ABORTED
        if state in wanted:
            if state in {_S.PREPARE_COMMIT, _S.PREPARE_ABORT}:
                raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is not over yet")
            if not own_epochs or retry:
                return TransactionOutcome(reply=_ended(now, own_epochs))
        may_begin = own_epochs and not retry and not request.committed and state in _NOTHING_OPEN
        if state is not _S.ONGOING and not may_begin:
            raise ProtocolError(
                ErrorCode.INVALID_TXN_STATE,
                f"{'commit' if request.committed else 'abort'} in state {state}",
            )
        value = epochs.after_end(now, request.client_version, request.next_producer_id)
        value = msgspec.structs.replace(
            value,
            client_version=request.client_version,
            start_ms=value.start_ms if state is _S.ONGOING else now_ms,
        )
        event = _E.COMMIT_REQUESTED if request.committed else _E.ABORT_REQUESTED
        reply = _ended(epochs.after_markers(value), own_epochs)
        return self._prepare(request.transactional_id, value, event, reply, now_ms)

    # -- the end of a transaction -----------------------------------------------------------------------

    def _prepare(
        self,
        transactional_id: str,
        now: TransactionValue,
        event: TransactionEvent,
        reply: TransactionResponse | None,
        now_ms: int,
    ) -> TransactionOutcome:
        """Record the decision, before any marker is written."""
        target = _S.PREPARE_COMMIT if event is _E.COMMIT_REQUESTED else _S.PREPARE_ABORT
        value = self._moved(now, event, target, last_update_ms=now_ms)
        return TransactionOutcome(
            records=(_record(transactional_id, value),),
            reply=reply,
            effects=(self._markers(transactional_id, value),),
        )

    @staticmethod
    def _markers(transactional_id: str, value: TransactionValue) -> WriteMarkers:
        return WriteMarkers(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            commit=value.status == _S.PREPARE_COMMIT.code,
            partitions=value.partitions,
            groups=value.groups,
        )

    def _markers_written(self, event: MarkersWritten, now_ms: int) -> TransactionOutcome:
        now = self._transactions.get(event.transactional_id)
        if now is None or (now.producer_id, now.producer_epoch) != (event.producer_id, event.producer_epoch):
            return TransactionOutcome()
        state = TransactionState.of_code(now.status)
        if state not in {_S.PREPARE_COMMIT, _S.PREPARE_ABORT}:
            return TransactionOutcome()
        target = _S.COMPLETE_COMMIT if state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT
        value = self._moved(now, _E.MARKERS_WRITTEN, target, partitions=(), groups=(), last_update_ms=now_ms)
        return TransactionOutcome(records=(_record(event.transactional_id, epochs.after_markers(value)),))

    def _deadline_reached(self, event: DeadlineReached, now_ms: int) -> TransactionOutcome:
        """Abort the most overdue transaction, or forget the most overdue unused id."""
        transactional_id = self._timers.pop_due(now_ms)
        if transactional_id is None:
            return TransactionOutcome()
        now = self._transactions[transactional_id]
        if now.status == _S.ONGOING.code:
            return self._prepare(transactional_id, epochs.after_fence(now), _E.TIMED_OUT, None, now_ms)
        TRANSACTION_TABLE.check(TransactionState.of_code(now.status), _E.EXPIRED, _S.DEAD)
        return TransactionOutcome(records=(TransactionRecord(TransactionKey(transactional_id), None),))

    @staticmethod
    def _moved(
        now: TransactionValue, event: TransactionEvent, target: TransactionState, **changes: Any
    ) -> TransactionValue:
        """Return the value in its next state, along an arrow of the table."""
        TRANSACTION_TABLE.check(TransactionState.of_code(now.status), event, target)
        return msgspec.structs.replace(now, status=target.code, **changes)


_COMMITTED = frozenset({_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT})
_ABORTED = frozenset({_S.PREPARE_ABORT, _S.COMPLETE_ABORT})
_NOTHING_OPEN = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})


def _record(transactional_id: str, value: TransactionValue) -> TransactionRecord:
    return TransactionRecord(TransactionKey(transactional_id), value)


def _ended(value: TransactionValue, own_epochs: bool) -> EndTxnResponse:
    if not own_epochs:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=value.producer_id, producer_epoch=value.producer_epoch)


def refusal(event: object, code: ErrorCode) -> Any:
    """Return the reply that refuses a request with this error; None for an event that needs no reply."""
    match event:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error_code=code)
        case AddPartitionsToTxnRequest():
            return AddPartitionsToTxnResponse(errors=dict.fromkeys(event.partitions, code))
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error_code=code)
        case EndTxnRequest():
            return EndTxnResponse(error_code=code)
        case _:
            return None
