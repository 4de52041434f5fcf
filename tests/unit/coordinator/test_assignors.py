"""The worked examples of Kafka's assignors, with members in the order in which they are listed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fencepost.coordinator.assign.range_ import range_
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.assign.uniform import uniform
from fencepost.coordinator.protocol.ids import Partitions

Target = Mapping[str, Partitions]


def held(text: str) -> Partitions:
    """`x:0,1 y:2` as partitions."""
    found = {}
    for topic in text.split():
        name, numbers = topic.split(":")
        found[name] = tuple(int(number) for number in numbers.split(","))
    return found


def target(**members: str) -> dict[str, Partitions]:
    return {member: held(text) for member, text in members.items()}


def spec(
    members: str | Mapping[str, str],
    old: Target | None = None,
    instances: Mapping[str, str] | None = None,
    **counts: int,
) -> GroupSpec:
    """A group of members that subscribe to all topics ("AB"), or each to its own ({"A": "x y"})."""
    everything = tuple(sorted(counts))
    subscriptions = (
        dict.fromkeys(members, everything)
        if isinstance(members, str)
        else {member: tuple(topics.split()) for member, topics in members.items()}
    )
    return GroupSpec(
        subscriptions=subscriptions,
        partitions=counts,
        targets=old or {},
        instance_ids=instances or {},
        homogeneous=len(set(subscriptions.values())) <= 1,
    )


def assigned(assignor: Assignor, group: GroupSpec) -> dict[str, Partitions]:
    return {member: dict(partitions) for member, partitions in assignor(group).items()}


EQUAL = {
    "first target": (spec("AB", x=3, y=2), target(A="x:0,1", B="x:2 y:0,1")),
    "odd count": (spec("AB", x=5), target(A="x:0,1", B="x:2,3,4")),
    "C joins": (
        spec("ABC", target(A="x:0,1", B="x:2,3,4"), x=5),
        target(A="x:0,1", B="x:2,3", C="x:4"),
    ),
    "A leaves": (
        spec("BC", target(B="x:2,3", C="x:4"), x=5),
        target(B="x:2,3", C="x:0,1,4"),
    ),
    "more members than partitions": (spec("ABC", x=2), target(A="", B="x:0", C="x:1")),
    "topic grows": (
        spec("AB", target(A="x:0,1", B="x:2,3"), x=6),
        target(A="x:0,1,4", B="x:2,3,5"),
    ),
    "C joins, both give": (
        spec("ABC", target(A="x:0,1,2", B="x:3,4,5"), x=6),
        target(A="x:0,1", B="x:3,4", C="x:2,5"),
    ),
    "already unbalanced": (
        spec("AB", target(A="t1:0,1 t2:0,1", B="t1:2 t2:2"), t1=3, t2=3),
        target(A="t1:0,1 t2:0", B="t1:2 t2:1,2"),
    ),
    "C joins two topics": (
        spec("ABC", target(A="t1:0,2 t2:0", B="t1:1 t2:1,2"), t1=3, t2=3),
        target(A="t1:0,2", B="t1:1 t2:1", C="t2:0,2"),
    ),
    "y is dropped": (
        spec("AB", target(A="x:0,1 y:0", B="x:2 y:1"), x=3),
        target(A="x:0,1", B="x:2"),
    ),
    "no topic": (spec("AB"), target(A="", B="")),
    "the last topic goes": (spec("AB", target(A="x:0", B="x:1")), target(A="", B="")),
}

MIXED = {
    "one shared topic": (
        spec({"A": "x", "B": "x y"}, x=3, y=2),
        target(A="x:0,1,2", B="y:0,1"),
    ),
    "a chain": (
        spec({"A": "x", "B": "x y", "C": "y"}, x=4, y=4),
        target(A="x:0,2", B="x:1,3 y:3", C="y:0,1,2"),
    ),
    "a chain with a heavy end": (
        spec({"A": "x", "B": "x y", "C": "y"}, x=6, y=3),
        target(A="x:0,2,4", B="x:1,3,5", C="y:0,1,2"),
    ),
    "balance by moving": (
        spec({"A": "x y", "B": "x", "C": "x"}, target(A="x:0,1 y:0,1", B="x:2,3"), x=4, y=2),
        target(A="y:0,1", B="x:2,3", C="x:0,1"),
    ),
    "three topics": (
        spec(
            {"A": "t1", "B": "t1 t2", "C": "t1 t2 t3"},
            target(A="t1:0,1,2", B="t1:3 t2:0", C="t1:4,5 t2:1,2,3 t3:0,1,2,3"),
            t1=6,
            t2=4,
            t3=4,
        ),
        target(A="t1:0,1,2,5", B="t1:3 t2:0,1,2,3", C="t1:4 t3:0,1,2,3"),
    ),
    "a member without a topic": (
        spec({"A": "x", "B": ""}, target(A="x:0", B="x:1"), x=2),
        target(A="x:0,1", B=""),
    ),
    "a dropped topic goes to who still wants it": (
        spec({"A": "x", "B": "x y"}, target(A="x:0 y:0", B="x:1"), x=2, y=1),
        target(A="x:0", B="x:1 y:0"),
    ),
}

RANGE = {
    "two topics": (spec("AB", x=3, y=3), target(A="x:0,1 y:0,1", B="x:2 y:2")),
    "two counts": (spec("ABC", x=3, y=2), target(A="x:0 y:0", B="x:1 y:1", C="x:2")),
    "three subscriptions": (
        spec({"A": "x y", "B": "z", "C": "y z"}, x=3, y=3, z=2),
        target(A="x:0,1,2 y:0,1", B="z:0", C="y:2 z:1"),
    ),
    "three of four": (spec("ABC", x=4), target(A="x:0,1", B="x:2", C="x:3")),
    "B leaves": (spec("AC", target(A="x:0,1", C="x:3"), x=4), target(A="x:0,1", C="x:2,3")),
    "dynamic members by id, whatever the order": (spec("CAB", x=3), target(A="x:0", B="x:1", C="x:2")),
    "static members first, by instance id": (
        spec("ABC", instances={"C": "i1", "B": "i2"}, x=3),
        target(C="x:0", B="x:1", A="x:2"),
    ),
    "no topic": (spec("AB"), target(A="", B="")),
}


@pytest.mark.parametrize(("group", "expected"), EQUAL.values(), ids=EQUAL)
def test_uniform_with_equal_subscriptions(group: GroupSpec, expected: Target) -> None:
    assert assigned(uniform, group) == expected


@pytest.mark.parametrize(("group", "expected"), MIXED.values(), ids=MIXED)
def test_uniform_with_different_subscriptions(group: GroupSpec, expected: Target) -> None:
    assert assigned(uniform, group) == expected


@pytest.mark.parametrize(("group", "expected"), RANGE.values(), ids=RANGE)
def test_range(group: GroupSpec, expected: Target) -> None:
    assert assigned(range_, group) == expected


@pytest.mark.parametrize("assignor", [uniform, range_])
def test_nobody_gets_nothing(assignor: Assignor) -> None:
    assert assigned(assignor, spec("", x=0)) == {}


@pytest.mark.parametrize("assignor", [uniform, range_])
def test_targets_are_canonical(assignor: Assignor) -> None:
    group = spec("ABCD", target(A="x:3,4 y:0", B="x:0,1 y:2"), x=5, y=5)
    for partitions in assignor(group).values():
        assert list(partitions) == sorted(partitions)
        for numbers in partitions.values():
            assert isinstance(numbers, tuple)
            assert numbers == tuple(sorted(numbers)) != ()


def test_old_targets_are_not_changed() -> None:
    old = target(A="x:0,1,2", B="x:3,4,5")
    uniform(spec("ABC", old, x=6))
    assert old == target(A="x:0,1,2", B="x:3,4,5")


def test_a_join_keeps_the_objects_of_those_who_keep_their_target() -> None:
    names = [f"m{index:03}" for index in range(100)]
    first = uniform(spec(dict.fromkeys(names, "x"), x=1050))
    second = uniform(spec(dict.fromkeys([*names, "joiner"], "x"), first, x=1050))
    same = [member for member in names if second[member] is first[member]]
    assert len(same) == 90  # 1050 = 101 x 10 + 40: ten of the fifty that had eleven give one up


@pytest.mark.parametrize("old", ["", "x:0,1", "x:0,1,2 y:1", "z:0", "x:0,1,2 y:0,1"])
def test_a_lone_member_has_everything_and_keeps_the_object_if_it_had_it(old: str) -> None:
    before = held(old)
    after = uniform(spec("A", {"A": before}, x=3, y=2, empty=0))["A"]
    assert after == held("x:0,1,2 y:0,1")
    assert (after is before) is (after == before)


def test_a_lone_member_without_partitions_has_no_topics() -> None:
    assert uniform(spec("A", empty=0)) == {"A": {}}
