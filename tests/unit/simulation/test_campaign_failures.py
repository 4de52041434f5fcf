"""A campaign keeps the first of its failures of each kind, and makes them small."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from fencepost.simulation.failures.failure import read_failure, replay
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.pipeline.failed import keep_failures
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.tasks import CampaignCell, cells_of
from fencepost.simulation.pipeline.traces import run_schema

RAISED = "Traceback (most recent call last):\n  File …\nZeroDivisionError: division by zero\n"


def finished(cell: CampaignCell, seed: int, **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(run_schema().names) | {
        "run_id": cell.run_id(seed),
        "scenario": cell.name,
        "parameters": "{}",
        "seed": seed,
        "command": cell.command(seed),
        "wall_seconds": 0.1,
        "violations": 0,
        "traced": False,
    }
    return row | more


def campaign_of(root: Path, cells: tuple[CampaignCell, ...], rows: list[dict[str, Any]]) -> CampaignDirectory:
    directory = CampaignDirectory(root)
    directory.prepare(cells, resume=False)
    parquet.write_table(pa.Table.from_pylist(rows, schema=run_schema()), root / "runs" / "part-0-0-0.parquet")
    return directory


def test_each_kind_of_failure_is_kept_once(tmp_path: Path) -> None:
    (cell,) = cells = cells_of(["crash-and-return"], {"members": ("2",), "partitions": ("4",)})
    rows = [
        finished(cell, 5, violations=1, invariant="progress"),
        finished(cell, 0, violations=2, invariant="progress"),
        finished(cell, 2, error=RAISED),
        finished(cell, 3, error="took longer than 600 s"),
        finished(cell, 4),
    ]
    directory = campaign_of(tmp_path / "out", cells, rows)
    with MUTANTS["sessions-never-end"].apply():
        stays, comes_not_back = keep_failures(directory, cells, Progress())
        assert "progress" in {v.invariant for v in replay(read_failure(stays.small)).violations}
    assert (stays.run_id, stays.invariant) == (cell.run_id(0), "progress")
    assert read_failure(stays.failure).loaded() == cell.scenario
    assert stays.disturbances == len(read_failure(stays.small).plan.entries) == 1
    compile(Path(stays.test).read_text(), stays.test, "exec")

    assert (comes_not_back.run_id, comes_not_back.invariant) == (cell.run_id(2), "raised ZeroDivisionError")
    assert (comes_not_back.small, comes_not_back.test) == ("", "")
    assert read_failure(comes_not_back.failure).seed == 2
    files = {path.name for path in (tmp_path / "out" / "failures").iterdir()}
    assert files == {
        Path(name).name for name in (stays.failure, stays.small, stays.test, comes_not_back.failure)
    }


def test_a_healthy_campaign_keeps_nothing(tmp_path: Path) -> None:
    (cell,) = cells = cells_of(["steady"], {})
    directory = campaign_of(tmp_path / "out", cells, [finished(cell, 0)])
    assert keep_failures(directory, cells, Progress()) == []
    assert not (tmp_path / "out" / "failures").exists()


@pytest.mark.parametrize("name", ["../../elsewhere", "orders/eu", "x" * 249, "größer" * 40])
def test_a_scenario_of_any_name_keeps_its_failures_in_its_folder(name: str, tmp_path: Path) -> None:
    library = Path(str(resources.files("fencepost.simulation.scenarios") / "library"))
    scenario = tmp_path / "mine.toml"
    text = (library / "crash-and-return.toml").read_text(encoding="utf-8")
    scenario.write_text(f'name = "{name}"\n{text}', encoding="utf-8")
    cells = cells_of([str(scenario)], {"members": ("2",), "partitions": ("4",)})
    row = finished(cells[0], 0, violations=1, invariant="progress")
    directory = campaign_of(tmp_path / "more" / "out", cells, [row])
    with MUTANTS["sessions-never-end"].apply():
        (kept,) = keep_failures(directory, cells, Progress())
    written = sorted((tmp_path / "more" / "out" / "failures").iterdir())
    assert written == sorted(Path(each) for each in (kept.failure, kept.small, kept.test))
    assert not any(path.name.startswith(".") for path in written)
    assert read_failure(kept.failure).name == name
