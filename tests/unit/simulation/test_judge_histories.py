"""Histories of a real coordinator that Kafka allows are not reported; the same ones, tampered with, are.

What is right here was asked of Kafka 4.3.1 itself.
"""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupProtocol, JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    Outcome,
    RegularExpressionsResolved,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.simulation.judge.classic import ClassicGroupsJudge, KnownClassic, WrittenGenerations
from fencepost.simulation.judge.coordination import Coordination

E = ErrorCode
X0, X9, GONE = TopicPartition("x", 0), TopicPartition("x", 9), TopicPartition("gone", 0)
IMAGE = TopicsImage.of([Topic(topic_id="X" * 22, name="x", partitions=2)])
RANGE = (JoinGroupProtocol("range", write_subscription(ConsumerProtocolSubscription(topics=("x",)))),)
EMPTY = r.GroupMetadataValue(protocol_type="", generation=0)


def same(outcome):
    return outcome


class Scene:
    """A coordinator whose every step is judged: what is reported of the group is in `found`."""

    def __init__(self):
        self.live = GroupCoordinator(GroupCoordinatorConfig(group_initial_rebalance_delay_ms=0))
        world = SimpleNamespace(
            config=self.live.config,
            journal=MemoryJournal(),
            active=self.live,
            coordinators={"b": SimpleNamespace(coordinator=self.live)},
        )
        self.found = []
        self.now_ms = 0
        self.judges = (Coordination(), ClassicGroupsJudge())
        for judge in self.judges:
            judge.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.step(TopicsChanged(image=IMAGE))

    def step(self, event, tamper=same):
        """One event, whose outcome may be another one; what it was answered."""
        self.now_ms += 2_000
        outcome = tamper(self.live.handle(event, self.now_ms))
        for record in outcome.records:
            self.live.apply(record)
        for judge in self.judges:
            judge.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply

    def heartbeat(self, member_id, epoch):
        full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("x",), "topic_partitions": {}}
        fields = {} if epoch else full
        return self.step(
            ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
        )

    def join(self, protocols=RANGE, member_id="", tamper=same, group_id="g"):
        request = JoinGroupRequest(
            group_id=group_id,
            protocol_type="consumer",
            protocols=protocols,
            member_id=member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            client_id="c",
            new_member_suffix="1",
        )
        reply = self.step(request, tamper)
        return None if reply is None else reply.error_code

    def commit(self, member_id="", epoch=-1, partitions=(X0,), tamper=same, **fields):
        offsets = {each: OffsetAndMetadata(offset=7) for each in partitions}
        request = OffsetCommitRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, offsets=offsets, **fields
        )
        return list(self.step(request, tamper).errors.values())


@pytest.fixture
def scene():
    return Scene()


def answering(*codes):
    """Answers a commit with these codes instead, and writes nothing."""

    def tamper(outcome):
        errors = dict(zip(outcome.reply.errors, codes, strict=True))
        return Outcome(reply=OffsetCommitResponse(errors=errors))

    return tamper


def only_offsets(scene):
    assert scene.commit() == [E.NONE]


def only_offsets_in_a_transaction(scene):
    assert scene.commit(producer_id=1) == [E.NONE]


def no_group(scene):
    pass


def no_more_offsets(scene):
    only_offsets_in_a_transaction(scene)
    scene.step(TransactionEnded(group_id="g", producer_id=1, commit=False))


def emptied_consumer_group(scene):
    assert scene.heartbeat("A", 0).error_code is E.NONE
    scene.step(LeaveGroupRequest(group_id="g", member_id="A"))


def emptied_classic_group(scene):
    assert scene.join() is E.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(
    ("before", "version", "right"),
    [
        (no_group, 3, E.ILLEGAL_GENERATION),
        (no_group, 8, E.ILLEGAL_GENERATION),
        (no_group, 9, E.GROUP_ID_NOT_FOUND),
        (only_offsets, 8, E.UNKNOWN_MEMBER_ID),
        (only_offsets, 9, E.UNKNOWN_MEMBER_ID),
        (only_offsets_in_a_transaction, 9, E.UNKNOWN_MEMBER_ID),
        (emptied_consumer_group, 8, E.UNKNOWN_MEMBER_ID),
        (emptied_consumer_group, 9, E.UNKNOWN_MEMBER_ID),
        (emptied_classic_group, 8, E.UNKNOWN_MEMBER_ID),
        (emptied_classic_group, 9, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_commit_by_nobody_s_member_has_one_right_answer(before, version, right):
    scene = Scene()
    before(scene)
    assert scene.commit("A", 3, api_version=version) == [right]
    assert scene.found == []
    for wrong in {E.NONE, E.ILLEGAL_GENERATION, E.GROUP_ID_NOT_FOUND, E.UNKNOWN_MEMBER_ID} - {right}:
        scene.commit("A", 3, api_version=version, tamper=answering(wrong))
        unwritten = ["commit-recorded"] if wrong is E.NONE else []
        assert sorted(scene.found) == ["commit-fenced", *unwritten], wrong
        scene.found.clear()


@pytest.mark.parametrize("version", [8, 9])
def test_a_group_stays_without_its_last_offset(version):
    scene = Scene()
    no_more_offsets(scene)
    assert scene.commit("A", 3, api_version=version) == [E.UNKNOWN_MEMBER_ID]
    assert scene.found == []


@pytest.mark.parametrize("before", [only_offsets, emptied_consumer_group, emptied_classic_group])
def test_partitions_that_are_not_there_are_refused_for_themselves(scene, before):
    before(scene)
    partitions = (X0, X9, GONE)
    right = [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert scene.commit("A", 3, partitions) == right
    assert scene.found == []
    scene.commit("A", 3, partitions, answering(*[E.UNKNOWN_TOPIC_OR_PARTITION] * 3))
    assert scene.found == ["commit-fenced"], "x-0 is there"
    scene.found.clear()
    scene.commit("A", 3, partitions, answering(*[E.UNKNOWN_MEMBER_ID] * 3))
    assert scene.found == ["commit-recorded"] * 2, "x-9 and gone-0 are not"


def test_partitions_that_are_refused_for_themselves_do_not_make_an_epoch_stale(scene):
    old = scene.heartbeat("A", 0).member_epoch
    assert scene.heartbeat("B", 0).member_epoch > old
    topics = {"X" * 22: (0, 1)}
    step = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="A", member_epoch=old, topic_partitions=topics
    )
    assert scene.step(step).member_epoch == old, "it is to give up one of two partitions first"
    (kept,) = scene.live.groups["g"].members["A"].assigned["X" * 22]
    step = msgspec.structs.replace(step, topic_partitions={"X" * 22: (kept,)})
    assert scene.step(step).member_epoch > old
    held = TopicPartition("x", kept)
    too_long = {TopicPartition("x", 1 - kept): OffsetAndMetadata(offset=7, metadata="m" * 5_000)}
    request = OffsetCommitRequest(
        group_id="g",
        member_id="A",
        member_epoch=old,
        offsets={held: OffsetAndMetadata(offset=7), GONE: OffsetAndMetadata(offset=7), **too_long},
    )
    right = [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.OFFSET_METADATA_TOO_LARGE]
    assert list(scene.step(request).errors.values()) == right
    assert scene.found == []
    scene.step(request, answering(E.STALE_MEMBER_EPOCH, *right[1:]))
    assert scene.found == ["commit-fenced"]


def refused_by(code=E.INCONSISTENT_GROUP_PROTOCOL, *more, value=EMPTY, group_id="g", instead=False):
    """Answers a JoinGroup with this code, and writes this group; `more` records before it, or `instead`."""

    def tamper(outcome):
        reply = msgspec.structs.replace(outcome.reply, error_code=code)
        own = () if instead else outcome.records[:-1]
        made = r.Record(r.GroupMetadataKey(group_id), value)
        return Outcome(records=(*more, *own, made), reply=reply)

    return tamper


@pytest.mark.parametrize("before", [no_group, only_offsets, emptied_consumer_group])
def test_a_group_stays_that_a_refused_member_has_made(scene, before):
    before(scene)
    assert scene.join(()) is E.INCONSISTENT_GROUP_PROTOCOL
    assert scene.live.classic.groups["g"].state == "Empty"
    assert scene.join() is E.MEMBER_ID_REQUIRED, "the next one is no longer the first"
    assert scene.found == []


OFFSET_ENDS = r.Record(r.OffsetCommitKey("g", "x", 0), None)


@pytest.mark.parametrize(
    ("before", "tamper"),
    [
        (no_group, refused_by(E.UNKNOWN_MEMBER_ID)),
        (no_group, refused_by(value=msgspec.structs.replace(EMPTY, generation=1))),
        (no_group, refused_by(group_id="other")),
        (no_group, refused_by(value=None)),
        (only_offsets, refused_by(E.INCONSISTENT_GROUP_PROTOCOL, OFFSET_ENDS)),
        (emptied_consumer_group, refused_by(E.INCONSISTENT_GROUP_PROTOCOL, OFFSET_ENDS)),
        (emptied_classic_group, refused_by(instead=True)),
    ],
)
def test_a_refused_member_writes_nothing_else(scene, before, tamper):
    before(scene)
    scene.join((), tamper=tamper)
    assert "failed-changes-nothing" in scene.found


def test_a_refused_member_does_not_end_a_group_that_has_members(scene):
    assert scene.heartbeat("A", 0).error_code is E.NONE
    ends = tuple(
        r.Record(key, None)
        for key in (
            r.ConsumerGroupCurrentMemberAssignmentKey("g", "A"),
            r.ConsumerGroupTargetAssignmentMemberKey("g", "A"),
            r.ConsumerGroupTargetAssignmentMetadataKey("g"),
            r.ConsumerGroupMemberMetadataKey("g", "A"),
            r.ConsumerGroupMetadataKey("g"),
        )
    )
    scene.join((), tamper=refused_by(E.INCONSISTENT_GROUP_PROTOCOL, *ends))
    assert "failed-changes-nothing" in scene.found


# Generations


def generation(number):
    return r.Record(r.GroupMetadataKey("g"), msgspec.structs.replace(EMPTY, generation=number))


CLASSIC_ENDS = (r.Record(r.GroupMetadataKey("g"), None),)
EMPTY_CONSUMER_GROUP_ENDS = (r.Record(r.ConsumerGroupMetadataKey("g"), None),)
CONSUMER_GROUP_ENDS = (r.Record(r.ConsumerGroupMemberMetadataKey("g", "A"), None), *EMPTY_CONSUMER_GROUP_ENDS)


def known(state):
    group = SimpleNamespace(group_id="g", generation=3, state=state, members={}, pending_joins={})
    return {"g": KnownClassic(group)}


@pytest.mark.parametrize(
    ("batches", "falls"),
    [
        # The group goes on.
        ([("Stable", (generation(2),))], True),
        ([("Stable", (generation(4),))], False),
        # It becomes a consumer group with its members, and a classic one again, with members or without.
        ([("Stable", CLASSIC_ENDS), (None, (*CONSUMER_GROUP_ENDS, generation(2)))], True),
        ([("Stable", CLASSIC_ENDS), (None, (*CONSUMER_GROUP_ENDS, generation(3)))], False),
        ([("Stable", CLASSIC_ENDS), (None, (*EMPTY_CONSUMER_GROUP_ENDS, generation(0)))], False),
        ([("Stable", CLASSIC_ENDS), (None, EMPTY_CONSUMER_GROUP_ENDS), (None, (generation(0),))], False),
        # It was empty when it became a consumer group, or went.
        ([("Empty", CLASSIC_ENDS), (None, (*CONSUMER_GROUP_ENDS, generation(2)))], False),
        ([("Empty", CLASSIC_ENDS), (None, (generation(0),))], False),
        # It had members, and nothing may end it.
        ([("PreparingRebalance", CLASSIC_ENDS), (None, (generation(0),))], True),
    ],
)
def test_a_generation_falls_only_where_nobody_is_left(batches, falls):
    written = WrittenGenerations()
    assert list(written.check((generation(3),), {})) == []
    found = []
    for state, batch in batches:
        groups = {} if state is None else known(ClassicGroupState(state))
        found += [name for name, _ in written.check(batch, groups)]
    assert found == (["classic-generations"] if falls else [])


def test_a_classic_group_that_replaces_an_emptied_one_begins_anew(scene):
    assert scene.join() is E.MEMBER_ID_REQUIRED
    assert scene.join(member_id="c-1") is None, "it waits for others"
    scene.step(DeadlineReached())
    assignment = write_assignment(ConsumerProtocolAssignment(partitions={"x": (0, 1)}))
    sync = SyncGroupRequest(group_id="g", generation=1, member_id="c-1", assignments={"c-1": assignment})
    assert scene.step(sync).error_code is E.NONE
    assert scene.live.classic.stored["g"].generation == 1
    assert scene.heartbeat("A", 0).error_code is E.NONE
    assert set(scene.live.groups["g"].members) == {"A", "c-1"}, "it is a consumer group with both"
    for member_id in ("c-1", "A"):
        scene.step(LeaveGroupRequest(group_id="g", member_id=member_id))
    assert scene.join() is E.MEMBER_ID_REQUIRED
    assert scene.live.classic.stored["g"].generation == 0
    assert scene.found == []


def leak(scene, count):
    for number in range(count):
        scene.live.classic.timers.set(f"leaked {number}", 10**12)


def test_timers_of_classic_groups_that_nobody_needs_are_found(scene):
    for number in range(3):
        assert scene.join(group_id=f"g{number}") is E.MEMBER_ID_REQUIRED
    assert len(scene.live.classic.timers) == 3
    leak(scene, 6)
    assert scene.join(group_id="g0") is E.MEMBER_ID_REQUIRED
    assert scene.found == [], "a group and an id that was given out may have three"
    leak(scene, 7)
    assert scene.join(group_id="g0", member_id="c-1") is None
    assert scene.found == ["bounded-memory"]


def test_timers_are_counted_anew_when_an_id_is_not_taken_up(scene):
    for group_id in "gh":
        assert scene.join(group_id=group_id) is E.MEMBER_ID_REQUIRED
    scene.now_ms += 10_000
    scene.step(DeadlineReached())
    assert not scene.live.classic.groups["g"].pending_joins
    leak(scene, 5)
    scene.join(group_id="h")
    assert scene.found == ["bounded-memory"]


def test_timers_that_outlive_their_group_are_found(scene):
    for group_id in "gh":
        assert scene.join(group_id=group_id) is E.MEMBER_ID_REQUIRED
    leak(scene, 4)
    assert scene.found == []
    scene.now_ms += 10_000
    scene.step(DeadlineReached())
    scene.step(DeleteGroupsRequest(group_id="g"))
    scene.step(TopicsChanged(image=IMAGE))
    assert set(scene.found) == {"bounded-memory"}


def test_a_classic_group_that_no_event_names_is_looked_at(scene):
    for group_id in ("quiet", "g"):
        assert scene.join(group_id=group_id) is E.MEMBER_ID_REQUIRED
        assert scene.join(group_id=group_id, member_id="c-1") is None
        scene.step(DeadlineReached())
    assert scene.found == []
    scene.live.classic.groups["g"].generation = 5
    scene.step(DeadlineReached())
    assert scene.found == ["classic-generations"]


def test_an_expression_that_is_not_resolved_yet_leaves_the_digest_of_the_one_before(scene):
    def join(expression):
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="A",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=(),
            subscribed_topic_regex=expression,
            topic_partitions={},
        )
        return scene.step(request)

    def resolve(expression, *topics):
        version = scene.live.image.version
        scene.step(
            RegularExpressionsResolved(group_id="g", topics={expression: topics}, image_version=version)
        )

    assert join("x.*").error_code is E.NONE
    resolve("x.*", "x")
    group = scene.live.groups["g"]
    epoch, digest = group.group_epoch, group.metadata_hash
    assert digest
    assert join("y.*").error_code is E.NONE
    assert (group.group_epoch, group.metadata_hash, group.assignment_epoch) == (epoch, digest, epoch)
    assert group.resolved == {}
    assert scene.found == []


LATE = {"revocation-bounded", "gone-members"}
"""What is said of timers that ran out and did nothing."""


@pytest.mark.parametrize(
    ("stands_still", "found"),
    [(None, LATE), ("c", LATE), ("b", set())],
)
def test_timers_of_a_broker_that_stood_still_are_late(scene, stands_still, found):
    for member_id, epoch in (("A", 0), ("B", 0), ("A", 2)):
        assert scene.heartbeat(member_id, epoch).error_code is E.NONE
    if stands_still is not None:
        scene.judges[0].on_fault("broker-pause", "begin", stands_still, scene.now_ms * 1_000)
    scene.now_ms += 60_000
    scene.step(DeadlineReached())
    assert "A" not in scene.live.groups["g"].members
    assert set(scene.found) == found
