"""The network of a world against that of the machine: the same programs, on both loops."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import SimulatedWorld, run_simulated
from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.kernel.rng import Draws, constant
from fencepost.simulation.kernel.rules import Direction, Matching, dropping
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.machine import Machine
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.substitutes import substituted


def virtually(main: Callable[[], Awaitable[Any]], *, seed: int = 1, latency_us: int = 1_000) -> Any:
    """Run a coroutine function on the loop of a world."""
    loop = WorldLoop(max_events=1_000_000)
    draws = Draws(seed)
    loop.network = VirtualNetwork(loop, draws, constant(latency_us))
    try:
        with substituted(Machine(loop, draws)):
            return loop.run_until_complete(_alone(main))
    finally:
        for transport in tuple(loop._transports.values()):
            transport._sock = None  # as after a run: else it warns that nobody has closed it
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # tests leave connections open
            gc.collect()


async def _alone(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run it, and end the tasks that it leaves: handlers of connections that are open still."""
    try:
        return await main()
    finally:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)


# -- the same as on the machine --------------------------------------------------------------------

_chunk = st.binary(min_size=1, max_size=3_000)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _chunk),
        st.tuples(st.just("drain"), st.just(b"")),
        st.tuples(st.just("yield"), st.just(b"")),
    ),
    max_size=12,
)
_ends = st.sampled_from(["half-close", "close"])


async def _converse(
    steps: list[tuple[str, bytes]], answers: list[tuple[str, bytes]], end: str, limit: int
) -> tuple[bytes, bytes]:
    """One side writes and ends, the other answers when it has read all; what each side got."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def play(writer: asyncio.StreamWriter, what: list[tuple[str, bytes]]) -> None:
        for step, data in what:
            if step == "write":
                writer.write(data)
            elif step == "drain":
                await writer.drain()
            else:
                await asyncio.sleep(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.read())
        if end == "half-close":  # else nobody reads them
            await play(writer, answers)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=limit)
    host, port = server.sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port, limit=limit)
    await play(writer, steps)
    if end == "half-close":
        writer.write_eof()
        answer = await reader.read()
    else:
        answer = b""
    writer.close()
    await writer.wait_closed()
    heard = await got
    server.close()
    await server.wait_closed()
    return heard, answer


@given(steps=_steps, answers=_steps, end=_ends, limit=st.sampled_from([64, 2**16]))
def test_streams_carry_what_they_carry_on_the_machine(
    steps: list[tuple[str, bytes]], answers: list[tuple[str, bytes]], end: str, limit: int
) -> None:
    real = asyncio.run(_converse(steps, answers, end, limit))
    assert virtually(lambda: _converse(steps, answers, end, limit)) == real


class _Recorder(asyncio.Protocol):
    """Notes the callbacks of a protocol in their order."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.transport: Any = None
        self.received = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def eof_received(self) -> bool | None:
        self.told.append(f"end after {self.received}")
        return None

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost" if error is None else f"lost {type(error).__name__}")
        self.over.set_result(None)


async def _flood(size: int, high: int) -> tuple[list[str], list[str]]:
    """A client writes more than the other side reads; then that one reads all."""
    loop = asyncio.get_running_loop()
    client_told: list[str] = []
    server_told: list[str] = []
    served: asyncio.Future[_Recorder] = loop.create_future()

    def serve() -> _Recorder:
        recorder = _Recorder(server_told)
        loop.call_soon(served.set_result, recorder)
        return recorder

    server = await loop.create_server(serve, "127.0.0.1", 0)
    transport, client = await loop.create_connection(
        lambda: _Recorder(client_told), *server.sockets[0].getsockname()[:2]
    )
    other = await served
    other.transport.pause_reading()
    transport.set_write_buffer_limits(high=high)
    transport.write(b"x" * size)
    await asyncio.sleep(0.05)
    other.transport.resume_reading()
    transport.close()
    await client.over
    await other.over
    server.close()
    await server.wait_closed()
    return client_told, server_told


@pytest.mark.parametrize(("size", "high"), [(100, 64), (50_000_000, 1_000), (50_000_000, 60_000_000)])
def test_protocols_are_called_as_on_the_machine(size: int, high: int) -> None:
    assert virtually(lambda: _flood(size, high)) == asyncio.run(_flood(size, high))


async def _abort(unread: bool) -> list[str]:
    """The server aborts, with or without bytes that it has not read."""
    loop = asyncio.get_running_loop()
    told: list[str] = []
    served: asyncio.Future[Any] = loop.create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            served.set_result(transport)

    server = await loop.create_server(Server, "127.0.0.1", 0)
    transport, client = await loop.create_connection(
        lambda: _Recorder(told), *server.sockets[0].getsockname()[:2]
    )
    other = await served
    if unread:
        other.pause_reading()
        transport.write(b"x" * 1_000)
        await asyncio.sleep(0.05)
    other.abort()
    await client.over
    server.close()
    await server.wait_closed()
    return told


@pytest.mark.parametrize("unread", [False, True])
def test_aborted_connection_ends_as_on_the_machine(unread: bool) -> None:
    assert virtually(lambda: _abort(unread)) == asyncio.run(_abort(unread))


async def _refused() -> int | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return error.errno
    return None


def test_connection_to_a_closed_port_is_refused() -> None:
    assert virtually(_refused) == asyncio.run(_refused()) == errno.ECONNREFUSED


async def _anyio_echo() -> bytes:
    """A server and a client by anyio alone."""

    async def handle(stream: Any) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data.upper())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"hello")
            answer = await stream.receive()
            length = await anyio.to_thread.run_sync(len, answer)
        group.cancel_scope.cancel()
    await listener.aclose()
    assert length == len(answer)
    return answer


def test_anyio_works_on_the_virtual_loop() -> None:
    assert virtually(_anyio_echo) == anyio.run(_anyio_echo) == b"HELLO"


# -- what only a simulated network does ------------------------------------------------------------


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


def test_message_takes_the_latency_of_its_link() -> None:
    async def main() -> float:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]
        host = network.add_host("server")
        server = await asyncio.start_server(_echo, host.address, 7)
        reader, writer = await asyncio.open_connection("server", 7)
        begin = asyncio.get_running_loop().time()
        writer.write(b"x")
        await reader.read(1)
        took = asyncio.get_running_loop().time() - begin
        writer.close()
        server.close()
        return took

    assert virtually(main, latency_us=5_000) == pytest.approx(0.010)


def test_lost_segment_is_sent_again_and_keeps_its_place() -> None:
    async def main() -> tuple[bytes, float, list[float]]:
        loop = asyncio.get_running_loop()
        network = loop.network  # type: ignore[attr-defined]
        host = network.add_host("server")
        server = await asyncio.start_server(_echo, host.address, 7)
        reader, writer = await asyncio.open_connection("server", 7)
        network.rules.append(Matching(dropping, direction=Direction.REQUEST, limit=1))
        begin = loop.time()
        writer.write(b"one ")
        await asyncio.sleep(0)
        writer.write(b"two")
        heard = await reader.readexactly(7)
        took = loop.time() - begin
        writer.close()
        server.close()
        await asyncio.sleep(1)  # until the other side has closed too
        return heard, took, [each.hindered_us / 1e6 - begin for each in (network.here(), host)]

    heard, took, hindered = virtually(main)
    assert heard == b"one two"
    assert took == pytest.approx(0.202, abs=0.001)
    assert hindered == pytest.approx([0.2, 0.2], abs=0.001)


def test_cut_connection_is_reset_on_both_sides() -> None:
    async def main() -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]
        host = network.add_host("server")
        server = await asyncio.start_server(_echo, host.address, 7)
        reader, writer = await asyncio.open_connection("server", 7)
        network.cut_all("server")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        server.close()

    virtually(main)


@pytest.mark.parametrize(("bound", "is_reached"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_server_is_reached_only_at_its_address(bound: str, is_reached: bool) -> None:
    reached: dict[tuple[str, str], bool] = {}

    async def connect(name: str) -> None:
        try:
            _, writer = await asyncio.open_connection(name, 7)
        except ConnectionRefusedError:
            reached[socket.gethostname(), name] = False
        else:
            reached[socket.gethostname(), name] = True
            writer.close()

    async def serve() -> None:
        await asyncio.start_server(_echo, bound, 7)
        await connect("localhost")
        await connect("server")
        await asyncio.sleep(1_000)

    async def test(world: SimulatedWorld) -> None:
        server = world.process("server", serve)
        await asyncio.sleep(1)
        await world.process("client", connect, "server").ended()
        server.kill()

    assert run_simulated(test, faults=()).violations == []
    assert reached == {
        ("server", "localhost"): True,
        ("server", "server"): is_reached,
        ("client", "server"): is_reached,
    }


def test_unknown_host_is_named_with_those_that_exist() -> None:
    async def main() -> None:
        with pytest.raises(socket.gaierror, match=r"no host .* 'kafka-9'; there are test"):
            await asyncio.open_connection("kafka-9", 9092)

    virtually(main)


def test_blocking_socket_is_refused_with_what_to_use() -> None:
    async def main() -> None:
        with pytest.raises(OutsideWorld, match=r"socket.connect\(\) can't run .* Use asyncio's streams"):
            socket.create_connection(("127.0.0.1", 1))

    virtually(main)
