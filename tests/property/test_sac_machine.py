"""Single active consumers under any sequence of commands, losses, failing journals and reloads.

The model of the judge says what must follow from each.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac_records import SacRecord
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput
from fencepost.coordinator.sac.states import SAC_CONSUMER_TABLE
from fencepost.simulation.sac import model
from fencepost.simulation.sac.steps import derived, differences, expected, read

NODES = ("a", "b", "c")
CONNECTIONS = tuple(f"k{number}@{node}" for number in range(2) for node in NODES)
GROUPS = {"plain": sac.SIMPLE, "super-0": 0, "super-1": 1}

connections = st.sampled_from(CONNECTIONS)
nodes = st.lists(st.sampled_from(NODES), max_size=3, unique=True).map(tuple)
streams = st.sampled_from(list(GROUPS))
NAMES = {"stream": streams, "consumer_name": st.just("app")}
MEMBER = {**NAMES, "connection": connections, "subscription_id": st.integers(0, 1)}


def registered(command: sac.RegisterConsumer) -> sac.RegisterConsumer:
    """Return the command with its group's partition index, except one in ten."""
    index = 7 if command.partition_index == 9 else GROUPS[command.stream]
    return msgspec.structs.replace(command, partition_index=index)


registrations = st.builds(sac.RegisterConsumer, **MEMBER, partition_index=st.integers(0, 9)).map(registered)
events: st.SearchStrategy[SacInput] = st.one_of(
    registrations,
    st.builds(sac.UnregisterConsumer, **MEMBER),
    st.builds(sac.ActivateConsumer, **NAMES),
    st.builds(sac.EvaluateGroup, **NAMES, dead=st.lists(connections, max_size=2).map(tuple)),
    st.builds(sac.ConnectionReconnected, connections),
    st.builds(sac.PurgeNodes, nodes),
    st.builds(sac.Tick, nodes=nodes, disconnected_timeout_ms=st.sampled_from([60_000, 60_000, 1_000])),
    st.builds(sac.UpdateConfiguration, st.sampled_from([{}, {sac.DISCONNECTED_TIMEOUT: 1_000}])),
    st.builds(sac.ConnectionDown, connections, st.sampled_from(list(sac.DownReason))),
    st.builds(sac.ConnectionDown, connections, st.just(sac.DownReason.NOCONNECTION)),
    st.builds(sac.NodeUp, st.sampled_from(NODES)),
    st.builds(sac.DisconnectedTimeout, connections),
)


class Journal(SacMemoryJournal):
    """One that fails when it is told to."""

    failing = False

    def append(self, records: tuple[SacRecord, ...]) -> None:
        if self.failing:
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no quorum")
        super().append(records)


class SacMachine(RuleBasedStateMachine):
    """One coordinator, each step of which is compared with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.now_ms = 0
        self.known = model.NOTHING
        self.lead(SacCoordinator())

    def lead(self, coordinator: SacCoordinator) -> None:
        self.coordinator = coordinator
        self.host = CoordinatorHost(coordinator, self.journal)

    @initialize(first=st.lists(registrations, min_size=3, max_size=9))
    def begin(self, first: list[SacInput]) -> None:
        self.process_all(first)

    @rule(events=st.lists(events, min_size=1, max_size=6))
    def process_all(self, events: list[SacInput]) -> None:
        for event in events:
            self.process(event)

    def process(self, event: SacInput) -> None:
        outcome = self.host.step(event, self.now_ms)
        got = read(self.coordinator.state)
        right = expected(self.known, event, got, self.now_ms)
        assert list(differences(event, right, got, outcome)) == []
        self.known = right.after
        assert list(derived(self.known, self.coordinator.state)) == []

    @rule(by_ms=st.sampled_from([100, 1_000, 60_000]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        while (due := self.coordinator.next_deadline()) is not None and due <= self.now_ms:
            before = self.known.groups
            self.process(DeadlineReached())
            assert self.known.groups != before
        assert all(deadline_ms > self.now_ms for deadline_ms in self.known.deadlines.values())

    @rule(connection=connections)
    def a_journal_that_fails(self, connection: str) -> None:
        before = self.coordinator.hard_state()
        self.journal.failing = True
        command = sac.RegisterConsumer(
            stream="new", consumer_name="app", connection=connection, subscription_id=0
        )
        outcome = self.host.step(command, self.now_ms)
        self.journal.failing = False
        assert outcome.reply == sac.SacReply(error=sac.SacError.COORDINATOR_UNAVAILABLE)
        assert outcome.effects == ()
        assert self.coordinator.hard_state() == before

    @rule(compacted=st.booleans())
    def another_leader(self, compacted: bool) -> None:
        if compacted:
            self.journal.compact()
        self.lead(self.loaded(self.journal))
        self.process(sac.LeaderChanged())

    def loaded(self, journal: Journal) -> SacCoordinator:
        made = SacCoordinator()
        made.replay(journal, self.now_ms)
        return made

    @invariant()
    def statuses_are_in_the_table(self) -> None:
        for group in self.coordinator.state.groups.values():
            statuses = {one.status for one in group.consumers}
            assert statuses <= set(SAC_CONSUMER_TABLE.states) - {model.ABSENT}
            assert group.partition_index != sac.SIMPLE or model.STEPS not in statuses

    @invariant()
    def a_replay_gives_the_same(self) -> None:
        compacted = Journal(self.journal.batches())
        compacted.compact()
        for journal in (self.journal, compacted):
            assert self.loaded(journal).hard_state() == self.coordinator.hard_state()

    def teardown(self) -> None:
        """Once all connections have ended, nothing is left of them."""
        for node in NODES:
            self.process(sac.NodeUp(node))
        for connection in CONNECTIONS:
            self.process(sac.ConnectionDown(connection))
        left = self.coordinator.hard_state()
        assert {name for name, value in left.items() if value} <= {"conf"}
        assert len(self.coordinator.state.timers) == 0


TestSacMachine = SacMachine.TestCase
TestSacMachine.settings = settings(stateful_step_count=30)
