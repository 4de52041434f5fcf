"""A revocation from beginning to end, request by request, as a broker and its members go through it."""

from __future__ import annotations

from typing import Any


def test_one_revocation_step_by_step(scene: Any) -> None:
    x = "id-of-x"
    reply = scene.join("A")
    assert (reply.member_epoch, reply.assignment) == (2, {x: (0, 1, 2, 3)})
    assert scene.epochs() == (2, 2)
    assert scene.group.state == "Stable"

    reply = scene.join("B")
    assert (reply.member_epoch, reply.assignment) == (3, {})
    assert scene.epochs() == (3, 3)
    assert scene.group.state == "Reconciling"
    assert (scene.target("A"), scene.target("B")) == ({"x": (0, 1)}, {"x": (2, 3)})
    assert scene.holds("B") == (3, "UNRELEASED_PARTITIONS", {}, {})

    reply = scene.beat("A", 2)
    assert (reply.member_epoch, reply.assignment) == (2, {x: (0, 1)})
    assert scene.holds("A") == (2, "UNREVOKED_PARTITIONS", {"x": (0, 1)}, {"x": (2, 3)})

    member = scene.member("A")
    reply = scene.beat("A", 2)
    assert (reply.member_epoch, reply.assignment) == (2, None)
    assert scene.member("A") is member

    reply = scene.beat("A", 2, {"x": (0, 1)})
    assert (reply.member_epoch, reply.assignment) == (3, None)
    assert scene.holds("A") == (3, "STABLE", {"x": (0, 1)}, {})

    reply = scene.beat("B", 3)
    assert (reply.member_epoch, reply.assignment) == (3, {x: (2, 3)})
    assert scene.holds("B") == (3, "STABLE", {"x": (2, 3)}, {})
    assert scene.group.state == "Stable"

    reply = scene.beat("B", 3, {"x": (2, 3)})
    assert (reply.member_epoch, reply.assignment) == (3, None)
    assert not scene.last.records


def test_within_the_assignment_interval_a_joiner_gets_the_old_epoch_and_nothing(scenes: Any) -> None:
    scene = scenes(group_consumer_assignment_interval_ms=1_000)
    scene.topics(x=4)
    scene.join("A")
    scene.now_ms += 999
    reply = scene.join("B")
    assert (reply.member_epoch, reply.assignment) == (2, {})
    assert scene.epochs() == (3, 2)
    assert scene.group.state == "Assigning"
    scene.now_ms += 1
    assert scene.beat("A", 2).assignment == {"id-of-x": (0, 1)}
    assert scene.epochs() == (3, 3)
    scene.settle("A", "B")
    assert scene.group.state == "Stable"


def test_a_group_without_members_is_empty_and_takes_the_next_one_at_once(scenes: Any) -> None:
    scene = scenes(group_consumer_assignment_interval_ms=0)
    scene.topics(x=4)
    scene.join("A")
    assert scene.beat("A", -1).member_epoch == -1
    assert scene.group.state == "Empty"
    assert scene.epochs() == (3, 2)
    assert len(scene.group.partition_epochs) == 0
    assert scene.join("B").assignment == {"id-of-x": (0, 1, 2, 3)}
    assert scene.epochs() == (4, 4)


def test_partitions_that_come_back_while_they_are_revoked_are_free_for_their_holder(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    scene.beat("B", -1)
    assert scene.beat("A", 2, {"x": (0, 1)}).assignment == {"id-of-x": (0, 1, 2, 3)}
    assert scene.holds("A") == (4, "STABLE", {"x": (0, 1, 2, 3)}, {})
    assert scene.member("A").assignment_epochs == {"id-of-x": {0: 2, 1: 2, 2: 4, 3: 4}}


def test_partitions_keep_the_epoch_at_which_they_were_assigned(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    assert scene.member("A").assignment_epochs == {"id-of-x": dict.fromkeys(range(4), 2)}
    scene.settle("A", "B")
    assert scene.member("A").assignment_epochs == {"id-of-x": {0: 2, 1: 2}}
    assert scene.member("B").assignment_epochs == {"id-of-x": {2: 3, 3: 3}}
