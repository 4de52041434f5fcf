"""A member by itself: the moves of its machine, and its rebalance callbacks.

Each move is an arrow of the table, and begins in the state in which the last one ended. Callbacks run one at
a time, release each partition exactly once, and records come only in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.classic.states import CLASSIC_MEMBER, ClassicMemberEvent
from fencepost.member.consumer.states import CONSUMER_MEMBER, JOINING, PREPARE_LEAVING, ConsumerMemberEvent
from fencepost.simulation.judge.base import (
    NOTHING,
    Finding,
    Judge,
    OfHosts,
    as_set,
    joined,
    shown_names,
    without,
)

_ARROWS: Final = frozenset((str(t.source), str(t.event), str(t.target)) for t in CONSUMER_MEMBER.transitions)
_CLASSIC_ARROWS: Final = frozenset(
    (str(t.source), str(t.event), str(t.target)) for t in CLASSIC_MEMBER.transitions
)


class MachineMoves:
    """The state of one member machine."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = str(CONSUMER_MEMBER.initial)

    def move(self, host: str, event: str, source: str, target: str) -> Iterator[Finding]:
        """Take one arrow, of the table that the event is from."""
        if source != self.state:
            yield "transitions", f"{host} left {source} on {event}, but was in {self.state}"
        arrows = _CLASSIC_ARROWS if isinstance(event, ClassicMemberEvent) else _ARROWS
        if (source, event, target) not in arrows:
            yield (
                "transitions",
                f"{host} went from {source} on {event} to {target}, which is not an arrow of the table",
            )
        self.state = target


class Transitions(Judge):
    """Watches all member machines of a world."""

    def __init__(self) -> None:
        self._machines: defaultdict[str, MachineMoves] = defaultdict(MachineMoves)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh: a new process has a new machine."""
        if what == "start":
            self._machines[host] = MachineMoves()

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """Check one move."""
        self.report_all(self._machines[host].move(host, event, str(source), str(target)))


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

    def delivers(self, partition: TopicPartition) -> bool:
        """Return true if records of the partition may reach the application now."""
        return partition in self.owned and partition not in self.releasing

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


class Callbacks(Judge):
    """Watches the callbacks of all members of a world."""

    def __init__(self) -> None:
        self.hosts = OfHosts(CallbackBalance)
        """The processes that run on the hosts now."""

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Check that a process starts and ends cleanly with nothing; a crash runs no callbacks."""
        if what in ("start", "crash"):
            self.hosts[host] = CallbackBalance(host)
        elif what == "stopped":
            host_callbacks = self.hosts[host]
            since = host_callbacks.leaving_since_us
            if since is None or now_us - since < CLOSE_TIMEOUT_US:
                self.report_all(host_callbacks.emptied("stopped"))

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """Check that a member that joins owns nothing."""
        if target == JOINING or event == RELEASED:
            self.report_all(self.hosts[host].emptied("joined"))
            self.hosts[host].tells_rest = False  # what it released was of another membership
        elif event == PASS_FINISHED:
            self.report_all(self.hosts[host].acknowledges())
        elif target == PREPARE_LEAVING:
            self.hosts[host].leaving_since_us = now_us

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Check a begin or an end."""
        host_callbacks, chosen = self.hosts[host], as_set(tuple(partitions))
        if phase == "begin":
            self.report_all(host_callbacks.begin(str(kind), chosen))
        else:
            self.report_all(host_callbacks.end(str(kind), chosen, raised=phase == "raised"))

    def on_records_delivered(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Check that records come only while the partition is owned."""
        if not self.hosts[host].delivers(partition):
            self.report(
                "records-while-owned",
                f"{host} was handed {partition.topic}-{partition.partition} [{first}, {last_exclusive})"
                " outside of its assigned and revoked callbacks",
            )
