"""What must hold of any group: invariants of targets, whatever joins, leaves, grows or is dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.assign.registry import BUILT_IN
from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.protocol.ids import Partitions, partition_count

TOPICS = ("a", "b", "c", "d")


def group(
    members: Mapping[str, tuple[str, ...]], counts: Mapping[str, int], old: Mapping[str, Partitions]
) -> GroupSpec:
    wanted = {topic for topics in members.values() for topic in topics}
    return GroupSpec(
        subscriptions=members,
        partitions={topic: count for topic, count in counts.items() if topic in wanted},
        targets={member: old[member] for member in members if member in old},
        instance_ids={member: f"i{member[::-1]}" for member in members if int(member[1:]) % 3 == 0},
        homogeneous=len(set(members.values())) <= 1,
    )


subscriptions = st.lists(st.sampled_from(TOPICS), unique=True).map(lambda topics: tuple(sorted(topics)))
counts = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})


@st.composite
def histories(draw: st.DrawFn, *, equal: bool) -> list[tuple[dict[str, tuple[str, ...]], dict[str, int]]]:
    """A few groups, each a change away from the one before: a join, leaves, growth, a new subscription."""
    everyone = draw(subscriptions)
    size = dict(draw(counts))
    members: dict[str, tuple[str, ...]] = {}
    steps = []
    for number in range(draw(st.integers(1, 8))):
        change = draw(st.sampled_from(["join", "join", "leave", "grow", "subscribe"]))
        if change == "join" or not members:
            members[f"m{number}"] = everyone if equal else draw(subscriptions)
        elif change == "leave" and len(members) > 1:
            del members[draw(st.sampled_from(list(members)))]
        elif change == "grow":
            topic = draw(st.sampled_from(TOPICS))
            size[topic] += draw(st.integers(1, 5))
        elif change == "subscribe":
            everyone = draw(subscriptions)
            some = members if equal else [draw(st.sampled_from(list(members)))]
            members.update({member: everyone for member in some})
        steps.append((dict(members), dict(size)))
    return steps


def placed(target: Mapping[str, Partitions]) -> dict[tuple[str, int], str]:
    return {
        (topic, number): member
        for member, held in target.items()
        for topic, numbers in held.items()
        for number in numbers
    }


def check_valid(spec: GroupSpec, target: Mapping[str, Partitions]) -> None:
    where = placed(target)
    assert sum(map(partition_count, target.values())) == len(where), "a partition is given twice"
    every = {(topic, number) for topic, count in spec.partitions.items() for number in range(count)}
    assert where.keys() == every
    assert all(topic in spec.subscriptions[member] for (topic, _), member in where.items())
    for held in target.values():
        assert list(held) == sorted(held)
        assert all(numbers and list(numbers) == sorted(numbers) for numbers in held.values())


def check_stable(name: str, spec: GroupSpec, target: Mapping[str, Partitions]) -> None:
    again = BUILT_IN[name](msgspec.structs.replace(spec, targets=target))
    assert list(again) == list(target)
    assert all(again[member] is target[member] for member in target)


def sizes(target: Mapping[str, Partitions]) -> list[int]:
    return [partition_count(held) for held in target.values()]


@pytest.mark.parametrize("name", BUILT_IN)
@given(data=st.data())
def test_each_target_is_valid_and_repeats_itself(name: str, data: st.DataObject) -> None:
    old: Mapping[str, Partitions] = {}
    for members, count in data.draw(histories(equal=data.draw(st.booleans()))):
        spec = group(members, count, old)
        target = BUILT_IN[name](spec)
        check_valid(spec, target)
        check_stable(name, spec, target)
        old = target


@given(histories(equal=True))
def test_uniform_is_balanced_and_moves_no_more_than_balance_needs(steps: list[tuple[dict, dict]]) -> None:
    old: Mapping[str, Partitions] = {}
    for members, count in steps:
        spec = group(members, count, old)
        target = BUILT_IN["uniform"](spec)
        assert max(sizes(target)) - min(sizes(target)) <= 1
        # What a member may keep is bounded by its quota; `extra` members may have one more. The best any
        # target can do is to fill the larger quotas with those who hold most.
        before = {m: {p for p in placed({m: held}) if p[0] in members[m]} for m, held in spec.targets.items()}
        share, extra = divmod(sum(sizes(target)), len(members))
        best = sum(min(len(held), share) for held in before.values())
        best += min(extra, sum(len(held) > share for held in before.values()))
        now = placed(target)
        assert sum(now[p] == member for member, held in before.items() for p in held) == best
        old = target


@given(histories(equal=False))
def test_uniform_leaves_no_move_within_a_topic_that_would_help(steps: list[tuple[dict, dict]]) -> None:
    old: Mapping[str, Partitions] = {}
    for members, count in steps:
        spec = group(members, count, old)
        target = BUILT_IN["uniform"](spec)
        for topic in spec.partitions:
            subscribers = [member for member, topics in members.items() if topic in topics]
            least = min(partition_count(target[member]) for member in subscribers)
            givers = [partition_count(target[m]) for m in subscribers if topic in target[m]]
            assert max(givers, default=least) - least <= 1
        old = target


@given(histories(equal=False))
def test_range_is_contiguous_even_and_aligned(steps: list[tuple[dict, dict]]) -> None:
    for members, count in steps:
        spec = group(members, count, {})
        target = BUILT_IN["range"](spec)
        rows: dict[tuple[int, tuple[str, ...]], list[tuple[int, ...]]] = {}
        for topic, partitions in spec.partitions.items():
            subscribers = tuple(member for member, topics in members.items() if topic in topics)
            ranges = [target[member].get(topic, ()) for member in subscribers]
            assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
            assert all(b == a + 1 for numbers in ranges for a, b in pairwise(numbers))
            assert rows.setdefault((partitions, subscribers), ranges) == ranges, "not co-partitioned"


@given(st.integers(1, 40), st.integers(0, 200))
def test_a_join_and_a_leave_move_only_what_they_must(members: int, partitions: int) -> None:
    everyone = {f"m{number}": ("t",) for number in range(members)}
    first = BUILT_IN["uniform"](group(everyone, {"t": partitions}, {}))
    joined = BUILT_IN["uniform"](group({**everyone, "m99": ("t",)}, {"t": partitions}, first))
    before, after = placed(first), placed(joined)
    assert {after[p] for p in before if after[p] != before[p]} <= {"m99"}
    left = BUILT_IN["uniform"](group(everyone, {"t": partitions}, joined))
    back = placed(left)
    assert {after[p] for p in after if after[p] != back[p]} <= {"m99"}


PROGRAM = """
from fencepost.coordinator.assign.registry import BUILT_IN
from fencepost.coordinator.assign.spec import GroupSpec
topics = ("orders", "payments", "users", "emails")
old = {}
for step in range(30):
    members = {f"member-{n}": tuple(sorted(topics[: 1 + (n * 7 + step) % 4])) for n in range(step % 9, 20)}
    wanted = {topic for own in members.values() for topic in own}
    spec = GroupSpec(subscriptions=members, partitions={t: 13 + step for t in topics if t in wanted},
                     targets={m: old[m] for m in members if m in old}, homogeneous=False)
    old = BUILT_IN["uniform"](spec)
    print(dict(old), dict(BUILT_IN["range"](spec)))
"""


@pytest.mark.processes
def test_targets_do_not_depend_on_the_hash_seed() -> None:
    answers = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        answers.add(run.stdout)
    assert len(answers) == 1
