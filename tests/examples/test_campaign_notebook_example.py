"""The notebook of the examples: it has no outputs, and its cells run in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples" / "campaign-notebook" / "campaign.ipynb"


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_it_is_kept_without_outputs() -> None:
    assert [(cell["outputs"], cell["execution_count"]) for cell in code_cells()] == [([], None)] * 5


@pytest.mark.real
@pytest.mark.timeout(240)
def test_its_cells_run_in_order(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for number, cell in enumerate(code_cells(), 1):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert sorted(names["names"]) == ["dynamic", "static"]
    median, slowest = names["figure"].data
    assert all(0 < low <= high for low, high in zip(median.y, slowest.y, strict=True))
    assert "|heartbeat " in capsys.readouterr().out
