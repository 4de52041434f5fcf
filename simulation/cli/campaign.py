"""`fencepost campaign`: many seeds of many scenarios, and analyses over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.analyze import print_tables
from fencepost.simulation.cli.arguments import Json, key_values, writable_results
from fencepost.simulation.cli.completion import scenario_names
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.interrupts import STOPPING, told_at_once
from fencepost.simulation.pipeline.campaign import CampaignResult, carry_out
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.session import LOCAL, check_can_start
from fencepost.simulation.pipeline.spec import (
    SEEDS,
    TIME_LIMIT,
    CampaignSpec,
    Traces,
    is_campaign_file,
    read_campaign,
    seconds_of,
)
from fencepost.simulation.pipeline.tasks import cells_of, parse_grid, parse_seeds
from fencepost.simulation.scenarios.load import library_names

SHOWN = ("runs", "rebalances", "downtime", "violations", "mutants")
"""Tables that the terminal shows; JSON and the report have them all."""


def campaign(
    *scenarios: Annotated[
        str,
        Parameter(
            completer=scenario_names,
            help="Scenarios of the library, or TOML files. Default: the whole library. Or one TOML file of a "
            "campaign: scenarios, grid, options, seeds.",
        ),
    ],
    seeds: Annotated[
        str | None,
        Parameter(help=f"A number of seeds (from 0 on), a range 10..29, or a list 1,5,9. Default: {SEEDS}."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            help="Override a scenario key in all runs: group.static=true. Repeatable.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        Parameter(
            help="KEY=A,B: run with each of these values. KEY is a key of --set, or members, partitions, "
            "duration or mutant. Repeatable; every combination runs."
        ),
    ] = None,
    master: Annotated[
        str, Parameter(help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")
    ] = LOCAL,
    out: Annotated[Path, Parameter(help="The directory for summaries and traces.")] = Path("out/campaign"),
    report: Annotated[Path | None, Parameter(help="The HTML file. Default: report.html in --out.")] = None,
    traces: Annotated[
        Traces | None,
        Parameter(
            help="The traces to keep. sample, the default, keeps some of each scenario, and those of runs "
            "that broke an invariant."
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        Parameter(help=f"The limit on the wall time of one run, such as 90s. Default: {TIME_LIMIT}."),
    ] = None,
    resume: Annotated[
        bool, Parameter(show_default=False, help="Keep the finished runs in --out, and run only the others.")
    ] = False,
    json: Json = False,
) -> int:
    """Run scenarios with many seeds on Spark, check each run after every event, then analyse and report.

    A run that raises an exception or hangs is a failed run, not a failed campaign. Exit code 1: a run failed,
    or an invariant was violated.
    """
    configure_logs()
    spec = _spec(scenarios, grid or [], settings or [])
    if seeds is not None:
        spec = msgspec.structs.replace(spec, seeds=parse_seeds(seeds, "--seeds"))
    if traces is not None:
        spec = msgspec.structs.replace(spec, traces=traces)
    if time_limit is not None:
        spec = msgspec.structs.replace(spec, time_limit_s=seconds_of(time_limit, "--time-limit"))
    check_can_start(master)
    writable_results(out, report)
    with told_at_once(f"{STOPPING}; finished runs are kept: continue with --resume"):
        result = carry_out(
            spec,
            master=master,
            out_dir=out,
            report=report,
            resume=resume,
            progress=progress_for(json=json, lines=True),
        )
    print_result(result, show_campaign, json=json)
    return 1 if result.violations or result.failed else 0


def _spec(scenarios: tuple[str, ...], grid: list[str], settings: list[str]) -> CampaignSpec:
    files = [each for each in scenarios if is_campaign_file(each)]
    if not files:
        names = scenarios or library_names()
        fixed, varied = key_values(settings, "--set"), parse_grid(grid)
        for key in fixed.keys() & varied.keys():
            raise FencepostError(f"--set {key}={fixed[key]}: is also in --grid")
        cells = cells_of(names, varied, fixed=fixed, places=dict.fromkeys(fixed, "--set"))
        return CampaignSpec(cells=cells, seeds=tuple(range(SEEDS)))
    if len(scenarios) > 1 or grid or settings:
        raise FencepostError(
            f"{files[0]}: is a campaign file: expected no other scenarios, no --grid and no --set"
        )
    return read_campaign(files[0])


def show_campaign(result: CampaignResult) -> None:
    """Print the tables that the terminal shows, and the totals of the campaign."""
    out = Terminal()
    print_tables(out, {name: result.tables[name] for name in SHOWN if name in result.tables})
    bad = result.failed + result.violations
    out.say(
        f"{result.runs:,} runs in {result.wall_seconds:.0f} s,",
        Text(f"{result.failed:,} failed, {result.violations:,} violations", "red" if bad else "green"),
    )
    for line in result.lost.lines:
        out.say(Text(line, "yellow"))
    for failure in result.failures:
        out.say(f"{failure.invariant} in {failure.run_id}: {failure.test or failure.failure}")
    out.say(f"Runs:   {result.out}")
    out.say(f"Report: {result.report}")
