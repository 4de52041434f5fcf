"""`fencepost campaign`: many seeds of many scenarios, and what they have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fencepost.simulation.cli.analyze import print_tables
from fencepost.simulation.cli.arguments import Count, Json, writable_file, writable_folder
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.pipeline.campaign import CampaignResult, Traces
from fencepost.simulation.pipeline.campaign import campaign as run_campaign
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.session import LOCAL
from fencepost.simulation.scenarios.load import library

REPORT = "report.html"
SHOWN = ("runs", "rebalances", "downtime", "violations")
"""Tables that people see; JSON and the report have them all."""


def campaign(
    *scenarios: Annotated[
        str, Parameter(help="Scenarios of the library, or TOML files; without, the whole library.")
    ],
    seeds: Annotated[Count, Parameter(help="How many seeds of each, from 0 on.")] = 100,
    grid: Annotated[
        list[str] | None,
        Parameter(
            help="KEY=A,B: each of these values; KEY is as for simulate's --set, or members, partitions or "
            "duration. Repeatable; every combination runs."
        ),
    ] = None,
    master: Annotated[
        str, Parameter(help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")
    ] = LOCAL,
    out: Annotated[Path, Parameter(help="The directory for summaries and traces.")] = Path("out/campaign"),
    report: Annotated[Path | None, Parameter(help="The HTML file; by default report.html in --out.")] = None,
    traces: Annotated[
        Traces,
        Parameter(
            help="Whose traces are kept; sample: some of each, and those of runs that broke an invariant."
        ),
    ] = "sample",
    resume: Annotated[
        bool, Parameter(show_default=False, help="Keep the finished runs of --out, run the others.")
    ] = False,
    json: Json = False,
) -> int:
    """Many runs on Spark, each checked after every event, then the analyses and a report.

    A run that raises is a failed run, not a failed campaign. Any failed run or violation gives exit code 1.
    """
    writable_folder(out, "--out")
    writable_file(report, "--report")
    configure_logs()
    result = run_campaign(
        scenarios or [entry.name for entry in library()],
        seeds=seeds,
        grid=grid or (),
        master=master,
        out_dir=out,
        report=report or out / REPORT,
        resume=resume,
        traces=traces,
        progress=progress_for(json=json),
    )
    if json:
        print_json(result)
    else:
        _print(result)
    return 1 if result.violations or result.failed else 0


def _print(result: CampaignResult) -> None:
    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal

    out = Terminal()
    print_tables(out, {name: result.tables[name] for name in SHOWN if name in result.tables})
    bad = result.failed + result.violations
    out.say(
        f"{result.runs:,} runs in {result.wall_seconds:.0f} s,",
        Text(f"{result.failed:,} failed, {result.violations:,} violations", "red" if bad else "green"),
    )
    for failure in result.failures:
        out.say(f"{failure.invariant} in {failure.run_id}: {failure.test or failure.failure}")
    out.say(f"Runs:   {result.out}")
    out.say(f"Report: {result.report}")
