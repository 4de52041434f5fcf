"""TLS: what the server shows of itself, and the handshake before a connection is served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from fencepost.coordinator.protocol.errors import FencepostError

HANDSHAKE_S = 20.0
"""A handshake that takes longer is given up."""
_GOODBYE_S = 1.0
"""How long the other side may take to say goodbye too."""


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """What a server needs of TLS: a certificate with its chain and its key, PEM both; one file may hold both.

    :raises FencepostError: if a file can't be read, or is not that.
    """
    shown = _pem(certificate, "certificate")
    if b"CERTIFICATE-----" not in shown:
        raise FencepostError(f"TLS certificate {certificate}: there is no PEM certificate in it")
    if key is None and b"PRIVATE KEY-----" not in shown:
        raise FencepostError(
            f"TLS certificate {certificate}: there is no PEM key in it: expected one, or another file with it"
        )
    if key is not None and b"PRIVATE KEY-----" not in _pem(key, "key"):
        raise FencepostError(f"TLS key {key}: there is no PEM key in it")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    where = f"TLS certificate {certificate}" + (f" with key {key}" if key is not None else "")
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _Locked:
        raise FencepostError(f"{where}: the key needs a password, expected one without") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise FencepostError(f"{where}: the key belongs to another certificate") from None
        expected = "a PEM certificate, and the PEM key that belongs to it"
        raise FencepostError(f"{where}: {error.reason or 'can not be read'}; expected {expected}") from None
    return context


def _pem(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or "it can't be read").lower()
        raise FencepostError(f"TLS {what} {file}: {reason}") from None


class _Locked(Exception):
    """The key is encrypted."""


def _no_password() -> str:
    raise _Locked


class Handshake(asyncio.Protocol):
    """Shakes hands on an accepted connection, then hands it on to the protocol that `make` makes.

    `on_begin` may answer why the client is refused; `on_end` is told when the handshake is over, with a
    reason if it failed.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        on_begin: Callable[[Handshake], str | None],
        on_end: Callable[[Handshake, str | None], None],
    ) -> None:
        self._context = context
        self._make = make
        self._on_begin = on_begin
        self._on_end = on_end
        self._early: list[bytes] = []
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None
        self.peer = "unknown"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there, and nothing is read before the handshake begins."""
        plain = cast("asyncio.Transport", transport)
        if (peer := transport.get_extra_info("peername")) is not None:
            self.peer = f"{peer[0]}:{peer[1]}"
        if (refusal := self._on_begin(self)) is not None:
            plain.abort()
            self._on_end(self, refusal)
            return
        plain.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._shake(plain))

    def data_received(self, data: bytes) -> None:
        """Bytes that came with the end of the handshake."""
        self._early.append(data)

    def eof_received(self) -> bool:
        """The client went at once."""
        self._is_lost = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The client went at once."""
        self._is_lost = True

    def cancel(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, plain: asyncio.Transport) -> None:
        failure: str | None = "the handshake was given up"
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
            failure = None
        except (OSError, ValueError) as error:  # what ssl and its timeouts raise are OSErrors
            failure = f"no TLS handshake: {getattr(error, 'reason', None) or error or type(error).__name__}"
            plain.abort()
        finally:
            self._on_end(self, failure)
        if failure is None and secured is not None:
            self._hand_on(secured)

    def _hand_on(self, secured: asyncio.Transport) -> None:
        if self._is_lost or secured.is_closing():
            secured.abort()
            return
        protocol = cast("asyncio.Protocol", self._make())
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self._early:
            protocol.data_received(data)
