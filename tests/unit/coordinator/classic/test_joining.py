"""JoinGroup: who is taken in, who waits for whom, and what a generation begins with."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, "INVALID_GROUP_ID"),
        ({"session_timeout_ms": 5_999}, "INVALID_SESSION_TIMEOUT"),
        ({"session_timeout_ms": 1_800_001}, "INVALID_SESSION_TIMEOUT"),
        ({"member_id": "stranger"}, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_what_needs_no_group_makes_none(classic: Any, fields: dict[str, Any], error: str) -> None:
    assert classic.error(classic.join(**fields)) == error
    assert classic.scene.coordinator.classic.groups == {}


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_the_shortest_and_the_longest_session_are_good(classic: Any, session_timeout_ms: int) -> None:
    assert classic.error(classic.join(session_timeout_ms=session_timeout_ms)) == "MEMBER_ID_REQUIRED"


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_first_member_needs_a_type_and_a_protocol(classic: Any, fields: dict[str, Any]) -> None:
    assert classic.error(classic.join(**fields)) == "INCONSISTENT_GROUP_PROTOCOL"
    assert (classic.state, classic.group.members) == ("Empty", {})


class TestMemberIds:
    def test_a_dynamic_member_gets_its_id_first(self, classic: Any) -> None:
        answer = classic.joined(classic.join())
        assert (answer.error_code.name, answer.member_id, answer.generation) == (
            "MEMBER_ID_REQUIRED",
            "c-1",
            -1,
        )
        assert (classic.state, list(classic.group.pending_joins)) == ("Empty", ["c-1"])
        token = classic.join("c-1")
        assert classic.waiting() == [token]
        assert (classic.state, classic.group.pending_joins) == ("PreparingRebalance", {})

    def test_before_version_4_it_joins_at_once(self, classic: Any) -> None:
        token = classic.join(api_version=3)
        classic.after(3_000)
        assert classic.joined(token).member_id == "c-1"

    def test_an_id_that_nobody_uses_is_dropped_after_the_session(self, classic: Any) -> None:
        classic.join()
        classic.after(9_999)
        assert classic.group.pending_joins
        classic.after(1)
        assert not classic.group.pending_joins
        assert classic.error(classic.join("c-1")) == "UNKNOWN_MEMBER_ID"

    def test_a_round_waits_for_an_id_that_was_given_out(self, classic: Any) -> None:
        (leader,) = classic.stable(1)
        new = classic.joined(classic.join()).member_id
        rejoined = classic.join(leader)
        assert (classic.state, classic.waiting()) == ("PreparingRebalance", [rejoined])
        joined = classic.join(new)
        assert [classic.joined(token).generation for token in (rejoined, joined)] == [2, 2]

    def test_a_round_no_longer_waits_for_an_id_that_expired_or_left(self, classic: Any) -> None:
        (leader,) = classic.stable(1)
        new = classic.joined(classic.join()).member_id
        rejoined = classic.join(leader)
        assert classic.leave(new) == ["NONE"]
        assert classic.joined(rejoined).generation == 2
        classic.assign()
        classic.join()
        rejoined = classic.join(leader)
        classic.after(10_000)
        assert classic.joined(rejoined).generation == 3


class TestFirstRound:
    def test_it_waits_for_the_initial_delay(self, classic: Any) -> None:
        _, token = classic.enter()
        assert classic.after(2_999) == []
        classic.after(1)
        assert classic.joined(token).generation == 1

    def test_it_is_extended_while_members_come(self, classic: Any) -> None:
        tokens = []
        for _ in range(4):
            tokens.append(classic.enter()[1])
            classic.after(2_000)
        assert classic.waiting() == tokens
        # It is 8 s now; the delays end at 3, 6 and 9 s, each after somebody came, and at 12 s.
        classic.after(3_999)
        assert classic.waiting() == tokens
        classic.after(1)
        assert classic.waiting() == []
        assert len(classic.joined(tokens[0]).members) == 4

    def test_it_is_not_extended_beyond_the_rebalance_time_out(self, classic: Any) -> None:
        tokens = []
        for _ in range(4):
            tokens.append(classic.enter(rebalance_timeout_ms=7_000)[1])
            classic.after(1_999)
        assert classic.waiting() == []
        assert [classic.joined(token).generation for token in tokens] == [1, 1, 1, 1]

    def test_without_a_delay_it_ends_at_once(self, classics: Any) -> None:
        classic = classics(group_initial_rebalance_delay_ms=0)
        _, token = classic.enter()
        classic.after(0)
        assert classic.joined(token).generation == 1


class TestAnswers:
    def test_the_leader_is_told_of_everybody_the_others_of_nobody(self, classic: Any) -> None:
        (one, first), (two, second) = classic.enter(), classic.enter()
        classic.after(3_000)
        classic.after(3_000)
        lead, follow = classic.joined(first), classic.joined(second)
        assert (lead.leader, follow.leader) == (one, one)
        assert [member.member_id for member in lead.members] == [one, two]
        assert follow.members == ()
        assert (lead.protocol_type, lead.protocol_name, lead.skip_assignment) == ("consumer", "range", False)

    def test_the_protocol_is_what_most_like_best_of_what_all_offer(self, classic: Any) -> None:
        likes = [("s", "r"), ("r", "s", "new"), ("r", "s"), ("new", "r", "s")]
        tokens = [classic.enter(protocols=names)[1] for names in likes]
        classic.after(3_000)
        classic.after(3_000)
        assert {classic.joined(token).protocol_name for token in tokens} == {"r"}

    def test_of_two_with_as_many_votes_a_java_hash_map_has_one_first(self, classic: Any) -> None:
        tokens = [classic.enter(protocols=names)[1] for names in (("range", "sticky"), ("sticky", "range"))]
        classic.after(3_000)
        classic.after(3_000)
        assert {classic.joined(token).protocol_name for token in tokens} == {"sticky"}

    def test_a_member_must_share_a_protocol_with_all(self, classic: Any) -> None:
        classic.enter(protocols=("a", "b"))
        classic.enter(protocols=("b", "c"))
        assert classic.error(classic.join(protocols=("a", "c"))) == "INCONSISTENT_GROUP_PROTOCOL"
        assert classic.error(classic.join(protocol_type="connect")) == "INCONSISTENT_GROUP_PROTOCOL"
        assert classic.error(classic.join(protocols=("b",))) == "MEMBER_ID_REQUIRED"


class TestRejoining:
    def test_an_unchanged_follower_goes_on(self, classic: Any) -> None:
        one, two = classic.stable(2)
        answer = classic.joined(classic.join(two))
        assert (answer.generation, answer.leader, answer.members) == (1, one, ())
        assert classic.state == "Stable"

    def test_a_changed_follower_starts_a_rebalance(self, classic: Any) -> None:
        _, two = classic.stable(2)
        token = classic.join(two, protocols={"range": b"other"})
        assert (classic.state, classic.waiting()) == ("PreparingRebalance", [token])

    def test_the_leader_starts_one_in_any_case(self, classic: Any) -> None:
        one, two = classic.stable(2)
        first = classic.join(one)
        assert classic.beat(two, 1) == "REBALANCE_IN_PROGRESS"
        second = classic.join(two)
        assert [classic.joined(token).generation for token in (first, second)] == [2, 2]

    def test_a_lost_answer_is_given_again_before_the_assignment(self, classic: Any) -> None:
        one, first = classic.enter()
        classic.after(3_000)
        again = classic.joined(classic.join(one))
        assert again == classic.joined(first)
        assert classic.state == "CompletingRebalance"

    def test_a_change_before_the_assignment_starts_over(self, classic: Any) -> None:
        (one, _), (two, _) = classic.enter(), classic.enter()
        classic.after(3_000)
        classic.after(3_000)
        waits = classic.sync(two, 1)
        token = classic.join(one, protocols={"range": b"other"})
        assert classic.error(waits) == "REBALANCE_IN_PROGRESS"
        assert classic.waiting() == [token]

    def test_a_second_request_of_a_member_supersedes_the_first(self, classic: Any) -> None:
        one, two = classic.stable(2)
        first = classic.join(one)
        second = classic.join(one)
        assert (classic.error(first), classic.waiting()) == ("REBALANCE_IN_PROGRESS", [second])
        classic.join(two)
        assert classic.joined(second).generation == 2


class TestEndOfARound:
    def test_who_does_not_join_in_time_is_left_behind(self, classic: Any) -> None:
        one, two = classic.stable(2, session_timeout_ms=100_000)
        token = classic.join(one, session_timeout_ms=100_000)
        classic.after(59_999)
        assert classic.waiting() == [token]
        classic.after(1)
        assert [member.member_id for member in classic.joined(token).members] == [one]
        assert classic.beat(two, 2) == "UNKNOWN_MEMBER_ID"

    def test_another_leads_if_the_leader_does_not_join(self, classic: Any) -> None:
        _, two = classic.stable(2, session_timeout_ms=100_000)
        token = classic.join(two, protocols={"range": b"other"})
        classic.after(60_000)
        answer = classic.joined(token)
        assert (answer.leader, answer.member_id, len(answer.members)) == (two, two, 1)

    def test_a_leader_goes_on_leading_wherever_it_stands(self, classic: Any) -> None:
        static = [classic.join(instance_id=name, session_timeout_ms=200_000) for name in ("i", "j")]
        classic.after(3_000)
        classic.after(3_000)
        classic.assign()
        first, second = (classic.joined(token).member_id for token in static)
        token = classic.join(
            second, instance_id="j", session_timeout_ms=200_000, protocols={"range": b"other"}
        )
        classic.after(60_000)
        assert classic.joined(token).leader == second
        classic.assign()
        again = [
            classic.join(member_id, instance_id=name, session_timeout_ms=200_000)
            for member_id, name in ((second, "j"), (first, "i"))
        ]
        assert [classic.joined(token).leader for token in again] == [second, second]

    def test_a_member_that_joins_again_has_the_time_that_it_asks_for_now(self, classic: Any) -> None:
        one, two = classic.stable(2, session_timeout_ms=300_000, rebalance_timeout_ms=10_000)
        fields = {"session_timeout_ms": 300_000, "protocols": {"range": b"other"}}
        classic.join(two, rebalance_timeout_ms=100_000, **fields)
        classic.join(one, rebalance_timeout_ms=10_000, **fields)
        classic.assign()
        token = classic.join(one, rebalance_timeout_ms=10_000, **fields)
        classic.after(99_999)
        assert classic.waiting() == [token]
        classic.after(1)
        assert list(classic.group.members) == [one]

    def test_the_leader_sees_what_members_say_in_the_protocol_that_was_chosen(self, classic: Any) -> None:
        (one, first), _ = (
            classic.enter(protocols={"a": b"of a", "b": b"of b"}),
            classic.enter(protocols={"b": b"also of b"}),
        )
        while classic.state == "PreparingRebalance":
            classic.after(3_000)
        answer = classic.joined(first)
        assert (answer.leader, answer.protocol_name) == (one, "b")
        assert [member.metadata for member in answer.members] == [b"of b", b"also of b"]

    def test_the_slowest_member_sets_the_time(self, classic: Any) -> None:
        one, _ = classic.enter(session_timeout_ms=300_000, rebalance_timeout_ms=200_000)
        two, _ = classic.enter(session_timeout_ms=300_000, rebalance_timeout_ms=1_000)
        while classic.state == "PreparingRebalance":
            classic.after(3_000)
        classic.assign()
        token = classic.join(one, session_timeout_ms=300_000, rebalance_timeout_ms=200_000)
        classic.after(199_999)
        assert classic.waiting() == [token]
        classic.after(1)
        assert two not in classic.group.members


class TestSize:
    def test_a_stable_group_that_is_full_takes_nobody_new(self, classics: Any) -> None:
        classic = classics(group_max_size=2)
        one, two = classic.stable(2)
        answer = classic.joined(classic.join())
        assert (answer.error_code.name, answer.member_id) == ("GROUP_MAX_SIZE_REACHED", "")
        assert classic.joined(classic.join(two)).generation == 1
        assert list(classic.group.members) == [one, two]

    def test_while_joining_those_who_wait_count(self, classics: Any) -> None:
        classic = classics(group_max_size=2)
        (one, first), (two, second) = classic.enter(), classic.enter()
        assert classic.error(classic.join()) == "GROUP_MAX_SIZE_REACHED"
        classic.after(3_000)
        classic.after(3_000)
        assert {classic.joined(token).generation for token in (first, second)} == {1}
        classic.assign()
        classic.join(one)
        # The other has not joined yet, and its place goes to who is quicker.
        new = classic.joined(classic.join()).member_id
        classic.join(new)
        assert classic.error(classic.join(two)) == "GROUP_MAX_SIZE_REACHED"
        assert list(classic.group.members) == [one, new]
        classic.after(60_000)
        assert classic.group.generation == 2

    def test_nobody_waits_for_an_id_that_finds_the_group_full(self, classics: Any) -> None:
        classic = classics(group_max_size=2)
        (one,) = classic.stable(1)
        late, two = (classic.joined(classic.join()).member_id for _ in range(2))
        classic.join(two)
        classic.join(one)
        answer = classic.joined(classic.join(late))
        assert (answer.error_code.name, answer.member_id) == ("GROUP_MAX_SIZE_REACHED", "")
        assert classic.leave(late) == ["UNKNOWN_MEMBER_ID"]

    def test_a_loaded_group_that_is_full_goes_on(self, classic: Any) -> None:
        classic.stable(3)
        classic.scene.config = type(classic.scene.config)(group_max_size=3)
        classic.scene.reload()
        assert classic.state == "Stable"

    def test_a_loaded_group_that_is_too_large_rebalances(self, classic: Any) -> None:
        members = classic.stable(3)
        classic.scene.config = type(classic.scene.config)(group_max_size=2)
        classic.scene.reload()
        assert classic.state == "PreparingRebalance"
        assert classic.beat(members[0], 1) == "REBALANCE_IN_PROGRESS"
