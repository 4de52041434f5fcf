"""A member by itself: the moves of its machine, and its rebalance callbacks.

Each move is an arrow of the table, and begins in the state in which the last one ended. Callbacks run one at
a time, release each partition exactly once, and records come only in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.classic.states import CLASSIC_MEMBER, ClassicMemberEvent
from fencepost.member.consumer.states import CONSUMER_MEMBER, JOINING, PREPARE_LEAVING, ConsumerMemberEvent
from fencepost.simulation.judge.base import (
    NOTHING,
    Finding,
    OfProcesses,
    as_set,
    joined,
    of_process,
    shown_names,
    without,
)

_ARROWS: Final = frozenset((str(t.source), str(t.event), str(t.target)) for t in CONSUMER_MEMBER.transitions)
_CLASSIC_ARROWS: Final = frozenset(
    (str(t.source), str(t.event), str(t.target)) for t in CLASSIC_MEMBER.transitions
)


class MachineMoves:
    """The state of one member machine."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.state = str(CONSUMER_MEMBER.initial)

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Take one arrow, of the table that the event is from."""
        source, target = str(source), str(target)
        if source != self.state:
            yield "transitions", f"{self.host} left {source} on {event}, but was in {self.state}"
        arrows = _CLASSIC_ARROWS if isinstance(event, ClassicMemberEvent) else _ARROWS
        if (source, event, target) not in arrows:
            yield (
                "transitions",
                f"{self.host} went from {source} on {event} to {target}, which is not an arrow of the table",
            )
        self.state = target


class Transitions(OfProcesses[MachineMoves]):
    """Watches all member machines of a world."""

    new = MachineMoves
    on_member_state = of_process(MachineMoves.on_member_state)


RELEASED, PASS_FINISHED = ClassicMemberEvent.RELEASED, ConsumerMemberEvent.PASS_FINISHED
"""Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call."""
CLOSE_TIMEOUT_US = 29_000_000
"""A member that closes takes 30 s at most, by its own clock; it just drops what it could not release by then.
"""


class CallbackBalance:
    """The partitions that one member process owns by its callbacks."""

    __slots__ = ("host", "leaving_since_us", "owned", "releasing", "running", "tells_rest", "unconfirmed")

    def __init__(self, host: str) -> None:
        self.host = host
        self.owned = NOTHING
        """Partitions whose assigned callback ended, and whose revoked or lost callback has not."""
        self.unconfirmed = NOTHING
        """Owned, but a callback for them raised: assigned has to run again, or revoked."""
        self.releasing = NOTHING
        self.running: tuple[str, frozenset[TopicPartition]] | None = None
        self.leaving_since_us: int | None = None
        self.tells_rest = False
        """A revoked callback ended: an assigned one follows, even if empty."""

    def begin(self, kind: str, partitions: frozenset[TopicPartition]) -> Iterator[Finding]:
        """Check a callback that begins."""
        if self.running is not None:
            yield (
                "callbacks-balanced",
                f"{self.host} began {kind} {shown_names(partitions)} inside {self.running[0]}"
                f" {shown_names(self.running[1])}",
            )
        self.running = kind, partitions
        if kind == "assigned":
            if twice := partitions & self.owned:
                yield "callbacks-balanced", f"{self.host} was assigned {shown_names(twice)} a second time"
            return
        if foreign := partitions - self.owned - self.unconfirmed:
            yield (
                "callbacks-balanced",
                f"{self.host} released {shown_names(foreign)} without owning it ({kind})",
            )
        if kind == "lost" and (kept := self.owned - partitions):
            yield "callbacks-balanced", f"{self.host} lost its membership, but kept {shown_names(kept)}"
        self.releasing = partitions

    def end(
        self, kind: str, partitions: frozenset[TopicPartition], *, raised: bool = False
    ) -> Iterator[Finding]:
        """Check a callback that ends, well or not. One of `lost` gives everything up even if it raises."""
        if self.running != (kind, partitions):
            yield (
                "callbacks-balanced",
                f"{self.host} ended {kind} {shown_names(partitions)}, which had not begun",
            )
        self.running = None
        self.releasing = NOTHING
        self.tells_rest = kind == "revoked" and not raised
        if raised and kind != "lost":
            self.owned = without(self.owned, partitions)
            self.unconfirmed = joined(self.unconfirmed, partitions)
            return
        self.unconfirmed = without(self.unconfirmed, partitions)
        if kind == "assigned":
            self.owned = joined(self.owned, partitions)
        else:
            self.owned = without(self.owned, partitions)

    def acknowledges(self) -> Iterator[Finding]:
        """Check that the member is done with a target: its callbacks have ended."""
        if self.running is not None:
            yield (
                "callbacks-balanced",
                f"{self.host} acknowledges its assignment inside {self.running[0]}"
                f" {shown_names(self.running[1])}",
            )
        elif self.tells_rest:
            yield "callbacks-balanced", f"{self.host} let partitions go, and no assigned callback followed"

    def emptied(self, why: str) -> Iterator[Finding]:
        """Check that a member that joins again or ended has released everything."""
        if self.owned and self.running is None:
            yield "callbacks-balanced", f"{self.host} {why} without letting go {shown_names(self.owned)}"

    def on_member_host(self, what: str, now_us: int) -> Iterator[Finding]:
        """Check that a process ends with nothing; a crash runs no callbacks."""
        since_us = self.leaving_since_us
        if what == "stopped" and (since_us is None or now_us - since_us < CLOSE_TIMEOUT_US):
            yield from self.emptied("stopped")

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Check that a member that joins owns nothing."""
        if target == JOINING or event == RELEASED:
            yield from self.emptied("joined")
            self.tells_rest = False  # what it released was of another membership
        elif event == PASS_FINISHED:
            yield from self.acknowledges()
        elif target == PREPARE_LEAVING:
            self.leaving_since_us = now_us

    def on_callback(
        self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> Iterator[Finding]:
        """Check a begin or an end."""
        chosen = as_set(tuple(partitions))
        if phase == "begin":
            return self.begin(str(kind), chosen)
        return self.end(str(kind), chosen, raised=phase == "raised")

    def on_records_delivered(
        self, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> Iterator[Finding]:
        """Check that records come only while the partition is owned."""
        if partition not in self.owned or partition in self.releasing:
            yield (
                "records-while-owned",
                f"{self.host} was handed {partition.topic}-{partition.partition} [{first}, {last_exclusive})"
                " outside of its assigned and revoked callbacks",
            )


class Callbacks(OfProcesses[CallbackBalance]):
    """Watches the callbacks of all members of a world."""

    new = CallbackBalance
    changed = of_process(CallbackBalance.on_member_host)
    on_member_state = of_process(CallbackBalance.on_member_state)
    on_callback = of_process(CallbackBalance.on_callback)
    on_records_delivered = of_process(CallbackBalance.on_records_delivered)
