"""Random requests, faults and time against one streams group; KIP-1071's invariants after every step."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import CreateInternalTopics, Outcome, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import (
    NO_TASKS,
    StatusCode,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Tasks,
    TopicInfo,
    Topology,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.timers import GroupTimerKind
from tests.hosting import steps_due

GROUP = "app"
PROCESSES = ("p", "p", "q", "r")
"""The process of each slot: two are threads of one."""
TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("in",), repartition_sink_topics=("repartition",)),
        Subtopology(
            "1",
            state_changelog_topics=(TopicInfo("changelog"),),
            repartition_source_topics=(TopicInfo("repartition"),),
        ),
    ),
)
REBALANCE_TIMEOUT_MS = 60_000
BEATS = ("keepalive", "keepalive", "confirm", "confirm", "lost", "unfinished")
"""Unfinished: the member lists what it still has, because it has not stopped anything yet."""
slots = st.integers(0, len(PROCESSES) - 1)


class UnreliableJournal(MemoryJournal):
    """Fails the next append when told to."""

    failing = False

    def append(self, records: tuple[Record, ...]) -> None:
        if self.failing:
            raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "told to fail")
        super().append(records)


class Client(msgspec.Struct):
    """An honest thread: it never starts what it was not given, and stops before it confirms."""

    member_id: str
    process_id: str
    epoch: int = 0
    owned: Tasks = NO_TASKS
    target: Tasks = NO_TASKS
    wants_shutdown: bool = False
    told_shutdown: bool = False


def ids(tasks: TaskIds) -> set[tuple[str, int]]:
    return {(one, number) for one, numbers in tasks.items() for number in numbers}


def common(first: TaskIds, second: TaskIds) -> TaskIds:
    found = {one: tuple(n for n in numbers if n in second.get(one, ())) for one, numbers in first.items()}
    return {one: numbers for one, numbers in found.items() if numbers}


class StreamsGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.count = 0
        self.start(0, 0)

    @initialize(interval_ms=st.sampled_from([0, 0, 1_000]), delay_ms=st.sampled_from([0, 3_000]))
    def start(self, interval_ms: int, delay_ms: int) -> None:
        self.config = GroupCoordinatorConfig(
            group_streams_assignment_interval_ms=interval_ms,
            group_streams_initial_rebalance_delay_ms=delay_ms,
        )
        self.journal = UnreliableJournal()
        self.image = TopicsImage.of([Topic(topic_id="in", name="in", partitions=3)])
        self.runtime = self.started()
        self.clients = [self.fresh(slot) for slot in range(len(PROCESSES))]
        self.wanted: dict[str, int] = {}
        self.requested = False
        self.seen = (0, 0)

    def fresh(self, slot: int) -> Client:
        self.count += 1
        return Client(member_id=f"member-{self.count}", process_id=PROCESSES[slot])

    def started(self) -> CoordinatorHost:
        coordinator = GroupCoordinator(self.config)
        coordinator.replay(self.journal, self.now_ms)
        runtime = CoordinatorHost(coordinator, self.journal)
        runtime.step(TopicsChanged(image=self.image), self.now_ms)
        return runtime

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.runtime.coordinator

    @property
    def group(self) -> StreamsGroup | None:
        return self.coordinator.streams.groups.get(GROUP)

    def process(self, event: Any) -> Outcome:
        before = self.coordinator.hard_state()
        outcome = self.runtime.step(event, self.now_ms)
        if getattr(outcome.reply, "error_code", ErrorCode.NONE) is not ErrorCode.NONE:
            assert not outcome.records
        if not outcome.records:
            assert self.coordinator.hard_state() == before
        for effect in outcome.effects:
            if isinstance(effect, CreateInternalTopics):
                self.wanted |= {topic.name: topic.partitions for topic in effect.topics}
        return outcome

    def beat(self, client: Client, epoch: int, owned: Tasks | None, *, heard: bool = True) -> None:
        joins = epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
            topology=TOPOLOGY if joins else None,
            process_id=client.process_id if joins else None,
            active_tasks=None if owned is None else owned.active,
            standby_tasks=None if owned is None else owned.standby,
            warmup_tasks=None if owned is None else owned.warmup,
            shutdown_application=client.wants_shutdown,
        )
        outcome = self.process(request)
        reply = outcome.reply
        assert isinstance(reply, StreamsGroupHeartbeatResponse)
        if reply.error_code is ErrorCode.NONE and not outcome.records:
            again = self.runtime.step(request, self.now_ms)
            assert (again.records, again.reply) == ((), reply), "what changed nothing does so again"
        if heard:
            self.hear(client, reply)

    def hear(self, client: Client, reply: StreamsGroupHeartbeatResponse) -> None:
        match reply.error_code:
            case ErrorCode.NONE:
                client.epoch = max(reply.member_epoch, 0)
                if reply.member_epoch < 0:
                    return
                if reply.tasks is not None:
                    client.target = reply.tasks
                told = any(one.code is StatusCode.SHUTDOWN_APPLICATION for one in reply.status or ())
                assert not told or self.requested, "nobody wanted the application to stop"
                client.told_shutdown = told
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.GROUP_ID_NOT_FOUND:
                client.epoch, client.owned, client.target = 0, NO_TASKS, NO_TASKS
            case code:
                assert code is ErrorCode.NOT_COORDINATOR

    # What members do

    @rule(slot=slots, heard=st.booleans())
    def join(self, slot: int, heard: bool) -> None:
        client = self.clients[slot]
        client.owned = client.target = NO_TASKS
        client.epoch = 0  # whatever becomes of the answer
        self.beat(client, 0, NO_TASKS, heard=heard)

    @rule(slot=slots, kind=st.sampled_from(BEATS))
    def heartbeat(self, slot: int, kind: str) -> None:
        client = self.clients[slot]
        if client.epoch == 0:
            return
        if kind in {"confirm", "lost"}:
            self.obey(client)
        self.beat(client, client.epoch, None if kind == "keepalive" else client.owned, heard=kind != "lost")

    def obey(self, client: Client) -> None:
        """It stops what it must; what it starts must be nobody else's."""
        client.owned = Tasks(
            common(client.owned.active, client.target.active),
            common(client.owned.standby, client.target.standby),
        )
        group = self.group
        members = {} if group is None else group.members
        for other in self.clients:
            if other is not client and other.member_id in members and client.member_id in members:
                assert ids(other.owned.active).isdisjoint(ids(client.target.active)) or self.is_stale(client)
        client.owned = client.target

    def is_stale(self, client: Client) -> bool:
        """Whether what it was told is not what the coordinator says any more."""
        assert self.group is not None
        return self.group.members[client.member_id].assigned != client.target

    @rule(slot=slots, shutdown=st.booleans())
    def leave(self, slot: int, shutdown: bool) -> None:
        client = self.clients[slot]
        if client.epoch > 0:
            client.wants_shutdown = client.wants_shutdown or shutdown
            self.requested = self.requested or client.wants_shutdown
            self.beat(client, -1, None)
            self.clients[slot] = self.fresh(slot)

    @rule(slot=slots)
    def want_shutdown(self, slot: int) -> None:
        client = self.clients[slot]
        if client.epoch > 0:
            group = self.group
            epochs = None if group is None else (group.group_epoch, dict(group.targets))
            client.wants_shutdown = self.requested = True
            self.process(
                StreamsGroupHeartbeatRequest(
                    group_id=GROUP,
                    member_id=client.member_id,
                    member_epoch=-1_000,
                    shutdown_application=True,
                )
            )
            group = self.group
            assert epochs == (None if group is None else (group.group_epoch, dict(group.targets)))

    @rule(slot=slots)
    def crash(self, slot: int) -> None:
        self.clients[slot] = self.fresh(slot)

    # What happens around them

    @rule(by_ms=st.sampled_from([100, 1_000, 5_000, 46_000]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        steps_due(self.runtime, self.now_ms)

    @rule()
    def internal_topics_are_created(self) -> None:
        if self.wanted:
            for name, partitions in self.wanted.items():
                topic = Topic(topic_id=name, name=name, partitions=partitions)
                self.image = self.image.with_topic(topic)
            self.wanted = {}
            self.process(TopicsChanged(image=self.image))

    @rule(partitions=st.sampled_from([0, 2, 3, 4]))
    def the_source_topic_changes(self, partitions: int) -> None:
        """With it go the internal topics: an application is reset."""
        topics = [Topic(topic_id=f"in{partitions}", name="in", partitions=partitions)] if partitions else []
        self.image = TopicsImage.of(topics, self.image.version + 1)
        self.wanted = {}
        self.process(TopicsChanged(image=self.image))

    @rule(count=st.integers(0, 2))
    def standby_tasks_are_configured(self, count: int) -> None:
        self.coordinator.set_group_config(GROUP, GroupConfig(streams_num_standby_replicas=count))

    @rule(compact=st.booleans())
    def fail_over(self, compact: bool) -> None:
        if compact:
            self.journal.compact()
        before = self.coordinator.hard_state()
        self.runtime = self.started()
        assert self.coordinator.hard_state() == before
        self.requested = any(client.wants_shutdown for client in self.clients)

    @rule(slot=slots)
    def the_journal_fails(self, slot: int) -> None:
        client = self.clients[slot]
        self.journal.failing = True
        try:
            self.beat(client, client.epoch, client.owned if client.epoch else NO_TASKS)
        finally:
            self.journal.failing = False

    # What must be true

    @invariant()
    def an_active_task_has_one_process_and_a_process_a_task_once(self) -> None:
        owners: dict[tuple[str, int], str] = {}
        held: dict[tuple[str, tuple[str, int]], int] = {}
        for member in () if self.group is None else self.group.members.values():
            for tasks in (member.assigned, member.pending_revocation):
                for task in ids(tasks.active):
                    assert owners.setdefault(task, member.process_id) == member.process_id
                for role in (tasks.active, tasks.standby, tasks.warmup):
                    for task in ids(role):
                        held[member.process_id, task] = held.get((member.process_id, task), 0) + 1
        assert all(count == 1 for count in held.values())

    @invariant()
    def epochs_do_not_go_back(self) -> None:
        group = self.group
        if group is None:
            return
        now = group.group_epoch, group.assignment_epoch
        assert now >= self.seen
        assert group.assignment_epoch <= group.group_epoch
        for member in group.members.values():
            assert member.member_epoch <= group.assignment_epoch
            assert set(member.assignment_epochs) <= {
                *member.assigned.active,
                *member.pending_revocation.active,
            }
        self.seen = now

    @invariant()
    def without_members_nothing_runs(self) -> None:
        streams = self.coordinator.streams
        members = set() if self.group is None else set(self.group.members)
        running = {key.member_id for key in streams.soft.timers if key.kind is not GroupTimerKind.INITIAL}
        assert running <= members

    @invariant()
    def a_target_of_a_group_that_is_not_ready_is_empty(self) -> None:
        group = self.group
        if group is not None and group.state == "NotReady" and group.assignment_epoch == group.group_epoch:
            assert not any(group.targets.values())

    def teardown(self) -> None:
        """Once faults end, everybody gets there."""
        self.journal.failing = False
        self.internal_topics_are_created()
        for _ in range(30):
            self.now_ms += 3_000
            steps_due(self.runtime, self.now_ms)
            for client in self.clients:
                self.beat(client, client.epoch, client.owned if client.epoch else NO_TASKS)
                self.obey(client)
            self.internal_topics_are_created()
        group = self.group
        assert group is not None
        ready = self.coordinator.streams.soft.groups[GROUP].configured
        assert ready is not None
        if not ready.is_ready:
            assert group.state == "NotReady"
            return
        assert group.state == "Stable"
        found = [task for client in self.clients for task in sorted(ids(client.owned.active))]
        assert ready.subtopologies is not None
        wanted = [(one, n) for one, found_ in ready.subtopologies.items() for n in range(found_.tasks)]
        strangers = set(group.members) - {client.member_id for client in self.clients}
        assert strangers or sorted(found) == sorted(wanted)
        if any(client.wants_shutdown for client in self.clients):
            assert all(client.told_shutdown for client in self.clients)


TestStreamsGroup = StreamsGroupMachine.TestCase
TestStreamsGroup.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
