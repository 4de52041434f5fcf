"""The outside world of a single active consumer: connections to nodes, on which it listens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from fencepost.coordinator.protocol.sac import SIMPLE
from fencepost.member.base.arguments import check_whole
from fencepost.member.sac.offsets import NEXT, OffsetKind, OffsetSpecification
from fencepost.member.sac.settings import check_place, check_text


class SacSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The stream that a consumer subscribes to, and the name under which it does.

    :raises TypeError: if something is not of its type.
    :raises ValueError: for an empty name, an impossible number, or an offset that names no place.
    """

    stream: str
    name: str
    """The consumer name: consumers that share it are a group, and share the stored offset."""
    super_stream: str | None = None
    """The super stream that the stream is a partition of."""
    partition_index: int = SIMPLE
    """The index of the partition, for transports that have a field for it.

    RabbitMQ finds the index itself from `super_stream`; `RabbitTransport` refuses subscriptions that set it.
    """
    offset: OffsetSpecification = NEXT
    """The start offset if a response names none."""

    def __post_init__(self) -> None:
        check_text("stream", self.stream)
        check_text("name", self.name)
        if self.super_stream is not None:
            check_text("super_stream", self.super_stream)
        check_whole("partition_index", self.partition_index, SIMPLE)
        if check_place("offset", self.offset).kind is OffsetKind.NONE:
            raise ValueError(f"offset should name a place, got {self.offset!r}")


class SubscriptionRefused(Exception):
    """The server does not accept the subscription, and would not accept it at a second try."""


class UnreadableMessages(Exception):
    """Messages came that this library can't read, and they would come again; the text has the first one's
    offset."""


class ConnectionListener(Protocol):
    """The events of a connection for its consumer. Called on the loop, in the order in which frames came."""

    def consumer_update(self, correlation_id: int, active: bool) -> None:
        """The server wants the consumer to be active, or not."""

    def delivered(self, first: int, messages: Sequence[bytes]) -> None:
        """A chunk came: the offset of its first message, and its messages."""

    def unreadable(self, first: int, count: int, reason: str) -> None:
        """A chunk of `count` messages came that can't be read, for this reason."""

    def disconnected(self, reason: str) -> None:
        """The connection is lost, for this reason; nothing else comes from it."""


class SacConnection(Protocol):
    """One connection to a node, for one consumer."""

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        """Subscribe as a single active consumer.

        The future fails with SubscriptionRefused, or with TransportError if there is no response.
        """

    def answer(self, correlation_id: int, offset: OffsetSpecification) -> None:
        """Respond to a consumer update."""

    def credit(self, chunks: int) -> None:
        """Let the server send this many more chunks."""

    def store_offset(self, subscription: SacSubscription, offset: int) -> None:
        """Store the offset of the last message that was processed, for the whole group."""

    def query_offset(self, subscription: SacSubscription) -> asyncio.Future[int | None]:
        """Return the offset that the group stored last, None if it has none.

        The future fails with TransportError.
        """

    def close(self) -> None:
        """Give the connection up; the server removes the consumer from its group. Its listener receives
        nothing more."""

    async def wait_closed(self) -> None:
        """Wait until the server has received everything that was sent, or can't receive it any more."""


class SacTransport(Protocol):
    """The way from one consumer to the nodes of its stream."""

    def connect(self, listener: ConnectionListener) -> asyncio.Future[SacConnection]:
        """Open a new connection to any node that has the stream.

        The future fails with TransportError; if it is cancelled, there is no connection.
        """
