"""Virtual TCP sockets: what the system's calls do with them, as Linux does it, without blocking.

A connection is two pipes. What is sent takes a pipe's window until the other side reads it, arrives in
order, and is sent again if the network loses it. A side that closes with unread bytes resets the
connection, and so does a side that gets bytes after it closed.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from fencepost.simulation.kernel.rules import Direction
from fencepost.simulation.world.places import BLOCKS, refusal
from fencepost.simulation.world.processes import PROCESS, run_callback
from fencepost.simulation.world.tls import PlainTls

if TYPE_CHECKING:
    from fencepost.simulation.world.loop import WorldLoop
    from fencepost.simulation.world.network import VirtualNetwork
    from fencepost.simulation.world.processes import WorldHost

WINDOW: Final = 256 * 1024
"""The bytes that may be under way or unread in one direction of a connection, by default."""
_ROOM: Final = 3
"""A socket is writable again when this part of its window is free, as on Linux."""
_FLAGS: Final = getattr(socket, "SOCK_NONBLOCK", 0) | getattr(socket, "SOCK_CLOEXEC", 0)
"""Flags in a socket's type, on Linux only."""
ANY: Final = "0.0.0.0"

Address = tuple[str, int]


class ReadinessHandle(events.Handle):
    """A callback for a socket that is readable or writable. It runs again as long as that is so."""

    __slots__ = ("again", "host", "queued")
    host: WorldHost
    again: Callable[[ReadinessHandle], bool]
    queued: bool

    def _run(self) -> None:
        if self.host.frozen:
            self.host.run(ReadinessHandle._run, self)
            return
        self.queued = False
        if self._cancelled or not self.again(self):
            return
        process = self._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None and process.ended:
            return
        run_callback(self, process)
        host, loop = self.host, self._loop  # type: ignore[attr-defined]
        if process is not None and (used_us := loop.ahead_us + host.callback_us) and not process.ended:
            loop.ahead_us = 0
            host.compute(used_us)
        if self.again(self) and not self.queued:
            self.queued = True
            loop._ready.append(self)


@dataclasses.dataclass(slots=True, eq=False)
class TcpPipe:
    """One direction of a connection."""

    source: VirtualSocket
    target: VirtualSocket
    window: int
    direction: Direction
    """REQUEST from the side that connected, RESPONSE from the side that listened."""
    lost_us: int = 0
    """The time at which the first of the waiting segments was lost."""
    sent: int = 0
    """Bytes under way or unread."""
    arrives_us: int = 0
    """The arrival time of the last segment; later segments arrive after it."""
    held: deque[bytes | None] = dataclasses.field(default_factory=deque)
    """Segments that wait behind a lost one; None is the end of the stream."""
    retry_us: int = 0
    """The delay before the lost segment is sent again; 0 if no segment was lost."""
    closed: bool = False
    """True if the end of the stream was sent."""


class TcpSocket(PlainTls):
    """The settings of all sockets of a world, and calls built on `send` and `recv`."""

    _fd: int
    _timeout: float | None
    if TYPE_CHECKING:

        def send(self, data: Any, flags: int = 0) -> int: ...  # noqa: D102  # each says it
        def recv(self, size: int, flags: int = 0) -> bytes: ...  # noqa: D102
        def close(self) -> None: ...  # noqa: D102

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """Send several buffers as one."""
        return self.send(b"".join(buffers))

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Put what has arrived into a buffer; returns the number of bytes."""
        view = memoryview(buffer).cast("B")
        found = self.recv(size or len(view))
        view[: len(found)] = found
        return len(found)

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._fd

    def setblocking(self, flag: bool) -> None:
        """Set whether calls wait."""
        self._timeout = None if flag else 0.0

    def getblocking(self) -> bool:
        """Return true if calls wait."""
        return self._timeout != 0.0

    def settimeout(self, value: float | None) -> None:
        """Set for how many seconds calls wait; 0 means not to wait."""
        self._timeout = value

    def gettimeout(self) -> float | None:
        """Return the timeout."""
        return self._timeout

    @property
    def timeout(self) -> float | None:
        """For how many seconds calls wait."""
        return self._timeout

    def get_inheritable(self) -> bool:
        """Return false: there is no other process that could inherit it."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VirtualSocket(TcpSocket):
    """A TCP socket of a host in a simulated world. It never blocks: asyncio's loop waits for it."""

    def __init__(
        self,
        family: int = -1,
        type: int = -1,  # as the real one has it
        proto: int = -1,
        fileno: int | None = None,
        *,
        loop: WorldLoop,
        host: WorldHost,
    ) -> None:
        self.family = socket.AF_INET if family == -1 else socket.AddressFamily(family)
        kind = socket.SOCK_STREAM if type == -1 else type & ~_FLAGS
        self.type = socket.SocketKind(kind)
        self.proto = 0 if proto == -1 else proto
        if fileno is not None:
            raise refusal("socket.socket(fileno=...)", "it is a real socket", "a socket made in the run")
        if self.family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        if self.family != socket.AF_INET or self.type != socket.SOCK_STREAM:
            raise refusal(
                f"socket.socket({self.family.name}, {self.type.name})",
                "hosts speak TCP over IPv4 only",
                "a TCP connection",
            )
        self._loop = loop
        self.host = host
        self._fd = loop.open_descriptor(self)
        host.sockets[self] = None
        self._timeout: float | None = socket.getdefaulttimeout()
        self._options: dict[tuple[int, int], Any] = {}
        self.local: Address = (ANY, 0)
        self.remote: Address | None = None
        self.out: TcpPipe | None = None
        self.incoming: TcpPipe | None = None
        self.received: deque[bytes] = deque()
        self.backlog: deque[VirtualSocket] | None = None
        """Connections that are not accepted yet; None unless it listens."""
        self.backlog_limit = 0
        self.connecting = False
        self.error = 0
        self.is_reset = False
        self.at_end = False
        """True if the other side's end of the stream has arrived."""
        self.read_shut = False
        self._reader: ReadinessHandle | None = None
        self._writer: ReadinessHandle | None = None

    # -- readiness --------------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """True if a read would return at once."""
        if self.received or self.backlog or self.at_end or self.read_shut:
            return True
        return self.is_reset or (self.error != 0 and not self.connecting)

    @property
    def is_writable(self) -> bool:
        """True if a write would accept bytes at once."""
        if self.connecting:
            return False
        out = self.out
        if out is None or self.is_reset:
            return True
        return out.window - out.sent >= out.window // _ROOM

    def _watch(
        self, callback: Callable[..., object], args: tuple[Any, ...], again: Callable[[ReadinessHandle], bool]
    ) -> ReadinessHandle:
        handle = ReadinessHandle(callback, args, self._loop, None)
        handle.again = again
        handle.host = self.host
        handle.queued = False
        return handle

    def when_readable(self, callback: Callable[..., object], args: tuple[Any, ...]) -> ReadinessHandle:
        """Call back whenever it is readable."""
        self.not_when_readable()
        self._reader = self._watch(callback, args, self._still_read)
        self.wake_reader()
        return self._reader

    def _still_read(self, handle: ReadinessHandle) -> bool:
        return handle is self._reader and self.is_readable

    def not_when_readable(self) -> bool:
        """Forget the reader; True if there was one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        return reader is not None

    def when_writable(self, callback: Callable[..., object], args: tuple[Any, ...]) -> ReadinessHandle:
        """Call back whenever it is writable."""
        self.not_when_writable()
        self._writer = self._watch(callback, args, self._still_write)
        self.wake_writer()
        return self._writer

    def _still_write(self, handle: ReadinessHandle) -> bool:
        return handle is self._writer and self.is_writable

    def not_when_writable(self) -> bool:
        """Forget the writer; True if there was one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
        return writer is not None

    def wake_reader(self) -> None:
        """Queue the reader if it has something to read."""
        reader = self._reader
        if reader is not None and not reader.queued and self.is_readable:
            reader.queued = True
            self._loop._ready.append(reader)

    def wake_writer(self) -> None:
        """Queue the writer if it has room to write."""
        writer = self._writer
        if writer is not None and not writer.queued and self.is_writable:
            writer.queued = True
            self._loop._ready.append(writer)

    # -- what the network does ----------------------------------------------------------------------------

    @property
    def network(self) -> VirtualNetwork:
        """The network of the world."""
        return self._loop.network

    def arrive(self, segment: bytes | None) -> None:
        """Take bytes that have arrived from the other side, or its end."""
        if self._fd < 0:
            if segment is not None:
                self._refuse_late()
            return
        if segment is None:
            self.at_end = True
        elif self.read_shut:
            self._took(len(segment))
            return
        else:
            self.received.append(segment)
        self.wake_reader()

    def _refuse_late(self) -> None:
        """Reset the other side, whose bytes arrive after this side was closed."""
        if self.incoming is not None:
            self.network.reset(self.incoming.source, self)

    def be_reset(self, number: int = errno.ECONNRESET) -> None:
        """End the connection: reads fail once what has arrived is read, writes fail at once."""
        if self._fd < 0 or self.is_reset:
            return
        self.is_reset = True
        self.error = number
        self.wake_reader()
        self.wake_writer()

    def connected(self, number: int) -> None:
        """Complete the connection, or fail with that error."""
        if self._fd < 0:
            return
        self.connecting = False
        self.error = number
        if number:
            self.remote = None
        self.wake_writer()
        self.wake_reader()

    # -- the system's calls ---------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _would_block(self, call: str) -> BlockingIOError:
        if self._timeout is None or self._timeout > 0:
            raise refusal(
                f"socket.{call}()",
                BLOCKS,
                "asyncio's streams, or setblocking(False) and the loop's sock_ methods",
            )
        return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def bind(self, address: Any) -> None:
        """Take an address of the host; port 0 takes a free one."""
        self._open()
        host, port = str(address[0]), int(address[1])
        self.local = self.network.bind(self, host, port)

    def listen(self, backlog: int = 128) -> None:
        """Accept connections from now on."""
        self._open()
        if not self.local[1]:
            self.bind((ANY, 0))
        self.backlog = self.backlog or deque()
        self.backlog_limit = max(1, backlog)

    def accept(self) -> tuple[VirtualSocket, Address]:
        """Return the next connection, and the address of its client."""
        self._open()
        if self.backlog is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not self.backlog:
            raise self._would_block("accept")
        taken = self.backlog.popleft()
        assert taken.remote is not None
        taken._timeout = socket.getdefaulttimeout()
        return taken, taken.remote

    def connect(self, address: Any) -> None:
        """Begin to connect."""
        number = self.connect_ex(address)
        if number == errno.EINPROGRESS:
            self._would_block("connect")
            raise BlockingIOError(number, os.strerror(number))
        if number:
            raise OSError(number, os.strerror(number))

    def connect_ex(self, address: Any) -> int:
        """Begin to connect; returns the error number."""
        self._open()
        if self.connecting:
            return errno.EALREADY
        if self.out is not None:
            return errno.EISCONN
        if self.error:
            number, self.error = self.error, 0
            return number
        host, port = str(address[0]), int(address[1])
        if not self.local[1]:
            self.bind((ANY, 0))
        self.connecting = True
        self.remote = (host, port)
        self.network.connect(self, host, port)
        return errno.EINPROGRESS

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as much as there is room for; returns the number of bytes."""
        self._open()
        out = self.out
        if self.is_reset or (out is not None and out.closed):
            if self.error:
                number, self.error = self.error, 0
                raise OSError(number, os.strerror(number))
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if out is None:
            number = errno.EAGAIN if self.connecting else errno.ENOTCONN
            raise OSError(number, os.strerror(number))
        room = out.window - out.sent
        size = memoryview(data).nbytes
        if size == 0:
            return 0
        if room <= 0:
            raise self._would_block("send")
        segment = bytes(data) if size <= room else bytes(memoryview(data).cast("B")[:room])
        out.sent += len(segment)
        self.network.transmit(out, segment)
        return len(segment)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what has arrived, at most `size` bytes; nothing means the end."""
        self._open()
        received = self.received
        if not received:
            self._check_end()
            return b""
        found = received.popleft()
        if len(found) > size:
            received.appendleft(found[size:])
            found = found[:size]
        elif received and len(found) + len(received[0]) <= size:
            parts, total = [found], len(found)
            while received and total + len(received[0]) <= size:
                parts.append(received.popleft())
                total += len(parts[-1])
            found = b"".join(parts)
        self._took(len(found))
        return found

    def _check_end(self) -> None:
        """Return if this is the end of what the other side sends.

        :raises OSError: if the connection was reset, or nothing has arrived yet.
        """
        if self.at_end or self.read_shut:
            return
        if self.is_reset or self.error:
            number, self.error = self.error, 0
            if number:
                raise OSError(number, os.strerror(number))
            return
        if self.incoming is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        raise self._would_block("recv")

    def _took(self, size: int) -> None:
        if self.incoming is not None:
            self.network.acknowledge(self.incoming, size)

    def shutdown(self, how: int) -> None:
        """End what is sent, or read, or both."""
        self._open()
        if self.out is None or self.is_reset:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._send_end()
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self.read_shut = True
            self.wake_reader()

    def _send_end(self) -> None:
        out = self.out
        if out is not None and not out.closed:
            out.closed = True
            self.network.transmit(out, None)

    def close(self) -> None:
        """Close the socket. Unread bytes reset the connection."""
        if self._fd < 0:
            return
        self.not_when_readable()
        self.not_when_writable()
        self.network.close(self)
        for each in self.backlog or ():
            each.close()
        if self.out is not None and not self.is_reset:
            if self.received:
                self.network.reset(self.out.target, self)
            else:
                self._send_end()
        self.received.clear()
        self.host.sockets.pop(self, None)
        self._loop.close_descriptor(self._fd)
        self._fd = -1

    def detach(self) -> int:
        """Return the descriptor; the socket stays its owner, as nothing else could close it."""
        return self._fd

    def dup(self) -> VirtualSocket:
        """Refuse: two descriptors of one socket are not simulated."""
        raise refusal("socket.dup()", "a virtual socket has one descriptor", "the socket")

    def makefile(self, *_: Any, **__: Any) -> Any:
        """Refuse: a file blocks."""
        raise refusal("socket.makefile()", BLOCKS, "asyncio's streams")

    def __repr__(self) -> str:
        return f"<VirtualSocket fd={self._fd} {self.host.name} {self.local} -> {self.remote}>"

    # -- settings -----------------------------------------------------------------------------------------

    def getsockname(self) -> Address:
        """Its own address and port."""
        return self.local

    def getpeername(self) -> Address:
        """The other side's."""
        if self.remote is None or self.connecting:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.remote

    def setsockopt(self, level: int, option: int, value: Any, *_: Any) -> None:
        """Keep an option; the sizes of buffers have an effect."""
        self._options[level, option] = value
        if (level, option) == (socket.SOL_SOCKET, socket.SO_SNDBUF) and self.out is not None:
            self.out.window = max(4096, int(value))

    def window(self) -> int:
        """The room for bytes that it sends."""
        size = self._options.get((socket.SOL_SOCKET, socket.SO_SNDBUF))
        return WINDOW if size is None else max(4096, int(size))

    def getsockopt(self, level: int, option: int, *_: Any) -> Any:
        """Return an option; SO_ERROR is taken with it."""
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            number, self.error = self.error, 0
            return number
        return self._options.get((level, option), 0)
