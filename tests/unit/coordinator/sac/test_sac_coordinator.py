"""What a coordinator of single active consumers does beyond choosing: timers, ticks, lists, journals."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.journal.sqlite import SqliteJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.machine import IllegalTransition
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac import Activity, Connectivity, ConsumerStatus, SacError
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacRecord
from fencepost.coordinator.sac import listing
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.coordinator.sac.states import SAC_CONSUMER_TABLE, ConsumerEvent
from tests.hosting import steps_due

KEY = SacGroupKey("/", "s", "app")
S = ConsumerStatus


class Scene:
    def __init__(self) -> None:
        self.journal = SacMemoryJournal()
        self.coordinator = SacCoordinator()
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.now_ms = 1_000

    def process(self, event: SacInput) -> SacOutcome:
        return self.runtime.step(event, self.now_ms)

    def register(self, connection: str, *, stream: str = "s", index: int = sac.SIMPLE) -> bool | None:
        command = sac.RegisterConsumer(
            stream=stream,
            consumer_name="app",
            connection=connection,
            subscription_id=0,
            partition_index=index,
            owner=f"client {connection}",
        )
        reply = self.process(command).reply
        assert reply is not None
        return reply.is_active

    def down(self, connection: str, reason: str = "noconnection") -> SacOutcome:
        return self.process(sac.ConnectionDown(connection, reason))

    def statuses(self, key: SacGroupKey = KEY) -> dict[str, ConsumerStatus]:
        return {one.connection: one.status for one in self.coordinator.state.groups[key].consumers}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def told(outcome: SacOutcome) -> list[tuple[str, bool]]:
    return [(e.connection, e.active) for e in outcome.effects if isinstance(e, sac.NotifyConsumer)]


def test_a_connection_that_stays_away_is_forgotten_after_its_time(scene: Scene) -> None:
    scene.register("k1@a")
    scene.register("k2@b")
    outcome = scene.down("k1@a")
    assert sac.StartTimer("k1@a", 60_000) in outcome.effects
    assert scene.coordinator.next_deadline() == 61_000
    assert steps_due(scene.runtime, 60_999) == []
    [outcome] = steps_due(scene.runtime, 61_000)
    assert told(outcome) == [("k2@b", True)]
    assert scene.statuses() == {"k1@a": S.FORGOTTEN_ACTIVE, "k2@b": S.CONNECTED_ACTIVE}
    assert scene.coordinator.next_deadline() is None


def test_a_connection_that_returns_in_time_keeps_its_place(scene: Scene) -> None:
    scene.register("k1@a")
    scene.register("k2@b")
    scene.down("k1@a")
    assert scene.process(sac.NodeUp("a")).effects == (
        sac.CheckConnection("k1@a"),
        sac.MonitorConnection("k1@a"),
    )
    assert told(scene.process(sac.ConnectionReconnected("k1@a"))) == []
    assert scene.statuses() == {"k1@a": S.CONNECTED_ACTIVE, "k2@b": S.CONNECTED_WAITING}
    assert scene.coordinator.next_deadline() is None


def test_a_timer_starts_anew_when_the_connection_is_lost_again(scene: Scene) -> None:
    scene.register("k1@a")
    scene.down("k1@a")
    scene.process(sac.NodeUp("a"))
    scene.now_ms = 31_000
    scene.down("k1@a")
    assert scene.coordinator.next_deadline() == 91_000


def test_a_lost_connection_is_acted_upon_once(scene: Scene) -> None:
    scene.register("k1@a")
    scene.down("k1@a")
    assert scene.down("k1@a").effects == (sac.MonitorNode("a"),)
    assert scene.down("k1@a", "normal").records == ()
    assert scene.statuses() == {"k1@a": S.DISCONNECTED_ACTIVE}


def test_a_tick_purges_nodes_that_left_and_takes_the_configuration_over(scene: Scene) -> None:
    scene.register("k1@a")
    scene.register("k2@b")
    tick = sac.Tick(nodes=("b", "c"), disconnected_timeout_ms=5_000)
    outcome = scene.process(tick)
    assert told(outcome) == [("k2@b", True)]
    assert outcome.reply is None
    assert scene.statuses() == {"k2@b": S.CONNECTED_ACTIVE}
    assert scene.coordinator.state.disconnected_timeout_ms == 5_000
    assert scene.process(tick) == SacOutcome()


def test_a_tick_that_does_not_know_the_cluster_purges_nobody(scene: Scene) -> None:
    scene.register("k1@a")
    assert scene.process(sac.Tick(nodes=())) == SacOutcome()


@pytest.mark.parametrize(
    ("away_ms", "left_ms"), [(0, 60_000), (30_000, 30_000), (55_000, 10_000), (3_600_000, 10_000)]
)
def test_a_new_leader_times_the_rest_but_leaves_time_to_come_back(
    scene: Scene, away_ms: int, left_ms: int
) -> None:
    scene.register("k1@a")
    scene.down("k1@a")
    now_ms = scene.now_ms + away_ms
    loaded = SacCoordinator()
    loaded.replay(scene.journal, now_ms)
    outcome = loaded.handle(sac.LeaderChanged(), now_ms)
    assert outcome.effects == (sac.MonitorNode("a"), sac.StartTimer("k1@a", left_ms))
    assert loaded.next_deadline() == now_ms + left_ms


def test_a_timer_whose_records_are_not_written_runs_again_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.register("k1@a")
    scene.down("k1@a")

    def full(records: tuple[SacRecord, ...]) -> None:
        raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no quorum")

    monkeypatch.setattr(scene, "runtime", CoordinatorHost(scene.coordinator, Journal(full)))
    assert steps_due(scene.runtime, 61_000) == [SacOutcome()]
    assert scene.coordinator.next_deadline() == 62_000
    assert scene.statuses() == {"k1@a": S.DISCONNECTED_ACTIVE}


class Journal:
    def __init__(self, append: object) -> None:
        self.append = append


def test_what_is_no_command_is_answered_so() -> None:
    outcome = SacCoordinator().handle("hello", 0)  # type: ignore[arg-type]
    assert outcome == SacOutcome(reply=sac.SacReply(error=SacError.UNKNOWN_COMMAND))


def test_a_deadline_that_is_not_due_does_nothing(scene: Scene) -> None:
    assert scene.process(DeadlineReached()) == SacOutcome()


def test_a_negative_index_that_means_nothing_never_moves(scene: Scene) -> None:
    """As in RabbitMQ: the first one is active, and nobody replaces it."""
    assert scene.register("k1@a", index=-2)
    assert not scene.register("k2@b", index=-2)
    scene.down("k1@a", "normal")
    assert scene.statuses() == {"k2@b": S.CONNECTED_WAITING}


def test_groups_and_members_are_listed_as_rabbitmq_lists_them(scene: Scene) -> None:
    for connection in ("k1@a", "k2@b"):
        scene.register(connection)
    scene.register("k1@a", stream="t-1", index=1)
    scene.down("k1@a")
    state = scene.coordinator.state
    assert listing.consumer_groups(state) == [
        {"stream": "s", "reference": "app", "partition_index": -1, "consumers": 2},
        {"stream": "t-1", "reference": "app", "partition_index": 1, "consumers": 1},
    ]
    assert listing.consumer_groups(state, "other") == []
    assert listing.consumer_groups(state, fields=("consumers", "age")) == [
        {"consumers": 2, "age": "unknown_field"},
        {"consumers": 1, "age": "unknown_field"},
    ]
    assert listing.group_consumers(state, KEY) == [
        {"subscription_id": 0, "connection_name": "client k1@a", "state": "active (disconnected)"},
        {"subscription_id": 0, "connection_name": "client k2@b", "state": "waiting (connected)"},
    ]
    steps_due(scene.runtime, 61_000)
    assert listing.group_consumers(state, KEY, ("state",)) == [
        {"state": "active (presumed down)"},
        {"state": "active (connected)"},
    ]
    assert listing.group_consumers(state, SacGroupKey("/", "s", "none")) is None
    assert listing.overview(state)["num_groups"] == 2
    assert state.nodes == ["a", "b"]


def test_a_journal_in_a_file_brings_everything_back(scene: Scene, tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "sac")
    runtime = CoordinatorHost(scene.coordinator, journal)
    scene.runtime = runtime
    for connection in ("k1@a", "k2@b", "k3@c"):
        scene.register(connection, index=1)
    scene.down("k2@b")
    scene.process(sac.UpdateConfiguration({"disconnected_timeout": 9_000}))
    journal.close()
    again = SqliteJournal(tmp_path / "sac")
    loaded = SacCoordinator()
    loaded.replay((record for record in again if isinstance(record, SacRecord)), scene.now_ms)
    again.close()
    assert loaded.hard_state() == scene.coordinator.hard_state()
    assert loaded.next_deadline() == scene.now_ms + 9_000


def test_forgotten_is_presumed_down() -> None:
    assert Connectivity("presumed_down") is Connectivity.PRESUMED_DOWN is Connectivity.FORGOTTEN
    with pytest.raises(ValueError, match="gone"):
        Connectivity("gone")
    assert S.FORGOTTEN_ACTIVE.connectivity is Connectivity.FORGOTTEN
    assert S.CONNECTED_DEACTIVATING.activity is Activity.DEACTIVATING
    with pytest.raises(ValueError, match="unregistered"):
        _ = S.UNREGISTERED.connectivity


def test_the_table_knows_no_way_from_disconnected_to_deactivating() -> None:
    with pytest.raises(IllegalTransition):
        SAC_CONSUMER_TABLE.check(
            S.DISCONNECTED_ACTIVE, ConsumerEvent.STEP_DOWN_ASKED, S.CONNECTED_DEACTIVATING
        )


def test_a_join_reads_neither_the_members_nor_the_other_groups_of_its_connection() -> None:
    """Otherwise the work of many consumers that join grows with the square of their number."""
    coordinator = SacCoordinator()
    read: list[str] = []

    class Connection(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            read.append(str(other))
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    for number in range(200):
        command = sac.RegisterConsumer(
            vhost="/",
            stream="s",
            consumer_name="g",
            partition_index=-1,
            connection=Connection(f"{number}@n"),
            subscription_id=0,
            owner="o",
        )
        outcome = coordinator.handle(command, 0)
        coordinator.apply_batch(outcome.records)
    assert len(read) < 200 * 10
