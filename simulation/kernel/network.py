"""Connections between members and brokers, on which messages take time, keep their order, and get lost.

A connection behaves like TCP: messages arrive in order or not at all, and none arrives twice. A member that
opens another connection can overtake itself. Rules decide the fate of a message when it is sent. If the
response to a request is silently lost, the request fails at its timeout and its connection is closed, as in
Kafka's clients.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

import msgspec

from fencepost.member.base.transport import Disconnected, RequestTimedOut, TransportError
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.rng import Draws, Quantiles, Samples
from fencepost.simulation.kernel.rules import PASS, Delay, Direction, Fate, Matching, Message, NetworkRule

LossHook: TypeAlias = Callable[[str, str, str, Any, int], None]


class Server(Protocol):
    """The broker's end of connections."""

    @property
    def name(self) -> str:
        """The host's name."""

    @property
    def up(self) -> bool:
        """True if the server accepts connections."""

    def receive(self, call: Call) -> None:
        """Take a request; respond with `call.answer`, now or later."""


class PipeState(enum.Enum):
    """The messages that a connection still carries."""

    OPEN = "open"
    STALLED = "stalled"
    """A message was lost on it: nothing gets through any more, and neither side knows."""
    CLOSED = "closed"
    """The member's side closed it; requests under way still arrive."""
    CUT = "cut"
    """Broken: nothing arrives."""


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
OPEN, STALLED, CLOSED, CUT = PipeState
REQUEST, RESPONSE = Direction


class Call(msgspec.Struct, eq=False):
    """A request under way, and its response. For the member's side it acts as a future.

    An asyncio future would take two more passes through the loop, and a run has a million calls.
    """

    connection: SimulatedConnection
    request: object
    deadline_us: int
    generation: int
    """The generation of the member's host when the request was sent."""
    response: object = None
    """The response, or the exception in its place; it is under way to the member until `done`."""
    _callbacks: tuple[Callable[[Any], object], ...] | None = ()
    """The callbacks to run when it is over; None once it is over."""

    # -- the broker's side --------------------------------------------------------------------------------

    def answer(self, response: object, ready_us: int) -> None:
        """Send the response at that time. An exception is delivered as the call's failure."""
        connection = self.connection
        network = connection.network
        if connection.pipe is not OPEN:
            if connection.pipe is STALLED:
                network.wait(self)
            return
        self.response = response
        arrives = ready_us + connection.samples.draw()
        if network.rules:
            delay = network.judge(self, RESPONSE, response)
            if delay is None:
                return
            arrives += delay
        if arrives > connection.responses_us:
            connection.responses_us = arrives
        else:
            arrives = connection.responses_us
        if arrives > self.deadline_us:
            network.wait(self)
        else:
            network.loop.schedule(arrives, network.deliver, self)

    # -- the member's side --------------------------------------------------------------------------------

    def is_expected(self) -> bool:
        """Return true if the process that sent it still exists and still waits."""
        return self._callbacks is not None and self.generation == self.connection.client.generation

    def finish(self) -> tuple[Callable[[Any], object], ...]:
        """End the call, and return the callbacks to run."""
        callbacks, self._callbacks = self._callbacks or (), None
        return callbacks

    def done(self) -> bool:
        """Return true if there is a result, or an exception."""
        return self._callbacks is None

    def cancelled(self) -> bool:
        """Return false: a request is never cancelled."""
        return False

    def exception(self) -> BaseException | None:
        """Return the exception that it failed with, if it did."""
        response = self.response
        return response if isinstance(response, BaseException) else None

    def result(self) -> Any:
        """Return the response; raise the exception if there is one."""
        response = self.response
        if isinstance(response, BaseException):
            raise response
        return response

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back with this call once it is done."""
        if self._callbacks is None:
            self.connection.network.loop.call_soon(callback, self)
        else:
            self._callbacks += (callback,)

    def __await__(self) -> Generator[Any, None, Any]:
        done = self.connection.network.loop.create_future()

        def wake(_: Call) -> None:
            if not done.done():  # its task may have been cancelled at this very moment, and it with the task
                done.set_result(None)

        self.add_done_callback(wake)
        yield from done
        return self.result()


class SimulatedConnection:
    """A member's connection to one broker."""

    __slots__ = ("calls", "client", "network", "pipe", "requests_us", "responses_us", "samples", "server")

    def __init__(self, network: Network, client: Host, server: Server, samples: Samples) -> None:
        self.network = network
        self.client = client
        self.server = server
        self.samples = samples
        self.pipe = OPEN
        self.calls: dict[Call, None] = {}
        self.requests_us = 0
        """Arrival time of the last request, in microseconds; the next one does not arrive earlier."""
        self.responses_us = 0


class Network:
    """All connections. Each message is passed to the `rules`, in their order."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: Draws,
        *,
        latency: Quantiles,
        detection: Quantiles,
        on_loss: LossHook,
    ) -> None:
        self.loop = loop
        self.rules: list[NetworkRule] = []
        self._draws = draws
        self._latency = latency
        self._detection = draws.samples("network/detection", detection)
        self._on_loss = on_loss
        self._connections: dict[SimulatedConnection, None] = {}
        """Connections that neither side knows to be closed, in the order in which they were made."""
        self._links: dict[tuple[str, str], Samples] = {}

    def connect(self, client: Host, server: Server) -> SimulatedConnection:
        """Open a connection; the handshake is one round trip, and the first request waits for it."""
        link = (client.name, server.name)
        samples = self._links.get(link)
        if samples is None:
            samples = self._draws.samples(f"link/{client.name}/{server.name}", self._latency)
            self._links[link] = samples
        connection = SimulatedConnection(self, client, server, samples)
        connection.requests_us = self.loop.now_us + samples.draw() + samples.draw()
        self._connections[connection] = None
        return connection

    def send(self, connection: SimulatedConnection, request: object, timeout_us: int) -> Call:
        """Send a request. The call fails with Disconnected or RequestTimedOut."""
        loop = self.loop
        now = loop.now_us
        call = Call(connection, request, now + timeout_us, connection.client.generation)
        connection.calls[call] = None
        arrives = now + connection.samples.draw()
        if connection.pipe is not OPEN:
            loop.schedule(call.deadline_us, self._time_out, call)
            return call
        if self.rules:
            delay = self.judge(call, REQUEST)
            if delay is None:
                return call
            arrives += delay
        if arrives > connection.requests_us:
            connection.requests_us = arrives
        else:
            arrives = connection.requests_us
        if arrives > call.deadline_us:
            loop.schedule(call.deadline_us, self._time_out, call)
        loop.schedule(arrives, self._arrive, call)
        return call

    def wait(self, call: Call) -> None:
        """Note that the server does not respond for now: the member's side gives up the call at its
        timeout."""
        self.loop.schedule(max(call.deadline_us, self.loop.now_us), self._time_out, call)

    def judge(self, call: Call, direction: Direction, response: object = None) -> int | None:
        """Return the delay that the rules add to a call's request, or to its response; None if that message
        is lost."""
        connection = call.connection
        member, broker = connection.client.name, connection.server.name
        message: Message | None = None
        for rule in self.rules:
            if not rule.concerns(member, broker, direction):
                continue
            if message is None:
                message = Message(member, broker, direction, call.request, response)
            verdict = rule.judge(message)
            if verdict is PASS:
                continue
            if isinstance(rule, Matching) and rule.spent:
                self.rules.remove(rule)
            if isinstance(verdict, Delay):
                return verdict.us
            self._on_loss(member, broker, direction, call.request, self.loop.now_us)
            if verdict is Fate.CUT:
                self.cut(connection)
            else:
                assert verdict is Fate.DROP, f"{verdict} is for bytes, and nothing here is bytes"
                connection.pipe = STALLED
                self.loop.schedule(call.deadline_us, self._time_out, call)
            return None
        return 0

    def _arrive(self, call: Call) -> None:
        connection = call.connection
        if connection.pipe is CUT:
            return
        if connection.pipe is STALLED:
            self.wait(call)
        elif connection.server.up:
            connection.server.receive(call)
        else:
            self.cut(connection)

    def deliver(self, call: Call) -> None:
        """Deliver the response."""
        connection = call.connection
        client = connection.client
        if connection.pipe is OPEN and not client.frozen:
            connection.calls.pop(call, None)
            callbacks = call._callbacks
            if callbacks is not None and call.generation == client.generation:
                call._callbacks = None
                # Nothing else is ready at this moment: the waiting task would run next in any case.
                for callback in callbacks:
                    callback(call)
        elif connection.pipe is OPEN or connection.pipe is STALLED:
            # A loss in the other direction came first; TCP would still deliver what had arrived before it.
            connection.client.run(self._complete, call)

    def _complete(self, call: Call) -> None:
        call.connection.calls.pop(call, None)
        if call.is_expected():
            self._finish(call)

    def _finish(self, call: Call) -> None:
        for callback in call.finish():
            self.loop.call_soon(callback, call)

    def _fail(self, call: Call, error: TransportError) -> None:
        call.response = error
        self._finish(call)

    # -- losses -----------------------------------------------------------------------------------------

    def cut(self, connection: SimulatedConnection) -> None:
        """Break a connection; the member's side notices after a while."""
        if connection.pipe in (OPEN, STALLED):
            connection.pipe = CUT
            self.loop.schedule(self.loop.now_us + self._detection.draw(), self._detected, connection)

    def cut_all(self, name: str) -> None:
        """Break all connections of a member's or a broker's host."""
        for connection in [c for c in self._connections if name in (c.client.name, c.server.name)]:
            self.cut(connection)

    def close(self, connection: SimulatedConnection) -> None:
        """Close a connection from the member's side: outstanding requests fail at once."""
        self._connections.pop(connection, None)
        if connection.pipe is not CUT:
            connection.pipe = CLOSED
        self._fail_all(connection)

    def forget(self, client: Host) -> None:
        """Forget a member's process: requests under way still arrive, but their responses are dropped."""
        for connection in [c for c in self._connections if c.client is client]:
            del self._connections[connection]
            if connection.pipe is not CUT:
                connection.pipe = CLOSED
            connection.calls.clear()

    def _detected(self, connection: SimulatedConnection) -> None:
        connection.client.run(self._hear_of_cut, connection)

    def _hear_of_cut(self, connection: SimulatedConnection) -> None:
        self._connections.pop(connection, None)
        connection.pipe = CLOSED
        self._fail_all(connection)

    def _fail_all(self, connection: SimulatedConnection) -> None:
        calls, connection.calls = connection.calls, {}
        for call in calls:
            if call.is_expected():
                self._fail(call, Disconnected(f"the connection to {connection.server.name} was lost"))

    def _time_out(self, call: Call) -> None:
        call.connection.client.run(self._give_up, call)

    def _give_up(self, call: Call) -> None:
        connection = call.connection
        connection.calls.pop(call, None)
        if call.is_expected():
            self._fail(call, RequestTimedOut(f"{connection.server.name} did not answer in time"))
            self.close(connection)
