"""The second statement of Kafka's rules for heartbeats and commits, and what replies must tell."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.encoding import encode
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge import journal
from fencepost.simulation.judge.commits import (
    CommittedOffsets,
    check_deleted_topics,
    expected_commit_error,
)
from fencepost.simulation.judge.consumer_groups import check_answer, check_reply
from fencepost.simulation.judge.consumer_model import refusal
from tests.unit.simulation.judged_steps import ConsumerScene, beat, replying

X = "X" * 22
IMAGE = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4)])
X0, X1 = TopicPartition("x", 0), TopicPartition("x", 1)
NONE = ErrorCode.NONE


def known_group() -> ConsumerGroup:
    """D: dynamic at epoch 5 after 4, holds x 0 since 3, x 1 since 5. S: static i at 5. T: static j, away."""
    known = ConsumerGroup("g")
    held = {X: {0: 3, 1: 5}}
    known._members["D"] = ConsumerGroupMember(
        member_id="D",
        member_epoch=5,
        previous_member_epoch=4,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("x",),
        assigned={X: (0, 1)},
        assignment_epochs=held,
    )
    known._members["S"] = ConsumerGroupMember(
        member_id="S", instance_id="i", member_epoch=5, previous_member_epoch=5
    )
    known._members["T"] = ConsumerGroupMember(
        member_id="T", instance_id="j", member_epoch=-2, previous_member_epoch=5
    )
    known._static_members.update(i="S", j="T")
    return known


def heartbeat(member_id, epoch, owned=None, **fields):
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ("x",), **fields}
        owned = {} if owned is None else owned
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, topic_partitions=owned, **fields
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (heartbeat("D", 5), NONE),
        (heartbeat("D", 0), NONE),
        (heartbeat("D", 6), ErrorCode.FENCED_MEMBER_EPOCH),
        (heartbeat("D", 4), ErrorCode.FENCED_MEMBER_EPOCH),
        (heartbeat("D", 4, {X: (0,)}), NONE),
        (heartbeat("D", 4, {X: (0, 2)}), ErrorCode.FENCED_MEMBER_EPOCH),
        (heartbeat("D", 3, {X: (0,)}), ErrorCode.FENCED_MEMBER_EPOCH),
        (heartbeat("D", -1), NONE),
        (heartbeat("U", 0), NONE),
        (heartbeat("U", 3), ErrorCode.UNKNOWN_MEMBER_ID),
        (heartbeat("U", -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (heartbeat("S", 5, instance_id="i"), NONE),
        (heartbeat("S", 5), NONE),
        (heartbeat("S", 4, instance_id="i"), ErrorCode.FENCED_MEMBER_EPOCH),
        (heartbeat("U", 5, instance_id="i"), ErrorCode.FENCED_INSTANCE_ID),
        (heartbeat("U", -2, instance_id="i"), ErrorCode.FENCED_INSTANCE_ID),
        (heartbeat("S", -2, instance_id="i"), NONE),
        (heartbeat("S", 5, instance_id="k"), ErrorCode.UNKNOWN_MEMBER_ID),
        (heartbeat("U", -2, instance_id="k"), ErrorCode.UNKNOWN_MEMBER_ID),
        (heartbeat("S", 0, instance_id="i"), ErrorCode.UNRELEASED_INSTANCE_ID),
        (heartbeat("U", 0, instance_id="i"), ErrorCode.UNRELEASED_INSTANCE_ID),
        (heartbeat("U", 0, instance_id="j"), NONE),
        (heartbeat("U", 0, instance_id="k"), NONE),
        (heartbeat("D", 0, instance_id="k"), None),
        (heartbeat("D", 0, {X: (0,)}), ErrorCode.INVALID_REQUEST),
        (heartbeat("D", 0, rebalance_timeout_ms=-1), ErrorCode.INVALID_REQUEST),
        (heartbeat("D", 0, subscribed_topic_names=None), ErrorCode.INVALID_REQUEST),
        (heartbeat(" ", 5), ErrorCode.INVALID_REQUEST),
        (heartbeat("D", 5, rack_id=" "), ErrorCode.INVALID_REQUEST),
        (heartbeat("D", -2), ErrorCode.INVALID_REQUEST),
        (heartbeat("D", -3), ErrorCode.INVALID_REQUEST),
    ],
    ids=lambda value: (
        f"{value.member_id}@{value.member_epoch}" if hasattr(value, "member_epoch") else str(value)
    ),
)
def test_the_answer_follows_from_epoch_and_names(request_, expected):
    known = known_group()
    assert refusal(request_, known) == expected
    wrong = ErrorCode.UNRELEASED_INSTANCE_ID if expected != ErrorCode.UNRELEASED_INSTANCE_ID else NONE
    if expected is not None:
        assert not list(check_answer(request_, ConsumerGroupHeartbeatResponse(error_code=expected), known))
        findings = list(check_answer(request_, ConsumerGroupHeartbeatResponse(error_code=wrong), known))
        assert [name for name, _ in findings] == ["heartbeat-answers"]


@pytest.mark.parametrize(
    ("code", "request_", "broken"),
    [
        (ErrorCode.INVALID_REQUEST, heartbeat("U", 0), True),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, heartbeat("D", 5), True),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, heartbeat("U", 0), False),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, heartbeat("U", 3), False),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, heartbeat("U", 0), True),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, heartbeat("U", 0, subscribed_topic_regex="("), False),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, heartbeat("U", 0), True),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, heartbeat("U", 0, server_assignor="mine"), False),
        (ErrorCode.UNSUPPORTED_VERSION, heartbeat("U", 0), True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, heartbeat("D", 5), False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, heartbeat("D", 5), True),
    ],
)
def test_a_heartbeat_is_refused_for_a_reason(code, request_, broken):
    found = list(check_answer(request_, ConsumerGroupHeartbeatResponse(error_code=code), known_group()))
    assert [name for name, _ in found] == (["heartbeat-answers"] if broken else [])


def test_without_a_group_only_a_join_succeeds():
    epochs = {0: NONE, 1: ErrorCode.GROUP_ID_NOT_FOUND, -1: ErrorCode.GROUP_ID_NOT_FOUND}
    assert {epoch: refusal(heartbeat("D", epoch), None) for epoch in epochs} == epochs


def reply(epoch, assignment=None, **fields):
    fields = {"member_id": "D", "heartbeat_interval_ms": 5000, **fields}
    return ConsumerGroupHeartbeatResponse(member_epoch=epoch, assignment=assignment, **fields)


D = known_group().members["D"]
FULL = heartbeat("D", 5, {X: (0, 1)}, rebalance_timeout_ms=1000, subscribed_topic_names=("x",))
BARE = msgspec.structs.replace(D, assigned={})
RIGHT = reply(5, {X: (0, 1)})


@pytest.mark.parametrize(
    ("request_", "answer", "before", "after", "broken"),
    [
        (heartbeat("D", 5), reply(5), D, D, set()),
        (heartbeat("D", 5), reply(6), D, D, {"reply-equals-state"}),
        (heartbeat("D", 5), reply(5, heartbeat_interval_ms=0), D, D, {"reply-equals-state"}),
        (heartbeat("D", 5), RIGHT, D, D, {"assignment-present"}),
        (heartbeat("D", 5, {X: (0, 1)}), RIGHT, D, D, {"assignment-present"}),  # not all fields
        (heartbeat("D", 5), reply(5), BARE, D, {"assignment-present"}),  # it changed
        (heartbeat("D", 0), reply(5), D, D, {"assignment-present"}),
        (heartbeat("D", 0), reply(5, {}), D, D, {"reply-equals-state"}),
        (FULL, RIGHT, D, D, set()),
        (FULL, reply(5), D, D, {"assignment-present"}),
        (FULL, reply(5, {X: (0,)}), D, D, {"reply-equals-state"}),
        (heartbeat("D", -1), reply(-1, heartbeat_interval_ms=0), D, None, set()),
        (heartbeat("D", -1), reply(-1), D, D, {"reply-equals-state"}),  # it is still there
        (heartbeat("D", -1), reply(5), D, None, {"reply-equals-state"}),
        (heartbeat("D", 5), reply(5), None, None, {"reply-equals-state"}),
        # The stored member is what it says about itself.
        *(
            (heartbeat("D", 5, **said), reply(5), D, msgspec.structs.replace(D, **{**said, **stored}), broken)
            for said in (
                {},
                {"subscribed_topic_names": ("x", "y")},
                {"subscribed_topic_regex": "x.*"},
                {"server_assignor": "range"},
                {"rebalance_timeout_ms": 2000},
                {"rack_id": "a"},
            )
            for stored, broken in (
                ({}, set()),
                ({"subscribed_topic_regex": "left over"}, {"heartbeat-recorded"}),
                ({"classic": r.ClassicMemberMetadata(1000, ())}, {"heartbeat-recorded"}),
                *([({name: getattr(D, name) for name in said}, {"heartbeat-recorded"})] if said else ()),
            )
        ),
        (heartbeat("D", 5, subscribed_topic_names=("x", "x")), reply(5), D, D, set()),
    ],
)
def test_a_reply_tells_what_is_stored(request_, answer, before, after, broken):
    assert {name for name, _ in check_reply(request_, answer, before, after)} == broken


def test_a_partition_that_another_member_holds_must_not_be_told():
    scene = ConsumerScene("join A; join B")
    told = reply(3, {X: (0, 1)}, member_id="B")
    assert "granted-after-release" in scene.show(beat("B", 3), Outcome(reply=told))


def commit(member_id, epoch, *partitions, **fields):
    offsets = {partition: OffsetAndMetadata(offset=7) for partition in partitions or (X0,)}
    return OffsetCommitRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, offsets=offsets, **fields
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (commit("D", 5), NONE),
        (commit("D", 5, TopicPartition("x", 3)), NONE),
        (commit("D", 6), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("D", 4, X0), NONE),
        (commit("D", 3, X0), NONE),
        (commit("D", 2, X0), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("D", 4, X0, X1), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("D", 4, TopicPartition("x", 3)), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("D", 4, TopicPartition("gone", 0)), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("T", 5), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("U", 5), ErrorCode.UNKNOWN_MEMBER_ID),
        (commit("", -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (commit("D", 5, api_version=8), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_commits_are_fenced_by_member_and_epoch(request_, expected):
    known = known_group()
    assert expected_commit_error(request_, known, IMAGE) == expected
    commits = CommittedOffsets()
    assert not list(commits.check(request_, committed(request_, expected), known, IMAGE))
    other = NONE if expected != NONE else ErrorCode.STALE_MEMBER_EPOCH
    found = list(commits.check(request_, committed(request_, other), known, IMAGE))
    assert [name for name, _ in found] == ["commit-fenced"]


def committed(request_, code):
    """The outcome of a commit that is answered like that."""
    records = [
        r.Record(
            r.OffsetCommitKey("g", *partition),
            r.OffsetCommitValue(position.offset, position.leader_epoch, position.metadata, 0, topic_id=X),
        )
        for partition, position in request_.offsets.items()
    ]
    answer = OffsetCommitResponse(errors=dict.fromkeys(request_.offsets, code))
    return Outcome(records=tuple(records) if code == NONE else (), reply=answer)


def test_a_commit_that_is_refused_for_no_reason_is_flagged():
    request = commit("D", 5)
    for code, broken in (
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, False),
        (ErrorCode.UNSUPPORTED_VERSION, True),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, True),
    ):
        found = list(CommittedOffsets().check(request, committed(request, code), known_group(), IMAGE))
        assert [name for name, _ in found] == (["commit-fenced"] if broken else [])


def committing(offset, member_id="D"):
    offsets = {X0: OffsetAndMetadata(offset=offset)}
    return msgspec.structs.replace(commit(member_id, 5), offsets=offsets)


def test_a_member_commits_no_offset_before_its_own():
    known = known_group()
    known._members["E"] = msgspec.structs.replace(known.members["D"], member_id="E")
    commits = CommittedOffsets()
    for request, broken in (
        (committing(7), False),
        (committing(7), False),
        (committing(6), True),
        (committing(5, "E"), False),
        (committing(4), False),
    ):
        found = list(commits.check(request, committed(request, NONE), known, IMAGE))
        assert [name for name, _ in found] == (["offsets-advance"] if broken else [])


def test_a_commit_may_be_overtaken_by_one_that_was_sent_later():
    commits = CommittedOffsets()
    first, second = committing(7), committing(9)
    commits.sends(first)
    commits.sends(second)
    for request in (second, first):
        assert not list(commits.check(request, committed(request, NONE), known_group(), IMAGE))


def offset_record(offset):
    value = None if offset is None else r.OffsetCommitValue(offset, -1, "", 0)
    return r.Record(r.OffsetCommitKey("g", "x", 0), value)


def fetch(epoch=5, member_id="D"):
    return OffsetFetchRequest(group_id="g", member_id=member_id, member_epoch=epoch, partitions=(X0,))


def answered(offset=-1, error=NONE):
    offsets = {} if error != NONE else {X0: OffsetAndMetadata(offset=offset)}
    return Outcome(reply=OffsetFetchResponse(group_id="g", error_code=error, offsets=offsets))


def test_a_fetch_answers_what_was_committed():
    commits = CommittedOffsets()
    assert not list(commits.check(fetch(), answered(-1), known_group(), IMAGE))
    assert not list(commits.take_all((offset_record(7),), None, IMAGE))
    assert not list(commits.check(fetch(), answered(7), known_group(), IMAGE))
    found = list(commits.check(fetch(), answered(6), known_group(), IMAGE))
    assert [name for name, _ in found] == ["fetch-equals-commit"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (fetch(), NONE),
        (fetch(4), ErrorCode.STALE_MEMBER_EPOCH),
        (fetch(5, "U"), ErrorCode.UNKNOWN_MEMBER_ID),
        (fetch(-1, None), NONE),
    ],
)
def test_fetches_are_fenced_by_member_and_epoch(request_, expected):
    assert not list(CommittedOffsets().check(request_, answered(error=expected), known_group(), IMAGE))
    other = NONE if expected != NONE else ErrorCode.STALE_MEMBER_EPOCH
    found = list(CommittedOffsets().check(request_, answered(error=other), known_group(), IMAGE))
    assert [name for name, _ in found] == ["commit-fenced"]


def test_offsets_of_subscribed_topics_do_not_disappear():
    known = ConsumerGroup("g")
    known._members["D"] = ConsumerGroupMember(member_id="D", subscribed_topic_names=("x",))
    for group, image, broken in (
        (known, IMAGE, True),
        (known, TopicsImage(), False),
        (ConsumerGroup("g"), IMAGE, False),
    ):
        commits = CommittedOffsets()
        assert not list(commits.take_all((offset_record(7),), group, image))
        found = [name for name, _ in commits.take_all((offset_record(None),), group, image)]
        assert found == (["offsets-kept"] if broken else [])


@pytest.mark.parametrize("staged", [False, True])
def test_offsets_of_a_deleted_topic_go(staged):
    live = GroupCoordinator(GroupCoordinatorConfig())
    live.handle(TopicsChanged(image=IMAGE), 0)
    key = r.PendingOffsetCommitKey("g", "x", 0, 7) if staged else r.OffsetCommitKey("g", "x", 0)
    value = r.PendingOffsetCommitValue if staged else r.OffsetCommitValue
    live.apply(r.Record(key, value(5, -1, "", 0, topic_id=X)))
    again = TopicsImage.of([Topic(topic_id=X[::-1].lower(), name="x", partitions=4)])
    assert not list(check_deleted_topics(IMAGE, live))
    outcome = live.handle(TopicsChanged(image=again), 0)
    assert [name for name, _ in check_deleted_topics(IMAGE, live)] == ["offsets-kept"]
    live.apply_batch(outcome.records)
    assert not list(check_deleted_topics(IMAGE, live))


@pytest.mark.parametrize("name", ["nonsense", ""])
def test_a_draw_of_assignors_is_decided_for_one_of_them(name):
    scene = ConsumerScene()
    scene.join("A", server_assignor="range")
    scene.join("B", server_assignor="uniform")
    request = ConsumerGroupDescribeRequest(group_ids=("g",))
    scene.step(request)
    assert not scene.found

    def other(outcome):
        (group,) = outcome.reply.groups
        return replying(groups=(msgspec.structs.replace(group, assignor_name=name),))(outcome)

    scene.step(request, other)
    assert scene.broken == {"told-equals-state"}


def test_a_record_that_only_moves_an_epoch_is_not_encoded_again(monkeypatch):
    encoded = []
    monkeypatch.setattr(journal, "encode", lambda record: encoded.append(record) or encode(record))
    scene = ConsumerScene()
    scene.join("A", server_assignor="range")
    scene.beat("A", "01")
    encoded.clear()
    scene.rebalance()
    scene.beat("A", "01")
    assert encoded
    kept = r.ConsumerGroupCurrentMemberAssignmentKey
    assert not [record for record in encoded if type(record.key) is kept]
    assert not scene.found
