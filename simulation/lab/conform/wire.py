"""A conversation with a broker: one TCP connection, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Coroutine
from typing import Any, TypeVar

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES, MalformedFrame
from fencepost.coordinator.codec.registry import api_name
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.clusters.probe import reason_of

_SIZE = struct.Struct(">i")

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Its result. Who is cancelled meanwhile waits for it first: what is done by then can be undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


class WireConnection:
    """A client's connection. After a request that was cancelled it begins anew, for the answer is lost."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        self._address = host, port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._turn = asyncio.Lock()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.host = ""
        """Our own address, as the broker prints it."""

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, timeout_s: float = 15) -> WireConnection:
        """Connect.

        :raises EnvironmentLacks: if nothing listens there.
        """
        connection = cls(host, port, client_id, timeout_s)
        await connection._connect()
        return connection

    @property
    def peer(self) -> str:
        """The broker's address."""
        host, port = self._address
        return f"{host}:{port}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(*self._address)
        except (OSError, TimeoutError) as error:
            raise EnvironmentLacks(
                f"no broker answers at {self.peer} any more ({reason_of(error)})"
            ) from error
        self._stream = reader, writer
        self.host = f"/{writer.get_extra_info('sockname')[0]}"
        return self._stream

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """The broker's answer. Requests of several tasks go one after the other.

        :raises EnvironmentLacks: if the broker closes the connection, does not answer, or answers with
            something else.
        """
        async with self._turn:
            self._correlation_id += 1
            request = request_frame(api_key, version, self._correlation_id, self._client_id, message)
            return await self._answer(api_key, version, request)

    async def _answer(self, api_key: int, version: int, request: bytes) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                number, answer = read_response(api_key, version, await self._exchange(request))
        except TimeoutError as error:
            raise EnvironmentLacks(
                f"{self.peer} does not answer {api_name(api_key)} within {self._timeout_s:g} s"
            ) from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise EnvironmentLacks(
                f"{self.peer} closed the connection at {api_name(api_key)} version {version}: "
                "it does not speak it, or it went down"
            ) from error
        except MalformedFrame as error:
            raise EnvironmentLacks(f"{self.peer} does not answer as a Kafka broker: {error}") from error
        if number != self._correlation_id:
            raise EnvironmentLacks(f"{self.peer} answered request {number} instead of {self._correlation_id}")
        return answer

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = self._stream or await self._connect()
        writer.write(request)
        try:
            (size,) = _SIZE.unpack(await reader.readexactly(4))
            if not 0 <= size <= KAFKA_MAX_FRAME_BYTES:
                raise MalformedFrame(f"frame of {size} bytes")
            return await reader.readexactly(size)
        except BaseException:
            self._stream = None
            writer.transport.abort()
            raise

    def hang_up(self) -> asyncio.StreamWriter | None:
        """Close the connection, and wait for nothing: this works while being cancelled."""
        if self._stream is None:
            return None
        _, writer = self._stream
        self._stream = None
        writer.transport.abort()
        return writer

    async def close(self) -> None:
        """Close the connection, at once, and wait until it is."""
        writer = self.hang_up()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
