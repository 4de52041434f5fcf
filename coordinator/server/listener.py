"""One port that clients connect to, and the connections on it.

A process that forks while brokers run keeps their sockets to itself: its child does not have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, cast

import structlog

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.server.accepting import BACKLOG, Acceptor
from fencepost.coordinator.server.listener_config import address_text


class HasSockets(Protocol):
    """An object with sockets that only this process should have."""

    def socket_numbers(self) -> Iterable[int]:
        """Return the file descriptors of open sockets."""


_of_this_process: weakref.WeakSet[HasSockets] = weakref.WeakSet()


def keep_from_children(sockets: HasSockets) -> None:
    """Close the sockets in forked children. Otherwise they stay open after they are closed here, and clients
    wait at them."""
    _of_this_process.add(sockets)


def _let_go() -> None:
    # The numbers stay in use: otherwise objects in the child would close other files with these numbers.
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in _of_this_process:
        for number in each.socket_numbers():
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    _of_this_process.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


log = structlog.get_logger(__name__)

_FEW = 16
"""Number of connections that do not keep the loop busy for long."""
RESERVED_FILES = 32
"""File descriptors that connections leave free, at most a quarter of all: loading a module takes one too."""
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class Closable(Protocol):
    """A connection, as the protocol that asyncio drives."""

    def close(self) -> None:
        """Close it; data that its client does not read is dropped."""

    @property
    def socket_number(self) -> int:
        """Its file descriptor; -1 without one any more."""


C = TypeVar("C", bound=Closable)
Made_co = TypeVar("Made_co", bound=Closable, covariant=True)


class ConnectionFactory(Protocol[Made_co]):
    """Makes the protocol of a new connection. It calls `on_made` when it is connected, and closes with the
    reason that this returns; it calls `on_lost` when the connection is lost."""

    def __call__(
        self, *, on_made: Callable[[Made_co], str | None], on_lost: Callable[[Made_co], None]
    ) -> Made_co:
        """Make one."""


class Listener(Generic[C]):
    """Serves the clients of one broker. `port` 0 takes a free one, and is that one once it is opened.

    With `tls` clients have to speak TLS.
    """

    def __init__(
        self, host: str, port: int, *, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.host = host
        self.port = port
        self._max_connections = max_connections
        self._first_reserved = _first_reserved()
        self.connections: dict[C, None] = {}
        """All open connections."""
        self._tls = tls
        self._closing = False
        self._all_gone: asyncio.Event | None = None
        self._acceptor: Acceptor | None = None

    async def open(self, connect: ConnectionFactory[C]) -> None:
        """Listen, and make a connection of each client.

        :raises EnvironmentLacks: if the port is taken or not allowed, or the host is not one of this machine.
        """
        self._closing = False

        def made() -> asyncio.BaseProtocol:
            return cast("asyncio.BaseProtocol", connect(on_made=self._made, on_lost=self._lost))

        try:
            address = await _address(self.host)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            # Not asyncio's own: since Python 3.12 it does not report why an address can't be used.
            listening = socket.create_server((address, self.port), family=family, backlog=BACKLOG)
            acceptor = Acceptor(
                listening,
                made,
                tls=self._tls,
                admits=self._admits,
                on_failed=self._log_closed,
                is_crowded=lambda: len(self.connections) > _FEW,
            )
            await acceptor.open()
        except OSError as error:
            raise EnvironmentLacks(why_not_listening(error, self.host, self.port)) from error
        self._acceptor, self.port = acceptor, acceptor.port
        keep_from_children(self)

    def drop(self) -> None:
        """Close all connections; the port stays open."""
        if self._acceptor is not None:
            self._acceptor.give_up()
        for connection in tuple(self.connections):
            connection.close()

    async def close(self) -> None:
        """Stop listening and close all connections. Clients get no message, as when a broker dies."""
        if self._acceptor is None:
            return
        self._closing = True
        await self._acceptor.close()
        self._acceptor = None
        self.drop()
        if self.connections:
            self._all_gone = asyncio.Event()
            await self._all_gone.wait()

    def socket_numbers(self) -> list[int]:
        """Return the file descriptors of the port and of the connections."""
        numbers = [connection.socket_number for connection in self.connections]
        if self._acceptor is not None:
            numbers += self._acceptor.socket_numbers()
        return [number for number in numbers if number >= 0]

    @property
    def address(self) -> str:
        """Host and port, as a client's setting `bootstrap.servers` takes them."""
        return address_text(self.host, self.port)

    def _made(self, connection: C) -> str | None:
        self.connections[connection] = None
        if self._closing:
            return "the broker is closing"
        if self._tls is None and len(self.connections) > self._max_connections:
            return "too many connections"
        if connection.socket_number >= self._first_reserved:
            return _NO_FILES_LEFT
        return None

    def _lost(self, connection: C) -> None:
        self.connections.pop(connection, None)
        if not self.connections and self._all_gone is not None:
            self._all_gone.set()

    def _admits(self, peer: str, socket_number: int) -> bool:
        """Return true if there is room for one more."""
        assert self._acceptor is not None
        if socket_number >= self._first_reserved:
            self._log_closed(peer, _NO_FILES_LEFT)
            return False
        if len(self.connections) + self._acceptor.handshakes >= self._max_connections:
            self._log_closed(peer, "too many connections")
            return False
        return True

    def _log_closed(self, peer: str, reason: str) -> None:
        if not self._closing and structlog.is_configured():
            log.warning("connection_closed", peer=peer, reason=reason)


_NO_FILES_LEFT = "no file descriptors left for connections (RESERVED_FILES): raise `ulimit -n`"


def _first_reserved() -> int:
    """Return the number of the first file descriptor that no connection may have. The lowest free ones are
    used."""
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - min(RESERVED_FILES, limit // 4)


async def _address(host: str) -> str:
    """Return one address: a name with two addresses would get two ports, and clients would learn only one."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def why_not_listening(error: OSError, host: str, port: int) -> str:
    """Return the reason why a socket can't listen there, and what to do."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken: stop the program that listens there, or choose another port "
            "(0: any free)"
        )
    if error.errno == errno.EACCES:
        return f"listening on {where} is not allowed: choose a port from 1024 on"
    if error.errno in _NO_SUCH_ADDRESS or isinstance(error, socket.gaierror):
        return f"{host} is not an address of this machine: choose 127.0.0.1, or 0.0.0.0 for all of them"
    return f"can't listen on {where}: {error.strerror or error}"
