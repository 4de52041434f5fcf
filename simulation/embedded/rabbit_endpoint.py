"""The objects behind an `EmbeddedRabbitStream`; they live on one loop."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.chunks import read_chunk
from fencepost.coordinator.rabbit_codec.compression import InvalidBatch
from fencepost.coordinator.rabbit_codec.entries import message, messages_of
from fencepost.coordinator.rabbit_server.broker import StreamBroker, node_name
from fencepost.coordinator.rabbit_server.catalogue import Catalogue
from fencepost.coordinator.rabbit_server.cluster import Limits
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused
from fencepost.simulation.embedded.rabbit_groups import StreamConsumer
from fencepost.simulation.embedded.settings import utf_8
from fencepost.simulation.embedded.waiting import Waiting

R = TypeVar("R")


class StreamMessage(NamedTuple):
    """A message of a stream."""

    offset: int
    value: bytes
    """The message as its publisher encoded it."""
    timestamp_ms: int


class RabbitEndpoint:
    """A broker with the actions of a test on it. Refused actions raise `FencepostError`."""

    def __init__(
        self,
        *,
        host: str,
        ports: Sequence[int],
        users: Mapping[str, str] | None,
        tls: ssl.SSLContext | None,
        request_timeout_s: float,
        disconnected_timeout_s: float,
    ) -> None:
        limits = Limits(request_timeout_ms=max(1, round(request_timeout_s * 1000)))
        self.broker = StreamBroker(host=host, ports=ports, users=users, tls=tls, limits=limits)
        self.waiting = Waiting()
        self._disconnected_timeout_ms = round(disconnected_timeout_s * 1000)

    async def start(self) -> None:
        """Start to listen."""
        await self.broker.start()
        self.groups.on_change = self.waiting.wake
        if self._disconnected_timeout_ms != sac.DEFAULT_DISCONNECTED_TIMEOUT_MS:
            self.groups.process(
                sac.UpdateConfiguration({sac.DISCONNECTED_TIMEOUT: self._disconnected_timeout_ms})
            )

    @property
    def groups(self) -> Groups:
        """The groups of single active consumers."""
        return self.broker.cluster.groups

    @property
    def catalogue(self) -> Catalogue:
        """The streams."""
        return self.broker.cluster.virtual_hosts[sac.DEFAULT_VHOST]

    def create_stream(self, name: str, arguments: Mapping[str, object]) -> None:
        """Create a stream."""
        texts = _texts(arguments)
        _mended(lambda: self.catalogue.create(_name(name), texts))

    def create_super_stream(
        self, name: str, binding_keys: Sequence[str], arguments: Mapping[str, object]
    ) -> list[str]:
        """Create a super stream, with a partition for each key."""
        texts = _texts(arguments)
        partitions = [_name(f"{_name(name)}-{key}") for key in binding_keys]
        _mended(lambda: self.catalogue.create_super(name, partitions, binding_keys, texts))
        return partitions

    def add_partition(self, name: str, key: str | None, arguments: Mapping[str, object]) -> str:
        """Add a partition to a super stream, with its binding key or the next number."""
        texts = _texts(arguments)
        if key is None:
            key = _mended(lambda: str(self.catalogue.next_index(name)))
        return _mended(lambda: self.catalogue.add_partition(name, _name(key), texts))

    def delete(self, name: str) -> None:
        """Delete a stream, or a super stream with its partitions."""
        if name in self.catalogue.super_streams:
            gone = self.catalogue.delete_super(name)
        else:
            gone = [_mended(lambda: self.catalogue.delete(name))]
        for stream in gone:
            self.broker.cluster.forget(sac.DEFAULT_VHOST, stream)

    def publish(self, name: str, values: Sequence[bytes | str]) -> list[int]:
        """Append messages, and return their offsets."""
        stream = _mended(lambda: self.catalogue.stream(name))
        first = stream.next_offset
        entries = [ChunkEntry(0, message(_bytes(each))) for each in values]
        stream.append(entries, "", self.broker.cluster.now_ms())
        return list(range(first, stream.next_offset))

    def messages(self, name: str) -> list[StreamMessage]:
        """Return all messages that a stream still has.

        :raises FencepostError: if there is no such stream, or a batch in it can't be read.
        """
        found = []
        for kept in _mended(lambda: self.catalogue.stream(name)).chunks:
            try:
                values = messages_of(read_chunk(kept.data).data)
            except InvalidBatch as error:  # the batches of publishers are kept as they are
                where = f"stream {name!r}, from offset {kept.first_offset} on"
                raise FencepostError(
                    f"{where}: a publisher sent a batch that no client can read: {error}"
                ) from None
            found += [
                StreamMessage(kept.first_offset + at, value, kept.timestamp_ms)
                for at, value in enumerate(values)
            ]
        return found

    def offsets(self, name: str) -> dict[str, int]:
        """Return the offsets that are stored in a stream, by name."""
        return dict(_mended(lambda: self.catalogue.stream(name)).offsets)

    def cut(self, number: int) -> None:
        """Cut a node off from the others."""
        self.groups.cut(self._node(number))

    def heal(self, number: int) -> None:
        """Make a node reachable again."""
        self.groups.heal(self._node(number))

    def _node(self, number: int) -> str:
        name = node_name(number)
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or name not in self.broker.cluster.ports:
            raise FencepostError(f"there is no node {number!r}; there are 1 to {len(self.broker.ports)}")
        return name

    def disconnect(self, who: StreamConsumer | str) -> None:
        """Break the connections of a consumer, or those of that name.

        :raises FencepostError: if there is no such connection.
        """
        name = who.connection if isinstance(who, StreamConsumer) else who
        found = [
            each for each in self.broker.connections if name in (each.session.name, each.session.client_name)
        ]
        if not found:
            raise FencepostError(f"no connection {name!r} is open")
        for connection in found:
            connection.abort()


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return utf_8("value", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise FencepostError(f"value={value!r}: expected bytes or text")


def _mended(call: Callable[[], R]) -> R:
    try:
        return call()
    except RabbitRequestRefused as refused:
        raise FencepostError(str(refused)) from None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise FencepostError(f"the name {name!r}: expected text")
    utf_8("the name", name)
    return name


def _texts(arguments: object) -> dict[str, str]:
    """Return the arguments of a stream as clients send them: all text."""
    if not isinstance(arguments, Mapping):
        raise FencepostError(f"arguments={arguments!r}: expected a mapping, such as {{'max-age': '1h'}}")
    for name in arguments:
        if not isinstance(name, str):
            raise FencepostError(f"arguments: {name!r} is not the name of an argument, expected text")
    return {name: str(value) for name, value in arguments.items()}
