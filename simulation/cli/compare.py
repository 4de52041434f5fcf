"""`fencepost compare`: a scenario on real brokers and simulated, side by side."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Count, Json, Seed, new_folder, writable_results
from fencepost.simulation.cli.brokers import OwnNode, check_own, played_us, quiet_logs, reached
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.runs import GroupSize, ScenarioName, Settings
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.session import LOCAL, check_can_start
from fencepost.simulation.scenarios.load import DEFAULT, load_any

if TYPE_CHECKING:
    from fencepost.simulation.lab.fidelity.compare import FidelityComparison, Played

FAR_APART: Final = 4
"""The exit code if a figure differs and nothing worse was found."""


def compare(
    scenario: ScenarioName = DEFAULT,
    /,
    *,
    cluster: Annotated[
        str,
        Parameter(
            help="jvm or docker starts a cluster for this command. HOST:PORT uses a running cluster, and "
            "touches only the runs' own topics and group there: disturbances of brokers are skipped."
        ),
    ] = "jvm",
    own: OwnNode = OwnNode(),
    seed: Annotated[Seed, Parameter(help="The seed of the first plan.")] = 1,
    seeds: Annotated[Count, Parameter(help="Number of plans, played one after the other.")] = 1,
    size: GroupSize = GroupSize(),
    duration: Annotated[
        str, Parameter(help="The real time for each run: all times of the scenario shrink to fit.")
    ] = "60s",
    fit: Annotated[
        bool,
        Parameter(show_default=False, help="Simulate with the latencies measured on the brokers."),
    ] = False,
    tolerance: Annotated[
        float, Parameter(help="Allowed difference of a simulated median from the real one: 0.1 is 10 %.")
    ] = 0.1,
    tail_tolerance: Annotated[float, Parameter(help="The same for the 90th percentile.")] = 0.2,
    settings: Settings = (),
    master: Annotated[str, Parameter(help="Spark's master, for the analyses.")] = LOCAL,
    out: Annotated[Path, Parameter(help="The directory for both sets of traces.")] = Path("out/compare"),
    report: Annotated[Path | None, Parameter(help="Write an HTML page that compares both.")] = None,
    json: Json = False,
) -> int:
    """Run a scenario on real brokers, simulate the same plans, and compare the distributions of both.

    The simulated coordinator has the brokers' configuration. Exit code 1: an invariant was violated, or an
    acknowledged record was lost. Exit code 4: neither happened, but a figure differs by more than its
    tolerance.
    """
    from fencepost.simulation.lab.chaos.playable import playable
    from fencepost.simulation.lab.fidelity.compare import compare as simulate_too
    from fencepost.simulation.lab.fidelity.compare import play
    from fencepost.simulation.lab.fidelity.verdicts import Tolerances

    for option, given in (("--tolerance", tolerance), ("--tail-tolerance", tail_tolerance)):
        if not 0 < given < math.inf:
            raise FencepostError(f"{option} {given:g}: expected a number above 0, such as 0.1 for 10 %")
    check_own(cluster, own, settings)
    loaded = playable(load_any(scenario, overrides=settings, option="--set", **dataclasses.asdict(size)))
    length_us = played_us(duration)
    check_can_start(master)  # before minutes are spent on runs whose analysis then fails
    writable_results(out, report, make=new_folder)
    quiet_logs()
    progress = progress_for(json=json)

    async def played() -> Played:
        async with reached(cluster, own, loaded.config) as where:
            seeds_ = range(seed, seed + seeds)
            return await play(loaded, seeds_, where, duration_us=length_us, out=out, progress=progress)

    result = simulate_too(
        asyncio.run(played()),
        fitted=fit,
        tolerances=Tolerances(tolerance, tail_tolerance),
        report=report,
        master=master,
        progress=progress,
    )
    print_result(result, _print, report, json=json)
    if result.real.violations or result.simulated.violations or result.records_lost:
        return 1
    return FAR_APART if result.differs else 0


def _print(result: FidelityComparison, report: Path | None) -> None:
    from fencepost.simulation.lab.fidelity.tables import (
        DISTRIBUTION_HEADINGS,
        NAMES,
        VERDICT_HEADINGS,
        distribution_rows,
        verdict_row,
    )

    out = Terminal()
    place = "one broker" if result.nodes == 1 else f"{result.nodes} brokers"
    out.say(Text(f"{result.scenario}, {result.members} members, {result.partitions} partitions", "bold"))
    out.say(f"{result.real.runs} run{'s' * (result.real.runs > 1)} on {place} ({result.cluster}),")
    out.say(f"{result.simulated.runs} simulated of the same plans")
    out.say()
    out.table(DISTRIBUTION_HEADINGS, distribution_rows(result), names=NAMES)
    out.say()
    verdicts = [_coloured(verdict_row(each)) for each in result.judged]
    out.table(VERDICT_HEADINGS, verdicts, names=NAMES)
    out.say()
    for name, side in (("simulated", result.simulated), ("real", result.real)):
        if side.violations:
            counts = Counter(each.invariant for each in side.violated).most_common()
            which = ", ".join(f"{count:,} of {invariant}" for invariant, count in counts)
            out.say(Text(f"{side.violations:,} violations in the {name} runs: {which}", "red"))
    if result.records_lost:
        out.say(Text(f"{result.records_lost:,} acknowledged records were lost", "red"))
    for skipped in result.skipped:
        out.say(f"skipped on the brokers: {skipped.kind}, {skipped.times} times: {skipped.reason}")
    if result.fitted is not None:
        out.say("fitted, for simulate and campaign:")
        for key, value in result.fitted.items():
            out.say(f"  --set '{key}={value}'")
    out.say(f"Traces: {result.out}")
    if report is not None:
        out.say(f"Report: {report}")


def _coloured(row: list[str]) -> list[Text | str]:
    style = {"within": "green", "differs": "red"}.get(row[-1], "dim")
    return [*row[:-1], Text(row[-1], style)]
