"""Groups of single active consumers, as a test looks at them and waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.sac import ActivateConsumer, Activity, Connectivity, node_of
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey
from fencepost.coordinator.sac.listing import described
from fencepost.simulation.embedded.lifecycle import Controls
from fencepost.simulation.embedded.settings import duration, whole
from fencepost.simulation.embedded.thread import awaiting, on_loop, until_done

if TYPE_CHECKING:
    from fencepost.simulation.embedded.rabbit_endpoint import RabbitEndpoint


class StreamConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a group."""

    stream: str
    name: str
    """The group's name, which its consumers have in common."""
    connection: str
    """The connection's name, as RabbitMQ lists it: its source and its destination."""
    client_name: str
    """The name that the client gave the connection, or the connection's own name without one."""
    subscription_id: int
    node: int
    """The number of the node that it is connected to, from 1."""
    state: str
    """The state, as RabbitMQ lists it: `active (connected)`, `waiting (disconnected)`, `deactivating
    (connected)`."""
    is_active: bool
    """True if it is the active consumer, has confirmed that, and receives messages."""


class StreamGroupControls:
    """All single active consumers of a stream under one name. Its methods may be called from any thread."""

    def __init__(self, rabbit: Controls[RabbitEndpoint], key: SacGroupKey) -> None:
        self.thread = rabbit.thread
        self.stream = key.stream
        self.name = key.consumer_name
        self._rabbit = rabbit
        self._key = key

    @property
    def _endpoint(self) -> RabbitEndpoint:
        """The current endpoint: the node may have been closed and started again."""
        return self._rabbit.endpoint

    @on_loop
    def consumers(self) -> list[StreamConsumer]:
        """The group's consumers, in the order in which the active one is chosen from them."""
        return self._consumers()

    @property
    @on_loop
    def active(self) -> StreamConsumer | None:
        """The consumer that receives messages; None if no consumer does now.

        A consumer on a node that is cut off may still receive messages. Then this is the one that took its
        place.
        """
        reading = [one for one in self._members if self._is_reading(one)]
        found = _connected(reading) or reading
        return self._consumer(found[0]) if found else None

    @property
    @on_loop
    def partition_index(self) -> int | None:
        """Index of the stream among the partitions of its super stream, -1 for a plain stream; None if there
        is no such group."""
        group = self._endpoint.groups.coordinator.state.groups.get(self._key)
        return None if group is None else group.partition_index

    @on_loop
    def activate(self) -> None:
        """Let the group choose its active consumer again, as RabbitMQ's `activate_stream_consumer` does.

        :raises FencepostError: if there is no such group.
        """
        key = self._key
        reply = self._endpoint.groups.process(
            ActivateConsumer(vhost=key.vhost, stream=key.stream, consumer_name=key.consumer_name)
        )
        if reply is not None and reply.error is not None:
            raise FencepostError(f"group {self.name!r} of {self.stream!r}: {reply.error}")

    @property
    def _members(self) -> Sequence[SacConsumer]:
        group = self._endpoint.groups.coordinator.state.groups.get(self._key)
        return () if group is None else group.consumers

    def _consumers(self) -> list[StreamConsumer]:
        return [self._consumer(each) for each in self._members]

    def _is_reading(self, one: SacConsumer) -> bool:
        """Return true if the consumer is sent messages: only its session knows."""
        session = self._endpoint.groups.session_of(one.connection)
        there = None if session is None else session.consumers.get(one.subscription_id)
        return there is not None and there.is_reading

    def _consumer(self, one: SacConsumer) -> StreamConsumer:
        session = self._endpoint.groups.session_of(one.connection)
        return StreamConsumer(
            stream=self.stream,
            name=self.name,
            connection=one.owner,
            client_name=one.owner if session is None else session.client_name,
            subscription_id=one.subscription_id,
            node=1 + list(self._endpoint.broker.cluster.ports).index(node_of(one.connection)),
            state=described(one),
            is_active=self._is_reading(one),
        )

    async def _wait_settled(
        self,
        consumers: int | None = None,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109  # its own thread's loop
    ) -> list[StreamConsumer]:
        """Wait until one consumer is active and knows it, and no consumer is stepping down; return the
        consumers.

        Consumers on nodes that are cut off do not count. With a number, there must be that many consumers; 0
        waits until there are no consumers.

        :raises TimeoutError: if it takes longer than `timeout` seconds; the text describes the group's state.
        """
        wanted = None if consumers is None else whole("consumers", consumers, 0, None)
        limit = duration("timeout", timeout)
        if not await self._endpoint.waiting.until(lambda: self._is_settled(wanted), limit):
            found = "; ".join(f"{each.client_name} is {each.state}" for each in self._consumers())
            expected = "" if wanted is None else f", {wanted} expected"
            raise TimeoutError(
                f"group {self.name!r} of {self.stream!r} has not settled after {limit:g} s: "
                f"{found or 'it has no consumers'}{expected}"
            )
        return self._consumers()

    def _is_settled(self, wanted: int | None) -> bool:
        members = self._members
        if wanted is not None and len(members) != wanted:
            return False
        if not members:
            return wanted == 0
        connected = _connected(members)
        activities = [one.status.activity for one in connected]
        return (
            activities.count(Activity.ACTIVE) == 1
            and Activity.DEACTIVATING not in activities
            and all(self._is_reading(one) == (one.status.activity is Activity.ACTIVE) for one in connected)
        )


def _connected(members: Iterable[SacConsumer]) -> list[SacConsumer]:
    """Return the reachable consumers; others are settled when their node returns."""
    return [one for one in members if one.status.connectivity is Connectivity.CONNECTED]


class StreamGroup(StreamGroupControls):
    """A group for tests that block."""

    wait_settled = until_done(StreamGroupControls._wait_settled)


class AsyncStreamGroup(StreamGroupControls):
    """A group for tests that await."""

    wait_settled = awaiting(StreamGroupControls._wait_settled)
