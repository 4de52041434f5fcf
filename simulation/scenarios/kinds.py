"""Scenarios of any kind: the key `protocol` of a file names the kind."""

from __future__ import annotations

from typing import TypeAlias

from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario

AnyScenario: TypeAlias = Scenario | SacScenario | StreamsScenario
