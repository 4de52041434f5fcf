"""Requests of consumers: chunks for credit, stored offsets, and the role of the active consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.coordinator.protocol.sac import SIMPLE
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame
from fencepost.coordinator.rabbit_codec.codec import encode
from fencepost.coordinator.rabbit_codec.codes import OffsetType, ResponseCode
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification
from fencepost.coordinator.rabbit_server.publishing import MAX_REFERENCE_BYTES, checked_reference
from fencepost.coordinator.rabbit_server.session import Handler, RabbitSession, response_to
from fencepost.coordinator.rabbit_server.stream import KeptChunk, RabbitRequestRefused, Stream

_FILTER: Final = "filter."


class Consumer:
    """A subscription of a connection. Without an open log nothing is sent; an active consumer has one."""

    def __init__(self, session: RabbitSession, frame: frames.Subscribe, stream: Stream) -> None:
        properties = frame.properties
        self.session = session
        self.subscription_id = frame.subscription_id
        self.stream = stream
        self.name = properties.get("name", "")
        self.offset = frame.offset
        self.credit = frame.credit
        self._send_limit = frame.credit // 2
        self._is_sending = False
        self.is_single_active = properties.get("single-active-consumer") == "true"
        self.partition_index = SIMPLE
        if "super-stream" in properties:
            self.partition_index = session.catalogue.partition_index(properties["super-stream"], stream.name)
        self.is_active = not self.is_single_active
        filters = {value or None for key, value in properties.items() if key.startswith(_FILTER)}
        if filters and properties.get("match-unfiltered") == "true":
            filters.add(None)
        self._filters = frozenset(filters)
        self._next_chunk: int | None = None
        self._asked: dict[int, tuple[bool, int]] = {}
        """By the correlation id of each open question: true if the consumer was activated, and the time in
        ms."""

    def is_of(self, stream: str, name: str) -> bool:
        """Return true if this is a single active consumer of that group."""
        return self.is_single_active and self.stream.name == stream and self.name == name

    @property
    def is_reading(self) -> bool:
        """True if its log is open."""
        return self._next_chunk is not None

    # -- the log ----------------------------------------------------------------------------------------

    def open_log(self, where: WireOffsetSpecification) -> None:
        """Send chunks from there on, as far as the credit allows."""
        self._next_chunk = self.stream.find(where)
        self.stream.readers[self.pump] = None
        self.pump()

    def close_log(self) -> None:
        """Stop sending."""
        self._next_chunk = None
        self._is_sending = False
        self.stream.readers.pop(self.pump, None)

    def pump(self) -> None:
        """Send available chunks, while the client reads.

        It starts only with more than half of the initial credit, and then continues until the credit is used
        up.
        """
        self._is_sending = self._is_sending or self.credit > self._send_limit
        while self._is_sending and self._next_chunk is not None:
            if not self.session.socket.is_writable:
                return
            found = self.stream.read(self._next_chunk) if self.credit > 0 else None
            if found is None:
                break
            chunk, self._next_chunk = found
            if not self._filters or not self._filters.isdisjoint(chunk.filter_values):
                self.credit -= 1
                self._deliver(chunk)
        self._is_sending = False

    def _deliver(self, chunk: KeptChunk) -> None:
        if self.session.deliver_version == 1:
            frame: Frame = frames.Deliver(self.subscription_id, chunk.data)
        else:
            frame = frames.DeliverCommitted(self.subscription_id, self.stream.newest_chunk, chunk.data)
        self.session.socket.write(encode(frame))

    # -- single active consumers ------------------------------------------------------------------------

    def update(self, *, active: bool) -> None:
        """Tell the client that it is active from now on, or not any more; an active one waits for its
        response."""
        self.is_active = active
        if not active:
            self.close_log()
        correlation_id = self.session.next_correlation_id()
        self._asked[correlation_id] = (active, self.session.cluster.now_ms())
        self.session.send(frames.ConsumerUpdate(correlation_id, self.subscription_id, int(active)))

    def answered(self, frame: frames.ConsumerUpdateResponse) -> bool:
        """Handle the client's response; return true if this consumer was asked.

        The response to a step-down lets the group choose, unless the consumer was activated again meanwhile:
        then the response to the activation counts.
        """
        asked = self._asked.pop(frame.correlation_id, None)
        if asked is None:
            return False
        activated = asked[0]
        if self.is_active and activated:
            given = frame.offset
            self.open_log(self.offset if given.type is OffsetType.NONE else given)
            self.session.cluster.groups.on_change()
        elif not self.is_active and not activated:
            self.session.cluster.groups.activate(self.session, self.stream.name, self.name)
        return True

    def owes_since(self, now_ms: int) -> int:
        """Return the time for which the client has owed its oldest response, in ms."""
        return max((now_ms - since_ms for _, since_ms in self._asked.values()), default=0)

    def remove(self) -> None:
        """End the subscription. If it was stepping down, notify the group first, as no other response will
        come."""
        self.close_log()
        del self.session.consumers[self.subscription_id]
        if self.is_single_active:
            groups = self.session.cluster.groups
            for correlation_id, (activated, since_ms) in self._asked.items():
                if activated:
                    self.session.unanswered[correlation_id] = since_ms
                else:
                    groups.activate(self.session, self.stream.name, self.name)
            groups.unregister(self.session, self)


def _subscribe(session: RabbitSession, frame: frames.Subscribe) -> None:
    checked_reference(frame.properties.get("name", ""))
    stream = session.catalogue.stream(frame.stream)
    if frame.subscription_id in session.consumers:
        code = ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS
        raise RabbitRequestRefused(f"subscription {frame.subscription_id} exists", code)
    consumer = Consumer(session, frame, stream)
    if consumer.is_single_active:
        if "name" not in frame.properties:
            raise RabbitRequestRefused("a single active consumer must have a name")
        consumer.is_active = session.cluster.groups.register(session, consumer)
    session.consumers[frame.subscription_id] = consumer
    session.send(frames.SubscribeResponse(frame.correlation_id))
    if not consumer.is_single_active:
        consumer.open_log(frame.offset)


def _credit(session: RabbitSession, frame: frames.Credit) -> Frame | None:
    consumer = session.consumers.get(frame.subscription_id)
    if consumer is None:
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        return frames.CreditResponse(code, frame.subscription_id)
    consumer.credit += frame.credit
    if not consumer.is_reading:
        return frames.CreditResponse(ResponseCode.PRECONDITION_FAILED, frame.subscription_id)
    consumer.pump()
    return None


def _unsubscribe(session: RabbitSession, frame: frames.Unsubscribe) -> Frame | None:
    consumer = session.consumers.get(frame.subscription_id)
    if consumer is None:
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        raise RabbitRequestRefused(f"there is no subscription {frame.subscription_id}", code)
    consumer.remove()
    session.leaders_asked.discard(consumer.stream.name)
    return response_to(frame)


def _consumer_update_response(session: RabbitSession, frame: frames.ConsumerUpdateResponse) -> None:
    """Handle a response. It is ignored if there was no question, or if the consumer was removed."""
    session.unanswered.pop(frame.correlation_id, None)
    for consumer in tuple(session.consumers.values()):
        if consumer.answered(frame):
            return


def _store_offset(session: RabbitSession, frame: frames.StoreOffset) -> None:
    stream = session.catalogue.streams.get(frame.stream)
    if stream is not None and len(frame.reference.encode()) <= MAX_REFERENCE_BYTES:
        session.leaders_asked.add(stream.name)
        stream.store(frame.reference, frame.offset)


def _query_offset(session: RabbitSession, frame: frames.QueryOffset) -> Frame | None:
    stream = session.catalogue.stream(frame.stream)
    session.leaders_asked.add(stream.name)
    stored = stream.offsets.get(frame.reference)
    if stored is None:
        raise RabbitRequestRefused(f"nothing is stored for {frame.reference!r}", ResponseCode.NO_OFFSET)
    return response_to(frame, offset=stored)


HANDLERS: Final[Mapping[type, Handler]] = {
    frames.Subscribe: _subscribe,
    frames.Credit: _credit,
    frames.Unsubscribe: _unsubscribe,
    frames.ConsumerUpdateResponse: _consumer_update_response,
    frames.StoreOffset: _store_offset,
    frames.QueryOffset: _query_offset,
    frames.ResolveOffsetSpec: lambda session, frame: response_to(
        frame, offset=session.catalogue.stream(frame.stream).resolve(frame.offset)
    ),
}
