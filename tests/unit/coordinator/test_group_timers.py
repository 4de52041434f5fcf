"""Sessions, rebalance time-outs and the periodic sweep."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.outcome import MemberFenced
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from tests.hosting import steps_due


def fenced(outcomes: list[Any]) -> list[tuple[str, str]]:
    effects = [effect for outcome in outcomes for effect in outcome.effects]
    return [(e.member_id, e.reason) for e in effects if isinstance(e, MemberFenced)]


def deadline(scene: Any, kind: GroupTimerKind, member_id: str = "") -> int | None:
    key = GroupTimerKey(kind, "g" if member_id else "", member_id)
    found: int | None = scene.coordinator.soft.timers.deadline_of(key)
    return found


class TestSession:
    def test_a_silent_member_is_removed(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.settle("A", "B")
        scene.now_ms += 40_000
        scene.beat("B", 3)
        assert fenced(scene.after(5_000)) == [("A", "session")]
        assert list(scene.group.members) == ["B"]
        assert scene.epochs() == (4, 3)
        assert scene.error("A", 3) is E.UNKNOWN_MEMBER_ID

    def test_every_heartbeat_restarts_it(self, scene: Any) -> None:
        scene.join("A")
        for _ in range(20):
            scene.now_ms += 44_999
            assert steps_due(scene.runtime, scene.now_ms) == []
            scene.beat("A", 2)
        assert fenced(scene.after(44_999)) == []
        assert fenced(scene.after(1)) == [("A", "session")]

    def test_sessions_that_go_on_are_looked_at_together_and_end_to_the_moment(self, scene: Any) -> None:
        scene.join("A")
        scene.now_ms += 123
        scene.join("B")
        scene.settle("A", "B")
        scene.now_ms = 20_500
        scene.beat("A", 3)
        scene.now_ms = 20_900
        scene.beat("B", 3)
        first = scene.coordinator.next_deadline()
        assert steps_due(scene.runtime, 46_999) == []
        assert (first, scene.coordinator.next_deadline()) == (46_000, 65_000)
        assert steps_due(scene.runtime, 65_000) == []
        assert scene.coordinator.next_deadline() == 65_500
        assert fenced(steps_due(scene.runtime, 65_499)) == []
        assert fenced(steps_due(scene.runtime, 65_500)) == [("A", "session")]
        assert fenced(steps_due(scene.runtime, 65_900)) == [("B", "session")]

    def test_a_temporary_leave_does_not_touch_it(self, scene: Any) -> None:
        scene.join("A", instance_id="i")
        scene.now_ms += 44_000
        scene.beat("A", -2, instance_id="i")
        assert fenced(scene.after(1_000)) == [("A", "session")]
        assert scene.epochs() == (3, 2)

    def test_all_of_them_start_anew_after_a_load(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.now_ms += 44_000
        scene.reload()
        assert fenced(scene.after(44_999)) == []
        assert fenced(scene.after(1)) == [("A", "session"), ("B", "session")]

    def test_a_groups_own_length(self, scene: Any) -> None:
        scene.join("A")
        scene.coordinator.set_group_config("g", GroupConfig(consumer_session_timeout_ms=60_000))
        assert fenced(scene.after(59_999)) == []
        assert fenced(scene.after(1)) == [("A", "session")]

    def test_a_groups_own_heartbeat_interval_is_answered_at_once(self, scene: Any) -> None:
        scene.join("A")
        assert scene.beat("A", 2).heartbeat_interval_ms == 5_000
        scene.coordinator.set_group_config("g", GroupConfig(consumer_heartbeat_interval_ms=7_000))
        assert scene.beat("A", 2).heartbeat_interval_ms == 7_000
        scene.coordinator.set_group_config("g", None)
        assert scene.beat("A", 2).heartbeat_interval_ms == 5_000

    def test_the_same_member_id_in_two_groups(self, scene: Any) -> None:
        scene.join("A")
        scene.join("A", group_id="h")
        scene.now_ms += 30_000
        scene.beat("A", 2)
        assert fenced(scene.after(15_000)) == [("A", "session")]
        assert scene.coordinator.groups["h"].state == "Empty"
        assert scene.group.state == "Stable"


class TestRebalance:
    def test_a_member_that_does_not_confirm_is_removed(self, scene: Any) -> None:
        scene.join("A", rebalance_timeout_ms=10_000)
        scene.join("B")
        scene.beat("A", 2)
        assert deadline(scene, GroupTimerKind.REBALANCE, "A") == scene.now_ms + 10_000
        for _ in range(2):
            assert fenced(scene.after(4_000)) == []
            scene.beat("A", 2)
        assert fenced(scene.after(2_000)) == [("A", "rebalance")]
        assert scene.beat("B", 3).assignment == {"id-of-x": (0, 1, 2, 3)}

    def test_it_starts_anew_after_a_load(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.beat("A", 2)
        scene.now_ms += 30_000
        scene.reload()
        assert deadline(scene, GroupTimerKind.REBALANCE, "A") == scene.now_ms + 60_000

    def test_a_member_that_is_away_is_not_held_to_it(self, scene: Any) -> None:
        scene.join("A", instance_id="i", rebalance_timeout_ms=10_000)
        scene.join("B")
        scene.beat("A", 2)
        scene.beat("A", -2, instance_id="i")
        assert deadline(scene, GroupTimerKind.REBALANCE, "A") is None
        assert fenced(scene.after(20_000)) == []


def test_nothing_is_left_of_members_that_went(scene: Any) -> None:
    scene.join("A")
    scene.join("B", instance_id="i")
    scene.beat("A", 2)
    scene.beat("A", -1)
    scene.beat("B", -2, instance_id="i")
    scene.join("C", instance_id="i")
    soft = scene.coordinator.soft
    assert list(soft.groups["g"].contacts) == ["C"]
    assert set(soft.timers) == {GroupTimerKey(GroupTimerKind.SESSION, "g", "C")}
    scene.beat("C", -1)
    scene.after(600_000)
    assert not scene.coordinator.groups
    assert not soft.groups
    scene.after(600_000)
    assert scene.coordinator.next_deadline() is None


class TestSweep:
    def test_an_empty_group_without_offsets_goes(self, scene: Any) -> None:
        scene.join("A")
        scene.beat("A", -1)
        scene.after(599_999)
        assert "g" in scene.coordinator.groups
        outcome = scene.after(1)[0]
        assert [scene.short(record) for record in outcome.records] == ["-6", "-3"]
        assert not scene.coordinator.groups

    def test_offsets_keep_it_until_they_expire(self, scenes: Any) -> None:
        scene = scenes(offsets_retention_minutes=15)
        scene.topics(x=4)
        scene.join("A")
        assert scene.commit("A", 2) == ["NONE"]
        scene.beat("A", -1)
        scene.after(600_000)
        assert "g" in scene.coordinator.groups
        scene.after(600_000)
        assert not scene.coordinator.groups
        assert "g" not in scene.coordinator.offsets

    def test_a_subscribed_topic_keeps_its_offsets(self, scenes: Any) -> None:
        scene = scenes(offsets_retention_minutes=1)
        scene.topics(x=4, y=1)
        scene.join("A")
        assert scene.commit("A", 2, ("x", 0), ("y", 0)) == ["NONE", "NONE"]
        for _ in range(20):
            scene.now_ms += 30_000
            scene.beat("A", 2)
        scene.after(1)
        assert list(scene.coordinator.offsets.topics("g")) == ["x"]

    def test_an_idle_coordinator_has_no_deadline(self, scene: Any) -> None:
        assert scene.coordinator.next_deadline() is None
