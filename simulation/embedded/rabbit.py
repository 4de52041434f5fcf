"""`EmbeddedRabbitStream`: a RabbitMQ stream node on a port of this process, for a test to drive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.sac import DEFAULT_VHOST
from fencepost.coordinator.protocol.sac_records import SacGroupKey
from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.chunks import read_chunk
from fencepost.coordinator.rabbit_codec.compression import InvalidBatch
from fencepost.coordinator.rabbit_codec.entries import message, messages_of
from fencepost.coordinator.rabbit_server.catalogue import MAX_PARTITIONS
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused, Stream
from fencepost.simulation.embedded.lifecycle import Controls, Embedded
from fencepost.simulation.embedded.rabbit_endpoint import RabbitEndpoint, StreamMessage
from fencepost.simulation.embedded.rabbit_groups import (
    AsyncStreamGroup,
    StreamConsumer,
    StreamGroup,
    StreamGroupControls,
)
from fencepost.simulation.embedded.settings import (
    MAX_BROKERS,
    Tls,
    duration,
    name_of,
    tls_of,
    users_of,
    utf_8,
    whole,
)
from fencepost.simulation.embedded.thread import LoopThread, on_loop

G = TypeVar("G", bound=StreamGroupControls)
_NO_ARGUMENTS: Mapping[str, object] = {}


class RabbitStreamControls(Controls["RabbitEndpoint"], Generic[G]):
    """A running node, as a test drives it. Its methods take microseconds, and may be called from any
    thread."""

    def __init__(
        self, thread: LoopThread, group_type: type[G], running: Controls[RabbitEndpoint] | None = None
    ) -> None:
        super().__init__(thread, running)
        self._group_type = group_type

    @property
    def host(self) -> str:
        """The host that clients connect to."""
        return self.endpoint.broker.host

    @property
    def port(self) -> int:
        """The port that clients connect to, that is, the first node's."""
        return self.ports[0]

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of all nodes."""
        return self.endpoint.broker.ports

    # -- streams ----------------------------------------------------------------------------------------

    @on_loop
    def create_stream(self, name: str, arguments: Mapping[str, object] = _NO_ARGUMENTS) -> None:
        """Create a stream, with arguments such as `max-length-bytes`.

        :raises FencepostError: if it exists, or RabbitMQ would refuse it.
        """
        texts = _texts(arguments)
        with _refused_by_rabbit():
            self.endpoint.catalogue.create(_name(name), texts)

    @on_loop
    def create_super_stream(
        self,
        name: str,
        partitions: int | Sequence[str] = 3,
        arguments: Mapping[str, object] = _NO_ARGUMENTS,
    ) -> list[str]:
        """Create a super stream, and return the streams that are its partitions, which are named after it.

        `partitions` is their number, or the binding key of each.

        :raises FencepostError: if one of these streams exists, or RabbitMQ would refuse it.
        """
        if isinstance(partitions, str | bytes) or not isinstance(partitions, int | Sequence):
            raise FencepostError(f"partitions={partitions!r}: expected a number, or binding keys")
        if isinstance(partitions, Sequence):
            keys = [str(key) for key in partitions]
            if not keys:
                raise FencepostError(f"partitions={partitions!r}: expected at least one binding key")
        else:
            keys = [str(number) for number in range(whole("partitions", partitions, 1, MAX_PARTITIONS))]
        texts = _texts(arguments)
        streams = [_name(f"{_name(name)}-{key}") for key in keys]
        with _refused_by_rabbit():
            self.endpoint.catalogue.create_super(name, streams, keys, texts)
        return streams

    @on_loop
    def add_partition(
        self, name: str, key: str | None = None, arguments: Mapping[str, object] = _NO_ARGUMENTS
    ) -> str:
        """Add a partition after the others of a super stream, and return its stream, which is named after
        both.

        `key` is its binding key; by default it is the index. Consumers continue with the partitions that they
        know.

        :raises FencepostError: if there is no such super stream, or RabbitMQ would refuse the stream.
        """
        texts, catalogue = _texts(arguments), self.endpoint.catalogue
        with _refused_by_rabbit():
            key = str(catalogue.next_index(name)) if key is None else key
            return catalogue.add_partition(name, _name(key), texts)

    @on_loop
    def delete_stream(self, name: str) -> None:
        """Delete a stream, or a super stream with its partitions. Clients that use it are notified.

        :raises FencepostError: if there is no stream of that name.
        """
        catalogue = self.endpoint.catalogue
        with _refused_by_rabbit():
            is_super = name in catalogue.super_streams
            for stream in catalogue.delete_super(name) if is_super else [catalogue.delete(name)]:
                self.endpoint.broker.cluster.forget(DEFAULT_VHOST, stream)

    @on_loop
    def streams(self) -> list[str]:
        """The names of all streams, sorted."""
        return sorted(self.endpoint.catalogue.streams)

    @on_loop
    def publish(self, stream: str, *values: bytes | str) -> list[int]:
        """Append messages in chunks as RabbitMQ does, and return their offsets. Text is encoded as UTF-8.

        :raises FencepostError: if there is no such stream, or a message is neither bytes nor text.
        """
        found = self._stream(stream)
        first = found.next_offset
        entries = [ChunkEntry(0, message(_bytes(each))) for each in values]
        found.append(entries, "", self.endpoint.broker.cluster.now_ms())
        return list(range(first, found.next_offset))

    @on_loop
    def messages(self, stream: str) -> list[StreamMessage]:
        """Return all messages of a stream, as their publishers encoded them.

        :raises FencepostError: if there is no such stream, or a batch in it can't be read.
        """
        found = []
        for kept in self._stream(stream).chunks:
            try:
                values = messages_of(read_chunk(kept.data).data)
            except InvalidBatch as error:  # the batches of publishers are kept as they are
                where = f"stream {stream!r}, from offset {kept.first_offset} on"
                raise FencepostError(
                    f"{where}: a publisher sent a batch that no client can read: {error}"
                ) from None
            found += [
                StreamMessage(kept.first_offset + at, value, kept.timestamp_ms)
                for at, value in enumerate(values)
            ]
        return found

    @on_loop
    def offsets(self, stream: str) -> dict[str, int]:
        """Return the offsets that consumers have stored, by name.

        :raises FencepostError: if there is no such stream.
        """
        return dict(self._stream(stream).offsets)

    def _stream(self, name: str) -> Stream:
        with _refused_by_rabbit():
            return self.endpoint.catalogue.stream(name)

    # -- consumers --------------------------------------------------------------------------------------

    def group(self, stream: str, name: str) -> G:
        """Return the group of single active consumers of a stream under a name, whether it has any yet or
        not.

        :raises FencepostError: for a stream or a name that is not text, or is blank.
        """
        self._must_run()
        name_of("stream", stream, "a name")
        name_of("group", name, "the name of its consumers")
        return self._group_type(self, SacGroupKey(DEFAULT_VHOST, stream, name))

    @on_loop
    def disconnect(self, who: StreamConsumer | str) -> None:
        """Break a consumer's connection, and with it everything on that connection. The client is free to
        connect again.

        `who` is a `StreamConsumer`, or the name of a connection: the client's own name or RabbitMQ's.

        :raises FencepostError: if no such connection is open.
        """
        name = who.connection if isinstance(who, StreamConsumer) else who
        found = [
            each
            for each in self.endpoint.broker.connections
            if name in (each.session.name, each.session.client_name)
        ]
        if not found:
            raise FencepostError(f"no connection {name!r} is open")
        for connection in found:
            connection.abort()

    # -- nodes ------------------------------------------------------------------------------------------

    @on_loop
    def cut(self, node: int) -> None:
        """Cut a node off from the others, by its number from 1. It continues with what it was doing.

        Its consumers count as disconnected. An active one blocks its group until the disconnected timeout is
        over, because it may still be working; then the group continues without it.

        :raises FencepostError: if there is no such node.
        """
        self.endpoint.groups.cut(self.endpoint.node(node))

    @on_loop
    def heal(self, node: int) -> None:
        """Make a node reachable again. The coordinator asks whether its consumers are still there.

        A consumer that was active when it was cut off, and was forgotten since, must step down. So must the
        one that is active now. Then the group chooses an active consumer.

        :raises FencepostError: if there is no such node.
        """
        self.endpoint.groups.heal(self.endpoint.node(node))


class EmbeddedRabbitStream(
    RabbitStreamControls[StreamGroup], Embedded["RabbitEndpoint", "AsyncEmbeddedRabbitStream"]
):
    """A RabbitMQ in this process, for clients of its stream protocol, driven by the test.

        with EmbeddedRabbitStream() as rabbit:
            rabbit.create_stream("orders")
            ...  # a client connects to rabbit.host and rabbit.port as guest
            rabbit.group("orders", "billing").wait_settled(consumers=2)

    With `async with`, waiting is awaited. In both cases the node has its own thread and event loop.
    Everything is in memory. `nodes` share streams and groups, each on its own port. `port` 0 takes free
    ports; any other port needs a single node. `users` are passwords by name and replace guest. With `tls` (an
    `ssl.SSLContext`, or the PEM files of certificate and key), clients must speak TLS. A client that does not
    respond to a ConsumerUpdate for `request_timeout` seconds is disconnected. A node that is cut off for
    `disconnected_timeout` seconds is given up.

    :raises FencepostError: for invalid settings, and on entering if it can't listen on the port.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        nodes: int = 1,
        port: int = 0,
        users: Mapping[str, str] | None = None,
        tls: Tls = None,
        request_timeout: float = 60.0,
        disconnected_timeout: float = 60.0,
    ) -> None:
        super().__init__(LoopThread("fencepost-embedded-rabbit", "this RabbitMQ"), StreamGroup)
        self._settings: dict[str, Any] = {
            "host": host,
            "ports": (whole("port", port, 0, 65_535),) * whole("nodes", nodes, 1, MAX_BROKERS),
            "users": users_of(users) or None,
            "tls": tls_of(tls),
            "request_timeout_s": duration("request_timeout", request_timeout),
            "disconnected_timeout_s": duration("disconnected_timeout", disconnected_timeout),
        }
        if port and nodes > 1:
            raise FencepostError(f"port={port}: expected with one node, not with {nodes}")

    @property
    def awaited(self) -> AsyncEmbeddedRabbitStream:
        """Return the same node for a test that awaits. It must be running.

        :raises FencepostError: if it does not run.
        """
        return AsyncEmbeddedRabbitStream(self)

    async def _opened(self) -> RabbitEndpoint:
        endpoint = RabbitEndpoint(**self._settings)
        await endpoint.start()
        return endpoint

    async def _closed(self, endpoint: RabbitEndpoint) -> None:
        await endpoint.broker.close()


class AsyncEmbeddedRabbitStream(RabbitStreamControls[AsyncStreamGroup]):
    """The result of `async with EmbeddedRabbitStream()`: the same node, but waiting for its groups is
    awaited."""

    def __init__(self, rabbit: EmbeddedRabbitStream) -> None:
        super().__init__(rabbit.thread, AsyncStreamGroup, rabbit)


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return utf_8("value", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise FencepostError(f"value={value!r}: expected bytes or text")


@contextlib.contextmanager
def _refused_by_rabbit() -> Iterator[None]:
    try:
        yield
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
