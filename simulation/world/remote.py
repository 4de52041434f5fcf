"""Sockets of a world as the process of a program has them: each call is a question to the world."""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost.simulation.world.sockets import WINDOW, Address, TcpSocket

if TYPE_CHECKING:
    from fencepost.simulation.world.inner import WorldLink

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT


def number_of(item: Any) -> int:
    """Return the descriptor of a socket, or the number itself."""
    number: int = item if isinstance(item, int) else item.fileno()
    return number


class RemotePoll:
    """The object that `select.poll()` returns in the process of a program."""

    per_second = 1_000
    """The unit of timeouts."""

    def __init__(self, link: WorldLink) -> None:
        self._link = link
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """Watch a socket for these events."""
        self._masks[number_of(fd)] = eventmask

    modify = register

    def unregister(self, fd: Any) -> None:
        """Watch a socket no longer."""
        del self._masks[number_of(fd)]

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """Return the sockets that are ready, at most after the timeout."""
        seconds = None if timeout is None or timeout < 0 else timeout / self.per_second
        return self._link.poll(seconds, list(self._masks.items()))

    def close(self) -> None:
        """Forget all."""
        self._masks.clear()


class RemoteEpoll(RemotePoll):
    """The object that `select.epoll()` returns. Its timeouts are in seconds."""

    per_second = 1


_PASSED_ON: Final = frozenset(
    {"bind", "listen", "shutdown", "getsockname", "getpeername", "setsockopt", "getsockopt"}
)


class RemoteSocket(TcpSocket):
    """A socket of the world, which the process reaches through its link."""

    is_remote = True
    # Files are the standard library's: they read and write this object.
    makefile: Any = socket.socket.makefile
    close: Any = socket.socket.close
    _decref_socketios: Any = socket.socket._decref_socketios  # type: ignore[attr-defined]

    def __init__(
        self,
        link: WorldLink,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,  # as the real one has it
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        self._link = link
        self.family = socket.AddressFamily(family if family != -1 else socket.AF_INET)
        self.type = socket.SocketKind(type if type != -1 else socket.SOCK_STREAM)
        self.proto = proto
        self._timeout: float | None = socket.getdefaulttimeout()
        self._io_refs = 0
        self._closed = False
        self._fd: int = link.ask("open", int(family), int(type), proto) if fileno is None else fileno

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._link.ask("socket", self._fd, name, arguments)

    def _patiently(self, mask: int, name: str, *arguments: Any) -> Any:
        """Call, and wait if the call would block and the socket may."""
        while True:
            try:
                return self._call(name, *arguments)
            except BlockingIOError:
                if self._timeout == 0:
                    raise
            self._wait(mask)

    def _wait(self, mask: int) -> None:
        """Wait until the socket is ready, for its timeout. A signal does not end the wait (PEP 475).

        :raises TimeoutError: if the time is over.
        """
        left_s, until_us = self._timeout, self._link.threads.until(self._timeout)
        while not self._link.poll(left_s, [(self._fd, mask)]):
            if until_us is not None:
                left_s = (until_us - self._link.now_us) / 1e6
                if left_s <= 0:
                    raise TimeoutError("timed out")

    def accept(self) -> tuple[RemoteSocket, Address]:
        """Return the next connection, and the address of its client."""
        number, address = self._patiently(READ, "accept")
        return RemoteSocket(self._link, self.family, self.type, self.proto, number), address

    def connect(self, address: Any) -> None:
        """Connect, or begin to."""
        number = self.connect_ex(address)
        if number == errno.EINPROGRESS and self._timeout != 0:
            self._wait(WRITE)
            number = self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    def connect_ex(self, address: Any) -> int:
        """Begin to connect; returns the error number."""
        return int(self._call("connect_ex", tuple(address)))

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as much as there is room for."""
        return int(self._patiently(WRITE, "send", bytes(memoryview(data).cast("B")[:WINDOW])))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what has arrived."""
        return bytes(self._patiently(READ, "recv", size))

    def _real_close(self) -> None:
        """Close it, once its files are closed."""
        if self._fd >= 0:
            self._call("close")
            self._fd = -1

    def detach(self) -> int:
        """Return the descriptor."""
        return self._fd

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _PASSED_ON:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, *arguments)

    def __repr__(self) -> str:
        return f"<RemoteSocket fd={self._fd}>"


_BaseSelector: Any = selectors._BaseSelectorImpl


class RemoteSelector(_BaseSelector):  # type: ignore[misc]
    """A selector whose wait is a step of the world."""

    def __init__(self, link: WorldLink) -> None:
        super().__init__()
        self._link = link
        self.turn: Any = None
        """The thread that waits here."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait until a socket is ready, or that many seconds."""
        watched = [
            (
                fd,
                (READ if key.events & selectors.EVENT_READ else 0)
                | (WRITE if key.events & selectors.EVENT_WRITE else 0),
            )
            for fd, key in self._fd_to_key.items()
        ]
        found = []
        self.turn = self._link.threads.current
        try:
            ready = self._link.poll(None if timeout is None else max(0, timeout), watched, by_loop=True)
        finally:
            self.turn = None
        for fd, events_ in ready:
            key = self._fd_to_key.get(fd)
            if key is not None:
                mask = (selectors.EVENT_WRITE if events_ & ~READ else 0) | (
                    selectors.EVENT_READ if events_ & ~WRITE else 0
                )
                if mask & key.events:
                    found.append((key, mask & key.events))
        return found
