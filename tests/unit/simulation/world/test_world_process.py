"""Programs act as processes do: exits, signals, freezes, generators, blocking calls, and contexts."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any

import pytest

from fencepost import SimulatedWorld
from tests.unit.simulation.world.programs_of_users import play

Program = Callable[..., Coroutine[Any, Any, object]]


def record(offset: int) -> SimpleNamespace:
    return SimpleNamespace(topic="orders", partition=0, offset=offset, key=None)


# -- how a process ends ----------------------------------------------------------------------------


async def _exits_in_a_task() -> None:
    async def leave() -> None:
        await asyncio.sleep(1)
        sys.exit(0)

    task = asyncio.create_task(leave())
    await asyncio.sleep(1_000)
    await task


async def _exits_in_a_callback() -> None:
    asyncio.get_running_loop().call_later(1, sys.exit)
    await asyncio.sleep(1_000)


async def _exits_in_a_protocol() -> None:
    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            sys.exit(0)

    await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 80)
    _, writer = await asyncio.open_connection("127.0.0.1", 80)
    writer.write(b"x")
    await asyncio.sleep(1_000)


@pytest.mark.parametrize("program", [_exits_in_a_task, _exits_in_a_callback, _exits_in_a_protocol])
def test_exit_in_a_callback_ends_its_own_process(program: Program) -> None:
    told: list[bool] = []

    async def test(world: SimulatedWorld) -> None:
        exiting = world.process("a", program)
        await asyncio.sleep(5)
        told.append(exiting.is_running)

    assert play(test).violations == []
    assert told == [False]


@pytest.mark.parametrize(("code", "starts"), [(0, 1), (None, 1), (1, 3), ("no disk", 3)])
def test_program_that_exits_with_an_error_is_started_again(code: Any, starts: int) -> None:
    started: list[float] = []

    async def program() -> None:
        started.append(time.monotonic())
        if len(started) < 3:
            sys.exit(code)
        await asyncio.Event().wait()

    async def test(world: SimulatedWorld) -> None:
        world.process("a", program)
        await asyncio.sleep(40)

    play(test)
    assert len(started) == starts


def test_stopped_loop_ends_its_own_process_with_an_error() -> None:
    told: list[BaseException | None] = []

    async def program() -> None:
        await asyncio.sleep(1)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1_000)

    async def test(world: SimulatedWorld) -> None:
        stopping = world.process("a", program)
        await stopping.ended()
        told.append(stopping.error)
        stopping.kill()

    assert play(test).violations == []
    assert repr(told) == "[RuntimeError('Event loop stopped before Future completed.')]"


def test_verdict_of_pytest_in_a_program_fails_the_test() -> None:
    async def program() -> None:
        pytest.fail("too many orders")

    async def test(world: SimulatedWorld) -> None:
        await world.process("a", program).ended()

    (violation,) = play(test).violations
    assert violation.invariant == "raised Failed"
    assert violation.message == "too many orders"


def test_function_that_returns_no_coroutine_is_refused() -> None:
    def main() -> None:
        """An entry point that is no coroutine function."""

    async def test(world: SimulatedWorld) -> None:
        world.process("a", main)  # type: ignore[call-overload]
        await world.settled()

    (violation,) = play(test).violations
    assert "process('a', ...): the function returned None, expected a coroutine" in violation.message


class Numbers:
    """A program that has begun to read a generator, and keeps it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.kept: list[AsyncIterator[int]] = []
        self.told: list[str] = []

    async def numbers(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            self.told.append("closed")

    async def __call__(self) -> None:
        self.kept.append(self.numbers())
        await anext(self.kept[-1])
        await asyncio.sleep(self.seconds)


def test_generators_of_a_program_are_closed_at_its_end() -> None:
    program = Numbers(0)

    async def test(world: SimulatedWorld) -> None:
        await world.process("a", program).ended()

    asyncio.run(program())
    assert program.told == ["closed"]
    play(test)
    assert program.told == ["closed", "closed"]


def test_generator_of_a_killed_program_is_not_closed() -> None:
    program = Numbers(1_000)

    async def test(world: SimulatedWorld) -> None:
        killed = world.process("a", program)
        await asyncio.sleep(1)
        killed.kill()
        program.kept.clear()
        await asyncio.sleep(1)
        assert program.told == []

    assert play(test).violations == []


def test_task_in_a_new_context_dies_with_its_process() -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(time.monotonic())

    async def program() -> None:
        task = asyncio.get_running_loop().create_task(tick(), context=contextvars.Context())
        await asyncio.sleep(1_000)
        await task

    async def test(world: SimulatedWorld) -> None:
        killed = world.process("a", program)
        await asyncio.sleep(2.5)
        killed.kill()
        await asyncio.sleep(5)

    play(test)
    assert ticks == [1, 2]


# -- signals ---------------------------------------------------------------------------------------


def test_handler_of_a_signal_runs_in_its_process_and_may_exit() -> None:
    told: list[str] = []

    def leave(number: int, frame: FrameType | None) -> None:
        told.append(f"{signal.Signals(number).name} on {socket.gethostname()}")
        sys.exit(0)

    async def program() -> None:
        signal.signal(signal.SIGTERM, leave)
        assert signal.getsignal(signal.SIGTERM) is leave
        try:
            await asyncio.sleep(1_000)
        finally:
            told.append("over")

    async def test(world: SimulatedWorld) -> None:
        stopped = world.process("a", program)
        await asyncio.sleep(1)
        await stopped.stop()
        assert stopped.error is None

    assert play(test).violations == []
    assert told == ["SIGTERM on a", "over"]


def test_ignored_signal_leaves_a_program_until_the_grace_is_over() -> None:
    async def program() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await asyncio.sleep(1_000)

    async def test(world: SimulatedWorld) -> None:
        stopped = world.process("a", program)
        await asyncio.sleep(1)
        await stopped.stop(grace=5)
        assert world.loop.time() == pytest.approx(6)

    assert play(test).violations == []


@pytest.mark.parametrize("send", [lambda: os.kill(os.getpid(), 15), lambda: signal.raise_signal(15)])
def test_signal_that_a_program_sends_to_itself_reaches_no_real_process(send: Callable[[], object]) -> None:
    told: list[int] = []

    async def program() -> None:
        # Else these are the machine's, and would hit a process that has this number by chance.
        assert isinstance(os.kill, FunctionType)
        assert isinstance(signal.raise_signal, FunctionType)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.append, os.getpid())
        send()
        await asyncio.sleep(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(ProcessLookupError):
            os.kill(os.getpid() + 1, 0)
        with pytest.raises(RuntimeError, match=r"signal.setitimer\(\) can't run in a simulated world"):
            signal.setitimer(signal.ITIMER_REAL, 1)
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(1)
        told.append(-1)

    async def test(world: SimulatedWorld) -> None:
        program_of_it = world.process("a", program)
        await asyncio.sleep(1.5)
        assert not program_of_it.is_running
        program_of_it.kill()

    before = signal.signal(signal.SIGTERM, lambda *_: told.append(-2))
    try:
        result = play(test)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.violations == []
    assert told == [101]


@pytest.mark.parametrize("set_handler", ["loop", "signal"])
def test_program_sees_and_cancels_only_its_own_tasks(set_handler: str) -> None:
    told: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            told.append(name)

    def cancel_all(*_: object) -> None:
        tasks = asyncio.tasks.all_tasks()
        assert asyncio.all_tasks(asyncio.get_running_loop()) == tasks
        assert asyncio.current_task() is None
        told.append(", ".join(sorted(task.get_name() for task in tasks)))
        for task in tasks:
            task.cancel()

    async def program(name: str) -> None:
        if set_handler == "loop":
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel_all)
        else:
            signal.signal(signal.SIGTERM, cancel_all)
        await asyncio.create_task(asyncio.sleep(0), name="over")
        task = asyncio.create_task(work(f"work of {name}"), name="work")
        current = asyncio.current_task()
        assert asyncio.all_tasks() == {current, task}
        await task

    async def test(world: SimulatedWorld) -> None:
        stopped, other = world.process("a", program, "a"), world.process("b", program, "b")
        await asyncio.sleep(1)
        await stopped.stop()
        assert stopped.error is None
        await asyncio.sleep(1)
        assert other.is_running
        assert len(await world.produce("orders", "one")) == 1  # the brokers run
        other.kill()

    assert play(test).violations == []
    assert told[:2] == ["a, work", "work of a"]  # what b left ends with the run


def test_program_that_ends_is_not_cancelled_once_more() -> None:
    told: list[float] = []

    async def clean_up() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(5)
            told.append(time.monotonic())

    async def program() -> None:
        told.clear()
        task = asyncio.create_task(clean_up())
        await asyncio.sleep(1)
        assert not task.done()

    async def test(world: SimulatedWorld) -> None:
        stopped = world.process("a", program)
        await asyncio.sleep(2)
        await stopped.stop()

    assert play(test).violations == []
    assert told == [6]


# -- freezes ---------------------------------------------------------------------------------------


def test_thawed_program_keeps_what_woke_it_while_it_was_frozen() -> None:
    woken: list[float] = []

    async def program(event: asyncio.Event) -> None:
        await event.wait()
        woken.append(time.monotonic())

    async def test(world: SimulatedWorld) -> None:
        event = asyncio.Event()
        frozen = world.process("a", program, event)
        await asyncio.sleep(1)
        event.set()
        frozen.freeze()
        await asyncio.sleep(5)
        frozen.thaw()
        await asyncio.sleep(1)

    play(test)
    assert woken == [6]


def test_program_that_is_stopped_while_frozen_stops_when_it_thaws() -> None:
    told: list[float] = []

    async def program() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            told.append(time.monotonic())

    async def test(world: SimulatedWorld) -> None:
        frozen = world.process("a", program)
        await asyncio.sleep(1)
        frozen.freeze(5)
        await frozen.stop()

    assert play(test).violations == []
    assert told == [6]


# -- blocking calls --------------------------------------------------------------------------------


def test_thread_that_sleeps_does_not_stop_its_program() -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(time.monotonic())

    async def program() -> None:
        ticking = asyncio.create_task(tick())
        await asyncio.to_thread(time.sleep, 3.5)
        assert time.monotonic() == 3.5
        ticking.cancel()

    async def test(world: SimulatedWorld) -> None:
        assert await _end_of(world, program) is None

    assert play(test).violations == []
    assert ticks == [1, 2, 3]


async def _end_of(world: SimulatedWorld, program: Program) -> BaseException | None:
    started = world.process("a", program)
    await started.ended()
    started.kill()
    return started.error


def test_what_follows_a_blocking_sleep_does_not_happen_when_the_process_dies_in_it() -> None:
    received: list[bytes] = []

    async def serve() -> None:
        async def note(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            received.append(await reader.read())

        await asyncio.start_server(note, "0.0.0.0", 80)
        await asyncio.sleep(1_000)

    async def program(world: SimulatedWorld) -> None:
        _, writer = await asyncio.open_connection("server", 80)
        await asyncio.sleep(0.5)
        time.sleep(5)  # noqa: ASYNC251  # that it blocks is what the test is about
        world.done(record(0))
        writer.write(b"done")

    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "order", partition=0)
        server = world.process("server", serve)
        await asyncio.sleep(1)
        killed = world.process("a", program, world)
        await asyncio.sleep(3)
        killed.kill()
        await asyncio.sleep(10)
        assert world.processed == []
        whole = world.process("b", program, world)
        await whole.ended()
        await asyncio.sleep(1)
        assert world.processed == ["order"]
        server.kill()

    assert play(test).violations == []
    assert received == [b"", b"done"]


def test_wait_for_another_thread_ends_by_its_timeout_or_is_refused() -> None:
    async def program() -> None:
        begin = time.monotonic()
        assert not threading.Event().wait(2.5)
        assert time.monotonic() - begin == 2.5
        loop = asyncio.get_running_loop()

        def ask() -> None:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(1), loop).result()

        await asyncio.to_thread(ask)

    async def test(world: SimulatedWorld) -> None:
        await _end_of(world, program)

    (violation,) = play(test).violations
    assert violation.invariant == "raised OutsideWorld"
    assert violation.message.startswith(
        "a wait for another thread (threading, queue, concurrent.futures) can't"
    )


def test_program_that_reads_the_clock_until_it_moves_goes_on() -> None:
    ids: list[int] = []

    async def program() -> None:
        for _ in range(2):
            now = time.time_ns() // 100_000
            while ids and now <= ids[-1]:
                now = time.time_ns() // 100_000
            ids.append(now)

    async def test(world: SimulatedWorld) -> None:
        assert await _end_of(world, program) is None

    assert play(test).violations == []
    assert ids[1] == ids[0] + 1


# -- what programs share ---------------------------------------------------------------------------


def test_exception_handler_gets_exceptions_of_its_own_program_only() -> None:
    got: list[str] = []

    async def program(name: str, *, fails: bool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: got.append(f"{name}: {context['exception']}"))
        assert loop.get_exception_handler() is not None
        if fails:
            loop.call_soon(int, "x")
        await asyncio.sleep(2)

    async def test(world: SimulatedWorld) -> None:
        world.process("a", program, "a", fails=True)
        await world.process("b", program, "b", fails=False).ended()

    assert play(test).violations == []
    assert got == ["a: invalid literal for int() with base 10: 'x'"]


def test_refusal_that_no_program_handles_ends_the_run() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_soon(threading.Thread(target=print).start)
        await asyncio.sleep(2)

    async def test(world: SimulatedWorld) -> None:
        await world.process("a", program).ended()

    (violation,) = play(test).violations
    assert violation.invariant == "raised OutsideWorld"
