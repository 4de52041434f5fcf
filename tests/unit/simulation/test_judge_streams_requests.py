"""What is judged of the requests of threads, by histories made by hand, and that a world judges its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, TopicPartition
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.streams.application.worker import Worker
from fencepost.member.streams.heartbeats import StreamsHeartbeats
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.streams.thread_requests import ThreadRequests
from tests.unit.simulation.ends import All

THREAD = "client-1-StreamThread-1"
EPOCH = 3
ORDERS = "0"


class Scene:
    """A thread's member, and the judge that is told what it sends."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.judge = ThreadRequests()
        self.driver = SimpleNamespace(assignment=(), is_calling_back=True)
        world: Any = SimpleNamespace(
            scenario=SimpleNamespace(topics=[SimpleNamespace(name="orders")]),
            members={THREAD: SimpleNamespace(driver=self.driver)},
        )
        self.judge.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.judge.on_member_host(THREAD, "start", 0)

    def moves(self, target: S) -> None:
        """The member's machine moves."""
        self.judge.on_member_state(THREAD, "", "", target, 0)

    def beats(self, epoch: int, assignment: dict[str, tuple[int, ...]] | None = None) -> None:
        """A heartbeat, which is answered if it is no leave."""
        full: Any = {}
        if epoch == 0:
            full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("orders",)}
            full["topic_partitions"] = {}
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **full)
        self.judge.on_member_request(THREAD, request, 0)
        if epoch >= 0:
            response = ConsumerGroupHeartbeatResponse(
                member_id="m", member_epoch=EPOCH, heartbeat_interval_ms=0, assignment=assignment
            )
            self.judge.on_member_response(THREAD, request, response, 0)

    def lists(self, numbers: tuple[int, ...] | None, epoch: int = EPOCH) -> None:
        """What is sent to the coordinator lists these active tasks."""
        tasks = None if numbers is None else {ORDERS: numbers} if numbers else {}
        self.judge.on_tasks(
            THREAD,
            StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, active_tasks=tasks),
        )


@pytest.fixture
def scene() -> Scene:
    """A member that has joined and got one task."""
    made = Scene()
    made.moves(S.JOINING)
    made.beats(0, {ORDERS: (1,)})
    made.moves(S.RECONCILING)
    for phase in ("begin", "end"):
        made.judge.on_callback(THREAD, "assigned", phase, (TopicPartition("orders", 1),), 0)
    made.moves(S.ACKNOWLEDGING)
    assert made.found == []
    return made


def test_a_list_of_the_tasks_that_callbacks_gave_is_in_order(scene: Scene) -> None:
    scene.lists((1,))
    scene.lists(None)
    scene.lists((), epoch=0)
    assert scene.found == []


@pytest.mark.parametrize("numbers", [(), (2,), (1, 2)])
def test_a_list_of_other_tasks_is_seen(scene: Scene, numbers: tuple[int, ...]) -> None:
    scene.lists(numbers)
    assert set(scene.found) == {"owned-honest"}


def test_a_leave_of_a_member_that_has_joined_again_is_seen(scene: Scene) -> None:
    scene.moves(S.FENCED)
    scene.judge.on_callback(THREAD, "lost", "end", (TopicPartition("orders", 1),), 0)
    scene.moves(S.UNSUBSCRIBED)
    scene.beats(LEAVE_EPOCH)
    assert scene.found == []
    scene.moves(S.JOINING)
    scene.beats(LEAVE_EPOCH)
    assert scene.found == ["one-in-flight"]


def confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats that confirm a release list no task."""
    request = StreamsHeartbeats.request

    def changed(self: StreamsHeartbeats, beat: ConsumerGroupHeartbeatRequest) -> Any:
        if beat.topic_partitions is None and self._confirms:
            self._owned = {}
        return request(self, beat)

    monkeypatch.setattr(StreamsHeartbeats, "request", changed)


def leaves_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join does not cancel a leave that has to be sent again."""
    join = ConsumerMember._join

    def changed(self: ConsumerMember, *arguments: Any) -> None:
        kept = self.leave.pending, self.leave.in_flight
        join(self, *arguments)
        self.leave.pending, self.leave.in_flight = kept

    monkeypatch.setattr(ConsumerMember, "_join", changed)


def never_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads process, and commit nothing."""

    async def nothing(_: Worker) -> None:
        return None

    monkeypatch.setattr(Worker, "_commit", nothing)


@pytest.mark.parametrize(
    ("bug", "scenario", "invariants"),
    [
        (confirms_nothing, "streams-standby-tasks", {"owned-honest"}),
        (leaves_late, "streams-failures", {"one-in-flight"}),
        (never_commits, "streams-failures", {"commits-go-on", "commit-before-release"}),
        (never_commits, "streams-classic", {"commits-go-on", "commit-before-release"}),
    ],
)
def test_a_world_judges_its_threads(
    bug: Any, scenario: str, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    result = run(load_any(scenario), 1, raises=False, until=All(invariants))
    assert invariants <= {each.invariant for each in result.violations}
