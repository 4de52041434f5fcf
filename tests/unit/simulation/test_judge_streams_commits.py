"""What is judged of the commits of one thread, by histories made by hand: good ones, and one slip each."""

from __future__ import annotations

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
from tests.unit.simulation.member_worlds import SECOND, History, names, rows

ONE, OTHER = TopicPartition("orders", 1), TopicPartition("orders", 2)


class Thread(History):
    """A thread that has two partitions, and has processed ten records of one after a second."""

    def __init__(self) -> None:
        self.found = []
        self.commits = ThreadCommits("client-1-StreamThread-1", 5 * SECOND)
        self.commits.started(0)
        self.commits.given([ONE, OTHER])
        self.tenure, self.due = self.commits.tenure(ONE), self.commits.untried()
        self.play("1 process 10; 1 note")

    def process(self, at_us: int, offset: str, tenure: str = "") -> None:
        """Records of its present tenure, or of the first one."""
        self.commits.processed(ONE, int(offset), self.tenure if tenure else self.commits.tenure(ONE), at_us)

    def note(self, _: int) -> None:
        """It decides to give up what it has not tried to commit."""
        self.due = self.commits.untried([ONE])

    def begins(self, at_us: int, offset: str = "10", why: str = "in-time") -> None:
        self.found += names(self.commits.begins({ONE: int(offset)}, at_us, in_time=why == "in-time"))

    def ends(self, at_us: int) -> None:
        """The commit is refused, or has succeeded."""
        self.commits.ended(at_us)

    def commit(self, at_us: int, offset: str = "10", why: str = "in-time") -> None:  # type: ignore[override]
        self.begins(at_us, offset, why)
        self.commits.committed({ONE: int(offset)})
        self.ends(at_us)

    def polls(self, at_us: int) -> None:
        self.found += names(self.commits.polls(at_us))

    def give_up(self, _: int) -> None:
        self.found += names(self.commits.gives_up(self.due))

    def taken(self, _: int) -> None:
        self.commits.taken([ONE])

    def given(self, _: int) -> None:
        self.commits.given([ONE])

    def clean(self, _: int) -> None:
        assert self.commits.untried() == set()


COMMITS = """
by the interval, and when it gives up: 4 polls; 5 commit; 6 process 20; 6 note; 7 commit 20 release;
    7 give_up; 7 taken; 60 polls ->
of a partition that was taken away: 1 taken; 5 commit -> commit-while-owned
of a partition that came back: 1 taken; 1 given; 10 commit -> commit-within-processed
of an earlier tenure: 1 taken; 1 given; 2 process 20 before; 2 clean; 5 commit 20 -> commit-within-processed
ahead of what was processed: 5 commit 11 -> commit-within-processed
before the interval: 4 commit; 9 commit -> commits-go-on
before the next interval: 5 commit; 9 commit; 9 commit 10 release -> commits-go-on
never: 6 polls | 6.002 polls -> commits-go-on
refused, and due one interval later: 5 begins; 11 ends; 11 polls | 12 polls -> commits-go-on
none before a release: 1 give_up -> commit-before-release
none of the last records before a release: 5 commit; 6 process 20; 6 note; 6 give_up -> commit-before-release
ended but not tried: 5 ends; 5 give_up -> commit-before-release
tried and refused before a release: 5 ends; 5 begins; 5 give_up ->
"""


@pytest.mark.parametrize(("script", "broken"), rows(COMMITS))
def test_commits_of_a_thread(script: str, broken: list[str]) -> None:
    assert Thread().play(script) == broken


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
        member_epoch=5,
        assigned=Tasks(active={"0": (0, 2)}),
        pending_revocation=Tasks(active={"0": (1,)}),
        assignment_epochs={"0": epochs},
    )
    assert names(kept_epochs(old, member)) == (["streams-reconciles"] if broken else [])
