"""Messages between the processes of a world, over sockets of the machine that no substitute reaches."""

from __future__ import annotations

import _socket
import array
import contextlib
import os
import pickle
import struct
from typing import Any, Final

_LENGTH: Final = struct.Struct("!I")
_ANCILLARY_BYTES: Final = 256


class Pair:
    """Makes connected sockets, as `socket.socketpair` does outside of runs."""

    make = staticmethod(_socket.socketpair)


def write(fd: int, message: object) -> None:
    """Write a message.

    :raises OSError: if the other side has ended.
    """
    data = pickle.dumps(message, 5)
    data = _LENGTH.pack(len(data)) + data
    sent = os.write(fd, data)
    while sent < len(data):
        sent += os.write(fd, data[sent:])


def read(fd: int) -> Any:
    """Return the next message.

    :raises EOFError: if the other side has ended.
    :raises BlockingIOError: if none has come within the time of `limit_waits`.
    """
    with contextlib.suppress(ConnectionResetError):
        head = _exactly(fd, _LENGTH.size)
        return pickle.loads(_exactly(fd, _LENGTH.unpack(head)[0]))
    raise EOFError


def limit_waits(sock: Any, seconds: int) -> None:
    """Let `read` wait for a message for that long at most."""
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


def _exactly(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    if len(data) == size:
        return data
    parts = [data]
    while data and (size := size - len(data)):
        data = os.read(fd, size)
        parts.append(data)
    if not data:
        raise EOFError
    return b"".join(parts)


def pass_on(sock: Any, fd: int) -> None:
    """Give the process at the other side a descriptor."""
    sock.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [fd]))])


def take(sock: Any) -> int:
    """Return the descriptor that the other side has passed on.

    :raises EOFError: if the other side has ended.
    """
    data, ancillary, *_ = sock.recvmsg(1, _ANCILLARY_BYTES)
    if not data:
        raise EOFError
    fds = array.array("i")
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return fds[0]
