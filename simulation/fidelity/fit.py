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
    """The median, the 90th and the 99th percentile of round trips, in microseconds."""

    steady: tuple[float, float, float]
    written: tuple[float, float, float]


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
    model = Fit(
        latency=_lognormal(wanted.steady[0] / 2, wanted.steady[1] / 2),
        replication=_lognormal(wanted.written[0] - wanted.steady[0], wanted.written[1] - wanted.steady[1]),
    )
    for _ in range(_ROUNDS):
        model = _better(model, wanted, _times(simulate(model)))
    return model


def _better(model: Fit, wanted: _Times, found: _Times) -> Fit:
    return Fit(
        latency=_closer(model.latency, wanted.steady, found.steady),
        replication=_closer(model.replication, wanted.written, found.written),
    )


def _closer(span: Span, wanted: Sequence[float], found: Sequence[float]) -> Span:
    """Each end moved by as much as what it decides was off; the far one no further than what was ever common.

    A lognormal through a slow tenth, as a busy machine has it, would be seconds at its far end.
    """
    median, tail = (one / max(other, 1) for one, other in zip(wanted[:2], found[:2], strict=True))
    return _lognormal(span.low * median, min(span.high * tail, wanted[2]))


def _times(latencies: Latencies) -> _Times:
    return _Times(_at(latencies.steady), _at(latencies.written))


def _at(values: Sequence[int]) -> tuple[float, float, float]:
    ordered = sorted(values) or [0]
    count = len(ordered)
    return ordered[count // 2], ordered[count * 9 // 10], ordered[count * 99 // 100]


def _lognormal(median: float, p99: float) -> Span:
    low = max(_SHORTEST_US, round(median))
    return Span("lognormal", low, max(low, round(p99)))


def _toml(span: Span) -> str:
    return f'{{median = "{span.low}us", p99 = "{span.high}us"}}'
