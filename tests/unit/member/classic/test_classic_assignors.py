"""The classic consumers' assignors: who is given what, as Kafka's give it, and what a leader holds back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolSubscription
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors import ASSIGNORS
from fencepost.member.classic.assignors.balance import balanced
from fencepost.member.classic.assignors.sticky import CooperativeStickyAssignor, StickyAssignor, read_previous

TOPICS = ("t0", "t1", "t2")


def member(member_id, topics=("t0",), *, instance=None, owned=None, generation=-1, data=None):
    subscription = ConsumerProtocolSubscription(
        topics=topics, owned=owned or {}, generation=generation, user_data=data, rack_id=None
    )
    return Subscriber(member_id, instance, subscription)


def given_to(assigned):
    return {member_id: dict(each.partitions) for member_id, each in assigned.items() if each.partitions}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_strangers_are_given_nothing(name):
    assigned = ASSIGNORS[name]().assign({"t0": 2}, [Subscriber("x", None, None), member("a")])
    assert given_to(assigned) == {"a": {"t0": (0, 1)}}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_nobody_wants_anything(name):
    assert given_to(ASSIGNORS[name]().assign({}, [member("a", ("gone",))])) == {}


def test_round_robin_deals_all_topics_in_turn():
    both = ("t0", "t1")
    assigned = ASSIGNORS["roundrobin"]().assign({"t0": 3, "t1": 3}, [member("b", both), member("a", both)])
    assert given_to(assigned) == {"a": {"t0": (0, 2), "t1": (1,)}, "b": {"t0": (1,), "t1": (0, 2)}}


def test_round_robin_passes_over_who_does_not_subscribe():
    members = [member("a", ("t0",)), member("b", ("t0", "t1"))]
    assigned = ASSIGNORS["roundrobin"]().assign({"t0": 1, "t1": 2}, members)
    assert given_to(assigned) == {"a": {"t0": (0,)}, "b": {"t1": (0, 1)}}


def test_static_members_come_first():
    assigned = ASSIGNORS["roundrobin"]().assign({"t0": 1}, [member("a"), member("z", instance="i")])
    assert given_to(assigned) == {"z": {"t0": (0,)}}


def test_sticky_members_keep_what_they_had_before():
    first, second = StickyAssignor(), StickyAssignor()
    assigned = first.assign({"t0": 4}, [member("a"), member("b")])
    first.on_assignment(assigned["a"])
    second.on_assignment(assigned["b"])
    again = first.assign(
        {"t0": 4},
        [
            member("a", data=first.user_data(), generation=1),
            member("b", data=second.user_data(), generation=1),
            member("0"),
        ],
    )
    for known in ("a", "b"):
        assert set(again[known].partitions["t0"]) <= set(assigned[known].partitions["t0"])
    assert sum(len(each.partitions.get("t0", ())) for each in again.values()) == 4


@given(st.binary(max_size=60))
def test_any_bytes_of_another_member_are_read_or_left_alone(data):
    assert isinstance(read_previous(data), tuple)


def test_cooperative_gives_away_only_what_nobody_has():
    assignor = CooperativeStickyAssignor()
    members = [member("a", owned={"t0": (0, 1, 2, 3)}, generation=3), member("b")]
    first = given_to(assignor.assign({"t0": 4}, members))
    assert first == {"a": {"t0": (0, 1)}}
    after = [member("a", owned={"t0": (0, 1)}, generation=4), member("b", generation=4)]
    assert given_to(assignor.assign({"t0": 4}, after)) == {"a": {"t0": (0, 1)}, "b": {"t0": (2, 3)}}


def test_cooperative_waits_for_members_that_missed_a_generation():
    late = member("a", owned={"t0": (0,)}, generation=3)
    assigned = given_to(CooperativeStickyAssignor().assign({"t0": 2}, [late, member("b", generation=4)]))
    assert 0 not in assigned.get("b", {}).get("t0", ())


def test_what_two_members_say_they_have_is_given_to_nobody_yet():
    members = [member(name, owned={"t0": (0,)}, generation=4) for name in "ab"]
    assert given_to(CooperativeStickyAssignor().assign({"t0": 1}, members)) == {}


@st.composite
def groups(draw, *, alike):
    partitions = {topic: draw(st.integers(1, 6)) for topic in TOPICS}
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    wanted = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    one = draw(wanted)
    subscriptions = {name: one if alike else draw(wanted) for name in names}
    everything = [(topic, number) for topic in TOPICS for number in range(partitions[topic])]
    kept = {name: [] for name in names}
    for partition in everything:
        owner = draw(st.sampled_from([None, *names]))
        if owner is not None and partition[0] in subscriptions[owner]:
            kept[owner].append(partition)
    return partitions, subscriptions, kept


def check(partitions, subscriptions, given_now):
    wanted = frozenset().union(*subscriptions.values())
    counted = Counter(each for mine in given_now.values() for each in mine)
    assert counted == Counter((topic, number) for topic in wanted for number in range(partitions[topic]))
    for name, mine in given_now.items():
        assert {topic for topic, _ in mine} <= subscriptions[name]


@given(groups(alike=True))
def test_members_that_subscribe_alike_differ_by_one_and_keep_what_they_can(group):
    partitions, subscriptions, kept = group
    given_now = balanced(partitions, subscriptions, kept)
    check(partitions, subscriptions, given_now)
    sizes = [len(mine) for mine in given_now.values()]
    assert max(sizes) - min(sizes) <= 1
    total, least = sum(sizes), sum(sizes) // len(sizes)
    larger = total - least * len(sizes)
    most = sorted((len(mine) for mine in kept.values()), reverse=True)
    possible = sum(min(size, least + (place < larger)) for place, size in enumerate(most))
    stayed = sum(len(set(mine) & set(kept[name])) for name, mine in given_now.items())
    assert stayed == possible


@given(groups(alike=False))
def test_members_that_differ_have_no_pair_that_could_be_levelled(group):
    partitions, subscriptions, kept = group
    given_now = balanced(partitions, subscriptions, kept)
    check(partitions, subscriptions, given_now)
    for name, mine in given_now.items():
        for other, theirs in given_now.items():
            if len(theirs) > len(mine) + 1:
                assert not {topic for topic, _ in theirs} & subscriptions[name], (name, other)
