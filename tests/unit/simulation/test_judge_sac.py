"""Single active consumers: a real coordinator's steps, and the same with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import msgspec
import pytest

from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac import ConsumerStatus as S
from fencepost.coordinator.protocol.sac_records import (
    SacConfigurationKey,
    SacConnectionKey,
    SacGroupKey,
    SacGroupValue,
    SacRecord,
)
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.coordinator.sac.listing import consumer_groups, group_consumers
from fencepost.simulation.sac.coordination import SacCoordination
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.observers import SacStep
from fencepost.simulation.scenarios.load import load_any

KEY = SacGroupKey("/", "s", "app")
NAMES = {"stream": "s", "consumer_name": "app"}
ONE, TWO, THREE = "k1@a", "k2@b", "k3@c"
W, A, D = S.CONNECTED_WAITING, S.CONNECTED_ACTIVE, S.CONNECTED_DEACTIVATING
ACTIVATE, LEAD = sac.ActivateConsumer(**NAMES), sac.LeaderChanged()
DUE = DeadlineReached()
Tamper: TypeAlias = Callable[[SacOutcome], SacOutcome]
changed = msgspec.structs.replace


def registration(connection: str, index: int = sac.SIMPLE) -> sac.RegisterConsumer:
    """Owners are connections."""
    return sac.RegisterConsumer(
        connection=connection, subscription_id=0, partition_index=index, owner=connection, **NAMES
    )


def leaving(connection: str, subscription: int = 0) -> sac.UnregisterConsumer:
    return sac.UnregisterConsumer(connection=connection, subscription_id=subscription, **NAMES)


def lost(connection: str) -> sac.ConnectionDown:
    return sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION)


def back(connection: str) -> sac.ConnectionReconnected:
    return sac.ConnectionReconnected(connection)


def told(connection: str, *, active: bool) -> sac.NotifyConsumer:
    return sac.NotifyConsumer(
        connection=connection, subscription_id=0, active=active, stepping_down=not active, **NAMES
    )


# -- what is changed in an outcome ---------------------------------------------------------------------------


def same(outcome: SacOutcome) -> SacOutcome:
    return outcome


def nothing_changes(outcome: SacOutcome) -> SacOutcome:
    assert outcome.records
    return changed(outcome, records=())


def unsaid(outcome: SacOutcome) -> SacOutcome:
    assert outcome.effects
    return changed(outcome, effects=())


def also(*effects: sac.SacEffect) -> Tamper:
    return lambda outcome: changed(outcome, effects=(*outcome.effects, *effects))


def replied(reply: sac.SacReply | None) -> Tamper:
    return lambda outcome: changed(outcome, reply=reply)


def group(**fields: Any) -> Tamper:
    """The same outcome, but the group has these fields, or its consumers have these: a value for each."""

    def other(record: SacRecord) -> SacRecord:
        if not isinstance(record.value, SacGroupValue):
            return record
        consumers = list(record.value.consumers)
        for name in fields.keys() - {"partition_index", "turned"}:
            consumers = [
                changed(one, **{name: value}) for one, value in zip(consumers, fields[name], strict=True)
            ]
        if "turned" in fields:
            consumers.reverse()
        index = fields.get("partition_index", record.value.partition_index)
        return SacRecord(record.key, SacGroupValue(index, tuple(consumers)))

    def tamper(outcome: SacOutcome) -> SacOutcome:
        assert any(isinstance(record.value, SacGroupValue) for record in outcome.records)
        return changed(outcome, records=tuple(map(other, outcome.records)))

    return tamper


def statuses(*wanted: S) -> Tamper:
    return group(status=wanted)


def without_records(kind: type) -> Tamper:
    def tamper(outcome: SacOutcome) -> SacOutcome:
        kept = tuple(record for record in outcome.records if not isinstance(record.key, kind))
        assert kept != outcome.records
        return changed(outcome, records=kept)

    return tamper


class Scene:
    """A coordinator whose every step is judged: what is reported is in `found`."""

    def __init__(self, index: int = sac.SIMPLE, *connections: str) -> None:
        self.live = SacCoordinator()
        self.journal = SacMemoryJournal()
        self.index = index
        self.now_s = 0.0
        self.found: list[str] = []
        self.messages: list[str] = []
        self.subscribers: list[Any] = []
        self.exclusive = Exclusive(Figures())
        host = SimpleNamespace(coordinator=self.live)
        scenario = load_any("sac-churn")
        self.world: Any = SimpleNamespace(
            cluster=SimpleNamespace(host=host, journal=self.journal, connection=lambda _: None),
            clients={"client": SimpleNamespace(subscribers=self.subscribers)},
            group_keys=[KEY],
            loop=SimpleNamespace(now_us=0),
            scenario=SimpleNamespace(settling_us=0, keeps_up=True, cluster=scenario.cluster),
        )
        self.coordination = SacCoordination(Figures(), self.exclusive)
        self.coordination.attach(self.world, self.report)
        self.coordination.on_leader("a", "active", 0)
        for connection in connections:
            assert self.register(connection) == []

    def report(self, invariant: str, message: str, rule: str = "") -> None:
        self.found.append(invariant)
        self.messages.append(message)

    def step(self, event: SacInput, tamper: Tamper = same, after_s: float = 1) -> list[str]:
        """Return what is reported of one event, whose outcome may be another one."""
        self.now_s += after_s
        before, reported = dict(self.live.state.groups), len(self.found)
        outcome = tamper(self.live.handle(event, int(self.now_s * 1_000)))
        self.journal.append(outcome.records)
        self.live.apply_batch(outcome.records)
        step = SacStep("a", event, outcome, before, dict(self.live.state.groups))
        self.coordination.on_step(step, int(self.now_s * 1_000_000))
        return self.found[reported:]

    def register(self, connection: str) -> list[str]:
        """A client subscribes, and knows that it did."""
        subscription = SimpleNamespace(stream=KEY.stream)
        client = SimpleNamespace(connection=SimpleNamespace(owner=connection), subscription=subscription)
        self.subscribers.append(client)
        return self.step(registration(connection, self.index))

    def believes(self, *connections: str) -> None:
        """These clients take themselves for active."""
        self.exclusive.holders[KEY.stream] = dict.fromkeys(connections)

    def statuses(self) -> list[S]:
        return [one.status for one in self.live.state.groups[KEY].consumers]

    def end(self) -> list[str]:
        """What is reported in all."""
        self.coordination.on_end(int(self.now_s * 1_000_000))
        return self.found


# -- each step -----------------------------------------------------------------------------------------------

REPAIR = sac.EvaluateGroup(dead=(THREE,), **NAMES)
HEALTHY: list[list[SacInput]] = [
    [sac.ConnectionDown(ONE), sac.ConnectionDown(TWO), sac.ConnectionDown(THREE)],
    [lost(ONE), sac.NodeUp("a"), back(ONE), ACTIVATE],
    [lost(ONE), sac.DisconnectedTimeout(ONE), sac.NodeUp("a"), back(ONE), ACTIVATE],
    [lost(ONE), sac.DisconnectedTimeout(ONE), sac.NodeUp("a"), lost(ONE), sac.NodeUp("a"), back(ONE)],
    [lost(TWO), sac.Tick(nodes=("a", "c")), sac.Tick(nodes=("c",)), sac.Tick(nodes=())],
    [sac.PurgeNodes(("a", "b")), LEAD],
    [lost(ONE), REPAIR],
    [sac.ActivateConsumer(stream="t", consumer_name="app")],
    [leaving(ONE), leaving(TWO, 7), registration("k4@c", 7), sac.UpdateConfiguration({})],
]


@pytest.mark.parametrize("events", HEALTHY, ids=lambda events: type(events[-1]).__name__)
@pytest.mark.parametrize("index", [sac.SIMPLE, 0, 1, 2])
def test_what_the_coordinator_does_is_right(events: list[SacInput], index: int) -> None:
    scene = Scene(index, ONE, TWO, THREE)
    for event in events:
        assert scene.step(event) == []


PLAIN: list[tuple[Sequence[SacInput], SacInput, Tamper, str]] = [
    ([], sac.ConnectionDown(TWO), nothing_changes, "sac-cause"),
    ([], lost(ONE), nothing_changes, "sac-cause"),
    ([], lost(TWO), statuses(A, S.FORGOTTEN_WAITING, W), "sac-cause"),
    ([], lost(ONE), group(since_ms=(0, 0, 0)), "sac-cause"),
    ([], registration("k4@c"), group(owner=[ONE, TWO, THREE, "x"]), "sac-cause"),
    ([], registration("k4@c"), group(partition_index=1), "sac-cause"),
    ([lost(ONE)], DUE, statuses(S.FORGOTTEN_ACTIVE, W, W), "sac-choice"),
    ([], sac.ConnectionDown(ONE), statuses(W, W), "sac-choice"),
    ([], sac.ConnectionDown(ONE), statuses(W, A), "sac-choice"),
    ([], sac.ConnectionDown(TWO), group(turned=True), "sac-choice"),
    ([], registration("k4@c"), statuses(D, W, W, W), "sac-choice"),
    ([], registration("k4@c"), statuses(A, W, W, A), "sac-one-active"),
    ([], registration("k4@c"), statuses(D, W, W, A), "sac-one-active"),
    ([lost(ONE)], registration("k4@c"), statuses(S.DISCONNECTED_ACTIVE, W, W, A), "sac-one-active"),
    ([], sac.Tick(nodes=("b", "c")), nothing_changes, "sac-stale-node"),
    ([], sac.ConnectionDown(ONE), unsaid, "sac-told"),
    ([], ACTIVATE, also(told(ONE, active=True)), "sac-told"),
    ([], lost(ONE), unsaid, "sac-watched"),
    ([], sac.NodeUp("a"), unsaid, "sac-watched"),
    ([], LEAD, unsaid, "sac-watched"),
    ([], back(TWO), unsaid, "sac-watched"),
    ([], leaving(TWO), unsaid, "sac-watched"),
    ([], ACTIVATE, also(sac.DemonitorConnection(ONE)), "sac-watched"),
    ([lost(TWO)], LEAD, replied(sac.SacReply()), "sac-replies"),
    ([], ACTIVATE, replied(None), "sac-replies"),
    ([], ACTIVATE, replied(sac.SacReply(error=sac.SacError.NOT_FOUND)), "sac-replies"),
    ([], registration("k4@c"), replied(sac.SacReply(is_active=True)), "sac-replies"),
    ([], lost(THREE), without_records(SacConnectionKey), "sac-derived"),
    ([], sac.UpdateConfiguration({}), without_records(SacConfigurationKey), "sac-timeout"),
]


@pytest.mark.parametrize(("before", "event", "tamper", "invariant"), PLAIN)
def test_a_slip_is_found(before: Sequence[SacInput], event: SacInput, tamper: Tamper, invariant: str) -> None:
    scene = Scene(sac.SIMPLE, ONE, TWO, THREE)
    for each in before:
        assert scene.step(each) == []
    if event is DUE:
        scene.now_s += 60
    assert invariant in scene.step(event, tamper)


def test_a_refused_command_that_changes_a_group_is_found() -> None:
    scene = Scene(sac.SIMPLE, ONE)
    ends = (SacRecord(KEY, None),)
    assert "sac-replies" in scene.step(registration(TWO, 3), lambda outcome: changed(outcome, records=ends))


def test_a_partition_goes_on_with_the_one_at_its_index_only() -> None:
    scene = Scene(1, ONE, TWO)
    assert scene.statuses() == [D, W]
    assert set(scene.step(ACTIVATE, statuses(A, W))) == {"sac-choice"}
    assert scene.step(ACTIVATE) == []
    assert scene.statuses() == [W, A]


@pytest.mark.parametrize(
    ("kind", "value"), [("_groups_of", {}), ("_nodes", {}), ("_away", {ONE: {KEY: 0}}), ("timers", {ONE: 0})]
)
def test_what_is_derived_from_groups_is_compared(kind: str, value: object) -> None:
    scene = Scene(sac.SIMPLE, ONE, TWO)
    setattr(scene.live.state, kind, value)
    scene.believes(ONE)
    assert "sac-derived" in scene.end()


# -- in time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "after_s", "found"),
    [(DUE, 59.999, ["sac-timeout"]), (DUE, 60, []), (sac.Tick(nodes=()), 62, ["sac-timeout"])],
)
def test_a_connection_is_forgotten_in_its_time(event: SacInput, after_s: float, found: list[str]) -> None:
    scene = Scene(sac.SIMPLE, ONE, TWO)
    scene.step(lost(TWO))
    scene.live.state.timers.set(TWO, 0)
    assert scene.step(event, after_s=after_s) == found


def test_a_group_that_stays_without_an_active_consumer_is_found() -> None:
    scene = Scene(1, ONE, TWO)
    assert scene.step(sac.Tick(nodes=()), after_s=200) == []
    assert scene.step(sac.Tick(nodes=()), after_s=60) == ["sac-unblocked"]


def test_time_without_a_leader_does_not_count() -> None:
    scene = Scene(1, ONE, TWO)
    scene.coordination.on_leader("a", "crash", 100_000_000)
    scene.coordination.on_leader("b", "active", 300_000_000)
    assert scene.step(sac.Tick(nodes=()), after_s=400) == []


def test_a_message_that_was_lost_is_an_excuse() -> None:
    scene = Scene(1, ONE, TWO)
    scene.coordination.on_lost_message(told(ONE, active=False), 3_000_000)
    assert scene.step(sac.Tick(nodes=()), after_s=600) == []


# -- at the end ----------------------------------------------------------------------------------------------


@pytest.fixture
def scene() -> Scene:
    """Two consumers of a plain stream: the first is active, and knows it."""
    made = Scene(sac.SIMPLE, ONE, TWO)
    made.believes(ONE)
    return made


def no_leader(scene: Scene) -> None:
    scene.world.cluster.host = None


def client_without_a_member(scene: Scene) -> None:
    scene.step(leaving(TWO))


def member_without_a_client(scene: Scene) -> None:
    del scene.subscribers[1]


def still_lost(scene: Scene) -> None:
    scene.step(lost(TWO))


def active_one_does_not_know(scene: Scene) -> None:
    scene.believes()


def another_one_believes_it_too(scene: Scene) -> None:
    scene.believes(ONE, TWO)


def removed_by_an_operator(scene: Scene) -> None:
    scene.step(sac.EvaluateGroup(dead=(TWO,), **NAMES))


def removed_while_alive(scene: Scene) -> None:
    scene.world.cluster.connection = lambda _: "a connection"
    removed_by_an_operator(scene)


def all_left(scene: Scene) -> None:
    for connection in (TWO, ONE):
        scene.step(leaving(connection))
    scene.subscribers.clear()
    scene.believes()


def told_nothing(scene: Scene) -> None:
    """A consumer can be taken for waiting and not be told: only another event ends that (docs/sac.md)."""
    scene.believes(ONE, TWO)
    scene.exclusive.causes[TWO] = "demoted"


def last_message_lost(scene: Scene) -> None:
    scene.believes()
    scene.coordination.on_lost_message(told(ONE, active=True), 0)


@pytest.mark.parametrize(
    ("slip", "messages"),
    [
        (lambda _: None, []),
        (all_left, []),
        (told_nothing, []),
        (last_message_lost, []),
        (removed_while_alive, []),
        (no_leader, ["no node leads the coordinator"]),
        (client_without_a_member, ["s: clients k1@a, k2@b are there, the group has k1@a"]),
        (removed_by_an_operator, ["s: clients k1@a, k2@b are there, the group has k1@a"]),
        (member_without_a_client, ["s: clients k1@a are there, the group has k1@a, k2@b"]),
        (still_lost, ["s: k2@b is still DISCONNECTED_WAITING"]),
        (active_one_does_not_know, ["s: k1@a is active, and does not know"]),
        (another_one_believes_it_too, ["s: k2@b takes itself for active"]),
    ],
)
def test_a_group_that_has_not_settled_is_found(
    scene: Scene, slip: Callable[[Scene], None], messages: list[str]
) -> None:
    slip(scene)
    assert scene.end() == ["sac-settled"] * len(messages)
    assert scene.messages == messages


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ((A, W), "s: k1@a is active in place of k2@b"),
        ((W, W), "s has 0 active consumers"),
    ],
)
def test_the_wrong_one_of_a_super_stream_is_found(now: tuple[S, S], message: str) -> None:
    scene = Scene(1, ONE, TWO)
    scene.step(ACTIVATE, statuses(*now))
    scene.believes(ONE)
    assert "sac-settled" in scene.end()
    assert message in scene.messages


def _other_state(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0][0]["state"] = "waiting (connected)"


def _one_too_few(groups: list[Any], consumers: list[Any]) -> None:
    groups[0]["consumers"] -= 1


def _swapped(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0].reverse()


@pytest.mark.parametrize("tamper", [None, _other_state, _one_too_few, _swapped])
def test_a_listing_is_that_of_the_groups(scene: Scene, tamper: Callable[..., None] | None) -> None:
    scene.step(lost(ONE))
    groups, consumers = consumer_groups(scene.live.state), [group_consumers(scene.live.state, KEY)]
    if tamper is not None:
        tamper(groups, consumers)
    scene.coordination.on_listed(groups, consumers, 0)
    assert scene.found == ([] if tamper is None else ["sac-replies"])
