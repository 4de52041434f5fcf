"""Checks the connections, nodes and timers that a coordinator keeps next to its groups."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput
from fencepost.simulation.sac.observers import SacChecker, SacStep
from fencepost.simulation.sac.steps import DISCONNECTED

_EVERY = 20
"""Steps between two looks at everything that is derived."""


class SacBookkeeping(SacChecker):
    """Keeps its own index of connections: for each, the groups that act on its end.

    A lost connection leaves the index. It returns when its node is back, or when any connection reports its
    return.
    """

    def __init__(self) -> None:
        self._index: dict[sac.ConnectionId, set[SacGroupKey]] = {}
        self._steps = 0

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Follow the event, and compare."""
        host = self.world.cluster.host
        assert host is not None
        state = host.coordinator.state
        if self._follow(step.event, step.before, state.groups):
            index = {connection: set(keys) for connection, keys in state.index().items()}
            if index != self._index:
                self.report(
                    "sac-derived",
                    f"after {type(step.event).__name__} the end of {', '.join(sorted(self._unlike(index)))}"
                    " is noticed by other groups than it should be",
                )
                self._index = index
        self._steps += 1
        if self._steps % _EVERY == 0:
            self._derived()

    def _unlike(self, index: Mapping[sac.ConnectionId, set[SacGroupKey]]) -> list[sac.ConnectionId]:
        known = (*index, *self._index)
        return [each for each in dict.fromkeys(known) if index.get(each) != self._index.get(each)]

    def _follow(
        self,
        event: SacInput,
        before: Mapping[SacGroupKey, SacGroupValue],
        groups: Mapping[SacGroupKey, SacGroupValue],
    ) -> bool:
        match event:
            case sac.RegisterConsumer():
                key = SacGroupKey(event.vhost, event.stream, event.consumer_name)
                self._index.setdefault(event.connection, set()).add(key)
            case sac.UnregisterConsumer():
                members = _members(groups).get(event.connection, set())
                if kept := self._index.pop(event.connection, set()) & members:
                    self._index[event.connection] = kept
            case sac.ConnectionDown():
                self._index.pop(event.connection, None)
            case sac.NodeUp():
                members_of = _members(groups)
                self._index.update(
                    (each, keys) for each, keys in members_of.items() if sac.node_of(each) == event.node
                )
            case sac.ConnectionReconnected() | sac.PurgeNodes() | sac.EvaluateGroup():
                self._index = _members(groups)
            case sac.Tick() if event.nodes and {sac.node_of(each) for each in _members(before)} - {
                *event.nodes
            }:
                self._index = _members(groups)
            case _:
                return False
        return True

    def on_end(self, now_us: int) -> None:
        """Compare all of it once more."""
        if self.world.cluster.host is not None:
            self._derived()

    def _derived(self) -> None:
        host = self.world.cluster.host
        assert host is not None
        state = host.coordinator.state
        members = _members(state.groups)
        consumers = [one for group in state.groups.values() for one in group.consumers]
        away = {one.connection for one in consumers if one.status in DISCONNECTED}
        for what, kept, right in (
            ("connections", set(state.connections), set(members)),
            ("nodes", set(state.nodes), {sac.node_of(each) for each in members}),
            ("lost connections", set(state.away), away),
            ("timers", set(state.timers), away),
        ):
            if kept != right:
                self.report("sac-derived", f"{what}: {sorted(kept ^ right)} are kept, or missing")
        for connection, keys in members.items():
            if set(state.groups_of(connection)) != keys:
                self.report("sac-derived", f"{connection} is listed in {state.groups_of(connection)}")


def _members(groups: Mapping[SacGroupKey, SacGroupValue]) -> dict[sac.ConnectionId, set[SacGroupKey]]:
    found: dict[sac.ConnectionId, set[SacGroupKey]] = {}
    for key, group in groups.items():
        for one in group.consumers:
            found.setdefault(one.connection, set()).add(key)
    return found
