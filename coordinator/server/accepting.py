"""Accepts connections: in a crowd all that wait at a port, in one turn; with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog

from fencepost.coordinator.server.loop import accepts_quickly

log = structlog.get_logger(__name__)

BACKLOG = 1024
"""Number of clients that may wait to be accepted."""
HANDSHAKE_S = 20.0
"""A handshake that takes longer is given up."""
_GOODBYE_S = 1.0
"""Time that the peer has to close TLS on its side too, in s."""
_RETRY_S = 1.0


def socket_number(transport: asyncio.BaseTransport) -> int:
    """Return the file descriptor of a connection; -1 without one any more."""
    connected = transport.get_extra_info("socket")
    return -1 if connected is None else int(connected.fileno())


class Acceptor:
    """Makes a connection of each client that connects to a listening socket, until it is closed.

    With `tls` there is a handshake first, for the clients that `admits` allows. `on_failed` is called with a
    client whose handshake failed, and the reason.

    Event loops accept in different ways, some one client per turn. With those, a client would wait for
    seconds while a thousand others are served. Unless it `is_crowded`, one client per turn is enough: to find
    out that no other client waits takes longer than to accept. Until then, and without TLS, uvloop accepts by
    itself in half the time.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        admits: Callable[[str, int], bool] = lambda peer, socket_number: True,
        on_failed: Callable[[str, str], None] = lambda peer, reason: None,
        is_crowded: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make = make
        self._tls_options: dict[str, Any] = {}
        if tls is not None:
            self._tls_options["ssl"] = tls
            self._tls_options["ssl_handshake_timeout"] = HANDSHAKE_S
            self._tls_options["ssl_shutdown_timeout"] = _GOODBYE_S
        self._admits = admits
        self._on_failed = on_failed
        self._is_crowded = is_crowded
        self._under_way: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._one_by_one: asyncio.Task[None] | None = None
        self._few: asyncio.Server | None = None
        """The server with which the loop accepts by itself, if it does."""
        listening.setblocking(False)

    async def open(self) -> None:
        """Start accepting.

        :raises OSError: if there are no file descriptors left; the port is closed then.
        """
        if self._tls_options or self._is_crowded() or not accepts_quickly(self._loop):
            self._listen()
        else:
            try:
                mine = self._listening.dup()  # the loop closes the socket that it is given
            except OSError:
                self._listening.close()
                raise
            self._few = await self._loop.create_server(self._make_one_of_few, sock=mine, backlog=BACKLOG)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self._listening.getsockname()[1])

    def socket_numbers(self) -> list[int]:
        """Return the file descriptors of the port."""
        listening = [self._listening, *(() if self._few is None else self._few.sockets)]
        return [each.fileno() for each in listening]

    @property
    def handshakes(self) -> int:
        """Number of clients in a TLS handshake."""
        return len(self._under_way) if self._tls_options else 0

    def _make_one_of_few(self) -> asyncio.BaseProtocol:
        if self._is_crowded():
            self._loop.call_soon(self._take_over)
        return self._make()

    def _take_over(self) -> None:
        if self._few is not None:
            self._few.close()
            self._few = None
            self._listen()

    def _listen(self) -> None:
        self._later = None
        try:
            self._loop.add_reader(self._listening, self._accept)
        except RuntimeError:  # the usual loop of Windows has no readers
            self._one_by_one = self._loop.create_task(self._accept_one_by_one())

    async def _accept_one_by_one(self) -> None:
        while True:
            try:
                self._begin(*await self._loop.sock_accept(self._listening))
            except OSError as error:
                self._log_failure(error)
                await asyncio.sleep(_RETRY_S)

    def _accept(self) -> None:
        try:
            for _ in range(BACKLOG if self._is_crowded() else 1):
                self._begin(*self._listening.accept())
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # no other client waits, or it hung up
        except OSError as error:  # file descriptors or memory are used up
            self._loop.remove_reader(self._listening)
            self._later = self._loop.call_later(_RETRY_S, self._listen)
            self._log_failure(error)

    def _log_failure(self, error: OSError) -> None:
        if structlog.is_configured():
            log.warning("no_connection_accepted", reason=error.strerror, again_in_s=_RETRY_S)

    def _begin(self, client: socket.socket, address: tuple[Any, ...]) -> None:
        peer = f"{address[0]}:{address[1]}"
        if self._tls_options and not self._admits(peer, client.fileno()):
            client.close()
            return
        client.setblocking(False)
        task = self._loop.create_task(self._connect(client, peer))
        self._under_way.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            if task.cancelled():  # perhaps before it began
                client.close()
                if self._tls_options:
                    self._on_failed(peer, "the handshake was given up")

        task.add_done_callback(over)

    async def _connect(self, client: socket.socket, peer: str) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, client, **self._tls_options)
        except (OSError, ValueError) as error:  # what ssl and its timeouts raise are OSErrors
            client.close()
            if self._tls_options:
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                self._on_failed(peer, f"no TLS handshake: {reason}")

    def give_up(self) -> None:
        """Cut off clients in a handshake."""
        for task in self._under_way if self._tls_options else ():
            task.cancel()

    async def close(self) -> None:
        """Stop listening. Accepted clients are connected when this returns, or cut off."""
        if self._few is not None:
            self._few.close()
            self._few = None
            await asyncio.sleep(0)  # its accepted clients are connected in this turn
        elif self._one_by_one is not None:
            self._one_by_one.cancel()
        elif self._later is not None:
            self._later.cancel()
        else:
            self._loop.remove_reader(self._listening)
        self.give_up()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._listening.close()
