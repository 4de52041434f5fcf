"""The addresses of brokers as a user gives them: HOST:PORT, one or several separated by commas."""

from __future__ import annotations

from typing import NamedTuple

from fencepost.coordinator.protocol.errors import FencepostError


class KafkaAddress(NamedTuple):
    """Host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def kafka_addresses(servers: str, option: str) -> tuple[KafkaAddress, ...]:
    """Return the address of each broker in a comma-separated list, without duplicates. `option` is the option
    that named them.

    :raises FencepostError: if one is not HOST:PORT.
    """
    found = []
    for word in [each.strip() for each in servers.split(",") if each.strip()] or [servers]:
        host, _, port = word.rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise FencepostError(f"{option}: expected HOST:PORT, such as 127.0.0.1:9092, got {word}")
        found.append(KafkaAddress(host.strip("[]"), int(port)))
    return tuple(dict.fromkeys(found))
