"""What steps of the coordinator of single active consumers may do: real ones, and the same with one slip."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import msgspec
import pytest

from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac import ConsumerStatus
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue, SacRecord
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.simulation.sac.bookkeeping import SacBookkeeping
from fencepost.simulation.sac.observers import SacChecker, SacStep
from fencepost.simulation.sac.steps import SacSteps
from fencepost.simulation.sac.timing import SacTiming
from fencepost.simulation.scenarios.load import load_any

KEY = SacGroupKey("/", "s", "app")
S = ConsumerStatus
ONE, TWO, THREE = "k1@a", "k2@b", "k3@c"
ACTIVATE = sac.ActivateConsumer(stream="s", consumer_name="app")
Tamper: TypeAlias = Callable[[SacOutcome], SacOutcome]


def same(outcome: SacOutcome) -> SacOutcome:
    return outcome


def nothing_changes(outcome: SacOutcome) -> SacOutcome:
    return SacOutcome(reply=outcome.reply, effects=outcome.effects)


def untold(outcome: SacOutcome) -> SacOutcome:
    return SacOutcome(outcome.records, outcome.reply)


def replied(reply: sac.SacReply | None) -> Tamper:
    return lambda outcome: msgspec.structs.replace(outcome, reply=reply)


def statuses(*wanted: ConsumerStatus) -> Tamper:
    """The same outcome, but the group's consumers have these statuses."""

    def tamper(outcome: SacOutcome) -> SacOutcome:
        (group,) = [each.value for each in outcome.records if isinstance(each.value, SacGroupValue)]
        consumers = tuple(
            msgspec.structs.replace(one, status=status)
            for one, status in zip(group.consumers, wanted, strict=True)
        )
        record = SacRecord(KEY, msgspec.structs.replace(group, consumers=consumers))
        return SacOutcome((record,), outcome.reply, outcome.effects)

    return tamper


def turned_round(outcome: SacOutcome) -> SacOutcome:
    (group,) = [each.value for each in outcome.records if isinstance(each.value, SacGroupValue)]
    other = msgspec.structs.replace(group, consumers=group.consumers[::-1])
    return SacOutcome((SacRecord(KEY, other),), outcome.reply, outcome.effects)


class Scene:
    """A coordinator whose every step is judged."""

    def __init__(self, index: int = sac.SIMPLE) -> None:
        self.live = SacCoordinator()
        self.journal = SacMemoryJournal()
        self.index = index
        self.now_s = 0
        self.found: list[str] = []
        world: Any = SimpleNamespace(
            cluster=SimpleNamespace(host=SimpleNamespace(coordinator=self.live)),
            scenario=load_any("sac-churn"),
        )
        self.bookkeeping, self.timing = SacBookkeeping(), SacTiming()
        self.checkers: tuple[SacChecker, ...] = (SacSteps(), self.bookkeeping, self.timing)
        for checker in self.checkers:
            checker.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.timing.on_leader("a", "active", 0)

    def step(self, event: SacInput, tamper: Tamper = same, after_s: int = 1) -> list[str]:
        """Return what is reported of one event, whose outcome may be another one."""
        self.now_s += after_s
        before, reported = dict(self.live.state.groups), len(self.found)
        outcome = tamper(self.live.handle(event, self.now_s * 1_000))
        for record in outcome.records:
            self.live.apply(record)
        step = SacStep("a", event, outcome, before, self.live.state.groups)
        for checker in self.checkers:
            checker.on_step(step, self.now_s * 1_000_000)
        return self.found[reported:]

    def register(self, connection: str, tamper: Tamper = same) -> list[str]:
        return self.step(self.registration(connection), tamper)

    def registration(self, connection: str, index: int | None = None) -> sac.RegisterConsumer:
        return sac.RegisterConsumer(
            stream="s",
            consumer_name="app",
            connection=connection,
            subscription_id=0,
            partition_index=self.index if index is None else index,
            owner=connection,
        )

    def statuses(self) -> list[ConsumerStatus]:
        return [one.status for one in self.live.state.groups[KEY].consumers]


def lost(connection: str) -> sac.ConnectionDown:
    return sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION)


@pytest.fixture
def scene() -> Scene:
    """Three consumers of a plain stream."""
    made = Scene()
    for connection in (ONE, TWO, THREE):
        assert made.register(connection) == []
    assert made.statuses() == [S.CONNECTED_ACTIVE, S.CONNECTED_WAITING, S.CONNECTED_WAITING]
    return made


@pytest.fixture
def partition() -> Scene:
    """The second of two consumers of a partition is to be active, and the first one steps down."""
    made = Scene(index=1)
    assert made.register(ONE) == made.register(TWO) == []
    assert made.statuses() == [S.CONNECTED_DEACTIVATING, S.CONNECTED_WAITING]
    return made


HEALTHY: list[list[SacInput]] = [
    [sac.ConnectionDown(ONE), sac.ConnectionDown(TWO), sac.ConnectionDown(THREE)],
    [lost(ONE), sac.NodeUp("a"), sac.ConnectionReconnected(ONE), ACTIVATE],
    [lost(ONE), sac.DisconnectedTimeout(ONE), sac.NodeUp("a"), sac.ConnectionReconnected(ONE), ACTIVATE],
    [lost(TWO), sac.Tick(nodes=("a", "c")), sac.Tick(nodes=("c",)), sac.Tick(nodes=())],
    [sac.PurgeNodes(("a", "b")), sac.LeaderChanged()],
    [lost(ONE), sac.EvaluateGroup(stream="s", consumer_name="app", dead=(THREE,))],
    [sac.ActivateConsumer(stream="t", consumer_name="app")],
    [sac.UnregisterConsumer(stream="s", consumer_name="app", connection=ONE, subscription_id=0)],
    [sac.UnregisterConsumer(stream="s", consumer_name="app", connection=ONE, subscription_id=7)],
]


@pytest.mark.parametrize("events", HEALTHY, ids=lambda events: type(events[-1]).__name__)
@pytest.mark.parametrize("index", [sac.SIMPLE, 0, 1, 2])
def test_what_the_coordinator_does_is_right(events: list[SacInput], index: int) -> None:
    scene = Scene(index)
    for connection in (ONE, TWO, THREE):
        scene.register(connection)
    for event in events:
        wait_s = 60 if isinstance(event, sac.DisconnectedTimeout) else 1
        assert scene.step(event, after_s=wait_s) == []


def test_another_partition_index_is_refused(scene: Scene) -> None:
    assert scene.step(scene.registration("k4@c", index=3)) == []


@pytest.mark.parametrize(
    ("event", "tamper", "invariant"),
    [
        (sac.ConnectionDown(TWO), nothing_changes, "sac-cause"),
        (sac.ConnectionDown(ONE), statuses(S.CONNECTED_WAITING, S.CONNECTED_WAITING), "sac-choice"),
        (sac.ConnectionDown(ONE), statuses(S.CONNECTED_WAITING, S.CONNECTED_ACTIVE), "sac-choice"),
        (sac.ConnectionDown(ONE), untold, "sac-told"),
        (sac.ConnectionDown(TWO), turned_round, "sac-choice"),
        (lost(ONE), nothing_changes, "sac-cause"),
        (lost(ONE), untold, "sac-watched"),
        (lost(TWO), statuses(S.CONNECTED_ACTIVE, S.FORGOTTEN_WAITING, S.CONNECTED_WAITING), "sac-cause"),
        (sac.NodeUp("a"), untold, "sac-watched"),
        (sac.LeaderChanged(), untold, "sac-watched"),
        (ACTIVATE, replied(None), "sac-replies"),
        (ACTIVATE, replied(sac.SacReply(error=sac.SacError.NOT_FOUND)), "sac-replies"),
        (sac.ConnectionReconnected(TWO), untold, "sac-watched"),
        (
            lost(THREE),
            lambda outcome: msgspec.structs.replace(outcome, records=outcome.records[:1]),
            "sac-derived",
        ),
    ],
)
def test_a_slip_is_found(scene: Scene, event: SacInput, tamper: Tamper, invariant: str) -> None:
    assert invariant in scene.step(event, tamper)


def test_a_wrong_word_about_a_registration_is_found(scene: Scene) -> None:
    assert scene.register("k4@c", replied(sac.SacReply(is_active=True))) == ["sac-replies"]


def test_a_step_down_for_nobody_is_found(scene: Scene) -> None:
    tamper = statuses(S.CONNECTED_DEACTIVATING, *[S.CONNECTED_WAITING] * 3)
    assert set(scene.register("k4@c", tamper)) == {"sac-choice", "sac-told"}


def test_a_partition_goes_on_with_the_one_at_its_index(partition: Scene) -> None:
    assert partition.step(ACTIVATE) == []
    assert partition.statuses() == [S.CONNECTED_WAITING, S.CONNECTED_ACTIVE]


def test_one_that_steps_down_does_not_go_on(partition: Scene) -> None:
    found = partition.step(ACTIVATE, statuses(S.CONNECTED_ACTIVE, S.CONNECTED_WAITING))
    assert set(found) == {"sac-choice", "sac-told"}


def test_a_connection_is_not_forgotten_before_its_time(scene: Scene) -> None:
    scene.step(lost(TWO))
    assert scene.step(sac.DisconnectedTimeout(TWO), after_s=59) == ["sac-timeout"]


def test_a_connection_is_not_forgotten_late(scene: Scene) -> None:
    scene.step(lost(TWO))
    assert scene.step(sac.Tick(nodes=()), after_s=62) == ["sac-timeout"]


def test_a_group_that_stays_without_an_active_consumer_is_found(partition: Scene) -> None:
    assert partition.step(sac.Tick(nodes=()), after_s=200) == []
    assert partition.step(sac.Tick(nodes=()), after_s=60) == ["sac-unblocked"]


def test_time_without_a_leader_does_not_count(partition: Scene) -> None:
    partition.timing.on_leader("a", "crash", 100_000_000)
    partition.timing.on_leader("b", "active", 300_000_000)
    assert partition.step(sac.Tick(nodes=()), after_s=400) == []


def test_a_message_that_was_lost_is_an_excuse(partition: Scene) -> None:
    told = sac.NotifyConsumer(
        connection=ONE, subscription_id=0, stream="s", consumer_name="app", active=False, stepping_down=True
    )
    partition.timing.on_lost_message(told, 3_000_000)
    assert partition.step(sac.Tick(nodes=()), after_s=600) == []
