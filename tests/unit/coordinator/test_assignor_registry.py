from __future__ import annotations

from collections.abc import Mapping

import pytest

from fencepost.coordinator.assign.registry import BUILT_IN, InvalidTarget, configured_assignors
from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import Partitions

SPEC = GroupSpec(subscriptions={"A": ("x",), "B": ("y",)}, partitions={"x": 2, "y": 1}, homogeneous=False)


def answering(answer: Mapping[str, Partitions]) -> Mapping[str, Partitions]:
    return configured_assignors(["mine"], {"mine": lambda spec: answer})["mine"](SPEC)


def test_the_configured_order_says_which_is_the_default() -> None:
    assert list(configured_assignors(["range", "uniform"])) == ["range", "uniform"]
    assert list(configured_assignors(GroupCoordinatorConfig().group_consumer_assignors)) == list(BUILT_IN)


def test_an_assignor_of_ones_own_is_found_by_name() -> None:
    assert answering({"A": {"x": (0, 1)}}) == {"A": {"x": (0, 1)}, "B": {}}


def test_its_answer_is_put_into_canonical_form() -> None:
    assert answering({"A": {"x": (1, 0)}, "B": {"y": ()}}) == {"A": {"x": (0, 1)}, "B": {}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"C": {"x": (0,)}}, "gives partitions to C, which is not a member"),
        ({"A": {"y": (0,)}}, "gives A of topic y: not subscribed"),
        ({"A": {"x": (2,)}}, "gives partition 2 of x, which has 2"),
        ({"A": {"x": (-1,)}}, "gives partition -1 of x"),
        ({"A": {"x": (0, 0)}}, "gives partition 0 of x twice"),
    ],
)
def test_an_answer_that_is_no_target_is_refused(answer: Mapping[str, Partitions], message: str) -> None:
    with pytest.raises(InvalidTarget, match=message):
        answering(answer)


def test_a_partition_for_two_members_is_refused() -> None:
    both = GroupSpec(subscriptions={"A": ("x",), "B": ("x",)}, partitions={"x": 1})
    own = configured_assignors(["mine"], {"mine": lambda spec: {member: {"x": (0,)} for member in "AB"}})
    with pytest.raises(InvalidTarget, match="gives partition 0 of x twice"):
        own["mine"](both)


def test_an_unchanged_target_stays_the_same_object() -> None:
    old = {"A": {"x": (0, 1)}, "B": {"y": (0,)}}
    spec = GroupSpec(
        subscriptions=SPEC.subscriptions, partitions=SPEC.partitions, targets=old, homogeneous=False
    )
    own = configured_assignors(["mine"], {"mine": lambda spec: {"A": {"x": [1, 0]}, "B": {"y": (0,)}}})  # type: ignore[dict-item]
    answer = own["mine"](spec)
    assert all(answer[member] is old[member] for member in old)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(FencepostError, match="'sticky' is not registered; there are uniform, range, mine"):
        configured_assignors(["sticky"], {"mine": BUILT_IN["range"]})


@pytest.mark.parametrize("name", ["uniform", " "])
def test_a_name_that_is_taken_or_blank_is_refused(name: str) -> None:
    with pytest.raises(FencepostError, match="cannot be registered"):
        configured_assignors(["uniform"], {name: BUILT_IN["range"]})
