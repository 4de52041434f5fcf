"""The requests of members of classic groups: one of a round at a time, honest about partitions and ids.

A member with an eager assignor joins without partitions; with a cooperative one it lists those that it keeps
(KIP-429). It joins under the id that it has, until the coordinator no longer knows that id (KAFKA-13419). It
joins again only for a reason, since all other members have to join with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import read_subscription
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.classic.assignors import ASSIGNORS
from fencepost.member.classic.states import ClassicMemberEvent as E
from fencepost.member.classic.states import ClassicMemberState as S
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
from fencepost.simulation.judge.requests import AFTER_FAILURE_US, NEVER, patience_us
from fencepost.simulation.kernel.observers import MembersWorldView

_NONE: Final = ErrorCode.NONE
_COOPERATIVE: Final = frozenset(name for name, make in ASSIGNORS.items() if make().cooperative)
_BEATING: Final = (S.UNJOINED, S.COMPLETING_REBALANCE, S.STABLE)
"""The states in which a member that is in a generation keeps its session up."""


class ClassicSender:
    """One member process, and the rules for its next request."""

    def __init__(self, host: str, world: MembersWorldView) -> None:
        self.host = host
        self._world = world
        self.state: S | None = None
        """None until the process has moved, and for members of another protocol."""
        self.generation = 0
        self.member_id: MemberId | None = ""
        """The id that it has to join with, empty for a new one; None if it may have left under its id."""
        self.owned: frozenset[TopicPartition] = NOTHING
        self.has_reason = False
        """True if something happened, since it last joined, for which members join again."""
        self._at_will = False
        """True if it is about to join again, without such a reason."""
        self._topics: tuple[str, ...] = ()
        """The topics to which it subscribed with its last join."""
        self.in_flight: dict[type, Request] = {}
        self.late_us = NEVER
        self.searches = False
        """True if it looks for the coordinator since its last request, whose response may still come."""
        self.patience_us = 0

    def on_member_host(self, what: str, now_us: int) -> None:
        """Note that the process is to end, or stands still: it has an excuse for its silence."""
        self.late_us = NEVER

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> None:
        """Note that the member machine moved. A member that starts a round may have subscribed to other
        topics."""
        if not isinstance(target, S):
            return
        if self.state is None:
            driver = self._world.members[self.host].driver
            self.patience_us = patience_us(getattr(driver, "heartbeat_interval_ms", 0))
        self.state = target
        if target in (S.FENCED, S.STALE, S.UNSUBSCRIBED, S.FATAL):
            self.generation = 0
        if target not in (*_BEATING, S.PREPARING_REBALANCE):
            self.in_flight.clear()  # the responses belong to a membership that is over
        if target in (S.PREPARE_LEAVING, S.STALE, S.UNSUBSCRIBED):
            self.member_id = None
        if target not in _BEATING or not self.generation:
            self.late_us = NEVER
        elif target is S.COMPLETING_REBALANCE or (self.late_us == NEVER and not self.searches):
            self.late_us = now_us + self.patience_us
        if event == E.REJOIN:
            self._at_will = not self.has_reason

    def on_callback(self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int) -> None:
        """Note that a callback began or ended. Revoked partitions get their next owner in another round."""
        if self.state is None:
            return
        self.has_reason = self.has_reason or kind == "revoked"
        chosen = as_set(tuple(partitions))
        if kind == "assigned" and phase == "begin":
            self.owned = joined(self.owned, chosen)
        elif kind != "assigned" and phase == "end":
            self.owned = without(self.owned, chosen)

    def on_member_search(self, now_us: int) -> Iterator[Finding]:
        """Note a search: the member sends nothing until it has found the coordinator, in a limited time."""
        if self.state is None:
            return
        yield from self.silent(now_us)
        network = self._world.scenario.network
        timeout_us = network.request_timeout.us + max(network.detection.low, network.detection.high)
        self.searches = True
        self.late_us = NEVER
        if self.state in _BEATING and self.generation:
            self.late_us = now_us + timeout_us * 5 // 4 + AFTER_FAILURE_US + self.patience_us

    def silent(self, now_us: int) -> Iterator[Finding]:
        """Report a heartbeat that it ought to have sent by now."""
        if now_us > self.late_us and self.state in _BEATING and HeartbeatRequest not in self.in_flight:
            late_ms = (now_us - self.late_us) // 1_000
            yield "heartbeats-go-on", f"{self.host} in {self.state}: its heartbeat is {late_ms} ms late"
            self.late_us = NEVER

    def on_member_request(self, request: Request, now_us: int) -> Iterator[Finding]:
        """Check a request."""
        if self.state is None:
            return
        yield from self.silent(now_us)
        self.searches = False
        if isinstance(request, JoinGroupRequest):
            yield from self._alone(request, S.UNJOINED)
            yield from self._joins(request)
        elif isinstance(request, SyncGroupRequest):
            yield from self._alone(request, S.COMPLETING_REBALANCE)
            yield from self._knows(request, request.generation)
        elif isinstance(request, HeartbeatRequest):
            yield from self._alone(request, *_BEATING, S.PREPARE_LEAVING)
            yield from self._knows(request, request.generation)
            self.late_us = NEVER
        elif isinstance(request, OffsetCommitRequest) and request.member_epoch >= 0:
            yield from self._knows(request, request.member_epoch)

    def _alone(self, request: Request, *states: S) -> Iterator[Finding]:
        what = type(request)
        rounds = (JoinGroupRequest, SyncGroupRequest)
        for kind in rounds if what in rounds else (what,):
            if kind in self.in_flight:
                yield (
                    "one-in-flight",
                    f"{self.host} sent {what.__name__} while a {kind.__name__} is in flight",
                )
        if self.state not in states:
            yield "one-in-flight", f"{self.host} sent {what.__name__} in {self.state}"
        self.in_flight[what] = request

    def _knows(self, request: Request, generation: int) -> Iterator[Finding]:
        if generation != self.generation:
            yield (
                "epoch-as-answered",
                f"{self.host} sent {type(request).__name__} in generation {generation}, it received"
                f" {self.generation} last",
            )

    def _joins(self, request: JoinGroupRequest) -> Iterator[Finding]:
        if self.member_id is not None and request.member_id != self.member_id:
            yield "classic-joins", f"{self.host} joins as {request.member_id!r}, and is {self.member_id!r}"
        topics = self._topics
        for protocol in request.protocols:
            subscription = read_subscription(protocol.metadata)
            self._topics, told = subscription.topics, subscription.owned
            listed = {p for topic, numbers in told.items() for p in topic_partitions(topic, numbers)}
            if protocol.name not in _COOPERATIVE and self.owned:
                yield (
                    "classic-joins",
                    f"{self.host} joins with {protocol.name}, which is eager, and owns"
                    f" {shown_names(self.owned)}",
                )
            elif listed != self.owned:
                yield (
                    "classic-joins",
                    f"{self.host} joins with {shown_names(listed)}, and owns {shown_names(self.owned)}",
                )
        if self._at_will and self._topics == topics:
            yield "classic-joins", f"{self.host} joins again, and nothing happened since it joined last"
        self._at_will = self.has_reason = False

    def on_member_response(self, request: Request, response: Response | Exception, now_us: int) -> None:
        """Note that a request was answered or failed."""
        if self.in_flight.get(type(request)) is not request:
            return
        del self.in_flight[type(request)]
        code = getattr(response, "error_code", ErrorCode.NONE)
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif isinstance(response, JoinGroupResponse) and code in (_NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        if isinstance(response, JoinGroupResponse) and code is _NONE:
            self.generation = response.generation
        elif isinstance(request, HeartbeatRequest):
            self.has_reason = self.has_reason or code is ErrorCode.REBALANCE_IN_PROGRESS
            if self.state in _BEATING and not self.searches:
                self.late_us = now_us + self.patience_us


class ClassicMembers(OfProcesses[ClassicSender]):
    """Checks the requests of all members that speak the classic protocol."""

    world: MembersWorldView
    changed = of_process(ClassicSender.on_member_host)
    on_callback = of_process(ClassicSender.on_callback)
    on_member_request = of_process(ClassicSender.on_member_request)
    on_member_response = of_process(ClassicSender.on_member_response)
    on_member_search = of_process(ClassicSender.on_member_search)
    on_member_state = of_process(ClassicSender.on_member_state)

    def new(self, host: str) -> ClassicSender:
        """Return a process that has not moved."""
        return ClassicSender(host, self.world)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Note that a leader may see that topics have changed."""
        for sender in self.processes.values():
            sender.has_reason = sender.state is not None

    def on_end(self, now_us: int) -> None:
        """Check that no member is silent without a reason."""
        for sender in self.processes.values():
            self.report_all(sender.silent(now_us))
