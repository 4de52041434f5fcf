"""Checks that two consumers of a group never both consider themselves active, except in windows of the
protocol.

A client is active from its answer to the activation until it has let go or its connection has ended. What the
coordinator did explains a second active client: a step that treated the active one as something else, without
its answer, opens a window. Two active clients without a window are a violation.
"""

from __future__ import annotations

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.sac.coordinator import SacInput
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.model import HOLDS
from fencepost.simulation.sac.observers import ABSENT, SacJudge, SacStep

_S = sac.ConsumerStatus
_HOLDS = (SacMemberState.ACTIVE, SacMemberState.STEPPING_DOWN)


class Exclusive(SacJudge):
    """Watches clients, and what the coordinator does to them."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.holders: dict[str, dict[str, None]] = {}
        """By stream: the connections (as clients name them) that consider themselves active."""
        self.causes: dict[str, str] = {}
        """By connection: why the coordinator stopped treating it as active, without its answer."""
        self._overlaps: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._readers: dict[str, dict[str, None]] = {}
        """The holders that are not stepping down."""
        self._idle: dict[str, int] = {}
        """The time since when a stream has no reader that is connected."""

    # -- the coordinator ------------------------------------------------------------------------------------

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Open a window if the step treats an active consumer as something else."""
        if not step.outcome.records:
            return
        for _, one, old, new in step.changes:
            if new is _S.DISCONNECTED_ACTIVE and old is _S.FORGOTTEN_ACTIVE:
                self.causes[one.owner] = "twice lost"
            elif new is _S.CONNECTED_ACTIVE and old is not _S.DISCONNECTED_ACTIVE:
                self.causes.pop(one.owner, None)
            elif old in HOLDS and new not in HOLDS:
                cause = _cause(step.event, old, new)
                if cause:
                    self.causes[one.owner] = cause

    # -- clients --------------------------------------------------------------------------------------------

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """Follow a client that begins to be active, or stops."""
        assert subscriber.connection is not None or target is SacMemberState.CONNECTING
        if target in _HOLDS and source not in _HOLDS:
            assert subscriber.connection is not None
            self._begin(subscriber.subscription.stream, subscriber.connection.owner, now_us)
        elif target is SacMemberState.STEPPING_DOWN:
            assert subscriber.connection is not None
            self._stop_reading(subscriber.subscription.stream, subscriber.connection.owner, now_us)
        elif source in _HOLDS and target not in _HOLDS:
            assert subscriber.connection is not None
            self._end(subscriber.connection.owner, now_us)

    def on_connection(self, connection: sac.ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """End the client's part when its connection has ended, whether or not the client has noticed."""
        if not opened:
            self._end(owner, now_us)
            self.causes.pop(owner, None)

    def on_let_go(self, connection: sac.ConnectionId, owner: str, now_us: int) -> None:
        """Judge a connection's report that its client has let go, after which the group moves on."""
        for stream, holders in self.holders.items():
            if owner in holders:
                self.report(
                    "sac-exclusive",
                    f"{stream}: {owner} on {connection} is reported to have let go, and has not",
                )

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """Treat a process that ended as inactive."""
        if what in ("crash", "stopped"):
            for holders in list(self.holders.values()):
                for owner in [each for each in holders if each.startswith(f"{client}/")]:
                    self._end(owner, now_us)

    def _begin(self, stream: str, owner: str, now_us: int) -> None:
        holders = self.holders.setdefault(stream, {})
        if not self._is_alive(owner):
            return
        for other in holders:
            cause = self.causes.get(other) or self.causes.get(owner)
            if cause is None:
                self.report("sac-exclusive", f"{stream}: {owner} is active, and {other} has not let go")
            self._overlaps[stream, other, owner] = (cause or "unexplained", now_us)
        if (since := self._idle.pop(stream, None)) is not None:
            self._figures.add("without active", now_us - since)
        holders[owner] = None
        self._readers.setdefault(stream, {})[owner] = None

    def _stop_reading(self, stream: str, owner: str, now_us: int) -> None:
        readers = self._readers.get(stream, {})
        if owner in readers:
            del readers[owner]
            if not readers:
                self._idle[stream] = now_us

    def _is_alive(self, owner: str) -> bool:
        nodes = self.world.cluster.nodes.values()
        return any(each.client.owner == owner for node in nodes for each in node.connections.values())

    def _end(self, owner: str, now_us: int) -> None:
        for stream, holders in self.holders.items():
            if owner in holders:
                del holders[owner]
                self._stop_reading(stream, owner, now_us)
                for pair in [each for each in self._overlaps if each[0] == stream and owner in each]:
                    cause, since = self._overlaps.pop(pair)
                    self._figures.add(f"two active {cause}", now_us - since)

    def on_end(self, now_us: int) -> None:
        """Count what is still open until now."""
        for cause, since in self._overlaps.values():
            self._figures.add(f"two active {cause}", now_us - since)
        for since in self._idle.values():
            self._figures.add("without active", now_us - since)


def _cause(event: SacInput, old: sac.ConsumerStatus, new: sac.ConsumerStatus) -> str | None:
    """Return why an active consumer is no longer treated as active, if not by its own answer."""
    if new is _S.FORGOTTEN_ACTIVE:
        return "forgotten"
    if new is ABSENT:
        return "removed" if isinstance(event, sac.PurgeNodes | sac.Tick | sac.EvaluateGroup) else None
    if isinstance(event, sac.ActivateConsumer):
        return "demoted" if old is _S.CONNECTED_ACTIVE else "early"
    if isinstance(event, sac.ConnectionReconnected):
        return "returned"
    if isinstance(event, sac.ConnectionDown) and event.reason == sac.DownReason.NOCONNECTION:
        return "abandoned"
    return None
