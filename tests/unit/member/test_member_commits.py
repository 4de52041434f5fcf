"""The queue of commits: one is under way, and the others wait for its end or for theirs."""

from __future__ import annotations

import itertools
import random

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitResponse
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind, Commits
from fencepost.member.base.config import ConsumerConfig

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def commits() -> Commits:
    return Commits("g", "m", ConsumerConfig(), Backoff(100, 1_000, random.Random(7)), itertools.count(1))


def manual(*partitions: TopicPartition, deadline_ms: int = 10_000) -> Commit:
    offsets = dict.fromkeys(partitions, OffsetAndMetadata(offset=5))
    return Commit(1, CommitKind.MANUAL, offsets, deadline_ms, {})


def answer(*partitions: TopicPartition, code: ErrorCode = ErrorCode.NONE) -> OffsetCommitResponse:
    return OffsetCommitResponse(errors=dict.fromkeys(partitions, code))


def test_one_that_got_no_answer_is_sent_again_after_a_while(commits: Commits) -> None:
    commits.add(manual(A))
    sent = commits.request(1, 1_000)
    assert sent is not None
    assert commits.failed(sent.token, 1_000) is not None
    retry_ms = commits.retry_ms()
    assert retry_ms is not None
    assert 1_080 <= retry_ms <= 1_120
    assert commits.request(1, retry_ms - 1) is None
    assert commits.request(1, retry_ms) is not None


def test_the_next_one_does_not_wait_for_what_the_first_had_to(commits: Commits) -> None:
    commits.add(manual(A, deadline_ms=1_050))
    commits.add(manual(B))
    sent = commits.request(1, 1_000)
    assert sent is not None
    commits.failed(sent.token, 1_000)
    assert commits.request(1, 1_050) is None
    assert [[*commit.offsets] for commit in commits.expired(1_050)] == [[A]]
    following = commits.request(1, 1_050)
    assert following is not None
    assert [*following.request.offsets] == [B]
    commits.failed(following.token, 2_000)
    assert commits.retry_ms() in range(2_080, 2_121), "its own wait is the first one again"


def test_the_earliest_deadline_is_the_one_that_is_due(commits: Commits) -> None:
    assert commits.expires_ms() is None
    commits.add(manual(A, deadline_ms=3_000))
    commits.add(manual(B, deadline_ms=2_000))
    assert commits.expires_ms() == 2_000


def test_an_answer_to_another_request_ends_nothing(commits: Commits) -> None:
    commits.add(manual(A))
    sent = commits.request(1, 1_000)
    assert sent is not None
    assert commits.answered(sent.token + 1, answer(A), 1_000) is None
    assert commits.failed(sent.token + 1, 1_000) is None
    assert commits.in_flight == sent.token
    ended = commits.answered(sent.token, answer(), 1_000)
    assert ended is not None
    assert ended[2:] == (ErrorCode.UNKNOWN_SERVER_ERROR, True), "it does not say that A is committed"
    assert not commits.queue


def test_of_one_under_way_what_is_let_go_is_told_and_not_tried_again(commits: Commits) -> None:
    """It may have arrived: only the answer tells."""
    commits.add(manual(A, B))
    sent = commits.request(1, 1_000)
    assert sent is not None
    assert commits.forget([A]) == []
    later = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    mixed = OffsetCommitResponse(errors={A: ErrorCode.NONE, B: later})
    ended = commits.answered(sent.token, mixed, 1_000)
    assert ended is not None
    commit, accepted, error, over = ended
    assert ([*accepted], error, over) == ([A], later, False)
    again = commits.request(1, 2_000)
    assert again is not None
    assert [*again.request.offsets] == [B]
    ended = commits.answered(again.token, answer(B), 2_000)
    assert ended is not None
    assert (ended[0], ended[2], ended[3]) == (commit, ErrorCode.NONE, True)


@pytest.mark.parametrize("kind", CommitKind)
def test_it_is_known_whose_commits_wait(commits: Commits, kind: CommitKind) -> None:
    assert not commits.has_own
    commits.add(Commit(1, kind, {A: OffsetAndMetadata(offset=5)}, 1_000, {}))
    assert commits.has_own == (kind is not CommitKind.MANUAL)
    commits.add(manual(B))
    assert commits.has_own == (kind is not CommitKind.MANUAL)
