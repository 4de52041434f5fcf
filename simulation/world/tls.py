"""TLS in a world: bytes pass unchanged, and no certificate is checked. So addresses that need TLS work."""

from __future__ import annotations

import ssl
from typing import Any, Final

_CIPHER: Final = ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)


class PlainTls:
    """The part of `ssl.SSLSocket` and `ssl.SSLObject` that describes a connection."""

    server_hostname: str | None = None
    session = None
    session_reused = False

    def do_handshake(self, block: bool = False) -> None:
        """Do nothing: there is no handshake."""

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return an empty certificate."""
        return b"" if binary_form else {}

    def cipher(self) -> tuple[str, str, int]:
        """Return the name of a cipher, its protocol and its bits."""
        return _CIPHER

    def version(self) -> str:
        """Return the version of TLS."""
        return _CIPHER[1]

    def compression(self) -> None:
        """Return no compression."""

    def selected_alpn_protocol(self) -> None:
        """Return no protocol: HTTP/1.1 is spoken."""

    def get_channel_binding(self, cb_type: str = "tls-unique") -> None:
        """Return no binding."""

    def pending(self) -> int:
        """Return the number of bytes that are decrypted and not read."""
        return 0

    def unwrap(self) -> Any:
        """Return the connection below: it is the same one."""
        return self


class PlainTlsObject(PlainTls):
    """Stands for an `ssl.SSLObject`: moves bytes between a program and its buffers of the network."""

    def __init__(self, context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.context = context
        self._incoming = incoming
        self._outgoing = outgoing

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """Return what has arrived, or put it into a buffer and return its length.

        :raises ssl.SSLWantReadError: if nothing has arrived.
        """
        if not self._incoming.pending and not self._incoming.eof:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has arrived")
        found = self._incoming.read(size)
        if buffer is None:
            return found
        buffer[: len(found)] = found
        return len(found)

    def write(self, data: Any) -> int:
        """Send bytes."""
        return self._outgoing.write(data)

    def pending(self) -> int:
        """Return the number of bytes that can be read at once."""
        return self._incoming.pending


def plain_object(  # noqa: PLR0917  # as the real one has it
    _: object,
    self: ssl.SSLContext,
    incoming: ssl.MemoryBIO,
    outgoing: ssl.MemoryBIO,
    server_side: bool = False,
    server_hostname: str | None = None,
    session: object = None,
) -> PlainTlsObject:
    """Stand in for `SSLContext.wrap_bio`."""
    found = PlainTlsObject(self, incoming, outgoing)
    found.server_hostname = server_hostname
    return found


def plain_socket(_: object, self: ssl.SSLContext, sock: Any, *args: Any, **options: Any) -> Any:
    """Stand in for `SSLContext.wrap_socket`."""
    sock.context, sock.server_hostname = self, options.get("server_hostname")
    return sock
