"""Static members that leave for a while and come back (KIP-345, KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode as E


def test_while_it_is_away_its_partitions_are_reserved(scene: Any) -> None:
    scene.join("A", instance_id="i")
    reply = scene.beat("A", -2, instance_id="i")
    assert (reply.member_id, reply.member_epoch, reply.assignment) == ("A", -2, None)
    assert scene.written() == ["8:A"]
    assert scene.holds("A") == (-2, "STABLE", {"x": (0, 1, 2, 3)}, {})
    assert scene.member("A").previous_member_epoch == 0
    assert scene.member("A").assignment_epochs == {"id-of-x": dict.fromkeys(range(4), 0)}
    assert scene.group.partition_epochs.as_dict() == {"id-of-x": dict.fromkeys(range(4), -2)}
    assert scene.group.state == "Reconciling"
    assert scene.epochs() == (2, 2)
    assert scene.join("B").assignment == {}
    assert scene.error("A", 2, instance_id="i") is E.FENCED_MEMBER_EPOCH


def test_what_it_had_to_revoke_is_free_at_once(scene: Any) -> None:
    scene.join("A", instance_id="i")
    scene.join("B")
    scene.beat("A", 2)
    scene.beat("A", -2, instance_id="i")
    assert scene.holds("A") == (-2, "UNREVOKED_PARTITIONS", {"x": (0, 1)}, {})
    assert scene.beat("B", 3).assignment == {"id-of-x": (2, 3)}
    reply = scene.join("C", instance_id="i")
    assert (reply.member_epoch, reply.assignment) == (3, {"id-of-x": (0, 1)})
    assert scene.group.state == "Stable"


@pytest.mark.parametrize("member_id", ["A", "B"])
def test_it_comes_back_with_all_it_had(scene: Any, member_id: str) -> None:
    scene.join("A", instance_id="i")
    scene.beat("A", -2, instance_id="i")
    reply = scene.join(member_id, instance_id="i")
    assert (reply.member_epoch, reply.assignment) == (2, {"id-of-x": (0, 1, 2, 3)})
    assert scene.epochs() == (2, 2)
    assert dict(scene.group.static_members) == {"i": member_id}
    assert list(scene.group.members) == [member_id]
    assert scene.written() == [
        "-8:A",
        "-7:A",
        "-5:A",
        f"5:{member_id}",
        f"7:{member_id}",
        f"8:{member_id}",
        f"8:{member_id}",
    ]
    assert scene.group.state == "Stable"


def test_it_comes_back_with_another_subscription(scene: Any) -> None:
    scene.topics(x=4, y=2)
    scene.join("A", instance_id="i")
    scene.beat("A", -2, instance_id="i")
    reply = scene.join("B", ("y",), instance_id="i")
    assert scene.epochs() == (3, 3)
    assert scene.target("B") == {"y": (0, 1)}
    # It owns nothing when it joins, so nothing has to be revoked first.
    assert (reply.member_epoch, reply.assignment) == (3, {"id-of-y": (0, 1)})


def test_its_target_moves_along_while_a_new_one_has_to_wait(scenes: Any) -> None:
    scene = scenes(group_consumer_assignment_interval_ms=1_000)
    scene.topics(x=4)
    scene.join("A", instance_id="i")
    scene.join("B")
    scene.beat("A", -2, instance_id="i")
    reply = scene.join("C", instance_id="i")
    assert (reply.member_epoch, reply.assignment) == (2, {"id-of-x": (0, 1, 2, 3)})
    assert scene.target("C") == {"x": (0, 1, 2, 3)}
    assert scene.epochs() == (3, 2)


def test_it_may_leave_twice(scene: Any) -> None:
    scene.join("A", instance_id="i")
    scene.beat("A", -2, instance_id="i")
    assert scene.beat("A", -2, instance_id="i").member_epoch == -2
    assert scene.join("B", instance_id="i").member_epoch == 2


def test_a_member_that_changes_its_instance_id_frees_the_old_one(scene: Any) -> None:
    scene.join("A", instance_id="i")
    assert scene.join("A", instance_id="j").member_epoch == 2
    assert dict(scene.group.static_members) == {"j": "A"}
    assert scene.holds("A")[2] == {"x": (0, 1, 2, 3)}
    assert scene.join("B", instance_id="i").member_epoch == 3
