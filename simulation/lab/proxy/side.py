"""One of the two sockets of a connection through the proxy."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from fencepost.coordinator.codec.framing import FrameBuffer, MalformedFrame

_NO_LINGERING = struct.pack("ii", 1, 0)


class ProxySide(asyncio.Protocol):
    """Cuts incoming bytes into frames.

    `on_garbage` gets the reason why bytes are no frame, `on_gone` whether the socket was reset, `on_flow`
    whether the other end stopped reading (True) or reads again (False).
    """

    def __init__(
        self,
        *,
        on_made: Callable[[asyncio.Transport], None],
        on_frame: Callable[[bytes], None],
        on_garbage: Callable[[str], None],
        on_gone: Callable[[bool], None],
        on_flow: Callable[[bool], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._on_made = on_made
        self._on_frame = on_frame
        self._on_garbage = on_garbage
        self._on_gone = on_gone
        self._on_flow = on_flow

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self.transport = cast("asyncio.Transport", transport)
        self._on_made(self.transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._frames.feed(data)
        try:
            while (frame := self._frames.next_frame()) is not None:
                self._on_frame(frame)
        except MalformedFrame as error:
            self._on_garbage(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self.transport = None
        self._on_gone(error is not None)

    def pause_writing(self) -> None:
        """The other end does not read."""
        self._on_flow(True)

    def resume_writing(self) -> None:
        """The other end reads again."""
        self._on_flow(False)

    def close(self) -> None:
        """Close once everything is written."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Close so that the other end sees a reset connection."""
        if self.transport is not None:
            found = self.transport.get_extra_info("socket")
            if found is not None:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            self.transport.abort()

    def read(self, wanted: bool) -> None:
        """Read bytes from the socket, or leave them there."""
        if self.transport is None or self.transport.is_closing():
            return
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
