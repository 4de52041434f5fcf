"""`fencepost chaos`: one run of a scenario on real brokers, in real time."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from fencepost.simulation.cli.arguments import Json, Seed, writable_files
from fencepost.simulation.cli.brokers import (
    OWN_CLUSTERS,
    OwnCluster,
    check_own,
    played_us,
    quiet_logs,
    reached,
)
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.runs import (
    GroupSize,
    RunOutputs,
    ScenarioName,
    Settings,
    length,
    say_violations,
    whole_percents,
)
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.scenarios.load import DEFAULT, load_any
from fencepost.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.simulation.lab.chaos.result import ChaosResult
    from fencepost.simulation.scenarios.streams import StreamsScenario
    from fencepost.simulation.trace.outputs import TraceOutputs


def chaos(
    scenario: ScenarioName = DEFAULT,
    /,
    *,
    cluster: Annotated[
        str,
        Parameter(
            help="jvm or docker starts a cluster for this command. HOST:PORT uses a running cluster, and "
            "touches only the run's own topics and group there: disturbances of brokers are skipped."
        ),
    ] = "jvm",
    own: OwnCluster = OwnCluster(),
    client: Annotated[
        Literal["fencepost", "confluent"],
        Parameter(help="The members' client: KIP848Consumer, or confluent-kafka's consumer."),
    ] = "fencepost",
    seed: Annotated[Seed, Parameter(help="The same seed gives the same plan as in simulation.")] = 1,
    size: GroupSize = GroupSize(),
    duration: Annotated[
        str, Parameter(help="The real time for the run: all times of the scenario shrink to fit.")
    ] = "60s",
    settings: Settings = (),
    outputs: RunOutputs = RunOutputs(),
    keep: Annotated[
        Path | None, Parameter(help="Write all that the judges got to this file, for --judge.")
    ] = None,
    judge: Annotated[
        Path | None,
        Parameter(
            help="Judge a run again that --keep wrote, with the judges of this version. Starts nothing: "
            "only --trace, --report and --json count."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Run a scenario on real brokers with real records, and with the plan, judges and trace of `simulate`.

    Members are processes that are killed and stopped. Brokers are killed and paused, and a proxy disturbs
    the network between them. Exit code 1: an invariant was violated, or an acknowledged record was lost.
    """
    from fencepost.simulation.lab.chaos.playable import playable
    from fencepost.simulation.lab.chaos.run import run_again, run_real

    files = {"--trace": outputs.trace, "--report": outputs.report}
    if judge is not None:
        writable_files(files, read=judge)
        with outputs.open(f"{judge.stem}-again") as rows:
            rows.begin_now()
            run, result = run_again(judge, trace=rows.writer)
        command = shlex.join(["fencepost", "chaos", "--judge", str(judge)])
        return _show(result, run.scenario, rows, command, outputs, json=json)
    check_own(cluster, own, settings)
    numbers = dataclasses.asdict(size)
    loaded = playable(load_any(scenario, overrides=settings, option="--set", **numbers), client)
    length_us = played_us(duration)
    writable_files({**files, "--keep": keep}, read=scenario)
    quiet_logs()
    given: dict[str, object] = {
        "cluster": cluster,
        **(dataclasses.asdict(own) if cluster in OWN_CLUSTERS else {}),
        "client": client,
        "seed": seed,
        **numbers,
        "duration": duration,
    }
    command = _command(scenario, given, settings)
    with outputs.open(f"{loaded.name}-{seed}-real") as rows:

        async def played() -> ChaosResult:
            async with reached(cluster, own, loaded.config) as where:
                rows.begin_now()
                with progress_for(json=json).step("playing", 100) as advance:
                    told = whole_percents(advance)
                    return await run_real(
                        loaded,
                        seed,
                        where,
                        client=client,
                        duration_us=length_us,
                        trace=rows.writer,
                        progress=told,
                        keep_in=keep,
                    )

        result = asyncio.run(played())
    return _show(result, loaded, rows, command, outputs, json=json)


def _show(
    result: ChaosResult,
    scenario: Scenario | StreamsScenario,
    rows: TraceOutputs,
    command: str,
    outputs: RunOutputs,
    *,
    json: bool,
) -> int:
    """Show a result on a page, in JSON or to people. Return the exit code."""
    if outputs.report is not None:
        from fencepost.simulation.report.render import render_run_report

        facts = _on_page(result, scenario)
        render_run_report(result, rows.rows, outputs.report, command=command, facts=facts)
    print_result(result, _print, scenario, [f"Again:  {command}", *outputs.lines], json=json)
    return 1 if result.violations or result.records_lost else 0


def _command(scenario: str, given: dict[str, object], overrides: Sequence[str]) -> str:
    """Return the command that repeats the run, for a shell."""
    words = ["fencepost", "chaos", scenario]
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    for each in overrides:
        words += ["--set", each]
    return shlex.join(words)


def _print(result: ChaosResult, scenario: Scenario | StreamsScenario, last: Sequence[str]) -> None:
    out = Terminal()
    out.say(Text(f"{result.scenario}, seed {result.seed}, on {_place(result)}", style="bold"))
    if scenario.summary:
        out.say(Text(scenario.summary, style="dim"))
    out.say(
        f"{length(scenario.duration.us / 1e6)} of the scenario were played {result.speed:.1f} times as fast."
    )
    out.say()
    facts = _facts(result, scenario)
    out.table(("", ""), [(Text(name, "dim"), value) for name, value in facts], headed=False)
    say_violations(out, result.violations)
    _say_skipped(out, result)
    out.say()
    for line in last:
        out.say(line)


def _facts(result: ChaosResult, scenario: Scenario | StreamsScenario) -> list[tuple[str, str | Text]]:
    """Return the facts about a run that the terminal and the page show."""
    return [
        ("time", f"{length(result.virtual_seconds)}, {length(result.wall_seconds)} with start and end"),
        (
            scenario.members_are,
            f"{result.members:,} of {result.client}",
        ),
        ("partitions", f"{result.partitions:,}"),
        ("heartbeats", f"{result.heartbeats:,}"),
        ("rebalances", f"{result.rebalances:,}"),
        ("settled", Text("yes", "green") if result.converged else Text("no", "red")),
        ("records", f"{result.records_sent:,} acknowledged, {result.records_duplicated:,} processed again"),
        ("records lost", _count(result.records_lost)),
        ("violations", _count(len(result.violations))),
        *(
            ("records processed" if name == "records" else name.replace("_", " "), f"{value:,.6g}")
            for name, value in result.figures.items()
        ),
        ("digest", result.digest),
    ]


def _on_page(result: ChaosResult, scenario: Scenario | StreamsScenario) -> list[tuple[str, str]]:
    """Return the facts at the top of a report."""
    skipped = ", ".join(f"{one.kind} {one.times:,} times" for one in result.skipped)
    return [
        ("scenario", result.scenario),
        ("seed", str(result.seed)),
        ("played on", _place(result)),
        ("times as fast", f"{result.speed:.1f}"),
        *((name, str(value)) for name, value in _facts(result, scenario)),
        ("skipped", skipped or "nothing"),
    ]


def _place(result: ChaosResult) -> str:
    brokers = "one broker" if result.nodes == 1 else f"{result.nodes} brokers"
    return f"{brokers} ({result.cluster})"


def _count(number: int) -> Text:
    return Text(f"{number:,}", "red" if number else "green")


def _say_skipped(out: Terminal, result: ChaosResult) -> None:
    if result.skipped:
        out.say()
        rows = [(one.kind, f"{one.times:,}", one.reason) for one in result.skipped]
        out.table(("skipped", "times", "because"), rows)
