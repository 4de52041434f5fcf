"""Whether one seed is one run: each scenario of the library in two processes with different hash seeds.

    python benchmarks/determinism.py [--seeds N] [--first N] [--json]

Nothing is timed for its own sake: what is told is how many digests are equal, of how many. Ends with 1 if one
is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from fencepost.simulation.scenarios.load import library

_DIGESTS = """
import sys
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
scenario = load_any(sys.argv[1])
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    print(run(scenario, seed).digest)
"""


def digests(scenario: str, first: int, seeds: int) -> list[list[str]]:
    """Those of all seeds, from two processes side by side."""
    command = [sys.executable, "-c", _DIGESTS, scenario, str(first), str(first + seeds)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, text=True
        )
        for hash_seed in ("1", "2")
    ]
    told = [process.communicate()[0].split() for process in processes]
    for process in processes:
        if process.returncode:
            raise SystemExit(f"{scenario}: a process ended with {process.returncode}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for entry in library():
        one, other = digests(entry.name, arguments.first, arguments.seeds)
        equal = sum(a == b for a, b in zip(one, other, strict=True))
        rows.append({"scenario": entry.name, "seeds": arguments.seeds, "equal": equal})
        if not arguments.json:
            print(f"{entry.name:36} {equal:>6,} of {arguments.seeds:,} equal", flush=True)
    equal, runs = sum(row["equal"] for row in rows), arguments.seeds * len(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "equal": equal, "runs": runs}))
    else:
        print(f"{equal:,} of {runs:,} digests are equal, {time.perf_counter() - began:,.0f} s")
    return 0 if equal == runs else 1


if __name__ == "__main__":
    sys.exit(main())
