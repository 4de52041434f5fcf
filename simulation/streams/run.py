"""One run of a scenario of Streams applications, in virtual time."""

from __future__ import annotations

from typing import NamedTuple

from fencepost.simulation.faults.draw import Draw
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.nemesis import StreamsNemesis
from fencepost.simulation.streams.world import StreamsWorld
from fencepost.simulation.trace.rows import TraceRows


class StreamsRun(NamedTuple):
    """A world that is ready to run, and what disturbs it."""

    world: StreamsWorld
    plan: Draw

    def begin(self) -> None:
        """Let it begin."""
        self.world.begin()
        StreamsNemesis(self.world, self.plan).begin()

    @property
    def counts(self) -> tuple[int, int, dict[str, float]]:
        """Heartbeats that were answered, rebalances, and everything else that was measured."""
        return self.world.heartbeats, self.world.rebalances, self.world.application.figures


def prepare(
    scenario: StreamsScenario, seed: int, plan: Draw, loop: VirtualLoop, recorder: TraceRows
) -> StreamsRun:
    """The world of a scenario and a seed, with the trace and all checks."""
    return StreamsRun(StreamsWorld(scenario, seed, loop, recorder), plan)
