"""Clients: processes with one `SingleActiveConsumer` for each stream, and their connections to nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost.member.base.transport import Disconnected
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.consumer import ConsumerClosed, SingleActiveConsumer
from fencepost.member.sac.listener import SacListener
from fencepost.member.sac.offsets import NEXT, OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.member.sac.transport import ConnectionListener, SacSubscription
from fencepost.simulation.kernel.host import Host, HostClock
from fencepost.simulation.sac.connection import ServerConnection

if TYPE_CHECKING:
    from fencepost.simulation.sac.nodes import SacNode
    from fencepost.simulation.sac.world import SacWorld


class ClientConnection:
    """A client's end of a connection. Messages take time and keep their order, each way."""

    def __init__(self, subscriber: SacSubscriber, listener: ConnectionListener, owner: str) -> None:
        client = subscriber.client
        self.owner = owner
        self._subscriber = subscriber
        self._client = client
        self._world = client.world
        self._listener = listener
        self._generation = client.generation
        self._server: ServerConnection | None = None
        self._open = False
        self._heard_us = self._said_us = 0
        self._subscribing: asyncio.Future[None] | None = None
        self._queries: list[asyncio.Future[int | None]] = []
        self._connecting: asyncio.Future[ClientConnection] | None = None

    @property
    def may_be_sent(self) -> int:
        """Number of chunks that the node may send before the client allows more."""
        return 0 if self._server is None else self._server.credit

    # -- between the two ends -------------------------------------------------------------------------------

    def connect(self, node: SacNode | None) -> asyncio.Future[ClientConnection]:
        """Connect to a node: takes a round trip, and is refused if no node listens."""
        loop = self._world.loop
        self._connecting = future = loop.create_future()
        delay = self._world.latency(self._client.name) + self._world.latency(self._client.name)
        loop.schedule(loop.now_us + delay, self._connected, node)
        return future

    def _connected(self, node: SacNode | None) -> None:
        future = self._connecting
        assert future is not None
        if future.done() or self._generation != self._client.generation:
            return
        if node is None or not node.up:
            future.set_exception(Disconnected("nobody listens"))
            return
        self._open = True
        self._server = self._world.open_connection(node, self)
        future.set_result(self)

    def send(self, heard: Callable[[Any], None], argument: object) -> None:
        """Send a message from the server to the client."""
        loop = self._world.loop
        self._heard_us = max(loop.now_us + self._world.latency(self._client.name), self._heard_us)
        loop.schedule(self._heard_us, self._arrive, (heard, argument))

    def _arrive(self, message: tuple[Callable[[Any], None], Any]) -> None:
        self._client.run(self._hear, message)

    def _hear(self, message: tuple[Callable[[Any], None], Any]) -> None:
        if self._open and self._generation == self._client.generation:
            heard, argument = message
            heard(argument)

    def _say(self, handler: Callable[[ServerConnection, Any], None], argument: object) -> None:
        """Send a message from the client; it is lost if the connection ends first."""
        server, loop = self._server, self._world.loop
        assert server is not None
        self._said_us = max(loop.now_us + self._world.latency(self._client.name), self._said_us)

        def arrive(_: object) -> None:
            server.post(lambda each: handler(server, each), argument)

        loop.schedule(self._said_us, arrive, None)

    def cut(self) -> None:
        """Break the connection at the server's end; the client notices after a while."""
        loop = self._world.loop
        at = max(loop.now_us + self._world.detection.draw(), self._heard_us)
        loop.schedule(at, self._arrive, (self._lost, None))

    def _lost(self, _: object) -> None:
        if self._open:
            self._open = False
            self._fail_waiting()
            self._listener.disconnected("the connection was lost")

    def _fail_waiting(self) -> None:
        waiting: list[asyncio.Future[Any]] = [*self._queries]
        if self._subscribing is not None:
            waiting.append(self._subscribing)
        for future in waiting:
            if not future.done():
                future.set_exception(Disconnected("the connection is gone"))
                future.exception()

    def close(self) -> None:
        """Close the client's end, as it gave up or its process ended; the server notices after a while."""
        self._open = False
        self._fail_waiting()
        server, loop = self._server, self._world.loop
        if server is not None and server.alive:
            at = max(loop.now_us + self._world.latency(self._client.name), self._said_us)
            loop.schedule(at, lambda _: server.end("normal"), None)

    async def wait_closed(self) -> None:
        """Return at once: messages that were sent still arrive."""

    # -- requests of the consumer ---------------------------------------------------------------------------

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        """Subscribe."""
        self._subscribing = self._world.loop.create_future()
        self._say(ServerConnection.subscribe, subscription)
        return self._subscribing

    def answer(self, correlation_id: int, offset: OffsetSpecification) -> None:
        """Respond to a consumer update."""
        self._world.tell("on_client_answer", self._subscriber, correlation_id, offset)
        self._say(ServerConnection.answered, (correlation_id, offset))

    def credit(self, chunks: int) -> None:
        """Allow the server to send more chunks."""
        self._world.tell("on_client_credit", self._subscriber, chunks)
        self._say(ServerConnection.credited, chunks)

    def store_offset(self, subscription: SacSubscription, offset: int) -> None:
        """Store an offset."""
        self._say(ServerConnection.store, (subscription, offset))

    def query_offset(self, subscription: SacSubscription) -> asyncio.Future[int | None]:
        """Ask for the stored offset."""
        future = self._world.loop.create_future()
        self._queries.append(future)
        self._say(ServerConnection.query, subscription)
        return future

    # -- what the server says -------------------------------------------------------------------------------

    def subscribed(self, _: object) -> None:
        """Complete the subscription: the server accepted it."""
        assert self._subscribing is not None
        if not self._subscribing.done():
            self._subscribing.set_result(None)

    def refused(self, error: Exception) -> None:
        """Fail the subscription: the server refused it."""
        assert self._subscribing is not None
        if not self._subscribing.done():
            self._subscribing.set_exception(error)

    def updated(self, update: tuple[int, bool]) -> None:
        """Pass on a consumer update."""
        self._world.tell("on_client_update", self._subscriber, *update)
        self._listener.consumer_update(*update)

    def delivered(self, chunk: tuple[int, int]) -> None:
        """Pass on a chunk: its first offset, and its number of messages."""
        first, count = chunk
        self._listener.delivered(first, (b"",) * count)

    def queried(self, offset: int | None) -> None:
        """Complete the oldest query with its response."""
        future = self._queries.pop(0)
        if not future.done():
            future.set_result(offset)


class SacSubscriber(SacListener):
    """One consumer of a client, its connection to the nodes, and its observers."""

    def __init__(self, client: SacClientHost, subscription: SacSubscription) -> None:
        self.client = client
        self.subscription = subscription
        self.name = f"{client.name}/{subscription.stream}"
        self.consumer = SingleActiveConsumer(
            subscription,
            self,
            listener=self,
            clock=client.clock,
            rng=client.world.draws.random(f"consumer/{self.name}/{client.generation}"),
            observer=self,
        )
        self.connection: ClientConnection | None = None
        self.heard: SacCallback | None = None
        """The callback that the application got last; None while the consumer has begun another one."""
        self._connections = 0

    def connect(self, listener: ConnectionListener) -> asyncio.Future[Any]:
        """Connect to the next node that runs."""
        world = self.client.world
        self._connections += 1
        number = f"{self.name}/{self.client.generation}.{self._connections}"
        self.connection = ClientConnection(self, listener, number)
        return self.connection.connect(world.choose_node())

    async def on_activated(self, consumer: SingleActiveConsumer) -> None:
        """Wait as long as choosing an offset takes; continue after the stored offset."""
        self.heard = SacCallback.ACTIVATED
        await self.client.pause_us(self.client.world.callback_times.draw())

    async def on_stepping_down(self, consumer: SingleActiveConsumer) -> None:
        """Wait as long as letting go takes."""
        self.heard = SacCallback.STEPPING_DOWN
        slow, self.client.slow_us = self.client.slow_us, 0
        await self.client.pause_us(slow or self.client.world.callback_times.draw())

    async def on_lost(self, consumer: SingleActiveConsumer) -> None:
        """Note that the application was notified."""
        self.heard = SacCallback.LOST

    def on_state(self, event: SacMemberEvent, source: SacMemberState, target: SacMemberState) -> None:
        """Tell observers that the consumer changed its state."""
        self.client.world.tell("on_client_state", self, event, source, target)

    def on_callback(self, kind: SacCallback, phase: str) -> None:
        """Tell observers of a callback of the consumer."""
        if phase == "begin":
            self.heard = None
        self.client.world.tell("on_client_callback", self, kind, phase)

    def on_answer(self, offset: OffsetSpecification) -> None:
        """Tell observers of a response of the consumer."""

    async def work(self) -> None:
        """Process messages, one after the other, until the consumer is closed."""
        world = self.client.world
        with contextlib.suppress(ConsumerClosed):
            await self.consumer.start()
        async for message in self.consumer:
            await self.client.pause_us(world.processing_times.draw())
            world.tell("on_processed", self, message.offset)
            self.consumer.store_offset(message.offset)


class SacClientHost(Host):
    """One client: a process with a consumer for each stream."""

    def __init__(self, name: str, world: SacWorld) -> None:
        super().__init__(name, world.loop)
        self.world = world
        self.wanted = False
        self.running = False
        self.slow_us = 0
        """Delay of the process's next consumer that steps down, in microseconds."""
        self.subscribers: list[SacSubscriber] = []
        self.clock = HostClock(self)

    def start(self) -> None:
        """Start the process."""
        if self.running:
            return
        self.running = True
        self.world.tell("on_host", self.name, "start")
        for subscription in self.world.subscriptions:
            subscriber = SacSubscriber(self, subscription)
            self.subscribers.append(subscriber)
            self.spawn(subscriber.work())

    def stop(self, *, come_back: bool) -> None:
        """Close all consumers, then end the process; with `come_back`, start it again after the time of a
        restart.

        A frozen process learns of it when it thaws.
        """
        self.wanted = come_back
        self.run(self._stop, None)

    def _stop(self, _: object) -> None:
        if self.running:
            self.world.tell("on_host", self.name, "stop")
            self.spawn(self._close(self.generation))

    async def _close(self, generation: int) -> None:
        closing = [self.spawn(each.consumer.close()) for each in self.subscribers]
        for task in closing:  # asyncio.gather takes more turns of the loop in some Pythons than in others
            await task
        if self.generation == generation:
            self._end("stopped")
            if self.wanted:
                self.restart_later()

    def restart_later(self) -> None:
        """Start the next process after the time that a restart takes."""
        self.world.supervisor.restart_later(self)

    def slow_callback(self, lasts_us: int) -> None:
        """Make the process's next callback take that much longer."""
        self.slow_us = max(1, lasts_us, self.slow_us)

    def crash(self) -> None:
        """End the process abruptly; its connections are reset."""
        if self.running:
            self._end("crash")

    def _end(self, what: str) -> None:
        self.world.tell("on_host", self.name, what)
        self.vanish()

    def vanish(self) -> None:
        """End the process without notifying any peer."""
        self.running = False
        self.slow_us = 0
        self.end()
        for subscriber in self.subscribers:
            subscriber.consumer.abandon()
        self.cancel_tasks()
        self.subscribers.clear()

    def freeze_process(self) -> None:
        """Freeze the process."""
        if self.running and not self.frozen:
            self.freeze()
            self.world.tell("on_host", self.name, "freeze")

    def thaw_process(self) -> None:
        """Resume the process."""
        if self.frozen:
            self.world.tell("on_host", self.name, "thaw")
            self.thaw()


def subscription_of(group: str, stream: str, index: int, super_stream: str | None) -> SacSubscription:
    """Return a client's subscription to one stream."""
    return SacSubscription(
        stream=stream, name=group, partition_index=index, super_stream=super_stream, offset=NEXT
    )
