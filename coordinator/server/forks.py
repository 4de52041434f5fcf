"""A process that forks while brokers run: its child has none of their sockets."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class HasSockets(Protocol):
    """What has sockets that only this process should have."""

    def socket_numbers(self) -> Iterable[int]:
        """The file descriptors of those that are open."""


_of_this_process: weakref.WeakSet[HasSockets] = weakref.WeakSet()


def keep_from_children(sockets: HasSockets) -> None:
    """What is closed here shall be closed: one that a child has too stays open, and clients wait at it."""
    _of_this_process.add(sockets)


def _let_go() -> None:
    # The numbers stay taken: the objects that the child has as well would close whatever has them next.
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in _of_this_process:
        for number in each.socket_numbers():
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    _of_this_process.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
