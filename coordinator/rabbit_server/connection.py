"""One client's socket: bytes become frames for its session, and the session's frames are sent.

The server does not read from a client that reads nothing, and sends it no chunks. Whatever a client sends, it
can only end its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import structlog

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.rabbit_codec.codec import encode, frame_buffer
from fencepost.coordinator.rabbit_codec.frames import Heartbeat
from fencepost.coordinator.rabbit_server import administration, consuming, handshake, publishing
from fencepost.coordinator.rabbit_server.cluster import RabbitCluster
from fencepost.coordinator.rabbit_server.session import Handler, HandshakeStep, RabbitSession
from fencepost.coordinator.server.accepting import socket_number
from fencepost.coordinator.server.turns import FairTurns, Share

log = structlog.get_logger(__name__)

_UNLIMITED: Final = 0x7FFF_FFFF
MAX_UNFINISHED_BYTES: Final = 1 << 28
"""The limit of bytes that all clients together have sent of frames that are not complete."""
_LAST_WORDS_S: Final = 1.0
"""Time that a client has to hang up after it was sent the reason, in s. Some miss a reason that comes
together with the end."""
_HEARTBEAT: Final = encode(Heartbeat())
_MISSED: Final = 2
"""Intervals without a byte after which a client counts as dead."""


class RabbitServerConnection(asyncio.Protocol):
    """Serves one client. `on_made` and `on_lost` notify the listener, which may return a reason to refuse."""

    peer_host = local_host = ""
    peer_port = local_port = 0

    def __init__(
        self,
        cluster: RabbitCluster,
        numbers: Iterator[int],
        node: str,
        *,
        turns: FairTurns,
        on_made: Callable[[RabbitServerConnection], str | None],
        on_lost: Callable[[RabbitServerConnection], None],
    ) -> None:
        self._cluster = cluster
        self.node = node
        self._on_made = on_made
        self._on_lost = on_lost
        self._frames = frame_buffer()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._loop = asyncio.get_running_loop()
        self.session = RabbitSession(next(numbers), cluster, self, HANDLERS)
        self.is_writable = True
        self._is_closing = False
        self._is_lost = False
        self._share = Share()
        self._turns = turns
        self._is_queued = False
        """True while frames that came wait for their turn."""
        self._unfinished = 0
        self._timer: asyncio.TimerHandle | None = None
        self._read_at = self._written_at = self._made_at = 0.0

    # -- asyncio's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving the client; the listener may refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer_host, self.peer_port = (*(transport.get_extra_info("peername") or ()), "unknown", 0)[:2]
        self.local_host, self.local_port = (*(transport.get_extra_info("sockname") or ()), "unknown", 0)[:2]
        self._read_at = self._written_at = self._made_at = self._loop.time()
        self._cluster.sessions[self.session] = None
        refusal = self._on_made(self)
        if refusal is not None:
            self.session.end(refusal)
        self._tick()

    def connection_lost(self, error: Exception | None) -> None:
        """End the session with the connection."""
        if self._is_closing:  # it was closed here, so the rest is dropped
            self._is_queued = False
        self._is_closing = self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_lost(self)
        if not self._is_queued:
            self._end_session()

    def _end_session(self) -> None:
        self._count_unfinished(0)
        self._cluster.sessions.pop(self.session, None)
        self.session.lost()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, with any number of frames in them."""
        self._read_at = self._loop.time()
        if self._is_closing:
            return
        self._frames.feed(data)
        self._go_on()
        if not self._count_unfinished(self._frames.buffered):
            self.session.end(
                f"more than {MAX_UNFINISHED_BYTES} bytes of unfinished frames in all (MAX_UNFINISHED_BYTES)"
            )

    def _count_unfinished(self, size: int) -> bool:
        """Note the number of bytes that wait here, and return true if there is room for them."""
        self._cluster.unfinished_bytes += size - self._unfinished
        grew, self._unfinished = size > self._unfinished, size
        return not grew or self._cluster.unfinished_bytes <= MAX_UNFINISHED_BYTES

    def pause_writing(self) -> None:
        """Stop handling frames and sending chunks while the client does not read."""
        self.is_writable = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Handle frames again, as the client reads again."""
        self.is_writable = True
        if self._is_closing:
            return
        self._transport.resume_reading()
        self._guarded(self.session.pump)
        self._go_on()

    @property
    def socket_number(self) -> int:
        """The file descriptor; -1 without one any more."""
        return socket_number(self._transport)

    def close(self) -> None:
        """Close immediately, as when a node dies; data that the client does not read is dropped."""
        if self._transport.get_extra_info("sslcontext") is None:
            self._end()
        else:
            self.abort()  # TLS would wait for the client's goodbye

    def _end(self) -> None:
        """Close after pending data is sent, unless the client does not read it."""
        if self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._is_closing = True
            self._transport.close()

    def abort(self) -> None:
        """Break the connection, as when a cable is pulled: nothing that waits to be sent is."""
        self._is_closing = True
        self._transport.abort()

    # -- the session's side -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send, unless the connection is closing."""
        if not self._is_closing:
            self._written_at = self._loop.time()
            self._transport.write(data)

    def hang_up(self, reason: str, *, was_told: bool) -> None:
        """Close after pending data is sent; a client that got the reason may close first."""
        if self._is_closing:
            return
        self._is_closing = True
        if reason and structlog.is_configured():
            # Without a logging setup, the line would be printed to the standard output.
            log.warning("connection_closed", peer=f"{self.peer_host}:{self.peer_port}", reason=reason)
        if self._timer is not None:
            self._timer.cancel()
        if was_told:
            self._timer = self._loop.call_later(_LAST_WORDS_S, self._end)
        else:
            self._end()

    # -- frames -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take the frames that are there, in this client's turn."""
        if self._is_queued:
            return
        self._is_queued = True
        self._turns.run(self._share, self._work)
        if self._is_queued and not self._is_closing:
            self._transport.pause_reading()

    def _work(self) -> None:
        if not self._is_queued:
            return  # closed meanwhile
        self._is_queued = False
        self._guarded(self._take_frames)
        if self._is_queued:
            return
        if self._is_lost:
            self._end_session()
        elif self.is_writable and not self._is_closing:
            self._transport.resume_reading()

    def _take_frames(self) -> None:
        session = self.session
        while self.is_writable and session.step is not HandshakeStep.CLOSED:
            frame = self._frames.next_frame()
            if frame is None:
                return
            before = session.step
            session.handle(frame)
            if session.step is HandshakeStep.OPEN and before is not HandshakeStep.OPEN:
                self._frames.max_bytes = session.frame_max or _UNLIMITED
                self._tick()
            if self._frames.buffered and self._turns.is_long:
                self._go_on()
                return

    def _guarded(self, call: Callable[[], None]) -> None:
        """Run a call for this client. If it fails, other clients are not affected."""
        try:
            call()
        except MalformedFrame as error:
            self.session.fail(error)
        except Exception:
            log.exception("request_failed", peer=f"{self.peer_host}:{self.peer_port}")
            self.session.end("a request failed")

    # -- time -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Check that the client is alive and responds, and send it a heartbeat."""
        session, now = self.session, self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        if self._is_closing:
            return
        if session.step < HandshakeStep.OPEN:
            interval = self._cluster.limits.handshake_timeout_ms / 1000
            if now - self._made_at >= interval:
                session.end(f"not open after {interval:g} s")
                return
        else:
            interval = session.patience_ms(self._cluster.now_ms()) / 1000
            if interval <= 0:
                session.end("the client did not respond to a ConsumerUpdate")
                return
        if session.heartbeat_s and session.step is HandshakeStep.OPEN:
            interval = min(interval, session.heartbeat_s / 2)
            if self.is_writable and now - self._read_at > _MISSED * session.heartbeat_s:
                session.end("no heartbeat")
                return
            if now - self._written_at >= interval:
                self.write(_HEARTBEAT)
        self._timer = self._loop.call_later(interval, self._tick)


HANDLERS: Final[Mapping[type, Handler]] = {
    **handshake.HANDLERS,
    **publishing.HANDLERS,
    **consuming.HANDLERS,
    **administration.HANDLERS,
}
