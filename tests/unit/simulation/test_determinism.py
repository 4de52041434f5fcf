"""One seed, one run: in every process, whatever Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import LIBRARY, load_any

NAMES = sorted(path.stem for path in LIBRARY.glob("*.toml"))
SEEDS = 2

_DIGESTS = """
import sys
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
scenario = load_any(sys.argv[1])
for seed in range(int(sys.argv[2])):
    print(run(scenario, seed).digest)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", NAMES)
def test_no_hash_seed_changes_a_run(name: str) -> None:
    """Against this process, in which many runs came before; its own hash seed is 0 at most by chance."""
    environment = {**os.environ, "PYTHONHASHSEED": "0" if os.environ.get("PYTHONHASHSEED") != "0" else "1"}
    command = [sys.executable, "-c", _DIGESTS, name, str(SEEDS)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        scenario = load_any(name)
        here = [run(scenario, seed).digest for seed in range(SEEDS)]
        there = process.communicate()[0].split()
    assert process.returncode == 0
    assert here == there
    assert len(set(here)) == SEEDS
