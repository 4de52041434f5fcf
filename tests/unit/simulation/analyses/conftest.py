"""Traces whose answers are known, told event by event, and all tables over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Story:
    """The trace of one run, told event by event; times are in seconds."""

    def __init__(self, run_id: str, scenario: str, members: str = "") -> None:
        self.run_id = run_id
        self.rows: list[Row] = []
        self.add(0, "run.start", detail=f"{scenario} 1 {members}".rstrip())
        self.add(0, "topic", "orders", detail="created 2")

    def add(
        self,
        t: float,
        kind: str,
        actor: str = "",
        parts: tuple[int, ...] = (),
        *,
        member_epoch: int = -1,
        group_epoch: int = -1,
        **columns: str,
    ) -> None:
        blank = {"state_from": "", "state_to": "", "error": "", "detail": ""}
        self.rows.append(
            Row(
                seq=len(self.rows) + 1,
                t_us=round(t * 1e6),
                world="simulated",
                group="g",
                actor=actor,
                kind=kind,
                member_epoch=member_epoch,
                group_epoch=group_epoch,
                partitions=tuple(TopicPartition("orders", part) for part in parts),
                **{**blank, **columns},
            )
        )

    def given(self, t: float, actor: str, *parts: int) -> None:
        self.add(t, "callback.end", actor, parts, detail="assigned")

    def taken(self, t: float, actor: str, *parts: int, how: str = "revoked") -> None:
        self.add(t, "callback.begin", actor, parts, detail=how)
        self.add(t, "callback.end", actor, parts, detail=how)

    def epoch(self, t: float, cause: str, state: str = "Reconciling") -> None:
        self.add(t, "group.epoch", "b", state_to=state, detail=cause)

    def state(self, t: float, state: str) -> None:
        self.add(t, "group.state", "b", state_to=state)

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with ParquetTrace(folder / f"{self.run_id}.parquet", self.run_id) as trace:
            trace.write(self.rows)


def healthy() -> Story:
    """A group forms; two rebalances of 5 and 2 seconds, one over at once, and one that the trace cuts off."""
    story = Story("a", "alpha")
    story.add(1, "member.state", "m1", state_to="JOINING")
    story.epoch(1, "join", "Assigning")
    story.state(1, "Assigning")
    story.add(1.5, "heartbeat", "m1", detail="keepalive")
    story.given(2.5, "m1", 0, 1)
    story.add(2.5, "member.state", "m1", state_to="STABLE")
    story.state(3, "Stable")
    story.add(5, "heartbeat", "m1", detail="keepalive")
    story.epoch(10, "join")
    story.state(10, "Reconciling")
    story.taken(11, "m1", 1)
    story.add(12, "heartbeat", "m1", detail="ack")
    story.add(12, "heartbeat", "m2", detail="keepalive")
    story.given(13, "m2", 1)
    story.epoch(14, "full")
    story.state(15, "Stable")
    story.add(20, "host", "m2", detail="crash")
    story.add(30, "member.removed", "m2", detail="session")
    story.epoch(30, "timeout")
    story.state(30, "Reconciling")
    story.given(32, "m1", 1)
    story.state(32, "Stable")
    story.add(33, "member.removed", "old-id-of-m1", detail="session")
    story.add(33, "commit", "m1", (1,), error="STALE_MEMBER_EPOCH")
    story.add(34, "commit", "m1", (1,))
    story.add(35, "heartbeat", "m1", error="FENCED_MEMBER_EPOCH", detail="keepalive")
    story.epoch(40, "full", "Stable")
    story.epoch(50, "join")
    story.state(50, "Reconciling")
    story.add(60, "run.end")
    return story


def broken() -> Story:
    """A partition with two owners for two seconds, then fenced away; a topic that grows."""
    story = Story("b", "beta")
    story.given(1, "m1", 0)
    story.given(3, "m2", 0)
    story.add(3, "violation", error="one owner", detail="orders-0 has two")
    story.taken(5, "m1", 0)
    story.add(8, "member.removed", "m2", detail="session")
    story.given(9, "m3", 0)
    story.add(10, "topic", "orders", detail="grown 3")
    story.given(14, "m3", 2)
    story.add(20, "run.end")
    return story


def forming() -> Story:
    """Two members start, and are STABLE at the epoch of the group at 9 s. A third one comes later, twice."""
    story = Story("c", "gamma", members="2")

    def stable(t: float, actor: str, epoch: int) -> None:
        story.add(t, "heartbeat", actor, member_epoch=epoch)
        story.add(t, "member.state", actor, state_to="STABLE")
        story.state(t, "Stable")

    story.add(1, "host", "m1", detail="start")
    story.add(1, "group.epoch", "b", detail="join", group_epoch=1)
    stable(2, "m1", 1)
    story.add(3, "host", "m2", detail="start")
    story.add(3, "group.epoch", "b", detail="join", group_epoch=2)
    stable(4, "m2", 2)
    story.add(5, "host", "m1", detail="crash")
    story.add(6, "heartbeat", "m2", member_epoch=2)
    story.add(7, "host", "m1", detail="start")
    stable(8, "m1", 1)
    story.add(9, "heartbeat", "m1", member_epoch=2)
    story.add(10, "group.epoch", "b", detail="join", group_epoch=3)
    story.state(11, "Stable")
    for begin in (12, 25):
        story.add(begin, "host", "m3", detail="start")
        story.add(begin + 1, "member.state", "m3", state_from="UNSUBSCRIBED", state_to="JOINING")
        story.add(begin + 3, "member.state", "m3", state_from="JOINING", state_to="UNSUBSCRIBED")
        story.add(begin + 3, "host", "m3", detail="stopped")
    story.add(30, "run.end")
    return story


def taking_turns() -> Story:
    """Single active consumers of one stream: a step-down of 1 s, a crash of 3 s, and two at once for 2 s."""
    story = Story("d", "delta")

    def moves(t: float, host: str, before: str, after: str) -> None:
        story.add(t, "member.state", f"{host}/orders", (0,), state_from=before, state_to=after)

    def counts(t: float, host: str, state: str, connection: str) -> None:
        story.add(t, "sac.consumer", f"{host}/orders", (0,), state_to=state, detail=f"Command {connection}")

    counts(1, "c1", "CONNECTED_ACTIVE", "k1@n1")
    moves(1, "c1", "ACTIVATING", "ACTIVE")
    counts(5, "c1", "CONNECTED_DEACTIVATING", "k1@n1")
    moves(5, "c1", "ACTIVE", "STEPPING_DOWN")
    moves(6, "c1", "STEPPING_DOWN", "WAITING")
    counts(6, "c1", "CONNECTED_WAITING", "k1@n1")
    counts(7, "c2", "CONNECTED_ACTIVE", "k2@n1")
    moves(7, "c2", "ACTIVATING", "ACTIVE")
    story.add(10, "host", "c2", detail="crash")
    counts(10, "c2", "DISCONNECTED_ACTIVE", "k2@n1")
    counts(12, "c2", "FORGOTTEN_ACTIVE", "k2@n1")
    counts(13, "c3", "CONNECTED_ACTIVE", "k3@n1")
    moves(13, "c3", "ACTIVATING", "ACTIVE")
    moves(20, "c1", "ACTIVATING", "ACTIVE")
    moves(22, "c3", "ACTIVE", "LOST")
    story.add(22, "callback.begin", "c3/orders", (0,), detail="lost")
    counts(22, "c3", "UNREGISTERED", "k3@n1")
    story.add(30, "run.end")
    return story


def handing_over() -> Story:
    """A partition moves, two change places for nothing, and a fenced member goes on for a while."""
    story = Story("e", "epsilon")

    def holds(t: float, member: str, *parts: int, state: str = "STABLE") -> None:
        story.add(t, "assignment", f"m{member}", parts, state_to=state, detail=f"id-{member}")

    story.epoch(1, "join")
    story.state(1, "Reconciling")
    holds(1, "1", 0, 1)
    story.given(2, "m1", 0, 1)
    story.state(3, "Stable")
    story.add(4, "records", "m1", (0,), detail="0..4 of 4")
    story.add(5, "records", "m1", (1,), detail="0..7 of 8")
    story.epoch(10, "join")
    story.state(10, "Reconciling")
    holds(10, "1", 0, 1, state="UNREVOKED_PARTITIONS")
    story.add(10.5, "heartbeat", "m1", detail="full 100+50")
    story.taken(11, "m1", 1)
    story.add(11.5, "heartbeat", "m1", detail="keepalive")
    holds(12, "1", 0)
    holds(12, "2", 1)
    story.given(13, "m2", 1)
    story.state(13, "Stable")
    story.add(14, "records", "m2", (1,), detail="5..9 of 20")
    story.add(16, "records", "m2", (1,), detail="9..20 of 21")
    story.epoch(20, "full")
    story.state(20, "Reconciling")
    story.taken(20, "m1", 0)
    story.taken(20, "m2", 1)
    holds(21, "1", 1)
    holds(21, "2", 0)
    story.given(21, "m1", 1)
    story.given(21, "m2", 0)
    story.state(22, "Stable")
    story.epoch(25, "timeout")
    story.state(25, "Reconciling")
    story.add(25, "member.removed", "m2", detail="session")
    holds(25, "2", state="")
    holds(26, "1", 0, 1)
    story.given(27, "m1", 0)
    story.state(27, "Stable")
    story.add(28, "host", "m2", detail="crash")
    story.add(30, "member.state", "m2", state_to="STABLE")
    story.add(40, "run.end")
    return story


def shutting_down() -> Story:
    """A client goes down by itself; then the application does, but for one that does not hear."""
    story = Story("f", "zeta")

    def moves(t: float, client: str, before: str, after: str) -> None:
        story.add(t, "client.state", client, state_from=before, state_to=after)

    for client in ("c1", "c2", "c3", "c4"):
        moves(1, client, "CREATED", "REBALANCING")
    story.add(5, "thread.failed", "c1-StreamThread-1", detail="SHUTDOWN_CLIENT poll")
    moves(6, "c1", "PENDING_ERROR", "ERROR")
    moves(8, "c1", "CREATED", "REBALANCING")
    story.add(10, "thread.failed", "c2-StreamThread-2", detail="SHUTDOWN_APPLICATION processing")
    moves(11, "c2", "PENDING_ERROR", "ERROR")
    story.add(12, "host", "c3", detail="crash")
    moves(14, "c1", "PENDING_ERROR", "ERROR")
    moves(15, "c3", "CREATED", "REBALANCING")
    moves(17, "c3", "PENDING_ERROR", "ERROR")
    story.add(30, "run.end")
    return story


def going_over(run_id: str) -> Story:
    """A partition whose owner joins, reads and is to give it away."""
    story = Story(run_id, "three")
    story.epoch(1, "join")
    story.given(1, "m1", 0)
    story.state(2, "Stable")
    story.add(3, "records", "m1", (0,), detail="0..5 of 5")
    story.epoch(9, "join")
    return story


def crashed() -> Story:
    """The first of three runs of one scenario: the owner is gone for six seconds."""
    story = going_over("crashed")
    story.add(10, "host", "m1", detail="crash")
    story.given(16, "m2", 0)
    story.add(17, "records", "m2", (0,), detail="2..5 of 5")
    return story


def revoked() -> Story:
    """The second: three seconds are between the owners."""
    story = going_over("revoked")
    story.taken(10, "m1", 0)
    story.given(13, "m2", 0)
    story.state(13, "Stable")
    story.add(17, "records", "m2", (0,), detail="4..5 of 5")
    return story


def quiet() -> Story:
    """The third: nothing happens."""
    return Story("quiet", "three")


def over_at_once() -> Story:
    """All of it at one moment, as in a trace that was cut off: nothing lasted."""
    story = Story("at-once", "eta")
    story.add(0, "member.state", "m1", state_to="JOINING")
    story.given(0, "m1", 0)
    return story


STORIES = (
    *(healthy, broken, forming, taking_turns, handing_over, shutting_down),
    *(crashed, revoked, quiet, over_at_once),
)


@pytest.fixture
def begun() -> Callable[[str, str], Story]:
    """Begins a story of its own."""
    return Story


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of their traces: a.parquet to f.parquet, and those of one scenario."""
    folder = tmp_path_factory.mktemp("stories")
    for told in STORIES:
        told().write(folder)
    return folder


@pytest.fixture(scope="session")
def tables(spark: SparkSession, stories: Path) -> Tables:
    """With the page of the report beside the traces."""
    return analyze(stories, report=stories / "report.html")
