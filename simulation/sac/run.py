"""One run of a scenario of single active consumers, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fencepost.simulation.faults.draw import Draw
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.sac.coordination import SacCoordination
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.nemesis import SacNemesis
from fencepost.simulation.sac.observers import SacObserver
from fencepost.simulation.sac.trace_writer import SacTraceWriter
from fencepost.simulation.sac.world import SacWorld
from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.trace.rows import TraceRows


class SacRun(NamedTuple):
    """A world that is ready to run, what disturbs it, and what it measures."""

    world: SacWorld
    plan: Draw
    figures: Figures

    def begin(self) -> None:
        """Let it begin."""
        self.world.begin()
        SacNemesis(self.world, self.plan).begin()

    @property
    def counts(self) -> tuple[int, int, dict[str, float]]:
        """Commands that were answered, activations, and everything that was measured."""
        counts = self.figures.counts
        return counts["commands"], counts["activations"], self.figures.document()


def prepare(
    scenario: SacScenario,
    seed: int,
    plan: Draw,
    loop: VirtualLoop,
    recorder: TraceRows,
    *,
    observers: Iterable[SacObserver] = (),
) -> SacRun:
    """The world of a scenario and a seed, with the trace and all checkers; `observers` watch too."""
    figures = Figures()
    exclusive = Exclusive(figures)
    watching = [SacTraceWriter(recorder), exclusive, SacCoordination(figures, exclusive), *observers]
    world = SacWorld(
        scenario,
        seed,
        loop,
        members=plan.members,
        observers=watching,
        sequence=lambda: recorder.seq,
    )
    return SacRun(world, plan, figures)
