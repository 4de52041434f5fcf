"""The classic protocol request by request, the same against our broker and against Kafka's."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.groups import LeaveGroupCall
from fencepost.coordinator.codec.offsets import CommittedPartition, OffsetCommitCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.classic import (
    DescribedClassicGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    read_assignment,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECONDS = 60


class Member:
    """One connection; an answer may be taken later than it is asked for."""

    def __init__(self, servers: str, group: str) -> None:
        host, port = servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._group = group
        self._asked: list[tuple[int, int]] = []
        self.member_id = ""
        self.generation = -1

    def close(self) -> None:
        self._socket.close()

    def send(self, api_key: int, version: int, message: Any) -> None:
        self._socket.sendall(request_frame(api_key, version, len(self._asked), "me", message))
        self._asked.append((api_key, version))

    def receive(self) -> Any:
        api_key, version = self._asked[-1]
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        return read_response(api_key, version, frame)[1]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker hung up"
            data += more
        return data

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        self.send(api_key, version, message)
        return self.receive()

    def send_join(self, version: int = 9, **fields: Any) -> None:
        names = fields.pop("protocols", ("range",))
        topics, owned = fields.pop("topics", ("x",)), fields.pop("owned", {})
        data = write_subscription(Subscription(topics=topics, owned=owned))
        defaults = {
            "group_id": self._group,
            "member_id": self.member_id,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
        }
        protocols = tuple(JoinGroupProtocol(name, data) for name in names)
        request = JoinGroupRequest(**{**defaults, **fields}, protocols=protocols, api_version=version)
        self.send(ApiKey.JOIN_GROUP, version, request)

    def joined(self) -> JoinGroupResponse:
        answer: JoinGroupResponse = self.receive()
        if answer.error_code.name in {"NONE", "MEMBER_ID_REQUIRED"}:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def join(self, version: int = 9, **fields: Any) -> JoinGroupResponse:
        self.send_join(version, **fields)
        return self.joined()

    def join_error(self, **fields: Any) -> str:
        self.send_join(**fields)
        return str(self.receive().error_code.name)

    def enter(self, **fields: Any) -> None:
        """Get an id, and ask to join with it."""
        assert self.join(**fields).error_code.name == "MEMBER_ID_REQUIRED"
        self.send_join(**fields)

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> SyncGroupResponse:
        defaults = {
            "group_id": self._group,
            "generation": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        request = SyncGroupRequest(**{**defaults, **fields}, assignments=assignments or {})
        answer: SyncGroupResponse = self.ask(ApiKey.SYNC_GROUP, 5, request)
        return answer

    def beat(self, **fields: Any) -> str:
        defaults = {"group_id": self._group, "generation": self.generation, "member_id": self.member_id}
        reply = self.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(**{**defaults, **fields}))
        return str(reply.error_code.name)

    def beat_until(self, code: str) -> None:
        deadline = time.monotonic() + SECONDS
        while self.beat() != code:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def commit(self, topic: str, partition: int = 0, **fields: Any) -> str:
        defaults = {
            "member_id": self.member_id,
            "member_epoch": self.generation,
            "instance_id": None,
            "retention_time_ms": -1,
            "api_version": 9,
        }
        partitions = (CommittedPartition(partition, OffsetAndMetadata(offset=1)),)
        call = OffsetCommitCall(
            group_id=self._group,
            topics=(OfTopic(name=topic, partitions=partitions),),
            **{**defaults, **fields},
        )
        ((result,),) = (each.partitions for each in self.ask(ApiKey.OFFSET_COMMIT, 9, call).topics)
        return str(result.error_code.name)

    def leave(self, *members: tuple[str, str | None]) -> list[str]:
        requests = tuple(
            LeaveGroupRequest(group_id=self._group, member_id=member_id, instance_id=instance_id)
            for member_id, instance_id in members
        )
        answer = self.ask(ApiKey.LEAVE_GROUP, 5, LeaveGroupCall(group_id=self._group, members=requests))
        return [member.error_code.name for member in answer.members]

    def description(self) -> DescribedClassicGroup:
        request = DescribeGroupsRequest(group_ids=(self._group,))
        described: DescribeGroupsResponse = self.ask(ApiKey.DESCRIBE_GROUPS, 5, request)
        (group,) = described.groups
        return group

    def described(self) -> tuple[str, str, str, int]:
        """State, type, protocol, and how many members the classic description has."""
        group = self.description()
        return group.group_state, group.protocol_type, group.protocol_data, len(group.members)

    def modern(self, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of the newer protocol."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id="modern", member_epoch=epoch, **fields
        )
        answer: ConsumerGroupHeartbeatResponse = self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        return answer


@pytest.fixture
def members(world: Any) -> Iterator[Callable[[], Member]]:
    """Makes members of one group."""
    with contextlib.ExitStack() as stack:

        def make() -> Member:
            member = Member(world.servers, world.group)
            stack.callback(member.close)
            return member

        first = make()
        deadline = time.monotonic() + SECONDS
        lookup = FindCoordinatorRequest(keys=(world.group,))
        while first.beat() != "UNKNOWN_MEMBER_ID":
            # Kafka makes the coordinators when the first client looks for one.
            first.ask(ApiKey.FIND_COORDINATOR, 4, lookup)
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield make


def pair(members: Callable[[], Member], **fields: Any) -> tuple[Member, Member]:
    """A Stable group of two dynamic members, of which the first one leads."""
    one, two = members(), members()
    one.enter(**fields)
    assert one.joined().leader == one.member_id
    one.sync({one.member_id: b""})
    two.enter(**fields)
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(**fields)
    assert two.joined().generation == one.joined().generation
    return one, two


def share(one: Member, two: Member, topic: str) -> None:
    """The leader gives the first two partitions to itself, and two to the other."""
    held = {one.member_id: (0, 1), two.member_id: (2, 3)}
    assignments = {m: write_assignment(Assignment(partitions={topic: p})) for m, p in held.items()}
    assert one.sync(assignments).assignment == assignments[one.member_id]
    assert two.sync().assignment == assignments[two.member_id]


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
    one.sync({one.member_id: write_assignment(Assignment(partitions=everything))})
    two.enter(topics=(topic,))
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(topics=(topic,), owned=everything)
    assert two.joined().generation == one.joined().generation == 2
    # Nobody is given what the first member is to let go, until it joins without.
    one.sync({one.member_id: write_assignment(Assignment(partitions=less))})
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
    one.sync({one.member_id: write_assignment(Assignment(partitions={topic: (0, 1, 2, 3)}))})
    world.grow(topic, 6)
    if world.is_real:
        time.sleep(1)  # nothing shows when its coordinator has heard of it
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
    one.sync({one.member_id: write_assignment(Assignment(partitions={topic: (0, 1, 2, 3)}))})
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
    data = write_assignment(Assignment(partitions={topic: (0,)}, user_data=b"an assignor's own"))
    one.sync({one.member_id: data})
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": (topic,)}
    assert members().modern(0, topic_partitions={}, **full).error_code.name == "GROUP_ID_NOT_FOUND"
    assert one.beat() == "NONE"
