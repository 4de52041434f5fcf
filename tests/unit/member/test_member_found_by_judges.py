"""Defects that judges found in simulated runs, each as the shortest history that shows it."""

from __future__ import annotations

import random
from collections.abc import Callable

from fencepost.coordinator.protocol import offsets
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.actions import (
    CallbackKind,
    CommitFinished,
    FetchOffsets,
    ResolveTopicNames,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import RequestFailure
from fencepost.member.consumer.actions import SendHeartbeat
from fencepost.member.consumer.machine import ConsumerMember

X = "XXXXXXXXXXXXXXXXXXXXXX"
X0 = TopicPartition("x", 0)


class Script:
    """A member, and all actions that it has asked for."""

    def __init__(self) -> None:
        self.member = ConsumerMember("g", "m", ConsumerConfig(), random.Random(1))
        self.actions = []

    def __call__(self, actions) -> None:
        self.actions += actions

    def last(self, kind):
        return next(action for action in reversed(self.actions) if isinstance(action, kind))


def consuming(assigned=None) -> Script:
    """A member that owns x-0, or what it is told, and was handed ten records of each partition."""
    assigned = assigned or {X: (0,)}
    script = Script()
    member = script.member
    script(member.subscribe(["x"], None, 0))
    script(member.poll_begin(0))
    script(member.coordinator_found(script.last(SendFindCoordinator).token, 0))
    answer = ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=2, heartbeat_interval_ms=5000, assignment=assigned
    )
    script(member.heartbeat_answered(script.last(SendHeartbeat).token, answer, 0))
    script(member.topic_names_found(script.last(ResolveTopicNames).token, {X: "x"}, 0))
    script(member.callback_finished(script.last(RunCallback).token, None, 0))
    owned = [TopicPartition("x", number) for number in assigned[X]]
    nothing = dict.fromkeys(owned, offsets.OffsetAndMetadata(offset=0))
    found = offsets.OffsetFetchResponse(group_id="g", offsets=nothing)
    script(member.offsets_fetched(script.last(FetchOffsets).token, found, 0))
    assert member.positions.fetchable() == dict.fromkeys(owned, 0)
    script(member.poll_end(dict.fromkeys(owned, 10), 10))
    return script


def test_a_close_whose_commit_nobody_answers_still_runs_on_revoked():
    script = consuming()
    script(script.member.close(1_000, timeout_ms=30_000))
    assert script.last(SendCommit).request.offsets[X0].offset == 10
    while script.member.deadline_ms is not None and script.member.deadline_ms < 31_000:
        script(script.member.deadline_reached(script.member.deadline_ms))
        callback = script.last(RunCallback)
        if callback.kind is CallbackKind.REVOKED:
            break
    assert callback.kind is CallbackKind.REVOKED
    assert callback.partitions == (X0,)


def commits_at_once_and_releases(let_go: Callable[[Script], None]) -> None:
    """A periodic commit is unanswered as a member lets go: the one before the callback waits for nobody."""
    script = consuming()
    member = script.member
    script(member.poll_begin(5_000))
    before = script.last(SendCommit)
    assert before.request.offsets[X0].offset == 10
    script(member.poll_end({X0: 20}, 5_010))
    let_go(script)
    last = script.last(SendCommit)
    assert last.request.offsets[X0].offset == 20
    answer = offsets.OffsetCommitResponse(errors={X0: ErrorCode.NONE})
    script(member.commit_answered(before.token, answer, 7_000))
    assert script.last(RunCallback).kind is CallbackKind.ASSIGNED
    script(member.commit_answered(last.token, answer, 8_000))
    assert script.last(RunCallback).kind is CallbackKind.REVOKED


def test_a_close_commits_at_once_while_a_commit_of_before_is_unanswered():
    commits_at_once_and_releases(lambda script: script(script.member.close(6_000)))


def heartbeat_answer(assignment=None, epoch=2):
    return ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=epoch, heartbeat_interval_ms=5000, assignment=assignment
    )


def granted_another() -> Script:
    """A member that owns x-0, was told x-1 as well, and waits for a commit before it takes it."""
    script = consuming()
    member = script.member
    acknowledgement = script.last(SendHeartbeat)
    assert acknowledgement.request.topic_partitions == {X: (0,)}
    script(member.heartbeat_answered(acknowledgement.token, heartbeat_answer(), 20))
    script(member.deadline_reached(5_020))
    script(member.heartbeat_answered(script.last(SendHeartbeat).token, heartbeat_answer({X: (0, 1)}), 5_020))
    script(member.poll_begin(5_030))
    assert script.last(SendCommit).request.offsets[X0].offset == 10
    return script


def test_a_revocation_commits_at_once_while_a_commit_of_before_is_unanswered():
    def told_to_revoke(script: Script) -> None:
        member = script.member
        script(member.heartbeat_answered(script.last(SendHeartbeat).token, heartbeat_answer({}), 5_020))
        script(member.poll_begin(6_000))

    commits_at_once_and_releases(told_to_revoke)


def fail_heartbeat(script, now_ms) -> None:
    """The next heartbeat gets no answer; the one after it says everything."""
    member = script.member
    while member.deadline_ms < now_ms:
        script(member.deadline_reached(member.deadline_ms))
    script(member.request_failed(script.last(SendHeartbeat).token, RequestFailure.TIMED_OUT, now_ms))
    script(member.coordinator_found(script.last(SendFindCoordinator).token, now_ms))
    script(member.deadline_reached(now_ms + 2_000))
    assert script.last(SendHeartbeat).request.rebalance_timeout_ms > 0


def test_a_partition_that_the_target_may_still_bring_is_not_reported_as_released():
    script = granted_another()
    fail_heartbeat(script, 11_000)
    assert script.last(SendHeartbeat).request.topic_partitions == {X: (0, 1)}


def test_a_partition_that_a_newer_target_takes_back_is_not_taken_any_more():
    script = granted_another()
    member = script.member
    fail_heartbeat(script, 11_000)
    script(member.heartbeat_answered(script.last(SendHeartbeat).token, heartbeat_answer({X: (0,)}), 14_000))
    accepted = offsets.OffsetCommitResponse(errors={X0: ErrorCode.NONE})
    for _ in range(2):  # the one of the interval, then the one before the release
        script(member.commit_answered(script.last(SendCommit).token, accepted, 14_010))
    assert [c.partitions for c in script.actions if isinstance(c, RunCallback)] == [(X0,)]
    assert script.last(SendHeartbeat).request.topic_partitions == {X: (0,)}


def test_a_commit_that_waits_for_a_coordinator_leaves_out_what_was_let_go_meanwhile():
    script = consuming({X: (0, 1)})
    member = script.member
    script(member.heartbeat_answered(script.last(SendHeartbeat).token, heartbeat_answer(), 20))
    script(member.deadline_reached(5_020))
    script(member.heartbeat_answered(script.last(SendHeartbeat).token, heartbeat_answer({X: (0,)}), 5_020))
    script(member.deadline_reached(10_020))
    script(member.request_failed(script.last(SendHeartbeat).token, RequestFailure.DISCONNECTED, 10_030))
    script(member.poll_begin(10_040))
    while script.last(RunCallback).kind is not CallbackKind.REVOKED:  # the commit before it has expired
        script(member.deadline_reached(member.deadline_ms))
    now_ms = member.deadline_ms or 400_000
    script(member.poll_begin(now_ms))
    script(member.callback_finished(script.last(RunCallback).token, None, now_ms))
    assert not any(isinstance(action, SendCommit) for action in script.actions)
    script(member.coordinator_found(script.last(SendFindCoordinator).token, now_ms))
    assert list(script.last(SendCommit).request.offsets) == [X0]


def test_a_commit_names_its_topics_by_id():
    """A topic that is deleted and created again must not get the offsets of the one before."""
    script = granted_another()
    request = script.last(SendCommit).request
    assert request.topic_ids == {"x": X}
    assert request.api_version == 10


def test_a_commit_for_a_topic_that_is_not_owned_has_names_only():
    script = consuming()
    other = TopicPartition("other", 0)
    _, actions = script.member.commit(
        {X0: offsets.OffsetAndMetadata(offset=3), other: offsets.OffsetAndMetadata(offset=4)}, 50
    )
    script(actions)
    request = script.last(SendCommit).request
    assert (request.topic_ids, request.api_version) == ({}, 9)


FOO, BAR = TopicPartition("foo", 0), TopicPartition("bar", 0)
FOO_ID, BAR_ID = "foo-id", "bar-id"
INTERVAL_MS = 5_000


def consumed_two(rig):
    """A member of the application's commits, which owns foo-0 and bar-0 and was handed records of both."""
    member = rig()
    member.stable({FOO_ID: (0,), BAR_ID: (0,)})
    member.poll_end({FOO: 10, BAR: 20})
    return member


def finished(member):
    return [action for action in member.log if isinstance(action, CommitFinished)]


def test_a_commit_of_the_application_does_not_outlive_the_loss_of_its_partitions(rig):
    """The next join's epoch would let it overwrite what the partitions' next owner has committed."""
    member = consumed_two(rig)
    commit_id, actions = member.member.commit(None, member.now)
    member.take(actions)
    member.fail(SendCommit)
    member.poll_begin()
    member.advance(INTERVAL_MS)
    member.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    member.callback()
    member.fail(SendCommit)
    assert finished(member) == [CommitFinished(commit_id, ErrorCode.REQUEST_TIMED_OUT)]
    member.answer(5, {})
    member.advance(60_000)
    assert not member.pending(SendCommit)


def test_what_a_commit_that_is_tried_again_still_owns_is_committed(rig):
    member = consumed_two(rig)
    commit_id, actions = member.member.commit(None, member.now)
    member.take(actions)
    member.poll_begin()
    member.advance(INTERVAL_MS)
    member.answer(3, {FOO_ID: (0,)})
    member.callback()
    assert member.one(SendCommit).request.offsets.keys() == {FOO, BAR}
    member.committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    member.advance(5_000)
    assert member.committed().request.offsets.keys() == {FOO}
    assert finished(member) == [CommitFinished(commit_id, ErrorCode.STALE_MEMBER_EPOCH)]
