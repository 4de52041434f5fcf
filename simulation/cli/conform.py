"""`fencepost conform`: compares our coordinator with a broker or with recorded responses, rule by rule."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file
from fencepost.simulation.cli.arguments import Count, Json, Seed, given_options, only_with
from fencepost.simulation.cli.brokers import ClusterProfile, Kafka, OwnCluster, OwnNode, check_own, reached
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION
from fencepost.simulation.lab.conform.vectors import VectorReport, replay_vectors

if TYPE_CHECKING:
    from fencepost.simulation.lab.conform.lockstep import LockstepDifference
    from fencepost.simulation.lab.conform.schedule import Schedule
    from fencepost.simulation.lab.conform.suite import Report

SHOWN = 10
"""Differences that the terminal shows; JSON has them all."""


@Parameter(name="*")
@dataclass(frozen=True)
class ConformOptions:
    """Options of the comparison with a broker."""

    seed: Annotated[Seed, Parameter(help="Seed of the random schedules.")] = 0
    requests: Annotated[Count, Parameter(help="Minimum number of requests to compare.")] = 2_000
    profile: ClusterProfile = "fast"
    kafka: Kafka = KAFKA_VERSION
    schedules: Path | None = None
    """Run the schedules in this file instead, as an earlier difference printed them (JSON)."""


def conform(
    *,
    cluster: Annotated[
        str | None,
        Parameter(
            help="The broker to compare with: HOST:PORT of a running one, or jvm or docker to start one. It "
            "should be idle: topics and groups named fencepost-… are created and deleted."
        ),
    ] = None,
    asked: ConformOptions = ConformOptions(),
    vectors: Annotated[
        Path | None,
        Parameter(
            help="Compare with a file of recorded responses instead of a broker: JSON lines, may be gzip."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Send the same requests to our coordinator and to a real broker, and compare every response.

    Deliberate deviations are counted by name and are not differences.
    """
    if (cluster is None) == (vectors is None):
        raise FencepostError("expected one of --cluster and --vectors, to compare with")
    if vectors is not None:
        only_with("--cluster", *given_options(asked))
        recorded = replay_vectors(vectors)
        print_result(recorded, _print_vectors, json=json)
        return 1 if recorded.differences else 0
    assert cluster is not None
    own = OwnNode(profile=asked.profile, kafka=asked.kafka)
    check_own(cluster, own)
    report = asyncio.run(_compare(cluster, own, asked, json=json))
    print_result(report, _print, json=json)
    return 1 if report.differences else 0


async def _compare(cluster: str, own: OwnCluster, asked: ConformOptions, *, json: bool) -> Report:
    from fencepost.simulation.lab.conform.broker import JUDGE_PROPERTIES

    chosen = None if asked.schedules is None else _schedules(asked.schedules)
    async with reached(cluster, own, JUDGE_PROPERTIES) as where:
        servers = where if isinstance(where, str) else where.bootstrap_servers
        return await _judged(servers, asked.seed, asked.requests, chosen, json=json)


async def _judged(
    bootstrap: str, seed: int, requests: int, chosen: Sequence[Schedule] | None, *, json: bool
) -> Report:
    from fencepost.simulation.lab.conform.broker import ReferenceBroker
    from fencepost.simulation.lab.conform.scripts import scripted
    from fencepost.simulation.lab.conform.suite import Suite
    from fencepost.simulation.pipeline.progress import progress_for

    judge = await ReferenceBroker.connect(bootstrap)
    try:
        schedules = [*scripted(judge.config)] if chosen is None else chosen
        wanted = requests if chosen is None else 0
        total = max(wanted, sum(len(each.steps) for each in schedules))
        with progress_for(json=json, lines=True).step("comparing", total) as advance:
            suite = Suite(judge, f"fencepost-{secrets.token_hex(3)}", on_progress=advance)
            return await suite.run(schedules, seed=seed, requests=wanted)
    finally:
        await judge.close()


def _schedules(file: Path) -> list[Schedule]:
    from fencepost.simulation.lab.conform.schedule import schedules_of

    return schedules_of(read_file(file), str(file))


def _print(report: Report) -> None:
    from fencepost.simulation.lab.conform.exercised import NAMES

    out = Terminal()
    rows = [(one.rule, one.verdict, f"{one.requests:,}", NAMES.get(one.rule, "")) for one in report.rules]
    out.table(("rule", "verdict", "requests", "about"), rows)
    verdicts = Counter(one.verdict for one in report.rules)
    out.say(
        f"\nrequests compared: {report.requests:,} in {report.schedules:,} schedules, "
        f"differences: {len(report.differences):,}, timers too close to tell: {report.unclear:,}"
    )
    tested = len(report.rules) - verdicts["untested"]
    out.say(
        f"rules: {', '.join(f'{verdicts[name]} {name}' for name in ('pass', 'differ', 'untested'))}; "
        f"{tested / len(report.rules):.0%} tested"
    )
    for api in report.left_out:
        out.say(f"not sent: {api.api}, {api.requests:,} times; the broker's ApiVersions does not list it")
    for deviation in report.deviations:
        out.say(f"known deviation: {deviation.name}, {deviation.times:,} times")
    for difference in report.differences[:SHOWN]:
        _print_difference(out, difference)
    _print_rest(out, report.differences)


def _print_difference(out: Terminal, difference: LockstepDifference) -> None:
    out.say(f"\n{difference.rule}: step {difference.step + 1} of the schedule {difference.schedule.name!r}")
    for field in difference.fields:
        out.say(f"  {field}")
    out.say(f"  request {msgspec.json.encode(difference.request).decode()}")
    out.say("  again, with --schedules and a file of this line:")
    out.say(msgspec.json.encode(difference.schedule).decode())


def _print_rest(out: Terminal, differences: Sequence[object]) -> None:
    if len(differences) > SHOWN:
        out.say(f"  … and {len(differences) - SHOWN:,} more: --json has them all")


def _print_vectors(report: VectorReport) -> None:
    out = Terminal()
    broken = Counter(difference.rule for difference in report.differences)
    rows: Iterable[tuple[str, str, str]] = (
        (rule.rule, rule.verdict, str(broken[rule.rule] or "")) for rule in report.rules
    )
    out.table(("rule", "verdict", "differences"), rows)
    out.say(f"\nanswers compared: {report.requests:,}, differences: {len(report.differences):,}")
    for difference in report.differences[:SHOWN]:
        out.say(f"  {difference.rule}: {difference.schedule}")
    _print_rest(out, report.differences)
