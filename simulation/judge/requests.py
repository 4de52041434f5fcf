"""The requests of members: one heartbeat at a time, complete if necessary, honest about epoch and partitions.

The steady heartbeat is one and the same value, sent again and again. It was checked when it was first sent;
if nothing that it depends on has changed since, it costs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.classic.states import ACTIVE as CLASSIC_ACTIVE
from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.consumer.states import (
    ACKNOWLEDGING,
    ACTIVE,
    FATAL,
    JOINING,
    PREPARE_LEAVING,
    STABLE,
    UNSUBSCRIBED,
    ConsumerMemberEvent,
)
from fencepost.simulation.judge.base import (
    NOTHING,
    OF_LOG,
    Finding,
    OfProcesses,
    as_set,
    joined,
    of_process,
    shown_names,
    without,
)
from fencepost.simulation.judge.consumer_model import NONE, is_full
from fencepost.simulation.kernel.observers import MembersWorldView

_ACTIVE = frozenset(map(str, ACTIVE))
_SENDING = frozenset((*_ACTIVE, str(PREPARE_LEAVING)))
"""A member that prepares to leave keeps its session until its callbacks have run."""

_COMMITTING = frozenset((*_SENDING, *map(str, CLASSIC_ACTIVE)))
"""The states in which a member commits by itself."""

RELEASED, LEAVE_BUILT = ConsumerMemberEvent.RELEASED, ConsumerMemberEvent.LEAVE_BUILT

UNRELEASED_INSTANCE_ID = ErrorCode.UNRELEASED_INSTANCE_ID
_NOT_FINAL = (None, NONE, *OF_LOG)
"""Responses after which the coordinator may have the member; None stands for no response."""


class RequestFollower(Protocol):
    """A judge that looks at requests, too, except a steady heartbeat with the same response as before."""

    def takes_request(self, host: str, request: Request, now_us: int) -> None:
        """Take in a request that a member's driver sent."""

    def takes_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """A member's driver received a response, or the exception that stands for none."""


NEVER = 2**63
"""Microseconds; later than any run."""


AFTER_FAILURE_US = 1_500_000
"""Longest time from a failure to the next heartbeat or search, in µs: retry.backoff.max.ms, and some more."""


AT_ONCE_US = 100_000
"""Time for everything that happens in one step, in µs: none in a simulation, a little on a busy machine."""


def patience_us(interval_ms: int) -> int:
    """Return the longest silence of a member: its interval, and the drift of its clock."""
    return 1000 * (interval_ms + interval_ms // 4 + 100)


class Sender:
    """One member process, and the rules for its next request."""

    def __init__(self, host: str, names: Mapping[ids.TopicId, str], world: MembersWorldView) -> None:
        self.host = host
        self._world = world
        self.classic = False
        """True if it speaks the classic protocol."""
        self.state = str(UNSUBSCRIBED)
        self.in_flight: ConsumerGroupHeartbeatRequest | None = None
        self.checked: ConsumerGroupHeartbeatRequest | None = None
        """The last correct heartbeat, which stays correct as long as nothing changes."""
        self.last_answer: Response | Exception | None = None
        self.late_us = NEVER
        """After this time the next heartbeat or search is late. NEVER after a freeze or a leave."""
        self.due_us = NEVER
        """After this time its acknowledgement is late. NEVER after a freeze, or if it need not be at once."""
        self.haste_us = 0
        """Shortest time between a response and the next heartbeat that says nothing new, in µs."""
        self.early_us = 0
        """Before this time a heartbeat that says nothing new is too early."""
        self.blind_us = 0
        """Longest time that a broken connection may stay unnoticed, in µs."""
        self.searches = False
        """True if it looks for the coordinator since its last heartbeat, whose response may still come."""
        self.interval_ms = 0
        self.patience_us = patience_us(self.interval_ms)
        self.compared: tuple[object, object] = None, None
        """The last assignment of the driver and the last partitions of the callbacks that agreed."""
        self._names = names
        self._named_of: tuple[ids.Partitions | None, int, frozenset[ids.TopicPartition]] = None, 0, NOTHING
        """An assignment of its coordinator, the number of names that were known then, and the same assignment
        by name."""
        self._must_be_full = True
        self._epoch = ids.JOIN_EPOCH
        """The newest epoch that was received and belongs to this membership."""
        self._joins = 0
        self._sent_in = 0
        self._owned = NOTHING
        self._adding = NOTHING
        self._assigned: ids.Partitions | None = None
        """The newest assignment of this membership."""
        self._may_hold_instance = False
        """True if the instance id may be its own: it was a member, or a join of it has no final response."""
        self._names_sent: tuple[str, ...] | None = None
        """The names that the coordinator took; None if they have to be sent."""
        self._listed: ids.Partitions | None = None
        """The partitions that the coordinator knows it to own, if its assignment has not differed since."""
        self._refused_itself = False
        """True if its last join was refused because of the instance id that it may hold itself."""

    def on_member_host(self, what: str, now_us: int) -> None:
        """Note that a process that was frozen has an excuse for its silence."""
        if what in ("freeze", "thaw"):
            self.late_us = self.due_us = NEVER

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Note that the member machine moved. The requests of a classic member are judged elsewhere."""
        self.due_us = NEVER
        self.classic = isinstance(target, ClassicMemberState)
        self.state = str(target)
        self.checked = self.last_answer = None
        if target == JOINING:
            self._joins += 1
            self._epoch = ids.JOIN_EPOCH
            self._assigned = None
            self._must_be_full = True
            self.early_us = 0
            self.late_us = NEVER
        elif target == ACKNOWLEDGING:
            self._listed = None
            self._acknowledges(now_us)
        elif target not in _ACTIVE:
            self._epoch = ids.JOIN_EPOCH if target != PREPARE_LEAVING else self._epoch
            self.late_us = NEVER
        if target == FATAL and self._refused_itself:
            yield "frees-own-instance", f"{self.host} gave up because of an instance id that it holds itself"
        if target == UNSUBSCRIBED and event in (RELEASED, LEAVE_BUILT):
            driver = self._world.members[self.host].driver
            if driver is not None and driver.assignment:
                owned = shown_names(driver.assignment)
                yield (
                    "owned-honest",
                    f"{self.host} has left, and reports to its application that it owns {owned}",
                )

    def _acknowledges(self, now_us: int) -> None:
        """Expect the heartbeat at once that others may wait for, unless the last one failed."""
        if self.in_flight is None and not self.searches and not self._must_be_full:
            self.due_us = now_us + AT_ONCE_US

    def on_callback(
        self, kind: str, phase: str, partitions: Iterable[ids.TopicPartition], now_us: int
    ) -> None:
        """Note that a callback began or ended: callbacks decide what is owned."""
        self.checked = self._listed = None
        chosen = as_set(tuple(partitions))
        if kind == "assigned":
            if phase == "begin":
                self._adding = joined(self._adding, chosen)
            elif phase == "end":
                self._adding = without(self._adding, chosen)
                self._owned = joined(self._owned, chosen)
        elif phase == "end" or (phase == "raised" and kind == "lost"):
            self._adding = without(self._adding, chosen)
            self._owned = without(self._owned, chosen)

    def on_member_search(self, now_us: int) -> Iterator[Finding]:
        """Note a search: the member sends nothing until it has found the coordinator, in a limited time."""
        network = self._world.scenario.network
        timeout_us = network.request_timeout.us
        self.blind_us = max(network.detection.low, network.detection.high)
        yield from self.silent(now_us)
        self.searches = True
        self.late_us = self.due_us = NEVER
        if self.state in _ACTIVE:
            self.late_us = now_us + timeout_us * 5 // 4 + AFTER_FAILURE_US + self.patience_us
        self.checked = self.last_answer = None

    def silent(self, now_us: int) -> Iterator[Finding]:
        """Yield a finding if it ought to have sent something by now."""
        if (
            now_us > self.late_us + self.blind_us
            and self.in_flight is None
            and not self.classic
            and self.state in _ACTIVE
        ):
            yield (
                "heartbeats-go-on",
                f"{self.host} in {self.state} sends nothing, though its heartbeat was due"
                f" {(now_us - self.late_us) // 1000} ms ago",
            )

    def sends(self, request: ConsumerGroupHeartbeatRequest, now_us: int) -> Iterator[Finding]:
        """A heartbeat is sent."""
        self.searches = False
        if request.member_epoch < 0:
            self._refused_itself = False
            yield from self._leave(request)
            return
        if self._refused_itself:
            self._refused_itself = False
            yield (
                "frees-own-instance",
                f"{self.host} retries without freeing the instance id that it holds itself",
            )
        if self.in_flight is not None:
            yield (
                "one-in-flight",
                f"{self.host} sent a heartbeat at epoch {request.member_epoch} while one at epoch"
                f" {self.in_flight.member_epoch} is in flight",
            )
        self.in_flight = request
        self._sent_in = self._joins
        if now_us > self.late_us:
            waited = (now_us - self.late_us + self.patience_us) // 1000
            yield (
                "heartbeats-go-on",
                f"{self.host} in {self.state} sent nothing for {waited} ms, its interval is"
                f" {self.interval_ms} ms",
            )
        elif now_us > self.due_us:
            waited = (now_us - self.due_us + AT_ONCE_US) // 1000
            yield "heartbeats-go-on", f"{self.host} acknowledges its assignment only after {waited} ms"
        if now_us < self.early_us and self.state != ACKNOWLEDGING and _says_nothing(request):
            yield (
                "heartbeats-go-on",
                f"{self.host} in {self.state} has nothing to send, and sent a heartbeat"
                f" {(self.early_us - now_us) // 1000} ms too early",
            )
        if request is self.checked:
            return
        if self.state not in _SENDING:
            yield (
                "one-in-flight",
                f"{self.host} sent a heartbeat at epoch {request.member_epoch} in {self.state}",
            )
        if (
            self.state == STABLE
            and self._assigned is not None
            and self.holds != (wanted := self._assigned_names(self._assigned))
        ):
            yield (
                "reconciles-on",
                f"{self.host} is STABLE, and owns {shown_names(self.holds)}; it was assigned"
                f" {shown_names(wanted)}",
            )
        yield from self._fields(request)
        if request.subscribed_topic_names is not None:
            self._names_sent = request.subscribed_topic_names
        self._must_be_full = False
        self.checked = request

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Iterator[Finding]:
        if request.member_epoch not in (ids.LEAVE_EPOCH, ids.STATIC_LEAVE_EPOCH) or (
            request.member_epoch == ids.STATIC_LEAVE_EPOCH and request.instance_id is None
        ):
            yield (
                "request-fields",
                f"{self.host} left with epoch {request.member_epoch}, instance {request.instance_id}",
            )
        frees_instance = self.state == JOINING and request.member_epoch == ids.STATIC_LEAVE_EPOCH
        if self.state in _ACTIVE and (self.in_flight is not None or not frees_instance):
            yield "one-in-flight", f"{self.host} sent a leave in {self.state}"

    def _fields(self, request: ConsumerGroupHeartbeatRequest) -> Iterator[Finding]:
        if request.member_epoch == ids.JOIN_EPOCH:
            nothing = not request.subscribed_topic_names and not request.subscribed_topic_regex
            if not is_full(request) or request.topic_partitions or nothing:
                yield "request-fields", f"{self.host} joins with {request}"
            if self._owned:
                yield "owned-honest", f"{self.host} joins while it owns {shown_names(self._owned)}"
            if self._epoch != ids.JOIN_EPOCH:
                yield "epoch-as-answered", f"{self.host} joins again, it received epoch {self._epoch}"
            return
        if request.member_epoch != self._epoch:
            yield (
                "epoch-as-answered",
                f"{self.host} sent epoch {request.member_epoch}, it received {self._epoch} last",
            )
        if self._must_be_full and not is_full(request):
            yield "request-fields", f"{self.host} sent less than everything after a failure: {request}"
        names = request.subscribed_topic_names
        if names is not None and names == self._names_sent and not self._must_be_full:
            yield "request-fields", f"{self.host} repeats the names that it has sent: {request}"
        if request.topic_partitions is not None:
            if request.topic_partitions == self._listed and not self._must_be_full:
                yield "request-fields", f"{self.host} repeats the partitions that it has sent: {request}"
            yield from self.honest(request.topic_partitions, request.member_epoch)

    def honest(self, partitions: ids.Partitions, epoch: int) -> Iterator[Finding]:
        """Check that a member lists what it owns. It may already list what it was last assigned and may still
        take: that is not released."""
        listed = self._named(partitions)
        if listed == self._owned:
            return
        if unlisted := self._owned - listed:
            yield (
                "owned-honest",
                f"{self.host} at epoch {epoch} owns {shown_names(unlisted)}, but did not list it",
            )
        foreign = listed - self._owned - self._adding
        if foreign and (foreign := foreign - self._named(self._assigned or {})):
            yield (
                "owned-honest",
                f"{self.host} at epoch {epoch} listed {shown_names(foreign)} without owning it",
            )

    def _assigned_names(self, assigned: ids.Partitions) -> frozenset[ids.TopicPartition]:
        """The names of its assignment, which stays the same for many heartbeats."""
        known, count, found = self._named_of
        if known is not assigned or count != len(self._names):
            found = frozenset(self._named(assigned))
            self._named_of = assigned, len(self._names), found
        return found

    def _named(self, partitions: ids.Partitions) -> set[ids.TopicPartition]:
        named: set[ids.TopicPartition] = set()
        for topic_id, numbers in partitions.items():
            named.update(ids.topic_partitions(self._names.get(topic_id, topic_id), numbers))
        return named

    def receives(
        self, request: ConsumerGroupHeartbeatRequest, response: Response | Exception, now_us: int
    ) -> None:
        """A heartbeat was answered or failed."""
        if request is not self.in_flight:
            return
        self.in_flight = None
        self.last_answer = None
        code = response.error_code if isinstance(response, ConsumerGroupHeartbeatResponse) else None
        if code is UNRELEASED_INSTANCE_ID:
            self._refused_itself = self._may_hold_instance
        elif code in _NOT_FINAL:
            self._may_hold_instance = True
        if self._sent_in != self._joins:
            return
        if not isinstance(response, ConsumerGroupHeartbeatResponse) or response.error_code != NONE:
            if not self.searches:
                frees = code is UNRELEASED_INSTANCE_ID
                self.late_us = NEVER if frees else now_us + AFTER_FAILURE_US
            self.due_us = NEVER
            self.early_us = 0
            self._names_sent = None
            self._must_be_full = True
            self.checked = None
            return
        if response.heartbeat_interval_ms != self.interval_ms:
            self.interval_ms = response.heartbeat_interval_ms
            self.patience_us = patience_us(self.interval_ms)
            self.haste_us = self.interval_ms * 800
        if self.state in _SENDING:
            self.rests(now_us)
            self.last_answer = response
            if self.state == ACKNOWLEDGING:
                self._acknowledges(now_us)
            self._learns(request, response)

    def _learns(
        self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse
    ) -> None:
        """Take in the epoch, the assignment, and that the coordinator has the partitions that were listed."""
        if request.topic_partitions is not None and self.state != ACKNOWLEDGING:
            self._listed = request.topic_partitions
        if response.assignment is not None:
            self._assigned = response.assignment
            self.checked = None
            if response.assignment != self._listed:
                self._listed = None
        if response.member_epoch > 0 and response.member_epoch != self._epoch:
            self._epoch = response.member_epoch
            self.checked = None

    def rests(self, now_us: int) -> None:
        """A heartbeat was successful: the next one is due an interval later."""
        if not self.searches:
            self.late_us = now_us + self.patience_us
        self.early_us = now_us + self.haste_us

    @property
    def holds(self) -> frozenset[ids.TopicPartition]:
        """The partitions that its application owns, by its callbacks."""
        return joined(self._owned, self._adding)

    def commits(self, request: OffsetCommitRequest) -> Iterator[Finding]:
        """A commit is sent."""
        if not self.classic and request.member_epoch >= 0 and request.member_epoch != self._epoch:
            yield (
                "epoch-as-answered",
                f"{self.host} commits at epoch {request.member_epoch}, it received {self._epoch} last",
            )


def _says_nothing(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.topic_partitions is None
    )


class Requests(OfProcesses[Sender]):
    """Checks the requests of all members of a world."""

    world: MembersWorldView
    changed = of_process(Sender.on_member_host)
    on_callback = of_process(Sender.on_callback)
    on_member_search = of_process(Sender.on_member_search)
    on_member_state = of_process(Sender.on_member_state)

    def __init__(self, *followers: RequestFollower) -> None:
        super().__init__()
        self._followers = followers
        """The other observers of requests: called directly, since the hooks for requests are hot."""
        self._names: dict[ids.TopicId, str] = {}

    def new(self, host: str) -> Sender:
        """Return a process that has sent nothing."""
        return Sender(host, self._names, self.world)

    def _learn_names(self) -> None:
        self._names.update((topic_id, topic.name) for topic_id, topic in self.world.topics.by_id.items())

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Learn the names of topics, and start afresh with a new process."""
        self._learn_names()
        super().on_member_host(host, what, now_us)

    def on_end(self, now_us: int) -> None:
        """Check that no member is silent without a reason."""
        for sender in self.processes.values():
            self.report_all(sender.silent(now_us))

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Learn the names of topics; those of deleted topics are kept."""
        self._learn_names()

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Check a heartbeat or a commit."""
        sender = self.processes[host]
        if (
            request is sender.checked
            and sender.in_flight is None
            and sender.early_us <= now_us <= sender.late_us
        ):
            sender.in_flight = sender.checked
            return
        if type(request) is ConsumerGroupHeartbeatRequest:
            self.report_all(sender.sends(request, now_us))
            if request.member_epoch == ids.JOIN_EPOCH:
                self._asks_for_assignor(host, request)
        elif type(request) is OffsetCommitRequest:
            self.report_all(sender.commits(request))
            # A producer does not know its consumer: it retries until the application loses the partitions.
            retried = request.is_transactional and request.offsets.keys() <= sender.holds
            if (sender.state == FATAL and not retried) or (
                self._commits_by_itself and sender.state not in _COMMITTING
            ):
                self.report("commit-while-owned", f"{host} commits in {sender.state}, out of its group")
            if not request.offsets:
                self.report("commit-while-owned", f"{host} sends a commit without offsets")
        for follower in self._followers:
            follower.takes_request(host, request, now_us)

    @property
    def _commits_by_itself(self) -> bool:
        return self.world.scenario.application.commit == "auto"

    def _asks_for_assignor(self, host: str, request: ConsumerGroupHeartbeatRequest) -> None:
        wanted = self.world.scenario.group.assignor
        if request.server_assignor != wanted:
            self.report(
                "request-fields", f"{host} joins and asks for {request.server_assignor}, not for {wanted}"
            )

    def _compare(self, host: str, sender: Sender) -> None:
        """Check that the partitions that the application sees as owned are those of its callbacks, or are
        about to be."""
        driver = self.world.members[host].driver
        calls_back = getattr(driver, "is_calling_back", None)  # not known of a driver in another process
        if driver is None or calls_back is None:
            return
        assignment, holds = driver.assignment, sender.holds
        agreed, with_these = sender.compared
        if agreed is assignment and with_these is holds:
            return
        told = as_set(assignment)
        if told == holds:
            sender.compared = assignment, holds
        elif not holds <= told or not calls_back:
            self.report(
                "owned-honest",
                f"{host} reports to its application that it owns {shown_names(assignment)}, by its"
                f" callbacks it owns {shown_names(holds)}",
            )

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Take a response in."""
        sender = self.processes[host]
        if response is sender.last_answer and request is sender.in_flight:
            sender.in_flight = None
            sender.late_us = now_us + sender.patience_us
            sender.early_us = now_us + sender.haste_us
            return
        if type(request) is ConsumerGroupHeartbeatRequest:
            sender.receives(request, response, now_us)
            self._compare(host, sender)
        for follower in self._followers:
            follower.takes_response(host, request, response, now_us)
