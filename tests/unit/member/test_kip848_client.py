"""aiokafka's client as a member has it: what it opened is closed, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fencepost import KIP848Consumer
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.server.brokers import Broker
from fencepost.member.kafka.streams_member import WholeTopicReader
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail

pytestmark = pytest.mark.real

_SECONDS = 20


class Silent:
    """A broker that tells which versions it speaks, and answers nothing else."""

    def __init__(self) -> None:
        self.servers = ""
        self.asked = asyncio.Event()
        """Something came that it does not answer."""
        self.open = 0
        """Connections that clients have not closed."""
        self._gone = asyncio.Condition()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                api_key, _, correlation_id = struct.unpack(">hhi", request[:8])
                if api_key == ApiKey.API_VERSIONS:
                    spoken = struct.pack(">hihhhhhh", 0, 2, ApiKey.API_VERSIONS, 0, 0, ApiKey.METADATA, 0, 5)
                    writer.write(struct.pack(">ii", 4 + len(spoken), correlation_id) + spoken)
                else:
                    self.asked.set()
        writer.close()
        async with self._gone:
            self.open -= 1
            self._gone.notify_all()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Silent]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.servers = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def left(self) -> None:
        """Wait until no client has a connection any more."""
        async with asyncio.timeout(_SECONDS), self._gone:
            await self._gone.wait_for(lambda: not self.open)


async def consumer_of(servers: str) -> None:
    await KIP848Consumer("orders", bootstrap_servers=servers, group_id="g").start()


async def journal_of(servers: str) -> None:
    await GroupLogTail("g", servers).__aenter__()


@pytest.mark.parametrize("begin", [consumer_of, journal_of])
async def test_a_start_that_is_cancelled_closes_its_connection(
    begin: Callable[[str], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with Silent().serving() as broker:
        starting = asyncio.ensure_future(begin(broker.servers))
        async with asyncio.timeout(_SECONDS):
            await broker.asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await broker.left()
    assert "Unclosed" not in caplog.text


async def test_a_reader_of_topics_is_closed_with_no_broker_there() -> None:
    """aiokafka's own `stop` ends with a CancelledError of a fetch that waits to be made again."""
    async with Broker({"orders": 1}) as broker:
        reader = WholeTopicReader(["orders"], {"bootstrap_servers": broker.bootstrap_servers})
        await reader.start()
        await reader.poll()
    await reader.poll()
    await reader.close()
    client = reader._consumer._client
    assert client._sync_task is None
    assert not any(each.connected() for each in client._conns.values())
