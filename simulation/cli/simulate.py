"""`fencepost simulate`: one run of a scenario in virtual time."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from fencepost.simulation.cli.arguments import Json, Seed, key_values, writable_files
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.runs import (
    GroupSize,
    MutantName,
    RunOutputs,
    ScenarioName,
    Settings,
    length,
    say_violations,
    whole_percents,
)
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.failures.failure import failure_of
from fencepost.simulation.mutants.registry import with_mutant
from fencepost.simulation.pipeline.progress import Progress, progress_for
from fencepost.simulation.pipeline.tasks import simulate_command
from fencepost.simulation.pipeline.whole_files import write_whole
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import DEFAULT, load_any

if TYPE_CHECKING:
    from fencepost.simulation.faults.plan import FaultPlan
    from fencepost.simulation.scenarios.kinds import AnyScenario
    from fencepost.simulation.trace.schema import Row


def simulate(
    scenario: ScenarioName = DEFAULT,
    /,
    *,
    seed: Annotated[Seed, Parameter(help="The same seed gives the same run.")] = 1,
    size: GroupSize = GroupSize(),
    duration: Annotated[str | None, Parameter(help="Virtual time, such as 90s or 1h.")] = None,
    settings: Settings = (),
    outputs: RunOutputs = RunOutputs(),
    failure: Annotated[
        Path | None,
        Parameter(help="If an invariant is violated, write the file that `replay` and `shrink` read."),
    ] = None,
    mutant: MutantName = "",
    json: Json = False,
) -> int:
    """Simulate one run in virtual time: a group under faults, with its invariants checked after
    every event."""
    numbers = dataclasses.asdict(size)
    loaded = load_any(scenario, overrides=settings, duration=duration, option="--set", **numbers)
    files = {"--trace": outputs.trace, "--report": outputs.report, "--failure": failure}
    writable_files(files, read=scenario)
    configure_logs()
    options = {**numbers, "duration": duration}
    parameters = {name: str(value) for name, value in options.items() if value is not None}
    command = simulate_command(scenario, parameters | key_values(settings, "--set"), seed)
    if mutant:
        command += f" --mutant {shlex.quote(mutant)}"
    with with_mutant(mutant):
        result, rows = play(loaded, seed, outputs, progress_for(json=json))
    failed = failure if result.violations else None
    print_result(result, print_run, loaded, [f"Again:  {command}", *outputs.lines], failed, json=json)
    if failed is not None:
        more = {"group.members": size.members, "duration": duration}
        found = failure_of(
            scenario,
            seed,
            result.violations[0].invariant,
            overrides=[*settings, *(f"{key}={value}" for key, value in more.items() if value is not None)],
            partitions=size.partitions,
            mutant=mutant,
        )
        write_whole(failed, found.to_json() + "\n")
    write_report(result, rows, outputs.report, command)
    return 1 if result.violations else 0


def play(
    scenario: AnyScenario,
    seed: int,
    outputs: RunOutputs,
    progress: Progress,
    *,
    plan: FaultPlan | None = None,
) -> tuple[RunResult, Sequence[Row]]:
    """Run a scenario with a progress bar and its trace; return the rows too if a page needs them.

    `plan` replaces the plan that the seed would draw.
    """
    with (
        outputs.open(f"{scenario.name}-{seed}") as rows,
        progress.step("simulating", 100) as advance,
    ):
        told = whole_percents(advance)
        result = run(scenario, seed, plan=plan, trace=rows.writer, progress=told, raises=False)
    return result, rows.rows


def write_report(result: RunResult, rows: Sequence[Row], report: Path | None, command: str) -> None:
    """Write the page of a run, if one is wanted. This comes last: the result is printed even if it fails."""
    if report is not None:
        from fencepost.simulation.report.render import render_run_report, run_facts

        render_run_report(result, rows, report, command=command, facts=run_facts(result))


_UNSETTLED = (
    "The group was still moving when the run ended. The scenario itself makes it so: by a last phase that is"
    " too short (quiet), callbacks that outlast heartbeats, batches that outlast max.poll.interval.ms"
    " (application.processing, application.max_poll_records, group.rebalance_timeout), or messages that"
    " outlast requests (network.latency, network.request_timeout), sessions, or max.poll.interval.ms."
)


def print_run(
    result: RunResult, scenario: AnyScenario, last: Sequence[str], failure: Path | None = None
) -> None:
    """Print the result of a run for people."""
    out = Terminal()
    out.say(Text(f"{result.scenario}, seed {result.seed}", style="bold"))
    if scenario.summary:
        out.say(Text(scenario.summary, style="dim"))
    out.say()
    faster = result.virtual_seconds / result.wall_seconds if result.wall_seconds else 0
    facts: list[tuple[str, str | Text]] = [
        (
            "virtual time",
            f"{length(result.virtual_seconds)} in {result.wall_seconds:.1f} s ({faster:,.0f} times as fast)",
        ),
        ("members", f"{result.members:,}"),
        ("partitions", f"{result.partitions:,}"),
        ("events", f"{result.events:,}"),
        ("heartbeats", f"{result.heartbeats:,}"),
        ("rebalances", f"{result.rebalances:,}"),
        *((name.replace("_", " "), f"{value:,.6g}") for name, value in result.figures.items()),
        ("settled", Text("yes", "green") if result.converged else Text("no", "red")),
        ("violations", Text(f"{len(result.violations):,}", "red" if result.violations else "green")),
        ("digest", result.digest),
    ]
    out.table(("", ""), [(Text(name, "dim"), value) for name, value in facts], headed=False)
    say_violations(out, result.violations)
    if not result.converged and not result.violations and scenario.settles_unless_slow:
        out.say()
        out.say(_UNSETTLED)
    out.say()
    for line in last:
        out.say(line)
    if failure is not None:
        out.say(f"Failure: {failure}; make it small: {shlex.join(['fencepost', 'shrink', str(failure)])}")
