"""One seed, one run: in every process, whatever Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.simulation.scenarios.load import LIBRARY

NAMES = sorted(path.stem for path in LIBRARY.glob("*.toml"))
SEEDS = 4

_DIGESTS = """
import sys
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
scenario = load_any(sys.argv[1])
for seed in range(int(sys.argv[2])):
    print(seed, run(scenario, seed).digest)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", NAMES)
def test_no_hash_seed_changes_a_run(name: str) -> None:
    command = [sys.executable, "-c", _DIGESTS, name, str(SEEDS)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, text=True
        )
        for hash_seed in ("0", "1234")
    ]
    first, second = (process.communicate()[0].splitlines() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert first == second
    assert len({line.split()[1] for line in first}) == SEEDS
