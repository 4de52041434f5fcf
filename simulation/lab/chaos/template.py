"""The process from which members' processes are forked: it has imported everything, so that a start is quick.

    python -m fencepost.simulation.lab.chaos.template FD PROGRAM

FD is its end of a socket pair. Over it come `Fork` with a channel for the new process, and `Signal`. It
reports each process that began and ended. When its other end closes, it kills all that are left, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401  # for `die_with_parent`: once, not in each forked process
import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec
import structlog

from fencepost.simulation.interrupts import die_with_parent
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.event_channel import EventChannel

PROGRAMS: Mapping[m.ProgramName, str] = {
    "fencepost": "fencepost.simulation.lab.chaos.member",
    "confluent": "fencepost.simulation.lab.chaos.confluent",
    "streams": "fencepost.simulation.lab.chaos.client",
}
_HEADER = struct.Struct(">I")

Program: TypeAlias = Callable[[Any, socket.socket], None]
"""Takes the terms of its kind, and its end of the channel."""


class TemplateReady(msgspec.Struct, frozen=True, tag=True):
    """Everything is imported."""


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Begin a process; its channel comes with the message."""

    terms: m.AnyTerms


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a process, if it has not ended."""

    pid: int
    number: int


class Began(msgspec.Struct, frozen=True, tag=True):
    """The response to `Fork`, in the order of the requests."""

    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A process has ended, with this wait status."""

    pid: int
    status: int


Request: TypeAlias = Fork | Signal
Report: TypeAlias = TemplateReady | Began | Ended

_decode = msgspec.msgpack.Decoder(Request).decode


def main(fd: int, program: Program) -> None:
    """Fork and reap until the other end closes."""
    with socket.socket(fileno=fd) as director:
        children: set[int] = set()
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _note)
        gc.freeze()
        director.sendall(m.frame(TemplateReady()))
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(director, selectors.EVENT_READ)
                selector.register(woken, selectors.EVENT_READ)
                while True:
                    ready = {key.fileobj for key, _ in selector.select()}
                    if woken in ready:
                        woken.recv(4_096)
                        _reap(director, children)
                    if director in ready and not _serve(director, children, program):
                        return
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _note(*_: object) -> None:
    """A handler, so that the signal is written to the wake-up socket."""


def _serve(director: socket.socket, children: set[int], program: Program) -> bool:
    """Do what one message asks for; return false if there are no more."""
    header, channels, _, _ = socket.recv_fds(director, _HEADER.size, 1)
    if not header:
        return False
    header += _exactly(director, _HEADER.size - len(header))
    request = _decode(_exactly(director, *_HEADER.unpack(header)))
    if isinstance(request, Signal):
        if request.pid in children:
            os.kill(request.pid, request.number)
        return True
    pid = os.fork()
    if pid == 0:
        director.close()
        _be(request.terms, channels[0], program)
    os.close(channels[0])
    children.add(pid)
    director.sendall(m.frame(Began(pid)))
    return True


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _reap(director: socket.socket, children: set[int]) -> None:
    for pid in tuple(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.remove(pid)
            director.sendall(m.frame(Ended(pid, status)))


def _be(terms: m.AnyTerms, fd: int, program: Program) -> NoReturn:
    """Run a member's process, to its end."""
    code = 1
    with contextlib.suppress(BaseException):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent()  # a frozen process sees no closed channel
        with socket.socket(fileno=fd) as channel:
            try:
                program(terms, channel)
                code = 0
            except Exception:
                EventChannel(channel, terms.began_us).say(m.Failed, traceback.format_exc())
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the director decides
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    module = importlib.import_module(PROGRAMS[sys.argv[2]])  # type: ignore[index]
    module.prepare()
    main(int(sys.argv[1]), module.main)
