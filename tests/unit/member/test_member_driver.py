"""The asyncio shell: requests out, answers in, callbacks in a task, one timer, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
import structlog

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.errors import CallbackFailed, CommitFailed, FatalMemberError, MemberError
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.member.consumer.driver import ConsumerDriver
from tests.unit.member.driven_member import FOO, FOO_0, FOO_1, Rig


async def test_a_member_joins_reconciles_and_knows_its_positions() -> None:
    rig = Rig()
    await rig.stable(0, 1)
    assert rig.driver.member_epoch == 2
    assert rig.driver.member_id == "member"
    assert rig.driver.assignment == (FOO_0, FOO_1)
    assert rig.driver.fetchable() == {FOO_0: 3, FOO_1: 3}
    assert rig.listener.calls == [("assigned", (FOO_0, FOO_1))]
    rig.driver.abandon()


async def test_a_member_that_starts_by_duration_asks_for_it() -> None:
    rig = Rig(auto_offset_reset="by_duration:PT0.007S")
    await rig.stable(0)
    assert rig.driver.fetchable() == {FOO_0: 7}
    rig.driver.abandon()


async def test_steady_heartbeats_are_one_value_and_cost_no_task() -> None:
    rig = Rig()
    await rig.stable(0)
    tasks = len(asyncio.all_tasks())
    before = len(rig.transport.heartbeats)
    await asyncio.sleep(500)
    assert 98 <= len(rig.transport.heartbeats) - before <= 100
    assert len({id(request) for request in rig.transport.heartbeats[before:]}) == 1
    assert len(asyncio.all_tasks()) == tasks
    rig.driver.abandon()


async def test_the_observer_sees_states_requests_callbacks_and_commits() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.driver.poll_end({FOO_0: 7})
    await rig.driver.commit()
    names = [entry[0] for entry in rig.observer.seen]
    assert names.count("on_state") == 4
    assert names[:3] == ["on_state", "on_request", "on_response"]
    assert [entry[2] for entry in rig.observer.seen if entry[0] == "on_callback"] == ["begin", "end"]
    request, response = next(entry[1:] for entry in rig.observer.seen if entry[0] == "on_commit")
    assert (request.offsets[FOO_0].offset, response.errors[FOO_0]) == (7, ErrorCode.NONE)
    rig.driver.abandon()


@pytest.mark.parametrize("error", [Disconnected("gone"), RequestTimedOut("late"), RuntimeError("a defect")])
async def test_requests_without_an_answer_are_made_again(error: Exception) -> None:
    rig = Rig()
    await rig.stable(0)
    rig.transport.answers.append(error)
    await asyncio.sleep(6)
    full = rig.transport.heartbeats[-1]
    assert full.rebalance_timeout_ms == 300_000
    assert full.topic_partitions == {FOO: (0,)}
    assert rig.driver.state == "STABLE"
    rig.driver.abandon()


async def test_a_request_that_the_transport_cancels_counts_as_disconnected() -> None:
    rig = Rig()
    await rig.stable(0)
    original, rig.transport.send = rig.transport.send, lambda *_: cancelled()  # type: ignore[method-assign]

    def cancelled() -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    await asyncio.sleep(5.05)
    rig.transport.send = original  # type: ignore[method-assign]
    await asyncio.sleep(2)
    assert rig.transport.heartbeats[-1].rebalance_timeout_ms == 300_000
    rig.driver.abandon()


async def test_a_broker_that_does_not_speak_the_protocol_is_fatal() -> None:
    rig = Rig()
    rig.transport.answers.append(ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "no ConsumerGroupHeartbeat"))
    rig.driver.subscribe(["foo"])
    rig.driver.poll_begin()
    await asyncio.sleep(1)
    assert rig.driver.state == "FATAL"
    for _ in range(2):
        with pytest.raises(FatalMemberError, match="no ConsumerGroupHeartbeat"):
            rig.driver.poll_begin()
    await rig.driver.close()


async def test_a_lookup_is_made_again_or_is_fatal() -> None:
    rig = Rig()
    refusal = ProtocolError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")
    rig.transport.lookups = [Disconnected("gone"), RequestTimedOut("late"), refusal]
    rig.driver.subscribe(["foo"])
    rig.driver.poll_begin()
    await asyncio.sleep(2)
    assert rig.transport.lookups == []
    assert rig.driver.state == "FATAL"
    rig.driver.abandon()


# -- callbacks -------------------------------------------------------------------------------------------


async def test_heartbeats_go_on_while_a_callback_awaits() -> None:
    rig = Rig()
    rig.listener.takes_s = 60
    rig.transport.answers.append({"assignment": {FOO: (0,)}})
    rig.driver.subscribe(["foo"])
    rig.driver.poll_begin()
    await asyncio.sleep(50)
    assert rig.driver.state == "RECONCILING"
    assert 9 <= len(rig.transport.heartbeats) <= 11
    assert rig.driver.fetchable() == {}
    await asyncio.sleep(20)
    assert rig.driver.state == "STABLE"
    rig.driver.abandon()


async def test_callbacks_may_be_plain_functions() -> None:
    class Plain:
        def __init__(self) -> None:
            self.assigned: tuple[TopicPartition, ...] = ()

        def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
            self.assigned = partitions

        def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
            raise AssertionError("nothing is revoked")

        on_partitions_lost = on_partitions_revoked

    rig = Rig()
    listener = Plain()
    driver = ConsumerDriver(
        "group", "member", rig.transport, LoopClock(), listener=listener, rng=random.Random(1)
    )
    rig.transport.answers.append({"assignment": {FOO: (0,)}})
    driver.subscribe(["foo"])
    driver.poll_begin()
    await asyncio.sleep(1)
    assert listener.assigned == (FOO_0,)
    assert driver.fetchable() == {FOO_0: 90}
    driver.abandon()


async def test_a_callback_that_raises_is_raised_by_the_next_poll_and_called_again() -> None:
    rig = Rig()
    rig.listener.error = ValueError("cannot")
    rig.transport.answers.append({"assignment": {FOO: (0,)}})
    rig.driver.subscribe(["foo"])
    rig.driver.poll_begin()
    await asyncio.sleep(1)
    with pytest.raises(CallbackFailed, match="cannot") as caught:
        rig.driver.poll_begin()
    assert isinstance(caught.value.__cause__, ValueError)
    assert rig.driver.state == "RECONCILING"
    rig.driver.poll_begin()
    await asyncio.sleep(1)
    assert rig.driver.state == "STABLE"
    assert rig.listener.calls == [("assigned", (FOO_0,)), ("assigned", (FOO_0,))]
    phases = [entry[2] for entry in rig.observer.seen if entry[0] == "on_callback"]
    assert phases == ["begin", "raised", "begin", "end"]
    rig.driver.abandon()


@pytest.mark.parametrize("after_s", [0, 1], ids=["not begun", "at work"])
async def test_nobody_waits_for_a_callback_that_somebody_cancels(after_s: float) -> None:
    rig = Rig(enable_auto_commit=False)
    await rig.stable(0)
    rig.listener.takes_s = 60
    others = asyncio.all_tasks()
    closing = asyncio.create_task(rig.driver.close())
    await asyncio.sleep(after_s)
    (callback,) = asyncio.all_tasks() - others - {closing}
    callback.cancel()
    async with asyncio.timeout(1):
        await closing
    assert len(rig.listener.calls) == (2 if after_s else 1)
    assert rig.transport.heartbeats[-1].member_epoch == -1


async def test_a_callback_may_commit() -> None:
    rig = Rig(enable_auto_commit=False)
    await rig.stable(0, 1)
    rig.driver.poll_end({FOO_1: 44})
    rig.driver.poll_begin()

    async def on_partitions_revoked(partitions: tuple[TopicPartition, ...]) -> None:
        await rig.driver.commit()

    rig.listener.on_partitions_revoked = on_partitions_revoked  # type: ignore[method-assign]
    rig.transport.answers.append({"assignment": {FOO: (0,)}, "member_epoch": 3})
    await asyncio.sleep(6)
    commits = [request for request in rig.transport.requests if isinstance(request, OffsetCommitRequest)]
    assert commits[0].offsets[FOO_1].offset == 44
    assert rig.driver.assignment == (FOO_0,)
    rig.driver.abandon()


# -- waiting ---------------------------------------------------------------------------------------------


async def test_an_application_in_poll_is_woken_by_a_change() -> None:
    rig = Rig()
    changes: list[int] = []
    woken = asyncio.Event()

    def on_change() -> None:
        changes.append(rig.driver.changes)
        woken.set()

    rig.driver.on_change = on_change
    rig.transport.answers.append({"assignment": {FOO: (0,)}})
    rig.driver.subscribe(["foo"])
    rig.driver.poll_begin()
    while not rig.driver.fetchable():
        await woken.wait()
        woken.clear()
    assert rig.driver.fetchable() == {FOO_0: 3}
    assert changes == list(range(1, rig.driver.changes + 1))
    rig.driver.abandon()


async def test_an_error_that_concerns_the_application_is_raised_once() -> None:
    rig = Rig()
    await rig.stable(0)
    refused = {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "error_message": "not yours"}
    rig.transport.answers += [refused, refused]
    await asyncio.sleep(6)
    with pytest.raises(MemberError, match="not yours"):
        rig.driver.poll_begin()
    rig.driver.poll_begin()
    assert rig.driver.state == "STABLE"
    rig.driver.abandon()


# -- commits ---------------------------------------------------------------------------------------------


async def test_a_commit_that_fails_raises() -> None:
    rig = Rig(default_api_timeout_ms=2_000)
    await rig.stable(0)
    rig.driver.poll_end({FOO_0: 7})
    for error, code in (
        (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH),
        (ProtocolError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no"), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (Disconnected("gone"), ErrorCode.REQUEST_TIMED_OUT),
    ):
        rig.transport.commit_error = error  # type: ignore[assignment]
        with pytest.raises(CommitFailed) as caught:
            await rig.driver.commit()
        assert caught.value.code is code
    rig.driver.abandon()


async def test_seek_and_an_offset_out_of_range_move_the_position() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.driver.seek(FOO_0, 12)
    assert rig.driver.fetchable() == {FOO_0: 12}
    rig.driver.offset_out_of_range(FOO_0)
    await asyncio.sleep(0.1)
    assert rig.driver.fetchable() == {FOO_0: 3}
    rig.driver.abandon()


# -- the end ---------------------------------------------------------------------------------------------


async def test_close_commits_revokes_leaves_and_gives_the_transport_up() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.driver.poll_end({FOO_0: 7})
    await rig.driver.close()
    assert [type(request).__name__ for request in rig.transport.requests[-2:]] == [
        "OffsetCommitRequest",
        "ConsumerGroupHeartbeatRequest",
    ]
    assert rig.transport.heartbeats[-1].member_epoch == -1
    assert rig.listener.calls[-1] == ("revoked", (FOO_0,))
    assert rig.transport.closed
    assert rig.driver.state == "UNSUBSCRIBED"
    await rig.driver.close()
    with pytest.raises(ValueError, match="closed"):
        rig.driver.subscribe(["foo"])


async def test_close_cancels_a_callback_that_does_not_end() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.listener.takes_s = 1_000_000
    began = asyncio.get_running_loop().time()
    await rig.driver.close(CloseOption.LEAVE_GROUP, timeout_ms=2_000)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2, abs=0.01)
    assert rig.transport.heartbeats[-1].member_epoch == -1
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_unsubscribe_is_done_when_the_leave_is_answered() -> None:
    rig = Rig()
    await rig.stable(0)
    await rig.driver.unsubscribe()
    assert rig.driver.state == "UNSUBSCRIBED"
    assert rig.transport.heartbeats[-1].member_epoch == -1
    rig.driver.subscribe(pattern="f.*")
    await asyncio.sleep(0.2)
    join = next(request for request in rig.transport.heartbeats if request.subscribed_topic_regex)
    assert (join.member_epoch, join.subscribed_topic_regex) == (0, "f.*")
    rig.driver.abandon()


async def test_abandon_tells_nobody_and_leaves_nothing_behind() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.listener.takes_s = 1_000
    rig.transport.answers.append({"assignment": {}})
    await asyncio.sleep(5.1)
    assert rig.listener.calls[-1][0] == "revoked"
    rig.transport.silent = True
    rig.driver.poll_end({})
    committing = asyncio.ensure_future(rig.driver.commit({FOO_0: OffsetAndMetadata(offset=1)}))
    leaving = rig.driver.unsubscribe()
    await asyncio.sleep(0)
    sent = len(rig.transport.requests)
    rig.driver.abandon()
    rig.driver.abandon()
    await asyncio.sleep(1_000)
    assert len(rig.transport.requests) == sent
    assert rig.transport.closed
    rig.driver.poll_begin()
    assert len(rig.transport.requests) == sent
    assert committing.cancelled()
    assert leaving.cancelled()
    assert len(asyncio.all_tasks()) == 1


async def test_an_answer_that_comes_after_the_end_is_ignored() -> None:
    rig = Rig()
    await rig.stable(0)
    rig.transport.answers += [Disconnected("gone")]
    await asyncio.sleep(4.9)
    rig.driver.poll_end({FOO_0: 9})
    committing = asyncio.ensure_future(rig.driver.commit())
    await asyncio.sleep(0)
    state = rig.driver.state
    rig.driver.abandon()
    await asyncio.sleep(10)
    assert rig.driver.state == state
    assert committing.cancelled()


# -- logs ------------------------------------------------------------------------------------------------


async def test_a_library_is_quiet_until_the_process_configures_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig = Rig()
    await rig.stable(0)
    rig.driver.abandon()
    assert capsys.readouterr() == ("", "")


async def test_logs_go_through_the_standard_library_where_nobody_configured_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    await rig.stable(0)
    rig.transport.answers.append(RuntimeError("a defect"))
    await asyncio.sleep(6)
    rig.driver.abandon()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fencepost.member", "ERROR")
    assert record.getMessage() == "transport failed group=group member=member epoch=2"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a defect"


async def test_logs_carry_group_member_and_epoch() -> None:
    with structlog.testing.capture_logs() as logs:
        rig = Rig()
        await rig.stable(0)
        rig.driver.abandon()
    structlog.reset_defaults()
    assert len(logs) == 4
    assert all((entry["group"], entry["member"]) == ("group", "member") for entry in logs)
    assert [entry["epoch"] for entry in logs] == [0, 2, 2, 2]
