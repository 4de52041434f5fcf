"""A run replayed in one order: the world as observers see it, at the time of each event.

Members report over pipes and the coordinator through its log, each with a delay of its own. So observers are
called when everything has been received. Events are merged by time and by cause, and this world follows event
by event.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, cast

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.member.base.transport import Disconnected, RequestTimedOut, TransportError
from fencepost.member.classic.states import ClassicMemberEvent, ClassicMemberState
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.simulation.kernel.observers import CoordinatorView, Observer
from fencepost.simulation.kernel.world import Observed
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.classic_messages import member_id_of, unpacked
from fencepost.simulation.lab.chaos.events import (
    Happening,
    HeartbeatSeen,
    HostNoted,
    MemberEvent,
    MessageLost,
    RunEvents,
    StreamsMemberHeard,
    TopicImageChanged,
)
from fencepost.simulation.lab.chaos.merge import LOG, Merge, mark_before, mark_before_sync, marks_of_commit
from fencepost.simulation.lab.chaos.played import Arrival, PlayedCoordinator
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.timing import SLACK_US

_WORLD = "world"
"""The source, in the merge, of events that concern no member."""
_ERRORS: Mapping[str, type[TransportError]] = {
    kind.__name__: kind for kind in (TransportError, Disconnected, RequestTimedOut)
}


class ReplayedDriver:
    """The state of a member, as it reported it."""

    def __init__(self) -> None:
        self.state: ConsumerMemberState | ClassicMemberState = ConsumerMemberState.UNSUBSCRIBED
        self.member_epoch = 0
        self.assignment: tuple[TopicPartition, ...] = ()


class ReplayedClassicDriver(ReplayedDriver):
    """The state of a member of the classic protocol, as it reported it."""

    def __init__(self, heartbeat_interval_ms: int) -> None:
        super().__init__()
        self.state = ClassicMemberState.UNSUBSCRIBED
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.calls_back = False

    @property
    def is_settled(self) -> bool:
        """True if the member has taken up what its generation gave it, as far as it reports."""
        return self.state is ClassicMemberState.STABLE and not self.calls_back


class ForeignDriver:
    """A member that does not report its state: it has the state of the coordinator's log."""

    def __init__(self, replayed: ReplayedRun, member_id: MemberId) -> None:
        self._retelling = replayed
        self._member_id = member_id
        self.assignment: tuple[TopicPartition, ...] = ()

    @property
    def state(self) -> ConsumerMemberState:
        """STABLE if it is in the group, as far as that can be known."""
        known = self._retelling.active is not None
        out = known and not self.member_epoch
        return ConsumerMemberState.JOINING if out else ConsumerMemberState.STABLE

    @property
    def member_epoch(self) -> int:
        """The epoch on record."""
        group = self._retelling.group
        member = None if group is None else group.members.get(self._member_id)
        return 0 if member is None else member.member_epoch


class ReplayedBroker:
    """A broker's host; `ReplayedRun.active` shows what coordinates there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "standby"
        self.coordinator: GroupCoordinator | None = None


class ReplayedHost:
    """A member's host."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.status = "stopped"
        self.wanted = True
        self.member_id: MemberId = ""
        self.told: ReplayedDriver | ForeignDriver | None = None
        self.requests: dict[int, Any] = {}

    @property
    def driver(self) -> ConsumerDriver | None:
        """The reported state of a driver, for observers; the driver itself is in another process."""
        return cast("ConsumerDriver | None", self.told)


class _ReplayTime:
    """The time of the replayed event."""

    now_us = 0


class ReplayedRun(Observed):
    """Everything of one run, at the time of the replayed event: a `MembersWorldView` for observers."""

    def __init__(
        self,
        scenario: Scenario,
        config: GroupCoordinatorConfig,
        observed: PlayedCoordinator | None,
        arrivals: Iterable[Arrival] = (),
        *,
        client: str,
        members: Iterable[tuple[str, str | None]],
        brokers: Iterable[str],
        observers: Iterable[Observer],
        sequence: Callable[[], int],
    ) -> None:
        self._clock = _ReplayTime()
        super().__init__(self._clock, sequence)
        self.scenario = scenario
        self._arrivals = arrivals
        self.config = config
        self.topics = TopicsImage()
        self.journal = MemoryJournal()
        self.coordinators: Mapping[str, CoordinatorView] = {name: ReplayedBroker(name) for name in brokers}
        self.active: GroupCoordinator | None = None if observed is None else observed.coordinator
        self.members = {name: ReplayedHost(name, instance_id) for name, instance_id in members}
        self.hosts_by_member: dict[MemberId, str] = {}
        self.log_ends: dict[TopicPartition, int] = {}
        self._client = client
        self._observed = observed
        self._pushed: dict[str, MemberId] = {}
        self._classic_requests: dict[tuple[str, int], Any] = {}
        """Requests that were pushed, by host and number; a new process starts over."""
        self.attach(observers)
        if observed is not None:
            observed.hooks = self.hooks

    @property
    def group_id(self) -> str:
        """The one group of this world."""
        return self.scenario.group.id

    @cached_property
    def settling_ms(self) -> int:
        """Time that the group may take to settle, in ms, with an allowance for a busy machine."""
        return self.scenario.settling_ms(self.config) + SLACK_US // 1_000

    def subscription_of(self, host: str) -> None:
        """Return None: no record shows what processes were told to subscribe to last."""

    @property
    def group(self) -> ConsumerGroup | None:
        """The group, as the coordinator's log has it, if it is a consumer group."""
        return None if self.active is None else self.active.groups.get(self.group_id)

    @property
    def settled(self) -> bool:
        """True if running members are STABLE at one epoch, the group's if it is known, and share nothing."""
        running = [host for host in self.members.values() if host.status in ("running", "stopping", "frozen")]
        told = [host.told for host in running if host.told is not None]
        epochs = {driver.member_epoch for driver in told}
        found = None if self.active is None else self.active.kinds.find(self.group_id)
        if found is not None and (
            len(found[1].members) != len(running) or epochs - {found[0].epoch(found[1])}
        ):
            return False
        owned = [partition for driver in told for partition in driver.assignment]
        return (
            len(told) == len(running)
            and len(epochs) <= 1
            and len(owned) == len(set(owned))
            and all(
                driver.state in (ConsumerMemberState.STABLE, ClassicMemberState.STABLE) for driver in told
            )
        )

    @property
    def standing(self) -> str:
        """The state of each running member, for people."""
        told = [(host.name, host.told) for host in self.members.values() if host.told is not None]
        return ", ".join(f"{name} {driver.state} {driver.member_epoch}" for name, driver in told)

    # -- all of it ----------------------------------------------------------------------------------------

    def tell_all(self, happenings: RunEvents, end_us: int) -> None:
        """Replay the events of members, of the world and of the coordinator, until the end of the run."""
        merge: Merge[Callable[[int], None]] = Merge()
        for t_us, host, happening in happenings.in_order():
            if t_us <= end_us:
                after = None if self._observed is None else self._after(host, happening)
                marks = _marks(happening)
                item = partial(self._happened, host, happening)
                merge.push(host or _WORLD, t_us, item, after=after, marks=marks)
        tells = self._client == "fencepost"
        for arrival in self._arrivals:
            if arrival.t_us <= end_us:
                after = arrival.after if tells else None
                merge.push(LOG, arrival.t_us, partial(self._play, arrival), after=after, marks=arrival.marks)
        for t_us, play in merge.drain():
            play(t_us)

    def _after(self, host: str, happening: Happening) -> Hashable | None:
        """Return the mark in the log that an event can only have followed."""
        match happening:
            case m.Up(_, member_id, _):
                self._pushed[host] = member_id
            case HeartbeatSeen(request, response):
                return mark_before(request.member_id, response)
            case m.ClassicSent(_, number, kind, body):
                self._classic_requests[host, number] = unpacked(kind, body)
            case m.ClassicAnswered(_, number, kind, body):
                if (asked := self._classic_requests.get((host, number))) is not None:
                    return mark_before_sync(asked, unpacked(kind, body))
            case m.HeartbeatAnswered(_, _, response, _) if response is not None:
                return mark_before(self._pushed[host], response)
        return None

    def _play(self, arrival: Arrival, t_us: int) -> None:
        assert self._observed is not None
        self._clock.now_us = t_us
        self._observed.play(arrival, t_us)

    # -- what happened ------------------------------------------------------------------------------------

    def _happened(self, host: str, happening: Happening, t_us: int) -> None:
        """Bring the world along by one event, and notify observers."""
        self._clock.now_us = t_us
        match happening:
            case MemberEvent(hook, arguments):
                self.faults_over = self.faults_over or hook == "on_faults_end"
                self.tell(hook, *arguments)
            case MessageLost(lost_host, broker, direction, request):
                # Observers read no more of a lost request than its type's name.
                self.tell("on_loss", lost_host, broker, direction, type(request, (), {})())
            case TopicImageChanged(image, topic, what, partitions):
                self.topics = image
                self.tell("on_topic", topic, what, partitions)
            case HeartbeatSeen(request, response):
                self.tell("on_member_response", host, request, response)
            case HostNoted(what):
                self._noted(self.members[host], what)
            case StreamsMemberHeard():
                return  # of Streams applications, which are replayed elsewhere
            case _:
                self._said(self.members[host], happening)

    def _noted(self, host: ReplayedHost, what: str) -> None:
        host.status = {"crash": "crashed", "freeze": "frozen"}.get(what, "running")
        if what == "crash":
            host.told = None
        self.tell("on_member_host", host.name, what)

    def _said(self, host: ReplayedHost, event: m.Event) -> None:
        match event:
            case m.MemberMoved():
                self._moved(host, event)
            case m.RequestSent():
                self._sent(host, event)
            case m.ClassicSent(_, number, kind, body):
                request = host.requests[number] = unpacked(kind, body)
                if isinstance(request, LeaveGroupRequest) and self._observed is not None:
                    self._observed.left(request.member_id)
                self.tell("on_member_request", host.name, request)
            case m.ClassicAnswered(_, number, kind, body):
                self._classic_answered(host, host.requests[number], unpacked(kind, body))
            case m.HeartbeatAnswered(_, number, response, error):
                self.tell("on_member_response", host.name, host.requests[number], response or _error(error))
            case m.CalledBack(_, kind, phase, partitions):
                self._called_back(host, kind, phase, partitions)
            case m.Committed(_, number, request, response, error):
                asked = request if request is not None else host.requests.pop(number)
                self.tell("on_commit", host.name, asked, response or _error(error))
            case m.Delivered(_, partition, first, last_exclusive):
                self.tell("on_records_delivered", host.name, partition, first, last_exclusive)
            case m.Processed(_, partition, first, last_exclusive, _):
                self.tell("on_records_processed", host.name, partition, first, last_exclusive)
            case _:
                self._process(host, event)

    def _moved(self, host: ReplayedHost, move: m.MemberMoved) -> None:
        classic = isinstance(host.told, ReplayedClassicDriver)
        states: type[Any] = ClassicMemberState if classic else ConsumerMemberState
        if isinstance(host.told, ReplayedDriver):
            host.told.state = states(move.target)
            host.told.member_epoch = move.epoch
            host.told.assignment = move.owned
        if classic:  # judges recognize the protocol by the types
            event: Any = ClassicMemberEvent(move.event)
            self.tell("on_member_state", host.name, event, states(move.source), states(move.target))
        else:
            self.tell("on_member_state", host.name, move.event, move.source, move.target)

    def _classic_answered(self, host: ReplayedHost, request: Any, response: Any) -> None:
        if member_id := member_id_of(response):
            host.member_id = member_id
            self.hosts_by_member[member_id] = host.name
        self.tell("on_member_response", host.name, request, response)

    def _process(self, host: ReplayedHost, event: m.Event) -> None:
        """Follow an event of a process."""
        match event:
            case m.Up(_, member_id, protocol):
                host.member_id = member_id
                if member_id:
                    self.hosts_by_member[member_id] = host.name
                host.status, host.wanted = "running", True
                host.told = self._driver(member_id, protocol)
                host.requests.clear()
                self.tell("on_member_host", host.name, "start")
            case m.Stopping(_, for_good):
                host.status, host.wanted = "stopping", not for_good
                self.tell("on_member_host", host.name, "stop")
            case m.Stopped() if host.told is not None:
                host.status, host.told = "stopped", None
                self.tell("on_member_host", host.name, "stopped")
            case _:
                return  # one that stopped before it had a consumer, or failed, which ends the run

    def _driver(self, member_id: MemberId, protocol: str) -> ReplayedDriver | ForeignDriver:
        if protocol == "classic":
            return ReplayedClassicDriver(self.scenario.group.heartbeat_interval.ms)
        return ReplayedDriver() if self._client == "fencepost" else ForeignDriver(self, member_id)

    def _sent(self, host: ReplayedHost, event: m.RequestSent) -> None:
        if event.heartbeat is not None:
            host.requests[event.number] = event.heartbeat
        elif event.commit is not None:
            host.requests[event.number] = event.commit
        request = host.requests[event.number]
        if type(request) is ConsumerGroupHeartbeatRequest and isinstance(host.told, ReplayedDriver):
            host.told.member_epoch = max(request.member_epoch, 0)
            if request.member_epoch < 0 and self._observed is not None:
                self._observed.left(request.member_id)
        self.tell("on_member_request", host.name, request)

    def _called_back(
        self, host: ReplayedHost, kind: str, phase: str, partitions: tuple[TopicPartition, ...]
    ) -> None:
        told = host.told
        if isinstance(told, ReplayedClassicDriver):
            told.calls_back = phase == "begin"
        if told is not None and kind == "assigned" and phase == "begin":
            told.assignment = tuple(sorted({*told.assignment, *partitions}))
        elif told is not None and kind != "assigned" and (phase == "end" or kind == "lost"):
            told.assignment = tuple(p for p in told.assignment if p not in partitions)
        self.tell("on_callback", host.name, kind, phase, partitions)


def _error(name: str) -> Exception:
    kind = _ERRORS.get(name)
    return TransportError(name) if kind is None else kind(name)


def _marks(happening: Happening) -> tuple[Hashable, ...]:
    """Return the marks in the log that can only follow an event."""
    if isinstance(happening, m.RequestSent) and happening.commit is not None:
        return tuple(marks_of_commit(happening.commit))
    return ()
