"""Checks for how long a group may have no active consumer."""

from __future__ import annotations

from typing import Final

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey
from fencepost.simulation.sac.model import ACTIVE, CONNECTED, LEADER_WAITS_MS
from fencepost.simulation.sac.observers import SacJudge, SacStep

_SLOW_US: Final = 30_000_000
"""Time for messages, and for a connection's search for the coordinator, in addition to the configured times.
"""


class SacTiming(SacJudge):
    """Measures by the clock, and only while a node leads: without a leader nothing can happen."""

    def __init__(self) -> None:
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
            self.on_end(now_us)
            if self._no_leader_us is None:
                self._no_leader_us = now_us
        elif what == "active" and self._no_leader_us is not None:
            away_us, self._no_leader_us = now_us - self._no_leader_us, None
            for key in self._idle:
                self._idle[key] += away_us + LEADER_WAITS_MS * 1_000

    def on_lost_message(self, message: sac.NotifyConsumer, now_us: int) -> None:
        """Excuse a group whose message was lost: it is never sent again, as in RabbitMQ."""
        self._excused.add(SacGroupKey("/", message.stream, message.consumer_name))

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Follow the groups that the step changed, and report what has expired."""
        cluster = self.world.scenario.cluster
        limit_us = (
            cluster.disconnected_timeout.us + 2 * cluster.request_timeout.us + cluster.command_timeout.us
        )
        for key in dict.fromkeys((*step.before, *step.after)):
            group = step.after.get(key)
            if group is step.before.get(key):
                continue
            statuses = () if group is None else {one.status for one in group.consumers}
            if ACTIVE in statuses or not CONNECTED.intersection(statuses):
                self._idle.pop(key, None)
                self._excused.discard(key)
            else:
                self._idle.setdefault(key, now_us + limit_us + _SLOW_US)
        self.on_end(now_us)

    def on_end(self, now_us: int) -> None:
        """Report what has expired."""
        if self._no_leader_us is not None:
            return
        for key in [each for each, until in self._idle.items() if now_us > until]:
            del self._idle[key]
            if key not in self._excused:
                self.report(
                    "sac-unblocked",
                    f"{key.stream}: a connected consumer waits, and none was active for longer than a lost"
                    " connection and a client that owes a response may take",
                )
