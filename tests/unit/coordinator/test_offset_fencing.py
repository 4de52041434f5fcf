"""Which member may commit and fetch, at which epoch (KIP-848, KIP-1251)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest, OffsetFetchRequest


@pytest.fixture
def moved(scene: Any) -> Any:
    """A went from epoch 2, where it had all of x, to epoch 3; B has 2 and 3 since epoch 3."""
    scene.join("A")
    scene.join("B")
    scene.settle("A", "B")
    assert (scene.holds("A")[0], scene.holds("B")[0]) == (3, 3)
    return scene


class TestCommit:
    def test_a_missing_group(self, scene: Any) -> None:
        assert scene.commit("A", 1) == ["GROUP_ID_NOT_FOUND"]
        assert scene.commit("A", 1, api_version=8) == ["ILLEGAL_GENERATION"]
        assert scene.commit("", -1) == ["NONE"]

    def test_an_empty_group_takes_a_commit_without_a_member(self, scene: Any) -> None:
        scene.join("A")
        assert scene.commit("", -1) == ["UNKNOWN_MEMBER_ID"]
        scene.beat("A", -1)
        assert scene.commit("", -1) == ["NONE"]
        assert scene.commit("A", 2) == ["UNKNOWN_MEMBER_ID"]

    def test_the_current_epoch_commits_for_any_partition(self, moved: Any) -> None:
        assert moved.commit("A", 3, ("x", 0), ("x", 3)) == ["NONE", "NONE"]

    def test_a_newer_epoch_is_refused(self, moved: Any) -> None:
        assert moved.commit("A", 4) == ["STALE_MEMBER_EPOCH"]

    def test_an_older_epoch_commits_for_what_was_assigned_by_then(self, moved: Any) -> None:
        assert moved.commit("A", 2, ("x", 0), ("x", 1)) == ["NONE", "NONE"]
        assert moved.commit("A", 1, ("x", 0)) == ["STALE_MEMBER_EPOCH"]
        assert moved.commit("B", 2, ("x", 2)) == ["STALE_MEMBER_EPOCH"]

    def test_one_partition_that_is_refused_refuses_all(self, moved: Any) -> None:
        before = moved.coordinator.hard_state()
        assert moved.commit("A", 2, ("x", 0), ("x", 3)) == ["STALE_MEMBER_EPOCH"] * 2
        assert moved.coordinator.hard_state() == before

    def test_what_is_being_revoked_can_still_be_committed(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.beat("A", 2)
        assert scene.commit("A", 2, ("x", 3)) == ["NONE"]
        scene.join("C")
        scene.join("D")
        scene.beat("A", 2, {"x": (0, 1)})
        assert scene.commit("A", 2, ("x", 0)) == ["NONE"]

    def test_an_old_version_cannot_carry_a_member_epoch(self, moved: Any) -> None:
        assert moved.commit("A", 3, api_version=8) == ["UNSUPPORTED_VERSION"]
        assert moved.commit("Z", 3, api_version=8) == ["UNKNOWN_MEMBER_ID"]

    def test_a_member_that_is_away_or_replaced(self, scene: Any) -> None:
        scene.join("A", instance_id="i")
        scene.beat("A", -2, instance_id="i")
        assert scene.commit("A", 2) == ["STALE_MEMBER_EPOCH"]
        scene.join("B", instance_id="i")
        assert scene.commit("A", 2) == ["UNKNOWN_MEMBER_ID"]
        assert scene.commit("B", 0) == ["NONE"]

    def test_a_commit_is_no_sign_of_life(self, moved: Any) -> None:
        moved.now_ms += 44_000
        moved.beat("B", 3)
        assert moved.commit("A", 3) == ["NONE"]
        assert len(moved.after(1_000)) == 1
        assert list(moved.group.members) == ["B"]


def fetched(scene: Any, member_id: str | None, epoch: int) -> tuple[str, dict[str, int]]:
    request = OffsetFetchRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, partitions=(TopicPartition("x", 0),)
    )
    reply = scene.process(request).reply
    return reply.error_code.name, {f"{t}-{p}": each.offset for (t, p), each in reply.offsets.items()}


class TestFetch:
    def test_nobody_in_particular(self, moved: Any) -> None:
        moved.commit("A", 3)
        assert fetched(moved, None, -1) == ("NONE", {"x-0": 7})

    def test_a_missing_group_has_no_offsets(self, scene: Any) -> None:
        assert fetched(scene, "A", 3) == ("NONE", {"x-0": -1})

    @pytest.mark.parametrize(
        ("member_id", "epoch", "code"),
        [
            ("A", 3, "NONE"),
            ("A", 2, "STALE_MEMBER_EPOCH"),
            ("A", 4, "STALE_MEMBER_EPOCH"),
            ("A", -1, "STALE_MEMBER_EPOCH"),
            ("Z", 3, "UNKNOWN_MEMBER_ID"),
            (None, 3, "UNKNOWN_MEMBER_ID"),
        ],
    )
    def test_a_member_at_its_epoch(self, moved: Any, member_id: str | None, epoch: int, code: str) -> None:
        assert fetched(moved, member_id, epoch)[0] == code


def test_offsets_of_subscribed_topics_are_not_deleted(moved: Any) -> None:
    moved.topics(x=4, y=1)
    moved.commit("A", 3, ("x", 0), ("y", 0))
    partitions = (TopicPartition("x", 0), TopicPartition("y", 0))
    reply = moved.process(OffsetDeleteRequest(group_id="g", partitions=partitions)).reply
    assert [code.name for code in reply.errors.values()] == ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE"]
    assert list(moved.coordinator.offsets.topics("g")) == ["x"]


def test_offsets_of_a_deleted_topic_go_with_it(moved: Any) -> None:
    moved.topics(x=4, y=1)
    moved.commit("A", 3, ("x", 0), ("y", 0))
    moved.topics(x=4)
    assert list(moved.coordinator.offsets.topics("g")) == ["x"]
