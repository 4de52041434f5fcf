"""A scenario on real brokers and simulated, with the same plans, and both distributions side by side."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import nearest_rank
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.checkers import all_checkers
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos.admin import Admin
from fencepost.simulation.lab.chaos.result import ChaosResult, Skipped
from fencepost.simulation.lab.chaos.run import WORLD, run_real
from fencepost.simulation.lab.chaos.time_scale import TimeScale, tempo
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.fidelity.fit import Fit, Latencies, fit
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.pipeline.output import whole_file
from fencepost.simulation.pipeline.progress import Progress, Silent
from fencepost.simulation.pipeline.session import LOCAL
from fencepost.simulation.pipeline.traces import TRACES
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.trace.parquet import ParquetTrace

SIMULATIONS: Final = 10
"""Simulated runs for each real one, of the same plan: what differs is chance on the way."""
_SEEDS_APART: Final = 1_000_003
_SHARES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of durations in seconds; null where there is nothing to measure."""

    count: int = 0
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Violated(Violation, frozen=True, kw_only=True):
    """An invariant that did not hold in one of the runs, whose trace has its name."""

    run: str


class ComparedWorld(msgspec.Struct, frozen=True, kw_only=True):
    """One world."""

    runs: int
    rebalances: Distribution
    """From the first raise of the group epoch until the group is Stable again."""
    downtime: Distribution
    """From one owner of a partition to the next."""
    heartbeat: Distribution
    """Round trips of heartbeats that changed nothing."""
    violations: int
    violated: list[Violated] = []
    """Each of them."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated over real; null where one of them has nothing."""

    rebalance_median: float | None
    rebalance_p90: float | None
    downtime_median: float | None
    downtime_p90: float | None
    heartbeat_median: float | None


class FidelityComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    scenario: str
    members: int
    partitions: int
    seeds: list[int]
    cluster: str
    nodes: int
    fitted: dict[str, str] | None
    """Settings of the latency model that was fitted, as `--set` takes them."""
    simulated: ComparedWorld
    real: ComparedWorld
    ratio: Ratio
    records_lost: int
    skipped: list[Skipped]
    out: str


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What was done on real brokers, to be simulated."""

    scenario: Scenario
    config: GroupCoordinatorConfig
    """The broker's."""
    plays: dict[int, TimeScale[Scenario]]
    """By seed, what was played."""
    results: list[ChaosResult]
    latencies: Latencies
    out: Path


async def play(
    scenario: Scenario,
    seeds: Sequence[int],
    cluster: RealCluster | str,
    *,
    duration_us: int,
    out: Path,
    progress: Progress | None = None,
) -> Played:
    """Play the scenario with each seed on the cluster. Traces go to the folder `traces` of `out`.

    :raises FencepostError: if the time is too short for the scenario, or other traces are in the folder.
    :raises EnvironmentLacks: as `run_real` does.
    """
    traces = out / TRACES
    if traces.is_dir() and any(traces.iterdir()):
        raise FencepostError(f"{traces}: holds traces already: expected a new folder")
    config = await _configuration(cluster)
    plays = {seed: tempo(scenario, seed, config, duration_us) for seed in seeds}
    latencies = Latencies()
    results: list[ChaosResult] = []
    traces.mkdir(parents=True, exist_ok=True)
    try:
        with (progress or Silent()).step("on brokers", len(seeds)) as advance:
            for seed in seeds:
                with _trace(traces, f"{WORLD}-{seed}") as trace:
                    result = await run_real(
                        scenario, seed, cluster, duration_us=duration_us, observers=[latencies], trace=trace
                    )
                results.append(result)
                advance(1)
    finally:
        with contextlib.suppress(OSError):  # it has traces, if only of the seeds before
            traces.rmdir()
    return Played(
        scenario=scenario, config=config, plays=plays, results=results, latencies=latencies, out=out
    )


def compare(
    played: Played,
    *,
    fitted: bool = False,
    report: Path | None = None,
    master: str = LOCAL,
    progress: Progress | None = None,
) -> FidelityComparison:
    """Simulate the plans that were played, with the broker's configuration, and analyse both worlds.

    With `fitted` the simulated network and log have the latencies that were measured.

    :raises FencepostError: if there is too little to fit a model to.
    :raises EnvironmentLacks: as `analyze` does.
    """
    model = fit(played.latencies, partial(_simulated_once, played)) if fitted else None
    latencies = Latencies()
    violated: list[Violated] = []
    runs = len(played.plays) * SIMULATIONS
    with (progress or Silent()).step("simulating", runs) as advance:
        for seed, tempo_ in played.plays.items():
            scenario = _simulable(tempo_.scenario, played.config, model)
            for number in range(SIMULATIONS):
                run_id = f"simulated-{seed}-{number}"
                with _trace(played.out / TRACES, run_id) as trace:
                    result = run(
                        scenario,
                        seed + number * _SEEDS_APART,
                        plan=tempo_.plan,
                        checkers=[*all_checkers(), latencies],
                        trace=trace,
                    )
                violated += _violated(result.violations, run_id)
                advance(1)
    only = ("rebalances", "downtime") if report is None else None
    tables = analyze(played.out, master=master, report=report, only=only, progress=progress)
    results = played.results
    ours = _side(tables, latencies, runs, violated, real=False)
    found = [each for result in results for each in _violated(result.violations, f"{WORLD}-{result.seed}")]
    theirs = _side(tables, played.latencies, len(results), found, real=True)
    return FidelityComparison(
        scenario=played.scenario.name,
        members=played.scenario.group.members,
        partitions=played.scenario.partitions,
        seeds=list(played.plays),
        cluster=results[0].cluster,
        nodes=results[0].nodes,
        fitted=None if model is None else model.settings,
        simulated=ours,
        real=theirs,
        ratio=_ratio(ours, theirs),
        records_lost=sum(result.records_lost for result in results),
        skipped=[skipped for result in results for skipped in result.skipped],
        out=str(played.out),
    )


def _simulated_once(played: Played, model: Fit) -> Latencies:
    """How long heartbeats take under a model, in one run of each plan."""
    latencies = Latencies()
    for seed, tempo_ in played.plays.items():
        scenario = _simulable(tempo_.scenario, played.config, model)
        run(scenario, seed, plan=tempo_.plan, checkers=[latencies])
    return latencies


async def _configuration(cluster: RealCluster | str) -> GroupCoordinatorConfig:
    if isinstance(cluster, str):
        await examine(cluster)
    admin = Admin(cluster if isinstance(cluster, str) else cluster.bootstrap_servers)
    try:
        return await admin.configuration()
    finally:
        await admin.close()


@contextlib.contextmanager
def _trace(folder: Path, run_id: str) -> Iterator[ParquetTrace]:
    with whole_file(folder / f"{run_id}.parquet") as path, ParquetTrace(path, run_id) as trace:
        yield trace


def _simulable(scenario: Scenario, config: GroupCoordinatorConfig, model: Fit | None) -> Scenario:
    """What was played, with the broker's configuration and the network that was measured."""
    scenario = msgspec.structs.replace(scenario, config=config.properties())
    return scenario if model is None else model.applied(scenario)


def _violated(violations: Sequence[Violation], run_id: str) -> list[Violated]:
    return [Violated(run=run_id, **msgspec.structs.asdict(each)) for each in violations]


def _side(
    tables: Tables, latencies: Latencies, runs: int, violated: list[Violated], *, real: bool
) -> ComparedWorld:
    return ComparedWorld(
        runs=runs,
        rebalances=_distribution(tables["rebalances"], real=real),
        downtime=_distribution([row for row in tables["downtime"] if row["cause"] == "all"], real=real),
        heartbeat=_measured([us / 1e6 for us in sorted(latencies.steady)]),
        violations=len(violated),
        violated=violated,
    )


def _distribution(rows: Sequence[dict[str, Any]], *, real: bool) -> Distribution:
    """The row of one world: the analyses tell other worlds than the simulated one by a parameter."""
    for row in rows:
        if (json.loads(row["parameters"]).get("world") == WORLD) == real:
            return Distribution(**{name: row[name] for name in Distribution.__struct_fields__})
    return Distribution()


def _measured(ordered: Sequence[float]) -> Distribution:
    if not ordered:
        return Distribution()
    at = {name: nearest_rank(ordered, share) for name, share in _SHARES.items()}
    return Distribution(count=len(ordered), **at)


def _ratio(ours: ComparedWorld, theirs: ComparedWorld) -> Ratio:
    return Ratio(
        rebalance_median=_over(ours.rebalances.median, theirs.rebalances.median),
        rebalance_p90=_over(ours.rebalances.p90, theirs.rebalances.p90),
        downtime_median=_over(ours.downtime.median, theirs.downtime.median),
        downtime_p90=_over(ours.downtime.p90, theirs.downtime.p90),
        heartbeat_median=_over(ours.heartbeat.median, theirs.heartbeat.median),
    )


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
