"""`fencepost compare`: what it refuses before anything starts, and what it prints."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.cli.compare import _print
from fencepost.simulation.lab.fidelity import compare
from fencepost.simulation.lab.fidelity.compare import (
    ComparedSide,
    Distribution,
    FidelityComparison,
    Ratio,
    Violated,
)
from fencepost.simulation.lab.fidelity.verdicts import FidelityVerdict, Judged
from fencepost.simulation.scenarios.load import load


@pytest.mark.parametrize("error", [EnvironmentLacks("such a topic already"), KeyboardInterrupt()])
def test_a_comparison_of_nothing_leaves_its_folder_to_the_next(error, tmp_path: Path, monkeypatch):
    async def configuration(cluster: object) -> GroupCoordinatorConfig:
        return GroupCoordinatorConfig()

    async def run_real(*given: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(compare, "_configuration", configuration)
    monkeypatch.setattr(compare, "run_real", run_real)
    with pytest.raises(type(error)):
        asyncio.run(
            compare.play(load("steady"), [1, 2], "127.0.0.1:1", duration_us=300_000_000, out=tmp_path)
        )
    assert list(tmp_path.iterdir()) == []


def test_people_see_both_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    side = ComparedSide(
        runs=2,
        rebalances=Distribution(count=21, median=0.42, p90=1.5, p99=3.0, max=150.0),
        downtime=Distribution(),
        heartbeat=Distribution(count=2_000, median=0.002, p90=0.004, p99=0.01, max=0.2),
        violations=0,
    )
    broken = [
        Violated(run="real-1", invariant=invariant, seq=3, t_us=4, message="seen")
        for invariant in ("epochs-monotone", "one-owner", "one-owner")
    ]
    comparison = FidelityComparison(
        scenario="steady",
        members=3,
        partitions=18,
        seeds=[1, 2],
        cluster="jvm",
        nodes=1,
        fitted={"network.latency": '{median = "1ms", p99 = "2ms"}'},
        simulated=side,
        real=msgspec.structs.replace(side, violations=3, violated=broken),
        ratio=Ratio(
            rebalance_median=1.0, rebalance_p90=1, downtime_median=None, downtime_p90=None, heartbeat_median=1
        ),
        judged=[
            Judged(
                figure="rebalances",
                quantile="median",
                simulated=2.0,
                real=1.0,
                ratio=2.0,
                ratio_low=1.8,
                ratio_high=2.25,
                tolerance=0.1,
                verdict=FidelityVerdict.DIFFERS,
            )
        ],
        records_lost=3,
        skipped=[],
        out="out/compare",
    )
    _print(comparison, None)
    assert comparison.differs
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert [
        "rebalances",
        "simulated",
        "10.5",
        "420",
        "ms",
        "1.50",
        "s",
        "3.00",
        "s",
        "2",
        "min",
        "30",
        "s",
    ] in rows
    assert ["rebalances", "median", "2.00", "1.80", "to", "2.25", "10%", "differs"] in rows
    assert "3 violations in the real runs: 2 of one-owner, 1 of epochs-monotone" in lines
    assert not any("simulated runs:" in line for line in lines)
    assert "3 acknowledged records were lost" in lines
    assert '  --set \'network.latency={median = "1ms", p99 = "2ms"}\'' in lines
