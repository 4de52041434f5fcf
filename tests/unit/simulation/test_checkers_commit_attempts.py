"""Hand-made histories of commits that fail, and are made again or not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.member.base.transport import RequestTimedOut
from fencepost.simulation.checkers.commit_attempts import CommitRetries
from tests.unit.simulation.member_worlds import world_of_members

SECOND = 1_000_000
P0, P1 = TopicPartition("x", 0), TopicPartition("x", 1)
LOADING, STALE = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH
NO_TOPIC, UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_MEMBER_ID
LATE = RequestTimedOut("late")


def checker_of(commit: str) -> Any:
    world = world_of_members()
    application = msgspec.structs.replace(world.scenario.application, commit=commit)
    world.scenario = msgspec.structs.replace(world.scenario, application=application)
    checker: Any = CommitRetries()
    checker.found = []
    checker.attach(world, lambda invariant, message, rule="": checker.found.append(invariant))
    checker.on_member_host("m", "start", 0)
    return checker


def commit(checker: Any, outcome: ErrorCode | Exception, at_s: float, offset: int = 5) -> None:
    request = OffsetCommitRequest(group_id="g", offsets={P0: OffsetAndMetadata(offset=offset)})
    response = OffsetCommitResponse(errors={P0: outcome}) if isinstance(outcome, ErrorCode) else outcome
    checker.takes_request("m", request, round(at_s * SECOND))
    checker.on_commit("m", request, response, round(at_s * SECOND))


@pytest.mark.parametrize("state", ["RECONCILING", "UNJOINED", "PREPARE_LEAVING"])
@pytest.mark.parametrize(
    ("outcome", "flagged"),
    [
        (LOADING, True),
        (STALE, True),
        (LATE, True),
        (NO_TOPIC, False),
        (UNKNOWN, False),
        (ErrorCode.NONE, False),
    ],
)
def test_partitions_are_not_released_while_a_commit_of_them_may_be_made_again(state, outcome, flagged):
    checker = checker_of("auto")
    checker.on_member_state("m", "target received", "STABLE", state, 0)
    commit(checker, outcome, 1)
    checker.on_callback("m", "revoked", "begin", (P0,), SECOND)
    assert checker.found == (["commit-before-release"] if flagged and state != "PREPARE_LEAVING" else [])


@pytest.mark.parametrize(("at_s", "partition", "flagged"), [(2, P0, True), (2, P1, False), (300, P0, False)])
def test_partitions_are_not_released_before_the_response_to_their_commit(at_s, partition, flagged):
    checker = checker_of("auto")
    checker.on_member_state("m", "target received", "STABLE", "RECONCILING", 0)
    request = OffsetCommitRequest(group_id="g", offsets={P0: OffsetAndMetadata(offset=5)})
    checker.takes_request("m", request, SECOND)
    checker.on_callback("m", "revoked", "begin", (partition,), at_s * SECOND)
    assert checker.found == (["commit-before-release"] if flagged else [])


def test_a_commit_that_failed_before_the_rebalance_is_made_again_in_it():
    checker = checker_of("auto")
    commit(checker, LOADING, 1)
    checker.on_member_state("m", "target received", "STABLE", "RECONCILING", 2 * SECOND)
    checker.on_callback("m", "revoked", "begin", (P0,), 3 * SECOND)
    assert checker.found == ["commit-before-release"]


def test_a_commit_before_a_release_is_made_again_until_its_time_is_over():
    checker = checker_of("auto")
    checker.on_member_state("m", "target received", "STABLE", "RECONCILING", 0)
    for at_s in (1, 100, 302):
        commit(checker, LOADING, at_s)
    checker.on_callback("m", "revoked", "begin", (P0,), 302 * SECOND)
    assert checker.found == []


def test_an_application_that_commits_by_itself_decides_what_it_releases():
    checker = checker_of("sync")
    checker.on_member_state("m", "target received", "STABLE", "RECONCILING", 0)
    commit(checker, STALE, 1)
    checker.on_callback("m", "revoked", "begin", (P0,), SECOND)
    assert checker.found == []


@pytest.mark.parametrize(
    ("outcome", "flagged"),
    [(LOADING, True), (LATE, True), (STALE, False), (NO_TOPIC, False), (UNKNOWN, False)],
)
def test_an_application_is_spared_errors_of_its_commit_that_a_retry_mends(outcome, flagged):
    checker = checker_of("sync")
    commit(checker, outcome, 1)
    checker.on_poll("m", "begin", SECOND)
    assert checker.found == (["commits-end"] if flagged else [])


@pytest.mark.parametrize(("outcome", "flagged"), [(LOADING, False), (STALE, True), (NO_TOPIC, True)])
def test_a_commit_that_nothing_mends_is_not_made_again(outcome, flagged):
    checker = checker_of("sync")
    commit(checker, outcome, 1)
    commit(checker, ErrorCode.NONE, 2)
    assert checker.found == (["commits-end"] if flagged else [])


@pytest.mark.parametrize("between", ["a poll", "a callback", "other offsets"])
def test_the_next_commit_may_be_like_one_that_failed_for_good(between):
    checker = checker_of("sync")
    commit(checker, STALE, 1)
    if between == "a poll":
        checker.on_poll("m", "begin", SECOND)
    elif between == "a callback":
        checker.on_callback("m", "revoked", "begin", (P0,), SECOND)
    commit(checker, ErrorCode.NONE, 2, offset=6 if between == "other offsets" else 5)
    assert checker.found == []


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("outcome", "told", "flagged"),
    [
        (ErrorCode.NONE, ErrorCode.NONE, False),
        (ErrorCode.NONE, STALE, True),
        (STALE, STALE, False),
        (STALE, ErrorCode.NONE, True),
    ],
)
def test_an_application_is_told_the_result_of_its_commit(mode, outcome, told, flagged):
    checker = checker_of(mode)
    commit(checker, outcome, 1)
    checker.on_commit_told("m", told, SECOND)
    assert checker.found == (["commits-end"] if flagged else [])
    checker.on_commit_told("m", ErrorCode.NONE, 2 * SECOND)
    assert len(checker.found) == flagged, "the second commit had nothing to commit"


@pytest.mark.parametrize("first", ["commit", "callback"])
def test_an_application_is_told_that_a_commit_was_too_late_for_its_partitions(first):
    checker = checker_of("async")
    if first == "commit":
        commit(checker, ErrorCode.NONE, 1)
    checker.on_callback("m", "revoked", "end", (P0,), SECOND)
    if first == "callback":
        commit(checker, ErrorCode.NONE, 1)
    checker.on_commit_told("m", STALE, SECOND)
    assert checker.found == []


@pytest.mark.parametrize(("state", "flagged"), [("RECONCILING", True), ("STABLE", False)])
@pytest.mark.parametrize("outcome", [NO_TOPIC, STALE])
def test_a_release_does_not_wait_for_a_topic_that_is_gone(state, flagged, outcome):
    checker = checker_of("auto")
    checker.on_member_state("m", "target received", "STABLE", state, 0)
    commit(checker, outcome, 1)
    checker.on_member_state("m", "target received", "STABLE", "RECONCILING", 1)
    commit(checker, ErrorCode.NONE, 2)
    assert checker.found == (["commits-end"] if flagged and outcome is NO_TOPIC else [])
