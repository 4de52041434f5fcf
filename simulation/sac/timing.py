"""Checks when lost connections are forgotten, and for how long a group may have no active consumer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.simulation.sac.observers import SacChecker, SacStep, StatusChange
from fencepost.simulation.sac.steps import CONNECTED, DISCONNECTED, FORGOTTEN

_SECOND: Final = 1_000_000
_TOLD_AFRESH_US: Final = 10 * _SECOND
"""Minimum time that a new leader waits for a connection that is away, in microseconds."""
_LATE_US: Final = 1 * _SECOND
_EARLY_US: Final = 1_000
"""The coordinator counts in milliseconds."""
_SLOW_US: Final = 30 * _SECOND
"""Time for messages, and for a connection's search for the coordinator, in addition to the configured times.
"""


class SacTiming(SacChecker):
    """Measures by the clock, and only while a node leads: without a leader nothing can happen."""

    def __init__(self) -> None:
        self._lost: dict[sac.ConnectionId, tuple[int, int]] = {}
        """Earliest and latest time at which each lost connection is forgotten, in microseconds."""
        self._idle: dict[SacGroupKey, int] = {}
        """Time until which a group may lack an active consumer although a consumer is connected, in
        microseconds."""
        self._no_leader_us: int | None = 0
        """The time since when no node leads."""
        self._excused: set[SacGroupKey] = set()
        """Groups with a member whose last message was lost: nothing repairs that by itself."""

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """Stop all times without a leader; extend them when a new one leads."""
        if what in ("resign", "crash"):
            self._look(now_us)
            if self._no_leader_us is None:
                self._no_leader_us = now_us
        elif what == "active" and self._no_leader_us is not None:
            away_us, self._no_leader_us = now_us - self._no_leader_us, None
            for connection, (earliest, latest) in self._lost.items():
                rest_us = min(_TOLD_AFRESH_US, self.world.scenario.cluster.disconnected_timeout.us)
                self._lost[connection] = (
                    max(earliest, now_us + rest_us - _EARLY_US),
                    max(latest, now_us + rest_us + _LATE_US),
                )
            for key, until in self._idle.items():
                self._idle[key] = until + away_us + _TOLD_AFRESH_US

    def on_lost_message(self, message: sac.NotifyConsumer, now_us: int) -> None:
        """Excuse a group whose message was lost: it is never sent again, as in RabbitMQ."""
        self._excused.add(SacGroupKey("/", message.stream, message.consumer_name))

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Take times from what the step changed, and report any that has expired."""
        if step.outcome.records:
            event = step.event
            if isinstance(event, sac.ConnectionDown) and event.connection in self._lost:
                self._lose(event.connection, now_us)  # lost again before its return was reported
            self._connections(step.changes, now_us)
            for key in dict.fromkeys((*step.before, *step.after)):
                if step.before.get(key) is not step.after.get(key):
                    self._activity(key, step.after.get(key), now_us)
        self._look(now_us)

    def _connections(self, changes: Iterable[StatusChange], now_us: int) -> None:
        for key, one, old, new in changes:
            if new in DISCONNECTED:
                self._lose(one.connection, now_us)
            elif old in DISCONNECTED:
                earliest, _ = self._lost.pop(one.connection, (now_us, now_us))
                if new in FORGOTTEN and now_us < earliest:
                    early_s = (earliest - now_us) / 1_000_000
                    self.report(
                        "sac-timeout",
                        f"{key.stream}: {one.connection} is forgotten {early_s:.3f} s before its timeout",
                    )

    def _lose(self, connection: sac.ConnectionId, now_us: int) -> None:
        timeout_us = self.world.scenario.cluster.disconnected_timeout.us
        self._lost[connection] = now_us + timeout_us - _EARLY_US, now_us + timeout_us + _LATE_US

    def _activity(self, key: SacGroupKey, group: SacGroupValue | None, now_us: int) -> None:
        statuses = [one.status for one in group.consumers] if group is not None else []
        waits = any(status in CONNECTED for status in statuses)
        if not waits or sac.ConsumerStatus.CONNECTED_ACTIVE in statuses:
            self._idle.pop(key, None)
            self._excused.discard(key)
        elif key not in self._idle:
            cluster = self.world.scenario.cluster
            bound = cluster.disconnected_timeout.us + 2 * cluster.request_timeout.us + _SLOW_US
            self._idle[key] = now_us + bound + cluster.command_timeout.us

    def on_end(self, now_us: int) -> None:
        """Report what is late at the end."""
        self._look(now_us)

    def _look(self, now_us: int) -> None:
        if self._no_leader_us is not None:
            return
        for connection in [each for each, (_, latest) in self._lost.items() if now_us > latest]:
            del self._lost[connection]
            self.report("sac-timeout", f"{connection} is lost for longer than its disconnected timeout")
        for key in [each for each, until in self._idle.items() if now_us > until]:
            del self._idle[key]
            if key not in self._excused:
                self.report(
                    "sac-unblocked",
                    f"{key.stream}: a connected consumer waits, and none was active for longer than a lost"
                    " connection and a client that owes a response may take",
                )
