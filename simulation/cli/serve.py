"""`fencepost serve`: serves the coordinator as a Kafka endpoint until a signal ends it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import gc
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import structlog
from cyclopts import Parameter

from fencepost.coordinator.config import BROKER_RACK, GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError, ProtocolError
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE
from fencepost.coordinator.server.access import tls_from, users_from
from fencepost.coordinator.server.listener_config import (
    LISTENERS,
    NO_LISTENERS,
    BrokerListener,
    ListenerConfig,
    is_loopback,
)
from fencepost.simulation.brokers.client_config import client_security
from fencepost.simulation.cli.arguments import Json, TraceConfig, key_values, within
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json, print_text
from fencepost.simulation.interrupts import ending_signals

if TYPE_CHECKING:
    from fencepost.coordinator.server.brokers import Brokers
    from fencepost.coordinator.server.storage import Storage
    from fencepost.coordinator.server.topic_configs import BrokerConfig
    from fencepost.simulation.control.serving import ControlAddress

log = structlog.get_logger(__name__)

_HOST = "127.0.0.1"
_PORT = 9092
_LAST_PORT = 65_535


_DIGITS = 10
"""The limit on digits of a number of partitions; more digits are a mistake."""


class ServeReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of `--json`, once connections are accepted."""

    ready: str
    """The addresses of the first listener, as `bootstrap.servers` takes them."""
    host: str
    port: int
    topics: Mapping[str, int]
    listeners: Mapping[str, str]
    """The addresses that are listened on, by listener."""
    advertised_listeners: Mapping[str, str]
    """The addresses that the clients of each listener receive."""
    rabbit_stream: str | None = None
    """Address and port of RabbitMQ's stream protocol, if it is served."""
    control: str | None = None
    """The address of the control API, such as `http://127.0.0.1:9644`, if it is served."""


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """Options of the endpoint: its addresses, its protocols, who may connect, and what it keeps."""

    host: str | None = None
    """The address to listen on; by default 127.0.0.1: only this machine can connect."""
    port: Annotated[
        int | None, within(0, 65535, "The port to listen on, by default 9092; 0 takes a free one.")
    ] = None
    brokers: Annotated[
        int, within(1, 100, "Number of brokers to serve, on consecutive ports from --port.")
    ] = 1
    racks: str | None = None
    """The rack of each broker (broker.rack), separated by commas: a,b,c."""
    topics: list[str] | None = None
    """Topics as NAME:PARTITIONS, separated by commas: orders:12,payments:6."""
    config: list[str] | None = None
    """A setting by Kafka's name: group.consumer.session.timeout.ms=50000. Repeatable."""
    journal: Path | None = None
    """A file that keeps topics, groups and offsets across restarts and crashes."""
    journal_records: bool = False
    """Also keep produced records in the journal."""
    journal_repair: bool = False
    """Repair a damaged journal: keep only what comes before the damage."""
    sasl_user: Annotated[
        list[str] | None,
        Parameter(
            help=f"NAME:PASSWORD of a user; NAME alone takes the password from {PASSWORD_VARIABLE}. "
            "With users, clients must log in by PLAIN or SCRAM. Repeatable."
        ),
    ] = None
    sasl_users: Path | None = None
    """A file with a line NAME:PASSWORD for each user: the process list does not show it."""
    tls_cert: Path | None = None
    """PEM certificate with its chain: clients must speak TLS."""
    tls_key: Path | None = None
    """PEM key of the certificate, if it is in another file."""
    rabbit_stream: Annotated[
        int | None,
        within(
            0, 65535, "Also serve RabbitMQ's stream protocol on this port, from memory; 0 takes a free one."
        ),
    ] = None
    control: str | None = None
    """Serve the control API (HTTP and JSON) on PORT of this machine, or on HOST:PORT; 0 takes a free port."""
    as_release: str | None = None
    """Speak only the API versions of an older Kafka, such as 2.8."""
    quick: bool = False
    """Take the settings of EmbeddedKafka: heartbeats every 0.1 s, no delay before a first rebalance."""
    trace_topic: str | None = None
    """Write the trace of all groups to HOST:PORT/TOPIC, or to a topic of --topics."""
    trace_config: TraceConfig = None


def serve(*, given: ServeOptions = ServeOptions(), json: Json = False) -> int:
    """Serve the Kafka protocol to your own clients. Prints `fencepost ready HOST:PORT` when it accepts them.

    With --rabbit-stream a second line says `fencepost ready rabbit-stream HOST:PORT`, and with --control one
    says `fencepost ready control http://HOST:PORT`. Requests to the control API need the token in the
    environment variable FENCEPOST_CONTROL_TOKEN, if there is one.

    SIGTERM, SIGHUP or Ctrl-C ends it with exit code 0. Without --journal, all data is in memory and is lost.
    """
    _require("kio")
    from fencepost.coordinator.server.brokers import Brokers
    from fencepost.coordinator.server.loop import new_event_loop

    brokers, journal, trace_topic = given.brokers, given.journal, given.trace_topic
    counts = _topics(given.topics or [])
    if trace_topic is not None and "/" not in trace_topic and trace_topic not in counts and journal is None:
        raise FencepostError(f"--trace-topic {trace_topic}: expected HOST:PORT/TOPIC, or a topic of --topics")
    if given.trace_config is not None and (trace_topic is None or "/" not in trace_topic):
        raise FencepostError("--trace-config: needs --trace-topic HOST:PORT/TOPIC")
    security = client_security(given.trace_config, "--trace-config")
    settings = _settings(given.config or [], is_quick=given.quick)
    rack_ids = _racks(given.racks, brokers)
    host, ports = _where(given.host, given.port, brokers, settings.listeners)
    users, tls = users_from(given.sasl_user or [], given.sasl_users), tls_from(given.tls_cert, given.tls_key)
    configure_logs("info")
    _warn_if_open(
        settings.listeners.of_brokers(
            (host,) * brokers, ports, has_login=bool(users), has_tls=tls is not None
        )
    )
    control = None if given.control is None else control_address(given.control)
    storage = _storage(journal, settings.groups, given.journal_records, given.journal_repair)

    async def serving() -> None:
        async with contextlib.AsyncExitStack() as stack:
            rabbit = None
            if given.rabbit_stream is not None:
                from fencepost.coordinator.rabbit_server.broker import StreamBroker

                rabbit = StreamBroker(host=host, ports=(given.rabbit_stream,), users=users or None, tls=tls)
                await stack.enter_async_context(rabbit)
            on_ready = partial(
                _announce,
                rabbit=None if rabbit is None else rabbit.addresses[0],
                topics=counts,
                names_listeners=settings.listeners != NO_LISTENERS,
                json=json,
            )
            options: dict[str, Any] = {
                **settings.options,
                "storage": storage,
                "users": users or None,
                "tls": tls,
                "racks": rack_ids,
                "as_release": given.as_release,
            }
            if trace_topic is None and control is None:
                served = Brokers(counts, host=host, ports=ports, config=settings.groups, **options)
                await served.serve(on_ready)
                return
            from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint

            endpoint = EmbeddedEndpoint(
                topics=counts,
                brokers=brokers,
                ports=ports,
                host=host,
                config=settings.groups,
                journal=None,
                options=options,
            )
            await endpoint.start()
            stack.push_async_callback(endpoint.brokers.close)
            if trace_topic is not None:
                from fencepost.simulation.embedded.tracing import traced

                await stack.enter_async_context(traced(endpoint, trace_topic, security))
            if control is not None:
                from fencepost.simulation.control.serving import controlled

                url = await stack.enter_async_context(controlled(endpoint, control))
                on_ready = partial(on_ready, control=url)
            on_ready(endpoint.brokers)
            await endpoint.brokers.until_failure()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(until_stopped(serving()))
    return 0


def control_address(text: str) -> ControlAddress:
    """Return the address of `--control`. Warn if other machines can connect without a token.

    :raises FencepostError: if it is none.
    """
    from fencepost.simulation.control.serving import TOKEN_VARIABLE, ControlAddress

    address = ControlAddress.parse(text)
    if not os.environ.get(TOKEN_VARIABLE):
        warn_if_open(address.host, f"--control: other machines need no token: set {TOKEN_VARIABLE}")
    return address


def _where(
    host: str | None, port: int | None, brokers: int, listeners: ListenerConfig
) -> tuple[str, tuple[int, ...]]:
    """Return the host and the ports of `--host` and `--port`.

    :raises FencepostError: if `listeners` has the addresses, or there are not as many ports.
    """
    from fencepost.coordinator.server.brokers import ports_from

    if listeners.listeners:
        if host is not None or port is not None:
            raise FencepostError(
                f"--config {LISTENERS}: has the addresses to listen on; leave out --host and --port"
            )
        return _HOST, (0,) * brokers
    first = _PORT if port is None else port
    if first and first + brokers - 1 > _LAST_PORT:
        raise FencepostError(f"--brokers {brokers} from --port {first}: the last port is beyond {_LAST_PORT}")
    return _HOST if host is None else host, ports_from(first, brokers)


def _warn_if_open(listeners: Iterable[Iterable[BrokerListener]]) -> None:
    """Warn about each host at which clients of other machines need no login."""
    hosts = (each.host for of_broker in listeners for each in of_broker if not each.protocol.has_login)
    for host in dict.fromkeys(hosts):
        warn_if_open(host, "clients from other machines need no login: use --sasl-user, or --host 127.0.0.1")


def warn_if_open(host: str, reason: str) -> None:
    """Warn if other machines can connect to this host."""
    if not is_loopback(host):
        log.warning("open_to_everybody", host=host, reason=reason)


def _announce(
    broker: Brokers,
    *,
    rabbit: str | None,
    topics: Mapping[str, int],
    names_listeners: bool,
    json: bool,
    control: str | None = None,
) -> None:
    """Print where clients connect. What was made until now stays, so no garbage collection looks at it."""
    gc.freeze()
    gc.enable()
    ready = next(iter(broker.listening.values()))
    if json:
        print_json(
            ServeReady(
                ready=ready,
                host=broker.listeners[0].host,
                port=broker.ports[0],
                topics=topics,
                listeners=broker.listening,
                advertised_listeners=broker.advertised,
                rabbit_stream=rabbit,
                control=control,
            )
        )
        return
    print_text(f"fencepost ready {ready}")
    for name, listens in broker.listening.items() if names_listeners else ():
        print_text(f"fencepost listener {name} {listens} advertises {broker.advertised[name] or 'nothing'}")
    if rabbit is not None:
        print_text(f"fencepost ready rabbit-stream {rabbit}")
    if control is not None:
        print_text(f"fencepost ready control {control}")


def _storage(
    path: Path | None, config: GroupCoordinatorConfig, keeps_records: bool, mend: bool
) -> Storage | None:
    """Return the journal, repaired if it is damaged and `mend` allows it."""
    if path is None:
        if keeps_records or mend:
            option = "--journal-records" if keeps_records else "--journal-repair"
            raise FencepostError(f"{option}: needs --journal FILE")
        return None
    from fencepost.coordinator.server.storage import Storage, repaired

    if mend and (done := repaired(path, config)) is not None:
        log.warning(
            "journal_repaired",
            backup=str(done.backup),
            records_kept=done.records,
            batches_kept=done.batches,
        )
    return Storage(path, keeps_records=keeps_records)


def _require(library: str) -> None:
    """Raise if a library is missing: the codec would notice only at the first request."""
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)


def _racks(text: str | None, brokers: int) -> tuple[str, ...]:
    """Return the rack of each broker.

    :raises FencepostError: if the number of racks differs from the number of brokers.
    """
    if text is None:
        return ()
    racks = tuple(rack.strip() for rack in text.split(","))
    if len(racks) != brokers or not all(racks):
        raise FencepostError(
            f"--racks {text}: expected {brokers} names separated by commas, one for each broker"
        )
    return racks


def _settings(words: Sequence[str], *, is_quick: bool) -> BrokerConfig:
    from fencepost.coordinator.server.topic_configs import BrokerConfig

    properties: dict[str, object] = {}
    if is_quick:
        from fencepost.simulation.embedded.settings import quick_properties

        properties |= quick_properties()
    properties |= key_values(words, "--config")
    if BROKER_RACK in properties:
        raise FencepostError(f"--config {BROKER_RACK}: differs by broker, expected --racks RACK,RACK")
    try:
        return BrokerConfig.from_properties(properties)
    except FencepostError as error:
        raise FencepostError(f"--config: {error}") from None


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until a signal ends the process, then close."""
    atexit.register(gc.freeze)  # a last garbage collection of all that clients left would take a second
    loop = asyncio.get_running_loop()
    server = asyncio.ensure_future(serving)
    signals = ending_signals()
    for number in signals:
        loop.add_signal_handler(number, server.cancel)
    try:
        await server
    except asyncio.CancelledError:
        if not server.cancelled():
            raise
    except Exception:
        for number in signals:  # uvloop leaves them to a loop that is closed
            loop.remove_signal_handler(number)
        raise


def _topics(words: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions by topic.

    :raises FencepostError: if a word is not NAME:PARTITIONS, or a name is given twice.
    """
    from fencepost.coordinator.server.new_topics import check_partitions, check_topic_name

    counts: dict[str, int] = {}
    for word in (part.strip() for each in words for part in each.split(",")):
        name, _, number = word.partition(":")
        if not name or not number.isascii() or not number.isdecimal() or len(number) > _DIGITS:
            raise FencepostError(f"--topics {word or '(empty)'}: expected NAME:PARTITIONS, such as orders:12")
        try:
            check_topic_name(name)
            check_partitions(int(number))
        except ProtocolError as error:
            raise FencepostError(f"--topics {word}: {error.message}") from None
        if name in counts:
            raise FencepostError(f"--topics {word}: {name} is there twice")
        counts[name] = int(number)
    return counts
