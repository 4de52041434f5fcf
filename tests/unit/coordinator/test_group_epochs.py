"""What raises the group epoch, when topics are looked at again, and when a target is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage

Step = Callable[[Any], object]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda s: s.join("B"), id="a member joins"),
        pytest.param(lambda s: s.beat("A", 2, subscribed_topic_names=("x", "y")), id="names change"),
        pytest.param(lambda s: s.beat("A", 2, subscribed_topic_names=()), id="names are dropped"),
        pytest.param(lambda s: s.beat("A", -1), id="a member leaves"),
        pytest.param(lambda s: s.after(45_000), id="a session ends"),
        pytest.param(
            lambda s: s.process(LeaveGroupRequest(group_id="g", member_id="A")), id="a member is removed"
        ),
    ],
)
def test_what_raises_it(scene: Any, step: Step) -> None:
    scene.join("A")
    step(scene)
    assert scene.group.group_epoch == 3


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda s: s.join("A"), id="a rejoin"),
        pytest.param(lambda s: s.beat("A", 2, rack_id="r"), id="a rack"),
        pytest.param(lambda s: s.beat("A", 2, client_id="c", client_host="h"), id="client and host"),
        pytest.param(lambda s: s.beat("A", 2, rebalance_timeout_ms=9), id="the rebalance time-out"),
        pytest.param(lambda s: s.beat("A", 2, server_assignor="range"), id="the preferred assignor"),
        pytest.param(lambda s: s.join("B", ()), id="a member without a subscription"),
        pytest.param(lambda s: s.beat("A", 2, subscribed_topic_regex="n.*"), id="an unresolved expression"),
        pytest.param(lambda s: s.beat("A", 2, subscribed_topic_names=("x", "x")), id="the same names"),
        pytest.param(lambda s: s.topics(x=4, other=1), id="a topic nobody wants"),
        pytest.param(lambda s: s.topics(x=5), id="a topic grows, and no heartbeat came yet"),
    ],
)
def test_what_does_not(scene: Any, step: Step) -> None:
    scene.join("A")
    step(scene)
    assert scene.epochs() == (2, 2)


def test_a_changed_assignor_counts_from_the_next_target_on(scene: Any) -> None:
    scene.topics(x=3, y=3)
    scene.join("A", ("x", "y"))
    scene.join("B", ("x", "y"), server_assignor="range")
    assert scene.target("A") == {"x": (0, 1), "y": (0, 1)}
    scene.beat("B", 3, server_assignor="uniform")
    assert scene.target("A") == {"x": (0, 1), "y": (0, 1)}
    scene.topics(x=3, y=4)
    scene.beat("B", 3)
    assert sum(map(len, scene.target("B").values())) in {3, 4}
    assert scene.epochs() == (4, 4)


def test_the_majority_chooses_the_assignor(scenes: Any) -> None:
    scene = scenes(group_consumer_assignors=("range", "uniform"))
    scene.topics(x=3, y=3)
    both = ("x", "y")
    scene.join("A", both, server_assignor="uniform")
    scene.join("B", both, server_assignor="range")
    assert scene.target("A") == {"x": (0, 1), "y": (0, 1)}
    scene.join("C", both, server_assignor="uniform")
    assert [sum(map(len, scene.target(m).values())) for m in "ABC"] == [2, 2, 2]


class TestTies:
    """Kafka 4.3.1, asked over the wire: its hash map puts a name that is counted anew first."""

    BOTH = ("x", "y")

    @pytest.fixture
    def tied(self, scene: Any) -> Any:
        scene.topics(x=3, y=3, z=1)
        scene.join("A", self.BOTH, server_assignor="uniform")
        scene.join("B", ("z",), server_assignor="range")
        return scene

    def test_one_vote_each_the_member_that_needs_the_target_decides(self, tied: Any) -> None:
        tied.beat("B", 3, subscribed_topic_names=self.BOTH)
        assert tied.target("A") == {"x": (0, 1), "y": (0, 1)}

    def test_one_vote_each_and_a_member_without_one_means_uniform(self, tied: Any) -> None:
        tied.join("C", (*self.BOTH, "z"))
        assert sorted(sum(map(len, tied.target(m).values())) for m in "ABC") == [1, 3, 3]

    @pytest.mark.parametrize("configured", [("uniform", "range"), ("range", "uniform")])
    def test_two_votes_each_mean_uniform(self, scenes: Any, configured: tuple[str, ...]) -> None:
        scene = scenes(group_consumer_assignors=configured)
        scene.topics(x=3, y=3)
        for member, assignor in zip("ABCD", ("uniform", "uniform", "range", "range"), strict=True):
            scene.join(member, self.BOTH, server_assignor=assignor)
        assert sorted(sum(map(len, scene.target(m).values())) for m in "ABCD") == [1, 1, 2, 2]


class TestKafka44:
    """Kafka 4.4.0, asked over the wire; but a tie, which keeps its groups from settling."""

    @pytest.fixture
    def newer(self, scenes: Any) -> Any:
        scene = scenes(release_version=ReleaseVersion.V4_4, group_consumer_assignment_interval_ms=15_000)
        scene.topics(x=4)
        return scene

    def test_another_preferred_assignor_raises_it(self, newer: Any) -> None:
        newer.join("A")
        newer.beat("A", 2, server_assignor="uniform")
        assert newer.group.group_epoch == 2
        newer.beat("A", 2, server_assignor="range")
        assert newer.group.group_epoch == 3

    def test_a_member_without_topics_raises_it_by_its_assignor(self, newer: Any) -> None:
        newer.join("A", (), server_assignor="range")
        assert newer.group.group_epoch == 2

    @pytest.mark.parametrize("assignors", [("uniform", "range"), ("range", "uniform")])
    def test_a_tie_comes_to_rest(self, newer: Any, assignors: tuple[str, str]) -> None:
        for member_id, assignor in zip("AB", assignors, strict=True):
            newer.join(member_id, server_assignor=assignor)
        epoch = newer.group.group_epoch
        newer.now_ms += 15_000
        newer.settle("A", "B")
        assert newer.epochs() == (epoch, epoch)
        for member_id in "AB":
            newer.beat(member_id, epoch, rack_id="another")
        assert newer.epochs() == (epoch, epoch)

    @pytest.mark.parametrize("goes", [lambda s: s.beat("A", -1), lambda s: s.after(45_000)])
    def test_a_group_without_members_has_the_target_of_its_epoch(self, newer: Any, goes: Step) -> None:
        newer.join("A")
        goes(newer)
        assert newer.epochs() == (3, 3)
        newer.join("B")
        assert newer.target("B") == {"x": (0, 1, 2, 3)}, "no target is put off"

    def test_a_group_with_members_left_waits_for_its_target(self, newer: Any) -> None:
        newer.join("A")
        newer.join("B")
        newer.beat("A", -1)
        assert newer.epochs() == (4, 2)


class TestTopics:
    """Each change is noticed by the next heartbeat of any member."""

    @pytest.fixture
    def two(self, scene: Any) -> Any:
        scene.topics(x=4, y=2)
        scene.join("A", ("x", "y"))
        scene.join("B", ("x", "y", "later"))
        scene.settle("A", "B")
        assert scene.epochs() == (3, 3)
        return scene

    def everyone_owns(self, scene: Any, **counts: int) -> None:
        scene.settle("A", "B")
        held = sorted((t, p) for m in "AB" for t, ps in scene.holds(m)[2].items() for p in ps)
        assert held == sorted((name, p) for name, count in counts.items() for p in range(count))
        assert scene.epochs() == (4, 4)

    def test_partitions_are_added(self, two: Any) -> None:
        two.topics(x=6, y=2)
        two.beat("B", 3)
        self.everyone_owns(two, x=6, y=2)

    def test_a_topic_is_deleted(self, two: Any) -> None:
        two.topics(x=4)
        two.beat("A", 3)
        self.everyone_owns(two, x=4)

    def test_a_topic_comes_into_being(self, two: Any) -> None:
        two.topics(x=4, y=2, later=1)
        two.beat("A", 3)
        self.everyone_owns(two, x=4, y=2, later=1)

    def test_a_topic_is_made_again_with_another_id(self, two: Any) -> None:
        again = Topic(topic_id="another", name="y", partitions=2)
        two.image = TopicsImage.of([Topic(topic_id="id-of-x", name="x", partitions=4), again], 9)
        two.process(TopicsChanged(image=two.image))
        two.beat("A", 3)
        assert two.epochs() == (4, 4)
        two.settle("A", "B")
        held = [m.assigned for m in two.group.members.values()]
        assert sorted(p for each in held for p in each.get("another", ())) == [0, 1]
        assert not any("id-of-y" in each for each in held)

    def test_racks_change(self, two: Any) -> None:
        moved = Topic(topic_id="id-of-x", name="x", partitions=4, racks=(("r",),) * 4)
        two.image = two.image.with_topic(moved)
        two.process(TopicsChanged(image=two.image))
        two.beat("A", 3)
        assert two.epochs() == (4, 4)

    def test_an_equal_image_changes_nothing(self, two: Any) -> None:
        two.topics(x=4, y=2)
        two.beat("A", 3)
        assert two.epochs() == (3, 3)

    def test_a_failed_write_does_not_lose_the_change(self, two: Any) -> None:
        two.topics(x=6, y=2)
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=3)
        failed = two.coordinator.handle(request, two.now_ms)
        assert failed.records
        two.coordinator.not_written(request, failed, ErrorCode.NOT_COORDINATOR, two.now_ms)
        two.beat("A", 3)
        assert two.epochs() == (4, 4)


def broken(spec: GroupSpec) -> Any:
    raise RuntimeError(f"no idea what to do with {len(spec.subscriptions)} members")


def test_an_assignor_that_fails_fails_the_request(scenes: Any) -> None:
    scene = scenes({"broken": broken}, group_consumer_assignors=("broken",))
    scene.topics(x=4)
    assert (
        scene.error("A", 0, {}, rebalance_timeout_ms=1, subscribed_topic_names=("x",))
        is ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert not scene.coordinator.groups


def test_a_target_depends_on_ids_and_not_on_the_order_of_joins(scenes: Any) -> None:
    targets = []
    for order in ("ABC", "CBA", "BCA"):
        scene = scenes(group_consumer_assignment_interval_ms=1_000)
        scene.topics(x=7)
        scene.join(order[0], ())
        for member in order[1:]:
            scene.join(member, ())
        scene.now_ms += 1_000
        for member in order:
            scene.beat(
                member, 2 if scene.member(member).member_epoch == 2 else 1, subscribed_topic_names=("x",)
            )
        scene.now_ms += 1_000
        scene.settle("A", "B", "C")
        targets.append({member: len(scene.target(member)["x"]) for member in "ABC"})
    assert all(sorted(target.values()) == [2, 2, 3] for target in targets)


@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_the_first_target_of_a_group_is_never_delayed(scenes: Any, interval_ms: int) -> None:
    scene = scenes(group_consumer_assignment_interval_ms=interval_ms)
    scene.topics(x=1)
    assert scene.join("A").assignment == {"id-of-x": (0,)}
    assert scene.group.assignment_timestamp_ms == scene.now_ms


def test_only_targets_that_changed_are_written(scene: Any) -> None:
    """A member's first one is, even if it is to hold nothing."""
    scene.topics(x=1)
    scene.join("A")
    scene.join("B")
    assert [each for each in scene.written() if each.startswith("7:")] == ["7:B"]
    assert (scene.target("A"), scene.target("B")) == ({"x": (0,)}, {})


def test_an_assignor_sees_the_targets_of_those_who_are_there(scene: Any) -> None:
    seen: list[Any] = []

    def watched(spec: Any) -> dict[str, dict[str, tuple[int, ...]]]:
        seen.append(spec)
        return {member_id: {"id-of-x": (0,)} for member_id in list(spec.subscriptions)[:1]}

    made = type(scene)(assignors={"watched": watched}, group_consumer_assignors=("watched",))
    made.topics(x=1, y=1)
    made.join("A", instance_id="i")
    made.settle("A")
    made.beat("A", -2, instance_id="i")
    made.join("B", ["x", "y"], instance_id="i")
    assert dict(seen[-1].targets) == {"B": {"id-of-x": (0,)}}
    assert [*seen[-1].subscriptions] == ["B"]
