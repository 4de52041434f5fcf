"""Defects that judges found in simulated runs, each as the shortest history that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitResponse
from fencepost.member.base.actions import CommitFinished, RunCallback, SendCommit
from fencepost.member.base.errors import RequestFailure

MakeRig = Callable[..., Any]
FOO, BAR = "foo-id", "bar-id"
FOO_0, FOO_1, BAR_0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
INTERVAL_MS = 5_000


def consumed(rig: MakeRig, *partitions: TopicPartition) -> Any:
    """A member that commits at intervals and was handed ten records of each partition."""
    r = rig(enable_auto_commit=True)
    r.stable({FOO: tuple(each.partition for each in partitions)})
    r.poll_end(dict.fromkeys(partitions, 10))
    return r


def accept(r: Any, commit: SendCommit) -> None:
    r.open.remove(commit)
    response = OffsetCommitResponse(errors=dict.fromkeys(commit.request.offsets, ErrorCode.NONE))
    r.take(r.member.commit_answered(commit.token, response, r.now))


def test_a_close_whose_commit_nobody_answers_still_runs_on_revoked(rig: MakeRig) -> None:
    r = consumed(rig, FOO_0)
    r.close(timeout_ms=30_000)
    assert r.one(SendCommit).request.offsets[FOO_0].offset == 10
    r.advance(29_999)
    callback = r.one(RunCallback)
    assert (callback.kind, callback.partitions) == ("revoked", (FOO_0,))


def commits_at_once_and_releases(rig: MakeRig, let_go: Callable[[Any], None]) -> None:
    """A periodic commit is unanswered as a member lets go: the one before the callback waits for nobody."""
    r = consumed(rig, FOO_0)
    r.advance(INTERVAL_MS)
    r.poll_begin()
    before = r.one(SendCommit)
    assert before.request.offsets[FOO_0].offset == 10
    r.poll_end({FOO_0: 20})
    let_go(r)
    _, last = r.pending(SendCommit)
    assert last.request.offsets[FOO_0].offset == 20
    accept(r, before)
    assert r.pending(RunCallback) == []
    accept(r, last)
    assert r.one(RunCallback).kind == "revoked"


def test_a_close_commits_at_once_while_a_commit_of_before_is_unanswered(rig: MakeRig) -> None:
    commits_at_once_and_releases(rig, lambda r: r.close())


def test_a_revocation_commits_at_once_while_a_commit_of_before_is_unanswered(rig: MakeRig) -> None:
    def told_to_revoke(r: Any) -> None:
        r.answer(2, {})
        r.poll_begin()

    commits_at_once_and_releases(rig, told_to_revoke)


def granted_another(rig: MakeRig) -> Any:
    """A member that owns foo-0, was told foo-1 as well, and waits for a commit before it takes it."""
    r = consumed(rig, FOO_0)
    r.advance(INTERVAL_MS)
    r.answer(2, {FOO: (0, 1)})
    r.poll_begin()
    assert r.one(SendCommit).request.offsets[FOO_0].offset == 10
    return r


def fail_heartbeat(r: Any) -> None:
    """The next heartbeat gets no answer; the one after it says everything."""
    r.advance(INTERVAL_MS)
    r.fail(failure=RequestFailure.TIMED_OUT)
    r.advance(2_000)
    assert r.heartbeat().rebalance_timeout_ms > 0


def test_a_partition_that_the_target_may_still_bring_is_not_reported_as_released(rig: MakeRig) -> None:
    r = granted_another(rig)
    fail_heartbeat(r)
    assert r.heartbeat().topic_partitions == {FOO: (0, 1)}


def test_a_partition_that_a_newer_target_takes_back_is_not_taken_any_more(rig: MakeRig) -> None:
    r = granted_another(rig)
    fail_heartbeat(r)
    r.answer(2, {FOO: (0,)})
    accept(r, r.one(SendCommit))
    assert [each.partitions for each in r.log if isinstance(each, RunCallback)] == [(FOO_0,)]
    assert r.heartbeat().topic_partitions == {FOO: (0,)}


def test_a_commit_that_waits_for_a_coordinator_leaves_out_what_was_let_go_meanwhile(rig: MakeRig) -> None:
    r = consumed(rig, FOO_0, FOO_1)
    r.advance(INTERVAL_MS)
    r.answer(2, {FOO: (0,)})
    r.auto_coordinator = False
    r.advance(INTERVAL_MS)
    r.fail()
    r.poll_begin()
    while not r.pending(RunCallback):  # the commit before it has to expire
        r.advance(1_000)
    r.poll_begin()
    assert r.callback().kind == "revoked"
    assert not any(isinstance(action, SendCommit) for action in r.log)
    r.auto_coordinator = True
    r.take(())
    assert list(r.one(SendCommit).request.offsets) == [FOO_0]


@pytest.mark.parametrize("why", ["revoked", "close", "interval", "application"])
def test_a_commit_names_its_topics_by_id(rig: MakeRig, why: str) -> None:
    """A topic that is deleted and created again must not get the offsets of the one before."""
    r = granted_another(rig) if why == "revoked" else consumed(rig, FOO_0)
    if why == "close":
        r.close()
    elif why == "interval":
        r.advance(INTERVAL_MS)
        r.poll_begin()
    elif why == "application":
        r.take(r.member.commit(None, r.now)[1])
    request = r.one(SendCommit).request
    assert (request.topic_ids, request.api_version) == ({"foo": FOO}, 10)


def test_a_commit_for_a_topic_that_is_not_owned_has_names_only(rig: MakeRig) -> None:
    r = consumed(rig, FOO_0)
    asked = dict.fromkeys((FOO_0, TopicPartition("other", 0)), OffsetAndMetadata(offset=3))
    r.take(r.member.commit(asked, r.now)[1])
    request = r.one(SendCommit).request
    assert (request.topic_ids, request.api_version) == ({}, 9)


def consumed_two(rig: MakeRig) -> Any:
    """A member of the application's commits, which owns foo-0 and bar-0 and was handed records of both."""
    r = rig()
    r.stable({FOO: (0,), BAR: (0,)})
    r.poll_end({FOO_0: 10, BAR_0: 20})
    return r


def finished(r: Any) -> list[CommitFinished]:
    return [action for action in r.log if isinstance(action, CommitFinished)]


def test_a_commit_of_the_application_does_not_outlive_the_loss_of_its_partitions(rig: MakeRig) -> None:
    """The next join's epoch would let it overwrite what the partitions' next owner has committed."""
    r = consumed_two(rig)
    commit_id, actions = r.member.commit(None, r.now)
    r.take(actions)
    r.fail(SendCommit)
    r.poll_begin()
    r.advance(INTERVAL_MS)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.callback()
    r.fail(SendCommit)
    assert finished(r) == [CommitFinished(commit_id, ErrorCode.REQUEST_TIMED_OUT)]
    r.answer(5, {})
    r.advance(60_000)
    assert not r.pending(SendCommit)


def test_what_a_commit_that_is_tried_again_still_owns_is_committed(rig: MakeRig) -> None:
    r = consumed_two(rig)
    commit_id, actions = r.member.commit(None, r.now)
    r.take(actions)
    r.poll_begin()
    r.advance(INTERVAL_MS)
    r.answer(3, {FOO: (0,)})
    r.callback()
    assert r.one(SendCommit).request.offsets.keys() == {FOO_0, BAR_0}
    r.committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    r.advance(5_000)
    assert r.committed().request.offsets.keys() == {FOO_0}
    assert finished(r) == [CommitFinished(commit_id, ErrorCode.STALE_MEMBER_EPOCH)]
