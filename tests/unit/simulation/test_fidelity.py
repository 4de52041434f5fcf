"""A model that was fitted gives back what was measured, and equal worlds compare as equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import classic, consumer, streams
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos.time_scale import tempo
from fencepost.simulation.lab.fidelity import compare as fidelity
from fencepost.simulation.lab.fidelity.compare import Played, compare
from fencepost.simulation.lab.fidelity.fit import LEAST_ROUND_TRIPS, Fit, Latencies, _times, fit
from fencepost.simulation.lab.fidelity.verdicts import (
    FidelityVerdict,
    TimedValue,
    Tolerances,
    judge,
    occasions,
    verdict_of,
)
from fencepost.simulation.pipeline.traces import TRACES
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import load, load_any
from fencepost.simulation.scenarios.values import Span
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.test_cli_chaos import RESULT


def measured(*settings: str, scenario: str = "scale-up-and-down") -> Latencies:
    latencies = Latencies()
    run(load(scenario, overrides=list(settings), duration="10m"), 3, judges=[latencies])
    return latencies


def simulated(model: Fit) -> Latencies:
    return measured(*(f"{key}={value}" for key, value in model.settings.items()))


@pytest.mark.parametrize(
    ("median", "p99"),
    [
        ("2ms", "80ms"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("1ms", "3ms"), ("30ms", "200ms"))),
    ],
)
def test_a_fitted_model_takes_as_long_as_what_it_was_fitted_to(median: str, p99: str) -> None:
    latency = f'network.latency={{median = "{median}", p99 = "{p99}"}}'
    before = measured(latency, "cluster.replication=20ms")
    after = simulated(fit(before, simulated))
    for share, tolerance in ((0.5, 0.1), (0.9, 0.25)):
        for one, other in ((before.steady, after.steady), (before.written, after.written)):
            assert at(other, share) == pytest.approx(at(one, share), rel=tolerance)


@pytest.mark.long
def test_how_late_timers_are_is_found() -> None:
    late = measured("application.timer_delay=7ms")
    assert fit(late, simulated).timer_delay.low == pytest.approx(7_000, abs=300)
    assert fit(measured(), simulated).timer_delay.low <= 100


@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_round_trips_of_applications_and_of_the_classic_protocol_are_measured(protocol: str) -> None:
    found, scenario = (
        Latencies(),
        load_any(
            "streams-single-threads",
            overrides=[f"group.protocol={protocol}", "network.latency=3ms", "cluster.replication=20ms"],
        ),
    )
    run(scenario, 3, judges=[found])
    assert len(found.steady) > LEAST_ROUND_TRIPS
    assert at(found.steady, 0.5) == 6_000
    assert at(found.written, 0.5) == 26_000
    assert at(found.intervals, 0.5) >= 1_000_000


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


KEEPALIVE = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=4)
FULL = msgspec.structs.replace(KEEPALIVE, topic_partitions={})
AT_4 = consumer.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=4)
AT_5 = consumer.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=5)
FENCED = consumer.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
STREAMS = streams.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=4)
BEAT = classic.HeartbeatRequest(group_id="g", generation=4, member_id="m")
FOLLOWER = classic.SyncGroupRequest(group_id="g", generation=4, member_id="m", assignments={})
LEADER = msgspec.structs.replace(FOLLOWER, assignments={"m": b"x"})
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
        (STREAMS, streams.StreamsGroupHeartbeatResponse(member_id="m", member_epoch=4), [70], []),
        (STREAMS, streams.StreamsGroupHeartbeatResponse(member_id="m", member_epoch=5), [], [70]),
        (BEAT, classic.HeartbeatResponse(), [70], []),
        (BEAT, classic.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), [], []),
        (LEADER, classic.SyncGroupResponse(assignment=b"x"), [], [70]),
        (FOLLOWER, classic.SyncGroupResponse(assignment=b"x"), [], []),  # it waits for the leader
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


SLOW = (
    'network.latency={median = "20ms", p99 = "40ms"}',
    'cluster.replication={median = "40ms", p99 = "60ms"}',
)
SLOWER = (
    'network.latency={median = "40ms", p99 = "80ms"}',
    'cluster.replication={median = "80ms", p99 = "120ms"}',
)
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")  # of Spark's libraries, about each other
def test_latencies_that_are_wrong_by_a_factor_of_two_are_noticed_and_equal_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both worlds are simulated; one of them is told as the real one."""
    monkeypatch.setattr(fidelity, "SIMULATIONS", 2)
    config = GroupCoordinatorConfig.from_properties(QUICK)
    verdicts = {}
    for name, model in (("same", SLOW), ("doubled", SLOWER)):
        out = tmp_path / name
        result = compare(played_in_simulation(out, config, really=SLOW, supposed=model))
        assert (result.real.runs, result.simulated.violations) == (4, 0)
        assert result.real.rebalances.count > 70
        verdicts[name] = {(each.figure, each.quantile): each for each in result.judged}
        assert result.differs is (name == "doubled")
    assert verdicts["same"]["heartbeats", "median"].verdict is FidelityVerdict.WITHIN
    doubled = verdicts["doubled"]["heartbeats", "median"]
    assert doubled.verdict is FidelityVerdict.DIFFERS
    assert doubled.ratio == pytest.approx(2, rel=0.1)
    assert doubled.ratio_low is not None
    assert doubled.ratio_low > 1.5
    assert FidelityVerdict.DIFFERS not in {each.verdict for each in verdicts["same"].values()}


def played_in_simulation(
    out: Path, config: GroupCoordinatorConfig, *, really: Sequence[str], supposed: Sequence[str]
) -> Played:
    """Runs as if on brokers with the latencies `really`, to be simulated with those `supposed`."""
    properties = [f"config.{key}={value}" for key, value in QUICK.items()]
    real = load("churn", overrides=[*really, *properties])
    model = load("churn", overrides=[*supposed, *properties])
    latencies, plays, results = Latencies(), {}, []
    (out / TRACES).mkdir(parents=True)
    for seed in range(4):
        done = tempo(real, seed, config, 300_000_000)
        with ParquetTrace(out / TRACES / f"real-{seed}.parquet", f"real-{seed}") as trace:
            run(done.scenario, seed, plan=done.plan, judges=[latencies], trace=ToldAsReal(trace))
        results.append(RESULT)
        plays[seed] = tempo(model, seed, config, 300_000_000)
    return Played(scenario=model, config=config, plays=plays, results=results, latencies=latencies, out=out)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.95, 1.05, FidelityVerdict.WITHIN),
        (0.91, 1.1, FidelityVerdict.WITHIN),
        (0.9, 1.05, FidelityVerdict.TOO_FEW),
        (1.05, 1.2, FidelityVerdict.TOO_FEW),
        (0.5, 2.0, FidelityVerdict.TOO_FEW),
        (1.11, 1.2, FidelityVerdict.DIFFERS),
        (0.5, 0.9, FidelityVerdict.DIFFERS),
        (None, None, FidelityVerdict.TOO_FEW),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    low: float | None, high: float | None, verdict: FidelityVerdict
) -> None:
    assert verdict_of(low, high, 0.1) is verdict


def test_values_of_one_disturbance_are_resampled_together() -> None:
    down = [TimedValue("a", 0, 1.0), TimedValue("a", 900_000, 0.5), TimedValue("a", 1_400_001, 0.1)]
    assert [len(each) for each in occasions(down)] == [2, 1]
    beats = [TimedValue("a", at, 0.001) for at in (0, 999_999, 1_000_000, 5_000_000)]
    assert [len(each) for each in occasions(beats, by_second=True)] == [2, 1, 1]


def test_a_few_values_are_too_few_however_far_apart_they_are() -> None:
    real = {"rebalances": [TimedValue("real-1", 10_000_000 * n, 1.0) for n in range(5)]}
    ours = {"rebalances": [TimedValue("simulated-1", 10_000_000 * n, 9.0) for n in range(500)]}
    (first, *_) = judge(ours, real, Tolerances())
    assert (first.ratio, first.ratio_low, first.verdict) == (9.0, None, FidelityVerdict.TOO_FEW)


@pytest.mark.parametrize("page", ["report.html", None])
def test_violations_are_told_with_the_trace_of_their_run(
    page: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a report nothing is analysed that nobody sees."""
    report = None if page is None else tmp_path / page

    def broken_run(*args: Any, **kwargs: Any) -> RunResult:
        return msgspec.structs.replace(run(*args, **kwargs), violations=[seen("epochs-monotone")])

    monkeypatch.setattr(fidelity, "SIMULATIONS", 2)
    monkeypatch.setattr(fidelity, "run", broken_run)
    asked: dict[str, Any] = {}

    def analyze(path: Path, **options: Any) -> Any:
        asked.update(options, path=path)
        return {}

    monkeypatch.setattr(fidelity, "analyze", analyze)
    monkeypatch.setattr(fidelity, "read_samples", lambda out, master: {"rebalances": [], "downtime": []})
    scenario, config = load("steady", members=2, partitions=4), GroupCoordinatorConfig()
    (tmp_path / TRACES).mkdir()
    real = msgspec.structs.replace(RESULT, seed=1, violations=[seen("one-owner"), seen("one-owner")])
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
    assert (asked.get("path"), asked.get("report")) == (None if page is None else tmp_path, report)
    assert [each.title for each in asked.get("answer", ())] == (
        [] if page is None else ["Simulated against real", "Both distributions"]
    )
    assert {each.verdict for each in result.judged} == {FidelityVerdict.TOO_FEW}
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


def test_what_is_fitted_to_are_values_that_were_measured() -> None:
    """By the nearest rank, as `fencepost compare` tells them: the median of two is the smaller one."""
    assert _times([20, 10]) == (10, 20, 20, 20)
    assert _times(range(1, 101)) == (50, 90, 99, 100)
    assert _times([]) == (0, 0, 0, 0)
