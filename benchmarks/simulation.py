"""What a simulated world costs: heartbeats a second, the large run, runs of the library, memory a member.

    python benchmarks/simulation.py [--members N] [--partitions N] [--duration 1h] [--only NAME] [--json]

Judges are on everywhere; the trace is written as Parquet where it says so. CPU seconds are the process's
own: on a shared machine they say more than wall time, and still too much. All on one core.

- plain: what asyncio alone can do here, as a measure of the machine: tasks that wait for a future with a
  time-out, with latency both ways and a pause, and nothing else. Budgets are of one with 36,000 a second.
- heartbeats: a steady group, one virtual hour; nothing happens but heartbeats. Budget: 30,000 a second.
- large: the default scenario, a rolling deploy under faults, 1,000 members and 10,000 partitions, one
  virtual hour. Budget: 30 s. `plain_s` is what plain asyncio takes for as many heartbeats, before and after.
- library: one run of each scenario that ships.
- memory: what one more member adds, at ten partitions a member, with its share of the coordinator, the
  logs and the judges; measured between two group sizes. Budget: 25 kB.
- world: a program in a process of its own, in real time: a question to the world, and a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fencepost import SimulatedWorld, run_simulated
from fencepost.simulation.kafka.world import KafkaWorld
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import library, load, load_any, loads
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.trace.parquet import ParquetTrace

BUDGETS = {"heartbeats": "30,000/s", "large": "30 s", "memory": "25 kB"}


def steady(members: int, partitions: int, duration: str) -> Scenario:
    return loads(
        f'duration = "{duration}"\nquiet = "1m"\n[group]\nmembers = {members}\n'
        f'[[topics]]\nname = "orders"\npartitions = {partitions}\n',
        name="steady",
    )


def timed(scenario: Scenario, *, trace: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        cpu = time.process_time()
        if trace:
            with ParquetTrace(path, "benchmark") as sink:
                result = run(scenario, 1, trace=sink)
        else:
            result = run(scenario, 1)
        cpu = time.process_time() - cpu
        size = path.stat().st_size if trace else 0
    return told(result, cpu) | ({"trace_mb": round(size / 1e6, 1)} if trace else {})


def told(result: RunResult, cpu: float) -> dict[str, Any]:
    return {
        "members": result.members,
        "partitions": result.partitions,
        "virtual_s": result.virtual_seconds,
        "heartbeats": result.heartbeats,
        "rebalances": result.rebalances,
        "violations": len(result.violations),
        "wall_s": round(result.wall_seconds, 2),
        "cpu_s": round(cpu, 2),
        "heartbeats_per_cpu_s": round(result.heartbeats / cpu),
    }


def heartbeats(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for trace in (False, True):
        scenario = steady(args.members // 2, args.partitions // 2, args.duration)
        yield {"case": "heartbeats", "trace": trace} | timed(scenario, trace=trace)


def large(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    scenario = load(members=args.members, partitions=args.partitions, duration=args.duration)
    before = plain_requests_per_cpu_s(args.members)
    row = timed(scenario, trace=True)
    rate = (before + plain_requests_per_cpu_s(args.members)) / 2
    plain_s = row["heartbeats"] / rate
    of_plain = {"plain_s": round(plain_s, 1), "times_plain": round(row["cpu_s"] / plain_s, 2)}
    yield {"case": "large", "trace": True} | row | of_plain | {"rss_mb": rss_mb()}


class Ahead:
    """A selector without sockets: instead of waiting, time goes on to the loop's next timer."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._loop.now = self._loop._scheduled[0]._when
        return []


class PlainLoop(asyncio.BaseEventLoop):
    """asyncio's own loop in virtual time, with nothing of ours in it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector, self._clock_resolution = Ahead(self), 1e-9

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None:
        assert not events


def plain_requests_per_cpu_s(tasks: int, virtual_s: float = 900.0) -> float:
    loop, draw, answered = PlainLoop(), random.Random(1), 0

    def latency() -> float:
        return draw.uniform(0.001, 0.005)

    def answer(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    def arrive(future: asyncio.Future[None]) -> None:
        loop.call_later(latency(), answer, future)

    async def asks() -> None:
        nonlocal answered
        while loop.time() < virtual_s:
            future = loop.create_future()
            loop.call_later(latency(), arrive, future)
            async with asyncio.timeout(30):
                await future
            answered += 1
            await asyncio.sleep(5)

    async def all_ask() -> None:
        await asyncio.gather(*(asks() for _ in range(tasks)))

    cpu = time.process_time()
    loop.run_until_complete(all_ask())
    cpu = time.process_time() - cpu
    loop.close()
    return answered / cpu


def plain(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for _ in range(3):
        yield {"case": "plain", "requests_per_cpu_s": round(plain_requests_per_cpu_s(args.members))}


def small(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for entry in library():
        scenario = load_any(entry.name)
        cpu = time.process_time()
        results = [run(scenario, seed) for seed in range(5)]
        cpu = (time.process_time() - cpu) / len(results)
        yield {"case": "library", "scenario": entry.name} | told(results[-1], cpu)


def memory(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sizes = (args.members // 4, args.members)
    for judges in (None, []):
        used = [in_use(members, judges) for members in sizes]
        added = (used[1] - used[0]) / (sizes[1] - sizes[0])
        yield {"case": "memory", "judges": judges is None, "kb_a_member": round(added / 1e3, 1)}


def in_use(members: int, judges: list[Any] | None) -> int:
    """Bytes in use at the end of a steady run, everything still there."""
    scenario = steady(members, members * 10, "2m")
    found: list[int] = []

    class Measured(KafkaWorld):
        def end(self) -> bool:
            gc.collect()
            found.append(tracemalloc.get_traced_memory()[0])
            return super().end()

    import fencepost.simulation.run as runs

    original, runs.World = runs.World, Measured  # type: ignore[misc]
    gc.collect()
    tracemalloc.start()
    try:
        run(scenario, 1, judges=judges)
    finally:
        tracemalloc.stop()
        runs.World = original  # type: ignore[misc]
    return found[0]


_NAPS = """
import time

def run():
    while True:
        time.sleep(0.001)
"""


def world(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    seconds, restarts = 20, 200
    found: dict[str, Any] = {"case": "world"}
    clock = time.perf_counter  # the machine's own, also in a run

    async def test(world: SimulatedWorld) -> None:
        program = world.process("worker", "naps:run")
        await asyncio.sleep(1)
        began = clock()
        await asyncio.sleep(seconds)
        found["question_us"] = round((clock() - began) / seconds * 1e3)
        began = clock()
        for _ in range(restarts):
            await program.restart(graceful=False)
            await asyncio.sleep(0.001)
        found["restart_ms"] = round((clock() - began) / restarts * 1e3, 1)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "naps.py").write_text(_NAPS)
        sys.path.insert(0, folder)
        run_simulated(test, brokers=1, faults=())
        sys.path.remove(folder)
    yield found


def rss_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


CASES = {
    "plain": plain,
    "heartbeats": heartbeats,
    "large": large,
    "library": small,
    "memory": memory,
    "world": world,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--duration", default="1h")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name in args.only or CASES:
        if name in BUDGETS and not args.json:
            print(f"{name}: budget {BUDGETS[name]}")
        for row in CASES[name](args):
            print(
                json.dumps(row) if args.json else "  " + "  ".join(f"{k} {v}" for k, v in row.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
