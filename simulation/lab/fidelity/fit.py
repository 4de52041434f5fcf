"""The durations of heartbeats, and the latency model that they suggest, in the simulator's own terms.

A heartbeat's round trip is two messages, its wait behind others, and the log if it changed something. Real
and simulated heartbeats have all that in common. So the model is found by simulating: it is changed until
simulated heartbeats take as long as the real ones did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.simulation.analyses.comparison import nearest_rank
from fencepost.simulation.kernel.observers import FindingReport, Observer
from fencepost.simulation.lab.chaos.round_trips import RoundTrips
from fencepost.simulation.lab.fidelity.verdicts import TimedValue
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.scenarios.values import Span

S = TypeVar("S", bound=Scenario | StreamsScenario)

LEAST_ROUND_TRIPS: Final = 100
"""Minimum number of round trips: with fewer, the slow ones among them are one heartbeat's luck."""
LEAST_WRITTEN: Final = 10
_SHORTEST_US: Final = 20
_ROUNDS: Final = 8
_LATEST_US: Final = 50_000


class Latencies(Observer):
    """Records round trips of heartbeats, in microseconds, from the request to its response.

    `steady` are those that the coordinator answered from memory, `written` those that made it write: its
    response to a join, or one with another epoch than the request had, waits until its log is replicated. In
    the classic protocol these are Heartbeat, and the SyncGroup with which a leader assigns. A JoinGroup, and
    a follower's SyncGroup, wait for other members, and say nothing about messages.
    """

    def __init__(self) -> None:
        self.steady: list[int] = []
        self.written: list[int] = []
        self.beats: list[TimedValue] = []
        """The steady ones again, with their run and time."""
        self.intervals: list[int] = []
        """Times from one steady heartbeat of a member to its next one."""
        self._begun: dict[str, int] = {}
        self._runs = 0
        self._trips = RoundTrips()

    def attach(self, world: Any, report: FindingReport) -> None:
        """Observe one more run."""
        self._runs += 1
        self._trips = RoundTrips()
        self._begun.clear()

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Note a request. A member has one request of a kind under way at a time."""
        self._trips.sent(host, request, now_us)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Record the round trip, unless the response was an error or is missing."""
        if (found := self._trips.answered(host, request, response, now_us)) is not None:
            self.on_round_trip(host, *found, now_us)

    def on_round_trip(self, host: str, took_us: int, written: bool, now_us: int) -> None:
        """Record a round trip that a member measured itself."""
        if written:
            self.written.append(took_us)
            self._begun.pop(host, None)
        else:
            self.steady.append(took_us)
            before_us, self._begun[host] = self._begun.get(host), now_us - took_us
            if before_us is not None:
                self.intervals.append(now_us - took_us - before_us)
            self.beats.append(TimedValue(str(self._runs), now_us - took_us, took_us / 1e6))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies that the simulator should use in place of the scenario's."""

    latency: Span
    """One-way latency of each message."""
    replication: Span
    """Time from an append until its reply."""
    timer_delay: Span = Span("constant", 0)
    """Delay of members' timers."""

    def applied(self, scenario: S) -> S:
        """Return the scenario with these latencies."""
        return msgspec.structs.replace(
            scenario,
            network=msgspec.structs.replace(scenario.network, latency=self.latency),
            cluster=msgspec.structs.replace(scenario.cluster, replication=self.replication),
            application=msgspec.structs.replace(scenario.application, timer_delay=self.timer_delay),
        )

    @property
    def settings(self) -> dict[str, str]:
        """Return the same as keys and values of `--set`, and of a scenario file."""
        return {
            "network.latency": _toml(self.latency),
            "cluster.replication": _toml(self.replication),
            "application.timer_delay": f"{self.timer_delay.low}us",
        }


class _Times(NamedTuple):
    """Durations of round trips, in microseconds."""

    median: float
    p90: float
    p99: float
    longest: float


def fit(measured: Latencies, simulate: Callable[[Fit], Latencies]) -> Fit:
    """Return the model under which simulated heartbeats take as long as these: the median, and one in ten.

    Timers of members are so late that the time between two heartbeats is that of the real ones.

    No simulated message or write takes longer than the longest real heartbeat of its kind did.

    :raises FencepostError: if there are too few round trips.
    """
    if len(measured.steady) < LEAST_ROUND_TRIPS or len(measured.written) < LEAST_WRITTEN:
        raise FencepostError(
            f"--fit: {len(measured.steady)} steady heartbeats and {len(measured.written)} that moved an epoch"
            f" are too few: {LEAST_ROUND_TRIPS} and {LEAST_WRITTEN} are needed; try a longer --duration or"
            " more --seeds"
        )
    steady, written = _times(measured.steady), _times(measured.written)
    latency = _lognormal(steady.median / 2, steady.p90 / 2, steady.longest)
    replication = _lognormal(written.median - steady.median, written.p90 - steady.p90, written.longest)
    late = Span("constant", 0)
    tried: list[tuple[float, Fit]] = []
    for _ in range(_ROUNDS):
        model = Fit(latency=latency, replication=replication, timer_delay=late)
        found = simulate(model)
        found_steady, found_written = _times(found.steady), _times(found.written)
        tried.append((_off(steady, found_steady) + _off(written, found_written), model))
        if measured.intervals and found.intervals:
            more_us = _times(measured.intervals).median - _times(found.intervals).median
            late = Span("constant", min(max(0, late.low + round(more_us)), _LATEST_US), 0)
        latency = _closer(latency, steady, found_steady)
        replication = _closer(replication, written, found_written)
    return min(tried, key=lambda each: each[0])[1]


def _off(wanted: _Times, found: _Times) -> float:
    """Return the distance of the median and the slow tenth from what they should be: 0 if they are equal."""
    return sum(
        abs(math.log(max(one, 1) / max(other, 1)))
        for one, other in ((wanted.median, found.median), (wanted.p90, found.p90))
    )


def _closer(span: Span, wanted: _Times, found: _Times) -> Span:
    """Return the span with each end moved by its error; the far one no further than what was ever common.

    A lognormal through a slow tenth, as a busy machine has it, would be seconds at its far end.
    """
    median = span.low * wanted.median / max(found.median, 1)
    return _lognormal(median, min(span.high * wanted.p90 / max(found.p90, 1), wanted.p99), wanted.longest)


def _times(values: Sequence[int]) -> _Times:
    ordered = sorted(values) or [0]
    return _Times(*(nearest_rank(ordered, share) for share in (0.5, 0.9, 0.99, 1.0)))


def _lognormal(median: float, p99: float, longest: float) -> Span:
    """Return a lognormal with these values, or a nearer far end if draws could be longer than the longest."""
    low = max(_SHORTEST_US, round(median))
    span = Span("lognormal", low, max(low, round(p99)))
    longest = max(longest, low)
    if span.longest_us > longest:
        share = math.log(longest / low) / math.log(span.longest_us / low)
        span = Span("lognormal", low, int(low * (span.high / low) ** share))
    return span


def _toml(span: Span) -> str:
    return f'{{median = "{span.low}us", p99 = "{span.high}us"}}'
