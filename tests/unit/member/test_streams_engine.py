"""A client at work over members that a test plays: order, commits, failures, services, ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.application.port import Batch
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.errors import IllegalStreamsState
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import StreamThreadState as T
from tests.unit.member.played_streams import Rig, settle

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B, C = (f"app-StreamThread-{index}" for index in (1, 2, 3))


def answering(*responses: Any) -> Callable[[BaseException], Any]:
    answers = list(responses)

    def handler(error: BaseException) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return handler


# -- work ------------------------------------------------------------------------------------------------


async def test_records_are_processed_in_order_and_committed_on_close() -> None:
    rig = await Rig().running()
    rig.members[A].give(P0, 0, "a", "b")
    rig.members[A].give(P0, 2, "c")
    await settle()
    assert rig.seen == [(P0, "a"), (P0, "b"), (P0, "c")]
    assert rig.members[A].committed_offsets == {}
    assert await rig.engine.close(None)
    assert rig.members[A].committed_offsets == {P0: 3}
    assert rig.states == [S.REBALANCING, S.RUNNING, S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    assert all(member.closed for member in rig.members.values())


async def test_offsets_are_committed_at_intervals() -> None:
    rig = await Rig().running()
    rig.members[A].give(P0, 0, "a")
    await settle()
    await rig.time.advance(29)
    rig.members[A].give(P0, 1, "b")
    await settle()
    assert rig.members[A].committed_offsets == {}
    await rig.time.advance(1)
    rig.members[A].give(P0, 2, "c")
    await settle()
    assert rig.members[A].committed_offsets == {P0: 3}
    await rig.engine.close(None)


async def test_what_was_processed_is_committed_before_partitions_go() -> None:
    rig = await Rig().running()
    member = rig.members[A]
    member.give(P0, 0, "a")
    member.revoke(P0)
    await settle()
    assert (member.committed_offsets, rig.thread(A)) == ({P0: 1}, T.RUNNING)
    await rig.engine.close(None)


async def test_nothing_is_committed_of_what_was_lost() -> None:
    rig = await Rig().running()
    member = rig.members[A]
    member.give(P0, 0, "a")
    member.revoke(P0, lost=True)
    await settle()
    await rig.engine.close(None)
    assert member.committed_offsets == {}


async def test_a_refused_commit_is_tried_again_with_the_next() -> None:
    rig = await Rig().running()
    member = rig.members[A]
    member.refuses = True
    member.give(P0, 0, "a")
    await settle()
    await rig.time.advance(31)
    member.give(P1, 0)
    await settle()
    member.refuses = False
    await rig.engine.close(None)
    assert (member.committed_offsets, rig.engine.commits) == ({P0: 1}, 1)


async def test_a_thread_without_partitions_runs() -> None:
    rig = Rig()
    await rig.engine.start()
    for member in rig.members.values():
        member.joined = True
        member.wake()
    await settle()
    assert (rig.state, rig.thread(A)) == (S.RUNNING, T.RUNNING)
    await rig.engine.close(None)


async def test_threads_ask_their_members_whether_they_are_connected() -> None:
    rig = await Rig().running()
    for member in rig.members.values():
        member.connected = False
        member.wake()
    await settle()
    assert (rig.state, rig.thread(A)) == (S.DISCONNECTED, T.DISCONNECTED)
    rig.members[A].connected = True
    rig.members[A].wake()
    await settle()
    assert (rig.state, rig.thread(A), rig.thread(B)) == (S.RUNNING, T.RUNNING, T.DISCONNECTED)
    assert await rig.engine.close(None)


# -- failures --------------------------------------------------------------------------------------------


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
    assert "can't tell the group to shut down" in caplog.text


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


# -- ends ------------------------------------------------------------------------------------------------


async def test_close_again_and_again_has_one_outcome(caplog: pytest.LogCaptureFixture) -> None:
    rig = await Rig().running()
    assert await asyncio.gather(*(rig.engine.close(None) for _ in range(5))) == [True] * 5
    assert await rig.engine.close(0)
    assert rig.states[-2:] == [S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    assert caplog.text == ""


async def test_close_in_error_warns_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = await Rig().running()
    rig.members[A].give(P0, 0, ValueError())
    assert await rig.engine.wait_ended() is S.ERROR
    caplog.clear()
    assert await rig.engine.close(None)
    assert [(record.levelno, "no effect" in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]
    assert rig.state is S.ERROR


async def test_a_client_that_never_started_closes() -> None:
    rig = Rig()
    assert await rig.engine.close(None)
    assert rig.states == [S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    with pytest.raises(IllegalStreamsState):
        await rig.engine.start()


async def test_a_thread_that_closes_its_client_does_not_wait_for_itself() -> None:
    closed: list[bool] = []

    async def process(partition: TopicPartition, records: Sequence[Any]) -> None:
        closed.append(await rig.engine.close(None))

    rig = await Rig(process).running()
    rig.members[A].give(P0, 0, "a")
    assert await rig.engine.wait_ended() is S.NOT_RUNNING
    assert closed == [False]


@pytest.mark.parametrize("failure", [RuntimeError, asyncio.CancelledError, BaseException])
async def test_listeners_hear_every_step_in_order_even_if_they_act(failure: type[BaseException]) -> None:
    rig = Rig()
    heard: list[tuple[S, S]] = []
    tasks: list[Any] = []

    def listener(new: S, old: S) -> None:
        heard.append((old, new))
        if new is S.RUNNING:
            rig.engine.add_thread()
            tasks.append(asyncio.ensure_future(rig.engine.close(0)))
        raise failure("listeners may fail")

    rig.engine.listener = listener
    await rig.engine.start()
    for member in list(rig.members.values()):
        member.assign()
    assert await rig.engine.wait_ended() is S.NOT_RUNNING
    assert [new for _, new in heard] == [S.REBALANCING, S.RUNNING, S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    assert [old for old, _ in heard[1:]] == [new for _, new in heard[:-1]]
    await asyncio.gather(*tasks)


# -- threads that come and go ----------------------------------------------------------------------------


async def test_threads_are_added_and_removed() -> None:
    rig = await Rig().running()
    assert rig.engine.add_thread() == C
    assert await rig.engine.remove_thread(None) == A
    assert (rig.thread(A), rig.members[A].closed) == (T.DEAD, True)
    rig.members[B].close_gate = gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        await rig.engine.remove_thread(0)
    gate.set()
    await rig.engine.close(None)
    assert rig.engine.add_thread() is None


# -- services --------------------------------------------------------------------------------------------


async def test_the_recorder_and_the_cleaner_run_until_the_client_ends(tmp_path: Any) -> None:
    rig = await Rig(state_dir=tmp_path).running()
    await settle()
    assert rig.engine.metrics is not None
    assert rig.engine.metrics.live_threads == 2
    await rig.time.advance(600)
    assert (rig.engine.cleaner.runs, rig.engine.recorder.runs) == (1, 2)
    await rig.engine.close(None)
    await rig.time.advance(600)
    assert (rig.engine.cleaner.runs, rig.engine.recorder.runs) == (1, 2)


async def test_a_service_that_fails_is_logged_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    rig = await Rig(handler=answering(Response.SHUTDOWN_CLIENT)).running()
    rig.engine.directory.clean = None  # type: ignore[method-assign,assignment]
    for runs in (1, 2):
        await rig.time.advance(600)
        assert rig.engine.cleaner.runs == runs
    assert rig.state is S.RUNNING
    assert "state directory cleaner failed" in caplog.text
    await rig.engine.close(None)


# -- the global thread -----------------------------------------------------------------------------------


class Reader:
    def __init__(self) -> None:
        self.script: asyncio.Queue[Any] = asyncio.Queue()
        self.caught_up = False
        self.closed = False

    async def start(self) -> None: ...

    async def poll(self) -> Sequence[Batch]:
        item = await self.script.get()
        if isinstance(item, BaseException):
            raise item
        self.caught_up = item is True or self.caught_up
        return [] if item is True else [Batch(P0, [item], 1)]

    async def close(self) -> None:
        self.closed = True


async def test_threads_start_when_the_global_thread_has_caught_up() -> None:
    rig = Rig(reader=(reader := Reader()))
    starting = asyncio.ensure_future(rig.engine.start())
    reader.script.put_nowait("g")
    await settle()
    assert (rig.members, starting.done(), rig.seen) == ({}, False, [(P0, "g")])
    reader.script.put_nowait(True)
    await starting
    assert list(rig.members) == [A, B]
    closing = asyncio.ensure_future(rig.engine.close(None))
    await settle()
    assert not reader.closed
    reader.script.put_nowait("h")
    assert await closing
    assert reader.closed


async def test_a_global_thread_that_cannot_start_ends_the_client_and_the_start() -> None:
    rig = Rig(reader=(reader := Reader()))
    reader.script.put_nowait(LookupError("no topic"))
    with pytest.raises(LookupError, match="no topic"):
        await rig.engine.start()
    assert (rig.state, rig.members) == (S.ERROR, {})


@pytest.mark.parametrize("response", list(Response))
async def test_a_global_thread_that_fails_ends_the_client(response: Response) -> None:
    rig = Rig(reader=(reader := Reader()), handler=answering(response))
    reader.script.put_nowait(True)
    await rig.engine.start()
    reader.script.put_nowait(OSError("broken"))
    assert await rig.engine.wait_ended() is S.ERROR
    assert rig.members[A].asks is (response is Response.SHUTDOWN_APPLICATION)
    assert reader.closed
