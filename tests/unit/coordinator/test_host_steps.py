"""Append, apply, reply: what a failing journal leaves behind, and answers that are given again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.machine import IllegalTransition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import TopicsChanged
from tests.hosting import steps_due


class Failing:
    """A journal whose log fails with a given error."""

    def __init__(self, code: E) -> None:
        self.code = code

    def append(self, records: tuple[Any, ...]) -> None:
        raise AppendFailed(self.code, "no")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_append_is_told_and_changes_nothing(scene: Any, code: E, told: E) -> None:
    scene.join("A")
    scene.commit("A", 2)
    before = scene.coordinator.hard_state()
    deadlines = {key: scene.coordinator.soft.timers.deadline_of(key) for key in scene.coordinator.soft.timers}
    scene.runtime = CoordinatorHost(scene.coordinator, Failing(code))
    assert scene.join("B").error_code is told
    assert scene.beat("A", -1).error_code is told
    assert scene.commit("A", 2) == [told.name]
    for request in (
        LeaveGroupRequest(group_id="g", member_id="A"),
        LeaveGroupBatchRequest(group_id="g", members=(LeaveGroupRequest(group_id="g", member_id="A"),)),
        OffsetDeleteRequest(group_id="g", partitions=(TopicPartition("x", 0),)),
    ):
        assert scene.process(request).reply.error_code in (told, E.NONE)
    assert scene.coordinator.hard_state() == before
    timers = scene.coordinator.soft.timers
    assert {key: timers.deadline_of(key) for key in timers} == deadlines


class _Nowhere:
    """A table without arrows."""

    name = "nowhere"

    def allows(self, state: str, target: str) -> bool:
        return False


def test_a_move_along_no_arrow_is_told(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.coordinator.consumer.groups.ConsumerGroups.group_table", _Nowhere())
    with pytest.raises(IllegalTransition, match="nowhere: g moved from Empty to Stable"):
        scene.join("A")
    scene.beat("A", 1)  # which moves nothing
    with pytest.raises(IllegalTransition, match="nowhere: g moved from Stable to Empty"):
        scene.beat("A", -1)


def test_a_failed_deletion_is_told(scene: Any) -> None:
    scene.join("A")
    scene.beat("A", -1)
    scene.runtime = CoordinatorHost(scene.coordinator, Failing(E.NOT_LEADER_OR_FOLLOWER))
    reply = scene.process(DeleteGroupsRequest(group_id="g")).reply
    assert reply.error_code is E.NOT_COORDINATOR
    assert "g" in scene.coordinator.groups


def test_a_timer_that_could_not_write_runs_again_after_half_a_second(scene: Any) -> None:
    scene.join("A")
    runtime = scene.runtime
    scene.runtime = CoordinatorHost(scene.coordinator, Failing(E.NOT_LEADER_OR_FOLLOWER))
    assert scene.after(45_000) == []
    assert "A" in scene.group.members
    scene.runtime = runtime
    assert scene.after(499) == []
    assert len(scene.after(1)) == 1
    assert "A" not in scene.group.members


def test_so_does_the_one_of_a_member_that_does_not_let_go(scene: Any) -> None:
    scene.join("A", rebalance_timeout_ms=10_000)
    scene.join("B")
    scene.beat("A", 2)
    runtime = scene.runtime
    scene.runtime = CoordinatorHost(scene.coordinator, Failing(E.NOT_LEADER_OR_FOLLOWER))
    assert scene.after(10_000) == []
    scene.runtime = runtime
    assert scene.after(499) == []
    assert len(scene.after(1)) == 1
    assert list(scene.group.members) == ["B"]


def test_a_heartbeat_meanwhile_saves_the_member(scene: Any) -> None:
    scene.join("A")
    runtime = scene.runtime
    scene.runtime = CoordinatorHost(scene.coordinator, Failing(E.NOT_LEADER_OR_FOLLOWER))
    scene.after(45_000)
    scene.runtime = runtime
    scene.beat("A", 2)
    assert scene.after(500) == []
    assert "A" in scene.group.members


class TestRepeatedAnswers:
    """A steady heartbeat is answered from memory; nothing may be remembered for too long."""

    def request(self, epoch: int = 2, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=epoch, **fields)

    def test_the_same_answer_is_given_again(self, scene: Any) -> None:
        scene.join("A")
        first = scene.process(self.request())
        assert scene.process(self.request()) is first

    def test_another_request_is_looked_at(self, scene: Any) -> None:
        scene.join("A")
        scene.process(self.request())
        assert scene.process(self.request(1)).reply.error_code is E.FENCED_MEMBER_EPOCH
        assert scene.process(self.request(client_id="c")).records

    def test_an_error_is_not_remembered(self, scene: Any) -> None:
        scene.join("A")
        assert scene.process(self.request(3)).reply.error_code is E.FENCED_MEMBER_EPOCH
        scene.join("B")
        scene.settle("A", "B")
        assert scene.process(self.request(3)).reply.error_code is E.NONE

    def test_anything_that_happens_to_the_group_ends_it(self, scene: Any) -> None:
        scene.join("A")
        scene.process(self.request())
        scene.join("B")
        assert scene.process(self.request()).reply.assignment == {"id-of-x": (0, 1)}

    def test_a_change_of_topics_ends_it(self, scene: Any) -> None:
        scene.join("A")
        scene.process(self.request())
        scene.topics(x=5)
        assert scene.process(self.request()).records

    def test_a_target_that_has_to_wait_is_computed_when_its_time_has_come(self, scenes: Any) -> None:
        scene = scenes(group_consumer_assignment_interval_ms=1_000)
        scene.topics(x=4)
        scene.join("A")
        scene.join("B")
        scene.process(self.request())
        scene.now_ms += 1_000
        assert scene.process(self.request()).reply.assignment == {"id-of-x": (0, 1)}

    def test_after_another_epoch_alone_the_next_answer_is_known(self, scene: Any) -> None:
        scene.topics(x=4, y=1)
        scene.join("A")
        scene.join("B", topics=("y",))
        moved = scene.process(self.request(2))
        assert (len(moved.records), moved.reply.member_epoch, moved.reply.assignment) == (1, 3, None)
        other = GroupCoordinator(scene.config)
        other.replay(scene.journal, scene.now_ms)
        other.handle(TopicsChanged(image=scene.image), scene.now_ms)
        known = scene.process(self.request(3))
        assert known.reply is moved.reply, "nobody looked"
        assert known == other.handle(self.request(3), scene.now_ms)
        scene.join("C", topics=("y",))
        assert scene.process(self.request(3)).records

    def test_after_an_acknowledgement_that_moves_an_epoch_a_keepalive_is_expected(self, scene: Any) -> None:
        scene.topics(x=4, y=1)
        scene.join("A")
        scene.join("B", topics=("y",))
        owned = {"id-of-x": (0, 1, 2, 3)}
        moved = scene.process(self.request(2, topic_partitions=owned))
        assert (len(moved.records), moved.reply.member_epoch, moved.reply.assignment) == (1, 3, None)
        assert scene.process(self.request(3)).reply is moved.reply, "nobody looked"
        assert scene.process(self.request(3, topic_partitions=owned)).reply == moved.reply

    def test_what_an_answer_tells_of_an_assignment_is_told_once(self, scene: Any) -> None:
        scene.topics(x=6)
        for member_id in "ABC":
            scene.join(member_id)
        scene.settle(*"ABCABC")
        scene.beat("C", -1)
        scene.beat("B", 4)
        told = scene.process(self.request(4))
        assert (len(told.records), told.reply.assignment) == (1, {"id-of-x": (0, 1, 2)})
        assert scene.process(self.request(5)).reply.assignment is None

    def test_a_member_that_waits_at_another_epoch_is_looked_at(self, scene: Any) -> None:
        scene.topics(x=4, y=1)
        scene.join("A", topics=("x", "y"))
        scene.join("B")
        assert scene.holds("B")[1] == "UNRELEASED_PARTITIONS"
        scene.join("C", topics=("y",))
        moved = scene.process(msgspec.structs.replace(self.request(3), member_id="B"))
        assert (len(moved.records), moved.reply.member_epoch, moved.reply.assignment) == (1, 4, None)
        scene.settle("A")
        found = scene.process(msgspec.structs.replace(self.request(4), member_id="B"))
        assert found.reply.assignment == {"id-of-x": (2, 3)}

    def test_an_epoch_that_was_not_written_is_not_known(self, scene: Any) -> None:
        scene.topics(x=4, y=1)
        scene.join("A")
        scene.join("B", topics=("y",))
        runtime = scene.runtime
        scene.runtime = CoordinatorHost(scene.coordinator, Failing(E.NOT_LEADER_OR_FOLLOWER))
        assert scene.process(self.request(2)).reply.error_code is E.NOT_COORDINATOR
        assert scene.coordinator.soft.groups["g"].contacts["A"].awaited_epoch is None
        scene.runtime = runtime
        assert scene.process(self.request(3)).reply.error_code is E.FENCED_MEMBER_EPOCH
        assert scene.process(self.request(2)).reply.member_epoch == 3

    def test_it_keeps_the_session_alive(self, scene: Any) -> None:
        scene.join("A")
        for _ in range(10):
            scene.now_ms += 40_000
            steps_due(scene.runtime, scene.now_ms)
            scene.process(self.request())
        assert "A" in scene.group.members

    def test_the_metadata_is_looked_at_again_after_25_days(self, scene: Any) -> None:
        scene.join("A")
        scene.process(self.request())
        soft = scene.coordinator.soft.groups["g"]
        deadline = soft.refresh_deadline_ms
        scene.now_ms = deadline
        scene.process(self.request())
        assert soft.refresh_deadline_ms > deadline


def test_two_coordinators_of_one_journal_answer_alike(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    other = GroupCoordinator(scene.config)
    other.replay(scene.journal, scene.now_ms)
    other.handle(TopicsChanged(image=scene.image), scene.now_ms)
    for member_id, epoch in (("A", 2), ("B", 3), ("B", 1)):
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch)
        assert other.handle(request, scene.now_ms) == scene.coordinator.handle(request, scene.now_ms)
