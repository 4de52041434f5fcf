"""A campaign that is killed in the middle, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline import output
from fencepost.simulation.pipeline.campaign import carry_out
from fencepost.simulation.pipeline.output import CampaignDirectory, writing
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.pipeline.tasks import cells_of

SEEDS = 3
SECONDS = 120


def runs_of(out: Path) -> list[dict[str, Any]]:
    return [
        row for part in sorted((out / "runs").glob("*.parquet")) for row in pq.read_table(part).to_pylist()
    ]


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")
def test_a_killed_campaign_goes_on_without_what_it_had_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = {"duration": ["40m"]}  # the runs take some seconds: a busy machine sees one end before the last
    options = ["--seeds", str(SEEDS), "--grid", "duration=40m", "--traces", "failed", "--master", "local[1]"]
    command = [sys.executable, "-m", "fencepost.simulation", "campaign", "churn", *options, "--out", str(out)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # of what it leaves when it is killed
    with subprocess.Popen(command, **quiet, env=env, start_new_session=True) as process:
        until = time.monotonic() + SECONDS
        # A finished run is on disk, in a part that is not finished.
        while not any(path.stat().st_size for path in out.glob("runs/.*.journal")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)  # Spark and its workers as well

    (cell,) = cells_of(["churn"], grid)
    CampaignDirectory(out).prepare([cell], resume=True)  # waits for the workers that were left
    before = {row["run_id"]: row for row in runs_of(out)}
    assert 0 < len(before) < SEEDS
    spec = CampaignSpec(cells=(cell,), seeds=tuple(range(SEEDS)), traces="failed")
    result = carry_out(spec, out_dir=out, resume=True)
    rows = runs_of(out)
    assert sorted(row["seed"] for row in rows) == list(range(SEEDS))
    # Wall times differ from run to run: these rows are the ones that were there.
    assert {row["run_id"]: row for row in rows if row["run_id"] in before} == before
    assert (result.runs, result.failed) == (SEEDS, 0)


def test_nobody_begins_while_another_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(["steady"], {})
    first = CampaignDirectory(tmp_path)
    first.prepare(cells, resume=False)
    monkeypatch.setattr(output, "LOCK_SECONDS", 0.2)
    with pytest.raises(FencepostError, match="another campaign is writing to it"):
        CampaignDirectory(tmp_path).prepare(cells, resume=True)
    with writing(tmp_path, first.generation) as allowed:
        assert allowed
    del first
    second = CampaignDirectory(tmp_path)
    second.prepare(cells, resume=True)
    with writing(tmp_path, 0) as allowed:  # a worker of the first, started late
        assert not allowed
