"""The hard state of all groups, and the data derived from it.

Derived data (the groups of a connection, the connections of a node, the running timers) is updated as groups
change: an event that concerns one connection reads that connection's groups only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import (
    SacConfigurationKey,
    SacConfigurationValue,
    SacConnectionKey,
    SacConnectionValue,
    SacConsumer,
    SacGroupKey,
    SacGroupValue,
    SacRecord,
)
from fencepost.coordinator.sac.draft import DISCONNECTED
from fencepost.coordinator.timers import Timers

_NOBODY: tuple[SacConsumer, ...] = ()
_TOLD_AFRESH_MS = 10_000
"""Minimum time that a new leader waits for a disconnected connection, in ms. It may be about to return."""


def _common_start(before: tuple[SacConsumer, ...], after: tuple[SacConsumer, ...]) -> int:
    """Return the number of members at the start of both. A group that only grew is compared at once."""
    length = min(len(before), len(after))
    if before[:length] == after[:length]:
        return length
    return next(place for place in range(length) if before[place] is not after[place])


class SacState:
    """Groups, the index of connections, the configuration; read-only outside `apply`."""

    __slots__ = ("_away", "_groups", "_groups_of", "_nodes", "_strays", "conf", "groups", "strays", "timers")

    def __init__(self) -> None:
        self._groups: dict[SacGroupKey, SacGroupValue] = {}
        self.groups: Mapping[SacGroupKey, SacGroupValue] = MappingProxyType(self._groups)
        """All groups that have members."""
        self._strays: dict[sac.ConnectionId, tuple[SacGroupKey, ...]] = {}
        self.strays: Mapping[sac.ConnectionId, tuple[SacGroupKey, ...]] = MappingProxyType(self._strays)
        """Connections whose end is acted upon in other groups than those that they have members in."""
        self.conf: dict[str, int] = {sac.DISCONNECTED_TIMEOUT: sac.DEFAULT_DISCONNECTED_TIMEOUT_MS}
        self.timers: Timers[sac.ConnectionId] = Timers()
        """Soft: when connections that are away are forgotten."""
        self._groups_of: dict[sac.ConnectionId, dict[SacGroupKey, int]] = {}
        """Number of a connection's members in each group."""
        self._nodes: dict[str, dict[sac.ConnectionId, None]] = {}
        self._away: dict[sac.ConnectionId, dict[SacGroupKey, int]] = {}
        """Since when a connection is away, in each group that has disconnected members of it."""

    @property
    def disconnected_timeout_ms(self) -> int:
        """Time that a connection may be disconnected before the groups continue without it, in ms."""
        return self.conf.get(sac.DISCONNECTED_TIMEOUT, sac.DEFAULT_DISCONNECTED_TIMEOUT_MS)

    @property
    def nodes(self) -> list[str]:
        """The nodes that any member is on, sorted."""
        return sorted(self._nodes)

    @property
    def connections(self) -> Iterable[sac.ConnectionId]:
        """All connections that have members."""
        return self._groups_of

    @property
    def away(self) -> Iterable[sac.ConnectionId]:
        """All connections that have disconnected members."""
        return self._away

    def groups_of(self, connection: sac.ConnectionId) -> list[SacGroupKey]:
        """Return the groups that a connection has members in, sorted."""
        return sorted(self._groups_of.get(connection, ()))

    def has_members(self, connection: sac.ConnectionId, key: SacGroupKey) -> bool:
        """Return true if a connection has members in a group."""
        return key in self._groups_of.get(connection, ())

    def members_of(self, connection: sac.ConnectionId, key: SacGroupKey) -> int:
        """Return the number of members that a connection has in a group."""
        return self._groups_of.get(connection, {}).get(key, 0)

    def is_only_in(self, connection: sac.ConnectionId, key: SacGroupKey) -> bool:
        """Return true if a connection has members in no other group."""
        return self._groups_of.get(connection, {}).keys() <= {key}

    def connections_on(self, node: str) -> list[sac.ConnectionId]:
        """Return the connections of a node that have members, sorted."""
        return sorted(self._nodes.get(node, ()))

    def indexed(self, connection: sac.ConnectionId) -> list[SacGroupKey]:
        """Return the groups to act on when the connection ends, sorted."""
        stray = self._strays.get(connection)
        return self.groups_of(connection) if stray is None else list(stray)

    def is_indexed(self, connection: sac.ConnectionId) -> bool:
        """Return true if the end of a connection is acted upon at all."""
        stray = self._strays.get(connection)
        return connection in self._groups_of if stray is None else bool(stray)

    def index(self) -> dict[sac.ConnectionId, list[SacGroupKey]]:
        """Return the groups of each connection that is indexed."""
        known = dict.fromkeys((*self._groups_of, *self._strays))
        return {connection: self.indexed(connection) for connection in known if self.is_indexed(connection)}

    # -- records --------------------------------------------------------------------------------------------

    def apply(self, record: SacRecord) -> None:
        """Apply a record, and adjust timers."""
        key, value = record.key, record.value
        if isinstance(key, SacGroupKey):
            assert value is None or isinstance(value, SacGroupValue)
            self._apply_group(key, value)
        elif isinstance(key, SacConnectionKey):
            if value is None:
                self._strays.pop(key.connection, None)
            else:
                assert isinstance(value, SacConnectionValue)
                self._strays[key.connection] = value.groups
        else:
            assert isinstance(key, SacConfigurationKey)
            assert value is None or isinstance(value, SacConfigurationValue)
            self.conf = (
                {sac.DISCONNECTED_TIMEOUT: sac.DEFAULT_DISCONNECTED_TIMEOUT_MS}
                if value is None
                else dict(value.conf)
            )

    def _apply_group(self, key: SacGroupKey, value: SacGroupValue | None) -> None:
        old = self._groups.get(key)
        before = _NOBODY if old is None else old.consumers
        after = _NOBODY if value is None else value.consumers
        if value is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = value
        same = _common_start(before, after)
        old_part, new_part = before[same:], after[same:]
        if [one.connection for one in old_part] != [one.connection for one in new_part]:
            self._count(key, old_part, -1)
            self._count(key, new_part, 1)
        if any(one.status in DISCONNECTED for part in (old_part, new_part) for one in part):
            self._follow(key, before, after)

    def _count(self, key: SacGroupKey, consumers: tuple[SacConsumer, ...], sign: int) -> None:
        """Count members in or out; a connection without members is in no map."""
        for one in consumers:
            connection = one.connection
            groups = self._groups_of.get(connection)
            if groups is None:
                groups = self._groups_of[connection] = {}
                self._nodes.setdefault(sac.node_of(connection), {})[connection] = None
            groups[key] = groups.get(key, 0) + sign
            if not groups[key]:
                del groups[key]
                if not groups:
                    self._leave(connection)

    def _leave(self, connection: sac.ConnectionId) -> None:
        del self._groups_of[connection]
        node = sac.node_of(connection)
        del self._nodes[node][connection]
        if not self._nodes[node]:
            del self._nodes[node]

    def _follow(
        self, key: SacGroupKey, before: tuple[SacConsumer, ...], after: tuple[SacConsumer, ...]
    ) -> None:
        """Timers run for connections with disconnected members, from when the last of them was lost."""
        was = {one.connection for one in before if one.status in DISCONNECTED}
        now: dict[sac.ConnectionId, int] = {}
        for one in after:
            if one.status in DISCONNECTED:
                now[one.connection] = max(one.since_ms, now.get(one.connection, one.since_ms))
        for connection in sorted(was - now.keys()):
            groups = self._away[connection]
            del groups[key]
            if not groups:
                del self._away[connection]
                self.timers.cancel(connection)
        for connection, since_ms in now.items():
            groups = self._away.setdefault(connection, {})
            if groups.get(key) != since_ms:
                groups[key] = since_ms
                self.timers.set(connection, max(groups.values()) + self.disconnected_timeout_ms)

    def restart_timers(self, now_ms: int) -> None:
        """Start each connection's timer with the rest of its time, as a new leader does: at least 10 s."""
        timeout_ms = self.disconnected_timeout_ms
        for connection, groups in self._away.items():
            rest_ms = max(groups.values()) + timeout_ms - now_ms
            self.timers.set(connection, now_ms + min(max(rest_ms, _TOLD_AFRESH_MS), timeout_ms))

    def hard_state(self) -> dict[str, Any]:
        """Return all state from records, and the data derived from it, to compare with another
        coordinator's."""
        return {
            "groups": dict(self._groups),
            "strays": dict(self._strays),
            "conf": dict(self.conf),
            "groups_of": {connection: dict(groups) for connection, groups in self._groups_of.items()},
            "nodes": {node: set(connections) for node, connections in self._nodes.items()},
            "away": {connection: dict(groups) for connection, groups in self._away.items()},
        }
