"""What a checker of members may ask of its world, for histories made by hand."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from fencepost.simulation.scenarios.scenario import Scenario, ScenarioTopic
from fencepost.simulation.scenarios.values import Duration


def world_of_members(**fields: Any) -> Any:
    """Return a world whose hosts all run, and have no driver."""
    return SimpleNamespace(
        members=defaultdict(
            lambda: SimpleNamespace(driver=None, instance_id=None, status="running", wanted=True)
        ),
        hosts_by_member={"m": "m"},
        log_ends={},
        scenario=Scenario(duration=Duration(60_000_000), topics=(ScenarioTopic(name="x", partitions=3),)),
        **fields,
    )
