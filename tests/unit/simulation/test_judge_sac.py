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
from tests.unit.simulation.judged_steps import same
from tests.unit.simulation.member_worlds import Scripted

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


class Scene(Scripted):
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


# -- scripts -------------------------------------------------------------------------------------------------


class Told(Scene):
    """A plain stream, or one of a super stream, with two consumers; the first one takes itself for active."""

    def __init__(self, index: int) -> None:
        super().__init__(index, ONE, TWO)
        self.believes(ONE)

    def time(self, seconds: str) -> None:
        self.step(DUE, after_s=float(seconds))

    def tick(self, seconds: str) -> None:
        self.step(sac.Tick(nodes=()), after_s=float(seconds))

    def loses(self, connection: str) -> None:
        self.step(lost(connection))

    def leaves(self, *connections: str) -> None:
        for connection in connections:
            self.step(leaving(connection))

    def removes(self, connection: str) -> None:
        """An operator does."""
        self.step(sac.EvaluateGroup(dead=(connection,), **NAMES))

    def alive(self) -> None:
        self.world.cluster.connection = lambda _: "a connection"

    def timer(self, connection: str) -> None:
        """It runs out at once."""
        self.live.state.timers.set(connection, 0)

    def clients(self, number: str) -> None:
        del self.subscribers[int(number) :]

    def demoted(self, connection: str) -> None:
        """A consumer can be taken for waiting and not be told: only another event ends that (docs/sac.md)."""
        self.exclusive.causes[connection] = "demoted"

    def message_lost(self, connection: str, to: str) -> None:
        message = told(connection, active=to == "active")
        self.coordination.on_lost_message(message, int(self.now_s * 1_000_000))

    def leader(self, node: str, what: str, seconds: str) -> None:
        self.coordination.on_leader(node, what, int(seconds) * 1_000_000)

    def headless(self) -> None:
        self.world.cluster.host = None

    def activates(self, *after: str) -> None:
        """The active one is chosen; afterwards their states are these."""
        self.step(ACTIVATE, statuses(*({"A": A, "W": W}[one] for one in after)))


TWO_CLIENTS = "s: clients k1@a, k2@b are there, the group has k1@a"


@pytest.mark.parametrize(
    ("index", "script", "broken", "messages"),
    [
        # A connection is forgotten in its time.
        (sac.SIMPLE, "loses k2@b; timer k2@b; time 59.999", "sac-timeout", None),
        (sac.SIMPLE, "loses k2@b; timer k2@b; time 60", "", None),
        (sac.SIMPLE, "loses k2@b; timer k2@b; tick 62", "sac-timeout", None),
        # A group stays without an active consumer; time without a leader does not count.
        (1, "tick 200", "", None),
        (1, "tick 200; tick 60", "sac-unblocked", None),
        (1, "leader a crash 100; leader b active 300; tick 400", "", None),
        (1, "message_lost k1@a waiting; tick 600", "", None),
        # At the end all have settled.
        (sac.SIMPLE, "end", "", []),
        (sac.SIMPLE, "leaves k2@b k1@a; clients 0; believes; end", "", []),
        (sac.SIMPLE, "believes k1@a k2@b; demoted k2@b; end", "", []),
        (sac.SIMPLE, "believes; message_lost k1@a active; end", "", []),
        (sac.SIMPLE, "alive; removes k2@b; end", "", []),
        (sac.SIMPLE, "headless; end", "sac-settled", ["no node leads the coordinator"]),
        (sac.SIMPLE, "leaves k2@b; end", "sac-settled", [TWO_CLIENTS]),
        (sac.SIMPLE, "removes k2@b; end", "sac-settled", [TWO_CLIENTS]),
        (sac.SIMPLE, "clients 1; end", "sac-settled",
         ["s: clients k1@a are there, the group has k1@a, k2@b"]),
        (sac.SIMPLE, "loses k2@b; end", "sac-settled", ["s: k2@b is still DISCONNECTED_WAITING"]),
        (sac.SIMPLE, "believes; end", "sac-settled", ["s: k1@a is active, and does not know"]),
        (sac.SIMPLE, "believes k1@a k2@b; end", "sac-settled", ["s: k2@b takes itself for active"]),
        (1, "activates A W; end", "sac-choice sac-settled", ["s: k1@a is active in place of k2@b"]),
        (1, "activates W W; end", "sac-choice sac-settled", ["s has 0 active consumers"]),
    ],
)  # fmt: skip
def test_a_history(index: int, script: str, broken: str, messages: list[str] | None) -> None:
    scene = Told(index)
    assert scene.play(script) == broken.split()
    assert messages is None or scene.messages[broken.count(" ") :] == messages


def _other_state(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0][0]["state"] = "waiting (connected)"


def _one_too_few(groups: list[Any], consumers: list[Any]) -> None:
    groups[0]["consumers"] -= 1


def _swapped(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0].reverse()


@pytest.mark.parametrize("tamper", [None, _other_state, _one_too_few, _swapped])
def test_a_listing_is_that_of_the_groups(tamper: Callable[..., None] | None) -> None:
    scene = Told(sac.SIMPLE)
    scene.loses(ONE)
    groups, consumers = consumer_groups(scene.live.state), [group_consumers(scene.live.state, KEY)]
    if tamper is not None:
        tamper(groups, consumers)
    scene.coordination.on_listed(groups, consumers, 0)
    assert scene.found == ([] if tamper is None else ["sac-replies"])
