"""Random members of both protocols in one group: it changes its kind, and nobody is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.config import ConsumerGroupMigrationPolicy, GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import consumer, consumer_protocol
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.hosting import steps_due

GROUP = "g"
PARTITIONS = 6
IMAGE = TopicsImage.of([Topic(topic_id="id-of-x", name="x", partitions=PARTITIONS)], 1)
slots = st.integers(0, 3)


class UnreliableJournal(MemoryJournal):
    """Refuses the next batch when told so."""

    refuses = False

    def append(self, records: tuple[Record, ...]) -> None:
        if self.refuses:
            self.refuses = False
            raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "refused")
        super().append(records)


class Client:
    """One consumer, which may change its protocol by a restart. A classic one is cooperative."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.member_id = ""
        self.generation = -1
        self.roster: tuple[str, ...] = ()
        self.token: int | None = None
        self.owned: tuple[int, ...] = ()
        self.modern_epoch: int | None = None


class MigrationMachine(RuleBasedStateMachine):
    """Slot 3 is a static member."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0
        self.clients = [Client(number) for number in range(4)]
        self.waiting: dict[int, Client] = {}
        self.now_ms = 1_000

    @initialize(
        policy=st.sampled_from(["bidirectional", "bidirectional", "upgrade", "downgrade", "disabled"]),
        classic=st.integers(0, 4),
        modern=st.integers(0, 2),
        modern_first=st.booleans(),
    )
    def start(self, policy: str, classic: int, modern: int, modern_first: bool) -> None:
        """Some members are there already: the first ones speak the classic protocol, the next ones do not."""
        self.config = GroupCoordinatorConfig(
            group_consumer_migration_policy=ConsumerGroupMigrationPolicy(policy),
            group_consumer_assignment_interval_ms=0,
        )
        self.journal = UnreliableJournal()
        self._load()
        consumers = [slot for slot in range(classic, classic + modern) if slot < 4]
        for slot in consumers if modern_first else ():
            self.modernise(slot, False)
        for slot in range(classic):
            self.join(slot, True)
            self.join(slot, True)
        self.pass_time(6_000)
        for slot in range(classic):
            self.sync(slot)
        for slot in () if modern_first else consumers:
            self.modernise(slot, False)

    def _load(self) -> None:
        self.coordinator = GroupCoordinator(self.config)
        self.coordinator.replay(self.journal, self.now_ms)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.runtime.step(TopicsChanged(image=IMAGE), self.now_ms)

    def _instance(self, client: Client) -> str | None:
        return "i" if client.number == 3 else None

    def _take(self, outcome: Outcome) -> Any:
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse):
                self._hear(self.waiting.pop(effect.token), effect.token, effect.response)
        return outcome.reply

    def _ask(self, client: Client, request: Any) -> None:
        reply = self._take(self.runtime.step(request, self.now_ms))
        if reply is None:
            self.waiting[request.token] = client
        else:
            self._hear(client, request.token, reply)

    def _hear(self, client: Client, token: int, reply: Any) -> None:
        if client.token != token:
            return
        client.token = None
        code = reply.error_code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.clients[client.number] = Client(client.number)
        elif isinstance(reply, JoinGroupResponse):
            client.member_id = reply.member_id
            client.generation = reply.generation
            client.roster = tuple(member.member_id for member in reply.members)
        elif isinstance(reply, SyncGroupResponse) and code is ErrorCode.NONE:
            client.owned = consumer_protocol.read_assignment(reply.assignment).partitions.get("x", ())

    @rule(slot=slots, eager=st.booleans())
    def join(self, slot: int, eager: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch is not None:
            return
        self.tokens += 1
        client.token = self.tokens
        if eager:
            client.owned = ()
        data = consumer_protocol.write_subscription(
            consumer_protocol.ConsumerProtocolSubscription(topics=("x",), owned={"x": client.owned})
        )
        self._ask(
            client,
            JoinGroupRequest(
                group_id=GROUP,
                member_id=client.member_id,
                instance_id=self._instance(client),
                protocol_type="consumer",
                protocols=(JoinGroupProtocol("range", data),),
                session_timeout_ms=10_000,
                rebalance_timeout_ms=30_000,
                client_id="c",
                new_member_suffix=f"uuid-{self.tokens}",
                token=self.tokens,
            ),
        )

    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        client = self.clients[slot]
        if client.generation < 0 or client.token is not None or client.modern_epoch is not None:
            return
        self.tokens += 1
        client.token = self.tokens
        shares = {
            member_id: consumer_protocol.write_assignment(
                consumer_protocol.ConsumerProtocolAssignment(
                    partitions={"x": tuple(range(index, PARTITIONS, len(client.roster)))}
                )
            )
            for index, member_id in enumerate(client.roster)
        }
        self._ask(
            client,
            SyncGroupRequest(
                group_id=GROUP,
                generation=client.generation,
                member_id=client.member_id,
                instance_id=self._instance(client),
                assignments=shares,
                token=self.tokens,
            ),
        )

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        client = self.clients[slot]
        request = HeartbeatRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=self._instance(client),
        )
        assert self._take(self.runtime.step(request, self.now_ms)) is not None

    @rule(slot=slots, in_place=st.booleans())
    def modernise(self, slot: int, in_place: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch is None:
            member_id = client.member_id if in_place and client.member_id else f"modern-{self.tokens}-{slot}"
            client = self.clients[slot] = Client(slot)
            client.member_id = member_id
        self._modern(client, 0, owned={})

    @rule(slot=slots, confirm=st.booleans())
    def modern_beat(self, slot: int, confirm: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch:
            owned = {"id-of-x": client.owned} if client.owned else {}
            self._modern(client, client.modern_epoch, owned=owned if confirm else None)

    def _modern(self, client: Client, epoch: int, owned: Any) -> None:
        joining = epoch == 0
        reply = self._take(
            self.runtime.step(
                consumer.ConsumerGroupHeartbeatRequest(
                    group_id=GROUP,
                    member_id=client.member_id,
                    member_epoch=epoch,
                    instance_id=self._instance(client),
                    rebalance_timeout_ms=30_000 if joining else -1,
                    subscribed_topic_names=("x",) if joining else None,
                    topic_partitions=owned,
                ),
                self.now_ms,
            )
        )
        assert isinstance(reply, consumer.ConsumerGroupHeartbeatResponse)
        if reply.error_code is not ErrorCode.NONE:
            if reply.error_code is not ErrorCode.NOT_COORDINATOR:
                self.clients[client.number] = Client(client.number)
            return
        client.modern_epoch = reply.member_epoch
        if reply.assignment is not None:
            client.owned = reply.assignment.get("id-of-x", ())

    @rule(slot=slots, for_a_while=st.booleans())
    def leave(self, slot: int, for_a_while: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch:
            self._modern(client, -2 if for_a_while and slot == 3 else -1, owned=None)
        elif client.member_id:
            request = consumer.LeaveGroupRequest(group_id=GROUP, member_id=client.member_id)
            batch = consumer.LeaveGroupBatchRequest(group_id=GROUP, members=(request,))
            self._take(self.runtime.step(batch, self.now_ms))
        self.clients[slot] = Client(slot)

    @rule(slot=slots)
    def restart(self, slot: int) -> None:
        self.clients[slot] = Client(slot)

    @rule(by_ms=st.sampled_from([1, 3_000, 9_000, 30_001, 46_000]))
    def pass_time(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while (due_ms := self.coordinator.next_deadline()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for outcome in steps_due(self.runtime, self.now_ms):
                self._take(outcome)
        self.now_ms = end_ms

    @rule()
    def refuse_the_next_write(self) -> None:
        self.journal.refuses = True

    @rule(compact=st.booleans())
    def fail_over(self, compact: bool) -> None:
        for answer in self.coordinator.unload():
            assert isinstance(answer, ParkedResponse)
            self._hear(self.waiting.pop(answer.token), answer.token, answer.response)
        if compact:
            self.journal.compact()
        self._load()

    @invariant()
    def it_is_of_one_kind(self) -> None:
        assert not (GROUP in self.coordinator.groups and GROUP in self.coordinator.classic.groups)
        assert self.coordinator.classic.groups.keys() == self.coordinator.classic.stored.keys()

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        other = GroupCoordinator(self.config)
        other.replay(self.journal, self.now_ms)
        assert other.hard_state() == self.coordinator.hard_state()

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        if group is None:
            return
        held = [
            partition
            for member in group.members.values()
            for part in (member.assigned, member.pending_revocation)
            for numbers in part.values()
            for partition in numbers
        ]
        assert len(held) == len(set(held))
        assert all(member.member_epoch <= group.assignment_epoch for member in group.members.values())

    @invariant()
    def who_waits_is_a_member_of_a_classic_group(self) -> None:
        group = self.coordinator.classic.groups.get(GROUP)
        members = [] if group is None else list(group.members.values())
        parked = {token for m in members for token in (m.join, m.sync) if token is not None}
        assert parked == set(self.waiting)

    @invariant()
    def every_member_has_a_session(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        soft = self.coordinator.soft
        contacts = set(soft.groups[GROUP].contacts) if GROUP in soft.groups else set()
        assert contacts == (set() if group is None else set(group.members))
        for member_id, member in ({} if group is None else group.members).items():
            length = soft.groups[GROUP].contacts[member_id].session_ms
            assert length == (None if member.classic is None else 10_000)


MigrationMachine.TestCase.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestMigration = pytest.mark.timeout(120)(MigrationMachine.TestCase)
