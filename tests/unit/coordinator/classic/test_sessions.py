"""Heartbeat, LeaveGroup and time: how members stay and go, and what becomes of a group without any."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.outcome import MemberFenced


@pytest.mark.parametrize(
    ("member", "generation", "fields", "error"),
    [
        (None, 1, {}, "NONE"),
        (None, 0, {}, "ILLEGAL_GENERATION"),
        (None, 2, {}, "ILLEGAL_GENERATION"),
        ("stranger", 1, {}, "UNKNOWN_MEMBER_ID"),
        (None, 1, {"instance_id": "i"}, "UNKNOWN_MEMBER_ID"),
        (None, 1, {"group_id": "other"}, "UNKNOWN_MEMBER_ID"),
        (None, 1, {"group_id": ""}, "INVALID_GROUP_ID"),
    ],
)
def test_heartbeats(
    classic: Any, member: str | None, generation: int, fields: dict[str, Any], error: str
) -> None:
    (one,) = classic.stable(1)
    assert classic.beat(member or one, generation, **fields) == error


def test_a_member_is_alive_before_it_is_assigned(classic: Any) -> None:
    one, _ = classic.enter()
    classic.after(3_000)
    assert (classic.state, classic.beat(one, 1)) == ("CompletingRebalance", "NONE")


def test_heartbeats_and_commits_keep_the_session(classic: Any) -> None:
    one, two = classic.stable(2)
    for _ in range(3):
        classic.after(9_999)
        assert classic.beat(one, 1) == "NONE"
        assert classic.commit(two, 1) == "NONE"
    (outcome,) = classic.after(10_000)[:1]
    assert [effect for effect in outcome.effects if isinstance(effect, MemberFenced)]
    assert classic.state in {"PreparingRebalance", "Empty"}


def test_a_silent_member_is_removed_and_the_others_rebalance(classic: Any) -> None:
    one, two = classic.stable(2)
    classic.after(9_000)
    classic.beat(one, 1)
    classic.after(1_000)
    assert (list(classic.group.members), classic.state) == ([one], "PreparingRebalance")
    assert classic.beat(one, 1) == "REBALANCE_IN_PROGRESS"
    assert classic.beat(two, 1) == "UNKNOWN_MEMBER_ID"
    assert classic.joined(classic.join(one)).generation == 2


def test_heartbeats_keep_the_session_of_members_that_have_not_joined_again(classic: Any) -> None:
    one, two = classic.stable(2)
    token = classic.join(one)
    for _ in range(5):
        classic.after(9_000)
        assert classic.beat(two, 1) == "REBALANCE_IN_PROGRESS"
    assert classic.waiting() == [token]


def test_members_that_wait_for_others_are_alive(classic: Any) -> None:
    one, two = classic.stable(2)
    token = classic.join(one)
    for _ in range(4):
        classic.after(9_000)
        classic.beat(two, 1)
    classic.join(two)
    assert classic.joined(token).generation == 2
    waits = classic.sync(two, 2)
    classic.after(9_000)
    classic.beat(one, 2)
    classic.after(9_000)
    classic.sync(one, 2, {})
    assert classic.error(waits) == "NONE"
    classic.after(9_999)
    assert two in classic.group.members, "its session began when it was answered"
    classic.after(1)
    assert two not in classic.group.members


def test_a_new_member_waits_for_five_minutes_at_most(classic: Any) -> None:
    (one,) = classic.stable(1, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
    _, token = classic.enter()
    classic.after(299_999)
    assert classic.waiting() == [token]
    classic.after(1)
    assert classic.error(token) == "UNKNOWN_MEMBER_ID"
    assert list(classic.group.members) == [one]


class TestLeaving:
    def test_the_others_rebalance(self, classic: Any) -> None:
        one, two = classic.stable(2)
        assert classic.leave(two) == ["NONE"]
        assert (classic.state, list(classic.group.members)) == ("PreparingRebalance", [one])

    def test_the_last_one_leaves_an_empty_group_in_a_new_generation(self, classic: Any) -> None:
        (one,) = classic.stable(1)
        assert classic.leave(one) == ["NONE"]
        assert (classic.state, classic.group.generation) == ("Empty", 2)
        (record,) = classic.scene.last.records
        assert (record.value.generation, record.value.members, record.value.leader) == (2, (), None)
        assert record.value.protocol_type == "consumer"
        assert len(classic.scene.coordinator.classic.timers) == 0

    def test_who_is_unknown_is_told_so_alone(self, classic: Any) -> None:
        _, two = classic.stable(2)
        assert classic.leave("stranger", two, ("", "nobody"), ("", None)) == [
            "UNKNOWN_MEMBER_ID",
            "NONE",
            "UNKNOWN_MEMBER_ID",
            "UNKNOWN_MEMBER_ID",
        ]

    def test_nothing_happens_if_nobody_is_known(self, classic: Any) -> None:
        classic.stable(1)
        assert classic.leave("stranger") == ["UNKNOWN_MEMBER_ID"]
        assert classic.state == "Stable"

    def test_without_a_group_nobody_is_known(self, classic: Any) -> None:
        assert classic.leave("a", "b") == ["UNKNOWN_MEMBER_ID"] * 2

    def test_a_member_that_waits_is_told(self, classic: Any) -> None:
        one, two = classic.stable(2)
        token = classic.join(one)
        assert classic.leave(one) == ["NONE"]
        assert classic.error(token) == "UNKNOWN_MEMBER_ID"
        assert classic.joined(classic.join(two)).leader == two

    def test_a_member_that_waits_for_its_assignment_is_told(self, classic: Any) -> None:
        (_, _), (two, _) = classic.enter(), classic.enter()
        while classic.state == "PreparingRebalance":
            classic.after(3_000)
        token = classic.sync(two, 1)
        assert classic.leave(two) == ["NONE"]
        assert classic.error(token) == "UNKNOWN_MEMBER_ID"
        assert classic.state == "PreparingRebalance"

    def test_a_round_that_waited_for_it_ends(self, classic: Any) -> None:
        one, two = classic.stable(2)
        token = classic.join(one)
        assert classic.leave(two) == ["NONE"]
        assert classic.joined(token).generation == 2

    def test_all_first_members_leave_before_the_round_ends(self, classic: Any) -> None:
        one, token = classic.enter()
        assert classic.leave(one) == ["NONE"]
        assert classic.error(token) == "UNKNOWN_MEMBER_ID"
        classic.after(3_000)
        assert (classic.state, classic.group.generation) == ("Empty", 1)


class TestFailover:
    def test_stable_members_go_on(self, classic: Any) -> None:
        one, two = classic.stable(2)
        classic.after(9_000)
        classic.scene.reload()
        classic.after(9_999)
        assert [classic.beat(member, 1) for member in (one, two)] == ["NONE", "NONE"]
        assert classic.synced(classic.sync(two, 1)).assignment == two.encode()
        assert classic.joined(classic.join(two)).generation == 1

    def test_sessions_begin_anew(self, classic: Any) -> None:
        classic.stable(2)
        classic.scene.reload()
        classic.after(10_000)
        assert classic.state == "Empty" or classic.group.members == {}

    def test_a_round_is_forgotten_and_members_join_again(self, classic: Any) -> None:
        one, two = classic.stable(2)
        lost = [classic.join(one), classic.join(two)]
        assert [classic.joined(token).generation for token in lost] == [2, 2]
        classic.scene.reload()
        assert (classic.state, classic.group.generation) == ("Stable", 1)
        assert classic.error(classic.sync(one, 2)) == "ILLEGAL_GENERATION"
        again = [classic.join(one), classic.join(two)]
        assert [classic.joined(token).generation for token in again] == [2, 2]

    def test_those_who_wait_are_told_when_the_coordinator_moves(self, classic: Any) -> None:
        one, two = classic.stable(2)
        token = classic.join(one)
        answers = classic.scene.coordinator.unload()
        assert [(answer.token, answer.response.error_code.name) for answer in answers] == [
            (token, "NOT_COORDINATOR")
        ]
        assert classic.scene.coordinator.next_deadline() is not None, "only the sweep is left"
        assert classic.beat(two, 1) == "UNKNOWN_MEMBER_ID"
