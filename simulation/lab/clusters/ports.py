"""Ports on loopback for nodes.

They lie below the ephemeral range, so that no outgoing connection takes one meanwhile.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks

LOOPBACK = "127.0.0.1"
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_USUAL_END = 32_768
_ATTEMPTS = 200


class PortTaken(EnvironmentLacks):
    """Another program listens where a node was to listen."""


def end_of_range(file: Path = _RANGE_FILE) -> int:
    """Return the first ephemeral port; the usual one if the system leaves no room below it."""
    try:
        first = int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_END
    return first if first >= _LOWEST + 1_000 else _USUAL_END


def free_ports(count: int, rng: random.Random | None = None) -> tuple[int, ...]:
    """Return that many different ports that no program listens on now.

    They are drawn, so that clusters that start at the same moment do not meet.

    :raises EnvironmentLacks: if no such ports can be found.
    """
    draw = rng or random.SystemRandom()
    end = end_of_range()
    with ExitStack() as held:
        found: list[int] = []
        for _ in range(_ATTEMPTS):
            if len(found) == count:
                break
            port = draw.randrange(_LOWEST, end)
            if port not in found and (taken := _bound(port)) is not None:
                held.enter_context(taken)
                found.append(port)
    if len(found) < count:
        raise EnvironmentLacks(f"no {count} free ports on {LOOPBACK} between {_LOWEST} and {end}")
    return tuple(found)


def require_free(ports: Iterable[int]) -> None:
    """Check that no program listens on any of these.

    :raises PortTaken: naming the first that is taken.
    """
    for port in ports:
        sock = _bound(port)
        if sock is None:
            raise port_taken(port)
        sock.close()


def port_taken(port: int) -> PortTaken:
    """Return the error for a taken port, with what to do."""
    return PortTaken(f"port {port} on {LOOPBACK} is taken: stop what listens there, or choose another --port")


def consecutive(first: int, count: int) -> Sequence[int]:
    """Return the ports that a user named by their first one.

    :raises EnvironmentLacks: if the last one is no port.
    """
    if first + count - 1 > 65_535:
        raise EnvironmentLacks(f"--port {first}: {count} nodes need ports up to {first + count - 1}")
    return range(first, first + count)


def _bound(port: int) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # as Java does: a connection that lingers from an earlier node is no obstacle
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((LOOPBACK, port))
        sock.listen(1)
    except OSError:
        sock.close()
        return None
    return sock
