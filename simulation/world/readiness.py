"""`select`, `poll` and `epoll` over virtual sockets: as on Linux, but a call that would wait is refused."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable
from typing import Any, Final

from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.places import BLOCKS, refusal
from fencepost.simulation.world.sockets import VirtualSocket

_HANGUP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux only."""
_ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
"""Events that are reported unasked."""
_READS: Final = select.POLLIN | select.POLLHUP | select.POLLERR
_WRITES: Final = select.POLLOUT | select.POLLERR
"""Events with which `select` counts a socket as readable and as writable."""

_INSTEAD: Final = "asyncio's streams, or a timeout of 0 to look what is ready"


def events_of(sock: VirtualSocket) -> int:
    """Return the events of a socket, as `tcp_poll` of Linux has them."""
    if sock.backlog is not None:
        return select.POLLIN if sock.backlog else 0
    if sock.connecting:
        return 0
    failed = sock.is_reset or (sock.out is None and sock.error != 0)
    no_more_in = failed or sock.at_end or sock.read_shut
    no_more_out = failed or (sock.out is not None and sock.out.closed)
    found = 0
    if sock.out is None or (no_more_in and no_more_out):
        found |= select.POLLHUP
    if no_more_in:
        found |= select.POLLIN | _HANGUP
    if sock.received:
        found |= select.POLLIN
    if no_more_out or sock.is_writable:
        found |= select.POLLOUT
    if sock.error:
        found |= select.POLLERR
    return found


def _number_of(loop: WorldLoop, call: str, fd: Any) -> int:
    """Return the descriptor of a virtual socket.

    :raises OutsideWorld: if it is one of the machine.
    """
    number: int = fd if isinstance(fd, int) else fd.fileno()
    if number < 0:
        raise ValueError(f"file descriptor cannot be a negative integer ({number})")
    if loop.is_real(number):
        raise refusal(call, f"{fd!r} is no virtual socket", "a socket made in the run")
    return number


class VirtualPoll:
    """The object that `select.poll()` returns in a run."""

    call = "select.poll()"
    _flags = 0
    """Bits of a mask that are no events."""

    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self._masks: dict[int, int] = {}

    def _number(self, fd: Any) -> int:
        return _number_of(self._loop, self.call, fd)

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """Watch a socket for these events."""
        self._masks[self._number(fd)] = eventmask

    def modify(self, fd: Any, eventmask: int) -> None:
        """Watch a socket for other events."""
        number = self._number(fd)
        if number not in self._masks:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._masks[number] = eventmask

    def unregister(self, fd: Any) -> None:
        """Watch a socket no longer.

        :raises KeyError: if it was not watched.
        """
        del self._masks[self._number(fd)]

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Return the sockets that are ready, with their events.

        :raises OutsideWorld: if none is ready and `timeout` is not 0.
        """
        ready = []
        for number, mask in self._masks.items():
            sock = self._loop.socket_at(number)
            events = select.POLLNVAL if sock is None else events_of(sock)
            if events := events & (mask & ~self._flags | _ALWAYS):
                ready.append((number, events))
        if not ready and timeout != 0:
            raise refusal(self.call, BLOCKS, _INSTEAD)
        return ready


class VirtualEpoll(VirtualPoll):
    """The object that `select.epoll()` returns in a run."""

    call = "select.epoll()"
    closed = False

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """Watch a socket for these events."""
        number = self._number(fd)
        if number in self._masks:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if self._loop.socket_at(number) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        super().register(fd, eventmask)

    def unregister(self, fd: Any) -> None:
        """Watch a socket no longer."""
        if self._masks.pop(self._number(fd), None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """Return the sockets that are ready, with their events; `timeout` is in seconds."""
        for number in [each for each in self._masks if self._loop.socket_at(each) is None]:
            del self._masks[number]  # the system forgets a closed one
        ready = super().poll(timeout)
        return ready if maxevents < 1 else ready[:maxevents]

    def close(self) -> None:
        """Forget all."""
        self.closed = True
        self._masks.clear()

    def fileno(self) -> int:
        """Return no descriptor of the machine."""
        return -1

    def __enter__(self) -> VirtualEpoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def selected(
    loop: WorldLoop, wanted: tuple[Iterable[Any], Iterable[Any], Iterable[Any]], timeout: float | None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the readable, the writable and the exceptional ones of the sockets, as `select.select` does.

    :raises OutsideWorld: if none is ready and `timeout` is not 0.
    """
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for ready, items, events in zip(found, wanted, (_READS, _WRITES, select.POLLPRI), strict=True):
        for item in items:
            sock = loop.socket_at(_number_of(loop, "select.select()", item))
            if sock is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if events_of(sock) & events:
                ready.append(item)
    if timeout != 0 and not any(found):
        raise refusal("select.select()", BLOCKS, _INSTEAD)
    return found
