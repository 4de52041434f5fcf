"""Rare turns of a group: what no well-behaved client does, and what must hold all the same."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.reconcile import reconcile
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.consumer.subscription import effective_topics
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import MemberFenced
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import metadata_hash
from tests.hosting import steps_due


class TestAKnownMemberTakesOverAnInstance:
    """A dynamic member joins again under the instance id of a static one that is away.

    Two members become one: what the dynamic one was before must count no more.
    """

    @pytest.fixture
    def taken_over(self, scene: Any) -> Any:
        scene.topics(x=4, y=2)
        scene.join("H", ["x"], instance_id="i")
        scene.join("M", ["x", "y"])
        scene.join("O", [])
        scene.settle("H", "M", "O")
        scene.beat("H", -2, instance_id="i")
        scene.join("M", ["x"], instance_id="i")
        return scene

    def test_topics_that_nobody_names_any_more_are_out_of_the_digest(self, taken_over: Any) -> None:
        group = taken_over.group
        names = sorted({n for m in group.members.values() for n in effective_topics(m, group.resolved)})
        assert names == ["x"]
        taken_over.beat("O", taken_over.member("O").member_epoch)
        assert group.metadata_hash == metadata_hash(names, taken_over.image)

    def test_others_get_nothing_that_they_did_not_ask_for(self, scene: Any) -> None:
        scene.topics(x=4, y=2)
        scene.join("H", ["x"], instance_id="i")
        scene.join("M", ["x"])
        scene.join("O", [])
        scene.settle("H", "M", "O")
        scene.beat("H", -2, instance_id="i")
        scene.topics(x=6, y=2)
        scene.join("M", ["x"], instance_id="i")
        assert scene.target("O") == {}
        assert scene.target("M") == {"x": (0, 1, 2, 3, 4, 5)}

    def test_its_expression_ends(self, scene: Any) -> None:
        scene.join("H", ["x"], instance_id="i")
        scene.join("M", None, subscribed_topic_regex="x")
        scene.resolve()
        scene.settle("H", "M")
        scene.beat("H", -2, instance_id="i")
        scene.join("M", ["x"], instance_id="i", subscribed_topic_regex="")
        assert list(scene.group.members) == ["M"]
        assert dict(scene.group.resolved) == {}

    def test_targets_stay_apart(self, scene: Any) -> None:
        """The new target may be what the dynamic member had; its record is needed all the same."""

        def swapped(spec: Any) -> dict[str, dict[str, tuple[int, ...]]]:
            first, *others = sorted(spec.subscriptions)
            return {first: {"id-of-x": (0, 1, 2, 3)}, **{other: {} for other in others}}

        odd = type(scene)(assignors={"swapped": swapped}, group_consumer_assignors=("swapped",))
        odd.topics(x=4)
        odd.join("M")
        odd.join("P")
        odd.join("Z", instance_id="i")
        odd.settle("M", "P", "Z")
        assert odd.target("M") == {"x": (0, 1, 2, 3)}
        odd.beat("Z", -2, instance_id="i")
        odd.topics(x=5)
        odd.join("M", instance_id="i")
        odd.settle("M", "P")
        assert odd.target("M") == {"x": (0, 1, 2, 3)}
        assert odd.member("M").state is ConsumerGroupMemberState.STABLE

    def test_what_it_had_itself_is_free_for_it(self, taken_over: Any) -> None:
        assert taken_over.holds("M") == (taken_over.group.group_epoch, "STABLE", {"x": (0, 1, 2, 3)}, {})

    def test_the_group_settles(self, taken_over: Any) -> None:
        taken_over.settle("M", "O")
        assert taken_over.group.state == "Stable"
        assert taken_over.holds("M") == (taken_over.group.group_epoch, "STABLE", {"x": (0, 1, 2, 3)}, {})
        taken_over.reload(compact=True)


class CountedNumber(int):
    """A partition number that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        CountedNumber.compared += 1
        return int.__eq__(self, other)  # type: ignore[arg-type]


def test_a_first_assignment_looks_at_each_partition_a_few_times() -> None:
    """A topic may have tens of thousands of partitions, and one member takes them all when it joins."""
    count = 2_000
    CountedNumber.compared = 0
    found = reconcile(
        ConsumerGroupMember(member_id="m"),
        target_epoch=2,
        target={"x": tuple(map(CountedNumber, range(count)))},
        subscribed=frozenset({"x"}),
        names_nothing=False,
        subscription_changed=True,
        owned={},
        taken=lambda topic_id, numbers: set(),
    )
    assert len(found.assigned["x"]) == count
    assert CountedNumber.compared < 20 * count


class TestWhatRunDueAnswers:
    def test_a_sweep_that_finds_nothing_is_none_of_it(self, scene: Any) -> None:
        scene.join("A")
        for _ in range(15):
            scene.now_ms += 40_000
            scene.beat("A", 2)
        assert scene.after(0) == []
        assert scene.coordinator.next_deadline() is not None

    def test_nor_is_a_timer_whose_records_were_not_kept(self, scene: Any) -> None:
        class Full:
            def append(self, records: tuple[Record, ...]) -> None:
                raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "full")

        scene.join("A")
        failing = CoordinatorHost(scene.coordinator, Full())
        assert steps_due(failing, scene.now_ms + 45_000) == []
        assert list(scene.group.members) == ["A"]
        scene.now_ms += 45_000
        (outcome,) = scene.after(500)
        assert len(outcome.records) == 4
        assert outcome.effects == (
            MemberFenced(group_id=scene.group.group_id, member_id="A", reason="session"),
        )


class TestAnExpressionThatMatchesNothing:
    """A member changes to an expression that matches nothing, while others keep all of the group's topics.

    Neither the expression's topics nor the group's changed then, but the member's target did.
    """

    def test_what_the_member_gave_up_goes_to_others(self, scene: Any) -> None:
        scene.join("A", None, subscribed_topic_regex="x")
        scene.resolve()
        scene.join("B", ["x"])
        scene.settle("A", "B")
        assert scene.target("A") == {"x": (0, 2)}
        scene.now_ms += 20_000
        scene.beat("A", 3, subscribed_topic_regex="nothing")
        assert scene.epochs() == (3, 3)
        scene.resolve()
        assert scene.epochs() == (4, 3)
        scene.settle("A", "B")
        assert scene.holds("A") == (4, "STABLE", {}, {})
        assert scene.holds("B") == (4, "STABLE", {"x": (0, 1, 2, 3)}, {})

    def test_topics_that_it_names_stay(self, scene: Any) -> None:
        scene.topics(x=4, y=2)
        scene.join("A", ["x"], subscribed_topic_regex="x")
        scene.resolve()
        scene.settle("A")
        before = scene.epochs()
        scene.now_ms += 20_000
        scene.beat("A", before[0], subscribed_topic_regex="nothing")
        scene.resolve()
        assert scene.epochs() == before
