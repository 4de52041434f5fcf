"""What is judged of the commits of one thread, by histories made by hand: good ones, and one slip each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.coordinator.protocol.streams import Tasks, Topology
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.streams.commits import StreamsCommits
from fencepost.simulation.streams.reconciliation import kept_epochs
from fencepost.simulation.streams.thread_commits import ThreadCommits

ONE, OTHER = TopicPartition("orders", 1), TopicPartition("orders", 2)
SECOND = 1_000_000
INTERVAL_US = 5 * SECOND


def names(findings: Iterable[tuple[str, str]]) -> list[str]:
    """The invariants of these findings."""
    return [invariant for invariant, _ in findings]


@pytest.fixture
def commits() -> ThreadCommits:
    """A thread that has two partitions, and has processed ten records of one after a second."""
    made = ThreadCommits("client-1-StreamThread-1", INTERVAL_US)
    made.started(0)
    made.given([ONE, OTHER])
    made.processed(ONE, 10, made.tenure(ONE), SECOND)
    return made


def commit(commits: ThreadCommits, at_us: int, offset: int = 10, *, in_time: bool = True) -> list[str]:
    """Commit an offset, which succeeds at once."""
    offsets = {ONE: offset}
    found = names(commits.begins(offsets, at_us, in_time=in_time))
    commits.committed(offsets)
    commits.ended(at_us)
    return found


def test_a_thread_that_commits_by_the_interval_and_when_it_gives_up(commits: ThreadCommits) -> None:
    assert names(commits.polls(4 * SECOND)) == []
    assert commit(commits, 5 * SECOND) == []
    commits.processed(ONE, 20, commits.tenure(ONE), 6 * SECOND)
    due = commits.untried([ONE])
    assert due == {ONE}
    assert commit(commits, 7 * SECOND, 20, in_time=False) == []
    assert names(commits.gives_up(due)) == []
    commits.taken([ONE])
    assert names(commits.polls(60 * SECOND)) == []


def test_a_commit_of_a_partition_that_was_taken_away_is_seen(commits: ThreadCommits) -> None:
    commits.taken([ONE])
    assert commit(commits, 5 * SECOND) == ["commit-while-owned"]
    commits.given([ONE])
    assert commit(commits, 10 * SECOND) == ["commit-within-processed"]


def test_records_of_an_earlier_tenure_are_not_to_be_committed(commits: ThreadCommits) -> None:
    tenure = commits.tenure(ONE)
    commits.taken([ONE])
    commits.given([ONE])
    commits.processed(ONE, 20, tenure, 2 * SECOND)
    assert commits.untried() == set()
    assert commit(commits, 5 * SECOND, 20) == ["commit-within-processed"]


def test_a_commit_ahead_of_what_was_processed_is_seen(commits: ThreadCommits) -> None:
    assert commit(commits, 5 * SECOND, 11) == ["commit-within-processed"]


def test_a_commit_before_the_interval_is_seen(commits: ThreadCommits) -> None:
    assert commit(commits, 4 * SECOND) == ["commits-go-on"]
    assert commit(commits, 9 * SECOND) == []
    assert commit(commits, 13 * SECOND) == ["commits-go-on"]
    assert commit(commits, 13 * SECOND, in_time=False) == []


def test_a_thread_that_polls_on_without_a_commit_is_seen(commits: ThreadCommits) -> None:
    assert names(commits.polls(6 * SECOND)) == []
    assert names(commits.polls(6 * SECOND + 2_000)) == ["commits-go-on"]


def test_a_commit_that_was_refused_is_due_one_interval_later(commits: ThreadCommits) -> None:
    assert names(commits.begins({ONE: 10}, 5 * SECOND, in_time=True)) == []
    commits.ended(11 * SECOND)  # it took longer than the interval: the next poll comes first
    assert names(commits.polls(11 * SECOND)) == []
    assert names(commits.polls(12 * SECOND)) == ["commits-go-on"]


@pytest.mark.parametrize("offset", [None, 10])
def test_a_partition_that_is_given_up_without_its_last_commit_is_seen(
    commits: ThreadCommits, offset: int | None
) -> None:
    if offset is not None:
        commit(commits, 5 * SECOND)
        commits.processed(ONE, 20, commits.tenure(ONE), 6 * SECOND)
    assert names(commits.gives_up(commits.untried())) == ["commit-before-release"]


def test_a_commit_that_is_refused_does_not_hold_up_a_release(commits: ThreadCommits) -> None:
    due = commits.untried()
    commits.ended(5 * SECOND)
    assert names(commits.gives_up(due)) == ["commit-before-release"]
    assert names(commits.begins({ONE: 10}, 5 * SECOND, in_time=True)) == []
    assert names(commits.gives_up(due)) == []


@pytest.mark.parametrize(
    ("member", "offset", "expected"),
    [("a", 9, ["offsets-advance"]), ("b", 9, ["offsets-advance"]), ("b", 10, []), ("b", 11, []), ("", 9, [])],
)
def test_an_offset_below_the_last_commit_is_seen(member: str, offset: int, expected: list[str]) -> None:
    """Whichever member commits it; one without an epoch may choose any offset in an empty group."""
    members = {one: StreamsGroupMember(member_id=one, member_epoch=3) for one in ("a", "b")}
    judge = StreamsCommits()

    def commit(member_id: str, value: int) -> list[str]:
        request = OffsetCommitRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=3 if member_id else -1,
            offsets={ONE: OffsetAndMetadata(offset=value)},
        )
        reply = OffsetCommitResponse(errors={ONE: ErrorCode.NONE})
        return names(judge.judge(request, reply, members if member_id else {}, Topology(epoch=0)))

    assert commit("a", 10) == []
    assert commit(member, offset) == expected


@pytest.mark.parametrize(
    ("epochs", "broken"),
    [
        ({0: 2, 1: 2, 2: 5}, False),
        ({0: 5, 1: 2, 2: 5}, True),  # it would refuse late commits
        ({0: 2, 1: 5, 2: 5}, True),  # of a task that is given up
        ({0: 2, 1: 2, 2: 2}, True),  # it would accept commits of an earlier owner
    ],
)
def test_a_task_keeps_its_epoch_while_it_is_held(epochs: dict[int, int], broken: bool) -> None:
    old = StreamsGroupMember(
        member_id="A", assigned=Tasks(active={"0": (0, 1)}), assignment_epochs={"0": {0: 2, 1: 2}}
    )
    member = StreamsGroupMember(
        member_id="A",
        assigned=Tasks(active={"0": (0, 2)}),
        pending_revocation=Tasks(active={"0": (1,)}),
        assignment_epochs={"0": epochs},
    )
    assert names(kept_epochs(old, member, 5)) == (["streams-reconciles"] if broken else [])
