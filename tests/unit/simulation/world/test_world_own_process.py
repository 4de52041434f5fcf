"""Programs that are given by name run in processes of their own, as they do in production."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import platform
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import FencepostError, SimulatedWorld, SimulationFailed, WorldResult
from fencepost.simulation.world import folder, outer, wire
from fencepost.simulation.world.inner import OwnProcess, WorldLink
from fencepost.simulation.world.run import run_world
from tests.unit.simulation.world.programs_of_users import TOPICS, passes, play

pytestmark = pytest.mark.processes
HERE = "tests.unit.simulation.world.own_programs"


def told(program: str, *arguments: Any, **settings: Any) -> tuple[list[str], WorldResult]:
    """Run one program to its end; return what it told, and the result."""
    found: list[str] = []

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", f"{HERE}:{program}", *arguments).ended()
        found.extend(record.value.decode() for record in world.records("told") if record.value)

    return found, play(test, **settings)


# -- what a program finds ----------------------------------------------------------------------------


def test_program_has_its_host_its_clock_and_its_folder() -> None:
    found, result = told("facts")
    assert result.violations == []
    words = found[0].split()
    assert words[:6] == ["worker", "101", "worker", "True", "True", "0"]
    assert told("facts")[0] == found


def test_functions_and_modules_run_as_in_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("plain")[0] == [f"plain {HERE}"]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_service.py").write_text(
        "import asyncio, sys\n"
        f"from {HERE} import tell\n"
        'if __name__ == "__main__":\n'
        "    asyncio.run(tell(__name__, sys.argv[1:]))\n"
    )
    found: list[Any] = []

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", "own_service", "--fast", 3).ended()
        found.extend(world.records("told"))

    result = play(test)
    assert result.violations == []
    assert [each.value for each in found] == [b"__main__ ['--fast', '3']"]
    assert result.imported_anew == {"own_service": "it is run as python -m runs it"}


def test_globals_end_with_their_process() -> None:
    starts: list[bytes | None] = []

    async def test(world: SimulatedWorld) -> None:
        workers = [world.process(name, f"{HERE}:counts_starts") for name in ("a", "b")]
        await asyncio.sleep(5)
        await workers[0].restart(graceful=False)
        await asyncio.sleep(5)
        starts.extend(each.value for each in world.records("told"))

    assert play(test).violations == []
    assert starts == [b"1", b"1", b"1"]


def test_files_outlive_a_crash_and_not_a_run() -> None:
    for _ in range(2):
        counted: list[bytes | None] = []

        async def test(world: SimulatedWorld) -> None:
            worker = world.process("a", f"{HERE}:counts_in_a_file")
            await asyncio.sleep(3)
            await worker.restart(graceful=False)
            await asyncio.sleep(3)
            world.process("b", f"{HERE}:counts_in_a_file")
            await asyncio.sleep(3)
            counted.extend(each.value for each in world.records("told"))  # noqa: B023

        assert play(test).violations == []
        assert counted == [b"0", b"1", b"0"]
    assert not Path("count").exists()


# -- time, signals, ends -----------------------------------------------------------------------------


def test_sleep_takes_virtual_time_and_holds_the_loop() -> None:
    found, result = told("sleeps", 7.5)
    assert float(found[0]) >= 7.5
    (held,) = result.held
    assert (held.program, held.lasts_us) == ("worker", 7_500_000)
    assert "own_programs.py:" in held.place
    assert told("sleeps_in_a_thread")[0] == ["3.0"]
    assert told("counts_early_timers")[0] == ["0"]
    assert told("sees_its_machine")[0] == [f"['{HERE}'] '' 5.0"]


def test_libraries_may_ask_about_the_machine() -> None:
    words = (ctypes.util.find_library("c"), platform.processor(), socket.socket.accept.__doc__, 2.0)
    assert told("asks_about_its_machine")[0] == [" ".join(map(str, words))]


@pytest.mark.parametrize(
    ("program", "said"),
    [("cancels_all_tasks", b"stopped"), ("stops_by_a_flag", b"stopped by 15"), ("idle", None)],
)
def test_sigterm_reaches_the_programs_handler(program: str, said: bytes | None) -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:{program}")
        await asyncio.sleep(1)
        await worker.stop()
        assert not worker.is_running
        assert [each.value for each in world.records("told")] == ([] if said is None else [said])

    passes(test)


@pytest.mark.parametrize(("program", "lasts_s"), [("sleeps", 1), ("sleeps_on", 5)])
def test_sigterm_ends_a_sleep_unless_a_handler_returns(program: str, lasts_s: float) -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:{program}", *([1000] if program == "sleeps" else []))
        await asyncio.sleep(1)
        await worker.stop()
        assert lasts_s <= world.loop.time() < lasts_s + 1
        assert [each.value for each in world.records("told")] == [b"True"] * (program == "sleeps_on")

    passes(test)


@pytest.mark.parametrize(
    ("program", "arguments", "error", "message"),
    [
        ("exits_at_once", (3,), "SystemExit", "3"),
        ("closes_its_output", (), "LookupError", "no such order"),
        ("fails", (), "LookupError", "no such order"),
        ("exits", (3,), "SystemExit", "3"),
        ("kills_itself", (), "SystemExit", "ended by a signal"),
    ],
)
def test_crash_is_told_with_its_place(
    program: str, arguments: tuple[int, ...], error: str, message: str
) -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", f"{HERE}:{program}", *arguments)
        await worker.ended()
        await asyncio.sleep(60)
        assert worker.generation > 1  # it was started again
        await worker.stop()

    result = play(test, claims=["no-crash"])
    crash = result.crashes[0]
    assert (crash.program, crash.error, crash.message) == ("worker", error, message)
    assert result.invariant == "no-crash"
    if program == "fails":
        assert Path(crash.file).name == "own_programs.py"
        assert crash.at_s == 1.0


def test_exit_with_status_0_is_an_end() -> None:
    assert told("exits", 0)[1].crashes == []
    assert told("exits_at_once", 0)[1].crashes == []


def test_program_that_never_returns_is_told_with_its_line() -> None:
    (violation,) = told("never_returns")[1].violations
    assert violation.invariant == "raised StandsStill"
    assert "worker does not return from tests/unit/simulation/world/own_programs.py:" in violation.message


def test_program_that_keeps_the_world_busy_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world computes as much as the program does, and knows no line of it."""
    monkeypatch.setattr(outer, "OWN_LIMIT_CPU_S", 0.2)
    (violation,) = told("spins")[1].violations
    assert violation.invariant == "raised StandsStill"
    assert "worker runs tests/unit/simulation/world/own_programs.py:" in violation.message


def test_thread_that_never_returns_ends_the_run() -> None:
    (violation,) = told("never_returns_in_a_thread")[1].violations
    assert violation.invariant == "raised StandsStill"
    assert re.search(r"worker does not return from .*own_programs.py:\d+ in never_returns", violation.message)


def test_program_is_not_blamed_for_what_another_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "OWN_LIMIT_CPU_S", 0.4)
    cpu_s = outer._Originals.thread_time

    async def computes() -> None:
        await asyncio.sleep(1.005)
        end_s = cpu_s() + 0.6
        while cpu_s() < end_s:
            pass

    async def test(world: SimulatedWorld) -> None:
        world.process("other", computes)
        await world.process("worker", f"{HERE}:naps").ended()

    assert play(test).violations == []


def test_program_that_waits_for_the_machine_is_told_with_its_stacks() -> None:
    (violation,) = told("waits_for_the_machine")[1].violations
    assert violation.invariant == "raised StandsStill"
    assert "worker waits for the machine, for 8 s of real time now" in violation.message
    assert re.search(r'own_programs.py", line \d+ in waits_for_the_machine', violation.message)


# -- the network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "server", "said"),
    [
        ("asks", "echoes", b"hello"),
        ("asks_and_blocks", "echoes", b"blocking True"),
        ("asks_the_web", "web", b"hello"),
        ("asks_by_urllib", "web", b"hello"),
    ],
)
def test_programs_reach_each_other(program: str, server: str, said: bytes) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("server", f"{HERE}:{server}", port=8080)
        await world.process("client", f"{HERE}:{program}", "server").ended()
        assert [each.value for each in world.records("told")] == [said]

    assert play(test).violations == []


def test_uvicorn_serves_keeps_connections_and_ends_as_in_production() -> None:
    async def test(world: SimulatedWorld) -> None:
        server = world.process("server", f"{HERE}:shop")
        client = world.process("client", f"{HERE}:buys", "server")
        await asyncio.sleep(12.5)
        await server.stop()  # while it works on a request
        await client.ended()
        said = sorted((each.value or b"").decode() for each in world.records("told"))
        assert said == ["0 0 0 0 1 14", "down after / / / / /slow", "up"]

    passes(test)


@pytest.mark.parametrize(
    ("program", "variable", "said"),
    [
        ("uvicorn", "", "multiprocessing.BaseProcess.start() can't run"),
        (f"{HERE}:shop", "2", "uvicorn can't run with WEB_CONCURRENCY=2 in a simulated world"),
    ],
)
def test_several_workers_are_refused(
    program: str, variable: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", variable or "1")

    async def test(world: SimulatedWorld) -> None:
        options = () if variable else (f"{HERE}:shop", "--workers", "2")
        await world.process("server", program, *options).ended()

    (violation,) = play(test).violations
    assert violation.message.startswith(said)
    assert "world.process() once for each worker" in violation.message


# -- imports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("NUMBER = 1", None),
        ("import time; NUMBER = time.time()", "it reads the clock at "),
        ("import datetime; NUMBER = datetime.datetime.now()", "it reads the clock at "),
        ("import random; NUMBER = random.random()", "it draws random numbers"),
        ("NUMBER = open('settings.txt').read()", "it opens settings.txt at "),
        ("import socket; NUMBER = socket.socket()", "its import raises OutsideWorld outside of a world"),
        ("import os; NUMBER = os.environ.get('SHOP')", None),
        ("import uuid; NUMBER = uuid.uuid4()", "it draws random numbers at "),
        ("import os; NUMBER = os.getcwd()", "it asks for the working directory at "),
        (
            "import sqlalchemy; NUMBER = sqlalchemy.create_engine('sqlite:///x.db').name",
            "it asks for the working directory at ",
        ),
        ("import os; os.makedirs('data'); NUMBER = open('data/x', 'w')", "it uses data at "),
        (
            "import sqlite3; NUMBER = sqlite3.connect('orders.db').execute('create table o(i)')",
            "orders.db at ",
        ),
    ],
)
def test_import_that_depends_on_more_than_code_is_made_anew(
    line: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP", "here")
    (tmp_path / "settings.txt").write_text("settings")
    (tmp_path / "imported_service.py").write_text(
        f"from {HERE} import tell\n{line}\nasync def run():\n    await tell(NUMBER)\n"
    )
    found: list[bytes | None] = []

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", "imported_service:run").ended()
        found.extend(each.value for each in world.records("told"))

    result = passes(test)
    if reason is None:
        assert result.imported_anew == {}
    else:
        assert reason in result.imported_anew["imported_service:run"]
    assert not (tmp_path / "data").exists()  # an import changes no real folder
    assert not (tmp_path / "orders.db").exists()
    if "environ" in line or "settings" in line:
        assert found == [b"here" if "environ" in line else b"settings"]


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        ("orders main", {}, 'expected a name such as "orders.main:run" or "orders.main"'),
        (f"{HERE}:idle", {}, "arguments of a program in its own process are plain data"),
        (
            f"{HERE}:idle",
            {"customer": 2},
            r"customer=...\): a program by its name takes arguments without names",
        ),
        (f"{HERE}:idle", {"port": "80"}, "port='80': expected a whole number, 1 to 65535"),
    ],
)
def test_wrong_programs_are_refused(program: str, options: dict[str, Any], said: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        with pytest.raises(FencepostError, match=said):
            world.process("worker", program, *(() if options else (object(),)), **options)

    assert play(test).violations == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no_such_module:run", "there is no module 'no_such_module'; expected one on the test's sys.path"),
        ("no_such.module", "there is no module 'no_such.module'"),
        (f"{HERE}:nothing", f"{HERE} has no 'nothing'; expected a function or application"),
        (f"{HERE}:application", "is no function, FastStream application or ASGI application"),
        (f"{HERE}:pauses", "signal.pause() can't run in a simulated world"),
        (f"{HERE}:ends_its_group", "os.killpg() can't run in a simulated world"),
    ],
)
def test_program_that_is_not_there_or_leads_out_ends_the_run(program: str, said: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("worker", program)
        await asyncio.sleep(60)

    (violation,) = play(test).violations
    assert violation.invariant in ("raised NotAProgram", "raised OutsideWorld")
    assert said in violation.message


def test_import_that_ends_its_process_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ends_itself.py").write_text("import os\nos._exit(3)\n")

    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", "ends_itself:run")
        await worker.ended()
        await worker.stop()

    assert [each.message for each in play(test).crashes] == ["3"]
    assert told("plain")[0] == [f"plain {HERE}"]


def test_later_fault_keeps_an_earlier_one() -> None:
    mine, other = wire.Pair.make()
    link = WorldLink(mine.fileno(), "worker", "10.0.0.1")
    link._moved_us = 0  # which would start a timer
    process = link.process = OwnProcess(link, 1, leave=print, kill=print)  # type: ignore[arg-type]
    for orders in ((5, 0, False), (0, 7, False), (0, 0, True)):
        wire.write(other.fileno(), ("value", None, 0, [], orders))
        link.ask("begin")
    assert (process.busy_until_us, process.callback_takes_us, process.callback_fails) == (5, 7, True)
    mine.close()
    other.close()


def test_syntax_error_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_written.py").write_text("import os\n\ndef run(:\n")

    async def test(world: SimulatedWorld) -> None:
        world.process("worker", "half_written:run")
        await asyncio.sleep(60)

    (violation,) = play(test).violations
    assert (
        f"'half_written:run'): {tmp_path / 'half_written.py'}:3: SyntaxError: invalid syntax"
        in violation.message
    )


def test_folders_that_killed_runs_have_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fencepost-world-left", "fencepost-world-used", "fencepost-world-new", "other"):
        (tmp_path / name / "hosts").mkdir(parents=True)
        if name != "fencepost-world-new":
            os.utime(tmp_path / name, (1, 1))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folder, "_CLEANED", [])
    with folder._in_use(str(tmp_path / "fencepost-world-used")), folder.own_folder():
        pass
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == ["fencepost-world-new", "fencepost-world-used", "other"]


# -- judged as deployed ------------------------------------------------------------------------------


@pytest.mark.parametrize(("remembers", "invariant"), [(False, "output-once"), (True, None)])
def test_bug_in_a_global_that_a_crash_loses_is_found(remembers: bool, invariant: str | None) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders", claims=["at-least-once", "exactly-once"])
        worker = world.process("worker", f"{HERE}:invoices", remembers)
        for number in range(5):
            await world.produce("orders", "order", key=f"{number}")
            await asyncio.sleep(5)
        await world.produce("orders", "order", key="5")
        await asyncio.sleep(0.25)
        await worker.restart(graceful=False)  # after the invoice, before the commit
        await world.settled()

    assert play(test).invariant == invariant


@fencepost.simulated(seeds=2, topics=TOPICS, duration=20, processes=1)
async def orders_have_invoices(world: SimulatedWorld) -> None:
    world.outputs("invoices", of="orders")
    for number in range(2):
        world.process(f"worker-{number}", f"{HERE}:invoices")
    for number in range(10):
        await world.produce("orders", "order", key=f"{number}")
        await asyncio.sleep(1)
    await world.settled()


@fencepost.simulated(seeds=1, topics=TOPICS, faults=())
async def follows_addresses(world: SimulatedWorld) -> None:
    await world.process("worker", f"{HERE}:sends_in_the_order_of_addresses").ended()
    pytest.fail("it is over")


def test_repeat_has_other_addresses_in_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SimulationFailed, match="not repeatable: 5 runs of the seed gave 5 different digests"):
        follows_addresses.simulated.check()


def test_digest_is_one_in_repeats_folders_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = orders_have_invoices.simulated
    digests = [test.check().digests[1]]
    digests += [run_world(test.function, test.settings, 1).digest for _ in range(2)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTHER", "x" * 99)
    digests.append(test.run(1).digest)
    assert len(set(digests)) == 1, digests
    assert os.environ["OTHER"]
