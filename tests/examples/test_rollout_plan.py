"""The rollout plan of the examples: the file is read, and a small form of it recommends an option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.pipeline.question import ask, choices, read_question

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = Path(__file__).parents[2] / "examples" / "rollout-plan" / "plan.toml"


def test_the_plan_compares_members_with_and_without_instance_ids() -> None:
    asked = ask(*read_question(PLAN))
    assert list(choices(asked)) == ["consumer/uniform", "consumer/uniform static"]


@pytest.mark.real
@pytest.mark.timeout(240)
def test_a_small_form_of_it_recommends_an_option(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--members", "4", "--partitions", "8", "--runs", "2", "--json"]
    assert main(["plan", str(PLAN), *small]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["options"]) == 2
