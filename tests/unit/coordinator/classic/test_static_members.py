"""Static members of classic groups (KIP-345, KIP-814): they come back, and nobody else notices."""

from __future__ import annotations

from typing import Any


def two_static(classic: Any, **fields: Any) -> tuple[str, str]:
    """A Stable group of `one`, who leads, and `two`."""
    tokens = [classic.join(instance_id=name, **fields) for name in ("one", "two")]
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    classic.assign()
    first, second = (classic.joined(token).member_id for token in tokens)
    return first, second


def test_it_joins_at_once_under_an_id_made_of_its_instance_id(classic: Any) -> None:
    assert two_static(classic) == ("one-1", "two-2")


def test_a_follower_that_comes_back_gets_its_assignment(classic: Any) -> None:
    first, second = two_static(classic)
    answer = classic.joined(classic.join(instance_id="two"))
    (record,) = classic.scene.last.records
    assert (answer.generation, answer.leader, answer.members, answer.skip_assignment) == (1, first, (), False)
    assert [member.member_id for member in record.value.members] == [first, answer.member_id]
    assert classic.state == "Stable"
    assert classic.synced(classic.sync(answer.member_id, 1)).assignment == second.encode()
    assert classic.beat(second, 1, instance_id="two") == "FENCED_INSTANCE_ID"
    assert classic.beat(second, 1) == "UNKNOWN_MEMBER_ID"


def test_a_leader_that_comes_back_skips_the_assignment(classic: Any) -> None:
    _, second = two_static(classic)
    answer = classic.joined(classic.join(instance_id="one"))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert [member.member_id for member in answer.members] == [answer.member_id, second]
    assert classic.state == "Stable"


def test_an_old_leader_that_comes_back_is_not_told_that_it_leads(classic: Any) -> None:
    first, _ = two_static(classic)
    answer = classic.joined(classic.join(instance_id="one", api_version=8))
    assert (answer.leader, answer.skip_assignment, answer.members) == (first, False, ())
    assert classic.group.leader == answer.member_id


def test_a_load_knows_who_came_back(classic: Any) -> None:
    two_static(classic)
    new = classic.joined(classic.join(instance_id="two")).member_id
    classic.scene.reload()
    assert classic.group.static_members == {"one": "one-1", "two": new}
    assert classic.beat(new, 1, instance_id="two") == "NONE"


def test_a_change_of_the_group_s_protocol_rebalances(classic: Any) -> None:
    two_static(classic, protocols=("a", "b"))
    assert classic.group.protocol == "a"
    token = classic.join(instance_id="two", protocols=("b",))
    assert (classic.state, classic.waiting()) == ("PreparingRebalance", [token])


def test_before_the_assignment_everybody_joins_again(classic: Any) -> None:
    classic.join(instance_id="one")
    classic.join(instance_id="two")
    classic.after(3_000)
    classic.after(3_000)
    waits = classic.sync("two-2", 1)
    token = classic.join(instance_id="two")
    assert classic.error(waits) == "FENCED_INSTANCE_ID"
    assert (classic.state, classic.waiting()) == ("PreparingRebalance", [token])


def test_one_that_waits_is_fenced_by_the_one_that_comes_back(classic: Any) -> None:
    first = classic.join(instance_id="one")
    second = classic.join(instance_id="one")
    assert classic.error(first) == "FENCED_INSTANCE_ID"
    classic.after(3_000)
    assert classic.joined(second).generation == 1


def test_a_round_that_waited_only_for_it_ends_when_it_comes_back(classic: Any) -> None:
    first, _ = two_static(classic)
    waits = classic.join(first, instance_id="one")
    assert classic.waiting() == [waits]
    back = classic.join(instance_id="two")
    assert [classic.joined(token).generation for token in (waits, back)] == [2, 2]


def test_the_next_round_waits_for_one_that_came_back(classic: Any) -> None:
    first, _ = two_static(classic)
    back = classic.joined(classic.join(instance_id="two")).member_id
    waits = classic.join(first, instance_id="one")
    assert classic.waiting() == [waits]
    classic.join(back, instance_id="two")
    assert len(classic.joined(waits).members) == 2


def test_a_round_keeps_static_members_that_do_not_join(classic: Any) -> None:
    first, second = two_static(classic, session_timeout_ms=100_000)
    token = classic.join(first, instance_id="one", session_timeout_ms=100_000)
    classic.after(60_000)
    assert [member.member_id for member in classic.joined(token).members] == [first, second]


def test_a_round_without_anybody_goes_on_until_sessions_end(classic: Any) -> None:
    first, second = two_static(classic, session_timeout_ms=100_000)
    classic.scene.now_ms += 0
    token = classic.join(first, instance_id="one", session_timeout_ms=100_000)
    assert classic.leave((first, "one")) == ["NONE"]
    assert classic.error(token) == "UNKNOWN_MEMBER_ID"
    classic.after(60_000)
    assert (classic.state, list(classic.group.members)) == ("PreparingRebalance", [second])
    classic.after(60_000)
    assert (classic.state, classic.group.members) == ("Empty", {})


def test_a_round_without_anybody_lets_time_pass_whatever_the_rebalance_timeout_is(classic: Any) -> None:
    tokens = [
        classic.join(instance_id=name, rebalance_timeout_ms=ms) for name, ms in (("one", 9_000), ("two", 0))
    ]
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    classic.assign()
    first, second = (classic.joined(token).member_id for token in tokens)
    assert classic.leave((first, "one")) == ["NONE"]
    assert list(classic.group.members) == [second]
    assert len(classic.after(9_900)) < 200
    classic.after(200)
    assert (classic.state, classic.group.members) == ("Empty", {})


def test_its_session_ends_as_any_other_s(classic: Any) -> None:
    first, _ = two_static(classic)
    classic.after(9_000)
    classic.beat(first, 1, instance_id="one")
    classic.after(1_000)
    assert list(classic.group.static_members) == ["one"]


def test_an_administrator_removes_it_by_its_instance_id(classic: Any) -> None:
    first, second = two_static(classic)
    assert classic.leave(("", "two"), ("wrong", "one"), (first, "two")) == [
        "NONE",
        "FENCED_INSTANCE_ID",
        "UNKNOWN_MEMBER_ID",
    ]
    assert second not in classic.group.members


def test_a_join_with_the_id_of_another_is_fenced(classic: Any) -> None:
    first, _ = two_static(classic)
    assert classic.error(classic.join(first, instance_id="two")) == "FENCED_INSTANCE_ID"
    assert classic.error(classic.join(first, instance_id="three")) == "UNKNOWN_MEMBER_ID"
    assert classic.error(classic.sync(first, 1, instance_id="two")) == "FENCED_INSTANCE_ID"
    assert classic.commit(first, 1, instance_id="two") == "FENCED_INSTANCE_ID"
