"""The listeners of brokers: where they listen, and which addresses the clients of each listener receive."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fencepost.coordinator.config import SecurityProtocol
from fencepost.coordinator.protocol.errors import FencepostError

LISTENERS = "listeners"
ADVERTISED_LISTENERS = "advertised.listeners"
PROTOCOL_MAP = "listener.security.protocol.map"
NODE_ID = "node.id"
LISTENER_SETTINGS = (LISTENERS, ADVERTISED_LISTENERS, PROTOCOL_MAP, NODE_ID)
ALL_INTERFACES = "0.0.0.0"
WILDCARDS = frozenset({ALL_INTERFACES, "::"})
"""Hosts to listen on that no client can connect to."""
_NOT_HERE = {
    name: f"{name}: these brokers share one process and send each other no requests; leave it out"
    for name in ("inter.broker.listener.name", "security.inter.broker.protocol", "controller.listener.names")
}
_LAST_NODE_ID = 2**31 - 1
_LAST_PORT = 65_535
_ADDRESS = re.compile(r"([^:/]+)://(?:\[([0-9a-fA-F:.%]*)\]|([0-9a-zA-Z\-%._]*)):([0-9]{1,5})")
_EXAMPLE = "NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092"
_OWN_NAMES: Mapping[str, SecurityProtocol] = {each.name: each for each in SecurityProtocol}


class NamedAddress(NamedTuple):
    """An address in Kafka's syntax, NAME://HOST:PORT. An empty host stands for all interfaces, or for the
    address that a client connected to; port 0 stands for a free port, or for the port that is listened on."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{address_text(self.host, self.port)}"


class BrokerListener(NamedTuple):
    """One listener of one broker."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol
    advertised: NamedAddress | None
    """The address for its clients; None if they receive no address of this broker."""

    def at_port(self, port: int) -> BrokerListener:
        """Return the same listener of another broker, which advertises the port that it listens on."""
        return self._replace(port=port, advertised=self.advertised and self.advertised._replace(port=0))


Lists = tuple[tuple[NamedAddress, ...], ...]
"""One list of addresses for each broker."""


class ListenerConfig(NamedTuple):
    """The properties about listeners; empty lists if they are not set."""

    listeners: Lists = ()
    advertised: Lists = ()
    protocols: Mapping[str, SecurityProtocol] = _OWN_NAMES
    """The protocol of each listener name."""
    node_id: int = 1
    """The id of the first broker; the others follow."""

    @classmethod
    def taken_from(cls, properties: dict[str, Any]) -> ListenerConfig:
        """Remove these settings from `properties` and return them.

        :raises FencepostError: for a value that Kafka would refuse.
        """
        for name in filter(properties.__contains__, _NOT_HERE):
            raise FencepostError(_NOT_HERE[name])
        protocols = _protocols(properties.pop(PROTOCOL_MAP, None))
        listeners = _lists(LISTENERS, properties.pop(LISTENERS, None), protocols)
        for each in listeners:
            _check_ports(each)
        advertised = _lists(ADVERTISED_LISTENERS, properties.pop(ADVERTISED_LISTENERS, None), protocols)
        for address in (address for each in advertised for address in each):
            if address.host in WILDCARDS:
                raise FencepostError(
                    f"{ADVERTISED_LISTENERS}: {address}: {address.host} is a nonroutable address, expected "
                    "one that clients can connect to"
                )
        return cls(listeners, advertised, protocols, _node_id(properties.pop(NODE_ID, 1)))

    def of_brokers(
        self, hosts: Sequence[str], ports: Sequence[int], *, has_login: bool, has_tls: bool
    ) -> tuple[tuple[BrokerListener, ...], ...]:
        """Return the listeners of each broker. Without `listeners` each has one, at its host and port.

        :raises FencepostError: if the lists do not fit the brokers, each other, the users or the certificate.
        """
        protocol = SecurityProtocol.of(has_login=has_login, has_tls=has_tls)
        lists = self.listeners or tuple(
            (NamedAddress(protocol.name, host, port),) for host, port in zip(hosts, ports, strict=True)
        )
        for setting, each in ((LISTENERS, lists), (ADVERTISED_LISTENERS, self.advertised)):
            if each and len(each) != len(ports):
                raise FencepostError(
                    f"{setting}: found {len(each)} for {len(ports)} brokers, expected a list of addresses "
                    "for each broker, with ';' between them"
                )
        check_node_id(self.node_id + len(ports) - 1)
        brokers = tuple(
            self._of_broker(each, self.advertised[number] if self.advertised else None)
            for number, each in enumerate(lists)
        )
        _check_security([each for broker in brokers for each in broker], has_login, has_tls)
        return brokers

    def _of_broker(
        self, addresses: Iterable[NamedAddress], advertised: Iterable[NamedAddress] | None
    ) -> tuple[BrokerListener, ...]:
        by_name = {each.name: each for each in (addresses if advertised is None else advertised)}
        listeners = tuple(
            BrokerListener(name, host or ALL_INTERFACES, port, self.protocols[name], by_name.pop(name, None))
            for name, host, port in addresses
        )
        if by_name:
            raise FencepostError(
                f"{ADVERTISED_LISTENERS}: {', '.join(by_name)}: no listener has this name; expected "
                f"{' or '.join(each.name for each in listeners)}, or an entry in {LISTENERS}"
            )
        return listeners


NO_LISTENERS = ListenerConfig()
"""The properties of a broker that say nothing about listeners."""


def check_node_id(node_id: int) -> None:
    """Refuse the id of a broker that does not fit into Kafka's 32 bits.

    :raises FencepostError: then.
    """
    if node_id > _LAST_NODE_ID:
        raise FencepostError(f"{NODE_ID}: {node_id}: the last id is beyond {_LAST_NODE_ID}")


def is_loopback(host: str) -> bool:
    """Return true if only this machine can connect to that address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def address_text(host: str, port: int) -> str:
    """Return HOST:PORT, as a client's setting `bootstrap.servers` takes them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _lists(setting: str, value: object, protocols: Mapping[str, SecurityProtocol]) -> Lists:
    """Return the lists of the brokers: text with ';' between them, or a text for each broker."""
    if value is None:
        return ()
    texts = value.split(";") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts) or not texts:
        raise FencepostError(f"{setting}: {value!r}: expected {_EXAMPLE}, or a list of one for each broker")
    return tuple(_addresses(setting, text, protocols) for text in texts)


def _addresses(
    setting: str, text: str, protocols: Mapping[str, SecurityProtocol]
) -> tuple[NamedAddress, ...]:
    found: dict[str, NamedAddress] = {}
    for word in (part.strip() for part in text.split(",")):
        match = _ADDRESS.fullmatch(word)
        if match is None or int(match[4]) > _LAST_PORT:
            raise FencepostError(f"{setting}: {word!r} is not a listener's address, expected {_EXAMPLE}")
        address = NamedAddress(match[1].upper(), match[2] or match[3] or "", int(match[4]))
        if address.name not in protocols:
            raise FencepostError(
                f"{setting}: {word}: no security protocol is defined for listener {address.name}; add "
                f"{address.name}:PLAINTEXT to {PROTOCOL_MAP}, or use one of {', '.join(protocols)}"
            )
        if address.name in found:
            raise FencepostError(f"{setting}: {text.strip()}: each listener must have a different name")
        found[address.name] = address
    return tuple(found.values())


def _check_ports(addresses: Sequence[NamedAddress]) -> None:
    taken: dict[tuple[int, int | None], NamedAddress] = {}
    for each in addresses:
        other = taken.setdefault((each.port, _ip_version(each.host)), each)
        if other is not each and each.port:
            raise FencepostError(f"{LISTENERS}: {other},{each}: each listener must have a different port")


def _ip_version(host: str) -> int | None:
    """Return 4 or 6. As in Kafka, one listener of each version may have the same port; a name counts as 4."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 4


def _protocols(value: object) -> Mapping[str, SecurityProtocol]:
    if value is None:
        return _OWN_NAMES
    found: dict[str, SecurityProtocol] = {}
    for word in (part.strip() for part in str(value).split(",")):
        name, colon, protocol = word.rpartition(":")
        if not colon or not name or protocol.upper() not in _OWN_NAMES:
            raise FencepostError(
                f"{PROTOCOL_MAP}: {word!r}: expected NAME:PROTOCOL, where PROTOCOL is one of "
                f"{', '.join(_OWN_NAMES)}"
            )
        if name.upper() in found:
            raise FencepostError(f"{PROTOCOL_MAP}: {word}: {name.upper()} is there twice")
        found[name.upper()] = _OWN_NAMES[protocol.upper()]
    return found


def _node_id(value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,10}", text) or int(text) > _LAST_NODE_ID:
        raise FencepostError(f"{NODE_ID}: {value!r}: expected a whole number, 0 to {_LAST_NODE_ID}")
    return int(text)


def _check_security(listeners: Sequence[BrokerListener], has_login: bool, has_tls: bool) -> None:
    """Refuse a listener that lacks users or a certificate, and users or a certificate without a listener."""
    for what, has, users_of_it, expected in (
        (
            "users",
            has_login,
            [each for each in listeners if each.protocol.has_login],
            "SASL_PLAINTEXT or SASL_SSL",
        ),
        (
            "a TLS certificate",
            has_tls,
            [each for each in listeners if each.protocol.has_tls],
            "SSL or SASL_SSL",
        ),
    ):
        if users_of_it and not has:
            name, protocol = users_of_it[0].name, users_of_it[0].protocol.name
            raise FencepostError(
                f"{LISTENERS}: {name} has the protocol {protocol}; expected {what} with it, or another "
                "protocol"
            )
        if has and not users_of_it:
            raise FencepostError(
                f"{LISTENERS}: there is {what}, and no listener asks for it; expected one with the protocol "
                f"{expected}"
            )
