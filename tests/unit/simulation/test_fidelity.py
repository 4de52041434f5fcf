"""A model that was fitted gives back what was measured, and equal worlds compare as equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.chaos.time_scale import tempo
from fencepost.simulation.lab.fidelity import compare as fidelity
from fencepost.simulation.lab.fidelity.compare import Played, compare
from fencepost.simulation.lab.fidelity.fit import LEAST_ROUND_TRIPS, Fit, Latencies, _times, fit
from fencepost.simulation.pipeline.traces import TRACES
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.scenarios.values import Span
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import Row


def measured(*settings: str, scenario: str = "scale-up-and-down") -> Latencies:
    latencies = Latencies()
    run(load(scenario, overrides=list(settings), duration="10m"), 3, checkers=[latencies])
    return latencies


def simulated(model: Fit) -> Latencies:
    return measured(*(f"{key}={value}" for key, value in model.settings.items()))


@pytest.mark.parametrize(("median", "p99"), [("1ms", "3ms"), ("2ms", "80ms"), ("30ms", "200ms")])
def test_a_fitted_model_takes_as_long_as_what_it_was_fitted_to(median: str, p99: str) -> None:
    latency = f'network.latency={{median = "{median}", p99 = "{p99}"}}'
    before = measured(latency, "cluster.replication=20ms")
    after = simulated(fit(before, simulated))
    for share, tolerance in ((0.5, 0.1), (0.9, 0.25)):
        for one, other in ((before.steady, after.steady), (before.written, after.written)):
            assert at(other, share) == pytest.approx(at(one, share), rel=tolerance)


def test_the_best_of_the_models_that_were_tried_is_taken() -> None:
    wanted = Latencies()
    wanted.steady.extend([1_000] * LEAST_ROUND_TRIPS)
    wanted.written.extend([3_000] * LEAST_ROUND_TRIPS)
    off = Latencies()
    off.steady.extend([2_000] * LEAST_ROUND_TRIPS)
    off.written.extend([9_000] * LEAST_ROUND_TRIPS)
    tried: list[Fit] = []

    def simulate(model: Fit) -> Latencies:
        tried.append(model)
        return wanted if len(tried) == 3 else off

    assert fit(wanted, simulate) == tried[2]


def at(values: list[int], share: float) -> int:
    return sorted(values)[int(share * len(values))]


KEEPALIVE = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=4)
FULL = msgspec.structs.replace(KEEPALIVE, topic_partitions={})
AT_4 = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=4)
AT_5 = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=5)
FENCED = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
COMMIT = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=4, offsets={})


@pytest.mark.parametrize(
    ("request_", "response", "steady", "written"),
    [
        (KEEPALIVE, AT_4, [70], []),
        (KEEPALIVE, AT_5, [], [70]),
        (FULL, AT_5, [], [70]),
        (FULL, AT_4, [], []),  # it may have made the coordinator write, or not
        (KEEPALIVE, FENCED, [], []),
        (KEEPALIVE, TimeoutError(), [], []),
        (COMMIT, OffsetCommitResponse(errors={}), [], []),
    ],
)
def test_only_answered_heartbeats_count(
    request_: Request, response: Response | Exception, steady: list[int], written: list[int]
) -> None:
    latencies = Latencies()
    latencies.on_member_request("host", request_, 30)
    latencies.on_member_response("host", request_, response, 100)
    assert (latencies.steady, latencies.written) == (steady, written)


def test_each_host_has_its_own_round_trips() -> None:
    latencies = Latencies()
    for host, sent_us in (("one", 10), ("two", 20)):
        latencies.on_member_request(host, KEEPALIVE, sent_us)
    latencies.on_member_response("two", KEEPALIVE, AT_4, 50)
    latencies.on_member_response("one", KEEPALIVE, AT_4, 70)
    latencies.on_member_response("one", KEEPALIVE, AT_4, 90)
    assert latencies.steady == [30, 60]


def test_too_few_round_trips_fit_nothing() -> None:
    few = Latencies()
    few.steady = [1_000] * (LEAST_ROUND_TRIPS - 1)
    few.written = [9_000] * 10
    with pytest.raises(FencepostError, match="99 steady heartbeats and 10 that moved an epoch are too few"):
        fit(few, simulated)


def test_nothing_simulated_takes_longer_than_the_longest_real_heartbeat_did() -> None:
    """Half of the writes as quick as the rest, and a slow tenth: a lognormal through both has no end."""
    measured, first, models = Latencies(), Latencies(), []
    measured.steady = [2_000] * 900 + [90_000] * 100
    measured.written = [2_000] * 89 + [210_000] * 11
    first.steady, first.written = [2_000] * 1_000, [50_000] * 100

    def simulate(model: Fit) -> Latencies:
        models.append(model)
        return first

    models.append(fit(measured, simulate))
    assert all(model.latency.longest_us <= 90_000 for model in models)
    assert all(model.replication.longest_us <= 210_000 for model in models)
    assert models[-1].replication.high > 1_000


def test_settings_of_a_model_are_those_of_a_scenario() -> None:
    model = Fit(latency=Span("lognormal", 700, 9_000), replication=Span("lognormal", 5_000, 5_000))
    given = load("steady", overrides=[f"{key}={value}" for key, value in model.settings.items()])
    assert given == model.applied(load("steady"))


def test_a_configuration_survives_as_properties() -> None:
    config = GroupCoordinatorConfig(
        group_consumer_heartbeat_interval_ms=5_500,
        group_consumer_assignors=("range",),
        group_consumer_assignor_offload_enable=False,
    )
    assert GroupCoordinatorConfig.from_properties(config.properties()) == config


class ToldAsReal:
    """Writes the trace of a simulated run as if it were real."""

    def __init__(self, onward: ParquetTrace) -> None:
        self._onward = onward

    def write(self, rows: Sequence[Row], /) -> None:
        self._onward.write([Row(*row)._replace(world="real") for row in rows])


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")  # of Spark's libraries, about each other
def test_equal_worlds_compare_as_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "SIMULATIONS", 1)
    scenario, config = load("scale-up-and-down"), GroupCoordinatorConfig()
    plays = {seed: tempo(scenario, seed, config, 500_000_000) for seed in range(8)}
    latencies = Latencies()
    (tmp_path / TRACES).mkdir()
    results = []
    for seed, played in plays.items():
        with ParquetTrace(tmp_path / TRACES / f"real-{seed}.parquet", f"real-{seed}") as trace:
            result = run(
                played.scenario, seed, plan=played.plan, checkers=[latencies], trace=ToldAsReal(trace)
            )
        results.append(told_as_real(result.members))
    done = Played(
        scenario=scenario, config=config, plays=plays, results=results, latencies=latencies, out=tmp_path
    )

    compared = compare(done)

    assert (compared.real.runs, compared.simulated.runs) == (8, 8)
    assert compared.simulated.violations == 0
    assert compared.real.rebalances.count > 40
    assert compared.simulated.rebalances.count == pytest.approx(compared.real.rebalances.count, rel=0.2)
    assert compared.ratio.rebalance_median == pytest.approx(1, abs=0.25)
    assert compared.ratio.heartbeat_median == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("page", "only"), [("report.html", None), (None, ("rebalances", "downtime"))])
def test_violations_are_told_with_the_trace_of_their_run(
    page: str | None, only: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a report no table is asked for that nobody sees."""
    report = None if page is None else tmp_path / page

    def broken_run(*args: Any, **kwargs: Any) -> RunResult:
        return msgspec.structs.replace(run(*args, **kwargs), violations=[seen("epochs-monotone")])

    monkeypatch.setattr(fidelity, "SIMULATIONS", 2)
    monkeypatch.setattr(fidelity, "run", broken_run)
    asked: dict[str, Any] = {}

    def analyze(path: Path, **options: Any) -> Any:
        asked.update(options, path=path)
        return {"rebalances": [], "downtime": []}

    monkeypatch.setattr(fidelity, "analyze", analyze)
    scenario, config = load("steady", members=2, partitions=4), GroupCoordinatorConfig()
    (tmp_path / TRACES).mkdir()
    real = msgspec.structs.replace(told_as_real(2), violations=[seen("one-owner"), seen("one-owner")])
    result = compare(
        Played(
            scenario=scenario,
            config=config,
            plays={1: tempo(scenario, 1, config, 100_000_000)},
            results=[real],
            latencies=Latencies(),
            out=tmp_path,
        ),
        report=report,
    )
    assert (asked["path"], asked["report"], asked["only"]) == (tmp_path, report, only)
    told = [
        (side.violations, [(each.run, each.invariant, each.message) for each in side.violated])
        for side in (result.simulated, result.real)
    ]
    assert told == [
        (2, [(f"simulated-1-{number}", "epochs-monotone", "seen") for number in range(2)]),
        (2, [("real-1", "one-owner", "seen")] * 2),
    ]
    assert all((tmp_path / TRACES / f"{run}.parquet").exists() for run in ("simulated-1-0", "simulated-1-1"))


def seen(invariant: str) -> Violation:
    return Violation(invariant=invariant, seq=3, t_us=4, message="seen")


def told_as_real(members: int) -> ChaosResult:
    return ChaosResult(
        scenario="scale-up-and-down",
        seed=1,
        members=members,
        partitions=18,
        virtual_seconds=1,
        wall_seconds=1,
        events=1,
        heartbeats=1,
        rebalances=1,
        converged=True,
        violations=[],
        digest="",
        records_sent=0,
        records_lost=0,
        records_duplicated=0,
        client="fencepost",
        cluster="jvm",
        nodes=1,
        speed=1,
        skipped=[],
    )


def test_what_is_fitted_to_are_values_that_were_measured() -> None:
    """By the nearest rank, as `fencepost compare` tells them: the median of two is the smaller one."""
    assert _times([20, 10]) == (10, 20, 20, 20)
    assert _times(range(1, 101)) == (50, 90, 99, 100)
    assert _times([]) == (0, 0, 0, 0)
