"""Networks and brokers so slow that groups need more time to settle, or never can."""

from __future__ import annotations

import pytest

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import load_any


def slow(name: str, *overrides: str) -> AnyScenario:
    return load_any(name, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("rolling-deploy", "consumer"),
        ("rolling-deploy", "classic"),
        ("streams-failures", ""),
        ("streams-shutdown", ""),
        ("sac-churn", ""),
    ],
)
@pytest.mark.parametrize("latency", ["10s", pytest.param("1h", marks=pytest.mark.long)])
def test_members_that_are_never_answered_in_time_break_nothing(
    name: str, protocol: str, latency: str
) -> None:
    more = [f"group.protocol={protocol}"] if protocol else []
    assert run(slow(name, f"network.latency={latency}", *more), 1).violations == []


@pytest.mark.parametrize("key", ["cluster.failover", "cluster.load", "network.detection"])
def test_a_group_gets_the_time_that_its_brokers_take(key: str) -> None:
    result = run(slow("rolling-deploy", f"{key}=1h"), 1)
    assert result.violations == []
    assert result.converged
    assert result.virtual_seconds > 3_600


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_group_settles_as_long_as_its_members_get_through(protocol: str) -> None:
    result = run(slow("rolling-deploy", "network.latency=3s", f"group.protocol={protocol}"), 1)
    assert result.violations == []
    assert result.converged


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (
            "coordinator-crash-loop",
            (
                "network.latency=1500ms",
                "cluster.replication=3s",
                "config.group.consumer.min.session.timeout.ms=6000",
                "config.group.consumer.session.timeout.ms=6000",
                "config.group.consumer.heartbeat.interval.ms=5000",
            ),
        ),
        (
            "rolling-deploy",
            (
                "network.latency=1500ms",
                "group.protocol=classic",
                "group.session_timeout=6s",
                "group.heartbeat_interval=5s",
            ),
        ),
        ("churn", ("network.latency=2500ms", "application.callback=5s", "group.rebalance_timeout=10s")),
    ],
)
def test_members_whose_time_is_over_before_they_are_heard_come_and_go(
    name: str, overrides: tuple[str, ...]
) -> None:
    assert run(slow(name, *overrides), 1).violations == []


def test_the_quiet_phase_is_longer_by_what_is_more_than_its_slack() -> None:
    usual = slow("rolling-deploy").quiet_us
    assert slow("rolling-deploy", "network.latency=500ms").quiet_us == usual
    assert slow("rolling-deploy", "cluster.load=20s").quiet_us > usual + 10_000_000
    assert slow("rolling-deploy", "network.latency=2s").quiet_us > usual + 10_000_000
    assert slow("rolling-deploy", "network.latency=1h").quiet_us <= usual + 30_000_000
