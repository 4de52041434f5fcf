"""Tables over a few rows of their own: windows of single active consumers, and a world with an odd name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(400),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]

OPENED: dict[str | None, tuple[tuple[str, str, str], ...]] = {
    "forgotten": (
        ("CONNECTED_ACTIVE", "DISCONNECTED_ACTIVE", "ConnectionDown"),
        ("DISCONNECTED_ACTIVE", "FORGOTTEN_ACTIVE", "TimerFired"),
    ),
    "abandoned": (("CONNECTED_DEACTIVATING", "DISCONNECTED_WAITING", "ConnectionDown"),),
    "demoted": (("CONNECTED_ACTIVE", "CONNECTED_WAITING", "ActivateConsumer"),),
    "early": (("CONNECTED_DEACTIVATING", "CONNECTED_WAITING", "ActivateConsumer"),),
    "returned": (("DISCONNECTED_ACTIVE", "CONNECTED_WAITING", "ConnectionReconnected"),),
    "twice lost": (("FORGOTTEN_ACTIVE", "DISCONNECTED_ACTIVE", "ConnectionDown"),),
    "removed": (("CONNECTED_ACTIVE", "UNREGISTERED", "PurgeNodes"),),
    "closed": (("CONNECTED_ACTIVE", "UNREGISTERED", "ConnectionDown"),),
    None: (
        ("CONNECTED_ACTIVE", "CONNECTED_WAITING", "ActivateConsumer"),
        ("CONNECTED_WAITING", "CONNECTED_ACTIVE", "ActivateConsumer"),
        ("CONNECTED_ACTIVE", "CONNECTED_DEACTIVATING", "RegisterConsumer"),
    ),
}
"""What the coordinator did to one that was active, by the window that opens."""


@pytest.fixture
def overlapping(begun: Callable[[str, str], Any]) -> Any:
    """Of each kind one stream, for whose one consumer another one starts, 2 s before the first lets go."""
    story = begun("w", "windows")
    for number, steps in enumerate(OPENED.values()):
        at, first, second = 10 * number + 1, f"a{number}/s", f"b{number}/s"
        story.add(at, "member.state", first, (number,), state_from="ACTIVATING", state_to="ACTIVE")
        for before, after, command in steps:
            story.add(
                at + 1,
                "sac.consumer",
                first,
                (number,),
                state_from=before,
                state_to=after,
                detail=f"{command} k@n",
            )
        story.add(at + 2, "member.state", second, (number,), state_from="ACTIVATING", state_to="ACTIVE")
        story.add(at + 4, "member.state", first, (number,), state_from="ACTIVE", state_to="LOST")
    story.add(10 * len(OPENED), "run.end")
    return story


def rows(spark: SparkSession, story: Any, folder: Path, table: str) -> list[dict[str, Any]]:
    story.write(folder)
    trace = spark.read.schema(TRACE_DDL).parquet(str(folder))
    return [row.asDict() for row in ANALYSES[table](trace).collect()]


def test_two_owners_are_told_by_the_window_that_let_them(
    spark: SparkSession, overlapping: Any, tmp_path: Path
) -> None:
    found = rows(spark, overlapping, tmp_path / "windows", "two_owners")
    expected = sorted(OPENED, key=lambda name: name or "")
    assert [(row["sac_window"], row["count"], row["seconds"]) for row in found] == [
        (name, 1, 2.0) for name in expected
    ]


@pytest.mark.parametrize(
    ("world", "shown"),
    [('a"b\\c', "a_b_c"), ("e\n\N{GREEK SMALL LETTER ALPHA}", "e__"), ("kafka 4.3", "kafka 4.3")],
)
def test_a_world_may_have_any_name(
    spark: SparkSession, begun: Callable[[str, str], Any], tmp_path: Path, world: str, shown: str
) -> None:
    story = begun("o", "odd")
    story.rows = [row._replace(world=world) for row in story.rows]
    (row,) = rows(spark, story, tmp_path / "odd", "runs")
    assert json.loads(row["parameters"]) == {"world": shown}
