"""`fencepost chaos`: one run of a scenario on real brokers, in real time."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fencepost.simulation.cli.arguments import Count, Json, Seed, writable_files
from fencepost.simulation.cli.brokers import (
    OWN_CLUSTERS,
    Kafka,
    Nodes,
    Profile,
    check_own,
    played_us,
    quiet_logs,
    reached,
)
from fencepost.simulation.cli.completion import scenario_names
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.cli.runs import (
    TraceConfig,
    TraceTo,
    length,
    say_violations,
    trace_place,
    whole_percents,
)
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION
from fencepost.simulation.pipeline.progress import Progress, progress_for
from fencepost.simulation.scenarios.load import DEFAULT, load_any
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.trace.outputs import TraceOutputs, trace_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal
    from fencepost.simulation.lab.chaos.result import ChaosResult
    from fencepost.simulation.lab.clusters.cluster import RealCluster
    from fencepost.simulation.scenarios.streams import StreamsScenario


def chaos(
    scenario: Annotated[
        str, Parameter(help="A scenario of the library, or a TOML file.", completer=scenario_names)
    ] = DEFAULT,
    /,
    *,
    cluster: Annotated[
        str,
        Parameter(
            help="jvm or docker starts a cluster for this command. HOST:PORT uses a running cluster, and "
            "touches only the run's own topics and group there: disturbances of brokers are skipped."
        ),
    ] = "jvm",
    nodes: Nodes = 3,
    profile: Profile = "fast",
    kafka: Kafka = KAFKA_VERSION,
    client: Annotated[
        Literal["fencepost", "confluent"],
        Parameter(help="The members' client: KIP848Consumer, or confluent-kafka's consumer."),
    ] = "fencepost",
    seed: Annotated[Seed, Parameter(help="The same seed gives the same plan as in simulation.")] = 1,
    members: Annotated[Count | None, Parameter(help="Members at the start.")] = None,
    partitions: Annotated[
        Count | None, Parameter(help="Total number of partitions, shared among the topics.")
    ] = None,
    duration: Annotated[
        str, Parameter(help="The real time for the run: all times of the scenario shrink to fit.")
    ] = "60s",
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", help="Override a scenario key: group.static=true. Repeatable."),
    ] = None,
    trace: Annotated[Path | None, Parameter(help="Write the trace to this Parquet file.")] = None,
    trace_topic: TraceTo = None,
    trace_config: TraceConfig = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML page with the run's timeline.")] = None,
    json: Json = False,
) -> int:
    """Run a scenario on real brokers with real records, and with the plan, checkers and trace of `simulate`.

    Members are processes that are killed and stopped. Brokers are killed and paused, and a proxy disturbs
    the network between them. Exit code 1: an invariant was violated, or an acknowledged record was lost.
    """
    from fencepost.simulation.lab.chaos.playable import playable

    overrides = settings or []
    own = {"--nodes": (nodes, 3), "--profile": (profile, "fast"), "--kafka": (kafka, KAFKA_VERSION)}
    check_own(cluster, own, overrides)
    loaded = playable(
        load_any(scenario, overrides=overrides, members=members, partitions=partitions, option="--set"),
        client,
    )
    length_us = played_us(duration)
    writable_files({"--trace": trace, "--report": report}, read=scenario)
    quiet_logs()
    place = trace_place(trace_topic, trace_config)
    given: dict[str, object] = {
        "cluster": cluster,
        **({"nodes": nodes, "profile": profile, "kafka": kafka} if cluster in OWN_CLUSTERS else {}),
        "client": client,
        "seed": seed,
        "members": members,
        "partitions": partitions,
        "duration": duration,
    }
    command = _command(scenario, given, overrides)
    with trace_outputs(f"{loaded.name}-{seed}-real", trace, place, keep=report is not None) as rows:
        result = asyncio.run(
            _run(
                loaded,
                seed,
                reached(cluster, nodes, profile, kafka, loaded.config),
                client=client,
                duration_us=length_us,
                rows=rows,
                progress=progress_for(json=json),
            )
        )
    if report is not None:
        from fencepost.simulation.report.render import render_run_report

        render_run_report(result, rows.rows, report, command=command, facts=_on_page(result, loaded))
    if json:
        print_json(result)
    else:
        _print(result, loaded, [f"Again:  {command}", *_files(trace, report)])
    return 1 if result.violations or result.records_lost else 0


async def _run(
    scenario: Scenario | StreamsScenario,
    seed: int,
    cluster: AbstractAsyncContextManager[RealCluster | str],
    *,
    client: Literal["fencepost", "confluent"],
    duration_us: int,
    rows: TraceOutputs,
    progress: Progress,
) -> ChaosResult:
    from fencepost.simulation.lab.chaos.run import run_real

    async with cluster as where:
        rows.begin_now()
        with progress.step("playing", 100) as advance:
            return await run_real(
                scenario,
                seed,
                where,
                client=client,
                duration_us=duration_us,
                trace=rows.writer,
                progress=whole_percents(advance),
            )


def _command(scenario: str, given: dict[str, object], overrides: Sequence[str]) -> str:
    """Return the command that repeats the run, for a shell."""
    words = ["fencepost", "chaos", scenario]
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    for each in overrides:
        words += ["--set", each]
    return shlex.join(words)


def _files(trace: Path | None, report: Path | None) -> list[str]:
    found = {"Trace: ": trace, "Report:": report}
    return [f"{name} {path}" for name, path in found.items() if path is not None]


def _print(result: ChaosResult, scenario: Scenario | StreamsScenario, last: Sequence[str]) -> None:
    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal

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
    from rich.text import Text

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
    from rich.text import Text

    return Text(f"{number:,}", "red" if number else "green")


def _say_skipped(out: Terminal, result: ChaosResult) -> None:
    if result.skipped:
        out.say()
        rows = [(one.kind, f"{one.times:,}", one.reason) for one in result.skipped]
        out.table(("skipped", "times", "because"), rows)
