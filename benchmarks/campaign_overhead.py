"""What Spark costs a campaign: the same runs by a pool of processes, by Spark, and by Spark on one core.

    python benchmarks/campaign_overhead.py [--runs N] [--scenario NAME] [--duration D] [--members N]
                                           [--cores N] [--rounds N]

Pool and sessions are up before the clock starts, and take turns in each round: what else the machine does
meets all of them. Prints the medians of the rounds, and of the ratios within each round; and the CPU time of
all processes of a side, Spark's JVM included, which tells more than the clock where a machine has other work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from fencepost.simulation.pipeline.campaign import fan_out
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.runs import JobSpec, run_one
from fencepost.simulation.pipeline.session import spark_session
from fencepost.simulation.pipeline.tasks import CampaignCell, Task, cells_of, dealt

PARTITIONS_A_CORE = 16
TICKS = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """A round of a side."""

    wall: float
    cpu: float


class Side(NamedTuple):
    """One way to have the runs done, in a process of its own."""

    process: multiprocessing.Process
    connection: Connection

    def round(self) -> Took:
        self.connection.send(None)
        return self.connection.recv()


def orders(
    cells: tuple[CampaignCell, ...], runs: int, partitions: int, directory: CampaignDirectory
) -> JobSpec:
    tasks = [Task(0, seed, False) for seed in range(runs)]
    return JobSpec(
        cells=cells,
        tasks=tuple(dealt(tasks, partitions)),
        root=str(directory.root),
        generation=directory.generation,
        time_limit_s=600.0,
        trace_violations=False,
    )


def one(work: tuple[JobSpec, Task]) -> None:
    row, _ = run_one(work[0], work[0].cells[0], work[1])
    if row["error"] is not None:
        raise RuntimeError(row["error"])


def pool(connection: Connection, cells: tuple[CampaignCell, ...], runs: int, cores: int) -> None:
    with tempfile.TemporaryDirectory() as root, multiprocessing.Pool(cores) as workers:
        told = orders(cells, 0, 1, CampaignDirectory(Path(root)))
        work = [(told, Task(0, seed, False)) for seed in range(runs)]
        workers.map(one, work[: 2 * cores], 1)
        for _ in rounds(connection):
            workers.map(one, work, max(1, runs // (cores * PARTITIONS_A_CORE)))


def spark(connection: Connection, cells: tuple[CampaignCell, ...], runs: int, cores: int) -> None:
    with tempfile.TemporaryDirectory() as root, spark_session(f"local[{cores}]") as session:
        directory = CampaignDirectory(Path(root))
        directory.prepare(cells, resume=False)

        def warm() -> None:
            # Spark ends Pythons that had nothing to do for a minute.
            directory.prepare(cells, resume=True)
            fan_out(session, orders(cells, 2 * cores, 2 * cores, directory), 2 * cores)
            directory.prepare(cells, resume=True)

        partitions = min(runs, PARTITIONS_A_CORE * cores)
        for _ in rounds(connection, warm):
            fan_out(session, orders(cells, runs, partitions, directory), partitions)
        failed = pq.read_table(directory.root / "runs", columns=["error"]).column(0)
        if failed.null_count < len(failed):
            raise RuntimeError(failed.drop_null()[0].as_py())


def rounds(connection: Connection, prepare: object = None) -> Iterator[None]:
    """A round for each time that one is asked for; answers what it took."""
    connection.send(None)
    while connection.poll(None):
        try:
            connection.recv()
        except EOFError:
            return
        if callable(prepare):
            prepare()
        used, began = cpu_seconds(os.getpid()), time.perf_counter()
        yield
        wall = time.perf_counter() - began
        connection.send(Took(wall, cpu_seconds(os.getpid()) - used))


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all below it, those that have ended included."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(words[1]), []).append(int(entry))
            used[int(entry)] = sum(map(int, words[11:15]))
    found, total = [root], 0
    while found:
        process = found.pop()
        total += used.get(process, 0)
        found += children.get(process, [])
    return total / TICKS


def started(side: object, *given: object) -> Side:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=side, args=(theirs, *given))  # type: ignore[arg-type]
    process.start()
    theirs.close()
    ours.recv()
    return Side(process, ours)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--scenario", default="steady")
    parser.add_argument("--duration", default="150s")
    parser.add_argument("--members", default="2")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    cells = cells_of([given.scenario], {"duration": [given.duration], "members": [given.members]})
    sides = [
        started(pool, cells, given.runs, given.cores),
        started(spark, cells, given.runs, given.cores),
        started(spark, cells, given.runs, 1),
    ]
    took = [[side.round() for side in sides] for _ in range(given.rounds)]
    for side in sides:
        side.connection.close()
        side.process.join()
    print(f"{given.runs} runs of {given.scenario}, median of {given.rounds} rounds")
    names = (f"process pool, {given.cores}", f"Spark, local[{given.cores}]", "Spark, local[1]")
    for number, name in enumerate(names):
        wall, cpu = (
            statistics.median(values) for values in zip(*(each[number] for each in took), strict=True)
        )
        print(f"{name:18} {wall:7.2f} s, {1000 * wall / given.runs:6.1f} ms a run, {cpu:7.2f} s of CPU")
    for name, kind in (("clock", 0), ("CPU time", 1)):
        ratio = statistics.median(each[1][kind] / each[0][kind] for each in took)
        print(f"Spark against the pool, {name}: {ratio:.2f} x")
    faster = statistics.median(each[2].wall / each[1].wall for each in took)
    print(f"from 1 to {given.cores} cores: {faster:.2f} x faster")


if __name__ == "__main__":
    main()
