"""`fencepost proxy`: stands before a real cluster until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from fencepost.coordinator.server.loop import new_event_loop
from fencepost.simulation.brokers.client_config import client_security
from fencepost.simulation.cli.arguments import Json, within
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json, print_text
from fencepost.simulation.cli.serve import control_address, until_stopped, warn_if_open

if TYPE_CHECKING:
    from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy


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
    advertise: Annotated[
        str | None,
        Parameter(
            help="HOST:PORT at which clients find the first broker instead, such as that of a mapped port; "
            "further brokers have the next ports."
        ),
    ] = None,
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

    SIGTERM, SIGHUP or Ctrl-C ends it with exit code 0.
    """
    from fencepost.simulation.control.serving import controlled
    from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy

    configure_logs("info")
    address = control_address(control)
    warn_if_open(host, "clients from other machines reach the cluster by the proxy: use --host 127.0.0.1")
    security = client_security(config, "--config")

    async def standing() -> None:
        async with contextlib.AsyncExitStack() as stack:
            made = KafkaProxy(bootstrap, host=host, port=port, advertise=advertise, security=security)
            await _started(made)
            stack.callback(made.close)
            url = await stack.enter_async_context(controlled(made, address))
            if json:
                print_json(ProxyReady(ready=made.bootstrap_servers, control=url))
            else:
                print_text(f"fencepost ready {made.bootstrap_servers}\nfencepost ready control {url}")
            await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(until_stopped(standing()))
    return 0


async def _started(made: KafkaProxy) -> None:
    """Start the proxy in another thread, for which the process does not wait if a signal comes first: a
    broker may take long to respond."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not started.done():
            started.set_result(None) if error is None else started.set_exception(error)

    def start() -> None:
        error = None
        try:
            made.start()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=start, name="fencepost-start", daemon=True).start()
    await started
