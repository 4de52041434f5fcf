"""Where reading starts, what is committed, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitResponse
from fencepost.member.base.actions import (
    CommitFinished,
    FetchOffsets,
    FindLogOffsets,
    FindOffsetsByDuration,
    SendCommit,
    SendFindCoordinator,
    WakeApplication,
)
from fencepost.member.base.errors import MemberError, NoOffsetForPartition

MakeRig = Callable[..., Any]
FOO = "foo-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def assigned(r: Any, *numbers: int) -> None:
    r.auto_offsets = False
    r.join("foo")
    r.answer(2, {FOO: numbers or (0,)})
    r.callback()
    r.answer(2)


def offsets(action: SendCommit) -> dict[TopicPartition, int]:
    return {partition: each.offset for partition, each in action.request.offsets.items()}


def outcomes(r: Any) -> list[tuple[int, ErrorCode]]:
    return [(a.commit_id, a.error) for a in r.log if isinstance(a, CommitFinished)]


# -- where to start --------------------------------------------------------------------------------------


def test_committed_offsets_are_fetched_as_a_member(rig: MakeRig) -> None:
    r = rig()
    assigned(r, 0, 1)
    request = r.one(FetchOffsets).request
    assert (request.member_id, request.member_epoch, request.partitions) == ("member", 2, (FOO_0, FOO_1))
    assert request.require_stable
    r.fetched(r.one(FetchOffsets), {FOO_0: 3, FOO_1: 4})
    assert r.fetchable() == {FOO_0: 3, FOO_1: 4}


@pytest.mark.parametrize(("policy", "earliest"), [("earliest", True), ("latest", False)])
def test_where_nothing_is_committed_the_log_is_asked(rig: MakeRig, policy: str, earliest: bool) -> None:
    r = rig(auto_offset_reset=policy)
    assigned(r, 0, 1)
    r.fetched(r.one(FetchOffsets), {FOO_0: 3, FOO_1: -1})
    asked = r.one(FindLogOffsets)
    assert (asked.partitions, asked.earliest) == ((FOO_1,), earliest)
    assert r.fetchable() == {FOO_0: 3}
    r.log_offsets({FOO_1: 17})
    assert r.fetchable() == {FOO_0: 3, FOO_1: 17}


def test_where_nothing_is_committed_the_log_is_asked_for_what_is_young_enough(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="by_duration:PT1H0.0001S")
    assigned(r, 0, 1)
    r.fetched(r.one(FetchOffsets), {FOO_0: 3, FOO_1: -1})
    asked = r.one(FindOffsetsByDuration)
    assert (asked.partitions, asked.duration_ms) == ((FOO_1,), 3_600_001)
    assert r.pending(FindLogOffsets) == []
    r.fail(FindOffsetsByDuration)
    r.advance(120)
    r.log_offsets({}, FindOffsetsByDuration)
    assert r.fetchable() == {FOO_0: 3}
    r.advance(240)
    r.log_offsets({FOO_1: 17}, FindOffsetsByDuration)
    assert r.fetchable() == {FOO_0: 3, FOO_1: 17}
    r.take(r.member.offset_out_of_range(FOO_1, r.now))
    assert r.one(FindOffsetsByDuration).partitions == (FOO_1,)
    assert r.errors == []


@pytest.mark.parametrize("policy", ["none", "error"])
def test_where_nothing_is_committed_the_application_may_decide(rig: MakeRig, policy: str) -> None:
    r = rig(auto_offset_reset=policy)
    assigned(r)
    r.fetched(r.one(FetchOffsets), {FOO_0: -1})
    assert isinstance(r.errors[0].error, NoOffsetForPartition)
    assert "foo-0" in str(r.errors[0].error)
    assert r.fetchable() == {}
    assert r.open == []
    r.take(r.member.seek(FOO_0, 12, r.now))
    assert r.fetchable() == {FOO_0: 12}


def test_what_the_application_has_to_decide_is_raised_by_every_poll(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="none")
    assigned(r, 0, 1)
    r.fetched(r.one(FetchOffsets), {FOO_0: -1, FOO_1: 3})
    r.take(r.member.offset_out_of_range(FOO_1, r.now))
    for _ in range(2):
        r.errors.clear()
        r.poll()
        assert [str(each.error) for each in r.errors] == [
            "OFFSET_OUT_OF_RANGE: nothing is committed for foo-0",
            "OFFSET_OUT_OF_RANGE: position of foo-1 is outside of the log",
        ]
    r.take(r.member.seek(FOO_1, 5, r.now))
    r.errors.clear()
    r.poll()
    assert ["foo-0" in str(each.error) for each in r.errors] == [True]
    r.advance(5_000)
    r.answer(3, {FOO: (1,)})
    r.poll_begin()
    r.callback()
    r.errors.clear()
    r.poll()
    assert r.errors == []


def test_a_log_that_does_not_answer_for_a_partition_is_asked_again(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="earliest")
    assigned(r, 0, 1)
    r.fetched(r.one(FetchOffsets), {})
    r.log_offsets({FOO_0: 5})
    assert r.fetchable() == {FOO_0: 5}
    assert r.pending(FindLogOffsets) == []
    r.advance(120)
    assert r.one(FindLogOffsets).partitions == (FOO_1,)


def test_logs_are_asked_again_after_one_wait_however_many_did_not_answer(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="earliest")
    assigned(r, *range(8))
    r.fetched(r.one(FetchOffsets), {})
    r.log_offsets({})
    r.advance(120)
    assert len(r.one(FindLogOffsets).partitions) == 8


def test_logs_that_have_answered_end_the_waits(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="earliest")
    assigned(r, 0, 1)
    r.fetched(r.one(FetchOffsets), {})
    for _ in range(4):
        r.log_offsets({})
        r.advance(1_200)
    r.log_offsets({FOO_0: 0, FOO_1: 0})
    r.take(r.member.offset_out_of_range(FOO_0, r.now))
    r.log_offsets({})
    r.advance(120)
    assert r.one(FindLogOffsets).partitions == (FOO_0,)


def test_a_log_that_cannot_be_reached_is_asked_again(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="earliest")
    assigned(r)
    r.fetched(r.one(FetchOffsets), {})
    r.fail(FindLogOffsets)
    r.advance(120)
    r.log_offsets({FOO_0: 5})
    assert r.fetchable() == {FOO_0: 5}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ],
)
def test_a_fetch_that_cannot_be_answered_now_is_tried_again_with_the_newest_epoch(
    rig: MakeRig, code: ErrorCode
) -> None:
    r = rig()
    assigned(r)
    r.fetched(r.one(FetchOffsets), {}, error=code)
    assert r.pending(FetchOffsets) == []
    assert r.member.member_epoch == 2
    assert r.errors == []
    r.subscribe("foo", "bar")
    r.answer(3)
    r.advance(120)
    assert r.one(FetchOffsets).request.member_epoch == 3


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_fetch_or_a_commit_that_meets_no_coordinator_looks_for_it_at_once(
    rig: MakeRig, code: ErrorCode
) -> None:
    r = rig()
    assigned(r)
    r.auto_coordinator = False
    r.fetched(r.one(FetchOffsets), {}, error=code)
    r.advance(200)
    assert r.one(SendFindCoordinator)
    for timeout_ms in (60_000, 1):  # the second commit is over before its response
        r = rig(default_api_timeout_ms=timeout_ms)
        r.stable({FOO: (0,)})
        r.auto_coordinator = False
        r.take(r.member.commit({FOO_0: OffsetAndMetadata(offset=5)}, r.now)[1])
        r.advance(1)
        r.committed(code)
        r.advance(200)
        assert r.one(SendFindCoordinator)


def test_a_fetch_that_gets_no_answer_is_tried_again(rig: MakeRig) -> None:
    r = rig()
    assigned(r)
    r.fail(FetchOffsets)
    assert r.pending(FetchOffsets) == []
    r.advance(120)
    assert r.pending(FetchOffsets)


def test_a_fetch_that_is_not_allowed_is_raised(rig: MakeRig) -> None:
    r = rig()
    assigned(r)
    r.fetched(r.one(FetchOffsets), {}, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert type(r.errors[0].error) is MemberError
    r.advance(120)
    assert r.pending(FetchOffsets)


def test_an_answer_for_an_ownership_that_ended_is_ignored(rig: MakeRig) -> None:
    r = rig()
    assigned(r, 0)
    old = r.one(FetchOffsets)
    for assignment, epoch in (({}, 3), ({FOO: (0,)}, 4)):
        r.advance(5_000)
        r.answer(epoch, assignment)
        r.callback()
        if assignment == {}:
            r.callback()
        r.answer(epoch)
    r.fetched(old, {FOO_0: 5})
    assert r.fetchable() == {}, "the position of the ownership before"
    r.fetched(r.one(FetchOffsets), {FOO_0: 9})
    assert r.fetchable() == {FOO_0: 9}


def test_a_position_outside_of_the_log_is_reset(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="earliest")
    r.stable({FOO: (0,)})
    assert r.member.offset_out_of_range(FOO_1, r.now) == (), "it is not owned any more"
    r.poll_end({FOO_0: 5})
    r.take(r.member.offset_out_of_range(FOO_0, r.now))
    assert r.fetchable() == {}
    assert r.member.positions.uncommitted(delivered=True) == {}
    r.log_offsets({FOO_0: 30})
    assert r.fetchable() == {FOO_0: 30}


def test_a_position_outside_of_the_log_is_raised_if_that_is_the_policy(rig: MakeRig) -> None:
    r = rig(auto_offset_reset="none")
    r.stable({FOO: (0,)})
    r.take(r.member.offset_out_of_range(FOO_0, r.now))
    assert isinstance(r.errors[0].error, NoOffsetForPartition)
    assert r.fetchable() == {}


def test_only_what_is_owned_can_be_sought(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    with pytest.raises(ValueError, match="foo-1 is not assigned"):
        r.member.seek(FOO_1, 5, r.now)
    assert WakeApplication() in r.take(r.member.seek(FOO_0, 5, r.now))


def test_reading_starts_where_on_assigned_says(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.take(r.member.seek(FOO_0, 5, r.now))
    assert r.member.callback_finished(0, None, r.now) == (), "another callback"
    r.callback()
    assert r.fetchable() == {FOO_0: 5}
    assert r.member.poll_failed(r.now) == ()


# -- handing records over --------------------------------------------------------------------------------


def test_the_position_is_where_the_application_stopped(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    assert r.fetchable() == {FOO_0: 5, FOO_1: 0}


def test_what_is_not_fetchable_keeps_its_position(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5, FOO_1: 9})
    assert r.fetchable() == {FOO_0: 5}


# -- auto-commit -----------------------------------------------------------------------------------------


def test_auto_commit_covers_processed_records_only(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.advance(6_000)
    r.answer()
    assert r.pending(SendCommit) == [], "commits happen in poll"
    r.poll_begin()
    assert offsets(r.one(SendCommit)) == {FOO_0: 5}
    r.poll_end({FOO_0: 9})
    assert offsets(r.committed()) == {FOO_0: 5}


def test_auto_commit_waits_for_its_interval_and_for_news(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True, auto_commit_interval_ms=1_000)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.advance(999)
    r.poll_begin()
    assert r.pending(SendCommit) == []
    r.advance(1)
    r.poll_begin()
    r.committed()
    r.advance(2_000)
    r.poll_begin()
    assert r.pending(SendCommit) == [], "nothing new"


def test_auto_commit_that_fails_is_made_again_by_a_later_poll(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.advance(6_000)
    r.answer()
    r.poll_begin()
    r.committed(ErrorCode.STALE_MEMBER_EPOCH)
    assert r.member.member_epoch == 2
    r.poll_begin()
    assert r.pending(SendCommit) == []
    r.advance(100)
    r.poll_begin()
    r.fail(SendCommit)
    assert r.member.commits.queue == []
    r.advance(1_000)
    r.poll_begin()
    assert offsets(r.committed()) == {FOO_0: 5}


def test_auto_commits_do_not_pile_up(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True, auto_commit_interval_ms=1_000)
    r.stable({FOO: (0,)})
    for offset in range(1, 6):
        r.poll_end({FOO_0: offset})
        r.advance(1_000)
        r.poll_begin()
    assert len(r.member.commits.queue) == 1


def test_no_auto_commit_if_it_is_switched_off(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=False)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.advance(60_000)
    r.poll_begin()
    r.close()
    assert r.pending(SendCommit) == []


# -- commits of the application --------------------------------------------------------------------------


def commit(r: Any, chosen: Any = None) -> int:
    commit_id, actions = r.member.commit(chosen, r.now)
    r.take(actions)
    return int(commit_id)


def test_commit_covers_everything_that_was_handed_over(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    commit_id = commit(r)
    action = r.committed()
    assert offsets(action) == {FOO_0: 5}
    assert action.request.member_epoch == 2
    assert outcomes(r) == [(commit_id, ErrorCode.NONE)]


def test_what_was_handed_over_may_be_committed_once_more(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    for _ in range(2):
        commit(r, r.member.positions.delivered())
        assert offsets(r.committed()) == {FOO_0: 5, FOO_1: 0}


def test_commit_of_given_offsets(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({FOO: (0,)})
    commit(r, {FOO_0: OffsetAndMetadata(offset=3, metadata="mine")})
    request = r.committed().request
    assert (request.offsets[FOO_0].metadata, request.instance_id) == ("mine", "host-1")


def test_commit_of_nothing_is_done_at_once(rig: MakeRig) -> None:
    r = rig()
    commit_id = commit(r, {})
    assert outcomes(r) == [(commit_id, ErrorCode.NONE)]
    assert r.open == []


def test_commits_go_one_after_the_other(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    first, second = (commit(r, {FOO_0: OffsetAndMetadata(offset=n)}) for n in (3, 4))
    assert offsets(r.committed()) == {FOO_0: 3}
    assert offsets(r.committed()) == {FOO_0: 4}
    assert [commit_id for commit_id, _ in outcomes(r)] == [first, second]


@pytest.mark.parametrize("code", [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_commit_that_lost_its_membership_fails(rig: MakeRig, code: ErrorCode) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    commit_id = commit(r, {FOO_0: OffsetAndMetadata(offset=3)})
    r.committed(code)
    assert outcomes(r) == [(commit_id, code)]
    assert r.member.member_epoch == 2


def test_a_commit_is_tried_again_until_its_time_is_over(rig: MakeRig) -> None:
    r = rig(default_api_timeout_ms=3_000)
    r.stable({FOO: (0,)})
    commit_id = commit(r, {FOO_0: OffsetAndMetadata(offset=3)})
    began = r.now
    tries = 0
    while not outcomes(r):
        if r.pending(SendCommit):
            tries += 1
            r.fail(SendCommit)
        r.advance(10)
    assert outcomes(r) == [(commit_id, ErrorCode.REQUEST_TIMED_OUT)]
    assert 3_000 <= r.now - began <= 3_010
    assert 4 <= tries <= 8


def test_only_rejected_partitions_are_committed_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    commit(r, {FOO_0: OffsetAndMetadata(offset=3), FOO_1: OffsetAndMetadata(offset=4)})
    action = r.one(SendCommit)
    r.open.remove(action)
    errors = {FOO_0: ErrorCode.NONE, FOO_1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    r.take(r.member.commit_answered(action.token, OffsetCommitResponse(errors=errors), r.now))
    r.advance(120)
    assert offsets(r.committed()) == {FOO_1: 4}


def test_a_commit_outside_of_the_group_belongs_to_no_member(rig: MakeRig) -> None:
    r = rig()
    commit(r, {FOO_0: OffsetAndMetadata(offset=3)})
    assert r.committed().request.member_epoch == -1


def test_commits_end_with_a_fatal_error(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    first = commit(r, {FOO_0: OffsetAndMetadata(offset=3)})
    r.answer(error=ErrorCode.INVALID_REQUEST)
    second = commit(r, {FOO_0: OffsetAndMetadata(offset=3)})
    assert outcomes(r) == [(first, ErrorCode.INVALID_REQUEST), (second, ErrorCode.UNKNOWN_MEMBER_ID)]
