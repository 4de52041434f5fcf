"""A coordinator on a journal that may fail, under anything; the judges of simulated runs look on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import classic, consumer, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    Outcome,
    ParkedResponse,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage

GROUP = "g"
slots = st.integers(0, 4)


class UnreliableJournal(MemoryJournal):
    """Refuses the next batch when told so."""

    refuses = False
    failing = False
    """True while judges look at a step that was refused."""

    def append(self, records: tuple[Record, ...]) -> None:
        if self.refuses:
            self.refuses, self.failing = False, True
            raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "refused")
        super().append(records)


class JudgedMachine(RuleBasedStateMachine):
    """Time, refused batches and failovers; what clients do is a subclass's."""

    judge_types: ClassVar[tuple[type[Any], ...]]
    protocol: ClassVar[str] = "classic"
    left_out: ClassVar[frozenset[str]] = frozenset()
    """Invariants that hold in simulated runs only."""
    is_broken = False
    """True once a violation was reported."""
    image = TopicsImage()

    def begin(self, config: GroupCoordinatorConfig) -> None:
        self.config, self.journal, self.now_ms = config, UnreliableJournal(), 1_000
        self.tokens = 0
        self.waiting: dict[int, Any] = {}
        """The client of each request that waits."""
        self.broker: Any = SimpleNamespace(coordinator=None)
        self.cluster = SimpleNamespace(brokers={"b": self.broker}, active=None, journal=self.journal)
        self.world = SimpleNamespace(
            config=config,
            journal=self.journal,
            group_id=GROUP,
            coordinators={"b": self.broker},
            cluster=self.cluster,
            active=None,
            hosts_by_member={},
            loop=SimpleNamespace(now_us=0),
            scenario=SimpleNamespace(group=SimpleNamespace(id=GROUP, protocol=self.protocol)),
        )
        self.judges = [judge() for judge in self.judge_types]
        for judge in self.judges:
            judge.left_out = self.left_out
            judge.attach(self.world, self.report)
        self.load()

    def report(self, invariant: str, message: str, rule: str = "") -> None:
        self.is_broken = True
        raise AssertionError(f"{invariant}: {message} ({rule})")

    def observe(self, hook: str, *arguments: Any) -> None:
        self.world.loop.now_us = self.now_ms * 1_000
        for judge in self.judges:
            getattr(judge, hook)(*arguments, self.now_ms * 1_000)

    def load(self) -> None:
        coordinator = GroupCoordinator(self.config)
        coordinator.replay(self.journal, self.now_ms)
        self.host = CoordinatorHost(coordinator, self.journal)
        self.broker.coordinator = self.world.active = self.cluster.active = coordinator
        self.observe("on_coordinator_state", "b", "active")
        self.step(TopicsChanged(image=self.image))

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.host.coordinator

    def step(self, event: Any) -> Outcome:
        """One event, which is judged; who waited for it gets a response."""
        outcome: Outcome = self.host.step(event, self.now_ms)
        if self.journal.failing:
            self.observe("on_fault", "append-failure", "begin", "")
        self.observe("on_coordinator_step", "b", event, outcome)
        if self.journal.failing:
            self.journal.failing = False
            self.observe("on_fault", "append-failure", "end", "")
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse):
                self.hear(self.waiting.pop(effect.token), effect.token, effect.response)
        return outcome

    def ask(self, client: Any, request: Any) -> None:
        """A request that may wait for its response."""
        reply = self.step(request).reply
        if reply is None:
            self.waiting[request.token] = client
        else:
            self.hear(client, request.token, reply)

    def hear(self, client: Any, token: int, reply: Any) -> None:
        """A client gets the response to its request."""

    @rule(by_ms=st.sampled_from([1, 1_000, 3_000, 9_000, 10_000, 31_000, 46_000, 301_000, 700_000]))
    def pass_time(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while (due_ms := self.coordinator.next_deadline()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.step(DeadlineReached(due_ms))
        self.now_ms = end_ms

    @rule()
    def refuse_the_next_write(self) -> None:
        self.journal.refuses = True

    @rule(compact=st.sampled_from(["no", "keep tombstones", "yes"]))
    def fail_over(self, compact: str) -> None:
        self.observe("on_coordinator_state", "b", "resign")
        for answer in self.coordinator.unload():
            self.hear(self.waiting.pop(answer.token), answer.token, answer.response)
        assert not self.waiting, "everybody who waited was answered"
        if compact != "no":
            self.journal.compact(keep_tombstones=compact == "keep tombstones")
        self.load()

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        other = GroupCoordinator(self.config)
        other.replay(self.journal, self.now_ms)
        assert other.hard_state() == self.coordinator.hard_state()

    @invariant()
    def what_waits_is_a_member_s(self) -> None:
        group = self.coordinator.classic.groups.get(GROUP)
        members = [] if group is None else list(group.members.values())
        assert {token for m in members for token in (m.join, m.sync) if token is not None} == set(
            self.waiting
        )

    def teardown(self) -> None:
        """Finish, except after a violation: what follows from it would hide it."""
        if not self.is_broken:
            self.finish()

    def finish(self) -> None:
        """However it was left, everybody who waits is answered in the end."""
        for _ in range(200):
            if not self.waiting:
                break
            due_ms = self.coordinator.next_deadline()
            assert due_ms is not None, f"nobody answers {sorted(self.waiting)}"
            self.pass_time(max(0, due_ms - self.now_ms))
        assert not self.waiting
        group = self.coordinator.classic.groups.get(GROUP)
        if group is None or group.state is ClassicGroupState.STABLE:  # else a refused write may be missing
            self.observe("on_end")


class ClassicClient:
    """One member of a classic group, as it sees itself."""

    def __init__(self, slot: int, instance_id: str | None = None) -> None:
        self.slot = slot
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.roster: tuple[str, ...] = ()
        self.token: int | None = None
        """Its request that waits."""


class ClassicRequests(JudgedMachine):
    """Clients that speak the classic protocol; a slot's client may be another one after a restart."""

    partitions: ClassVar[int]
    """Partitions of the topic that a leader gives out."""
    clients: list[Any]
    client_of: Callable[[int], ClassicClient]
    """Returns a new client for a slot."""

    def hear(self, client: Any, token: int, reply: Any) -> None:
        if client.token == token:  # else it gave that request up
            client.token = None
            self.take(client, reply)

    def take(self, client: Any, reply: Any) -> None:
        """A client takes a response in."""
        code = reply.error_code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.restart(client.slot)
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif code is not ErrorCode.NONE:
            client.generation = -1
        elif isinstance(reply, classic.JoinGroupResponse):
            client.member_id, client.generation = reply.member_id, reply.generation
            client.roster = tuple(member.member_id for member in reply.members)
            assert reply.leader == reply.member_id or not client.roster

    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        self.send_sync(self.clients[slot % len(self.clients)])

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        self.send_beat(self.clients[slot % len(self.clients)])

    @rule(slot=slots)
    def restart(self, slot: int) -> None:
        self.clients[slot % len(self.clients)] = self.client_of(slot % len(self.clients))

    def send_join(
        self, client: Any, owned: tuple[int, ...] = (), names: tuple[str, ...] = ("range",), version: int = 9
    ) -> None:
        said = consumer_protocol.write_subscription(
            consumer_protocol.ConsumerProtocolSubscription(topics=("x",), owned={"x": owned})
        )
        self.tokens += 1
        client.token = self.tokens
        request = classic.JoinGroupRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=tuple(classic.JoinGroupProtocol(name, said) for name in names),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            api_version=version,
            client_id="c",
            new_member_suffix=str(self.tokens),
            token=self.tokens,
        )
        self.ask(client, request)

    def send_sync(self, client: Any) -> None:
        """The leader gives each member of its roster a share."""
        if client.generation < 0 or client.token is not None:
            return
        shares = {
            member_id: consumer_protocol.ConsumerProtocolAssignment(
                partitions={"x": tuple(range(index, self.partitions, len(client.roster)))}
            )
            for index, member_id in enumerate(client.roster)
        }
        self.tokens += 1
        client.token = self.tokens
        request = classic.SyncGroupRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=client.instance_id,
            assignments={
                member_id: consumer_protocol.write_assignment(share) for member_id, share in shares.items()
            },
            token=self.tokens,
        )
        self.ask(client, request)

    def send_beat(self, client: Any) -> None:
        request = classic.HeartbeatRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=client.instance_id,
        )
        reply = self.step(request).reply
        assert isinstance(reply, classic.HeartbeatResponse)
        if client.token is None:
            self.take(client, reply)

    def send_leave(self, client: Any) -> None:
        request = consumer.LeaveGroupRequest(group_id=GROUP, member_id=client.member_id)
        self.step(consumer.LeaveGroupBatchRequest(group_id=GROUP, members=(request,)))
