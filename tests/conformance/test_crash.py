"""A server that is killed at random moments, under members and a producer that are not told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

CRASH = Path(__file__).parents[2] / "benchmarks" / "crash.py"


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_what_was_acknowledged_survives_any_kill_and_members_go_on(kills: int):
    done = subprocess.run(
        [sys.executable, str(CRASH), "--cycles", str(kills), "--seed", "3", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found["commits"] >= kills
    assert found["records"] >= 5 * kills
    gone = ("lost_offsets", "lost_records", "duplicates", "epochs_that_went_back", "rebalances")
    assert {name: found[name] for name in gone} == dict.fromkeys(gone, 0)
