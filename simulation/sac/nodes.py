"""The nodes of a cluster, and the node that leads the coordinator: what it watches, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.coordinator.host import CoordinatorHost, CoordinatorTimer, HostHooks, NoTimer
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.coordinator.sac.draft import CONNECTED
from fencepost.coordinator.sac.listing import consumer_groups, group_consumers
from fencepost.simulation.sac.connection import ServerConnection
from fencepost.simulation.sac.links import Link, Links
from fencepost.simulation.sac.observers import SacStep

if TYPE_CHECKING:
    from fencepost.simulation.kernel.loop import VirtualLoop
    from fencepost.simulation.kernel.rng import Draws
    from fencepost.simulation.scenarios.sac import SacScenario

_TRY_US = 500_000
"""Delay until a connection looks for the leader again, in microseconds."""
_ATTEMPT_US = 5_000_000
"""Time that a connection waits for one reply, in microseconds."""
_COMPACT_BEYOND = 20_000


class SacNode:
    """One node: its connections, and whether it runs and belongs to the cluster."""

    def __init__(self, name: str, cluster: SacNodes) -> None:
        self.name = name
        self.cluster = cluster
        self.up = True
        self.member = True
        self.connections: dict[sac.ConnectionId, ServerConnection] = {}


class _LeaderClock:
    """The virtual clock of the node that leads. Nothing fires for a leader that has stepped down."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Return the virtual time in milliseconds."""
        return self._loop.now_us // 1_000

    def call_at(self, when_ms: int, callback: Callable[[], None], /) -> CoordinatorTimer:
        """Run the callback at that time. A timer is never cancelled: its host ignores all but the last."""
        self._loop.schedule(max(when_ms * 1_000, self._loop.now_us), _fire, callback)
        return NoTimer()


def _fire(callback: Callable[[], None]) -> None:
    callback()


class SacNodes(HostHooks):
    """All nodes. At most one of them leads, and only while it reaches most members of the cluster."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: Draws,
        scenario: SacScenario,
        tell: Callable[..., None],
    ) -> None:
        self.loop = loop
        self.spec = spec = scenario.cluster
        self.tell = tell
        self.nodes = {f"n{number}": SacNode(f"n{number}", self) for number in range(1, spec.nodes + 1)}
        network = scenario.network
        self.links = Links(loop, draws, network.latency.quantiles, spec.detection.quantiles)
        self.links.on_change = self._link_changed
        self.journal = SacMemoryJournal(compact_beyond=_COMPACT_BEYOND)
        self.leader: SacNode | None = None
        self.host: CoordinatorHost[SacCoordinator] | None = None
        """The leader's coordinator in its host, once it has loaded."""
        self._groups: dict[SacGroupKey, SacGroupValue] = {}
        """The coordinator's groups before the step that is under way."""
        self.offsets: dict[tuple[str, str], int] = {}
        self._rates: dict[str, float] = {}
        for stream in scenario.streams:
            for name in stream.partition_names:
                self._rates[name] = stream.records_per_second
        self._splits: list[frozenset[str]] = []
        self._term = 0
        self._election = 0
        self._watched: dict[sac.ConnectionId, None] = {}
        self._watched_nodes: dict[str, None] = {}
        self._replication = draws.samples("cluster/replication", spec.replication.quantiles)
        self._failover = draws.samples("cluster/failover", spec.failover.quantiles)
        self._load = draws.samples("cluster/load", spec.load.quantiles)

    # -- streams --------------------------------------------------------------------------------------------

    def log_end(self, stream: str) -> int:
        """Return the next offset of a stream, as of now."""
        return int(self._rates.get(stream, 0.0) * self.loop.now_us / 1_000_000)

    def written_us(self, stream: str, offset: int) -> int | None:
        """Return the time at which the message of that offset is written, in microseconds; None if the stream
        is not written."""
        rate = self._rates.get(stream, 0.0)
        return int((offset + 1) * 1_000_000 / rate) + 1 if rate else None

    # -- asking the coordinator -----------------------------------------------------------------------------

    def ask(self, node: SacNode, command: SacInput, answered: Callable[[sac.SacReply], None]) -> None:
        """Send a command to the leader, repeatedly until it is answered or its time is up."""
        _Question(self, node, command, answered).attempt(None)

    def process(self, event: SacInput) -> sac.SacReply | None:
        """Run one step of the leader's coordinator, with all that it leads to."""
        assert self.host is not None
        reply: sac.SacReply | None = self.host.process(event).reply
        return reply

    def stepped(self, event: SacInput, outcome: SacOutcome, now_ms: int) -> None:
        """Notify observers of a step, with the groups before it."""
        assert self.host is not None
        assert self.leader is not None
        before, self._groups = self._groups, dict(self.host.coordinator.state.groups)
        self.tell("on_step", SacStep(self.leader.name, event, outcome, before, self._groups))

    def commit(self, event: SacInput, answered: Callable[[sac.SacReply], None]) -> None:
        """Commit a command that has reached the leader: it is carried out once most nodes have it."""
        self.loop.schedule(
            self.loop.now_us + self._replication.draw(), self._committed, (self._term, event, answered)
        )

    def _committed(self, due: tuple[int, SacInput, Callable[[sac.SacReply], None]]) -> None:
        term, event, answered = due
        if term == self._term and self.host is not None and self._has_majority(self.leader):
            reply = self.process(event)
            assert reply is not None
            answered(reply)

    def notice(self, event: SacInput) -> None:
        """Commit what the leader notices by itself, like any other entry of its log."""
        self.commit(event, lambda _: None)

    # -- operators ------------------------------------------------------------------------------------------

    def list_groups(self) -> None:
        """List the groups and their consumers, as operators see them."""
        if self.host is not None:
            state = self.host.coordinator.state
            groups = consumer_groups(state)
            self.tell("on_listed", groups, [group_consumers(state, key) for key in sorted(state.groups)])

    def evaluate(self, key: SacGroupKey) -> None:
        """Let the coordinator remove consumers that have ended from a group, and choose again.

        Nothing happens if the group has a lost consumer whose connection may be alive: it would be removed,
        and never notice.
        """
        group = None if self.host is None else self.host.coordinator.state.groups.get(key)
        if group is None:
            return
        dead = {one.connection: None for one in group.consumers if self._has_ended(one.connection)}
        if all(one.status in CONNECTED or one.connection in dead for one in group.consumers):
            self.notice(
                sac.EvaluateGroup(
                    vhost=key.vhost, stream=key.stream, consumer_name=key.consumer_name, dead=tuple(dead)
                )
            )

    def _has_ended(self, connection: sac.ConnectionId) -> bool:
        node = self.nodes[sac.node_of(connection)]
        return not node.member or (node.up and connection not in node.connections)

    # -- effects --------------------------------------------------------------------------------------------

    def carry_out(self, effect: sac.SacEffect) -> None:
        """Send or watch what the coordinator asks for."""
        match effect:
            case sac.NotifyConsumer():
                self._send(effect.connection, ServerConnection.notified, effect)
            case sac.CheckConnection():
                self._send(effect.connection, ServerConnection.checked, effect)
            case sac.MonitorConnection():
                self._watch(effect.connection)
            case sac.DemonitorConnection():
                self._watched.pop(effect.connection, None)
            case sac.MonitorNode():
                self._watch_node(effect.node)

    def _send(
        self, connection: sac.ConnectionId, handler: Callable[..., None], message: sac.SacEffect
    ) -> None:
        assert self.leader is not None

        def arrive(_: object) -> None:
            found = self.connection(connection)
            if found is not None:
                found.post(lambda argument: handler(found, argument), message)

        def lost() -> None:
            if isinstance(message, sac.NotifyConsumer):
                self.tell("on_lost_message", message)

        self.links.send(self.leader.name, sac.node_of(connection), arrive, None, lost)

    def connection(self, connection: sac.ConnectionId) -> ServerConnection | None:
        """Return the connection, if its process runs."""
        return self.nodes[sac.node_of(connection)].connections.get(connection)

    def _watch(self, connection: sac.ConnectionId) -> None:
        assert self.leader is not None
        node = sac.node_of(connection)
        if not self.links.know(self.leader.name, node):
            self.notice(sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION))
            return
        self._watched[connection] = None
        if self.connection(connection) is None:
            self._say_down(node, connection, sac.DownReason.NOPROC)

    def _watch_node(self, node: str) -> None:
        assert self.leader is not None
        if node not in self._watched_nodes:
            self._watched_nodes[node] = None
            if self.links.know(self.leader.name, node):
                self.notice(sac.NodeUp(node))

    def connection_ended(self, connection: ServerConnection, reason: str) -> None:
        """Note that a connection's process has ended: the leader is notified if it watches it and can be
        reached."""
        if connection.id in self._watched:
            self._say_down(connection.node.name, connection.id, reason)

    def _say_down(self, node: str, connection: sac.ConnectionId, reason: str) -> None:
        assert self.leader is not None
        term = self._term

        def arrive(_: object) -> None:
            if term == self._term and connection in self._watched:
                del self._watched[connection]
                self.notice(sac.ConnectionDown(connection, reason))

        self.links.send(node, self.leader.name, arrive, None)

    # -- nodes ----------------------------------------------------------------------------------------------

    def crash(self, node: SacNode) -> None:
        """End a node and its connections abruptly; the other nodes notice at once."""
        node.up = False
        self.tell("on_node", node.name, "crash")
        for connection in list(node.connections.values()):
            connection.stop()
            connection.client.cut()
        if node is self.leader:
            self._lose_leader("crash")
        for other in self.nodes.values():
            if other is not node:
                self.links.between(node.name, other.name).cut(at_once=True)
        self._check_leader()

    def _check_leader(self) -> None:
        if self.leader is not None and not self._has_majority(self.leader):
            self._lose_leader("resign")

    def restart(self, node: SacNode) -> None:
        """Start a node again, without connections."""
        if not node.up and node.member:
            node.up = True
            self.tell("on_node", node.name, "restart")
            self._mend(node.name)
            self._look_for_leader()

    def _mend(self, one: str) -> None:
        """Connect a node to all running nodes from which no split separates it."""
        for other in self.nodes.values():
            if other.name != one and other.up and self.nodes[one].up:
                apart = any((one in split) != (other.name in split) for split in self._splits)
                if not apart:
                    self.links.between(one, other.name).mend()

    def leave(self, node: SacNode) -> None:
        """End a node and remove it from the cluster."""
        self.crash(node)
        node.member = False
        self.tell("on_node", node.name, "left")
        self._look_for_leader()

    def split(self, minority: frozenset[str]) -> None:
        """Separate the named nodes from the others."""
        self._splits.append(minority)
        for one in sorted(minority):
            for other in sorted(self.nodes.keys() - minority):
                self.links.between(one, other).cut()
        self._check_leader()

    def mend(self, minority: frozenset[str]) -> None:
        """Connect them again, if they run."""
        self._splits.remove(minority)
        for one in sorted(minority):
            self._mend(one)
        self._look_for_leader()

    def _link_changed(self, one: str, other: str, link: Link) -> None:
        if self.host is None or self.leader is None or self.leader.name not in (one, other):
            return
        node = other if self.leader.name == one else one
        if link.is_lost:
            for connection in [each for each in self._watched if sac.node_of(each) == node]:
                del self._watched[connection]
                self.notice(sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION))
        elif node in self._watched_nodes:
            self.notice(sac.NodeUp(node))

    # -- leadership -----------------------------------------------------------------------------------------

    def _has_majority(self, node: SacNode | None) -> bool:
        members = [each for each in self.nodes.values() if each.member]
        if node is None or not node.up or not node.member:
            return False
        reached = sum(each.up and self.links.reach(node.name, each.name) for each in members)
        return 2 * reached > len(members)

    def elect(self, avoid: SacNode | None = None) -> None:
        """Let a node lead that is able to, a different one from `avoid` if there is one."""
        self._election += 1
        able = [node for node in self.nodes.values() if self._has_majority(node)]
        chosen = [node for node in able if node is not avoid] or able
        if chosen:
            self._term += 1
            self.leader = chosen[self._election % len(chosen)]
            self.tell("on_leader", self.leader.name, "load")
            self.loop.schedule(self.loop.now_us + self._load.draw(), self._loaded, self._term)

    def _loaded(self, term: int) -> None:
        if term != self._term or self.leader is None:
            return
        coordinator = SacCoordinator()
        coordinator.replay(self.journal, self.loop.now_us // 1_000)
        self._groups = dict(coordinator.state.groups)
        self.host = CoordinatorHost(coordinator, self.journal, _LeaderClock(self.loop), self)
        self.tell("on_leader", self.leader.name, "active")
        self.process(sac.LeaderChanged())
        self.loop.schedule(self.loop.now_us, self._tick, self._term)

    def _lose_leader(self, what: str) -> None:
        assert self.leader is not None
        old = self.leader
        self._step_down(what)
        self._election += 1
        self.loop.schedule(self.loop.now_us + self._failover.draw(), self._elect_due, (self._election, old))

    def _elect_due(self, due: tuple[int, SacNode | None]) -> None:
        if due[0] == self._election:
            self.elect(due[1])

    def _look_for_leader(self) -> None:
        if self.leader is None:
            self._election += 1
            due = (self._election, None)
            self.loop.schedule(self.loop.now_us + self._failover.draw(), self._elect_due, due)

    def move(self) -> None:
        """Let another node lead from now on."""
        if self.leader is not None:
            old = self.leader
            self._step_down("resign")
            self.elect(old)

    def _step_down(self, what: str) -> None:
        """End a leadership: what the leader watched and timed is forgotten with it."""
        assert self.leader is not None
        self.tell("on_leader", self.leader.name, what)
        self._term += 1
        if self.host is not None:
            self.host.abandon()
        self.leader = self.host = None
        self._watched.clear()
        self._watched_nodes.clear()

    # -- time -----------------------------------------------------------------------------------------------

    def _tick(self, term: int) -> None:
        if term == self._term and self.host is not None:
            members = tuple(node.name for node in self.nodes.values() if node.member)
            timeout_ms = self.spec.disconnected_timeout.ms
            self.process(sac.Tick(nodes=members, disconnected_timeout_ms=timeout_ms))
            self.loop.schedule(self.loop.now_us + self.spec.tick.us, self._tick, term)


class _Question:
    """A command on its way from a connection to the leader."""

    def __init__(
        self, cluster: SacNodes, node: SacNode, command: SacInput, answered: Callable[[sac.SacReply], None]
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._command = command
        self._answered: Callable[[sac.SacReply], None] | None = answered
        self._until_us = cluster.loop.now_us + cluster.spec.command_timeout.us
        self._attempt = 0

    def attempt(self, number: int | None) -> None:
        """Try once more, unless it was answered meanwhile."""
        cluster, loop = self._cluster, self._cluster.loop
        if self._answered is None or (number is not None and number != self._attempt):
            return
        if loop.now_us >= self._until_us:
            self._answer(sac.SacReply(error=sac.SacError.COORDINATOR_UNAVAILABLE))
            return
        self._attempt += 1
        leader = cluster.leader
        sent = cluster.host is not None and leader is not None
        if sent and leader is not None and cluster.links.know(self._node.name, leader.name):
            cluster.links.send(self._node.name, leader.name, self._arrive, leader)
            loop.schedule(min(loop.now_us + _ATTEMPT_US, self._until_us), self.attempt, self._attempt)
        else:
            loop.schedule(min(loop.now_us + _TRY_US, self._until_us), self.attempt, self._attempt)

    def _arrive(self, leader: SacNode) -> None:
        cluster, name = self._cluster, leader.name
        if cluster.leader is not leader or cluster.host is None:
            return

        def committed(reply: sac.SacReply) -> None:
            cluster.links.send(name, self._node.name, self._answer, reply)

        cluster.commit(self._command, committed)

    def _answer(self, reply: sac.SacReply) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(reply)
