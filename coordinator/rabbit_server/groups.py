"""Runs the coordinator of single active consumers for the connections of all nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.host import CoordinatorClock, CoordinatorHost, HostHooks
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused, SacCoordinatorUnreachable
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome

if TYPE_CHECKING:
    from fencepost.coordinator.rabbit_server.consuming import Consumer
    from fencepost.coordinator.rabbit_server.session import RabbitSession


_MESSAGES_PER_TURN: Final = 500


class Groups(HostHooks):
    """The coordinator, and its messages to and from connections.

    Its messages to a connection are sent after the response to the command that led to them: `later` runs a
    callable when the present work is done. A node can be cut off: its clients continue, but it exchanges no
    messages with the other nodes.
    """

    def __init__(self, clock: CoordinatorClock, later: Callable[[Callable[[], None]], object]) -> None:
        self.coordinator = SacCoordinator()
        self._host = CoordinatorHost(self.coordinator, None, clock, self)
        self.on_change: Callable[[], None] = lambda: None
        """Called when a group has changed, or the state of one of its consumers."""
        self._later = later
        self._cut: dict[str, None] = {}
        self._sessions: dict[sac.ConnectionId, RabbitSession] = {}
        self._messages: deque[sac.NotifyConsumer | sac.CheckConnection] = deque()
        self._ended: deque[sac.ConnectionId] = deque()
        """Connections that ended, until their groups know it. The first one is being handled."""

    def session_of(self, connection: sac.ConnectionId) -> RabbitSession | None:
        """Return the connection behind a name, if it is open."""
        return self._sessions.get(connection)

    def process(self, event: SacInput) -> sac.SacReply | None:
        """Run one step of the coordinator: apply its records, then carry out its effects."""
        reply: sac.SacReply | None = self._host.process(event).reply
        return reply

    def stepped(self, event: SacInput, outcome: SacOutcome, now_ms: int) -> None:
        """Queue messages for connections, and report changed groups."""
        was_quiet = not self._messages
        self._messages.extend(
            each for each in outcome.effects if isinstance(each, sac.NotifyConsumer | sac.CheckConnection)
        )
        if self._messages and was_quiet:
            self._later(self._deliver_all)
        if outcome.records:
            self.on_change()

    def run_due(self) -> None:
        """Forget the connections that have been away for too long; the clock may have been moved."""
        self._host.run_due()

    def close(self) -> None:
        """Stop the coordinator's timer."""
        self._host.abandon()

    def _deliver_all(self) -> None:
        """Deliver messages to connections, in order; messages that follow from them are queued behind.

        One turn delivers some of them, then other clients are served.
        """
        try:
            for _ in range(min(len(self._messages), _MESSAGES_PER_TURN)):
                message = self._messages.popleft()
                if sac.node_of(message.connection) not in self._cut:
                    self._deliver(message)
        finally:
            if self._messages:  # those of other turns; one that fails must not hold up the others
                self._later(self._deliver_all)
            self.on_change()

    def _deliver(self, message: sac.NotifyConsumer | sac.CheckConnection) -> None:
        session = self._sessions.get(message.connection)
        if isinstance(message, sac.CheckConnection):
            gone = sac.ConnectionDown(message.connection, sac.DownReason.NOPROC)
            self.process(gone if session is None else sac.ConnectionReconnected(message.connection))
        elif session is not None:
            self._notify(session, message)

    def _notify(self, session: RabbitSession, message: sac.NotifyConsumer) -> None:
        consumer = session.consumers.get(message.subscription_id)
        if consumer is not None and consumer.is_of(message.stream, message.consumer_name):
            consumer.update(active=message.active)
        elif message.stepping_down:
            # The consumer that should step down was removed: without this the group would wait forever.
            self.activate(session, message.stream, message.consumer_name)

    # -- cut nodes --------------------------------------------------------------------------------------

    def is_cut(self, node: str) -> bool:
        """Return true if the node is cut off from the others."""
        return node in self._cut

    def cut(self, node: str) -> None:
        """Cut a node off from the others. Its clients continue."""
        if node not in self._cut:
            self._cut[node] = None
            for connection in [each for each in self._sessions if sac.node_of(each) == node]:
                self.process(sac.ConnectionDown(connection, sac.DownReason.NOCONNECTION))

    def heal(self, node: str) -> None:
        """Connect a node again; its connections are asked whether they are alive."""
        if node in self._cut:
            del self._cut[node]
            self.process(sac.NodeUp(node))

    def _ask(self, session: RabbitSession, command: sac.SacCommand) -> sac.SacReply:
        if session.socket.node in self._cut:
            raise SacCoordinatorUnreachable(f"node {session.socket.node} is cut off")
        reply = self.process(command)
        assert reply is not None
        return reply

    # -- requests of connections ------------------------------------------------------------------------

    def register(self, session: RabbitSession, consumer: Consumer) -> bool:
        """Let a consumer join its group; return true if it is the active one.

        :raises Refused: if the group exists with another partition index.
        :raises CoordinatorUnavailable: if the connection's node is cut off, as in all methods below.
        """
        connection = session.connection_id
        self._sessions[connection] = session
        reply = self._ask(
            session,
            sac.RegisterConsumer(
                vhost=session.virtual_host,
                stream=consumer.stream.name,
                consumer_name=consumer.name,
                partition_index=consumer.partition_index,
                connection=connection,
                subscription_id=consumer.subscription_id,
                owner=session.name,
            ),
        )
        if reply.error is not None:
            raise RabbitRequestRefused(f"{consumer.name!r}: {reply.error}")
        return bool(reply.is_active)

    def unregister(self, session: RabbitSession, consumer: Consumer) -> None:
        """Remove a consumer from its group."""
        self._ask(
            session,
            sac.UnregisterConsumer(
                vhost=session.virtual_host,
                stream=consumer.stream.name,
                consumer_name=consumer.name,
                connection=session.connection_id,
                subscription_id=consumer.subscription_id,
            ),
        )

    def activate(self, session: RabbitSession, stream: str, name: str) -> None:
        """Let a group choose after a consumer has stepped down."""
        command = sac.ActivateConsumer(vhost=session.virtual_host, stream=stream, consumer_name=name)
        self._ask(session, command)

    def connection_down(self, session: RabbitSession) -> None:
        """Remove a connection that ended, with its consumers; on a cut node this is noticed when the node is
        back."""
        connection = session.connection_id
        if self._sessions.pop(connection, None) is not None and session.socket.node not in self._cut:
            self._ended.append(connection)
            if len(self._ended) == 1:
                self._end_next()

    def _end_next(self) -> None:
        """Let the groups of one connection choose again. If many end together, each has a turn of its own."""
        try:
            self.process(sac.ConnectionDown(self._ended[0]))
        finally:
            self._later(self._ended_one)

    def _ended_one(self) -> None:
        self._ended.popleft()
        if self._ended:
            self._end_next()
