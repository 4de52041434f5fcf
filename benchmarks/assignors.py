"""Times the assignors, and Kafka's own in the same run where Maven and a JVM are there.

`python benchmarks/assignors.py [--topics N] [--json]`. One member joins, or the first one leaves, a group
that is balanced. Times are medians in milliseconds; on a shared machine only the ratio says anything.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fencepost.coordinator.assign.registry import BUILT_IN
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.protocol.ids import MemberId, Partitions

SIZES = ((1_000, 10_000), (10_000, 100_000))
ROUNDS = 21
LIMITS = {("uniform", "join"): 4.0}
"""Most times Kafka's own that a case may take."""

_JAVA = Path(__file__).resolve().parent / "java"
_JARS = Path(__file__).resolve().parent.parent / "out" / "benchmarks" / "lib"


class Case(NamedTuple):
    assignor: str
    members: int
    partitions: int
    change: str


def specs(assignor: Assignor, members: int, topics: int, partitions: int) -> Iterator[tuple[str, GroupSpec]]:
    """The group after a join, and after a leave, with the target of before."""
    counts = {f"topic-{index:04}": partitions // topics for index in range(topics)}
    subscription = tuple(counts)
    names = [f"member-{index}" for index in range(members)]

    def spec(ids: list[MemberId], targets: dict[MemberId, Partitions]) -> GroupSpec:
        return GroupSpec(subscriptions=dict.fromkeys(ids, subscription), partitions=counts, targets=targets)

    targets = dict(assignor(spec(names, {})))
    yield "join", spec([*names, "joiner"], targets)
    yield "leave", spec(names[1:], {member: targets[member] for member in names[1:]})


def ours(topics: int) -> dict[Case, float]:
    found = {}
    for members, partitions in SIZES:
        for name, assignor in BUILT_IN.items():
            for change, spec in specs(assignor, members, topics, partitions):
                found[Case(name, members, partitions, change)] = _median_ms(assignor, spec)
    return found


def _median_ms(assignor: Assignor, spec: GroupSpec) -> float:
    times = []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.perf_counter()
        assignor(spec)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def kafkas(topics: int) -> dict[Case, float]:
    """Kafka's times; empty where there is no Java, no Maven, or no way to Maven's repository."""
    if not (shutil.which("java") and _fetch_jars()):
        return {}
    sizes = [f"{members}:{partitions}" for members, partitions in SIZES]
    command = ["java", "-cp", f"{_JARS}/*", str(_JAVA / "AssignorBench.java"), str(topics), *sizes]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        print(f"Kafka's assignors could not be run: {run.stderr.strip()[-500:]}", file=sys.stderr)
        return {}
    rows = (line.split() for line in run.stdout.splitlines())
    return {Case(name, int(m), int(p), change): float(ms) for name, m, p, change, ms in rows}


def _fetch_jars() -> bool:
    if any(_JARS.glob("kafka-group-coordinator-4*.jar")):
        return True
    if not shutil.which("mvn"):
        return False
    command = ["mvn", "-q", "-B", "-f", str(_JAVA / "pom.xml"), "dependency:copy-dependencies"]
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={_JARS}"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        print(f"Kafka's jars could not be fetched: {run.stdout.strip()[-500:]}", file=sys.stderr)
    return run.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    theirs = kafkas(arguments.topics)
    rows = []
    for case, ms in ours(arguments.topics).items():
        kafka_ms = theirs.get(case)
        ratio = None if kafka_ms is None else ms / kafka_ms
        limit = LIMITS.get((case.assignor, case.change))
        rows.append({**case._asdict(), "ms": ms, "kafka_ms": kafka_ms, "ratio": ratio, "limit": limit})
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            kafka = (
                "no Kafka here"
                if row["ratio"] is None
                else f"Kafka {row['kafka_ms']:6.2f} ms, ratio {row['ratio']:.2f}"
            )
            limit = f" (limit {row['limit']:.0f})" if row["limit"] else ""
            size = f"{row['members']:,} x {row['partitions']:,}"
            print(f"{row['assignor']:8}{size:18}{row['change']:6}{row['ms']:7.2f} ms   {kafka}{limit}")
    return int(any(row["ratio"] and row["limit"] and row["ratio"] > row["limit"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
