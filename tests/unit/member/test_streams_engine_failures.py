"""A client at work over members that a test plays: failures, what handlers answer, and shutdowns of all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import StreamThreadState as T
from tests.unit.member.played_streams import P0, P1, A, B, C, Rig, answering, settle


class Sudden(BaseException):
    pass


FAILURES = [ValueError("x"), Sudden(), KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()]


@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_replace_thread(error: BaseException) -> None:
    rig = await Rig(handler=answering(Response.REPLACE_THREAD)).running()
    rig.members[A].give(P0, 0, "a")
    rig.members[A].give(P0, 1, error)
    await settle()
    assert (rig.thread(A), rig.thread(B), rig.thread(C)) == (T.DEAD, T.RUNNING, T.STARTING)
    assert rig.members[A].closed
    assert rig.members[A].committed_offsets == {}, "a thread that failed commits nothing"
    assert rig.state is S.RUNNING
    assert rig.engine.cleaner.running
    await rig.engine.close(None)


@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_shutdown_client_is_the_default(error: BaseException) -> None:
    rig = await Rig().running()
    rig.members[B].close_gate = gate = asyncio.Event()
    rig.members[A].give(P0, 0, error)
    await settle()
    assert rig.state is S.PENDING_ERROR
    assert not rig.engine.cleaner.running
    assert not rig.engine.recorder.running
    assert rig.engine.directory.path is not None
    gate.set()
    assert await rig.engine.wait_ended() is S.ERROR
    assert rig.states[-2:] == [S.PENDING_ERROR, S.ERROR]
    assert (rig.thread(A), rig.thread(B)) == (T.DEAD, T.DEAD)
    assert rig.engine.directory.path is None


async def test_an_exception_of_a_poll_goes_to_the_handler() -> None:
    rig = await Rig(handler=answering(Response.REPLACE_THREAD)).running()
    rig.members[A].script.put_nowait(OSError("broken"))
    await settle()
    assert (rig.thread(A), rig.engine.client.replaced) == (T.DEAD, 1)
    await rig.engine.close(None)


async def test_threads_that_fail_one_after_the_other_are_replaced_later_each_time() -> None:
    rig = Rig(threads=1, handler=answering(Response.REPLACE_THREAD))
    await rig.engine.start()

    async def fail(name: str) -> None:
        rig.members[name].script.put_nowait(OSError("refused"))
        await settle()

    await settle()
    await fail(A)
    assert rig.thread(B) is T.STARTING
    await fail(B)
    assert rig.thread(A) is T.CREATED
    await rig.time.advance(0.1)
    assert rig.thread(A) is T.STARTING
    await fail(A)
    await rig.time.advance(0.1)
    assert rig.thread(B) is T.CREATED
    await rig.time.advance(0.1)
    assert rig.thread(B) is T.STARTING
    await rig.time.advance(10)
    await fail(B)
    assert rig.thread(A) is T.STARTING, "one that lived for long is replaced at once"
    await rig.engine.close(None)


async def test_a_thread_that_waits_for_its_start_ends_when_it_is_told_to() -> None:
    rig = Rig(threads=1, handler=answering(Response.REPLACE_THREAD))
    await rig.engine.start()
    await settle()
    for name in (A, B):
        rig.members[name].script.put_nowait(OSError("refused"))
        await settle()
    closing = asyncio.create_task(rig.engine.close(None))
    await rig.time.advance(0.1)
    assert await closing
    assert rig.state is S.NOT_RUNNING
    assert rig.thread(A) is T.DEAD


async def test_a_failure_before_the_first_assignment() -> None:
    rig = Rig()
    await rig.engine.start()
    rig.members[A].script.put_nowait(OSError("broken"))
    assert await rig.engine.wait_ended() is S.ERROR
    assert S.RUNNING not in rig.states


async def test_a_failure_in_a_rebalance_callback() -> None:
    rig = await Rig(handler=answering(Response.SHUTDOWN_CLIENT)).running()

    async def refuse(offsets: Mapping[TopicPartition, int]) -> None:
        raise OSError("no space")

    rig.members[A].give(P0, 0, "a")
    rig.members[A].commit = refuse  # type: ignore[method-assign]
    rig.members[A].revoke(P0)
    assert await rig.engine.wait_ended() is S.ERROR


async def test_two_threads_fail_at_once() -> None:
    rig = await Rig(handler=answering(Response.REPLACE_THREAD, Response.SHUTDOWN_CLIENT)).running()
    rig.members[A].give(P0, 0, ValueError())
    rig.members[B].give(P1, 0, ValueError())
    assert await rig.engine.wait_ended() is S.ERROR
    assert set(rig.engine.client.thread_states().values()) == {T.DEAD}


async def test_shutdown_application_is_asked_for_by_all_threads() -> None:
    rig = await Rig(handler=answering(Response.SHUTDOWN_APPLICATION)).running()
    rig.members[A].give(P0, 0, ValueError())
    await settle()
    assert rig.members[A].asks
    assert rig.members[B].asks
    assert rig.state is S.RUNNING
    rig.members[B].events.on_shutdown_requested()
    assert await rig.engine.wait_ended() is S.ERROR


async def test_the_only_thread_that_fails_leaves_one_that_asks() -> None:
    rig = await Rig(threads=1, handler=answering(Response.SHUTDOWN_APPLICATION)).running()
    rig.members[A].give(P0, 0, ValueError())
    await settle()
    assert (rig.members[A].closed, rig.members[B].asks) == (True, True)
    rig.members[B].events.on_shutdown_requested()
    assert await rig.engine.wait_ended() is S.ERROR


async def test_who_was_told_of_a_shutdown_ends_when_the_round_that_it_has_begun_is_over() -> None:
    rig = await Rig().running()
    rig.members[A].round_s = 60
    rig.members[A].events.on_shutdown_requested()
    await settle()
    assert (rig.state, rig.thread(A), rig.thread(B)) == (S.PENDING_ERROR, T.PENDING_SHUTDOWN, T.DEAD)
    rig.members[A].give(P0, 0, "a")
    await settle()
    assert rig.seen == [], "nothing is processed any more"
    rig.members[A].round_s = 0
    rig.members[A].wake()
    assert await rig.engine.wait_ended() is S.ERROR


async def test_who_was_told_of_a_shutdown_waits_for_no_coordinator_longer_than_a_round_may_take() -> None:
    rig = await Rig(threads=1).running()
    rig.members[A].round_s = 60
    rig.members[A].events.on_shutdown_requested()
    rig.members[A].connected = False
    await rig.time.advance(59)
    rig.members[A].wake()
    await settle()
    assert rig.state is S.PENDING_ERROR
    rig.members[A].connected = True
    await rig.time.advance(61)
    rig.members[A].wake()
    await settle()
    assert rig.state is S.PENDING_ERROR, "one round may follow another"
    rig.members[A].connected = False
    rig.members[A].wake()
    assert await rig.engine.wait_ended() is S.ERROR


async def test_who_has_asked_for_a_shutdown_stays_for_the_round_that_tells_it() -> None:
    rig = await Rig(handler=answering(Response.SHUTDOWN_APPLICATION)).running()
    rig.members[B].round_s = 60
    rig.members[A].give(P0, 0, ValueError())
    await settle()
    rig.engine.carry_out(rig.engine.client.close())
    await settle()
    assert (rig.thread(B), rig.members[B].closed) == (T.PENDING_SHUTDOWN, False)
    rig.members[B].round_s = 0
    rig.members[B].wake()
    assert await rig.engine.wait_ended() is S.NOT_RUNNING


async def test_a_client_that_closes_waits_for_no_round() -> None:
    rig = await Rig().running()
    for member in rig.members.values():
        member.round_s = 60
    assert await rig.engine.close(None)


async def test_where_the_group_cannot_be_told_shutdown_application_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await Rig(escalates=False, handler=answering(Response.SHUTDOWN_APPLICATION)).running()
    rig.members[A].give(P0, 0, ValueError())
    assert await rig.engine.wait_ended() is S.ERROR
    assert "can't ask the group to shut down" in caplog.text


async def test_a_thread_whose_task_is_cancelled_ends_and_asks_no_handler() -> None:
    rig = await Rig(handler=answering(Response.SHUTDOWN_CLIENT)).running()
    task = rig.engine.workers[A].task
    assert task is not None
    task.cancel()
    await settle()
    assert (rig.thread(A), rig.state, rig.engine.client.failures) == (T.DEAD, S.RUNNING, 0)
    await rig.engine.close(None)


async def test_a_failure_while_the_client_closes() -> None:
    gate = asyncio.Event()

    async def process(partition: TopicPartition, records: Sequence[Any]) -> None:
        await gate.wait()
        raise ValueError("late")

    rig = await Rig(process, handler=answering(Response.REPLACE_THREAD)).running()
    rig.members[A].give(P0, 0, "a")
    await settle()
    assert await rig.engine.close(0) is False
    gate.set()
    assert await rig.engine.wait_ended() is S.NOT_RUNNING
    assert list(rig.members) == [A, B]
