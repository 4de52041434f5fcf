"""Producers and their transactions, as their coordinator sees them (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.transaction_records import TransactionValue
from fencepost.coordinator.transactions.states import TransactionState
from fencepost.simulation.judge.base import Finding

_S: Final = TransactionState
_NONE, _FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
_NOT_KNOWN, _NOT_YET = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.CONCURRENT_TRANSACTIONS
_WRONG_STATE: Final = ErrorCode.INVALID_TXN_STATE
_DECIDED: Final = {_S.PREPARE_COMMIT.code: True, _S.PREPARE_ABORT.code: False}
"""By status, true if the transaction commits."""
_OVER: Final = {_S.COMPLETE_COMMIT.code: True, _S.COMPLETE_ABORT.code: False}
_ONGOING: Final = _S.ONGOING.code
_LATE_MS: Final = 15_000
"""Time that a transaction may be open beyond its timeout, in ms: the coordinator looks every ten seconds."""
_LAST_EPOCHS: Final = 32_760
"""From here on epochs run out, and rules change: nothing is checked."""


class KnownProducers:
    """Each transactional id after the previous step. An unused one is forgotten after `expiration_ms`."""

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self.known: dict[str, TransactionValue] = {}
        self._ids: dict[int, str] = {}
        self._given: set[tuple[int, int]] = set()
        """Ids and epochs that producers received."""
        self._since_ms = 0
        """Time since which the coordinator could end overdue transactions."""
        self._told: dict[int, bool] = {}
        """By producer, the end of the decided transaction that the group received."""

    def id_of(self, producer_id: int) -> str | None:
        """Return the transactional id of a producer."""
        return self._ids.get(producer_id)

    def is_open(self, producer_id: int) -> bool:
        """Return true if the producer's transaction is open, or its end is on the way to the group."""
        value = self.known.get(self._ids.get(producer_id, ""))
        return value is not None and (value.status == _ONGOING or value.status in _DECIDED)

    def told(self, producer_id: int, *, commit: bool) -> Iterator[Finding]:
        """The group received that the producer's transaction ended."""
        value = self.known.get(self._ids.get(producer_id, ""))
        decided = None if value is None else _DECIDED.get(value.status)
        if decided is not commit:
            yield (
                "transaction-decided",
                f"the group received that the transaction of producer {producer_id}"
                f" {'committed' if commit else 'aborted'}; decided was {_shown(decided)}",
            )
        self._told[producer_id] = commit

    def check(self, event: Any, outcome: Any, now_ms: int, *, may_fail: bool) -> Iterator[Finding]:
        """Findings of one step; then take its records in."""
        before = self.known.get(getattr(event, "transactional_id", None) or "")
        code = _code(outcome.reply)
        if code is not None and not (may_fail and code is ErrorCode.COORDINATOR_NOT_AVAILABLE):
            expected = _expected(event, before)
            if expected is not None and code is not expected:
                yield (
                    "transaction-fenced",
                    f"{event} got {code.name} instead of {expected.name}; {_status(before)}",
                )
            if isinstance(event, transactions.InitProducerIdRequest) and code is _NONE:
                yield from self._given_out(event, outcome.reply, before)
        for record in outcome.records:
            transactional_id, value = record.key.transactional_id, record.value
            yield from self._moved(transactional_id, self.known.get(transactional_id), value, event, now_ms)
            if value is None:
                self.known.pop(transactional_id, None)
            else:
                self.known[transactional_id] = value
                self._ids[value.producer_id] = transactional_id
        if code is _NONE and not may_fail:
            yield from self._done(event, outcome.reply)
        yield from self._overdue(now_ms)
        for effect in outcome.effects:
            value = self.known.get(effect.transactional_id)
            if value is None or (effect.commit, effect.groups, effect.partitions) != (
                _DECIDED.get(value.status),
                value.groups,
                value.partitions,
            ):
                yield "transaction-decided", f"{effect} is not the marker of the decision: {_status(value)}"

    def _given_out(
        self, event: transactions.InitProducerIdRequest, reply: Any, before: TransactionValue | None
    ) -> Iterator[Finding]:
        given = reply.producer_id, reply.producer_epoch
        again = before is not None and given == (before.producer_id, before.producer_epoch)
        last = -1 if before is None else before.last_producer_epoch
        retried = again and event.producer_epoch >= 0 and event.producer_epoch == last
        if (given in self._given and not retried) or given[0] < 0 or given[1] < 0:
            yield "transaction-epochs", f"{event.transactional_id} got {given}, which is another producer's"
        if before is not None and before.producer_epoch < _LAST_EPOCHS and given[0] != before.producer_id:
            yield "transaction-epochs", f"{event.transactional_id} got {given} after {before.producer_id}"
        self._given.add(given)

    def _moved(
        self,
        transactional_id: str,
        before: TransactionValue | None,
        after: TransactionValue | None,
        event: Any,
        now_ms: int,
    ) -> Iterator[Finding]:
        who = f"{transactional_id}: {_status(before)} became {_status(after)}"
        if after is None:
            if before is None or before.status in _DECIDED or before.status == _ONGOING:
                yield "transaction-decided", f"{who} before its transaction was over"
            elif now_ms < before.last_update_ms + self._expiration_ms:
                yield "transaction-ends", f"{who} at {now_ms} ms, sooner than its id expires"
            return
        if before is not None:
            yield from self._kept_its_epochs(who, before, after)
            yield from _remembers_its_last_epoch(who, before, after, event)
        decided = None if before is None else _DECIDED.get(before.status)
        if before is not None and decided is not None:
            if _OVER.get(after.status) is not decided:
                yield "transaction-decided", f"{who}, which was not decided"
            elif before.groups and self._told.pop(before.producer_id, None) is not decided:
                yield "transaction-decided", f"{who} before its group received that"
            if after.groups or after.partitions:
                yield (
                    "transaction-decided",
                    f"{who}, and keeps {after.groups} and {after.partitions} for its next transaction",
                )
        elif after.status in _DECIDED:
            yield from self._decided(who, before, after, event, now_ms)
        elif after.status in _OVER:
            yield "transaction-decided", f"{who} without a decision"
        elif after.status == _ONGOING:
            yield from self._goes_on(who, before, after, now_ms)

    @staticmethod
    def _kept_its_epochs(who: str, before: TransactionValue, after: TransactionValue) -> Iterator[Finding]:
        same = before.producer_id == after.producer_id
        if same and after.producer_epoch < before.producer_epoch:
            yield "transaction-epochs", f"{who}: its epoch fell"
        if same and after.producer_epoch > before.producer_epoch + 1:
            yield "transaction-epochs", f"{who}: epochs were left out"
        if not same and before.producer_epoch < _LAST_EPOCHS:
            yield "transaction-epochs", f"{who}: another id, though its epochs had not run out"

    @staticmethod
    def _goes_on(
        who: str, before: TransactionValue | None, after: TransactionValue, now_ms: int
    ) -> Iterator[Finding]:
        if before is None or before.status != _ONGOING:
            if after.start_ms != now_ms:
                yield "transaction-ends", f"{who} at {now_ms} ms: its time begins at {after.start_ms} ms"
            return
        if not {*before.groups} <= {*after.groups} or not {*before.partitions} <= {*after.partitions}:
            yield "transaction-decided", f"{who} without some of its groups or partitions"
        if after.start_ms != before.start_ms:
            yield "transaction-ends", f"{who}: its time began again"

    def _decided(
        self, who: str, before: TransactionValue | None, after: TransactionValue, event: Any, now_ms: int
    ) -> Iterator[Finding]:
        commits = _DECIDED[after.status]
        asked = isinstance(event, transactions.EndTxnRequest) and event.committed is commits
        if asked and before is not None and before.producer_epoch < _LAST_EPOCHS:
            own_epochs = event.client_version >= transactions.EPOCH_PER_TRANSACTION
            if after.producer_epoch != before.producer_epoch + own_epochs:
                kind = "each transaction" if own_epochs else "no transaction"
                yield "transaction-epochs", f"{who}, and {kind} of its client has an epoch of its own"
        if asked and (before is None or (commits and before.status != _ONGOING)):
            yield "transaction-decided", f"{who}, though no transaction was open"
        if not asked:
            fences = isinstance(event, transactions.InitProducerIdRequest | DeadlineReached)
            if commits or not fences:
                yield "transaction-decided", f"{who} by {event}"
            elif before is not None and after.producer_epoch <= before.producer_epoch < _LAST_EPOCHS:
                yield "transaction-epochs", f"{who}: its producer may go on at the epoch that was aborted"
        if (
            isinstance(event, DeadlineReached)
            and before is not None
            and now_ms < before.start_ms + before.timeout_ms
        ):
            yield "transaction-ends", f"{who} at {now_ms} ms, sooner than its timeout"
        if before is not None and (before.groups, before.partitions) != (after.groups, after.partitions):
            yield "transaction-decided", f"{who} without some of its groups or partitions"

    def disturbed(self, now_ms: int) -> None:
        """Note that until now no transaction could be ended."""
        self._since_ms = now_ms

    def _overdue(self, now_ms: int) -> Iterator[Finding]:
        """Return what the coordinator could have ended, and has not: open transactions, and unused ids."""
        for transactional_id, value in self.known.items():
            if value.status not in _DECIDED:
                is_open = value.status == _ONGOING
                since_ms = value.start_ms if is_open else value.last_update_ms
                due_ms = since_ms + (value.timeout_ms if is_open else self._expiration_ms)
                if now_ms > max(due_ms, self._since_ms) + _LATE_MS:
                    yield "transaction-ends", f"{transactional_id} is still {_status(value)} at {now_ms} ms"

    def _done(self, event: Any, reply: Any) -> Iterator[Finding]:
        """Check that a request that was accepted is on record."""
        value = self.known.get(event.transactional_id)
        if value is None:
            yield "transaction-decided", f"{event} was accepted, and there is no record of it"
            return
        missing = False
        if isinstance(event, transactions.AddOffsetsToTxnRequest):
            missing = event.group_id not in value.groups or value.status != _ONGOING
        elif isinstance(event, transactions.AddPartitionsToTxnRequest):
            missing = not {*event.partitions} <= {*value.partitions} or value.status != _ONGOING
        elif isinstance(event, transactions.EndTxnRequest):
            missing = {**_DECIDED, **_OVER}.get(value.status) is not event.committed
            given = (reply.producer_id, reply.producer_epoch)
            own_epochs = event.client_version >= transactions.EPOCH_PER_TRANSACTION
            expected = (value.producer_id, value.producer_epoch) if own_epochs else (-1, -1)
            if given != expected and value.producer_epoch < _LAST_EPOCHS:
                yield "transaction-epochs", f"{event} returned {given} instead of {expected}"
        if missing:
            yield "transaction-decided", f"{event} was accepted, and the record is {_status(value)}"

    def compare(self, live: Mapping[str, TransactionValue]) -> Iterator[Finding]:
        """Compare the state that a coordinator has loaded with its records."""
        for each in sorted({*live, *self.known}):
            loaded, was = live.get(each), self.known.get(each)
            if loaded != was:
                what = f"{each} is {_status(loaded)} after a load, and was {_status(was)}"
                yield "transaction-decided", what

    def unfinished(self, now_ms: int) -> Iterator[Finding]:
        """Transactions that should have ended by now."""
        for transactional_id, value in self.known.items():
            overdue = value.status == _ONGOING and now_ms > value.start_ms + value.timeout_ms + _LATE_MS
            stuck = value.status in _DECIDED and now_ms > value.last_update_ms + _LATE_MS
            if overdue or stuck:
                yield "transaction-ends", f"{transactional_id} is still {_status(value)} at {now_ms} ms"


def _code(reply: Any) -> ErrorCode | None:
    """Return the error of a reply; None if there is no reply."""
    if reply is None:
        return None
    errors = getattr(reply, "errors", None)
    if errors is not None:
        return next((code for code in errors.values() if code is not _NONE), _NONE)
    code: ErrorCode = reply.error_code
    return code


def _expected(event: Any, before: TransactionValue | None) -> ErrorCode | None:
    """Return the protocol's error for a request to an id in that state; None if there is no rule."""
    if before is not None and before.producer_epoch >= _LAST_EPOCHS:
        return None
    if isinstance(event, transactions.InitProducerIdRequest):
        return _expected_of_init(event, before)
    if before is None or event.producer_id != before.producer_id:
        return _NOT_KNOWN
    if isinstance(event, transactions.EndTxnRequest):
        return _expected_of_end(event, before)
    if event.producer_epoch != before.producer_epoch:
        return _FENCED
    if before.status in _DECIDED:
        return _NOT_YET
    if (
        isinstance(event, transactions.AddOffsetsToTxnRequest)
        and event.verify_only
        and event.group_id not in before.groups
    ):
        return ErrorCode.TRANSACTION_ABORTABLE
    return _NONE


def _remembers_its_last_epoch(
    who: str, before: TransactionValue, after: TransactionValue, event: Any
) -> Iterator[Finding]:
    """Check the epoch by which a repeated request is recognized. A new producer has no last epoch."""
    if before.producer_id != after.producer_id or after.producer_epoch != before.producer_epoch + 1:
        return
    if isinstance(event, transactions.InitProducerIdRequest) and after.status not in _DECIDED:
        right = before.producer_epoch if event.producer_id >= 0 else -1
    elif isinstance(event, transactions.EndTxnRequest):
        right = before.producer_epoch
    else:
        return
    if after.last_producer_epoch != right:
        yield "transaction-epochs", f"{who}: its last epoch is {after.last_producer_epoch} instead of {right}"


def _expected_of_init(
    request: transactions.InitProducerIdRequest, before: TransactionValue | None
) -> ErrorCode:
    if before is None:
        return _NONE
    if before.status in _DECIDED:
        return _NOT_YET
    says_who = request.producer_id >= 0
    if says_who and request.producer_id != before.producer_id:
        return _FENCED
    if before.status == _ONGOING:
        return _NOT_YET
    known = (before.producer_epoch, before.last_producer_epoch)
    return _FENCED if says_who and request.producer_epoch not in known else _NONE


def _expected_of_end(request: transactions.EndTxnRequest, before: TransactionValue) -> ErrorCode:
    own_epochs = request.client_version >= transactions.EPOCH_PER_TRANSACTION
    behind = before.producer_epoch - request.producer_epoch
    decided, over = _DECIDED.get(before.status), _OVER.get(before.status)
    allowed = {0}
    if own_epochs and decided is not None:
        allowed = {1}
    elif own_epochs and over is not None:
        allowed = {0, 1}
    if behind not in allowed:
        return _FENCED
    if decided is not None:
        return _NOT_YET if decided is request.committed else _WRONG_STATE
    if before.status == _ONGOING:
        return _NONE
    if over is request.committed and (behind or not own_epochs):
        return _NONE
    return _NONE if own_epochs and not behind and not request.committed else _WRONG_STATE


def _shown(decided: bool | None) -> str:
    return "nothing" if decided is None else "to commit" if decided else "to abort"


def _status(value: TransactionValue | None) -> str:
    if value is None:
        return "unknown"
    state = TransactionState.of_code(value.status)
    return f"{state} of producer {value.producer_id} at epoch {value.producer_epoch}"
