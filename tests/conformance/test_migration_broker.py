"""Groups that change their protocol request by request, the same against our broker and against Kafka's."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    read_assignment,
    write_assignment,
)
from tests.conformance.classic_members import SECONDS, Member, pair, share

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def test_migration_and_back(members: Any, world: Any) -> None:
    topic = world.topic()
    one, two = pair(members, topics=(topic,))
    share(one, two, topic)
    modern = members()
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,)}
    answer = modern.modern(0, topic_partitions={}, **full)
    assert (answer.error_code.name, answer.member_epoch) == ("NONE", 3)
    assert modern.described()[0] == "Dead", "it is no classic group any more"
    assert [one.beat(), two.beat()] == ["REBALANCE_IN_PROGRESS"] * 2
    assert one.commit(topic) == "NONE"
    assert one.beat(generation=3) == "ILLEGAL_GENERATION"
    assert one.sync(protocol_name="sticky").error_code.name == "INCONSISTENT_GROUP_PROTOCOL"
    assert one.sync().error_code.name == "REBALANCE_IN_PROGRESS"
    assert one.beat(member_id="modern", generation=3) == "UNKNOWN_MEMBER_ID"
    third = members()
    assert third.join(topics=(topic,), protocols=("sticky",)).error_code.name == "INCONSISTENT_GROUP_PROTOCOL"
    epoch = 3
    held: list[tuple[int, ...]] = []
    for member in (one, two):
        # An eager consumer owns nothing when it joins again.
        answer = member.join(topics=(topic,))
        assert (answer.error_code.name, answer.generation) == ("NONE", 3)
        assert (answer.leader, answer.members, answer.protocol_name) == ("", (), "range")
        held.append(read_assignment(member.sync().assignment).partitions.get(topic, ()))
    deadline = time.monotonic() + SECONDS
    while sum(map(len, held)) < 4:
        assert time.monotonic() < deadline
        reply = modern.modern(epoch)
        epoch = reply.member_epoch
        if reply.assignment is not None:
            held.append(tuple(n for numbers in reply.assignment.values() for n in numbers))
        for member in (one, two):
            if member.beat() == "REBALANCE_IN_PROGRESS":
                member.join(topics=(topic,))
                index = (one, two).index(member)
                held[index] = read_assignment(member.sync().assignment).partitions.get(topic, ())
    assert sorted(n for numbers in held for n in numbers) == [0, 1, 2, 3]
    assert [one.beat(), two.beat()] == ["NONE", "NONE"]
    assert modern.modern(-1).error_code.name == "NONE"
    assert one.described()[::3] == ("PreparingRebalance", 2)
    assert one.beat() == "REBALANCE_IN_PROGRESS"
    one.send_join(topics=(topic,))
    two.send_join(topics=(topic,))
    # The epoch may have moved on from 3 where topics reach the coordinator late.
    assert one.joined().generation == two.joined().generation == epoch + 1


def first_answer(modern: Member, topic: str) -> tuple[str, int, set[int]]:
    """What a member that joins with the newer protocol is told at once: code, epoch, partitions."""
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,), "topic_partitions": {}}
    answer = modern.modern(0, **full)
    assert answer.assignment is not None
    numbers = {number for each in answer.assignment.values() for number in each}
    return answer.error_code.name, answer.member_epoch, numbers


@pytest.mark.parametrize("has_joined", [False, True], ids=["revoking", "joined"])
def test_a_migrated_group_gives_away_at_once_what_a_cooperative_member_still_has(
    members: Any, world: Any, has_joined: bool
) -> None:
    """Kafka takes what was assigned last for what members have, also of one that has said it has more."""
    topic = world.topic()
    everything, less = {topic: (0, 1, 2, 3)}, {topic: (0, 1)}
    one, two = members(), members()
    one.enter(topics=(topic,))
    one.joined()
    one.sync({one.member_id: write_assignment(ConsumerProtocolAssignment(partitions=everything))})
    two.enter(topics=(topic,))
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(topics=(topic,), owned=everything)
    assert two.joined().generation == one.joined().generation == 2
    # Nobody is given what the first member is to let go, until it joins without.
    one.sync({one.member_id: write_assignment(ConsumerProtocolAssignment(partitions=less))})
    two.sync()
    if has_joined:
        # It has missed the answer, and asks anew.
        one.send_join(topics=(topic,), owned=everything)
        two.beat_until("REBALANCE_IN_PROGRESS")
    modern = members()
    code, epoch, given = first_answer(modern, topic)
    assert (code, epoch, len(given), given <= {2, 3}) == ("NONE", 3, 1, True)
    if has_joined:
        assert one.receive().error_code.name == "REBALANCE_IN_PROGRESS"
    else:
        assert one.beat() == "REBALANCE_IN_PROGRESS"
    assert [one.commit(topic, number) for number in given] == ["NONE"]
    assert one.join(topics=(topic,), owned=everything).generation == 3
    assert dict(read_assignment(one.sync().assignment).partitions) == less
    reply = modern.modern(epoch)
    assert (reply.error_code.name, reply.assignment) == ("NONE", None)


@pytest.mark.parametrize("again", [False, True], ids=["one round", "another round"])
def test_a_migrated_group_knows_what_members_have_unless_a_round_was_broken_off(
    members: Any, world: Any, again: bool
) -> None:
    """Whom a rebalance interrupts while the leader assigns, Kafka takes to have nothing, whatever it says."""
    topic = world.topic()
    one, two = pair(members, topics=(topic,))
    share(one, two, topic)
    two.send_join(topics=(topic,), owned={topic: (2, 3)})
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(topics=(topic,), owned={topic: (0, 1)})
    assert one.joined().generation == two.joined().generation == 3
    if again:
        two.send_join(topics=(topic, "other"), owned={topic: (2, 3)})
        one.beat_until("REBALANCE_IN_PROGRESS")
    code, epoch, given = first_answer(members(), topic)
    assert (code, epoch, bool(given)) == ("NONE", 4, again)
    assert one.beat() == "REBALANCE_IN_PROGRESS"


def test_a_static_member_converts_a_group_whose_topic_has_grown(members: Any, world: Any) -> None:
    """Kafka takes the new partitions for known, and nobody reads them; a deviation."""
    topic = world.topic()
    one = members()
    assert one.join(instance_id="one", topics=(topic,)).error_code.name == "NONE"
    one.sync({one.member_id: write_assignment(ConsumerProtocolAssignment(partitions={topic: (0, 1, 2, 3)}))})
    world.grow(topic, 6)
    if world.is_real:
        world.wait_for_coordinator(topic, 6)
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,), "instance_id": "one"}
    modern = members()
    answer = modern.modern(0, topic_partitions={}, **full)
    for _ in range(3):
        assert answer.error_code.name == "NONE"
        answer = modern.modern(answer.member_epoch, topic_partitions=answer.assignment, **full)
    ((_, numbers),) = answer.assignment.items()
    assert (answer.member_epoch, len(numbers)) == ((1, 4) if world.is_real else (2, 6))


def test_a_static_member_converts_a_group_in_a_round(members: Any, world: Any) -> None:
    """Kafka ends the round, and starts no other; a deviation."""
    topic = world.topic()
    one, two = members(), members()
    assert one.join(instance_id="one", topics=(topic,)).error_code.name == "NONE"
    one.sync({one.member_id: write_assignment(ConsumerProtocolAssignment(partitions={topic: (0, 1, 2, 3)}))})
    two.send_join(instance_id="two", topics=(topic,))
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(instance_id="one", topics=(topic,))
    assert two.joined().generation == one.joined().generation == 2
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,), "instance_id": "one"}
    answer = members().modern(0, topic_partitions={}, **full)
    assert (answer.error_code.name, answer.member_epoch) == ("NONE", 2 if world.is_real else 3)
    assert two.beat(instance_id="two") == ("NONE" if world.is_real else "REBALANCE_IN_PROGRESS")


def test_a_group_that_cannot_be_read_stays_classic(members: Any, world: Any) -> None:
    topic = world.topic()
    one = members()
    one.enter(topics=(topic,))
    one.joined()
    data = write_assignment(
        ConsumerProtocolAssignment(partitions={topic: (0,)}, user_data=b"an assignor's own")
    )
    one.sync({one.member_id: data})
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,)}
    assert members().modern(0, topic_partitions={}, **full).error_code.name == "GROUP_ID_NOT_FOUND"
    assert one.beat() == "NONE"
