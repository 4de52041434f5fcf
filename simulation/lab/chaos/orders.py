"""How orders reach a member's process."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from fencepost.simulation.lab.chaos import messages as m


class Orders:
    """What whoever directs the run has sent over a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._frames = m.Frames(m.Order)

    def read(self) -> Iterator[m.Order]:
        """Those that have come; waits for bytes. Ends the process if nobody can order anything any more."""
        data = self._channel.recv(65_536)
        if not data:
            raise SystemExit(1)
        return self._frames.feed(data)
