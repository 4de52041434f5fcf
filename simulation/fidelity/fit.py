"""The latency model that a real run suggests, in the simulator's own terms.

A heartbeat's round trip is two messages, what it waits for behind others, and the log if it changed
something. Real and simulated ones have all that in common, so the model is found by simulating: change it
until simulated heartbeats take as long as the real ones did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.fidelity.latencies import Latencies
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.values import Span

LEAST_ROUND_TRIPS: Final = 100
"""Below that the slow ones among them are one heartbeat's luck."""
LEAST_WRITTEN: Final = 10
_SHORTEST_US: Final = 20
_ROUNDS: Final = 8


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


class _Times(NamedTuple):
    """The median and the 90th percentile of round trips, in microseconds."""

    steady: tuple[float, float]
    written: tuple[float, float]


def fit(measured: Latencies, simulate: Callable[[Fit], Latencies]) -> Fit:
    """The model under which simulated heartbeats take as long as these: the median, and one in ten.

    :raises FencepostError: if there are too few to tell.
    """
    if len(measured.steady) < LEAST_ROUND_TRIPS or len(measured.written) < LEAST_WRITTEN:
        raise FencepostError(
            f"--fit: {len(measured.steady)} steady heartbeats and {len(measured.written)} that moved an epoch"
            f" are too few: {LEAST_ROUND_TRIPS} and {LEAST_WRITTEN} are needed; try a longer --duration or"
            " more --seeds"
        )
    wanted = _times(measured)
    log = tuple(
        max(written - steady, 1) for written, steady in zip(wanted.written, wanted.steady, strict=True)
    )
    model = Fit(latency=_lognormal(*(each / 2 for each in wanted.steady)), replication=_lognormal(*log))
    for _ in range(_ROUNDS):
        model = _better(model, wanted, _times(simulate(model)))
    return model


def _better(model: Fit, wanted: _Times, found: _Times) -> Fit:
    """Each end of each distribution moved by as much as what it decides was off."""
    steady = [one / max(other, 1) for one, other in zip(wanted.steady, found.steady, strict=True)]
    written = [one / max(other, 1) for one, other in zip(wanted.written, found.written, strict=True)]
    return Fit(
        latency=_lognormal(model.latency.low * steady[0], model.latency.high * steady[1]),
        replication=_lognormal(model.replication.low * written[0], model.replication.high * written[1]),
    )


def _times(latencies: Latencies) -> _Times:
    return _Times(_at(latencies.steady), _at(latencies.written))


def _at(values: Sequence[int]) -> tuple[float, float]:
    ordered = sorted(values) or [0]
    return ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]


def _lognormal(median: float, p99: float) -> Span:
    low = max(_SHORTEST_US, round(median))
    return Span("lognormal", low, max(low, round(p99)))


def _toml(span: Span) -> str:
    return f'{{median = "{span.low}us", p99 = "{span.high}us"}}'
