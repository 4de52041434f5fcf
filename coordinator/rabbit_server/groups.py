"""Runs the coordinator of single active consumers for the connections of one node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac import (
    ActivateConsumer,
    CheckConnection,
    ConnectionDown,
    ConnectionId,
    ConnectionReconnected,
    NotifyConsumer,
    RegisterConsumer,
    SacReply,
    UnregisterConsumer,
)
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.refusal import Refused
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput

if TYPE_CHECKING:
    from fencepost.coordinator.rabbit_server.consuming import Consumer
    from fencepost.coordinator.rabbit_server.session import Session


class Groups:
    """The coordinator, and the way between it and connections.

    What it tells a connection comes later than the answer to the command that led to it: `later` runs a
    callable when what runs now is done.
    """

    def __init__(
        self, now_ms: Callable[[], int], later: Callable[[Callable[[], None]], object], *, node: str
    ) -> None:
        self.coordinator = SacCoordinator()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a group has changed, or what is known of one of its consumers."""
        self._now_ms = now_ms
        self._later = later
        self._node = node
        self._sessions: dict[ConnectionId, Session] = {}
        self._messages: deque[NotifyConsumer | CheckConnection] = deque()

    def connection_id(self, session: Session) -> ConnectionId:
        """The name by which the coordinator knows a connection."""
        return f"{session.number}@{self._node}"

    def session_of(self, connection: ConnectionId) -> Session | None:
        """The connection behind a name, if it is open."""
        return self._sessions.get(connection)

    def process(self, event: SacInput) -> SacReply | None:
        """One step of the coordinator: what it says is applied, and then told."""
        outcome = self.coordinator.handle(event, self._now_ms())
        for record in outcome.records:
            self.coordinator.apply(record)
        was_quiet = not self._messages
        self._messages.extend(
            each for each in outcome.effects if isinstance(each, NotifyConsumer | CheckConnection)
        )
        if self._messages and was_quiet:
            self._later(self._tell)
        if outcome.records:
            self.on_change()
        return outcome.reply

    def run_due(self) -> None:
        """Forget the connections that have been away for too long."""
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= self._now_ms():
            self.process(DeadlineReached())

    def _tell(self) -> None:
        """Hand connections what they are to be told, in order; what that leads to is told behind it."""
        while self._messages:
            message = self._messages.popleft()
            session = self._sessions.get(message.connection)
            if session is None:
                continue
            if isinstance(message, CheckConnection):
                self.process(ConnectionReconnected(message.connection))
            else:
                self._notify(session, message)
        self.on_change()

    def _notify(self, session: Session, message: NotifyConsumer) -> None:
        consumer = session.consumers.get(message.subscription_id)
        if consumer is not None and consumer.is_of(message.stream, message.consumer_name):
            consumer.update(active=message.active)
        elif message.stepping_down:
            # Nobody is left to step down: without this the group would wait for ever.
            self._activate(session.virtual_host, message.stream, message.consumer_name)

    # -- what connections ask ---------------------------------------------------------------------------

    def register(self, session: Session, consumer: Consumer) -> bool:
        """A consumer joins its group; whether it is the active one.

        :raises Refused: if the group is there with another partition index.
        """
        connection = self.connection_id(session)
        self._sessions[connection] = session
        reply = self.process(
            RegisterConsumer(
                vhost=session.virtual_host,
                stream=consumer.stream.name,
                consumer_name=consumer.name,
                partition_index=consumer.partition_index,
                connection=connection,
                subscription_id=consumer.subscription_id,
                owner=session.name,
            )
        )
        assert reply is not None
        if reply.error is not None:
            raise Refused(ResponseCode.PRECONDITION_FAILED, f"{consumer.name!r}: {reply.error}")
        return bool(reply.is_active)

    def unregister(self, session: Session, consumer: Consumer) -> None:
        """A consumer leaves its group."""
        self.process(
            UnregisterConsumer(
                vhost=session.virtual_host,
                stream=consumer.stream.name,
                consumer_name=consumer.name,
                connection=self.connection_id(session),
                subscription_id=consumer.subscription_id,
            )
        )

    def stepped_down(self, session: Session, consumer: Consumer) -> None:
        """A consumer has let go: its group can choose."""
        self._activate(session.virtual_host, consumer.stream.name, consumer.name)

    def _activate(self, virtual_host: str, stream: str, name: str) -> None:
        self.process(ActivateConsumer(vhost=virtual_host, stream=stream, consumer_name=name))

    def connection_down(self, session: Session) -> None:
        """A connection is no more, and its consumers with it."""
        connection = self.connection_id(session)
        if self._sessions.pop(connection, None) is not None:
            self.process(ConnectionDown(connection))
