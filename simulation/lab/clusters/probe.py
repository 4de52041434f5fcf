"""Asks a broker who it is: ApiVersions version 3 and Metadata version 2, over a connection of its own.

The two requests are packed by hand: this must work before any client library is loaded, against brokers that
are half up, and say plainly what is wrong with those that are not Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError

API_VERSIONS = 18
METADATA = 3
CONSUMER_GROUP_HEARTBEAT = 68
GROUP_VERSION = "group.version"
"""The feature that turns KIP-848 on; absent while its level is 0."""

_LONGEST_ANSWER = 1 << 20
_FINALIZED_FEATURES = 2
_CLIENT_ID = b"fencepost"


class NotKafka(Exception):
    """Something answers, but not in Kafka's protocol."""


class BrokerAnswer(NamedTuple):
    """What one broker says of itself and of its cluster."""

    address: tuple[str, int]
    """Host and port at which it was asked."""
    cluster_id: str
    nodes: dict[int, str]
    """Every broker that is alive in the eyes of this one: HOST:PORT by node id."""
    apis: dict[int, tuple[int, int]]
    """Versions by API key."""
    features: dict[str, int]
    """Finalized features and their levels."""

    @property
    def speaks_kip848(self) -> bool:
        """Whether consumer groups of KIP-848 work here. Brokers other than Kafka may have no features."""
        return CONSUMER_GROUP_HEARTBEAT in self.apis and (
            not self.features or self.features.get(GROUP_VERSION, 0) > 0
        )


async def ask(host: str, port: int, seconds: float = 2.0) -> BrokerAnswer:
    """One broker's answer.

    :raises OSError: if there is no connection, or none within `seconds` (TimeoutError).
    :raises NotKafka: if what comes back is nothing that Kafka would say.
    """
    where = "no answer in time"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            where = "it accepts connections, and there was no answer in time"
            try:
                return await _ask((host, port), reader, writer)
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError as error:
        raise TimeoutError(where) from error


async def _ask(
    address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> BrokerAnswer:
    try:
        apis, features = _api_versions(await _exchange(reader, writer, API_VERSIONS, 3, _ASK_VERSIONS))
        cluster_id, nodes = _metadata(await _exchange(reader, writer, METADATA, 2, _NO_TOPICS))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise NotKafka(f"its answer makes no sense ({type(error).__name__})") from error
    except asyncio.IncompleteReadError as error:
        raise NotKafka(_guess(error.partial) or "it closes the connection at a Kafka request") from error
    except ConnectionError as error:
        raise NotKafka("it breaks the connection off at a Kafka request") from error
    return BrokerAnswer(address, cluster_id, nodes, apis, features)


def _guess(start: bytes) -> str | None:
    """What speaks so, if it is one of the usual mistakes."""
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS"
    if start[:5] == b"HTTP/" or start[:1] == b"<":
        return "it speaks HTTP"
    return None


def reason_of(error: OSError) -> str:
    """Why there is no connection, in the system's words and in one line."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    # asyncio's own text has the address in it, and all of them where a name has several.
    number = error.errno or int(next(iter(re.findall(r"Errno (\d+)", str(error))), 0))
    return (os.strerror(number) if number else str(error) or type(error).__name__).lower()


def addresses(servers: str) -> dict[str, tuple[str, int]]:
    """Host and port of each broker that a user named, one or, as clients take them, several with commas.

    :raises FencepostError: if one is not HOST:PORT.
    """
    found = {}
    for address in [each.strip() for each in servers.split(",") if each.strip()] or [servers]:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise FencepostError(f"--cluster {address}: expected HOST:PORT, such as 127.0.0.1:9092")
        found[address] = host.strip("[]"), int(port)
    return found


async def examine(servers: str, seconds: float = 5.0) -> BrokerAnswer:
    """The answer of a broker that a user named, once it is known that KIP-848 groups work there.

    :raises FencepostError: if one of `servers` is not HOST:PORT.
    :raises EnvironmentLacks: if there is no broker, or none that will do; the text says what to do.
    """
    complaint: EnvironmentLacks | None = None
    for address, (host, port) in addresses(servers).items():
        try:
            return await _examine(address, host, port, seconds)
        except EnvironmentLacks as error:
            complaint = complaint or error
    assert complaint is not None
    raise complaint


async def _examine(address: str, host: str, port: int, seconds: float) -> BrokerAnswer:
    try:
        answer = await ask(host, port, seconds)
    except NotKafka as error:
        raise EnvironmentLacks(
            f"{address} does not answer as a plaintext Kafka listener does: {error}; "
            "name one of the broker's PLAINTEXT listeners"
        ) from error
    except OSError as error:
        raise EnvironmentLacks(
            f"no broker answers at {address} ({reason_of(error)}): start one, or: fencepost cluster up"
        ) from error
    if not answer.speaks_kip848:
        raise EnvironmentLacks(
            f"the broker at {address} has no KIP-848 consumer groups: "
            "Kafka 4.0 or newer is needed, with the feature group.version at 1 or above"
        )
    return answer


_ASK_VERSIONS = b"\x00" + b"\x0afencepost" + b"\x020" + b"\x00"
"""No tags in the header; the client's name and version; no tags."""

_NO_TOPICS = struct.pack(">i", 0)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int, version: int, body: bytes
) -> bytes:
    header = struct.pack(">hhih", key, version, key, len(_CLIENT_ID)) + _CLIENT_ID
    writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
    await writer.drain()
    head = await reader.readexactly(8)
    if (guess := _guess(head)) is not None:
        raise NotKafka(guess)
    size, correlation_id = struct.unpack(">ii", head)
    if correlation_id != key or not 4 <= size <= _LONGEST_ANSWER:
        raise NotKafka("its answer is no Kafka response")
    return await reader.readexactly(size - 4)


class _Reader:
    """Kafka's primitives, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        end = self._position + count
        if count < 0 or end > len(self._data):
            raise IndexError("beyond the end")
        part = self._data[self._position : end]
        self._position = end
        return part

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 28:
                raise IndexError("a length of more than four bytes")

    def text(self) -> str:
        length = self.int16()
        return self.take(length).decode() if length >= 0 else ""

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


def _api_versions(body: bytes) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    """Versions by API and levels by feature (ApiVersionsResponse, version 3)."""
    reader = _Reader(body)
    if error := reader.int16():
        raise NotKafka(f"it refuses ApiVersions version 3 with error {error}: it is older than Kafka 2.4")
    apis = {}
    for _ in range(reader.varint() - 1):
        key = reader.int16()
        apis[key] = (reader.int16(), reader.int16())
        reader.skip_tags()
    reader.int32()  # throttle time
    features: dict[str, int] = {}
    for _ in range(reader.varint()):
        tag = reader.varint()
        value = reader.take(reader.varint())
        if tag == _FINALIZED_FEATURES:
            features = _finalized(_Reader(value))
    return apis, features


def _finalized(reader: _Reader) -> dict[str, int]:
    features = {}
    for _ in range(reader.varint() - 1):
        name = reader.take(reader.varint() - 1).decode()
        features[name] = reader.int16()
        reader.int16()  # the lowest level
        reader.skip_tags()
    return features


def _metadata(body: bytes) -> tuple[str, dict[int, str]]:
    """The cluster's id and its brokers (MetadataResponse, version 2)."""
    reader = _Reader(body)
    nodes = {}
    for _ in range(reader.int32()):
        node_id = reader.int32()
        host = reader.text()
        nodes[node_id] = f"{host}:{reader.int32()}"
        reader.text()  # rack
    return reader.text(), nodes
