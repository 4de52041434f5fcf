"""The classic protocol request by request, the same against our broker and against Kafka's."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer_protocol import (
    read_assignment,
)
from tests.conformance.classic_members import pair, share

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def test_who_is_refused(members: Any) -> None:
    one = members()
    assert one.join_error(group_id="") == "INVALID_GROUP_ID"
    assert one.join_error(session_timeout_ms=1) == "INVALID_SESSION_TIMEOUT"
    assert one.join_error(member_id="stranger") == "UNKNOWN_MEMBER_ID"
    assert one.join_error(protocols=()) == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.join_error(protocol_type="") == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.sync(member_id="stranger").error_code.name == "UNKNOWN_MEMBER_ID"
    unnamed = one.sync(member_id="stranger", protocol_name=None)
    assert unnamed.error_code.name == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.beat(group_id="") == "INVALID_GROUP_ID"
    assert one.leave(("stranger", None), ("", "nobody")) == ["UNKNOWN_MEMBER_ID"] * 2


def test_generations(members: Any, world: Any) -> None:
    topic = world.topic()
    one, two = pair(members)
    assert (one.generation, two.generation) == (2, 2)
    assert one.described()[0] == "CompletingRebalance"
    assert one.commit(topic) == "REBALANCE_IN_PROGRESS"
    assert one.beat() == "NONE"
    share(one, two, topic)
    assert one.described() == ("Stable", "consumer", "range", 2)
    assert [one.beat(generation=wrong) for wrong in (1, 3)] == ["ILLEGAL_GENERATION"] * 2
    assert one.beat(instance_id="i") == "UNKNOWN_MEMBER_ID"
    assert one.sync(generation=1).error_code.name == "ILLEGAL_GENERATION"
    assert one.sync(protocol_name="sticky").error_code.name == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.sync(protocol_type=None).error_code.name == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.commit(topic) == "NONE"
    assert one.commit(topic, member_epoch=1) == "ILLEGAL_GENERATION"
    assert one.commit(topic, member_id="stranger") == "UNKNOWN_MEMBER_ID"
    assert one.commit(topic, member_id="", member_epoch=-1) == "UNKNOWN_MEMBER_ID"
    again = two.join()
    assert (again.generation, again.leader, again.members) == (2, one.member_id, ())
    assert members().join_error(protocols=("sticky",)) == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.leave((two.member_id, None), (two.member_id, None)) == ["NONE", "UNKNOWN_MEMBER_ID"]
    assert one.beat() == "REBALANCE_IN_PROGRESS"
    assert one.commit(topic) == "NONE"
    assert one.join().generation == 3
    one.sync({})
    assert one.leave((one.member_id, None)) == ["NONE"]
    assert one.described() == ("Empty", "consumer", "", 0)
    assert one.commit(topic, member_id="", member_epoch=-1) == "NONE"
    assert one.beat() == "UNKNOWN_MEMBER_ID"


def test_what_members_have_is_told_until_the_next_generation_is_over(members: Any, world: Any) -> None:
    one, two = pair(members)
    share(one, two, world.topic())
    had = {each.member_id: each.assignment for each in one.description().members}
    one.send_join()
    two.beat_until("REBALANCE_IN_PROGRESS")
    found = two.description()
    assert found.group_state == "PreparingRebalance"
    assert {each.member_id: (each.metadata, each.assignment) for each in found.members} == {
        member_id: (b"", assignment) for member_id, assignment in had.items()
    }
    two.join()
    one.joined()
    assert {each.member_id: each.assignment for each in two.description().members} == had


def test_the_last_member_leaves_an_empty_group_whoever_was_given_an_id(members: Any) -> None:
    one, two = members(), members()
    one.join(instance_id="one")
    assert two.join().error_code.name == "MEMBER_ID_REQUIRED"
    assert one.leave((one.member_id, "one")) == ["NONE"]
    deadline = time.monotonic() + 10  # less than the session of the one that was given an id
    while two.described()[0] != "Empty":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("range", "sticky"), ("sticky", "range")),
        (("cooperative-sticky", "range"), ("range", "cooperative-sticky")),
        (("roundrobin", "cooperative-sticky"), ("cooperative-sticky", "roundrobin")),
        (("b", "a", "c"), ("c", "a", "b")),
    ],
)
def test_ties_of_a_vote(members: Any, world: Any, first: Any, second: Any) -> None:
    one, two = members(), members()
    one.enter(protocols=first)
    assert one.joined().protocol_name == first[0]
    one.sync({}, protocol_name=first[0])
    two.enter(protocols=second)
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(protocols=first)
    found = two.joined().protocol_name
    assert one.joined().protocol_name == found
    expected = {"range": "sticky", "cooperative-sticky": "range", "roundrobin": "roundrobin", "b": "b"}
    assert found == expected[first[0]]


def test_static_members(members: Any, world: Any) -> None:
    topic = world.topic()
    one, two = members(), members()
    assert one.join(instance_id="one").error_code.name == "NONE"
    one.sync({})
    two.send_join(instance_id="two")
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(instance_id="one")
    assert two.joined().generation == one.joined().generation == 2
    share(one, two, topic)
    again = members()
    answer = again.join(instance_id="two")
    assert (answer.generation, answer.leader, answer.skip_assignment) == (2, one.member_id, False)
    assert answer.member_id.startswith("two-")
    assert dict(read_assignment(again.sync().assignment).partitions) == {topic: (2, 3)}
    assert two.beat(instance_id="two") == "FENCED_INSTANCE_ID"
    assert two.beat() == "UNKNOWN_MEMBER_ID"
    assert two.join_error(instance_id="two") == "FENCED_INSTANCE_ID"
    assert two.commit(topic, instance_id="two") == "FENCED_INSTANCE_ID"
    leader = members()
    answer = leader.join(instance_id="one")
    assert (answer.leader, answer.skip_assignment) == (leader.member_id, True)
    assert sorted(each.instance_id for each in answer.members) == ["one", "two"]
    old = members()
    answer = old.join(8, instance_id="one")
    assert (answer.leader, answer.members) == (leader.member_id, ())
    assert one.leave(("", "two"), ("wrong", "one")) == ["NONE", "FENCED_INSTANCE_ID"]
    assert old.beat(instance_id="one") == "REBALANCE_IN_PROGRESS"
