"""The control server: a thread with the application, next to the brokers of `fencepost serve`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any, NamedTuple

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.listener import why_not_listening
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.fault_controls import FaultControls
from fencepost.simulation.embedded.thread import LoopThread, wait_unblocked

TOKEN_VARIABLE = "FENCEPOST_CONTROL_TOKEN"
"""The environment variable with the token that requests to the control API need."""
_LAST_PORT = 65_535
_MOST_CONNECTIONS = 1_000


class ControlAddress(NamedTuple):
    """The address of the control API."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ControlAddress:
        """Return the address in PORT or HOST:PORT; without a host it is loopback.

        :raises FencepostError: if it is neither.
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > _LAST_PORT:
            raise FencepostError(
                f"--control {text}: expected PORT or HOST:PORT, such as 9644; 0 takes a free port"
            )
        return cls(host.strip("[]") or "127.0.0.1", int(port))


@contextlib.asynccontextmanager
async def controlled(
    server: EmbeddedEndpoint | FaultControls[Any], address: ControlAddress
) -> AsyncIterator[str]:
    """Serve the control API in another thread; the value is its address.

    The server is that of brokers on this loop, or has controls of its own.

    :raises EnvironmentLacks: if it can't listen, or a library is missing.
    """
    for library in ("prometheus_client", "starlette", "uvicorn"):
        if find_spec(library) is None:
            raise EnvironmentLacks(f"--control needs {library}: pip install 'fencepost[control]'")
    import uvicorn

    from fencepost.simulation.control.app import ControlApp, ServedKafka

    listening = _listening(address)
    token = os.environ.get(TOKEN_VARIABLE) or None
    if isinstance(server, EmbeddedEndpoint):
        server = ServedKafka(LoopThread.running("fencepost", "this server"), server)
    app = ControlApp(server, token)
    http = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
    thread = LoopThread("fencepost-control", "the control server")
    thread.start()
    try:
        serving = thread.submit(http.serve(sockets=[listening]))
        host, port = listening.getsockname()[:2]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        app.is_closing = http.should_exit = True
        await asyncio.shield(wait_unblocked(serving))
    finally:
        app.is_closing = http.should_exit = True
        await asyncio.shield(asyncio.to_thread(thread.stop))


def _listening(address: ControlAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except OSError as error:
        made.close()
        raise EnvironmentLacks(f"--control: {why_not_listening(error, *address)}") from None
    return made
