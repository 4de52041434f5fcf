"""Threads of programs in processes of their own run one at a time, in an order of the seed."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from fencepost import SimulatedWorld, WorldResult
from tests.unit.simulation.world.programs_of_users import passes, play

pytestmark = pytest.mark.processes
HERE = "tests.unit.simulation.world.thread_programs"
HAS_LOGURU = pytest.mark.skipif(find_spec("loguru") is None, reason="loguru is not installed")


def told(program: str, seed: int = 1) -> tuple[str, WorldResult]:
    """Run one program to its end; return what it told, and the result.

    An argument may be behind the name, such as in "uses_loguru:True".
    """
    found: list[str] = []
    program, _, argument = program.partition(":")
    arguments = [argument == "True"] if argument else []

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", f"{HERE}:{program}", *arguments).ended()
        found.extend(record.value.decode() for record in world.records("told") if record.value)

    result = play(test, seed)
    return "; ".join(found), result


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("talks_between_threads", "1.5 2.0 2.5 empty at 4.5 0 2 4 False"),
        ("overlaps_in_an_executor", "[0, 1, 2] [2, 1, 0] 3.0"),
        (
            "waits_for_a_database",
            "execute 2 3 executemany 2 6 executescript 2 5 cursor 2 3 own 2 3 pragma 2 3 backup 2 0 "
            "late database is locked 1",
        ),
        ("uses_aiosqlite", "10 2026-01-01 00:00:00"),
        ("uses_sqlalchemy", "3 True"),
        ("uses_a_queue_listener", "order 0 at 1 order 1 at 2 order 2 at 3 0.0"),
        ("uses_opentelemetry", "2 at 2 1 at 4 2 at 5"),
        pytest.param("uses_loguru:False", "order 1 at 00 1 order 2 at 01 2 2.0", marks=HAS_LOGURU),
        pytest.param("uses_loguru:True", "order 1 at 00 1 order 2 at 00 2 0.0", marks=HAS_LOGURU),
        ("shares_as_processes_do", "['order'] False True closed closed False 10 10"),
        ("joins_an_executor", "0 1 2 3 4 5 6 7"),
    ],
)
def test_threads_and_libraries_with_threads_run_in_virtual_time(program: str, said: str) -> None:
    found, result = told(program)
    assert result.violations == []
    assert result.crashes == []
    assert result.imported_anew == {}
    assert found == said
    assert told(program)[1].digest == result.digest


def test_seed_decides_which_thread_runs() -> None:
    assert {told("loses_an_update", seed)[0] for seed in range(1, 7)} == {"1", "2"}


def test_threads_that_lock_each_other_out_are_told_with_their_lines() -> None:
    (violation,) = told("locks_each_other_out")[1].violations
    assert "threads of worker wait for each other, and nothing can end that" in violation.message
    assert "the main thread: tests/unit/simulation/world/thread_programs.py:" in violation.message
    assert "other: tests/unit/simulation/world/thread_programs.py:" in violation.message


@pytest.mark.parametrize(
    ("program", "label", "instead"),
    [
        ("fails_in_a_thread", "confluent_kafka.Producer()", "aiokafka"),
        ("forks", "multiprocessing.Queue()", "queue.Queue"),
    ],
)
def test_refusal_ends_the_run(program: str, label: str, instead: str) -> None:
    (violation,) = told(program)[1].violations
    assert violation.message.startswith(f"{label} can't run in a simulated world")
    assert violation.message.partition("). Use ")[2].startswith(instead)


_TRIO = {
    "__init__": "from . import lowlevel\ndef run(main, *args): raise LookupError",
    "lowlevel": "def start_guest_run(main, *args): raise LookupError",
}


@pytest.mark.parametrize(
    ("imports", "call", "label"),
    [
        ("import trio", "trio.run(main)", "trio.run()"),
        ("from trio import run", "run(main)", "trio.run()"),
        ("", "import trio; trio.lowlevel.start_guest_run(main)", "trio.start_guest_run()"),
    ],
)
def test_trio_is_refused_by_its_name(
    imports: str, call: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "site-packages"
    (libraries / "trio").mkdir(parents=True)
    for name, text in _TRIO.items():
        (libraries / "trio" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(libraries)
    (tmp_path / "trio_service.py").write_text(
        f"{imports}\nasync def main(): pass\ndef run_service():\n    {call}\n"
    )

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", "trio_service:run_service").ended()

    (violation,) = play(test).violations
    assert violation.message.startswith(
        f"{label} can't run in a simulated world: it has an event loop of its own"
    )
    assert "trio_service.py:4 in run_service). Use asyncio" in violation.message


def test_main_thread_handles_signals_and_the_process_waits_for_others() -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:stops_threads_by_a_signal")
        await asyncio.sleep(1.1)
        await worker.stop()
        assert [each.value for each in world.records("told")] == [b"4 stopped"]

    passes(test)


def test_signal_does_not_end_a_wait_for_a_socket() -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:receives_during_a_signal")
        await asyncio.sleep(1)
        await worker.stop()
        assert [each.value for each in world.records("told")] == [b"late 1 5.0"]

    passes(test)


def test_blocking_clients_reach_a_server_with_threads() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("server", f"{HERE}:serves_metrics")
        await world.process("client", f"{HERE}:asks_by_requests", "server").ended()
        assert [each.value for each in world.records("told")] == [b"True"]

    results = [play(test) for _ in range(2)]
    assert results[0].violations == []
    assert len({each.digest for each in results}) == 1


def test_faults_reach_kafka_python() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "order", key="0")
        worker = world.process("worker", f"{HERE}:polls_by_kafka_python")
        assert worker.process is not None
        worker.process.callback_takes_us = 5_000_000
        await asyncio.sleep(10)
        assert list(worker.process.group_ids) == ["billing"]
        worker.stall(world.loop.now_us + 20_000_000)
        await asyncio.sleep(5)
        await world.produce("orders", "order", key="1")
        await worker.ended()
        (told,) = world.records("told")
        assert told.value == b"assigned at 8 order at 8 order at 30"

    passes(test)


def test_slow_coroutine_of_a_listener_does_not_hold_kafka_python() -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:is_called_by_kafka_python")
        await asyncio.sleep(2)  # until the member joins
        assert worker.process is not None
        worker.process.callback_takes_us = 20_000_000
        await worker.ended()
        assert [each.value for each in world.records("told")] == [b"revoked assigned at 23"]

    passes(test)


def test_kafka_python_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders")
        workers = [world.process(f"worker-{number}", f"{HERE}:copies_by_kafka_python") for number in range(2)]
        await world.produce("orders", "order", key="0")
        await asyncio.sleep(8)
        await workers[0].restart(graceful=False)
        for number in range(1, 10):
            await world.produce("orders", "order", key=f"{number}")
            await asyncio.sleep(0.5)
        await world.settled()

    digests = {play(test).digest}
    monkeypatch.chdir(tmp_path)
    result = play(test)
    assert result.violations == []
    assert digests == {result.digest}
