"""Length-prefixed frames and request headers (Kafka protocol guide, Protocol Primitives and Headers)."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")

KAFKA_MAX_FRAME_BYTES = 104_857_600
"""Kafka's default of socket.request.max.bytes."""

_TLS_HANDSHAKE = b"\x16\x03"
"""A record of type handshake, of any version (RFC 8446, 5.1)."""
_AMQP = b"AMQP"
"""A protocol header, of any version (AMQP 0-9-1, 4.2.2; AMQP 1.0, 2.2)."""
_HTTP = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "})
"""The first four bytes of a request (RFC 9110, 9.3; RFC 9113, 3.4)."""


class MalformedFrame(Exception):
    """Bytes that are not a frame of the protocol. Their connection can't be trusted any more."""


class FrameTooLarge(MalformedFrame):
    """A frame that claims more bytes than allowed, or a negative number of bytes."""


class FrameBuffer:
    """Cuts a stream of bytes into frames. A claimed length takes no memory before its bytes arrive."""

    __slots__ = ("_chunks", "_position", "_protocol", "buffered", "max_bytes")

    def __init__(self, max_bytes: int = KAFKA_MAX_FRAME_BYTES, *, protocol: str = "Kafka") -> None:
        self.max_bytes = max_bytes
        """The longest frame that is taken, its length not counted."""
        self._protocol = protocol
        self._chunks: list[bytes] = []
        self._position = 0
        self.buffered = 0
        """Number of bytes that arrived and are not in a returned frame yet."""

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket."""
        self._chunks.append(data)
        self.buffered += len(data)

    def next_frame(self) -> bytes | None:
        """Return the next whole frame without its length, or None until more bytes arrive.

        :raises FrameTooLarge: if the length is negative or above the limit.
        """
        if self.buffered < 4:
            return None
        if len(self._chunks[0]) - self._position < 4:
            self._flatten()
        (size,) = _SIZE.unpack_from(self._chunks[0], self._position)
        if size < 0 or size > self.max_bytes:
            hint = _hint(size, self._protocol)
            raise FrameTooLarge(f"frame of {size} bytes, expected 0 to {self.max_bytes}{hint}")
        if self.buffered < 4 + size:
            return None
        if len(self._chunks[0]) - self._position < 4 + size:
            self._flatten()
        data, start = self._chunks[0], self._position + 4
        self.buffered -= 4 + size
        if start + size == len(data):
            del self._chunks[0]
            self._position = 0
        else:
            self._position = start + size
        return data[start : start + size]

    def _flatten(self) -> None:
        self._chunks[0] = self._chunks[0][self._position :]
        self._chunks = [b"".join(self._chunks)]
        self._position = 0


def _hint(size: int, protocol: str) -> str:
    """Return a hint about an impossible length: the protocol that its bytes look like, or an empty string."""
    start = _SIZE.pack(size)
    if start.startswith(_TLS_HANDSHAKE):
        return ": the client speaks TLS, and this port does not"
    if start == _AMQP:
        return f": the client speaks AMQP, and this port speaks {protocol}"
    if start in _HTTP:
        return f": the client speaks HTTP ({start.decode().strip()} ...), and this port speaks {protocol}"
    return ""


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """The client id; empty if the client sent none."""
    body_offset: int
    """Offset of the body in the frame, for headers without tagged fields."""


def read_header(frame: bytes) -> RequestHeader:
    """Return the header up to its client id; tagged fields of flexible versions are left to the caller.

    :raises MalformedFrame: if the frame ends within it, or the client id is no UTF-8.
    """
    if len(frame) < 10:
        raise MalformedFrame(f"request of {len(frame)} bytes, a header has at least 10")
    api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    if length < 0:
        return RequestHeader(api_key, api_version, correlation_id, "", 10)
    end = 10 + length
    if end > len(frame):
        raise MalformedFrame(f"client id of {length} bytes in a request of {len(frame)}")
    try:
        client_id = frame[10:end].decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"client id is not UTF-8: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def response_header(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """Return the bytes before a response's body: its length, then header version 1 if `flexible`, else 0."""
    if flexible:
        return _RESPONSE.pack(body_bytes + 5, correlation_id) + b"\x00"
    return _RESPONSE.pack(body_bytes + 4, correlation_id)
