"""Random requests, faults and time against one classic group; what must always hold after every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import LeaveGroupBatchRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from tests.hosting import steps_due

GROUP = "g"
SLOTS = 5
SESSION_MS, REBALANCE_MS = 10_000, 30_000
OFFERS = (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
STATIC = {3: "i3", 4: "i4"}
"""Slots with an instance id."""

slots = st.integers(0, SLOTS - 1)


class UnreliableJournal(MemoryJournal):
    """Refuses the next batch when told so."""

    refuses = False

    def append(self, records: tuple[Record, ...]) -> None:
        if self.refuses:
            self.refuses = False
            raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "refused")
        super().append(records)


class Client:
    """What one member knows of itself."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.others: tuple[str, ...] = ()
        self.token: int | None = None
        """Its request that waits."""
        self.joining = False
        self.assignment: bytes | None = None


class ClassicGroupMachine(RuleBasedStateMachine):
    """Clients in slots; a slot's client may be another one after a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.config = GroupCoordinatorConfig(group_max_size=4)
        self.journal = UnreliableJournal()
        self.coordinator = GroupCoordinator(self.config)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.now_ms = 1_000
        self.tokens = 0
        self.clients = [Client() for _ in range(SLOTS)]
        self.waiting: dict[int, Client] = {}
        self.generation = -1
        self.stored_generation = -1

    @initialize()
    def start(self) -> None:
        """Nothing is there yet."""

    @property
    def group(self) -> ClassicGroup | None:
        return self.coordinator.classic.groups.get(GROUP)

    # -- what happens ---------------------------------------------------------------------------------

    def _take(self, outcome: Outcome) -> Outcome:
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse):
                client = self.waiting.pop(effect.token)
                self._hear(client, effect.token, effect.response)
        return outcome

    def _ask(self, client: Client, request: Any) -> None:
        outcome = self._take(self.runtime.step(request, self.now_ms))
        if outcome.reply is not None:
            self._hear(client, request.token, outcome.reply)
        else:
            self.waiting[request.token] = client

    def _hear(self, client: Client, token: int, reply: Any) -> None:
        if client.token != token:
            return  # it gave that request up
        client.token = None
        if isinstance(reply, classic.JoinGroupResponse):
            self._hear_join(client, reply)
        elif isinstance(reply, classic.SyncGroupResponse):
            if reply.error_code is ErrorCode.NONE:
                client.assignment = reply.assignment
            else:
                self._rejoin(client, reply.error_code)

    def _hear_join(self, client: Client, reply: classic.JoinGroupResponse) -> None:
        if reply.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif reply.error_code is ErrorCode.NONE:
            assert reply.generation >= 0
            client.member_id, client.generation = reply.member_id, reply.generation
            client.leads = reply.leader == reply.member_id
            client.others = tuple(member.member_id for member in reply.members)
            client.assignment = None
            assert client.leads or not client.others
        else:
            self._rejoin(client, reply.error_code)

    def _rejoin(self, client: Client, code: ErrorCode) -> None:
        client.generation, client.assignment = -1, None
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    @rule(slot=slots, offer=st.sampled_from(OFFERS), version=st.sampled_from([3, 8, 9, 9]))
    def join(self, slot: int, offer: tuple[str, ...], version: int) -> None:
        client = self.clients[slot]
        self.tokens += 1
        client.token = self.tokens
        data = write_subscription(ConsumerProtocolSubscription(topics=("x",)))
        self._ask(
            client,
            classic.JoinGroupRequest(
                group_id=GROUP,
                member_id=client.member_id,
                instance_id=STATIC.get(slot),
                protocol_type="consumer",
                protocols=tuple(classic.JoinGroupProtocol(name, data) for name in offer),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                api_version=version,
                client_id=f"c{slot}",
                new_member_suffix=str(self.tokens),
                token=self.tokens,
            ),
        )

    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        client = self.clients[slot]
        if client.generation < 0 or client.token is not None:
            return
        self.tokens += 1
        client.token = self.tokens
        assignments = {m: f"{client.generation}:{m}".encode() for m in client.others} if client.leads else {}
        self._ask(
            client,
            classic.SyncGroupRequest(
                group_id=GROUP,
                generation=client.generation,
                member_id=client.member_id,
                instance_id=STATIC.get(slot),
                assignments=assignments,
                token=self.tokens,
            ),
        )

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        client = self.clients[slot]
        request = classic.HeartbeatRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=STATIC.get(slot),
        )
        outcome = self._take(self.runtime.step(request, self.now_ms))
        assert outcome.reply is not None
        code = outcome.reply.error_code  # type: ignore[union-attr]
        if code is not ErrorCode.NONE and client.token is None:
            self._rejoin(client, code)

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        client = self.clients[slot]
        if not client.member_id:
            return
        request = LeaveGroupRequest(group_id=GROUP, member_id=client.member_id)
        self._take(self.runtime.step(LeaveGroupBatchRequest(group_id=GROUP, members=(request,)), self.now_ms))
        self.clients[slot] = Client()

    @rule(slot=slots)
    def restart(self, slot: int) -> None:
        self.clients[slot] = Client()

    @rule(by_ms=st.sampled_from([1, 1_000, 3_000, 9_000, 10_000, 31_000, 301_000]))
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
            self._hear(self.waiting.pop(answer.token), answer.token, answer.response)  # type: ignore[union-attr]
        assert not self.waiting, "everybody who waited was answered"
        if compact:
            self.journal.compact()
        self.coordinator = GroupCoordinator(self.config)
        self.coordinator.replay(self.journal, self.now_ms)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.generation = -1

    # -- what holds -----------------------------------------------------------------------------------

    @invariant()
    def generations_never_go_back(self) -> None:
        group = self.group
        stored = self.coordinator.classic.stored.get(GROUP)
        if group is None:
            self.generation = self.stored_generation = -1
            assert stored is None
            return
        assert stored is not None, "a group that runs is written down"
        assert group.generation >= self.generation
        assert stored.generation >= self.stored_generation
        self.generation, self.stored_generation = group.generation, stored.generation

    @invariant()
    def replay_gives_the_live_state(self) -> None:
        other = GroupCoordinator(self.config)
        other.replay(self.journal, self.now_ms)
        assert other.hard_state() == self.coordinator.hard_state()

    @invariant()
    def a_stable_group_is_its_record(self) -> None:
        group = self.group
        if group is None or group.state is not ClassicGroupState.STABLE:
            return
        stored = self.coordinator.classic.stored[GROUP]
        live = group.value(group.assignments)
        assert (stored.generation, stored.leader, stored.members) == (
            live.generation,
            live.leader,
            live.members,
        )
        for member in group.members.values():
            assert member.join is None
            assert member.sync is None

    @invariant()
    def whoever_is_assigned_has_what_the_group_says(self) -> None:
        group = self.group
        for client in self.clients:
            if group is None or client.assignment is None or client.generation != group.generation:
                continue
            member = group.members.get(client.member_id)
            if member is not None and group.state is ClassicGroupState.STABLE:
                assert member.assignment == client.assignment

    @invariant()
    def what_waits_is_a_member_s(self) -> None:
        parked = set()
        group = self.group
        if group is not None:
            for member in group.members.values():
                parked |= {token for token in (member.join, member.sync) if token is not None}
            assert group.joined == sum(member.join is not None for member in group.members.values())
        assert parked == set(self.waiting)

    @invariant()
    def what_waits_has_an_end(self) -> None:
        group = self.group
        if group is None:
            return
        timers = self.coordinator.classic.timers
        joining = group.state is ClassicGroupState.PREPARING_REBALANCE
        assert (GroupTimerKey(GroupTimerKind.JOIN, GROUP) in timers) == joining
        if group.pending_syncs:
            assert GroupTimerKey(GroupTimerKind.SYNC, GROUP) in timers
        known = {*group.members, *group.pending_joins}
        sessions = {key.member_id for key in timers if key.kind is GroupTimerKind.SESSION}
        assert sessions <= known, "nothing is left of members that went"
        for member_id, member in group.members.items():
            assert member_id in sessions or member.join is not None or member.sync is not None

    @invariant()
    def counts_are_right(self) -> None:
        group = self.group
        if group is None:
            return
        offers: dict[str, int] = {}
        for member in group.members.values():
            for protocol in member.protocols:
                offers[protocol.name] = offers.get(protocol.name, 0) + 1
        assert group.offers == offers
        assert group.static_members == {
            member.instance_id: member_id
            for member_id, member in group.members.items()
            if member.instance_id is not None
        }
        assert (group.leader in group.members) == bool(group.members)

    def teardown(self) -> None:
        """However it was left, everybody who waits is answered in the end."""
        for _ in range(200):
            if not self.waiting:
                break
            due_ms = self.coordinator.next_deadline()
            assert due_ms is not None, f"nobody answers {sorted(self.waiting)}"
            self.pass_time(max(0, due_ms - self.now_ms))
        assert not self.waiting


ClassicGroupMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestClassicGroup = pytest.mark.timeout(120)(ClassicGroupMachine.TestCase)
