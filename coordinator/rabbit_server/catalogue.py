"""The streams and super streams of one virtual host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fencepost.coordinator.protocol.sac import SIMPLE
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused, Stream

MAX_NAME_BYTES: Final = 255
MAX_PARTITIONS: Final = 10_000
"""Of one super stream."""


class Binding(NamedTuple):
    """A partition of a super stream, and the routing key that leads to it."""

    key: str
    stream: str
    order: int
    """The partition's index, which stays when others are deleted."""


class Catalogue:
    """The streams and super streams of a virtual host. A refused change raises `RabbitRequestRefused` and
    changes nothing."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self._super_streams: dict[str, list[Binding]] = {}

    def stream(self, name: str) -> Stream:
        """Return a stream.

        :raises Refused: if there is no stream of that name.
        """
        try:
            return self.streams[name]
        except KeyError:
            code = ResponseCode.STREAM_DOES_NOT_EXIST
            raise RabbitRequestRefused(f"there is no stream {name!r}", code) from None

    def create(self, name: str, arguments: Mapping[str, str]) -> Stream:
        """Create a stream and return it.

        :raises Refused: if it exists, or RabbitMQ would refuse the name or an argument.
        """
        name = checked_name(name)
        made = Stream(name, arguments)
        existing = self.streams.get(name)
        if existing is not None:
            if existing.arguments != made.arguments:
                raise RabbitRequestRefused(f"the stream {name!r} exists with other arguments")
            raise RabbitRequestRefused(f"the stream {name!r} exists", ResponseCode.STREAM_ALREADY_EXISTS)
        self.streams[name] = made
        return made

    def delete(self, name: str) -> Stream:
        """Delete a stream, also as a partition.

        :raises Refused: if there is no stream of that name.
        """
        stream = self.stream(name)
        del self.streams[name]
        for bindings in self._super_streams.values():
            bindings[:] = [each for each in bindings if each.stream != name]
        return stream

    def create_super(
        self, name: str, partitions: Sequence[str], keys: Sequence[str], arguments: Mapping[str, str]
    ) -> None:
        """Create a super stream, with a new stream for each partition.

        :raises Refused: if it or one of them exists, or RabbitMQ would refuse names, arguments or numbers.
        """
        name = checked_name(name)
        names = [checked_name(each) for each in partitions]
        if len(names) != len(keys) or len({*names}) != len(names) or len(names) > MAX_PARTITIONS:
            raise RabbitRequestRefused(
                f"{len(names)} partitions and {len(keys)} binding keys: expected the same number of each, "
                f"at most {MAX_PARTITIONS}, all different"
            )
        taken = [f"the super stream {name!r}"] if name in self._super_streams else []
        if taken := taken or [f"the stream {each!r}" for each in names if each in self.streams]:
            raise RabbitRequestRefused(f"{taken[0]} exists", ResponseCode.STREAM_ALREADY_EXISTS)
        # To create such a stream again without the argument asks for a different stream.
        arguments = {"queue-leader-locator": "balanced", **arguments}
        made = {each: Stream(each, arguments) for each in names}
        self.streams.update(made)
        self._super_streams[name] = [
            Binding(key, each, order) for order, (key, each) in enumerate(zip(keys, names, strict=True))
        ]

    def add_partition(self, name: str, key: str, arguments: Mapping[str, str]) -> str:
        """Add a partition after the others of a super stream; return the new stream's name.

        An index that a deleted partition had is given again only if that was the last one.

        :raises Refused: if there is no such super stream, or such a stream can't be made.
        """
        order = self.next_index(name)
        stream = self.create(f"{name}-{key}", arguments)
        self._bindings(name).append(Binding(key, stream.name, order))
        return stream.name

    def next_index(self, name: str) -> int:
        """Return the index of the next partition of a super stream.

        :raises Refused: if there is no such super stream.
        """
        bindings = self._bindings(name)
        return bindings[-1].order + 1 if bindings else 0

    def delete_super(self, name: str) -> list[Stream]:
        """Delete a super stream and its partitions.

        :raises Refused: if there is no super stream of that name.
        """
        bindings = self._bindings(name)
        del self._super_streams[name]
        return [self.delete(binding.stream) for binding in bindings]

    @property
    def super_streams(self) -> dict[str, tuple[str, ...]]:
        """The partitions of each super stream."""
        return {
            name: tuple(each.stream for each in bindings) for name, bindings in self._super_streams.items()
        }

    def partitions(self, name: str) -> list[str]:
        """Return the partitions of a super stream, in their order.

        :raises Refused: if there is no super stream of that name.
        """
        return [binding.stream for binding in self._bindings(name)]

    def route(self, key: str, name: str) -> list[str]:
        """Return the partitions that a routing key leads to.

        :raises Refused: if there is no such super stream.
        """
        return [binding.stream for binding in self._bindings(name) if binding.key == key]

    def partition_index(self, super_stream: str | None, stream: str) -> int:
        """Return the partition number of a stream; `SIMPLE` if it is not a partition of the super stream."""
        bindings = self._super_streams.get(super_stream or "", ())
        return next((each.order for each in bindings if each.stream == stream), SIMPLE)

    def _bindings(self, name: str) -> list[Binding]:
        try:
            return self._super_streams[name]
        except KeyError:
            code = ResponseCode.STREAM_DOES_NOT_EXIST
            raise RabbitRequestRefused(f"there is no super stream {name!r}", code) from None


def checked_name(name: str) -> str:
    """Return the name under which a stream or super stream is created: without line breaks.

    :raises Refused: if it is empty, too long or kept for the broker itself.
    """
    name = name.replace("\n", "").replace("\r", "")
    if not name or name.startswith("amq.") or len(name.encode()) > MAX_NAME_BYTES:
        raise RabbitRequestRefused(
            f"the name {name[:40]!r}: expected 1 to {MAX_NAME_BYTES} bytes that do not begin with 'amq.'"
        )
    return name
