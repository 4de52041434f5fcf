"""From the owned set to the target: order, callbacks, interruptions (KIP-848, Reconciliation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base import actions
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO, BAR = "foo-id", "bar-id"
FOO_0, FOO_1, BAR_0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)


def callbacks(r: Any) -> list[tuple[str, tuple[TopicPartition, ...]]]:
    return [(str(a.kind), a.partitions) for a in r.log if isinstance(a, actions.RunCallback)]


def give(r: Any, assignment: Any, epoch: int = 2) -> None:
    """The next heartbeat's answer carries this assignment."""
    r.advance(5_000)
    r.answer(epoch, assignment)


# -- the order -------------------------------------------------------------------------------------------


def test_a_growing_assignment_is_assigned_and_acknowledged(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0, 1)})
    assert r.state == "RECONCILING"
    assert r.callback().partitions == (FOO_0, FOO_1)
    assert r.heartbeat().topic_partitions == {FOO: (0, 1)}
    assert r.state == "STABLE"
    assert [move.event for move in r.moves] == [
        "subscribed",
        "target received",
        "pass finished",
        "acknowledged",
    ]


def test_a_shrinking_assignment_is_revoked_and_on_assigned_is_called_with_nothing(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    give(r, {FOO: (0,)})
    r.callback()
    r.callback()
    assert callbacks(r)[1:] == [("revoked", (FOO_1,)), ("assigned", ())]
    assert r.heartbeat().topic_partitions == {FOO: (0,)}


def test_revoked_comes_before_assigned(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    give(r, {BAR: (0,)})
    assert [kind for kind, _ in callbacks(r)] == ["assigned", "revoked"]
    r.callback()
    assert [kind for kind, _ in callbacks(r)] == ["assigned", "revoked", "assigned"]
    r.callback()
    assert r.heartbeat().topic_partitions == {BAR: (0,)}


def test_an_empty_assignment_is_not_the_same_as_none(rig: MakeRig) -> None:
    """franz-go 0af2689c."""
    r = rig()
    r.stable({FOO: (0,)})
    give(r, None)
    assert r.state == "STABLE"
    give(r, {})
    assert callbacks(r)[-1] == ("revoked", (FOO_0,))


def test_the_same_assignment_again_changes_nothing(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    moves = len(r.moves)
    give(r, {FOO: (1, 0), BAR: ()}, epoch=3)
    assert len(r.moves) == moves
    assert r.member.member_epoch == 3
    assert r.open == []


# -- what may be fetched ---------------------------------------------------------------------------------


def test_nothing_is_fetchable_before_on_assigned_ended_and_its_position_is_known(rig: MakeRig) -> None:
    r = rig()
    r.auto_offsets = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    assert r.fetchable() == {}
    assert r.pending(actions.FetchOffsets) == []
    r.callback()
    assert r.fetchable() == {}
    r.fetched(r.one(actions.FetchOffsets), {FOO_0: 42})
    assert r.fetchable() == {FOO_0: 42}


def test_what_is_revoked_is_not_fetchable_from_before_the_commit_on(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5, FOO_1: 7})
    r.poll_begin()
    give(r, {FOO: (0,)})
    assert r.pending(actions.SendCommit)
    assert r.pending(actions.RunCallback) == []
    assert r.fetchable() == {FOO_0: 5}
    assert r.log[-1] == actions.WakeApplication()
    r.committed()
    assert r.pending(actions.RunCallback)
    assert r.fetchable() == {FOO_0: 5}
    with pytest.raises(ValueError, match="foo-1 is not assigned"):
        r.member.seek(FOO_1, 9, r.now)
    r.callback()
    assert r.member.positions.position(FOO_1) is None


def test_a_partition_that_comes_back_asks_for_its_position_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    give(r, {FOO: (0,)})
    r.callback()
    r.callback()
    r.answer(3)
    r.auto_offsets = False
    give(r, {FOO: (0, 1)}, epoch=4)
    r.callback()
    assert r.one(actions.FetchOffsets).request.partitions == (FOO_1,)
    assert FOO_1 not in r.fetchable()


# -- when a pass may begin -------------------------------------------------------------------------------


def test_a_revocation_waits_for_the_next_poll(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.poll_end()
    give(r, {FOO: (0,)})
    assert r.pending(actions.RunCallback) == []
    assert r.state == "RECONCILING"
    r.poll_begin()
    assert r.one(actions.RunCallback).kind == "revoked"


def test_an_addition_runs_any_time_without_auto_commit(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.poll_end()
    give(r, {FOO: (0, 1)})
    assert r.one(actions.RunCallback).partitions == (FOO_1,)


def test_the_first_addition_waits_for_no_poll_with_auto_commit(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({})
    r.poll_end()
    give(r, {FOO: (0,)}, epoch=3)
    assert callbacks(r) == [("assigned", (FOO_0,))]


def test_an_addition_waits_for_the_next_poll_with_auto_commit(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end()
    give(r, {FOO: (0, 1)})
    assert r.pending(actions.RunCallback) == []
    r.poll_begin()
    assert r.one(actions.RunCallback).partitions == (FOO_1,)


# -- the commit before a revocation ----------------------------------------------------------------------


def test_processed_positions_are_committed_before_a_revocation(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5, FOO_1: 7})
    r.poll_begin()
    give(r, {FOO: (0,)}, epoch=3)
    request = r.committed().request
    assert request.member_epoch == 3
    assert {partition: each.offset for partition, each in request.offsets.items()} == {FOO_0: 5, FOO_1: 7}
    assert r.one(actions.RunCallback).kind == "revoked"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_the_commit_is_tried_again_with_the_newest_epoch(rig: MakeRig, code: ErrorCode) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    r.poll_begin()
    give(r, {FOO: (0,)}, epoch=3)
    r.committed(code)
    assert r.pending(actions.SendCommit) == []
    assert r.member.member_epoch == 3
    if code is ErrorCode.STALE_MEMBER_EPOCH:
        r.advance(5_000)
        r.committed(code)
        r.answer(4)
        r.advance(1_000)
        assert r.committed().request.member_epoch == 4
    else:
        r.advance(120)
        r.committed()
    assert r.one(actions.RunCallback).kind == "revoked"


@pytest.mark.parametrize(
    "code",
    [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.OFFSET_METADATA_TOO_LARGE],
)
def test_a_commit_that_fails_does_not_stop_the_revocation(rig: MakeRig, code: ErrorCode) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    r.poll_begin()
    give(r, {FOO: (0,)})
    r.committed(code)
    assert r.one(actions.RunCallback).kind == "revoked"


def test_the_commit_is_given_up_after_the_rebalance_time_out(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True, max_poll_interval_ms=3_000)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    r.poll_begin()
    give(r, {FOO: (0,)})
    began = r.now
    while r.pending(actions.SendCommit) or not r.pending(actions.RunCallback):
        if r.pending(actions.SendCommit):
            r.committed(ErrorCode.STALE_MEMBER_EPOCH)
        r.advance(50)
    assert 3_000 <= r.now - began <= 3_100


# -- newer targets ---------------------------------------------------------------------------------------


def test_a_newer_target_is_taken_up_after_the_pass(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    give(r, {FOO: (1,)}, epoch=3)
    assert r.state == "RECONCILING"
    assert r.callback().partitions == (FOO_0,)
    assert r.state == "RECONCILING", "acknowledged what it owns, and there is more to do"
    assert r.answer(3).topic_partitions == {FOO: (0, 1)}
    assert r.callback().partitions == (FOO_0,)
    assert r.callback().partitions == (FOO_1,)
    assert r.answer(3).topic_partitions == {FOO: (1,)}
    assert r.state == "STABLE"


def test_a_target_that_is_owned_already_ends_the_reconciliation(rig: MakeRig) -> None:
    """KAFKA-16185."""
    r = rig()
    r.stable({FOO: (0,)})
    r.poll_end()
    give(r, {})
    assert r.state == "RECONCILING"
    give(r, {FOO: (0,)})
    assert r.state == "STABLE"
    assert r.heartbeat().topic_partitions == {FOO: (0,)}, "a new target gets its acknowledgement"


def test_a_target_that_is_owned_already_waits_for_the_callback_that_runs(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    give(r, {FOO: (0,)})
    give(r, {FOO: (0, 1)})
    assert r.state == "RECONCILING"
    r.callback()
    r.callback()
    assert r.answer().topic_partitions == {FOO: (0, 1)}, "the second one is about to be taken again"
    assert r.callback().partitions == (FOO_1,)
    assert r.heartbeat().topic_partitions == {FOO: (0, 1)}


def test_a_target_that_arrives_before_the_acknowledgement_goes_out_starts_a_pass(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.callback()
    assert r.state == "ACKNOWLEDGING"
    r.answer(2, {FOO: (0, 1)})
    assert r.state == "RECONCILING"
    r.callback()
    assert r.heartbeat().topic_partitions == {FOO: (0, 1)}


def test_an_owned_target_that_arrives_before_the_acknowledgement_is_covered_by_it(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo", "bar")
    r.answer(2, {FOO: (0,), BAR: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {FOO: "foo"})
    r.advance(5_000)
    r.callback()
    assert r.state == "ACKNOWLEDGING"
    r.answer(2, {FOO: (0,)})
    assert r.state == "STABLE"
    assert r.answer().topic_partitions == {FOO: (0,)}
    r.advance(5_000)
    assert r.heartbeat().topic_partitions is None


# -- topic names -----------------------------------------------------------------------------------------


def test_what_has_a_name_is_reconciled_and_the_rest_follows(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo", "bar")
    r.answer(2, {FOO: (0,), BAR: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {FOO: "foo"})
    assert r.callback().partitions == (FOO_0,)
    assert r.answer(2).topic_partitions == {FOO: (0,), BAR: (0,)}, "what is left out would count as released"
    assert r.state == "RECONCILING"
    assert r.pending(actions.ResolveTopicNames) == []
    r.advance(120)
    r.names(r.one(actions.ResolveTopicNames), {BAR: "bar"})
    assert r.callback().partitions == (BAR_0,)
    assert r.heartbeat().topic_partitions is None, "listed already"
    assert r.state == "STABLE"


def test_a_target_without_any_name_is_acknowledged_once(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {})
    assert r.answer(2).topic_partitions == {FOO: (0,)}
    sent = 1
    for _ in range(20):
        r.advance(1_000)
        for action in r.pending(actions.ResolveTopicNames):
            r.names(action, {})
        for heartbeat in r.pending(SendHeartbeat):
            sent += heartbeat.request.topic_partitions is not None
            r.answer(2)
    assert sent == 1
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.answer(3, {FOO: (0,)})
    r.names(r.pending(actions.ResolveTopicNames)[-1], {})
    assert r.heartbeat().topic_partitions == {FOO: (0,)}, "the same target of the next join, too"
    assert r.state == "RECONCILING"


def test_lookups_of_names_back_off(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    asked = 0
    for _ in range(10_000 // 50):
        for action in r.pending(actions.ResolveTopicNames):
            asked += 1
            r.names(action, {})
        r.advance(50)
    assert 9 <= asked <= 15
    r.advance(1_000)
    r.names(r.one(actions.ResolveTopicNames), {FOO: "foo"})
    r.answer(2, {FOO: (0,), BAR: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {})
    r.advance(120)
    assert r.pending(actions.ResolveTopicNames), "a name that was found ends the long waits"


def test_a_new_topic_does_not_wait_until_others_are_looked_up_again(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo", "bar")
    r.answer(2, {FOO: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {})
    assert r.pending(actions.ResolveTopicNames) == []
    r.answer(2, {FOO: (0,), BAR: (0,)})
    r.names(r.one(actions.ResolveTopicNames), {BAR: "bar"})
    assert r.callback().partitions == (BAR_0,)


def test_a_lookup_of_names_that_fails_is_tried_again(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.answer()
    r.fail(actions.ResolveTopicNames)
    assert r.pending(actions.ResolveTopicNames) == []
    r.advance(120)
    r.names(r.one(actions.ResolveTopicNames), {FOO: "foo"})
    assert r.one(actions.RunCallback).partitions == (FOO_0,)


# -- callbacks that raise --------------------------------------------------------------------------------


def test_on_assigned_that_raises_is_called_again_by_the_next_poll(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.callback(error=RuntimeError("cannot"))
    error = r.errors[0].error
    assert isinstance(error, CallbackFailed)
    assert isinstance(error.__cause__, RuntimeError)
    with pytest.raises(ValueError, match="foo-0 is not assigned"):
        r.member.seek(FOO_0, 5, r.now)
    assert r.state == "RECONCILING"
    assert r.fetchable() == {}
    r.advance(5_000)
    assert r.answer().topic_partitions is None
    r.poll_end()
    r.advance(5_000)
    assert r.pending(actions.RunCallback) == []
    r.poll_begin()
    assert r.callback().partitions == (FOO_0,)
    assert r.state == "ACKNOWLEDGING"


def test_on_revoked_that_raises_is_called_again_by_the_next_poll(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    give(r, {FOO: (0,)})
    r.callback(error=RuntimeError("cannot"))
    assert r.state == "RECONCILING"
    assert list(r.fetchable()) == [FOO_0]
    r.poll_end()
    r.poll_begin()
    assert callbacks(r)[-1] == ("revoked", (FOO_1,))
    r.callback()
    r.callback()
    assert r.heartbeat().topic_partitions == {FOO: (0,)}


def test_what_on_revoked_could_not_give_up_is_assigned_anew_if_it_stays(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    give(r, {FOO: (0,)})
    r.callback(error=RuntimeError("cannot"))
    give(r, {FOO: (0, 1)})
    assert r.state == "RECONCILING"
    r.poll_begin()
    assert r.callback().partitions == (FOO_1,)
    assert set(r.fetchable()) == {FOO_0, FOO_1}


def test_what_on_assigned_could_not_take_is_revoked_if_it_goes(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.callback(error=RuntimeError("cannot"))
    give(r, {})
    r.poll_begin()
    assert callbacks(r)[-1] == ("revoked", (FOO_0,))
    r.callback()
    r.callback()
    assert r.heartbeat().topic_partitions == {}


def test_what_on_assigned_could_not_take_is_forgotten_once_it_is_lost(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.callback(error=RuntimeError("cannot"))
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.callback()
    r.answer(3, {})
    assert r.state == "STABLE"


def test_of_what_on_assigned_could_not_take_the_part_that_stays_is_assigned_again(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0, 1)})
    r.callback(error=RuntimeError("cannot"))
    give(r, {FOO: (0,)})
    r.poll_begin()
    assert r.callback().partitions == (FOO_1,)
    assert r.callback().partitions == (FOO_0,)
    assert set(r.fetchable()) == {FOO_0}
    assert r.answer().topic_partitions == {FOO: (0,)}
    assert (r.state, r.open) == ("STABLE", []), "nothing is left of the partition that went"


def test_a_target_that_comes_back_while_a_late_name_is_taken_up_is_acknowledged(rig: MakeRig) -> None:
    """Otherwise the coordinator waits for foo-1 until the rebalance timeout, and fences the member."""
    r = rig()
    r.auto_names = False
    r.join("foo", "bar")
    target = {FOO: (0,), BAR: (0,)}
    r.answer(2, target)
    r.names(r.one(actions.ResolveTopicNames), {FOO: "foo"})
    r.callback()
    assert r.answer(2).topic_partitions == target
    r.advance(200)
    r.names(r.one(actions.ResolveTopicNames), {BAR: "bar"})
    assert r.one(actions.RunCallback).partitions == (BAR_0,)
    give(r, {FOO: (0, 1), BAR: (0,)}, 3)
    give(r, target, 3)
    r.callback()
    seen = []
    for _ in range(3):
        seen += [each.request.topic_partitions for each in r.pending(SendHeartbeat)]
        for _ in r.pending(SendHeartbeat):
            r.answer(3)
        r.advance(5_000)
    assert target in seen
    assert r.state == "STABLE"
