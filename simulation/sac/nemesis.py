"""The nemesis of single active consumers and their nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.simulation.faults.nemesis import Nemesis
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent

if TYPE_CHECKING:
    from fencepost.simulation.sac.clients import SacClientHost
    from fencepost.simulation.sac.connection import ServerConnection
    from fencepost.simulation.sac.nodes import SacNode
    from fencepost.simulation.sac.world import SacWorld


class SacNemesis(Nemesis["SacWorld"]):
    """The nemesis that disturbs clients and nodes."""

    def __init__(self, world: SacWorld, plan: FaultPlan) -> None:
        super().__init__(world, plan)
        self._away = set(list(world.clients)[world.scenario.group.members :])
        """Clients that no step has started yet, or that a step has stopped: a deploy skips them."""
        self._actions = {
            FaultKind.RESTART: self._restart,
            FaultKind.START: self._start,
            FaultKind.STOP: self._stop,
            FaultKind.OPERATE: self._operate,
            FaultKind.MEMBER_CRASH: self._upon(self._running, self.crash),
            FaultKind.MEMBER_FREEZE: self._upon(self._running, self.freeze),
            FaultKind.SLOW_CALLBACK: self._upon(self._running, self.slow),
            FaultKind.CONNECTION_LOSS: self._upon(self._connection, self._disconnect),
            FaultKind.COORDINATOR_MOVE: self.move,
            FaultKind.NODE_CRASH: self._upon(self._up, self._node_crash),
            FaultKind.NODE_LEAVE: self._upon(self._up, self._node_leave),
            FaultKind.NODE_SPLIT: self._node_split,
        }

    def _running(self, entry: PlannedEvent) -> SacClientHost | None:
        clients = self._world.clients.values()
        return self._chosen(entry, (each for each in clients if each.running and not each.frozen))

    # -- what people do -------------------------------------------------------------------------------------

    def _client(self, entry: PlannedEvent) -> SacClientHost:
        return list(self._world.clients.values())[entry.member]

    def _restart(self, entry: PlannedEvent) -> None:
        client = self._client(entry)
        if client.name not in self._away:
            self.restart(entry, client, runs=client.running, detail=client.name)

    def _start(self, entry: PlannedEvent) -> None:
        client = self._client(entry)
        self._away.discard(client.name)
        client.wanted = True
        client.start()

    def _stop(self, entry: PlannedEvent) -> None:
        client = self._client(entry)
        self._away.add(client.name)
        client.stop(come_back=False)

    def _operate(self, entry: PlannedEvent) -> None:
        self._tell(entry.kind, "begin", entry.name)
        cluster = self._world.cluster
        if entry.name == "list":
            cluster.list_groups()
        else:
            cluster.evaluate(self._rng.choice(self._world.group_keys))

    # -- faults of clients ----------------------------------------------------------------------------------

    def _connection(self, entry: PlannedEvent) -> ServerConnection | None:
        nodes = self._world.cluster.nodes.values()
        return self._chosen(entry, (each for node in nodes for each in node.connections.values()))

    def _disconnect(self, entry: PlannedEvent, chosen: ServerConnection) -> None:
        self.instant(entry, chosen.id, lambda: chosen.end("connection lost"))

    # -- faults of nodes ------------------------------------------------------------------------------------

    def _up(self, entry: PlannedEvent) -> SacNode | None:
        """Return a node that may go down: a majority of the cluster has to stay."""
        cluster = self._world.cluster
        members = [node for node in cluster.nodes.values() if node.member]
        up = [node for node in members if node.up]
        return up[entry.member % len(up)] if 2 * (len(up) - 1) > len(members) else None

    def _node_crash(self, entry: PlannedEvent, node: SacNode) -> None:
        self._world.cluster.crash(node)
        self._lasting(entry, node.name, lambda: self._world.cluster.restart(node))

    def _node_leave(self, entry: PlannedEvent, node: SacNode) -> None:
        self.instant(entry, node.name, lambda: self._world.cluster.leave(node))

    def _node_split(self, entry: PlannedEvent) -> None:
        cluster = self._world.cluster
        names = [node.name for node in cluster.nodes.values() if node.member]
        if len(names) < 2:
            return
        count = min(max(1, round(entry.share * len(names))), len(names) - 1)
        minority = frozenset(self._rng.sample(names, count))
        cluster.split(minority)
        self._lasting(entry, ", ".join(sorted(minority)), lambda: cluster.mend(minority))
