"""Cuts one record batch of a real coordinator into the outcomes of its single requests and timers.

A broker collects the outcomes of requests that wait together, and appends them as one batch. Within an
outcome records come in a fixed order (KIP-848, Records; GroupMetadataManager in Kafka 4.3): a member's
description, resolved expressions, the group's epoch, targets, the target's epoch, the member's assignment. A
member's removal is three tombstones before the group's epoch; the target's epoch follows if no member is left
(Kafka 4.4). An outcome has ended where that order begins again, and where the time changes. Outcomes that
can't be told apart stay together: a cut is never made within an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.records import Record
from fencepost.simulation.lab.chaos.group_log_tail import LoggedRecord

_ORDER: Final[dict[type, int]] = {
    r.ConsumerGroupMemberMetadataKey: 0,
    r.ConsumerGroupRegularExpressionKey: 1,
    r.ConsumerGroupMetadataKey: 2,
    r.ConsumerGroupTargetAssignmentMemberKey: 3,
    r.ConsumerGroupTargetAssignmentMetadataKey: 4,
    r.ConsumerGroupCurrentMemberAssignmentKey: 5,
}
"""The place of a record with a value in the outcome of a heartbeat."""
_MANY: Final = (r.ConsumerGroupTargetAssignmentMemberKey, r.ConsumerGroupRegularExpressionKey)


class _Outcome:
    """The state of the outcome that is being read."""

    __slots__ = (
        "_deletion",
        "_last",
        "_placed",
        "_placements",
        "_removal",
        "_replacement",
        "_upgrade",
        "records",
    )

    def __init__(self, first: LoggedRecord) -> None:
        self.records: list[LoggedRecord] = []
        self._last: Record | None = None
        self._removal = self._replacement = self._deletion = self._upgrade = False
        self._placed = ""
        """The member whose assignment was written last."""
        self._placements = 0
        self.add(first)

    def add(self, each: LoggedRecord) -> None:
        """Take a record in."""
        self.records.append(each)
        record = self._last = each.record if isinstance(each.record, Record) else self._last
        if record is None or record is not each.record:
            return
        key, gone = record.key, record.value is None
        match key:
            case r.GroupMetadataKey():
                self._upgrade = self._upgrade or gone
            case r.ConsumerGroupTargetAssignmentMetadataKey():
                self._deletion = self._deletion or gone
            case r.ConsumerGroupMemberMetadataKey():
                self._replacement = self._replacement or (self._removal and not gone)
                self._removal = self._removal or gone
            case r.ConsumerGroupCurrentMemberAssignmentKey() if not gone:
                self._placed = key.member_id
                self._placements += 1

    def ends_before(self, each: LoggedRecord) -> bool:
        """Return true if this record surely belongs to another outcome."""
        last, record = self._last, each.record
        if each.timestamp_ms != self.records[-1].timestamp_ms:
            return True
        if last is None or not isinstance(record, Record) or self._upgrade:
            return False
        if isinstance(record.key, r.GroupMetadataKey) or isinstance(last.key, r.GroupMetadataKey):
            return True
        if _is_offset(last) or _is_offset(record):
            return _is_offset(last) != _is_offset(record) or (last.value is None) != (record.value is None)
        if self._deletion:
            return isinstance(last.key, r.ConsumerGroupMetadataKey)
        if last.value is None:
            # A removal continues with the group's epoch, a replacement with the successor.
            return False
        if record.value is None:
            # An expression is deleted with its last subscriber, or when that one changes its subscription.
            expression = isinstance(record.key, r.ConsumerGroupRegularExpressionKey)
            return not (expression and _place(last) <= _place(record))
        return self._ends_before_value(last, record)

    def _ends_before_value(self, last: Record, record: Record) -> bool:
        if isinstance(last.key, r.ConsumerGroupCurrentMemberAssignmentKey):
            if not (self._replacement and self._placements == 1):
                return True
            # The successor has taken over; now its heartbeat is answered like any other.
            return (
                isinstance(record.key, r.ConsumerGroupCurrentMemberAssignmentKey)
                and record.key.member_id != self._placed
            )
        if isinstance(last.key, r.ConsumerGroupMetadataKey) and self._removal and not self._replacement:
            return not _is_of_nobody(record)
        if _place(record) == _place(last):
            return not isinstance(record.key, _MANY)
        return _place(record) < _place(last)


def _place(record: Record) -> int:
    return _ORDER[type(record.key)]


def _is_of_nobody(record: Record) -> bool:
    """Return true if this is the target of a group without members: as of time 0, unlike all computed
    targets."""
    value = record.value
    return (
        isinstance(value, r.ConsumerGroupTargetAssignmentMetadataValue) and value.assignment_timestamp_ms == 0
    )


def _is_offset(record: Record) -> bool:
    return isinstance(record.key, r.OffsetCommitKey)


def outcomes(batch: Iterable[LoggedRecord]) -> Iterator[tuple[LoggedRecord, ...]]:
    """Yield the batch's records, in as many pieces as can be told apart; together they are the batch."""
    current: _Outcome | None = None
    for each in batch:
        if current is not None and not current.ends_before(each):
            current.add(each)
            continue
        if current is not None:
            yield tuple(current.records)
        current = _Outcome(each)
    if current is not None:
        yield tuple(current.records)
