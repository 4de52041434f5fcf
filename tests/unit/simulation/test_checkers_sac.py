"""Single active consumers: a real coordinator's steps, and the same with one thing wrong."""

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
from fencepost.coordinator.sac.listing import consumer_groups, group_consumers
from fencepost.simulation.sac.coordination import SacCoordination
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.observers import SacStep

KEY = SacGroupKey("/", "s", "app")
S = ConsumerStatus
ONE, TWO = "k1@a", "k2@b"
Tamper: TypeAlias = Callable[[SacOutcome], SacOutcome]


def same(outcome: SacOutcome) -> SacOutcome:
    return outcome


class Scene:
    """A coordinator whose every step is judged: what is reported is in `found`. Owners are connections."""

    def __init__(self) -> None:
        self.live = SacCoordinator()
        self.journal = SacMemoryJournal()
        self.now_ms = 0
        self.found: list[str] = []
        self.subscribers: list[Any] = []
        figures = Figures()
        self.exclusive, self.messages = Exclusive(figures), list[str]()
        self.checker = SacCoordination(figures, self.exclusive)
        self.world: Any = SimpleNamespace(
            cluster=SimpleNamespace(host=SimpleNamespace(coordinator=self.live), journal=self.journal),
            clients={"client": SimpleNamespace(subscribers=self.subscribers)},
            group_keys=[KEY],
            loop=SimpleNamespace(now_us=0),
            scenario=SimpleNamespace(settling_us=0, keeps_up=True),
        )
        self.checker.attach(self.world, self.report)

    def report(self, invariant: str, message: str, rule: str = "") -> None:
        self.found.append(invariant)
        self.messages.append(message)

    def step(self, event: SacInput, tamper: Tamper = same) -> SacOutcome:
        """One event, whose outcome may be another one."""
        self.now_ms += 1_000
        before = dict(self.live.state.groups)
        outcome = tamper(self.live.handle(event, self.now_ms))
        self.journal.append(outcome.records)
        for record in outcome.records:
            self.live.apply(record)
        step = SacStep("a", event, outcome, before, self.live.state.groups)
        self.checker.on_step(step, self.now_ms * 1_000)
        return outcome

    def register(self, connection: str, index: int = sac.SIMPLE, tamper: Tamper = same) -> None:
        """A client subscribes, and knows that it did."""
        subscription = SimpleNamespace(stream=KEY.stream)
        self.subscribers.append(
            SimpleNamespace(connection=SimpleNamespace(owner=connection), subscription=subscription)
        )
        command = sac.RegisterConsumer(
            stream=KEY.stream,
            consumer_name=KEY.consumer_name,
            connection=connection,
            subscription_id=0,
            partition_index=index,
            owner=connection,
        )
        self.step(command, tamper)

    def list_groups(self, tamper: Callable[[list[Any], list[Any]], None] = lambda *_: None) -> None:
        """An operator lists the groups and their consumers."""
        state = self.live.state
        groups, consumers = consumer_groups(state), [group_consumers(state, KEY)]
        tamper(groups, consumers)
        self.checker.on_listed(groups, consumers, self.now_ms * 1_000)

    def leave(self, connection: str) -> None:
        """A client unsubscribes."""
        self.subscribers[:] = [each for each in self.subscribers if each.connection.owner != connection]
        command = sac.UnregisterConsumer(
            stream=KEY.stream, consumer_name=KEY.consumer_name, connection=connection, subscription_id=0
        )
        self.step(command)

    def lose(self, connection: str, tamper: Tamper = same) -> None:
        """The connection's node can't be reached."""
        self.step(sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION), tamper)

    def forget(self, connection: str) -> None:
        self.step(sac.DisconnectedTimeout(connection))

    def tick(self, *nodes: str, tamper: Tamper = same) -> None:
        self.step(sac.Tick(nodes=nodes), tamper)

    def believes(self, *connections: str) -> None:
        """These clients take themselves for active."""
        self.exclusive.holders[KEY.stream] = dict.fromkeys(connections)

    def statuses(self) -> list[ConsumerStatus]:
        return [one.status for one in self.live.state.groups[KEY].consumers]

    def end(self) -> list[str]:
        """What is reported in all."""
        self.checker.on_end(self.now_ms * 1_000)
        return self.found


def with_statuses(*statuses: ConsumerStatus) -> Tamper:
    """The same outcome, but the group's consumers have these statuses."""

    def other(record: SacRecord) -> SacRecord:
        if not isinstance(record.value, SacGroupValue):
            return record
        consumers = tuple(
            msgspec.structs.replace(one, status=status)
            for one, status in zip(record.value.consumers, statuses, strict=True)
        )
        return SacRecord(record.key, msgspec.structs.replace(record.value, consumers=consumers))

    def tamper(outcome: SacOutcome) -> SacOutcome:
        assert any(isinstance(record.value, SacGroupValue) for record in outcome.records)
        return msgspec.structs.replace(outcome, records=tuple(map(other, outcome.records)))

    return tamper


def nothing_happens(outcome: SacOutcome) -> SacOutcome:
    assert outcome.records
    return SacOutcome(reply=outcome.reply)


@pytest.fixture
def scene() -> Scene:
    """Two consumers of a plain stream: the first is active, and knows it."""
    made = Scene()
    made.register(ONE)
    made.register(TWO)
    made.believes(ONE)
    assert made.statuses() == [S.CONNECTED_ACTIVE, S.CONNECTED_WAITING]
    assert made.found == []
    return made


# -- sac-one-active ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [S.CONNECTED_ACTIVE, S.CONNECTED_DEACTIVATING, S.DISCONNECTED_ACTIVE])
def test_a_second_active_consumer_is_found(first: ConsumerStatus) -> None:
    scene = Scene()
    scene.register(ONE)
    scene.register(TWO, tamper=with_statuses(first, S.CONNECTED_ACTIVE))
    assert scene.found == ["sac-one-active"]


def test_a_lost_consumer_may_still_be_active(scene: Scene) -> None:
    scene.lose(ONE)
    assert scene.statuses() == [S.DISCONNECTED_ACTIVE, S.CONNECTED_WAITING]
    assert scene.found == []
    scene.register(
        "k3@c", tamper=with_statuses(S.DISCONNECTED_ACTIVE, S.CONNECTED_WAITING, S.CONNECTED_ACTIVE)
    )
    assert scene.found == ["sac-one-active"]


def test_one_that_was_forgotten_and_lost_again_is_excused(scene: Scene) -> None:
    scene.lose(ONE)
    scene.forget(ONE)
    assert scene.statuses() == [S.FORGOTTEN_ACTIVE, S.CONNECTED_ACTIVE]
    scene.step(sac.NodeUp("a"))
    scene.lose(ONE)
    assert scene.statuses() == [S.DISCONNECTED_ACTIVE, S.CONNECTED_ACTIVE]
    assert scene.found == []


# -- sac-stale-node ------------------------------------------------------------------------------------------


def test_a_tick_removes_the_consumers_of_a_node_that_left(scene: Scene) -> None:
    scene.tick("a", "b")
    scene.tick("b")
    assert scene.statuses() == [S.CONNECTED_ACTIVE]
    assert scene.found == []


def test_a_node_that_left_and_stays_is_found(scene: Scene) -> None:
    scene.tick("b", tamper=nothing_happens)
    assert scene.found == ["sac-stale-node"]
    assert scene.messages == ["a left the cluster, and its consumers are still there"]


def test_a_tick_that_knows_no_nodes_says_nothing_of_them(scene: Scene) -> None:
    scene.tick()
    assert scene.statuses() == [S.CONNECTED_ACTIVE, S.CONNECTED_WAITING]
    assert scene.found == []


# -- sac-settled ---------------------------------------------------------------------------------------------


def test_a_group_with_one_active_consumer_that_knows_has_settled(scene: Scene) -> None:
    assert scene.end() == []


def test_a_group_that_everybody_left_has_settled(scene: Scene) -> None:
    for connection in (TWO, ONE):
        scene.leave(connection)
    scene.believes()
    assert KEY not in scene.live.state.groups
    assert scene.end() == []


def test_the_right_one_of_a_super_stream_is_at_its_partition_index() -> None:
    scene = Scene()
    for connection in (ONE, TWO):
        scene.register(connection, index=1)
    assert scene.statuses() == [S.CONNECTED_DEACTIVATING, S.CONNECTED_WAITING]
    scene.step(sac.ActivateConsumer(stream=KEY.stream, consumer_name=KEY.consumer_name))
    scene.believes(TWO)
    assert scene.statuses() == [S.CONNECTED_WAITING, S.CONNECTED_ACTIVE]
    assert scene.end() == []


def no_leader(scene: Scene) -> None:
    scene.world.cluster.host = None


def client_without_a_member(scene: Scene) -> None:
    scene.step(
        sac.UnregisterConsumer(
            stream=KEY.stream, consumer_name=KEY.consumer_name, connection=TWO, subscription_id=0
        )
    )


def member_without_a_client(scene: Scene) -> None:
    del scene.subscribers[1]


def still_disconnected(scene: Scene) -> None:
    scene.lose(TWO)
    assert scene.statuses() == [S.CONNECTED_ACTIVE, S.DISCONNECTED_WAITING]


def nobody_active(scene: Scene) -> None:
    scene.register("k3@c", tamper=with_statuses(*[S.CONNECTED_WAITING] * 3))


def active_one_does_not_know(scene: Scene) -> None:
    scene.believes()


def another_one_believes_it_too(scene: Scene) -> None:
    scene.believes(ONE, TWO)


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        (no_leader, "no node leads the coordinator"),
        (client_without_a_member, "s: clients k1@a, k2@b are there, the group has k1@a"),
        (member_without_a_client, "s: clients k1@a are there, the group has k1@a, k2@b"),
        (still_disconnected, "s: k2@b is still DISCONNECTED_WAITING"),
        (nobody_active, "s has 0 active consumers"),
        (active_one_does_not_know, "s: k1@a is active, and does not know"),
        (another_one_believes_it_too, "s: k2@b takes itself for active"),
    ],
)
def test_a_group_that_has_not_settled_is_found(
    scene: Scene, slip: Callable[[Scene], None], message: str
) -> None:
    slip(scene)
    assert scene.end() == ["sac-settled"]
    assert scene.messages == [message]


def test_the_wrong_one_of_a_super_stream_is_found() -> None:
    scene = Scene()
    scene.register(ONE, index=1)
    scene.register(TWO, index=1, tamper=with_statuses(S.CONNECTED_ACTIVE, S.CONNECTED_WAITING))
    scene.believes(ONE)
    assert scene.end() == ["sac-settled"]
    assert scene.messages == ["s: k1@a is active, and k2@b is at partition index modulo 2 consumers"]


def test_who_was_told_nothing_is_no_violation(scene: Scene) -> None:
    """A consumer can be taken for waiting and not be told: only another event ends that (docs/sac.md)."""
    scene.believes(ONE, TWO)
    scene.exclusive.causes[TWO] = "demoted"
    assert scene.end() == []


def test_a_group_whose_last_message_was_lost_is_excused(scene: Scene) -> None:
    told = sac.NotifyConsumer(
        connection=ONE, subscription_id=0, stream=KEY.stream, consumer_name=KEY.consumer_name, active=True
    )
    scene.believes()
    scene.checker.on_lost_message(told, scene.now_ms * 1_000)
    assert scene.end() == []


def _other_state(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0][0]["state"] = "waiting (connected)"


def _one_too_few(groups: list[Any], consumers: list[Any]) -> None:
    groups[0]["consumers"] -= 1


def _swapped(groups: list[Any], consumers: list[Any]) -> None:
    consumers[0].reverse()


def test_a_listing_is_that_of_the_groups() -> None:
    scene = Scene()
    scene.register(ONE)
    scene.register(TWO)
    scene.step(sac.ConnectionDown(ONE, sac.DownReason.NOCONNECTION))
    scene.list_groups()
    assert scene.found == []


@pytest.mark.parametrize("tamper", [_other_state, _one_too_few, _swapped])
def test_a_listing_that_differs_from_the_groups_is_found(tamper: Callable[..., None]) -> None:
    scene = Scene()
    scene.register(ONE)
    scene.register(TWO)
    scene.list_groups(tamper)
    assert scene.found == ["sac-replies"]


@pytest.mark.parametrize("alive", [True, False])
def test_a_consumer_that_an_operator_removed_never_notices(alive: bool) -> None:
    scene = Scene()
    scene.world.cluster.connection = lambda _: "a connection" if alive else None
    scene.register(ONE)
    scene.register(TWO)
    scene.step(sac.EvaluateGroup(stream=KEY.stream, consumer_name=KEY.consumer_name, dead=(ONE,)))
    scene.checker.on_end(scene.now_ms * 1_000)
    assert scene.found == ([] if alive else ["sac-settled"])
