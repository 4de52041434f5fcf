"""Closing: what is committed and revoked, how the member leaves, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions, TopicPartition
from fencepost.member.base.actions import RunCallback
from fencepost.member.base.leave import CloseOption
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO = "foo-id"
FOO_0 = TopicPartition("foo", 0)


def test_close_commits_revokes_and_leaves(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.close()
    assert r.pending(RunCallback) == []
    offsets = r.committed().request.offsets
    assert {partition: each.offset for partition, each in offsets.items()} == {FOO_0: 5}
    assert r.callback().kind == "revoked"
    assert r.answer(-1).member_epoch == -1
    assert r.leaves_finished() == 1
    with pytest.raises(ValueError, match="closed"):
        r.subscribe("foo")
    r.poll()
    assert r.open == []


@pytest.mark.parametrize(
    ("instance_id", "option", "epoch"),
    [
        (None, CloseOption.DEFAULT, -1),
        (None, CloseOption.LEAVE_GROUP, -1),
        (None, CloseOption.REMAIN_IN_GROUP, None),
        ("host-1", CloseOption.DEFAULT, -2),
        ("host-1", CloseOption.LEAVE_GROUP, -1),
        ("host-1", CloseOption.REMAIN_IN_GROUP, -2),
    ],
)
def test_close_tells_the_coordinator_what_its_option_says(
    rig: MakeRig, instance_id: str | None, option: CloseOption, epoch: int | None
) -> None:
    r = rig(group_instance_id=instance_id)
    r.stable({})
    r.close(option)
    assert [action.request.member_epoch for action in r.pending(SendHeartbeat)] == (
        [] if epoch is None else [epoch]
    )
    assert r.state == "UNSUBSCRIBED"


@pytest.mark.parametrize("subscribed", [False, True])
def test_close_of_a_member_that_never_joined(rig: MakeRig, subscribed: bool) -> None:
    r = rig()
    if subscribed:
        r.subscribe("foo")
    r.close()
    assert [move.target for move in r.moves] == ["PREPARE_LEAVING", "UNSUBSCRIBED"]
    assert r.leaves_finished() == 1
    assert r.open == []


def test_close_waits_for_the_callback_of_a_member_that_has_left_already(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.unsubscribe()
    r.close()
    assert r.leaves_finished() == 0
    r.callback()
    assert r.leaves_finished() == 1


def test_close_after_unsubscribe_decides_how_to_leave(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({FOO: (0,)})
    r.unsubscribe()
    r.close(CloseOption.LEAVE_GROUP)
    r.callback()
    assert r.heartbeat().member_epoch == -1


def test_close_takes_no_longer_than_its_time(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.close(timeout_ms=1_000)
    r.advance(500)
    assert r.pending(RunCallback), "the commit has half of the time"
    r.advance(499)
    assert r.leaves_finished() == 0
    r.advance(1)
    assert r.leaves_finished() == 1
    assert r.heartbeat().member_epoch == -1, "the leave goes out even so"
    assert r.member.deadline_ms is None


def test_close_gives_a_commit_up_that_cannot_be_made(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.close(timeout_ms=1_000)
    r.committed(ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.callback().kind == "revoked"


@pytest.mark.parametrize("owned", [{}, {FOO: (0,)}])
def test_close_without_a_coordinator_ends_in_time(rig: MakeRig, owned: Partitions) -> None:
    r = rig()
    r.stable(owned)
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    r.close(timeout_ms=2_000)
    r.open.clear()
    r.advance(2_000)
    assert r.leaves_finished() == 1
    assert r.pending(SendHeartbeat) == []
    assert r.member.owned_partitions() == ()
