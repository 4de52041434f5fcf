"""One seed, one run: in every process, whatever Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import LIBRARY, load_any

NAMES = sorted(path.stem for path in LIBRARY.glob("*.toml"))
OTHER = os.environ.get("FENCEPOST_TESTS_OTHER_PYTHON")
"""The interpreter of the other process, if not this one's."""
PARTS = 4
"""Scenarios of one part share a process, which imports everything once."""

_DIGESTS = """
import os, sys
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
for name in sys.argv[1:]:
    if os.fork() == 0:  # no other run came before in this one
        result = run(load_any(name), 0)
        print(name, result.digest, result.events, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(name)
"""


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))]
)
def test_no_hash_seed_changes_a_run(part: int) -> None:
    """Against this process, in which many runs came before; its own hash seed is 0 at most by chance."""
    names = NAMES[part::PARTS]
    environment = {**os.environ, "PYTHONHASHSEED": "0" if os.environ.get("PYTHONHASHSEED") != "0" else "1"}
    command = [OTHER or sys.executable, "-c", _DIGESTS, *names]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        here = []
        for name in names:
            result = run(load_any(name), 0)
            assert (result.violations, result.converged) == ([], True), name
            here.append(f"{name} {result.digest} {result.events}")
        there = process.communicate()[0].splitlines()
    assert process.returncode == 0
    assert here == there
