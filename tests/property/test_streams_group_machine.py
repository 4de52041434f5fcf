"""Random requests, faults and time against one streams group, judged as in simulated runs (KIP-1071)."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import CreateInternalTopics, Event, Outcome, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.timers import GroupTimerKind
from fencepost.simulation.streams.coordination import StreamsCoordination
from tests.property.judged import GROUP, JudgedMachine

PROCESSES = ("p", "p", "q", "r")
"""The process of each slot: two are threads of one."""
TOPOLOGY = streams.Topology(
    0,
    (
        streams.Subtopology("0", ("in",)),
        streams.Subtopology("1", ("in",), state_changelog_topics=(streams.TopicInfo("changelog"),)),
    ),
)
BEATS = ("keepalive", "keepalive", "confirm", "confirm", "lost", "unfinished")
"""Unfinished: the member lists what it still has, because it has not stopped anything yet."""
slots = st.integers(0, len(PROCESSES) - 1)


class Client(msgspec.Struct):
    """An honest thread: it never starts what it was not given, and stops before it confirms."""

    member_id: str
    process_id: str
    epoch: int = 0
    owned: streams.Tasks = streams.NO_TASKS
    target: streams.Tasks = streams.NO_TASKS
    wants_shutdown: bool = False
    told_shutdown: bool = False


def ids(tasks: streams.TaskIds) -> set[tuple[str, int]]:
    return {(one, number) for one, numbers in tasks.items() for number in numbers}


class StreamsGroupMachine(JudgedMachine):
    judge_types = (StreamsCoordination,)
    protocol = "streams"
    left_out = frozenset({"streams-delays"})  # clusters may take as long as they like to create topics

    @initialize(
        interval_ms=st.sampled_from([0, 0, 1_000]),
        delay_ms=st.sampled_from([0, 3_000]),
        standbys=st.integers(0, 2),
    )
    def start(self, interval_ms: int, delay_ms: int, standbys: int) -> None:
        self.image = TopicsImage.of([Topic(topic_id="in", name="in", partitions=3)])
        self.wanted: dict[str, int] = {}
        self.count = 0
        self.begin(
            GroupCoordinatorConfig(
                group_streams_assignment_interval_ms=interval_ms,
                group_streams_initial_rebalance_delay_ms=delay_ms,
                group_streams_num_standby_replicas=standbys,
            )
        )
        self.clients = [self.fresh(slot) for slot in range(len(PROCESSES))]

    def fresh(self, slot: int) -> Client:
        self.count += 1
        return Client(member_id=f"member-{self.count}", process_id=PROCESSES[slot])

    @property
    def group(self) -> StreamsGroup | None:
        return self.coordinator.streams.groups.get(GROUP)

    def step(self, event: Event) -> Outcome:
        outcome = super().step(event)
        for effect in outcome.effects:
            if isinstance(effect, CreateInternalTopics):
                self.wanted |= {topic.name: topic.partitions for topic in effect.topics}
        return outcome

    def beat(self, client: Client, epoch: int, owned: streams.Tasks | None, *, heard: bool = True) -> None:
        joins = epoch == 0
        request = streams.StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=TOPOLOGY if joins else None,
            process_id=client.process_id if joins else None,
            active_tasks=None if owned is None else owned.active,
            standby_tasks=None if owned is None else owned.standby,
            warmup_tasks=None if owned is None else owned.warmup,
            shutdown_application=client.wants_shutdown,
        )
        outcome = self.step(request)
        reply = outcome.reply
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        if reply.error_code is ErrorCode.NONE and not outcome.records:
            again = self.step(request)
            assert (again.records, again.reply) == ((), reply), "what changed nothing does so again"
        if heard:
            self.answered(client, reply)

    @staticmethod
    def answered(client: Client, reply: streams.StreamsGroupHeartbeatResponse) -> None:
        if reply.error_code is ErrorCode.NONE:
            client.epoch = max(reply.member_epoch, 0)
            if reply.member_epoch >= 0:
                client.target = client.target if reply.tasks is None else reply.tasks
                status = [one.code for one in reply.status or ()]
                client.told_shutdown = streams.StatusCode.SHUTDOWN_APPLICATION in status
        elif reply.error_code is not ErrorCode.NOT_COORDINATOR:
            client.epoch, client.owned, client.target = 0, streams.NO_TASKS, streams.NO_TASKS

    # What members do

    @rule(slot=slots, heard=st.booleans())
    def join(self, slot: int, heard: bool) -> None:
        client = self.clients[slot]
        client.owned = client.target = streams.NO_TASKS
        client.epoch = 0  # whatever becomes of the answer
        self.beat(client, 0, streams.NO_TASKS, heard=heard)

    @rule(slot=slots, kind=st.sampled_from(BEATS))
    def heartbeat(self, slot: int, kind: str) -> None:
        client = self.clients[slot]
        if client.epoch:
            if kind in {"confirm", "lost"}:
                client.owned = client.target
            owned = None if kind == "keepalive" else client.owned
            self.beat(client, client.epoch, owned, heard=kind != "lost")

    @rule(slot=slots, shutdown=st.booleans())
    def leave(self, slot: int, shutdown: bool) -> None:
        client = self.clients[slot]
        if client.epoch:
            client.wants_shutdown = client.wants_shutdown or shutdown
            self.beat(client, -1, None)
            self.crash(slot)

    @rule(slot=slots)
    def want_shutdown(self, slot: int) -> None:
        self.clients[slot].wants_shutdown = True

    @rule(slot=slots)
    def crash(self, slot: int) -> None:
        self.clients[slot] = self.fresh(slot)

    # What happens around them

    @rule()
    def internal_topics_are_created(self) -> None:
        if self.wanted:
            for name, partitions in self.wanted.items():
                self.image = self.image.with_topic(Topic(topic_id=name, name=name, partitions=partitions))
            self.wanted = {}
            self.step(TopicsChanged(image=self.image))

    @rule(partitions=st.sampled_from([0, 2, 3, 4]))
    def the_source_topic_changes(self, partitions: int) -> None:
        """With it go the internal topics: an application is reset."""
        topics = [Topic(topic_id=f"in{partitions}", name="in", partitions=partitions)] if partitions else []
        self.image = TopicsImage.of(topics, self.image.version + 1)
        self.wanted = {}
        self.step(TopicsChanged(image=self.image))

    # What is a property of its own

    @invariant()
    def without_members_nothing_runs(self) -> None:
        members = set() if self.group is None else set(self.group.members)
        timers = self.coordinator.streams.soft.timers
        assert {key.member_id for key in timers if key.kind is not GroupTimerKind.INITIAL} <= members

    def finish(self) -> None:
        """Once faults end, everybody gets there."""
        self.journal.refuses = False
        self.internal_topics_are_created()
        for _ in range(30):
            self.pass_time(3_000)
            for client in self.clients:
                self.beat(client, client.epoch, client.owned if client.epoch else streams.NO_TASKS)
                client.owned = client.target
            self.internal_topics_are_created()
        self.observe("on_end")
        group = self.group
        assert group is not None
        ready = self.coordinator.streams.soft.groups[GROUP].configured
        assert ready is not None
        if not ready.is_ready:
            assert group.state == "NotReady"
            assert not any(group.targets.values())
            return
        assert group.state == "Stable"
        found = [task for client in self.clients for task in sorted(ids(client.owned.active))]
        assert ready.subtopologies is not None
        wanted = [(one, n) for one, part in ready.subtopologies.items() for n in range(part.tasks)]
        strangers = set(group.members) - {client.member_id for client in self.clients}
        assert strangers or sorted(found) == sorted(wanted)
        if any(client.wants_shutdown for client in self.clients):
            assert all(client.told_shutdown for client in self.clients)


TestStreamsGroup = StreamsGroupMachine.TestCase
TestStreamsGroup.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_a_member_lists_a_task_that_a_smaller_topic_no_longer_has() -> None:
    """An application was reset under it: its heartbeat is refused until it stops the task."""
    machine = StreamsGroupMachine()
    machine.start(interval_ms=0, delay_ms=0, standbys=0)
    machine.internal_topics_are_created()
    machine.join(slot=0, heard=True)
    machine.internal_topics_are_created()
    machine.heartbeat(slot=0, kind="confirm")
    machine.the_source_topic_changes(partitions=1)
    machine.join(slot=1, heard=True)
    machine.internal_topics_are_created()
    machine.heartbeat(slot=1, kind="keepalive")
    machine.heartbeat(slot=0, kind="confirm")
    machine.teardown()
