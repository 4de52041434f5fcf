"""How long `fencepost analyze` takes for millions of rows, and what it needs for that.

    python benchmarks/analyses.py [--rows 5,50] [--master local[2]]

The rows are those of real runs of the library, again and again under other run ids; `--rows` are millions.
Each size is analysed by the command itself, in a process of its own: wall time, CPU time of all processes,
and the most memory that the JVM had. It should grow no worse than the rows do.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library, load_any
from fencepost.simulation.trace.parquet import ParquetTrace

ROWS_A_FILE = 1_000_000
SEEDS = 3


def real_runs(folder: Path) -> list[pa.Table]:
    """The traces of every scenario of the library with a few seeds."""
    tables = []
    for entry in library():
        for seed in range(SEEDS):
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


def measure(folder: Path, master: str) -> tuple[float, float, float]:
    """Seconds of wall time, seconds of CPU time, and the JVM's memory at its most, in MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    program = [sys.executable, "-m", "fencepost.simulation"]
    command = [*program, "analyze", str(folder), "--master", master, "--json"]
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, jvm_memory(process.pid))
            time.sleep(0.5)
        if process.returncode:
            sys.exit(f"fencepost analyze failed with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu, most / 1024


def jvm_memory(parent: int) -> int:
    """The most memory that the JVM under this process had so far, in kB."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and "java" in os.readlink(entry / "exe"):
                status = (entry / "status").read_text()
                return int(status.partition("VmHWM:")[2].split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="5,50", help="millions of rows, by commas")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-analyses-") as scratch:
        root = Path(scratch)
        (root / "real").mkdir()
        tables = real_runs(root / "real")
        print(f"{len(tables)} real runs, {sum(map(len, tables)):,} rows")
        print("        rows     runs   on disk     wall      CPU       JVM  CPU a million")
        for millions in map(float, options.rows.split(",")):
            folder = root / f"traces-{millions:g}"
            runs = write(tables, int(millions * 1e6), folder)
            size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            wall, cpu, memory = measure(folder, options.master)
            rows = f"{millions * 1e6:12,.0f} {runs:8,} {size:6.0f} MB"
            print(f"{rows} {wall:6.0f} s {cpu:6.0f} s {memory:6.0f} MB {cpu / millions:12.1f} s", flush=True)


if __name__ == "__main__":
    main()
