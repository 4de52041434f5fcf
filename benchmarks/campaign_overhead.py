"""What Spark costs a campaign: the same runs by a pool of processes, by Spark, and by Spark on one core.

    python benchmarks/campaign_overhead.py [--runs N] [--scenario NAME] [--cores N] [--rounds N]

Prints seconds for each, the best of some rounds; sessions and pools are up before the clock starts.
The absolute figures depend on the machine, ratios within one run count.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from fencepost.simulation.pipeline.campaign import fan_out
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.plan import Cell, Task, cells_of, dealt
from fencepost.simulation.pipeline.progress import Silent
from fencepost.simulation.pipeline.runs import Orders, run_one
from fencepost.simulation.pipeline.session import spark_session

PARTITIONS_A_CORE = 16


def orders(cells: tuple[Cell, ...], runs: int, partitions: int, root: Path, generation: int) -> Orders:
    tasks = [Task(0, seed, False) for seed in range(runs)]
    return Orders(
        cells=cells,
        tasks=tuple(dealt(tasks, partitions)),
        root=str(root),
        generation=generation,
        time_limit_s=600.0,
        trace_violations=False,
    )


def one(work: tuple[Orders, Task]) -> None:
    row, _ = run_one(work[0], work[0].cells[0], work[1])
    if row["error"] is not None:
        raise RuntimeError(row["error"])


def by_pool(cells: tuple[Cell, ...], runs: int, cores: int, rounds: int) -> list[float]:
    told = orders(cells, 0, 1, Path(), 0)
    work = [(told, Task(0, seed, False)) for seed in range(runs)]
    seconds = []
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(one, work[: 2 * cores], 1)
        for _ in range(rounds):
            began = time.perf_counter()
            pool.map(one, work, max(1, runs // (cores * PARTITIONS_A_CORE)))
            seconds.append(time.perf_counter() - began)
    return seconds


def by_spark(cells: tuple[Cell, ...], runs: int, cores: int, rounds: int) -> list[float]:
    partitions = min(runs, PARTITIONS_A_CORE * cores)
    seconds = []
    with tempfile.TemporaryDirectory() as root, spark_session(f"local[{cores}]") as spark:
        directory = CampaignDirectory(Path(root))
        directory.prepare(cells, resume=False)
        fan_out(spark, orders(cells, 2 * cores, 2 * cores, directory.root, 0), 2 * cores, Silent())
        for number in range(1, rounds + 1):
            told = orders(cells, runs, partitions, directory.root, number)
            began = time.perf_counter()
            fan_out(spark, told, partitions, Silent())
            seconds.append(time.perf_counter() - began)
        failed = pq.read_table(directory.root / "runs", columns=["error"]).column(0)
        if failed.null_count < len(failed):
            raise RuntimeError(failed.drop_null()[0].as_py())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--scenario", default="steady")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    cells = cells_of([given.scenario], {})
    pooled = min(by_pool(cells, given.runs, given.cores, given.rounds))
    many = min(by_spark(cells, given.runs, given.cores, given.rounds))
    single = min(by_spark(cells, given.runs, 1, given.rounds))
    print(f"{given.runs} runs of {given.scenario}, best of {given.rounds}")
    print(f"process pool, {given.cores} processes  {pooled:7.2f} s")
    print(f"Spark, {given.cores} cores             {many:7.2f} s   {many / pooled:.2f} x the pool")
    print(f"Spark, 1 core              {single:7.2f} s   {single / many:.2f} x from 1 to {given.cores} cores")


if __name__ == "__main__":
    main()
