"""The latency model that a real run suggests, in the simulator's own terms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.fidelity.latencies import Latencies
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.values import Span
from fencepost.simulation.world import rng

LEAST_ROUND_TRIPS: Final = 100
"""Below that a 99th percentile is one heartbeat's luck."""
_LEAST_WRITTEN: Final = 10
_SHORTEST_US: Final = 20
_ROUNDS: Final = 12


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator should use in place of a scenario's `network.latency` and `cluster.replication`."""

    latency: Span
    """One way, for each message."""
    replication: Span
    """From an append until its reply."""

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with these latencies."""
        return msgspec.structs.replace(
            scenario,
            network=msgspec.structs.replace(scenario.network, latency=self.latency),
            cluster=msgspec.structs.replace(scenario.cluster, replication=self.replication),
        )

    @property
    def settings(self) -> dict[str, str]:
        """The same as keys and values of `--set`, and of a scenario file."""
        return {"network.latency": _toml(self.latency), "cluster.replication": _toml(self.replication)}


def fit(latencies: Latencies) -> Fit:
    """The model under which simulated heartbeats take as long as these, at the median and in the tail.

    :raises FencepostError: if there are too few to tell.
    """
    steady, written = sorted(latencies.steady), sorted(latencies.written)
    if len(steady) < LEAST_ROUND_TRIPS or len(written) < _LEAST_WRITTEN:
        raise FencepostError(
            f"--fit: {len(steady)} steady heartbeats and {len(written)} that moved an epoch are too few:"
            f" {LEAST_ROUND_TRIPS} and {_LEAST_WRITTEN} are needed; try a longer --duration or more --seeds"
        )
    usual = _at(steady, 0.5)
    return Fit(
        latency=_one_way(usual, _at(steady, 0.99)),
        replication=_lognormal(_at(written, 0.5) - usual, _at(written, 0.99) - usual),
    )


def _one_way(median: int, p99: int) -> Span:
    """The distribution of which two draws together have that median and that 99th percentile."""
    half, tail = median / 2, max(p99 - median / 2, median / 2)
    for _ in range(_ROUNDS):
        together = _sum_of_two(_lognormal(half, tail).quantiles)
        half *= median / max(_at(together, 0.5), 1)
        tail = max(half, tail * p99 / max(_at(together, 0.99), 1))
    return _lognormal(half, tail)


def _sum_of_two(quantiles: rng.Quantiles) -> list[int]:
    chance = random.Random(0)
    return sorted(sum(chance.choices(quantiles, k=2)) for _ in range(20_000))


def _lognormal(median: float, p99: float) -> Span:
    low = max(_SHORTEST_US, round(median))
    return Span("lognormal", low, max(low, round(p99)))


def _at(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _toml(span: Span) -> str:
    return f'{{median = "{span.low}us", p99 = "{span.high}us"}}'
