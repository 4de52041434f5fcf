"""An asyncio connection to a broker: one TCP connection, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from fencepost.coordinator.codec.conversation import HEAD_BYTES, Conversation, Steps
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.protocol.errors import EnvironmentLacks

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the caller is cancelled, wait for the end first, so that it can be
    undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def reason_of(error: OSError) -> str:
    """Return the reason for a failed connection, in the system's words and in one line."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    # asyncio's own text includes the address, or all addresses if a name has several.
    number = error.errno or int(next(iter(re.findall(r"Errno (\d+)", str(error))), 0))
    return (os.strerror(number) if number else str(error) or type(error).__name__).lower()


class BrokerConnection:
    """A client's connection. It reconnects after a cancelled request, because that response is lost."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        self.address = host, port
        """Host and port of the broker."""
        self._timeout_s = timeout_s
        self._conversation = Conversation(client_id)
        self._turn = asyncio.Lock()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.host = ""
        """Our own address in the broker's notation."""

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, timeout_s: float = 15) -> BrokerConnection:
        """Connect.

        :raises EnvironmentLacks: if no broker listens there.
        """
        connection = cls(host, port, client_id, timeout_s)
        await connection._reconnect()
        return connection

    @property
    def peer(self) -> str:
        """The broker's address as text."""
        host, port = self.address
        return f"{host}:{port}"

    async def connect(self) -> None:
        """Connect, without a time limit of its own.

        :raises OSError: if there is no connection.
        """
        reader, writer = await asyncio.open_connection(*self.address)
        self._stream = reader, writer
        self.host = f"/{writer.get_extra_info('sockname')[0]}"

    async def _reconnect(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.connect()
        except (OSError, TimeoutError) as error:
            raise EnvironmentLacks(
                f"no broker answers at {self.peer} any more ({reason_of(error)})"
            ) from error

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """Return the broker's response. Requests of several tasks run one after the other.

        :raises EnvironmentLacks: if the broker closes the connection, does not respond, or responds with
            something else.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if self._stream is None:
                        await self._reconnect()
                    return await self._exchange(api_key, version, message)
            except TimeoutError as error:
                raise EnvironmentLacks(
                    f"{self.peer} does not answer API {api_key} within {self._timeout_s:g} s"
                ) from error
            except (OSError, asyncio.IncompleteReadError) as error:
                raise EnvironmentLacks(
                    f"{self.peer} closed the connection at API {api_key} version {version}: "
                    "it does not speak it, or it went down"
                ) from error
            except MalformedFrame as error:
                raise EnvironmentLacks(f"{self.peer} does not answer as a Kafka broker: {error}") from error

    async def follow(self, steps: Steps[T]) -> T:
        """Send the requests of the steps, and return their result.

        :raises OSError: if the connection breaks.
        :raises asyncio.IncompleteReadError: if the broker closes it.
        :raises MalformedFrame: if a response is not in Kafka's format.
        """
        try:
            ask = next(steps)
            while True:
                ask = steps.send(await self._exchange(*ask))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _exchange(self, api_key: int, version: int, message: Any) -> Any:
        assert self._stream is not None
        reader, writer = self._stream
        writer.write(self._conversation.request(api_key, version, message))
        try:
            await writer.drain()
            head = await reader.readexactly(HEAD_BYTES)
            rest = await reader.readexactly(self._conversation.remaining_bytes(head))
        except BaseException:
            self._stream = None
            writer.transport.abort()
            raise
        return self._conversation.response(rest)

    def hang_up(self) -> asyncio.StreamWriter | None:
        """Close the connection without waiting, so that it also works while being cancelled."""
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
