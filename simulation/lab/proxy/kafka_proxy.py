"""A proxy before a real cluster for tests in any language: its faults are those of an embedded Kafka."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import structlog

from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, api_name
from fencepost.coordinator.codec.schema import kafka_apis
from fencepost.coordinator.protocol.cluster import MetadataResponse, Node
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.blocking import ask_metadata
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.embedded.fault_controls import FaultControls, check_selectors
from fencepost.simulation.embedded.fault_rules import FaultAction, FaultRule
from fencepost.simulation.embedded.faults import FaultInjector
from fencepost.simulation.embedded.lifecycle import Embedded
from fencepost.simulation.embedded.settings import Api, address, api_of, whole
from fencepost.simulation.embedded.thread import LoopThread
from fencepost.simulation.embedded.waiting import Waiting
from fencepost.simulation.lab.proxy.connection import ProxyConnection
from fencepost.simulation.lab.proxy.proxy import Address, Proxy
from fencepost.simulation.lab.proxy.stand_in import StandIn

log = structlog.get_logger(__name__)

_LAST_PORT = 65_535


class ProxyCalls:
    """Logs the start and the end of each fault. A request that a fault meets is counted and not logged: the
    log is written on the loop, which would wait for a reader of stderr."""

    def __init__(self) -> None:
        self.waiting = Waiting()

    def called(self, method: str, detail: str = "", *, group: str = "", state_to: str = "begin") -> None:
        """Log it."""
        if structlog.is_configured():
            log.info("proxy_fault", call=f"{method}({detail})", state=state_to)
        self.waiting.wake()


class FaultyProxy(Proxy):
    """A proxy with faults before the brokers of this cluster, on consecutive ports or on free ones."""

    def __init__(
        self, cluster: MetadataResponse, *, host: str, port: int, advertise: Address | None = None
    ) -> None:
        brokers = sorted(cluster.brokers, key=lambda each: each.node_id)
        super().__init__(
            {each.node_id: (each.host, each.port) for each in brokers},
            rng=random.Random(0),  # no rule of it draws
            host=host,
            ports={each.node_id: port + place if port else 0 for place, each in enumerate(brokers)},
            advertised={
                each.node_id: (advertise[0], advertise[1] + place) for place, each in enumerate(brokers)
            }
            if advertise
            else None,
        )
        self.observer = ProxyCalls()
        self._cluster = cluster
        self._unknown: set[int] = set()
        around = self._surroundings
        around.topic_names.add(cluster)
        around.stand_in = StandIn(self._note, self._described, around.topic_names, lambda: self._connections)

    @property
    def faults(self) -> FaultInjector:
        """The faults."""
        assert self._surroundings.stand_in is not None
        return self._surroundings.stand_in.faults

    def address(self, node: int) -> Address:
        """Return the address at which clients find a node. Warn once of a node that is new."""
        if node not in self._upstreams and node not in self._unknown:
            self._unknown.add(node)
            log.warning(
                "proxy_unknown_broker", node=node, reason="it is new: start the proxy after all brokers"
            )
        return super().address(node)

    def _ended(self, connection: ProxyConnection) -> None:
        self.faults.forget_connection(connection)
        super()._ended(connection)

    def _note(self, rule: FaultRule) -> None:
        if self.faults.is_over(rule):
            self.observer.called(rule.method, rule.arguments, state_to="end")
        else:
            self.observer.waiting.wake()

    def _described(self) -> MetadataResponse:
        found = ((each, *self.address(each)) for each in self._ports)
        brokers = tuple(Node(node_id=each, host=host, port=port) for each, host, port in found)
        return msgspec.structs.replace(self._cluster, brokers=brokers)


class KafkaProxy(FaultControls[FaultyProxy], Embedded[FaultyProxy, "KafkaProxy"]):
    """A proxy before the brokers of a real cluster, in a thread of its own.

        with KafkaProxy("localhost:9092") as proxy:
            consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": "billing"})
            proxy.fail_next("OffsetCommit", "NOT_COORDINATOR")

    It knows the brokers that `bootstrap_servers` tells at its start. It listens on `host`, which clients are
    told, and on consecutive ports from `port`; 0 takes free ones. Behind a mapped port, `advertise` is the
    first HOST:PORT at which clients find it, and further brokers have the next ports.

    :raises FencepostError: for a host, a port or an address that is none, and a cluster that speaks TLS.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        security: ClientSecurity = OPEN,
    ) -> None:
        super().__init__(LoopThread("fencepost-proxy", "this proxy"))
        if security.tls:
            raise FencepostError(
                "the proxy can't read TLS: expected security.protocol PLAINTEXT or SASL_PLAINTEXT"
            )
        self._servers = bootstrap_servers
        self._host = address(host)
        self._port = whole("port", port, 0, _LAST_PORT)
        addresses = () if advertise is None else kafka_addresses(advertise, "advertise")
        if len(addresses) > 1:
            raise FencepostError(f"advertise={advertise!r}: expected one HOST:PORT, that of the first broker")
        self._advertise = addresses[0] if addresses else None
        self._security = security

    @property
    def awaited(self) -> KafkaProxy:
        """Itself; what waits has a method that is awaited, such as `Fault.met`."""
        return self

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the proxy, as a client's setting `bootstrap.servers` takes them."""
        return self.endpoint.bootstrap_servers

    async def _opened(self) -> FaultyProxy:
        cluster = ask_metadata(self._servers, "bootstrap servers", self._security)
        advertised = self._advertise.port if self._advertise else 0
        for what, first in (("port", self._port), ("advertise", advertised)):
            if first + len(cluster.brokers) - 1 > _LAST_PORT:
                raise FencepostError(
                    f"{what} {first}: the last of {len(cluster.brokers)} ports is beyond {_LAST_PORT}"
                )
        proxy = FaultyProxy(cluster, host=self._host, port=self._port, advertise=self._advertise)
        await proxy.start()
        return proxy

    async def _closed(self, endpoint: FaultyProxy) -> None:
        await endpoint.close()

    def _api(self, api: Api) -> int:
        if isinstance(api, str):
            found = {name.lower(): key for name, key in kafka_apis().items()}
            if (key := found.get(re.sub("[-_]", "", api).lower())) is not None:
                return key
        return api_of(api)

    def _check(self, rule: FaultRule) -> None:
        api = None if rule.api is None else REGISTRY.get(rule.api)
        version = rule.version
        if rule.api == ApiKey.FETCH and rule.who is not None and self.endpoint.faults.is_member(rule.who):
            raise FencepostError(
                f"member={rule.name or rule.who!r}: the proxy does not know on which connections a member "
                "fetches; use client_id"
            )
        if rule.api is None or (
            api is not None and (version is None or api.min_version <= version <= api.max_version)
        ):
            check_selectors(rule)
            return
        given: dict[str, Any] = {each: getattr(rule, each) for each in ("error", "group", "topic")}
        given["action"] = "corrupt" if rule.action is FaultAction.CORRUPT else None
        for name, value in given.items():
            if value is not None:
                told = api_name(rule.api) + ("" if api is None else f" version {version}")
                raise FencepostError(
                    f"{name}={getattr(value, 'name', value)!r}: the proxy passes {told} on unread; expected "
                    "lose_response, lose_request, disconnect, silent, delay or throttle, for a client_id, "
                    "broker or version"
                )
