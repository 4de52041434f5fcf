"""Accepting connections: everybody who waits at a port, in one turn of the loop, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

BACKLOG = 1024
"""How many clients may wait to be accepted."""
HANDSHAKE_S = 20.0
"""A handshake that takes longer is given up."""
_GOODBYE_S = 1.0
"""How long the other side may take to say goodbye too."""
_RETRY_S = 1.0


class Acceptor:
    """Makes a connection of each client that comes to a listening socket, from now on until it is closed.

    With `tls` there is a handshake first, unless `refusal` answers why not. `on_failed` is told of a client
    that did not come through it, and why.

    Loops accept in their own ways, and some a single client a turn: one that comes while a thousand others
    are served would wait for seconds.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        refusal: Callable[[], str | None] = lambda: None,
        on_failed: Callable[[str, str], None] = lambda peer, reason: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make = make
        self._tls_options: dict[str, Any] = {}
        if tls is not None:
            self._tls_options["ssl"] = tls
            self._tls_options["ssl_handshake_timeout"] = HANDSHAKE_S
            self._tls_options["ssl_shutdown_timeout"] = _GOODBYE_S
        self._refusal = refusal
        self._on_failed = on_failed
        self._under_way: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    @property
    def port(self) -> int:
        """The port that clients come to."""
        return int(self._listening.getsockname()[1])

    @property
    def handshakes(self) -> int:
        """How many clients shake hands."""
        return len(self._under_way) if self._tls_options else 0

    def _listen(self) -> None:
        self._later = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(BACKLOG):
                self._begin(*self._listening.accept())
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # nobody else waits, or went again
        except OSError as error:  # file descriptors or memory are used up
            self._loop.remove_reader(self._listening)
            self._later = self._loop.call_later(_RETRY_S, self._listen)
            if structlog.is_configured():
                log.warning("no_connection_accepted", reason=error.strerror, again_in_s=_RETRY_S)

    def _begin(self, client: socket.socket, address: tuple[Any, ...]) -> None:
        client.setblocking(False)
        task = self._loop.create_task(self._connect(client, f"{address[0]}:{address[1]}"))
        self._under_way.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            if task.cancelled():  # perhaps before it began
                client.close()

        task.add_done_callback(over)

    async def _connect(self, client: socket.socket, peer: str) -> None:
        if self._tls_options and (refusal := self._refusal()) is not None:
            client.close()
            self._on_failed(peer, refusal)
            return
        try:
            await self._loop.connect_accepted_socket(self._make, client, **self._tls_options)
        except asyncio.CancelledError:
            self._on_failed(peer, "the handshake was given up")
            raise
        except (OSError, ValueError) as error:  # what ssl and its timeouts raise are OSErrors
            client.close()
            if self._tls_options:
                reason = getattr(error, "reason", None) or error or type(error).__name__
                self._on_failed(peer, f"no TLS handshake: {reason}")

    def give_up(self) -> None:
        """Cut off those who still shake hands."""
        for task in self._under_way if self._tls_options else ():
            task.cancel()

    async def close(self) -> None:
        """Listen no more. Those who were accepted are connected when this returns, or cut off."""
        if self._later is None:
            self._loop.remove_reader(self._listening)
        else:
            self._later.cancel()
        self.give_up()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._listening.close()
