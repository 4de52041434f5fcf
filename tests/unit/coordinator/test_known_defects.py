"""Defects that coordinators had, each by its number, and the rule that it broke."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.consumer.groups import check_commit
from fencepost.coordinator.protocol.consumer import ConsumerGroupDescribeRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest

JOIN: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("x",)}


def held_once(scene: Any) -> None:
    """Every partition that is assigned or being revoked has one holder, at the epoch of the map."""
    held: dict[tuple[str, int], int] = {}
    for member in scene.group.members.values():
        for part in (member.assigned, member.pending_revocation):
            for topic, numbers in part.items():
                for partition in numbers:
                    assert (topic, partition) not in held
                    held[topic, partition] = member.member_epoch
    epochs = scene.group.partition_epochs.as_dict()
    assert held == {(t, p): epoch for t, each in epochs.items() for p, epoch in each.items()}


def test_kafka_16147_a_partition_given_back_while_it_is_revoked_keeps_its_holder(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    scene.beat("B", -1)
    scene.beat("A", 2, {"x": (0, 1)})
    held_once(scene)
    scene.join("C")
    assert scene.holds("C")[2] == {}
    scene.settle("A", "C")
    held_once(scene)


def test_kafka_16249_a_new_target_leaves_an_outstanding_revocation_alone(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    member = scene.member("A")
    timers = scene.coordinator.soft.timers
    deadlines = {key: timers.deadline_of(key) for key in timers if key.member_id == "A"}
    for joiner in "CDE":
        scene.now_ms += 10
        scene.join(joiner)
        scene.beat("A", 2)
        assert scene.member("A") is member
    assert {key: timers.deadline_of(key) for key in deadlines} == deadlines


def test_kafka_16367_a_full_request_is_answered_in_full(scene: Any) -> None:
    scene.join("A")
    again = scene.beat("A", 2, {"x": (0, 1, 2, 3)}, **JOIN)
    assert again.assignment == {"id-of-x": (0, 1, 2, 3)}
    # The same once more: the answer may be a remembered one.
    assert scene.beat("A", 2, {"x": (0, 1, 2, 3)}, **JOIN).assignment == again.assignment


def test_kafka_17306_a_compacted_journal_with_its_tombstones_loads(scene: Any) -> None:
    scene.join("A")
    scene.join("B", instance_id="i")
    scene.settle("A", "B")
    scene.beat("A", -1)
    scene.beat("B", -1)
    scene.journal.compact(keep_tombstones=True)
    scene.reload()
    scene.reload(compact=True)


def test_kafka_20254_offsets_may_come_before_the_group(scene: Any) -> None:
    assert scene.commit("", -1) == ["NONE"]
    scene.join("A")
    scene.commit("A", 2)
    scene.reload(compact=True)
    assert scene.beat("A", 2).member_epoch == 2


@pytest.mark.parametrize("joins", [1, 2, 5])
def test_kafka_19233_joining_again_is_not_fenced(scene: Any, joins: int) -> None:
    scene.join("A")
    scene.join("B")
    scene.settle("A", "B")
    for _ in range(joins):
        assert scene.join("A").assignment == {"id-of-x": (0, 1)}
    assert scene.epochs() == (3, 3)


def test_kafka_19431_nothing_outside_the_subscription_is_assigned(scenes: Any) -> None:
    scene = scenes(group_consumer_assignment_interval_ms=1_000)
    scene.topics(x=2, y=2)
    scene.join("A", ("x", "y"))
    scene.join("B", ("x", "y"))
    scene.now_ms += 1_000
    scene.beat("A", 2)
    assert scene.holds("A")[1] == "UNREVOKED_PARTITIONS"
    reply = scene.beat("A", 2, subscribed_topic_names=("y",))
    assert set(reply.assignment) <= {"id-of-y"}
    for _ in range(3):
        scene.beat("A", scene.member("A").member_epoch, {"y": scene.holds("A")[2].get("y", ())})
        assert set(scene.holds("A")[2]) <= {"y"}


def test_kafka_19449_no_member_waits_for_itself(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    scene.beat("B", -1)
    scene.beat("A", 2, {"x": (0, 1)})
    assert scene.holds("A") == (4, "STABLE", {"x": (0, 1, 2, 3)}, {})


def test_kafka_19974_the_epoch_stands_still_until_all_is_revoked(scene: Any) -> None:
    scene.topics(x=8)
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    scene.join("C")
    scene.join("D")
    kept = scene.holds("A")[2]
    scene.beat("A", 2, kept)
    assert scene.holds("A")[:2] == (2, "UNREVOKED_PARTITIONS")
    held_once(scene)
    scene.beat("A", 2, scene.holds("A")[2])
    assert scene.holds("A")[:2] == (5, "STABLE")


def test_kafka_19891_dropping_an_expression_is_a_change(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.settle("A")
    epoch = scene.group.group_epoch
    scene.beat("A", epoch, subscribed_topic_regex="")
    assert scene.epochs() == (epoch + 1, epoch + 1)
    scene.settle("A")
    assert scene.holds("A") == (epoch + 1, "STABLE", {}, {})


def test_kafka_18916_topics_of_expressions_are_watched(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.settle("A")
    scene.topics(x=6)
    scene.settle("A")
    assert scene.holds("A")[2] == {"x": (0, 1, 2, 3, 4, 5)}


def test_kafka_20431_what_is_being_revoked_is_described(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    reply = scene.process(ConsumerGroupDescribeRequest(group_ids=("g",))).reply
    (held,) = reply.groups[0].members[0].assignment
    assert held.partitions == (0, 1, 2, 3)


def test_kafka_20601_a_static_member_comes_back_to_a_full_group(scenes: Any) -> None:
    scene = scenes(group_consumer_max_size=2)
    scene.topics(x=2)
    scene.join("A", instance_id="i")
    scene.join("B")
    scene.settle("A", "B")
    scene.beat("A", -2, instance_id="i")
    assert scene.join("C", instance_id="i").error_code is E.NONE


def test_kafka_20747_an_instance_id_leads_to_one_member(scene: Any) -> None:
    scene.join("A", instance_id="i")
    scene.join("A", instance_id="j")
    scene.beat("A", -1)
    assert dict(scene.group.static_members) == {}
    assert scene.join("B", instance_id="i").error_code is E.NONE


def test_kafka_18188_an_administrator_removes_a_consumer_member(scene: Any) -> None:
    scene.join("A")
    reply = scene.process(LeaveGroupRequest(group_id="g", member_id="A")).reply
    assert reply.error_code is E.NONE
    assert scene.written() == ["-8:A", "-7:A", "-5:A", "3"]


def test_kfake_1438_ownership_is_by_member_and_not_by_epoch(scene: Any) -> None:
    """Two members share an epoch; the one that leaves frees only its own."""
    scene.join("A")
    scene.join("B")
    scene.settle("A", "B")
    assert scene.holds("A")[0] == scene.holds("B")[0] == 3
    scene.beat("B", -1)
    assert scene.group.partition_epochs.as_dict() == {"id-of-x": {0: 3, 1: 3}}
    held_once(scene)


def test_kfake_eca3a457_an_assignment_whose_answer_was_lost_is_given_again(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    scene.beat("A", 2, {"x": (0, 1)})
    lost = scene.beat("B", 3)
    assert lost.assignment == {"id-of-x": (2, 3)}
    assert scene.beat("B", 3, {}, **JOIN).assignment == lost.assignment


def test_kfake_d5ceeb73_only_a_list_confirms_a_revocation(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.beat("A", 2)
    for owned in (None, {"x": (0, 1, 2, 3)}, None, {"x": (2,)}):
        scene.beat("A", 2, owned)
        assert scene.holds("B")[2] == {}
        assert scene.holds("A")[3] == {"x": (2, 3)}
    scene.beat("B", 3)
    assert scene.holds("B")[2] == {}


def test_kfake_0af2689c_an_empty_assignment_is_not_no_answer(scene: Any) -> None:
    scene.join("A")
    assert scene.join("B").assignment == {}
    scene.beat("A", 2, subscribed_topic_names=())
    scene.settle("B")
    assert scene.beat("A", 2, {}, subscribed_topic_names=()).assignment is None
    assert scene.holds("A")[2] == {}


def test_crabka_521_a_partition_is_offered_only_once_it_is_free(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    for _ in range(5):
        scene.beat("B", 3)
        assert scene.holds("B") == (3, "UNRELEASED_PARTITIONS", {}, {})
    scene.beat("A", 2)
    assert scene.beat("B", 3).assignment is None
    scene.beat("A", 2, {"x": (0, 1)})
    assert scene.beat("B", 3).assignment == {"id-of-x": (2, 3)}


def test_a_partition_that_was_taken_away_is_not_committed_late(scene: Any) -> None:
    scene.join("A")
    scene.join("B")
    scene.settle("A", "B")
    assert scene.commit("A", 2, ("x", 3)) == ["STALE_MEMBER_EPOCH"]
    fence = check_commit(
        scene.group, OffsetCommitRequest(group_id="g", member_id="A", member_epoch=2, offsets={})
    )
    assert fence is not None
    fence("id-of-x", 0)
