"""Carries a plan out in a world of single active consumers, and ends all of it before the quiet phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.simulation.faults.carrier import PlanCarrier
from fencepost.simulation.faults.draw import Draw, DrawnEvent, FaultKind

if TYPE_CHECKING:
    from fencepost.simulation.sac.clients import SacClientHost
    from fencepost.simulation.sac.nodes import SacNode
    from fencepost.simulation.sac.world import SacWorld


class SacNemesis(PlanCarrier):
    """The one who disturbs it."""

    def __init__(self, world: SacWorld, plan: Draw) -> None:
        super().__init__(world.loop, plan)
        self._world = world
        self._rng = world.streams.random("nemesis")
        self._away = set(list(world.clients)[world.scenario.group.members :])
        """Whom no step has started yet, or one has stopped: a deploy passes over them."""
        self._actions = {
            FaultKind.RESTART: self._restart,
            FaultKind.START: self._start,
            FaultKind.STOP: self._stop,
            FaultKind.MEMBER_CRASH: self._member_crash,
            FaultKind.MEMBER_FREEZE: self._member_freeze,
            FaultKind.SLOW_CALLBACK: self._slow_callback,
            FaultKind.CONNECTION_LOSS: self._connection_loss,
            FaultKind.COORDINATOR_MOVE: self._coordinator_move,
            FaultKind.NODE_CRASH: self._node_crash,
            FaultKind.NODE_LEAVE: self._node_leave,
            FaultKind.NODE_SPLIT: self._node_split,
        }

    def _tell(self, fault: str, phase: str, detail: str) -> None:
        self._world.tell("on_fault", fault, phase, detail)

    def _calm(self) -> None:
        self._world.calm()

    def _running(self, entry: DrawnEvent) -> SacClientHost | None:
        running = [each for each in self._world.clients.values() if each.running and not each.frozen]
        return running[entry.member % len(running)] if running else None

    # -- what people do -------------------------------------------------------------------------------------

    def _client(self, entry: DrawnEvent) -> SacClientHost:
        return list(self._world.clients.values())[entry.member]

    def _restart(self, entry: DrawnEvent) -> None:
        client = self._client(entry)
        if client.name in self._away:
            return
        self._tell(entry.kind, "begin", client.name)
        if entry.graceful and client.running:
            client.stop(come_back=True)
        else:
            client.crash()
            self._world.supervisor.restart_later(client)

    def _start(self, entry: DrawnEvent) -> None:
        client = self._client(entry)
        self._away.discard(client.name)
        client.wanted = True
        client.start()

    def _stop(self, entry: DrawnEvent) -> None:
        client = self._client(entry)
        self._away.add(client.name)
        client.stop(come_back=False)

    # -- what befalls clients -------------------------------------------------------------------------------

    def _member_crash(self, entry: DrawnEvent) -> None:
        client = self._running(entry)
        if client is None:
            return

        def back() -> None:
            if entry.returns and client.wanted:
                client.start()

        client.crash()
        client.wanted = client.wanted and entry.returns
        self._befallen(entry, client, back)

    def _member_freeze(self, entry: DrawnEvent) -> None:
        client = self._running(entry)
        if client is not None:
            client.freeze_process()
            self._befallen(entry, client, client.thaw_process)

    def _slow_callback(self, entry: DrawnEvent) -> None:
        client = self._running(entry)
        if client is not None:
            self._tell(entry.kind, "begin", client.name)
            slow_us = min(entry.lasts_us, self._plan.faults_end_us - entry.at_us)
            client.slow_us = max(1, slow_us, client.slow_us)

    def _connection_loss(self, entry: DrawnEvent) -> None:
        nodes = self._world.cluster.nodes.values()
        connections = [each for node in nodes for each in node.connections.values()]
        if connections:
            chosen = connections[entry.member % len(connections)]
            self._tell(entry.kind, "begin", chosen.id)
            chosen.end("connection lost")

    # -- what befalls nodes ---------------------------------------------------------------------------------

    def _coordinator_move(self, entry: DrawnEvent) -> None:
        self._tell(entry.kind, "begin", "")
        self._world.cluster.move()

    def _up(self, entry: DrawnEvent) -> SacNode | None:
        """A node that may go: most members of the cluster have to stay."""
        cluster = self._world.cluster
        members = [node for node in cluster.nodes.values() if node.member]
        up = [node for node in members if node.up]
        return up[entry.member % len(up)] if 2 * (len(up) - 1) > len(members) else None

    def _node_crash(self, entry: DrawnEvent) -> None:
        node = self._up(entry)
        if node is not None:
            self._world.cluster.crash(node)
            self._lasting(entry, node.name, lambda: self._world.cluster.restart(node))

    def _node_leave(self, entry: DrawnEvent) -> None:
        node = self._up(entry)
        if node is not None:
            self._tell(entry.kind, "begin", node.name)
            self._world.cluster.leave(node)

    def _node_split(self, entry: DrawnEvent) -> None:
        cluster = self._world.cluster
        names = [node.name for node in cluster.nodes.values() if node.member]
        if len(names) < 2:
            return
        count = min(max(1, round(entry.share * len(names))), len(names) - 1)
        minority = frozenset(self._rng.sample(names, count))
        cluster.split(minority)
        self._lasting(entry, ", ".join(sorted(minority)), lambda: cluster.mend(minority))
