"""How long `fencepost analyze` takes for millions of rows, and what it needs for that.

    python benchmarks/analyses.py [--rows 5,50] [--seeds 3] [--master local[2]]

The rows are those of real runs of the library, first as they are, then again and again under other run ids;
`--rows` are millions. Each size is analysed by the command itself, three times, after a session without
work: wall time, CPU time of all processes, that of the JVM and of Spark's Python workers, and the JVM's
memory at its most. The second analysis computes the tables from the kept views, and the third finds nothing
new. Times should grow no worse than the rows do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library, load_any
from fencepost.simulation.trace.parquet import ParquetTrace

ROWS_A_FILE = 1_000_000


def real_runs(folder: Path, seeds: int) -> list[pa.Table]:
    """The traces of every scenario of the library with a few seeds."""
    tables = []
    for entry in library():
        for seed in range(seeds):
            path = folder / f"{entry.name}-{seed:06d}.parquet"
            with ParquetTrace(path, path.stem) as trace:
                run(load_any(entry.name), seed, trace=trace)
            tables.append(pq.read_table(path).drop_columns(["run_id"]))
    return tables


def copies(tables: list[pa.Table], rows: int) -> Iterator[pa.Table]:
    """These runs, in turn, under ids of their own, until there are so many rows."""
    number = 0
    while rows > 0:
        table = tables[number % len(tables)]
        ids = pa.repeat(pa.scalar(f"run-{number:08d}"), len(table))
        yield table.add_column(0, pa.field("run_id", pa.string(), False), ids)
        rows -= len(table)
        number += 1


def write(tables: list[pa.Table], rows: int, folder: Path) -> int:
    """Files of a million rows or so, sorted by run; answers how many runs there are."""
    folder.mkdir()
    held: list[pa.Table] = []
    files = runs = 0
    for table in copies(tables, rows):
        held.append(table)
        runs += 1
        if sum(map(len, held)) >= ROWS_A_FILE:
            pq.write_table(pa.concat_tables(held), folder / f"part-{files:05d}.parquet", compression="zstd")
            held, files = [], files + 1
    if held:
        pq.write_table(pa.concat_tables(held), folder / f"part-{files:05d}.parquet", compression="zstd")
    return runs


class Cost(NamedTuple):
    """The cost of one command, in seconds, and the peak memory of its JVM, in MB."""

    wall: float
    cpu: float
    jvm: float
    """CPU seconds of the JVM."""
    workers: float
    """CPU seconds of Spark's Python workers and their children."""
    memory: float


def measure(words: list[str]) -> Cost:
    """Run Python with these words, and watch all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    most = 0
    seconds: dict[tuple[str, str], tuple[float, bool]] = {}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for each in tree(process.pid):
                seconds[each.key] = each.seconds, each.is_java
                most = max(most, each.memory if each.is_java else 0)
            time.sleep(0.2)
        if process.returncode:
            sys.exit(f"{' '.join(words)} failed with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    jvm = sum(its for its, is_java in seconds.values() if is_java)
    workers = sum(
        its for (pid, _), (its, is_java) in seconds.items() if not is_java and pid != str(process.pid)
    )
    # Whoever is not waited for is missing in one sum, and the last moments in the other.
    cpu = max(waited, sum(its for its, _ in seconds.values()))
    return Cost(time.monotonic() - began, cpu, jvm, workers, most / 1024)


class Process(NamedTuple):
    """A process under another one."""

    key: tuple[str, str]
    """Its number and its start."""
    parent: str
    seconds: float
    is_java: bool
    memory: int
    """The most that it had so far, in kB."""


def tree(root: int) -> list[Process]:
    """The process and all that it has started, and those."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            status = (entry / "status").read_text()
            found[entry.name] = Process(
                (entry.name, fields[19]),
                fields[1],
                (int(fields[11]) + int(fields[12])) / tick,
                "java" in os.readlink(entry / "exe"),
                int(status.partition("VmHWM:")[2].split()[0]) if "VmHWM:" in status else 0,
            )
    its = {str(root)}
    while more := {pid for pid, each in found.items() if each.parent in its} - its:
        its |= more
    return [found[pid] for pid in its if pid in found]


_SESSION = """
import sys
from fencepost.simulation.pipeline.session import spark_session
with spark_session(sys.argv[1]) as spark:
    spark.range(1).count()
"""


def breakdown(folder: Path, master: str) -> Iterator[tuple[str, Cost]]:
    """A session without work, a first analysis, one that reads the kept views, and one without news."""
    yield "session", measure(["-c", _SESSION, master])
    command = ["-m", "fencepost.simulation", "analyze", str(folder), "--master", master, "--json"]
    yield "first", measure(command)
    yield "second", measure([*command, "--tables", "driver"])
    yield "third", measure(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="5,50", help="millions of rows, by commas")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each scenario")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-analyses-") as scratch:
        root = Path(scratch)
        (root / "real").mkdir()
        tables = real_runs(root / "real", options.seeds)
        real = sum(map(len, tables))
        print("      rows   runs    on disk    command      wall       CPU       JVM   workers  JVM memory")
        folders = [(root / "real", real, len(tables))]
        for millions in map(float, options.rows.split(",") if options.rows else ()):
            folder = root / f"traces-{millions:g}"
            rows = int(millions * 1e6)
            folders.append((folder, rows, write(tables, rows, folder)))
        for folder, rows, runs in folders:
            size = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 1e6
            for name, cost in breakdown(folder, options.master):
                times = "".join(f"{each:8.1f} s" for each in cost[:4])
                print(
                    f"{rows:10,} {runs:6,} {size:7.0f} MB    {name:8}{times} {cost.memory:8.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
