"""Single active consumers under any sequence of commands, losses, failing journals and reloads."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.sac import ConsumerStatus as S
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue, SacRecord
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.coordinator.sac.states import SAC_CONSUMER_TABLE
from tests.hosting import steps_due

NODES = ("a", "b", "c")
CONNECTIONS = tuple(f"k{number}@{node}" for number in range(2) for node in NODES)
GROUPS = (("plain", sac.SIMPLE), ("super-0", 0), ("super-1", 1))
ACTIVE_LIKE = {S.CONNECTED_ACTIVE, S.CONNECTED_DEACTIVATING, S.DISCONNECTED_ACTIVE}

connections = st.sampled_from(CONNECTIONS)
nodes = st.sampled_from(NODES)
groups = st.sampled_from(GROUPS)
subscriptions = st.integers(0, 1)


class Journal(SacMemoryJournal):
    """One that fails when it is told to."""

    failing = False

    def append(self, records: tuple[SacRecord, ...]) -> None:
        if self.failing:
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no quorum")
        super().append(records)


class SacMachine(RuleBasedStateMachine):
    """One coordinator, and what must hold after each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.coordinator = SacCoordinator()
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.now_ms = 0
        self.two_at_once: set[SacGroupKey] = set()
        """Groups that had two active consumers once: a connection was lost again before it had reported."""

    @initialize(timeout_ms=st.sampled_from([1_000, 60_000]))
    def begin(self, timeout_ms: int) -> None:
        self.process(sac.Tick(nodes=NODES, disconnected_timeout_ms=timeout_ms))
        assert self.coordinator.state.disconnected_timeout_ms == timeout_ms

    # -- steps ----------------------------------------------------------------------------------------------

    def process(self, event: SacInput) -> SacOutcome:
        before = dict(self.coordinator.state.groups)
        outcome = self.runtime.step(event, self.now_ms)
        self.check(event, before, outcome)
        return outcome

    def check(self, event: SacInput, before: dict[SacGroupKey, SacGroupValue], outcome: SacOutcome) -> None:
        after = self.coordinator.state.groups
        for key in {*before, *after}:
            old = {} if key not in before else {c[:2]: c[2] for c in members(before[key])}
            new = {} if key not in after else {c[:2]: c[2] for c in members(after[key])}
            self.check_group(event, key, old, new, outcome)
        if outcome.reply is not None and outcome.reply.error is not None:
            assert dict(after) == before

    def check_group(
        self,
        event: SacInput,
        key: SacGroupKey,
        old: dict[tuple[str, int], S],
        new: dict[tuple[str, int], S],
        outcome: SacOutcome,
    ) -> None:
        if Counter(status in ACTIVE_LIKE for status in new.values())[True] > 1:
            self.two_at_once.add(key)
        if not new:
            self.two_at_once.discard(key)
        told = [
            (effect.active, (effect.connection, effect.subscription_id))
            for effect in outcome.effects
            if isinstance(effect, sac.NotifyConsumer) and effect.stream == key.stream
        ]
        activated = [who for active, who in told if active]
        stopped = [who for active, who in told if not active]
        if key in self.two_at_once or isinstance(event, sac.PurgeNodes | sac.Tick):
            return
        assert len(activated) <= 1
        assert not (activated and stopped)
        registered_again = isinstance(event, sac.RegisterConsumer) and (
            (event.connection, event.subscription_id) in old
        )
        for who in activated:
            assert new[who] is S.CONNECTED_ACTIVE or registered_again
        back = isinstance(event, sac.ConnectionReconnected)
        for who in stopped:
            assert new[who] is S.CONNECTED_DEACTIVATING or (back and new[who] is S.CONNECTED_WAITING)
        for who, status in new.items():
            was = old.get(who)
            if was is None or was is status:
                continue
            if status is S.CONNECTED_ACTIVE:
                assert who in activated or (back and was is S.DISCONNECTED_ACTIVE)
            if was is S.CONNECTED_ACTIVE and status is S.CONNECTED_WAITING:
                assert who in stopped or isinstance(event, sac.ActivateConsumer)
            if was is S.CONNECTED_DEACTIVATING and status is S.CONNECTED_WAITING:
                assert isinstance(event, sac.ActivateConsumer)

    # -- commands -------------------------------------------------------------------------------------------

    @rule(group=groups, connection=connections, subscription=subscriptions)
    def register(self, group: tuple[str, int], connection: str, subscription: int) -> None:
        outcome = self.process(
            sac.RegisterConsumer(
                stream=group[0],
                consumer_name="app",
                connection=connection,
                subscription_id=subscription,
                partition_index=group[1],
            )
        )
        assert outcome.reply is not None
        assert outcome.reply.is_active is not None

    @rule(group=groups, connection=connections)
    def register_with_another_index(self, group: tuple[str, int], connection: str) -> None:
        if SacGroupKey("/", group[0], "app") in self.coordinator.state.groups:
            outcome = self.process(
                sac.RegisterConsumer(
                    stream=group[0],
                    consumer_name="app",
                    connection=connection,
                    subscription_id=0,
                    partition_index=7,
                )
            )
            assert outcome.reply == sac.SacReply(error=sac.SacError.PARTITION_INDEX_CONFLICT)

    @rule(group=groups, connection=connections, subscription=subscriptions)
    def unregister(self, group: tuple[str, int], connection: str, subscription: int) -> None:
        outcome = self.process(
            sac.UnregisterConsumer(
                stream=group[0], consumer_name="app", connection=connection, subscription_id=subscription
            )
        )
        assert outcome.reply == sac.SacReply()

    @rule(group=groups)
    def activate(self, group: tuple[str, int]) -> None:
        known = SacGroupKey("/", group[0], "app") in self.coordinator.state.groups
        outcome = self.process(sac.ActivateConsumer(stream=group[0], consumer_name="app"))
        assert outcome.reply == sac.SacReply(error=None if known else sac.SacError.NOT_FOUND)

    @rule(group=groups, dead=st.lists(connections, max_size=2))
    def evaluate(self, group: tuple[str, int], dead: list[str]) -> None:
        self.process(sac.EvaluateGroup(stream=group[0], consumer_name="app", dead=tuple(dead)))

    @rule(gone=st.lists(nodes, max_size=2, unique=True))
    def purge(self, gone: list[str]) -> None:
        self.process(sac.PurgeNodes(tuple(gone)))
        assert not set(gone) & set(self.coordinator.state.nodes)

    @rule(left=st.lists(nodes, max_size=3, unique=True))
    def tick(self, left: list[str]) -> None:
        timeout_ms = self.coordinator.state.disconnected_timeout_ms
        self.process(sac.Tick(nodes=tuple(left), disconnected_timeout_ms=timeout_ms))
        if left:
            assert set(self.coordinator.state.nodes) <= set(left)

    @rule(connection=connections)
    def reconnected(self, connection: str) -> None:
        self.process(sac.ConnectionReconnected(connection))
        assert not self.coordinator.state.strays

    # -- events ---------------------------------------------------------------------------------------------

    @rule(connection=connections, reason=st.sampled_from(list(sac.DownReason)))
    def down(self, connection: str, reason: str) -> None:
        self.process(sac.ConnectionDown(connection, reason))
        assert not self.coordinator.state.is_indexed(connection)

    @rule(node=nodes)
    def node_up(self, node: str) -> None:
        self.process(sac.NodeUp(node))

    @rule(by_ms=st.sampled_from([100, 1_000, 60_000]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        while (due := self.coordinator.next_deadline()) is not None and due <= self.now_ms:
            before = dict(self.coordinator.state.groups)
            for outcome in steps_due(self.runtime, due):
                assert outcome.records
            assert dict(self.coordinator.state.groups) != before

    @rule(connection=connections)
    def an_early_timer(self, connection: str) -> None:
        self.process(sac.DisconnectedTimeout(connection))
        assert connection not in self.coordinator.state.away

    @rule(connection=connections)
    def a_journal_that_fails(self, connection: str) -> None:
        before = self.coordinator.hard_state()
        self.journal.failing = True
        command = sac.RegisterConsumer(
            stream="new", consumer_name="app", connection=connection, subscription_id=0
        )
        outcome = self.runtime.step(command, self.now_ms)
        self.journal.failing = False
        assert outcome.reply == sac.SacReply(error=sac.SacError.COORDINATOR_UNAVAILABLE)
        assert outcome.effects == ()
        assert self.coordinator.hard_state() == before

    @rule(compacted=st.booleans())
    def another_leader(self, compacted: bool) -> None:
        if compacted:
            self.journal.compact()
        self.coordinator = SacCoordinator()
        self.coordinator.replay(self.journal, self.now_ms)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        outcome = self.process(sac.LeaderChanged())
        state = self.coordinator.state
        watched = [e.connection for e in outcome.effects if isinstance(e, sac.MonitorConnection)]
        timed = [e.connection for e in outcome.effects if isinstance(e, sac.StartTimer)]
        assert sorted(watched) == sorted(state.index())
        assert sorted(timed) == sorted(state.away)

    # -- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def groups_are_whole(self) -> None:
        for key, group in self.coordinator.state.groups.items():
            assert group.consumers
            identities = [(one.connection, one.subscription_id) for one in group.consumers]
            assert len(set(identities)) == len(identities)
            assert group.partition_index == dict(GROUPS)[key.stream]
            statuses = {one.status for one in group.consumers}
            assert statuses <= set(SAC_CONSUMER_TABLE.states) - {S.UNREGISTERED}
            if group.partition_index == sac.SIMPLE:
                assert S.CONNECTED_DEACTIVATING not in statuses

    @invariant()
    def a_replay_gives_the_same(self) -> None:
        loaded = SacCoordinator()
        loaded.replay(self.journal, self.now_ms)
        assert loaded.hard_state() == self.coordinator.hard_state()
        compacted = Journal(self.journal.batches())
        compacted.compact()
        loaded = SacCoordinator()
        loaded.replay(compacted, self.now_ms)
        assert loaded.hard_state() == self.coordinator.hard_state()

    @invariant()
    def timers_run_for_those_who_are_away(self) -> None:
        state = self.coordinator.state
        assert sorted(state.timers) == sorted(state.away)

    def teardown(self) -> None:
        """Once all connections have ended, nothing is left of them."""
        for node in NODES:
            self.process(sac.NodeUp(node))
        for connection in CONNECTIONS:
            self.process(sac.ConnectionDown(connection))
        left = self.coordinator.hard_state()
        assert {name for name, value in left.items() if value} == {"conf"}
        assert len(self.coordinator.state.timers) == 0


def members(group: SacGroupValue) -> list[tuple[str, int, S]]:
    return [(one.connection, one.subscription_id, one.status) for one in group.consumers]


TestSacMachine = SacMachine.TestCase
TestSacMachine.settings = settings(max_examples=60, stateful_step_count=30)
