"""`fencepost simulate`: one run of a scenario in virtual time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fencepost.simulation.cli.arguments import Count, Json, Seed, key_values, writable_files
from fencepost.simulation.cli.completion import mutant_names, scenario_names
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.cli.runs import (
    TraceConfig,
    TraceTo,
    length,
    say_violations,
    trace_place,
    whole_percents,
)
from fencepost.simulation.pipeline.output import write_whole
from fencepost.simulation.pipeline.progress import Progress, progress_for
from fencepost.simulation.pipeline.tasks import simulate_command
from fencepost.simulation.scenarios.load import DEFAULT, load_any
from fencepost.simulation.trace.outputs import trace_outputs

if TYPE_CHECKING:
    from fencepost.simulation.faults.draw import Draw
    from fencepost.simulation.run import RunResult
    from fencepost.simulation.scenarios.kinds import AnyScenario
    from fencepost.simulation.trace.schema import Row
    from fencepost.simulation.trace.topic import TraceTopic


def simulate(
    scenario: Annotated[
        str, Parameter(help="A scenario of the library, or a TOML file.", completer=scenario_names)
    ] = DEFAULT,
    /,
    *,
    seed: Annotated[Seed, Parameter(help="The same seed gives the same run.")] = 1,
    members: Annotated[Count | None, Parameter(help="Members at the start.")] = None,
    partitions: Annotated[
        Count | None, Parameter(help="Total number of partitions, shared among the topics.")
    ] = None,
    duration: Annotated[str | None, Parameter(help="Virtual time, such as 90s or 1h.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", help="Override a scenario key: group.static=true. Repeatable."),
    ] = None,
    trace: Annotated[Path | None, Parameter(help="Write the trace to this Parquet file.")] = None,
    trace_topic: TraceTo = None,
    trace_config: TraceConfig = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML page with the run's timeline.")] = None,
    failure: Annotated[
        Path | None,
        Parameter(help="If an invariant is violated, write the file that `replay` and `shrink` read."),
    ] = None,
    mutant: Annotated[
        str,
        Parameter(help="Put a known bug back: one of `fencepost mutants --list`.", completer=mutant_names),
    ] = "",
    json: Json = False,
) -> int:
    """Simulate one run in virtual time: a group under faults, with its invariants checked after
    every event."""
    overrides = settings or []
    loaded = load_any(
        scenario,
        overrides=overrides,
        members=members,
        partitions=partitions,
        duration=duration,
        option="--set",
    )
    writable_files({"--trace": trace, "--report": report, "--failure": failure}, read=scenario)
    configure_logs()
    place = trace_place(trace_topic, trace_config)
    options = {"members": members, "partitions": partitions, "duration": duration}
    parameters = {name: str(value) for name, value in options.items() if value is not None}
    command = simulate_command(scenario, parameters | key_values(overrides, "--set"), seed)
    if mutant:
        command += f" --mutant {shlex.quote(mutant)}"
    with _bug(mutant):
        result, rows = play(
            loaded,
            seed,
            trace=trace,
            place=place,
            keep_rows=report is not None,
            progress=progress_for(json=json),
        )
    if json:
        print_json(result)
    else:
        print_run(result, loaded, command, trace, report, failure=failure if result.violations else None)
    if failure is not None and result.violations:
        more = {"group.members": members, "duration": duration}
        _keep(
            failure,
            scenario,
            result,
            overrides=[*overrides, *(f"{key}={value}" for key, value in more.items() if value is not None)],
            partitions=partitions,
            mutant=mutant,
        )
    write_report(result, rows, report, command)
    return 1 if result.violations else 0


def _bug(mutant: str) -> AbstractContextManager[object]:
    if not mutant:
        return nullcontext()
    from fencepost.simulation.mutants.registry import with_mutant

    return with_mutant(mutant)


def _keep(
    file: Path,
    source: str,
    result: RunResult,
    *,
    overrides: Sequence[str],
    partitions: int | None,
    mutant: str,
) -> None:
    from fencepost.simulation.failures.failure import failure_of

    found = failure_of(
        source,
        result.seed,
        result.violations[0].invariant,
        overrides=overrides,
        partitions=partitions,
        mutant=mutant,
    )
    write_whole(file, found.to_json() + "\n")


def play(
    scenario: AnyScenario,
    seed: int,
    *,
    plan: Draw | None = None,
    trace: Path | None,
    place: TraceTopic | None = None,
    keep_rows: bool,
    progress: Progress,
) -> tuple[RunResult, Sequence[Row]]:
    """Run a scenario with a progress bar and its trace; return the rows too if a page needs them.

    `plan` replaces the plan that the seed would draw.
    """
    from fencepost.simulation.run import run

    run_id = f"{scenario.name}-{seed}"
    with (
        trace_outputs(run_id, trace, place, keep=keep_rows) as rows,
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
    result: RunResult,
    scenario: AnyScenario,
    command: str,
    trace: Path | None,
    report: Path | None,
    *,
    failure: Path | None = None,
) -> None:
    """Print the result of a run for people."""
    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal

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
    out.say(f"Again:  {command}")
    if trace is not None:
        out.say(f"Trace:  {trace}")
    if report is not None:
        out.say(f"Report: {report}")
    if failure is not None:
        out.say(f"Failure: {failure}; make it small: {shlex.join(['fencepost', 'shrink', str(failure)])}")
