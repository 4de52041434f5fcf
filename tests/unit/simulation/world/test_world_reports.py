"""A report says what happened: crashes, faults that had a target, calls without await, repeatability."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import IllegalStateError
from msgspec.structs import replace

import fencepost
from fencepost import FailureGone, FencepostError, SimulatedWorld, WorldResult, run_simulated
from fencepost.simulation.cli.failures import shrink
from fencepost.simulation.world.failure import explain, read_world_failure, versions
from fencepost.simulation.world.spread import SeedJob, spread
from fencepost.simulation.world.sweep import Sweep
from tests.forks import LOOP_SCOPE, PYTEST, run_forked

Test = Callable[[SimulatedWorld], Coroutine[Any, Any, object]]
TOPICS = {"orders": 1}
CRASHES = {"member-crash": {"every": "5s"}}


async def nothing(world: SimulatedWorld) -> None:
    """Do nothing."""


def play(test: Test, **settings: Any) -> WorldResult:
    return run_simulated(test, 1, **{"topics": TOPICS, "faults": (), **settings})


def report(test: Test, folder: Path, longest_s: float = 45, **settings: Any) -> str:
    made = fencepost.simulated(topics=TOPICS, **settings)(test).simulated
    seed = next(seed for seed in range(1, 20) if made.run(seed).failed)
    told = explain(test, made.settings, made.run(seed), command="pytest", folder=folder, longest_s=longest_s)
    return told.text


@pytest.mark.parametrize("claims", [["at-least-once"], ["no-crash"]])
def test_text_that_utf_8_cannot_express_is_escaped(claims: list[str], tmp_path: Path) -> None:
    async def worker() -> None:
        raise ValueError("no such file: \udcff")

    async def test(world: SimulatedWorld) -> None:
        world.process("worker", worker)
        await asyncio.sleep(1)
        raise AssertionError("\udcff")

    told = report(test, tmp_path, claims=claims, faults=())
    assert r"ValueError in worker" in told
    assert r"no such file: \udcff" in told
    told.encode()


def test_failure_that_cannot_be_kept_is_told_all_the_same(tmp_path: Path) -> None:
    async def test(world: SimulatedWorld) -> None:
        raise AssertionError("wrong sum")

    (tmp_path / "taken").write_text("")
    told = report(test, tmp_path / "taken", faults=())
    assert "AssertionError: wrong sum" in told
    assert f"the failure could not be kept in {tmp_path / 'taken'}: " in told
    assert "FENCEPOST_SEED=1 pytest" in told
    assert "FENCEPOST_FAILURE" not in told


# -- results -----------------------------------------------------------------------------------------


def test_run_that_passes_has_no_invariant() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "a")

    assert play(test).invariant is None


def test_records_need_no_await() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "a", "b")
        assert [each.value for each in world.records("orders")] == [b"a", b"b"]
        assert await world.records("orders") == world.records("orders")

    assert play(test).violations == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda world: world.produce("orders", "a"), "SimulatedWorld.produce"),
        (lambda world: world.group("g").wait_stable(), "WorldGroup.wait_stable"),
        (lambda world: world.process("a", asyncio.sleep, 1).stop(), "Program.stop"),
    ],
)
def test_call_that_is_not_awaited_fails_with_its_line(call: Callable[[Any], object], name: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        call(world)
        await asyncio.sleep(1)

    (violation,) = play(test).violations
    assert re.search(rf"{__name__.rsplit('.', 1)[-1]}\.py:\d+: {name}\(\) is not awaited", violation.message)


# -- programs that an exception ends -----------------------------------------------------------------


async def fails_once(state: list[int]) -> None:
    state.append(1)
    if len(state) == 1:
        await asyncio.sleep(2)
        raise IllegalStateError("no position")
    await asyncio.Event().wait()


def test_crashes_are_told_with_program_time_file_and_line() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("worker", fails_once, [])
        await world.settled()

    (crash,) = play(test).crashes
    assert (crash.program, crash.error, crash.at_s) == ("worker", "IllegalStateError", 2.0)
    assert Path(crash.file).name == "test_world_reports.py"
    assert crash.line == fails_once.__code__.co_firstlineno + 4


def test_no_crash_is_a_claim() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("worker", fails_once, [])
        await world.settled()

    (violation,) = play(test, claims=["no-crash"]).violations
    assert violation.invariant == "no-crash"
    assert violation.message.startswith("worker ended by IllegalStateError: ")


_CRASHING = """
import asyncio
import fencepost

async def worker(state):
    state.append(1)
    if len(state) == 1:
        raise RuntimeError("out of luck")
    await asyncio.Event().wait()

@fencepost.simulated(seeds=[4, 5], topics=["orders"], faults=())
async def test_workers(world):
    world.process("worker", worker, [])
    await world.settled()
"""


@pytest.mark.processes
def test_summary_of_pytest_tells_crashes_of_seeds_that_passed(tmp_path: Path) -> None:
    (tmp_path / "test_workers.py").write_text(_CRASHING)
    environment = {each: value for each, value in os.environ.items() if not each.startswith("PYTEST")}
    done = run_forked([*PYTEST, *LOOP_SCOPE, "-n0"], tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout
    assert "test_workers: all 2 seeds passed. In 2 of them 2 exceptions ended programs" in done.stdout
    assert "2 x RuntimeError in worker, at " in done.stdout
    assert "test_workers.py:8; the first at 0.0 s of seed 4: out of luck" in done.stdout


# -- faults ------------------------------------------------------------------------------------------


def test_faults_of_a_report_have_hit_a_program_that_they_name(tmp_path: Path) -> None:
    """A deploy restarts 16 programs, of which 15 do not exist."""

    async def test(world: SimulatedWorld) -> None:
        program = world.process("only", asyncio.Event().wait)
        await world.faults_over.wait()
        assert program.generation < 1

    text = report(test, tmp_path, faults=CRASHES)
    faults = re.findall(r"^  [\d.]+ s: (.*)$", text, re.MULTILINE)
    assert faults
    assert all(re.match(r"(restart|member-crash) only", each) for each in faults), text
    happened = int(re.findall(r"of (\d+) that happened with this seed \(\d+ runs?\)", text)[0])
    assert happened < 16
    assert "(1 runs)" not in text
    in_no_time = report(test, tmp_path, longest_s=-1, faults=CRASHES)
    assert re.search(r" \(1 run, within -1 s: fencepost shrink may find fewer\):$", in_no_time, re.MULTILINE)


_queue: asyncio.Queue[int] = asyncio.Queue()


async def _wait_for_more() -> None:
    await _queue.get()


def test_object_of_an_earlier_run_is_told_with_the_way_out() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("worker", _wait_for_more)
        await asyncio.sleep(1)

    play(test)
    (violation,) = play(test).violations
    assert "worker ended by RuntimeError: " in violation.message
    assert "make the object within the program's function" in violation.message


# -- repeatability -----------------------------------------------------------------------------------


class Ticket:
    """An object without a hash of its own."""


def test_program_that_follows_addresses_is_said_to_be_not_repeatable(tmp_path: Path) -> None:
    kept: list[object] = []

    async def program(order: list[int]) -> None:
        kept.extend(bytearray(48 + len(kept) % 77) for _ in range(len(kept) + 7))
        tickets = {Ticket() for _ in range(100)}
        ids = {id(each): number for number, each in enumerate(sorted(tickets, key=id))}
        order += [ids[id(each)] for each in tickets]
        await asyncio.sleep(2)

    async def test(world: SimulatedWorld) -> None:
        order: list[int] = []
        program_of = world.process("a", program, order)
        await asyncio.sleep(1.5)
        await world.process("b", _send, order[0] * 100 + order[1] + 1).ended()
        program_of.kill()
        raise AssertionError("no")

    text = report(test, tmp_path, faults=())
    assert "This program is not repeatable: 5 runs of the seed gave " in text
    assert "Sets in it have an order that follows memory addresses: of " in text
    assert f"{__name__}.Ticket" in text
    assert "The first difference: at " in text
    assert "that happened" not in text
    assert not list(tmp_path.glob("*.json"))


async def _send(count: int) -> None:
    _, writer = await asyncio.open_connection("kafka", 9092)
    writer.write(bytes(count))
    await writer.drain()
    writer.close()


def test_run_that_leaves_something_behind_is_said_to(tmp_path: Path) -> None:
    left: list[int] = []

    async def test(world: SimulatedWorld) -> None:
        left.append(1)
        if len(left) < 3:
            raise AssertionError("the first time")

    made = fencepost.simulated(topics=TOPICS, faults=())(test).simulated
    made.run(1)
    text = explain(test, made.settings, made.run(1), command="pytest", folder=tmp_path).text
    assert "This program is not repeatable: 5 runs of the seed gave 1 different digest, and 1 of them" in text
    assert "All runs but the first are the same, so a run leaves something behind" in text


class Connection(asyncio.Protocol):
    """One connection of a server that keeps them in a set, as uvicorn's does."""

    def __init__(self, connections: set[Connection]) -> None:
        self.connections = connections

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.connections.add(self)


async def _serve_and_close(order: list[int]) -> None:
    """A server closes its connections in the order of the set."""
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(connections), "0.0.0.0", 8000)
    clients = []
    for _ in range(12):
        clients.append(await asyncio.open_connection("localhost", 8000))
        await asyncio.sleep(0.1)
    order += [each.transport.get_extra_info("peername")[1] for each in connections]
    server.close()


def test_connections_in_a_set_have_an_order_that_is_repeatable() -> None:
    orders: list[list[int]] = []
    kept = []

    async def test(world: SimulatedWorld) -> None:
        orders.append([])
        await world.process("server", _serve_and_close, orders[-1]).ended()

    for size in range(4):
        kept.append([bytearray(100 + size * 13 + number) for number in range(size * 331)])
        play(test)
    assert len(orders[0]) == 12
    assert all(each == orders[0] for each in orders), orders
    gc.collect()
    assert asyncio.BaseProtocol.__hash__ is object.__hash__


# -- files ---------------------------------------------------------------------------------------------


def test_files_of_a_run_are_not_there_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def count_up(path: Path) -> None:
        number = int(path.read_text()) if path.exists() else 0
        path.write_text(str(number + 1))
        found.append(f"{path} {number}")

    async def count(path: Path) -> None:
        count_up(path)

    async def test(world: SimulatedWorld) -> None:
        for name in ("position", "settings", "folder/data"):
            await world.process(Path(name).name, count, Path(name)).ended()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings").write_text("40")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").write_text("7")
    assert [play(test).violations for _ in range(2)] == [[], []]
    assert found == [
        "position 0",
        "settings 40",
        "folder/data 7",
        "position 0",
        "settings 40",
        "folder/data 8",
    ]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "settings"]
    assert (tmp_path / "settings").read_text() == "40"
    assert Path.cwd() == tmp_path


# -- failures that are kept --------------------------------------------------------------------------


def test_kept_failure_that_no_longer_fails_is_told_with_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    @fencepost.simulated(seeds=1, topics=TOPICS, faults=())
    async def test(world: SimulatedWorld) -> None:
        assert not fails[0]

    monkeypatch.chdir(tmp_path)
    with pytest.raises(fencepost.SimulationFailed):
        test()
    (document,) = tmp_path.glob("world-failures/*.json")
    kept = read_world_failure(str(document))
    assert kept.versions["python"] == sys.version.split()[0]
    assert kept.versions["aiokafka"] == versions()["aiokafka"]
    document.write_text(document.read_text().replace(f'"{kept.versions["aiokafka"]}"', '"0.1"'))
    monkeypatch.setenv("FENCEPOST_FAILURE", str(document))
    with pytest.raises(fencepost.SimulationFailed):
        test()
    fails[0] = False
    with pytest.warns(FailureGone, match=r"no longer fails: .* It was written with aiokafka 0\.1 \(now "):
        test()


_FAILING = """
import asyncio
import fencepost

@fencepost.simulated(seeds=5, topics=["orders"], faults={"member-crash": {"every": "6s"}}, duration=20)
async def test_two(world):
    crashing = [world.process(name, asyncio.Event().wait) for name in ("a", "b")]
    await world.faults_over.wait()
    assert sum(each.generation for each in crashing) < 2, "twice"
"""


@pytest.mark.processes
def test_shrink_takes_the_failure_of_a_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_two.py").write_text(_FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "test_two", raising=False)  # of a first try
    test = importlib.import_module("test_two").test_two.simulated
    result = next(found for seed in range(1, 9) if len((found := test.run(seed)).hits) > 3)
    explain(test.function, test.settings, result, command="", folder=tmp_path, stem="kept", tries=2)
    kept = read_world_failure("kept.json")
    assert shrink(Path("kept.json"), json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    small = read_world_failure("kept-small.json")
    assert shown == {
        "test": "test_two",
        "seed": result.seed,
        "invariant": "raised AssertionError",
        "faults_before": len(kept.plan.entries),
        "faults_after": 2,
        "whole": True,
        "out": "kept-small.json",
    }
    assert len(small.plan.entries) == 2
    assert small.happened == kept.happened == len(result.hits)
    assert Path("kept-small.html").exists()
    (tmp_path / "test_two.py").write_text(_FAILING.replace("< 2", "< 99"))
    with pytest.raises(FencepostError, match=r"kept\.json no longer fails"):
        shrink(Path("kept.json"), out=Path("other.json"))


# -- sweeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "wanted"), [(2, [1, 2]), (range(100, 103), [100, 101, 102]), ([7, 3, 7], [7, 3])]
)
def test_seeds_are_a_number_or_the_seeds(seeds: Any, wanted: list[int]) -> None:
    made = fencepost.simulated(seeds=seeds, topics=TOPICS)(nothing)
    assert made.simulated.seeds == wanted


@pytest.mark.parametrize("seeds", [[], ["1"], range(-1, 1), 0, "12"])
def test_wrong_seeds_are_refused(seeds: Any) -> None:
    with pytest.raises(FencepostError, match="seeds="):
        fencepost.simulated(seeds=seeds)


def test_progress_has_an_estimate() -> None:
    now = [0.0]
    with Sweep("test_it", 200, clock=lambda: now[0]) as sweep:
        for now[0] in (1.0, 11.0, 12.0, 45.0):
            sweep.passed += 20
            lines = sweep.due()
            if now[0] in (1.0, 12.0):
                assert lines is None
    assert lines == "test_it: 80 of 200 seeds passed, about 1 min left"


def test_interrupted_sweep_says_how_many_seeds_have_passed() -> None:
    interrupt = KeyboardInterrupt()

    def sweep_until_interrupt() -> None:
        with Sweep("test_it", 200) as sweep:
            sweep.passed = 7
            raise interrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_until_interrupt()
    line = "test_it was interrupted: 7 of 200 seeds had passed, none had failed"
    assert interrupt.__notes__ == [line]


_SLOW = """
import sys
import fencepost

@fencepost.simulated(seeds=500, topics=["orders"], faults=(), processes=1)
async def slow(world):
    print("runs", flush=True)

if __name__ == "__main__":
    slow()
"""


@pytest.mark.parametrize("field", ["file", "failure", "command"])
def test_names_of_files_that_are_not_utf_8_are_refused_before_a_child_starts(field: str) -> None:
    job = SeedJob(path=["/é"], module="m", file="m.py", name="test", seeds=[1])
    with pytest.raises(FencepostError, match=r"^/d\\udcff: expected names of files in UTF-8$"):
        spread(replace(job, **{field: "/d\udcff"}), 1, Sweep("test", 1))


@pytest.mark.processes
def test_terminated_sweep_says_how_many_seeds_have_passed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(_SLOW)
    process = subprocess.Popen(
        [sys.executable, "slow.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    seen = 0
    while seen < 3:
        line = process.stderr.readline()
        assert line
        seen += line == "runs\n"
    process.terminate()
    _, told = process.communicate()
    found = re.search(r"slow was interrupted: (\d+) of 500 seeds had passed, none had failed", told)
    assert found, told
    assert int(found[1]) >= 1
    assert process.returncode == -signal.SIGTERM
