"""`fencepost proxy`: stands before a real cluster until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fencepost.coordinator.server.loop import new_event_loop
from fencepost.simulation.brokers.client_config import client_security
from fencepost.simulation.cli.arguments import Json, within
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json, print_text
from fencepost.simulation.cli.serve import control_address, until_stopped


class ProxyReady(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`, once connections are accepted."""

    ready: str
    """The addresses, as `bootstrap.servers` takes them."""
    control: str
    """The address of the control API, such as `http://127.0.0.1:9644`."""


def proxy(
    bootstrap: Annotated[str, Parameter(help="Brokers of the cluster: HOST:PORT, separated by commas.")],
    /,
    *,
    port: Annotated[
        int, within(0, 65535, "The first port to listen on; each broker has one. 0 takes free ports.")
    ] = 19092,
    host: Annotated[
        str, Parameter(help="The address to listen on, and at which clients find the proxy.")
    ] = "127.0.0.1",
    control: Annotated[
        str,
        Parameter(help="Port or HOST:PORT of the control API (HTTP and JSON); 0 takes a free port."),
    ] = "9644",
    config: Annotated[
        Path | None, Parameter(help="A file of Kafka's client settings, for brokers with a login.")
    ] = None,
    json: Json = False,
) -> int:
    """Stand before a real Kafka cluster, and disturb its clients as the control API says.

    Clients connect to the proxy, which puts its own addresses into responses. Faults come over HTTP: errors
    in a broker's stead, lost responses, delays. Prints `fencepost ready HOST:PORT` when it accepts clients,
    and `fencepost ready control http://HOST:PORT`. Requests to the control API need the token in the
    environment variable FENCEPOST_CONTROL_TOKEN, if there is one.

    SIGTERM or Ctrl-C ends it with exit code 0.
    """
    from fencepost.simulation.control.serving import controlled
    from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy

    configure_logs("info")
    address = control_address(control)
    security = client_security(config, "--config")

    async def standing() -> None:
        async with contextlib.AsyncExitStack() as stack:
            made = stack.enter_context(KafkaProxy(bootstrap, host=host, port=port, security=security))
            url = await stack.enter_async_context(controlled(made, address))
            if json:
                print_json(ProxyReady(ready=made.bootstrap_servers, control=url))
            else:
                print_text(f"fencepost ready {made.bootstrap_servers}\nfencepost ready control {url}")
            await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(until_stopped(standing()))
    return 0
