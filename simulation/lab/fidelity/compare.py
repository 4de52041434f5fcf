"""A scenario on real brokers and simulated, with the same plans, and both distributions side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import nearest_rank
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.judge import all_judges
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos.admin import Admin
from fencepost.simulation.lab.chaos.kept import WORLD
from fencepost.simulation.lab.chaos.result import ChaosResult, Skipped
from fencepost.simulation.lab.chaos.run import run_real
from fencepost.simulation.lab.chaos.run_kinds import as_played
from fencepost.simulation.lab.chaos.time_scale import TimeScale, tempo
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.fidelity.fit import Fit, Latencies, fit
from fencepost.simulation.lab.fidelity.samples import read_samples
from fencepost.simulation.lab.fidelity.tables import comparison_grids
from fencepost.simulation.lab.fidelity.verdicts import (
    FIGURES,
    FidelityVerdict,
    Judged,
    Measured,
    TimedValue,
    Tolerances,
    judge,
)
from fencepost.simulation.pipeline.analyze import analyze
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.session import LOCAL
from fencepost.simulation.pipeline.traces import TRACES
from fencepost.simulation.pipeline.whole_files import whole_file
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.trace.parquet import ParquetTrace

PlayedScenario: TypeAlias = Scenario | StreamsScenario

SIMULATIONS: Final = 10
"""Number of simulated runs for each real one, with the same plan: they differ only by chance."""
_SEEDS_APART: Final = 1_000_003
_SHARES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of durations in seconds; null if there is nothing to measure."""

    count: int = 0
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Violated(Violation, frozen=True, kw_only=True):
    """An invariant that did not hold in one of the runs, whose trace has its name."""

    run: str


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
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
    """All violations."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated over real; null if one of them has no values. `judged` says how sure that is."""

    rebalance_median: float | None
    rebalance_p90: float | None
    downtime_median: float | None
    downtime_p90: float | None
    heartbeat_median: float | None

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Ratio:
        """Return the ratios of what was judged."""
        ratios = {f"{each.figure.removesuffix('s')}_{each.quantile}": each.ratio for each in judged}
        return cls(**{name: ratios[name] for name in cls.__struct_fields__})


class FidelityComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison."""

    scenario: str
    members: int
    partitions: int
    seeds: list[int]
    cluster: str
    nodes: int
    fitted: dict[str, str] | None
    """Settings of the latency model that was fitted, as `--set` takes them."""
    simulated: ComparedSide
    real: ComparedSide
    ratio: Ratio
    judged: list[Judged]
    """The verdict on each figure."""
    records_lost: int
    skipped: list[Skipped]
    out: str

    @property
    def differs(self) -> bool:
        """True if a figure surely differs from the real one by more than is tolerated."""
        return any(each.verdict is FidelityVerdict.DIFFERS for each in self.judged)


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """The runs on real brokers, which are to be simulated."""

    scenario: PlayedScenario
    config: GroupCoordinatorConfig
    """The broker's configuration."""
    plays: dict[int, TimeScale[Any]]
    """The played scenario and plan, by seed."""
    results: list[ChaosResult]
    latencies: Latencies
    out: Path


async def play(
    scenario: PlayedScenario,
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
        with (progress or Progress()).step("on brokers", len(seeds)) as advance:
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
    tolerances: Tolerances | None = None,
    report: Path | None = None,
    master: str = LOCAL,
    progress: Progress | None = None,
) -> FidelityComparison:
    """Simulate the plans that were played, with the broker's configuration, and analyse both worlds.

    With `fitted` the simulated network and log have the latencies that were measured. Each figure is judged
    by the tolerances.

    :raises FencepostError: if there is too little to fit a model to.
    :raises EnvironmentLacks: as `analyze` does.
    """
    model = fit(played.latencies, partial(_simulated_once, played)) if fitted else None
    latencies = Latencies()
    violated: list[Violated] = []
    runs = len(played.plays) * SIMULATIONS
    with (progress or Progress()).step("simulating", runs) as advance:
        for seed, tempo_ in played.plays.items():
            scenario = _simulable(tempo_.scenario, played.config, model)
            for number in range(SIMULATIONS):
                run_id = f"simulated-{seed}-{number}"
                with _trace(played.out / TRACES, run_id) as trace:
                    result = run(
                        scenario,
                        seed + number * _SEEDS_APART,
                        plan=tempo_.plan,
                        judges=[*_judges(scenario), latencies],
                        trace=trace,
                    )
                violated += _violated(result.violations, run_id)
                advance(1)
    with (progress or Progress()).step("comparing", 1) as advance:
        measured = read_samples(played.out, master)
        simulated = _of_world(measured, latencies, real=False)
        real = _of_world(measured, played.latencies, real=True)
        judged = judge(simulated, real, tolerances or Tolerances())
        advance(1)
    results = played.results
    found = [each for result in results for each in _violated(result.violations, f"{WORLD}-{result.seed}")]
    compared = FidelityComparison(
        scenario=played.scenario.name,
        members=played.scenario.group.members,
        partitions=played.scenario.partitions,
        seeds=list(played.plays),
        cluster=results[0].cluster,
        nodes=results[0].nodes,
        fitted=None if model is None else model.settings,
        simulated=_side(simulated, runs, violated),
        real=_side(real, len(results), found),
        ratio=Ratio.of(judged),
        judged=judged,
        records_lost=sum(result.records_lost for result in results),
        skipped=[skipped for result in results for skipped in result.skipped],
        out=str(played.out),
    )
    if report is not None:
        title = f"{played.scenario.name}, on real brokers and simulated"
        first = comparison_grids(compared)
        analyze(played.out, master=master, report=report, title=title, answer=first, progress=progress)
    return compared


def _simulated_once(played: Played, model: Fit) -> Latencies:
    """Return the durations of heartbeats under a model, in one run of each plan."""
    latencies = Latencies()
    for seed, tempo_ in played.plays.items():
        scenario = _simulable(tempo_.scenario, played.config, model)
        run(scenario, seed, plan=tempo_.plan, judges=[latencies])
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


def _simulable(scenario: PlayedScenario, config: GroupCoordinatorConfig, model: Fit | None) -> PlayedScenario:
    """Return the played scenario, with the broker's configuration and the network that was measured."""
    scenario = msgspec.structs.replace(scenario, config=config.properties())
    if isinstance(scenario, StreamsScenario) and scenario.group.protocol == "classic":
        scenario = as_played(scenario, config)
    return scenario if model is None else model.applied(scenario)


def _violated(violations: Sequence[Violation], run_id: str) -> list[Violated]:
    return [Violated(run=run_id, **msgspec.structs.asdict(each)) for each in violations]


def _judges(scenario: PlayedScenario) -> Sequence[Any]:
    """Return the judges of consumers and classic members. An application has its own judges."""
    return all_judges(scenario.protocols) if isinstance(scenario, Scenario) else ()


def _of_world(measured: Measured, latencies: Latencies, *, real: bool) -> dict[str, list[TimedValue]]:
    """Return the measurements of the runs of one world, whose ids begin with its name."""
    chosen = {
        figure: [each for each in values if each.run.startswith(f"{WORLD}-") is real]
        for figure, values in measured.items()
    }
    return chosen | {"heartbeats": latencies.beats}


def _side(measured: Measured, runs: int, violated: list[Violated]) -> ComparedSide:
    rebalances, downtime, heartbeat = (
        _distribution(sorted(each.seconds for each in measured[figure])) for figure in FIGURES
    )
    return ComparedSide(
        runs=runs,
        rebalances=rebalances,
        downtime=downtime,
        heartbeat=heartbeat,
        violations=len(violated),
        violated=violated,
    )


def _distribution(ordered: Sequence[float]) -> Distribution:
    if not ordered:
        return Distribution()
    at = {name: nearest_rank(ordered, share) for name, share in _SHARES.items()}
    return Distribution(count=len(ordered), **at)
