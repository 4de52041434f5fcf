"""A client at work over members that a test plays: order, commits, services, ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.application.port import PartitionRecords
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.errors import IllegalStreamsState
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import StreamThreadState as T
from tests.unit.member.played_streams import P0, P1, A, B, C, Rig, answering, settle

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


async def test_the_member_s_view_of_its_connection_counts_while_records_are_processed() -> None:
    gate = asyncio.Event()

    async def process(partition: TopicPartition, records: Sequence[Any]) -> None:
        await gate.wait()

    rig = await Rig(process, threads=1).running()
    rig.members[A].give(P0, 0, "a")
    await settle()
    for connected, state in ((False, S.DISCONNECTED), (True, S.RUNNING), (False, S.DISCONNECTED)):
        rig.members[A].connected = connected
        rig.members[A].events.on_connection()
        assert (rig.state, rig.engine.client.is_connected) == (state, connected)
    gate.set()
    await rig.engine.close(None)


@pytest.mark.parametrize("work", ["state listener", "old uncaught-exception handler"])
async def test_a_coroutine_that_a_plain_callback_returns_is_refused(
    work: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    async def notify() -> None:
        ran.append("late")

    rig = Rig(threads=1)
    if work == "state listener":
        rig.engine.listener = lambda new, old: notify()
    else:
        rig.engine.handlers.add(lambda thread, error: notify())
    await rig.running()
    if work == "old uncaught-exception handler":
        rig.members[A].script.put_nowait(OSError("broken"))
        await settle()
    await rig.engine.close(None)
    assert f"{work} returned" in caplog.text
    assert "write asyncio.create_task(...)" in caplog.text
    assert ran == []


async def test_a_task_that_the_state_listener_starts_runs(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(threads=1)
    rig.engine.listener = lambda new, old: (
        asyncio.create_task(rig.engine.close(5)) if new is S.RUNNING else None
    )
    await rig.engine.start()
    rig.members[A].assign(P0)
    assert await rig.engine.wait_ended() is S.NOT_RUNNING
    assert caplog.text == ""


# -- ends ------------------------------------------------------------------------------------------------


async def test_close_again_and_again_has_one_outcome(caplog: pytest.LogCaptureFixture) -> None:
    rig = await Rig().running()
    assert await asyncio.gather(*(rig.engine.close(None) for _ in range(5))) == [True] * 5
    assert await rig.engine.close(0)
    assert rig.states[-2:] == [S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    assert caplog.text == ""


@pytest.mark.parametrize(("limit_s", "commit_s", "leave_s"), [(None, 10, 2), (1000, 10, 2), (5, 2.5, 2)])
async def test_a_thread_ends_in_time_although_nobody_responds_to_its_last_commit(
    limit_s: float | None, commit_s: float, leave_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await Rig(threads=1).running()
    member = rig.members[A]
    member.commit_gate = asyncio.Event()
    member.give(P0, 0, "a")
    await settle()
    if limit_s is not None:
        rig.engine.end_by = rig.time.at + limit_s
    rig.engine.carry_out(rig.engine.client.close())
    ended = asyncio.create_task(rig.engine.wait_ended())
    began = rig.time.at
    while not ended.done():
        await rig.time.advance(0.1)
    assert rig.time.at - began == pytest.approx(commit_s, abs=0.15)
    assert member.closed_within == pytest.approx(leave_s, abs=0.2)
    assert member.committed_offsets == {}
    assert caplog.text.count("offsets were not committed") == 1


async def test_a_thread_that_is_told_to_end_in_a_commit_waits_for_it_no_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await Rig(threads=1).running()
    member = rig.members[A]
    member.commit_gate = asyncio.Event()
    await rig.time.advance(31)
    member.give(P0, 0, "a")
    await rig.time.advance(31)
    rig.engine.carry_out(rig.engine.client.close())
    began = rig.time.at
    while rig.state is not S.NOT_RUNNING:
        await rig.time.advance(0.5)
    assert rig.time.at - began == pytest.approx(10, abs=0.6)
    assert caplog.text.count("offsets were not committed") == 1


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

    async def poll(self) -> Sequence[PartitionRecords]:
        item = await self.script.get()
        if isinstance(item, BaseException):
            raise item
        self.caught_up = item is True or self.caught_up
        return [] if item is True else [PartitionRecords(P0, [item], 1)]

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
