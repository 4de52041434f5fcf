"""SyncGroup: the leader's assignment reaches everybody once it is written, or nobody."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import MemberFenced
from fencepost.coordinator.protocol.records import GroupMetadataKey, Record


class FailingJournal(MemoryJournal):
    """Refuses batches while `code` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.code: ErrorCode | None = None

    def append(self, records: tuple[Record, ...]) -> None:
        if self.code is not None:
            raise AppendFailed(self.code, "no room")
        super().append(records)


@pytest.fixture
def journal(classic: Any) -> FailingJournal:
    scene, made = classic.scene, FailingJournal()
    scene.journal = made
    scene.runtime = CoordinatorHost(scene.coordinator, made)
    return made


def joined(classic: Any, members: int) -> list[str]:
    """A group whose members have joined and not synced."""
    entered = [classic.enter()[0] for _ in range(members)]
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    return entered


def test_members_wait_for_the_leader(classic: Any) -> None:
    one, two, three = joined(classic, 3)
    second = classic.sync(two, 1)
    assert classic.waiting() == [second]
    first = classic.sync(one, 1, {one: b"1", two: b"2"}, protocol_type="consumer", protocol_name="range")
    assert classic.synced(first).assignment == b"1"
    answer = classic.synced(second)
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (b"2", "consumer", "range")
    third = classic.synced(classic.sync(three, 1))
    assert (third.error_code.name, third.assignment) == ("NONE", b""), (
        "who is not assigned anything has nothing"
    )
    assert classic.state == "Stable"


def test_a_generation_is_one_record(classic: Any) -> None:
    one, two = joined(classic, 2)
    batches = len(list(classic.scene.journal.batches()))
    classic.assign()
    new = list(classic.scene.journal.batches())[batches:]
    ((record,),) = new
    assert record.key == GroupMetadataKey("g")
    value = record.value
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == (
        "consumer",
        1,
        "range",
        one,
    )
    assert [(m.member_id, m.assignment) for m in value.members] == [(one, one.encode()), (two, two.encode())]


@pytest.mark.parametrize(
    ("member", "generation", "fields", "error"),
    [
        ("stranger", 1, {}, "UNKNOWN_MEMBER_ID"),
        (None, 0, {}, "ILLEGAL_GENERATION"),
        (None, 2, {}, "ILLEGAL_GENERATION"),
        (None, 1, {"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        (None, 1, {"protocol_name": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        (None, 1, {"protocol_name": ""}, "INCONSISTENT_GROUP_PROTOCOL"),
        ("stranger", 1, {"protocol_name": ""}, "UNKNOWN_MEMBER_ID"),
        ("stranger", 1, {"lacks_protocol": True}, "INCONSISTENT_GROUP_PROTOCOL"),
        (None, 1, {"instance_id": "i"}, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_who_is_not_of_the_generation_gets_nothing(
    classic: Any, member: str | None, generation: int, fields: dict[str, Any], error: str
) -> None:
    (one,) = joined(classic, 1)
    assert classic.error(classic.sync(member or one, generation, {one: b"1"}, **fields)) == error
    assert classic.state == "CompletingRebalance"


def test_without_a_group_nobody_is_known(classic: Any) -> None:
    assert classic.error(classic.sync("m", 1)) == "UNKNOWN_MEMBER_ID"


def test_while_members_join_they_are_sent_back(classic: Any) -> None:
    one, two = classic.stable(2)
    classic.join(one)
    assert classic.error(classic.sync(two, 1)) == "REBALANCE_IN_PROGRESS"


def test_a_second_request_of_a_member_supersedes_the_first(classic: Any) -> None:
    one, two = joined(classic, 2)
    first, second = classic.sync(two, 1), classic.sync(two, 1)
    assert (classic.error(first), classic.waiting()) == ("REBALANCE_IN_PROGRESS", [second])
    classic.sync(one, 1, {two: b"2"})
    assert classic.synced(second).assignment == b"2"


def test_who_waited_for_an_assignment_in_vain_has_a_session_again(classic: Any) -> None:
    """While its request waits it counts as alive, however long; afterwards it does not."""
    tokens = [classic.join(instance_id=name) for name in ("i", "j")]
    classic.after(3_000)
    classic.after(3_000)
    leader, follower = (classic.joined(token).member_id for token in tokens)
    waits = classic.sync(follower, 1)
    for _ in range(5):
        classic.after(5_000)
        assert classic.beat(leader, 1) == "NONE"
    classic.join(leader, instance_id="i", protocols={"range": b"other"})
    assert classic.error(waits) == "REBALANCE_IN_PROGRESS"
    classic.after(9_999)
    assert list(classic.group.members) == [leader, follower]
    classic.after(1)
    assert list(classic.group.members) == [leader]


def test_what_members_had_is_void_once_they_wait_in_vain(classic: Any) -> None:
    """They may have let it go when they joined: whoever looks at the group must not find it given twice."""
    one, two = classic.stable(2)
    classic.join(one, protocols={"range": b"other"})
    classic.join(two)
    waits = classic.sync(two, 2)
    assert classic.group.assignments == {one: one.encode(), two: two.encode()}
    classic.join(one, protocols={"range": b"another"})
    assert classic.error(waits) == "REBALANCE_IN_PROGRESS"
    assert classic.group.assignments == {one: b"", two: b""}


def test_in_a_stable_group_it_is_answered_again(classic: Any) -> None:
    one, _ = classic.stable(2)
    assert classic.synced(classic.sync(one, 1)).assignment == one.encode()


def test_who_does_not_sync_in_time_is_removed(classic: Any) -> None:
    entered = [classic.enter(session_timeout_ms=100_000)[0] for _ in range(3)]
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    one, two, three = entered
    classic.sync(one, 1, {})
    classic.sync(two, 1)
    classic.after(60_000)
    assert (list(classic.group.members), classic.state) == ([one, two], "PreparingRebalance")
    assert classic.beat(three, 1) == "UNKNOWN_MEMBER_ID"


def test_a_leader_that_does_not_sync_in_time_takes_nobody_along(classic: Any) -> None:
    entered = [classic.enter(session_timeout_ms=100_000)[0] for _ in range(2)]
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    waits = classic.sync(entered[1], 1)
    classic.after(60_000)
    assert classic.error(waits) == "REBALANCE_IN_PROGRESS"
    assert list(classic.group.members) == [entered[1]]


class TestFailedWrites:
    def test_an_assignment_that_is_not_written_is_void(self, classic: Any, journal: FailingJournal) -> None:
        one, two = joined(classic, 2)
        second = classic.sync(two, 1)
        journal.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        first = classic.sync(one, 1, {one: b"1", two: b"2"})
        assert [classic.error(token) for token in (first, second)] == ["NOT_COORDINATOR", "NOT_COORDINATOR"]
        assert classic.state == "PreparingRebalance"
        journal.code = None
        again = [classic.join(one), classic.join(two)]
        assert [classic.joined(token).generation for token in again] == [2, 2]
        classic.assign()
        assert classic.state == "Stable"

    def test_a_group_that_is_not_written_is_not_there(self, classic: Any, journal: FailingJournal) -> None:
        journal.code = ErrorCode.REQUEST_TIMED_OUT
        assert classic.error(classic.join()) == "COORDINATOR_NOT_AVAILABLE"
        assert classic.error(classic.join(api_version=3)) == "COORDINATOR_NOT_AVAILABLE"
        assert classic.scene.coordinator.classic.groups == {}
        assert len(classic.scene.coordinator.classic.timers) == 0
        journal.code = None
        classic.stable(1)

    def test_a_removal_that_is_not_written_is_reported_all_the_same(
        self, classic: Any, journal: FailingJournal
    ) -> None:
        """The member is gone from memory, as in Kafka: no later step removes it once more."""
        (one,) = classic.stable(1)
        journal.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        (outcome,) = classic.after(10_000)
        assert outcome.effects == (MemberFenced(group_id="g", member_id=one, reason="session"),)
        assert outcome.records == ()
        assert (classic.state, classic.waiting()) == ("Empty", [])
        journal.code = None
        assert classic.beat(one, 1) == "UNKNOWN_MEMBER_ID"
        assert classic.after(60_000) == []

    def test_a_static_member_that_is_not_written_did_not_come_back(
        self, classic: Any, journal: FailingJournal
    ) -> None:
        old = static(classic)
        journal.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert classic.error(classic.join(instance_id="i")) == "NOT_COORDINATOR"
        assert list(classic.group.members) == [old]
        assert classic.beat(old, 1, instance_id="i") == "NONE"
        assert classic.scene.coordinator.classic.stored["g"] == classic.group.value(classic.group.assignments)

    def test_nothing_is_expected_of_a_member_that_is_not_written(
        self, classic: Any, journal: FailingJournal
    ) -> None:
        """One of a consumer group, which has its time to sync from its join on."""
        classic.scene.join("A")
        timers = classic.scene.coordinator.soft.timers
        before = set(timers)
        journal.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert classic.error(classic.join(api_version=3)) == "NOT_COORDINATOR"
        assert set(timers) == before


def static(classic: Any) -> str:
    token = classic.join(instance_id="i")
    classic.after(3_000)
    classic.assign()
    return str(classic.joined(token).member_id)
