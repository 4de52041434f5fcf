"""The server's end of a client's connection: it sends commands to the coordinator and messages to the client.

It handles one thing at a time, in order of arrival, and does nothing else while it waits for the coordinator.
Its duties are those of RabbitMQ, listed in docs/sac.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol import sac
from fencepost.member.sac.offsets import OffsetKind, OffsetSpecification
from fencepost.member.sac.transport import SacSubscription, SubscriptionRefused

if TYPE_CHECKING:
    from fencepost.coordinator.sac.coordinator import SacInput
    from fencepost.simulation.sac.clients import ClientConnection
    from fencepost.simulation.sac.nodes import SacNode

CREDIT = 10
"""Chunks that a client allows with its subscription."""
_SHUTDOWN = frozenset({sac.SacError.COORDINATOR_UNAVAILABLE, sac.SacError.UNKNOWN_COMMAND})


class ServerConnection:
    """One connection on one node, with at most one subscription: its id is 0."""

    def __init__(self, name: str, node: SacNode, client: ClientConnection) -> None:
        self.id = f"{name}@{node.name}"
        self.node = node
        self.client = client
        self.alive = True
        self.subscription: SacSubscription | None = None
        self.active = False
        self.reading = False
        self._cluster = node.cluster
        self._inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._busy = False
        self._correlation = 0
        self._asked: dict[int, tuple[bool, int]] = {}
        """Consumer updates that the client has not answered, by correlation id: the activity, and the time in
        microseconds."""
        self.credit = 0
        """Chunks that may be sent before the client allows more."""
        self._next = 0
        self._reading = 0
        loop = self._cluster.loop
        loop.schedule(loop.now_us + self._cluster.spec.request_timeout.us, self._look, None)

    # -- what comes in --------------------------------------------------------------------------------------

    def post(self, handler: Callable[[Any], None], argument: object) -> None:
        """Handle something when its turn has come."""
        if self.alive:
            self._inbox.append((handler, argument))
            self._pump()

    def _pump(self) -> None:
        while self._inbox and not self._busy and self.alive:
            handler, argument = self._inbox.popleft()
            handler(argument)

    def _ask(self, command: SacInput, answered: Callable[[sac.SacReply], None]) -> None:
        """Send a command to the coordinator and wait; the connection ends if no reply arrives."""
        self._busy = True

        def answer(reply: sac.SacReply) -> None:
            if not self.alive:
                return
            if reply.error in _SHUTDOWN:
                self.end("shutdown")
                return
            self._busy = False
            answered(reply)
            self._pump()

        self._cluster.ask(self.node, command, answer)

    # -- the client's requests ------------------------------------------------------------------------------

    def subscribe(self, subscription: SacSubscription) -> None:
        """Handle the client's subscription."""
        command = sac.RegisterConsumer(
            stream=subscription.stream,
            consumer_name=subscription.name,
            connection=self.id,
            subscription_id=0,
            partition_index=subscription.partition_index,
            owner=self.client.owner,
        )

        def registered(reply: sac.SacReply) -> None:
            if reply.error is not None:
                self.client.send(self.client.refused, SubscriptionRefused(str(reply.error)))
                return
            self.subscription = subscription
            self.active = bool(reply.is_active)
            self.credit = CREDIT
            self.client.send(self.client.subscribed, None)

        self._ask(command, registered)

    def answered(self, answer: tuple[int, OffsetSpecification]) -> None:
        """Handle the client's response to a consumer update; what counts is whether the consumer is active by
        now."""
        correlation, offset = answer
        asked = self._asked.pop(correlation, None)
        if asked is None or self.subscription is None:
            return
        if self.active:
            self._open(self.subscription.offset if offset.kind is OffsetKind.NONE else offset)
        elif not asked[0]:
            if not self._asked:
                self._cluster.tell("on_let_go", self.id, self.client.owner)
            self._activate(self.subscription.stream, self.subscription.name)

    def _activate(self, stream: str, name: str) -> None:
        self._ask(sac.ActivateConsumer(stream=stream, consumer_name=name), lambda _: None)

    def credited(self, chunks: int) -> None:
        """Take further credit from the client."""
        self.credit += chunks
        self._send_next()

    def store(self, stored: tuple[SacSubscription, int]) -> None:
        """Store an offset for the client."""
        subscription, offset = stored
        self._cluster.offsets[subscription.stream, subscription.name] = offset

    def query(self, subscription: SacSubscription) -> None:
        """Handle the client's query for the stored offset."""
        found = self._cluster.offsets.get((subscription.stream, subscription.name))
        self.client.send(self.client.queried, found)

    # -- the coordinator's messages -------------------------------------------------------------------------

    def notified(self, message: sac.NotifyConsumer) -> None:
        """Tell the client that its consumer is to be active, or to step down."""
        subscription = self.subscription
        if subscription is None or subscription.stream != message.stream:
            if message.stepping_down:
                self._activate(message.stream, message.consumer_name)
            return
        self.active = message.active
        if not message.active:
            self.reading = False
        self._correlation += 1
        self._asked[self._correlation] = (message.active, self._cluster.loop.now_us)
        self.client.send(self.client.updated, (self._correlation, message.active))

    def checked(self, _: object) -> None:
        """Respond to the coordinator's check that the connection is alive."""
        self._ask(sac.ConnectionReconnected(self.id), lambda _: None)

    # -- the log --------------------------------------------------------------------------------------------

    def _open(self, offset: OffsetSpecification) -> None:
        assert self.subscription is not None
        self.reading = True
        self._reading += 1
        end = self._cluster.log_end(self.subscription.stream)
        match offset.kind:
            case OffsetKind.OFFSET:
                self._next = offset.value
            case OffsetKind.FIRST:
                self._next = 0
            case _:
                self._next = end
        self._cluster.tell("on_log_opened", self.client.owner, self._next, bool(self._asked))
        self._next -= self._next % self._cluster.spec.chunk
        self._send_next()

    def _send_next(self) -> None:
        """Send the available messages in chunks, or look again when there are more."""
        if not self.reading or self.subscription is None:
            return
        stream, loop, chunk = self.subscription.stream, self._cluster.loop, self._cluster.spec.chunk
        while self.credit > 0 and self._next < (log_end := self._cluster.log_end(stream)):
            self.credit -= 1
            first, self._next = self._next, min(self._next - self._next % chunk + chunk, log_end)
            self.client.send(self.client.delivered, (first, self._next - first))
        due = self._cluster.written_us(stream, self._next)
        if self.credit > 0 and due is not None:
            loop.schedule(max(due, loop.now_us + 1), self._more, self._reading)

    def _more(self, reading: int) -> None:
        if self.alive and reading == self._reading and self.reading:
            self._reading += 1
            self._send_next()

    # -- its end --------------------------------------------------------------------------------------------

    def _look(self, _: object) -> None:
        """Look now and then, and cut off a client that has owed a response for too long."""
        if not self.alive:
            return
        loop, limit = self._cluster.loop, self._cluster.spec.request_timeout.us
        if any(loop.now_us - since >= limit for _, since in self._asked.values()):
            self.end("request timeout")
        else:
            loop.schedule(loop.now_us + limit, self._look, None)

    def end(self, reason: str) -> None:
        """End the process. The coordinator is notified if it watches the connection, and the client as by
        TCP."""
        if not self.alive:
            return
        self.stop()
        self._cluster.connection_ended(self, reason)
        self.client.cut()

    def stop(self) -> None:
        """End the process without notifying any peer."""
        self.alive = False
        self.reading = False
        self._inbox.clear()
        self.node.connections.pop(self.id, None)
        self._cluster.tell("on_connection", self.id, self.client.owner, False)
