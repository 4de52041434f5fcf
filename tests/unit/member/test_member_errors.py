"""Every error of a heartbeat, in every active state, and what it does (Kafka's client)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base import errors
from fencepost.member.base.actions import (
    CommitFinished,
    RunCallback,
    SendFindCoordinator,
)
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO = "foo-id"


def joining(r: Any) -> None:
    r.join("foo")


def reconciling(r: Any) -> None:
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)


def acknowledging(r: Any) -> None:
    reconciling(r)
    r.callback()
    assert r.state == "ACKNOWLEDGING"


def stable(r: Any) -> None:
    r.stable({FOO: (0,)})
    r.advance(5_000)


ACTIVE = {
    "JOINING": joining,
    "RECONCILING": reconciling,
    "ACKNOWLEDGING": acknowledging,
    "STABLE": stable,
}
CODES = [*errors.ERROR_RULES, ErrorCode.INVALID_RECORD]
"""Each code that has a rule of its own, and one that has none."""


def finish_callbacks(r: Any) -> None:
    while r.pending(RunCallback):
        r.callback()


@pytest.mark.parametrize("state", ACTIVE)
def test_an_error_does_what_its_rule_says(rig: MakeRig, state: str) -> None:
    for code in CODES:
        _check_rule(rig(), state, code)


def _check_rule(r: Any, state: str, code: ErrorCode) -> None:
    ACTIVE[state](r)
    assert r.state == state
    before = len(r.moves)
    r.answer(error=code)
    rule = errors.heartbeat_rule(code)
    if rule is errors.ErrorRule.FENCED:
        assert r.moves[before].event == "fenced"
        finish_callbacks(r)
        r.advance(200)
        assert r.state == "JOINING"
        assert r.heartbeat().member_epoch == 0
    elif rule is errors.ErrorRule.FATAL:
        assert r.state == "FATAL"
        assert isinstance(r.errors[-1].error, errors.FatalMemberError)
        assert r.errors[-1].error.code is code
        finish_callbacks(r)
        r.advance(60_000)
        assert r.pending(SendHeartbeat) == []
    else:
        # The coordinator is found again at once, and with it the acknowledgement goes out.
        acknowledged = rule is errors.ErrorRule.REDISCOVER and state == "ACKNOWLEDGING"
        assert r.state == ("STABLE" if acknowledged else state)
        assert bool(r.errors) == (rule is errors.ErrorRule.REPORT)
        looked_up = [action for action in r.log if isinstance(action, SendFindCoordinator)]
        assert len(looked_up) == (2 if rule is errors.ErrorRule.REDISCOVER else 1)
        r.advance(0 if rule is errors.ErrorRule.REDISCOVER else 120)
        assert r.heartbeat().rebalance_timeout_ms != -1


def test_the_table_is_kafkas() -> None:
    by_rule = {
        rule: {code.value for code, its in errors.ERROR_RULES.items() if its is rule}
        for rule in errors.ErrorRule
    }
    assert by_rule == {
        errors.ErrorRule.FENCED: {25, 110},
        errors.ErrorRule.RETRY: {14},
        errors.ErrorRule.REDISCOVER: {15, 16},
        errors.ErrorRule.REPORT: {29},
        errors.ErrorRule.FATAL: {30, 42, 112, 81, 35, 111, 82, 128, 69, -1},
    }
    assert errors.heartbeat_rule(ErrorCode.INVALID_RECORD) is errors.ErrorRule.FATAL


def test_a_coordinator_that_keeps_refusing_is_not_asked_in_a_loop(rig: MakeRig) -> None:
    r = rig()
    stable(r)
    for _ in range(20):
        if r.pending(SendHeartbeat):
            r.answer(error=ErrorCode.NOT_COORDINATOR)
    refused = sum(isinstance(action, SendFindCoordinator) for action in r.log)
    assert refused == 2, "the first lookup goes out at once, the next one waits"
    r.advance(120)
    assert r.pending(SendHeartbeat)


def test_a_topic_error_is_raised_and_the_member_stays(rig: MakeRig) -> None:
    r = rig()
    stable(r)
    r.answer(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert type(r.errors[0].error) is errors.MemberError
    assert not r.errors[0].fatal
    assert r.fetchable()
    r.advance(120)
    r.answer(2, {FOO: (0,)})
    assert r.state == "STABLE"


def test_a_fenced_member_loses_everything_and_joins_with_the_same_id(rig: MakeRig) -> None:
    r = rig()
    stable(r)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.state == "FENCED"
    assert r.member.member_epoch == 0
    assert r.fetchable() == {}
    lost = r.callback()
    assert lost.kind == "lost"
    assert [tuple(each) for each in lost.partitions] == [("foo", 0)]
    assert r.state == "JOINING"
    request = r.heartbeat()
    assert (request.member_id, request.member_epoch, request.topic_partitions) == ("member", 0, {})


def test_a_member_that_owns_nothing_is_fenced_without_a_callback(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert r.pending(RunCallback) == []
    assert r.state == "JOINING"
    assert r.heartbeat().member_epoch == 0


def test_a_join_that_is_fenced_waits_before_the_next(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    for _ in range(5):
        r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
        assert r.state == "JOINING"
        assert r.open == []
        r.advance(1_000)


def test_a_member_that_is_fenced_during_a_callback_waits_for_its_end(rig: MakeRig) -> None:
    r = rig()
    reconciling(r)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert r.one(RunCallback).kind == "assigned"
    r.callback()
    assert r.state == "FENCED", "nothing of the pass is acknowledged"
    assert r.callback().kind == "lost"
    assert r.state == "JOINING"


def test_what_was_revoked_before_the_fencing_is_not_lost_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.advance(5_000)
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert [tuple(each) for each in r.callback().partitions] == [("foo", 1)]
    lost = r.callback()
    assert lost.kind == "lost"
    assert [tuple(each) for each in lost.partitions] == [("foo", 0)]


def test_what_on_revoked_could_not_give_up_is_lost(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.advance(5_000)
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    r.callback(error=RuntimeError("cannot"))
    assert [tuple(each) for each in r.callback().partitions] == [("foo", 0), ("foo", 1)]
    assert r.state == "JOINING"
    assert isinstance(r.errors[0].error, errors.CallbackFailed)


def test_a_fatal_member_loses_what_it_owns_and_never_comes_back(rig: MakeRig) -> None:
    r = rig()
    stable(r)
    r.answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert r.callback().kind == "lost"
    r.poll()
    r.subscribe("bar")
    r.poll()
    r.advance(600_000)
    assert (r.state, r.member.member_epoch) == ("FATAL", 0)
    assert r.open == []
    assert r.member.deadline_ms is None


@pytest.mark.parametrize("offsets", [None, {}], ids=["all", "no offsets"])
def test_a_fatal_member_refuses_to_commit_even_if_nothing_is_left(
    rig: MakeRig, offsets: dict[TopicPartition, OffsetAndMetadata] | None
) -> None:
    r = rig()
    stable(r)
    r.answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    r.callback()
    for _ in range(2):
        commit_id, actions = r.member.commit(offsets, r.now)
        assert CommitFinished(commit_id, ErrorCode.UNKNOWN_MEMBER_ID) in actions


def test_an_instance_id_that_is_in_use_may_be_tried_again(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", unreleased_instance_id_retries=2)
    r.join("foo")
    for _ in range(2):
        r.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID)
        assert r.state == "JOINING"
        r.advance(1_000)
    r.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID)
    assert r.state == "FATAL"
    assert r.errors[-1].error.code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_retries_of_an_instance_id_start_anew_after_a_join(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", unreleased_instance_id_retries=1)
    r.join("foo")
    r.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID)
    r.advance(1_000)
    r.answer(2, {})
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID)
    r.answer(error=ErrorCode.FENCED_INSTANCE_ID)  # of the leave: another process has the instance id
    assert r.state == "JOINING"
