"""Subscriptions by regular expression: validation, resolution, its spacing, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.outcome import RegularExpressionsResolved, ResolveRegularExpressions
from fencepost.coordinator.protocol.topics import Topic, TopicsImage


def image(*names: str) -> TopicsImage:
    return TopicsImage.of(Topic(topic_id=f"id-of-{name}", name=name, partitions=1) for name in names)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", ("a",)),
        ("a.*", ("a", "ab", "abc")),
        ("ab|b", ("ab", "b")),
        ("(?i)AB", ("ab",)),
        ("__.*", ("__consumer_offsets",)),
        (".*", ("__consumer_offsets", "a", "ab", "abc", "b")),
        ("z", ()),
    ],
)
def test_an_expression_matches_whole_names(expression: str, expected: tuple[str, ...]) -> None:
    effect = ResolveRegularExpressions(group_id="g", regular_expressions=(expression,))
    answer = resolve(effect, image("ab", "a", "abc", "b", "__consumer_offsets"))
    assert answer.topics == {expression: expected}
    assert (answer.group_id, answer.image_version) == ("g", 1)


@pytest.mark.parametrize("expression", ["(", "a**", "(?=a)", r"(a)\1", "[z-a]", "\udcff"])
def test_a_malformed_expression_is_refused(scene: Any, expression: str) -> None:
    fields = {"rebalance_timeout_ms": 1, "subscribed_topic_regex": expression}
    assert scene.error("A", 0, {}, **fields) is E.INVALID_REGULAR_EXPRESSION
    scene.join("A")
    assert scene.error("A", 2, subscribed_topic_regex=expression) is E.INVALID_REGULAR_EXPRESSION


def test_a_join_gets_nothing_until_the_answer_is_there(scene: Any) -> None:
    scene.topics(x1=2, x2=1, y=1)
    reply = scene.join("A", None, subscribed_topic_regex="x.*")
    assert (reply.member_epoch, reply.assignment) == (1, {})
    assert scene.written() == ["5:A", "8:A"]
    assert scene.effects == [ResolveRegularExpressions(group_id="g", regular_expressions=("x.*",))]
    assert scene.group.state == "Stable"

    (outcome,) = scene.resolve()
    assert [scene.short(record) for record in outcome.records] == ["16:x.*", "3"]
    assert scene.epochs() == (2, 1)
    assert scene.group.resolved["x.*"].topics == ("x1", "x2")

    assert scene.beat("A", 1).assignment == {"id-of-x1": (0, 1), "id-of-x2": (0,)}
    assert scene.epochs() == (2, 2)


def test_an_answer_that_raises_the_epoch_has_looked_at_all_topics(scene: Any) -> None:
    """No heartbeat needs to do it again, unless the record of that epoch gets lost."""
    scene.join("A", None, subscribed_topic_regex="x.*")
    soft = scene.coordinator.soft.groups["g"]
    scene.topics(x=4, y=1)
    assert soft.metadata_expired(1, scene.now_ms)
    scene.resolve()
    assert scene.epochs() == (2, 1)
    assert not soft.metadata_expired(2, scene.now_ms)
    assert soft.metadata_expired(1, scene.now_ms)


def test_one_that_raises_nothing_leaves_that_to_the_next_heartbeat(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="nothing")
    scene.coordinator.soft.groups["g"].request_metadata_refresh()
    scene.resolve()
    assert scene.coordinator.soft.groups["g"].metadata_expired(1, scene.now_ms)


def test_only_one_resolution_of_a_group_is_under_way(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.join("B", None, subscribed_topic_regex="y")
    scene.beat("A", 1)
    assert len(scene.effects) == 1


def test_not_even_a_new_expression_is_resolved_within_10_seconds(scene: Any) -> None:
    scene.topics(x=1, y=1)
    scene.join("A", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.now_ms += 1_000
    scene.join("B", None, subscribed_topic_regex="y")
    assert scene.effects == []
    scene.now_ms += 9_000
    scene.beat("A", scene.member("A").member_epoch)
    assert scene.effects == []
    scene.now_ms += 1
    scene.beat("A", scene.member("A").member_epoch)
    assert scene.effects == [ResolveRegularExpressions(group_id="g", regular_expressions=("x", "y"))]
    scene.resolve()
    scene.settle("A", "B")
    assert (scene.target("A"), scene.target("B")) == ({"x": (0,)}, {"y": (0,)})


def test_a_new_topic_is_found_by_the_next_heartbeat_after_10_seconds(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x.*")
    scene.resolve()
    scene.settle("A")
    scene.topics(x=4, x2=1)
    scene.beat("A", 2)
    assert scene.effects == []
    scene.now_ms += 10_001
    scene.beat("A", 2)
    scene.resolve()
    scene.settle("A")
    assert scene.target("A") == {"x": (0, 1, 2, 3), "x2": (0,)}


def test_a_deleted_topic_goes_at_once_and_the_expression_stays_resolved(scene: Any) -> None:
    scene.topics(x=4, x2=1)
    scene.join("A", None, subscribed_topic_regex="x.*")
    scene.resolve()
    scene.settle("A")
    scene.topics(x=4)
    scene.settle("A")
    assert scene.effects == []
    assert scene.target("A") == {"x": (0, 1, 2, 3)}
    assert scene.group.resolved["x.*"].topics == ("x", "x2")


def test_a_resolution_grows_old(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x.*")
    scene.resolve()
    scene.settle("A")
    started = scene.now_ms
    while scene.now_ms < started + 600_000:
        scene.now_ms += 5_000
        scene.beat("A", 2)
    assert scene.effects == []
    scene.now_ms += 1
    scene.beat("A", 2)
    assert len(scene.effects) == 1
    (outcome,) = scene.resolve()
    assert [scene.short(record) for record in outcome.records] == ["16:x.*"]
    assert scene.epochs() == (2, 2)


def test_a_first_result_of_nothing_is_written_and_raises_nothing(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="nothing")
    (outcome,) = scene.resolve()
    assert [scene.short(record) for record in outcome.records] == ["16:nothing"]
    assert scene.epochs() == (1, 1)


def test_an_expression_that_the_group_has_resolved_raises_the_epoch(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.settle("A")
    assert scene.join("B", None, subscribed_topic_regex="x").member_epoch == 3
    assert scene.epochs() == (3, 3)
    assert scene.effects == []
    assert scene.target("B") == {"x": (2, 3)}


def test_dropping_an_expression_raises_the_epoch_and_gives_its_partitions_up(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.settle("A")
    reply = scene.beat("A", 2, subscribed_topic_regex="")
    assert scene.written() == ["5:A", "-16:x", "3", "7:A", "6", "8:A"]
    assert reply.assignment == {}
    assert scene.holds("A") == (2, "UNREVOKED_PARTITIONS", {}, {"x": (0, 1, 2, 3)})
    assert not scene.group.resolved


def test_the_last_user_takes_the_resolution_along(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.join("B", None, subscribed_topic_regex="x")
    scene.resolve()
    scene.beat("A", -1)
    assert scene.written() == ["-8:A", "-7:A", "-5:A", "3"]
    scene.beat("B", -1)
    assert scene.written() == ["-8:B", "-7:B", "-5:B", "-16:x", "3"]
    assert scene.group.hard_state()["by_regex"] == {}


def test_an_answer_for_an_expression_nobody_uses_any_more_is_dropped(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.beat("A", 1, subscribed_topic_regex="y")
    (outcome,) = scene.resolve()
    assert outcome.records == ()
    scene.beat("A", 1)
    assert scene.effects == [ResolveRegularExpressions(group_id="g", regular_expressions=("y",))]


def test_a_failed_resolution_is_asked_for_again(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.effects.clear()
    failed = RegularExpressionsResolved(group_id="g", topics={}, image_version=1)
    assert scene.process(failed).records == ()
    scene.beat("A", 1)
    assert len(scene.effects) == 1


def test_an_answer_for_a_group_that_went_is_dropped(scene: Any) -> None:
    scene.join("A", None, subscribed_topic_regex="x")
    scene.beat("A", -1)
    scene.after(600_000)
    assert [outcome.records for outcome in scene.resolve()] == [()]
    scene.join("B", None, subscribed_topic_regex="x")
    assert len(scene.effects) == 1


def test_names_and_expression_are_united(scene: Any) -> None:
    scene.topics(x=1, y=1, z=1)
    scene.join("A", ("z", "x"), subscribed_topic_regex="x|y")
    assert scene.target("A") == {"x": (0,), "z": (0,)}
    scene.resolve()
    scene.beat("A", 2)
    assert scene.target("A") == {"x": (0,), "y": (0,), "z": (0,)}
    assert scene.beat("A", 3, subscribed_topic_names=()).member_epoch == 3
    assert scene.target("A") == {"x": (0,), "y": (0,)}


def test_a_suppressed_append_does_not_block_later_resolutions(scene: Any) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="A",
        member_epoch=0,
        rebalance_timeout_ms=1,
        subscribed_topic_regex="x",
        topic_partitions={},
    )
    scene.coordinator.not_written(request, scene.coordinator.handle(request, 0), E.NOT_COORDINATOR, 0)
    scene.join("A", None, subscribed_topic_regex="x")
    assert len(scene.effects) == 1


class TestNothingMatches:
    """A member goes from topics to an expression that matches none of them, while others keep them."""

    def test_its_target_follows(self, scene: Any) -> None:
        scene.join("A", None, subscribed_topic_regex="x")
        scene.resolve()
        scene.join("B", None, subscribed_topic_regex="x")
        scene.settle("A", "B")
        assert scene.target("A") == {"x": (0, 1)}
        scene.after(10_001)
        scene.beat("A", 3, {"x": (0, 1)}, subscribed_topic_regex="nothing")
        assert scene.epochs() == (3, 3)
        scene.resolve()
        assert scene.epochs() == (4, 3)

    def test_a_target_that_is_due_anyway_needs_no_other_epoch(self, scenes: Any) -> None:
        scene = scenes(group_consumer_assignment_interval_ms=1_000)
        scene.topics(x=4)
        scene.join("A")
        scene.beat("A", 2, subscribed_topic_names=(), subscribed_topic_regex="nothing")
        assert scene.epochs() == (3, 2)
        scene.resolve()
        assert scene.epochs() == (3, 2)


def test_an_empty_expression_of_a_member_that_had_none_changes_nothing(scene: Any) -> None:
    scene.join("A")
    before = scene.coordinator.hard_state()
    scene.beat("A", 2, subscribed_topic_regex="")
    assert scene.coordinator.hard_state() == before
    assert scene.written() == []
