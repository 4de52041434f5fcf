"""All frames as values. A field's annotation determines its encoding; `codec` turns frames to bytes and back.

A frame has the key of its name. A request and its response share a name, the response with the suffix
`Response`. The order of fields is that of the bytes (PROTOCOL.adoc of RabbitMQ's stream plugin, Commands).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from fencepost.coordinator.rabbit_codec import fields
from fencepost.coordinator.rabbit_codec.base import (
    U8,
    U16,
    U32,
    U64,
    BrokerAddress,
    CommandVersion,
    Frame,
    Properties,
    Request,
    Response,
    Rest,
    Specification,
    StreamPlace,
    Text,
    Texts,
    TrailingProperties,
)
from fencepost.coordinator.rabbit_codec.codes import Key
from fencepost.coordinator.rabbit_codec.fields import FIRST, WireOffsetSpecification

# -- publishing -----------------------------------------------------------------------------------------


class DeclarePublisher(Request, frozen=True):
    """A publisher of one stream. With a reference its publishing ids tell duplicates."""

    publisher_id: U8
    reference: Text
    stream: Text


class DeclarePublisherResponse(Response, frozen=True):
    """The response to DeclarePublisher."""


class Publish(Frame, frozen=True):
    """Messages. `entries` is read and written by `entries` of this package."""

    publisher_id: U8
    entries: Rest


class FilteredPublish(Publish, frozen=True):
    """Messages with the values by which subscriptions filter."""

    version: ClassVar[int] = 2


class PublishConfirm(Frame, frozen=True):
    """These messages are in the stream."""

    publisher_id: U8
    publishing_ids: Annotated[Sequence[int], fields.array(fields.U64)]


class PublishError(Frame, frozen=True):
    """These messages are not in the stream: codes by publishing id."""

    publisher_id: U8
    errors: Annotated[Mapping[int, int], fields.pairs(fields.U64, fields.U16)]


class QueryPublisherSequence(Request, frozen=True):
    """Asks for the highest publishing id of a reference in a stream."""

    reference: Text
    stream: Text


class QueryPublisherSequenceResponse(Response, frozen=True):
    """The response; 0 also stands for a reference that never published."""

    sequence: U64 = 0


class DeletePublisher(Request, frozen=True):
    """Ends a publisher."""

    publisher_id: U8


class DeletePublisherResponse(Response, frozen=True):
    """The response to DeletePublisher."""


# -- consuming ------------------------------------------------------------------------------------------


class Subscribe(Request, frozen=True):
    """Reads a stream. A credit is a chunk that may be sent."""

    subscription_id: U8
    stream: Text
    offset: Specification = FIRST
    credit: U16 = 0
    properties: TrailingProperties = msgspec.field(default_factory=dict)


class SubscribeResponse(Response, frozen=True):
    """The response to Subscribe."""


class Deliver(Frame, frozen=True):
    """One chunk."""

    subscription_id: U8
    chunk: Rest


class DeliverCommitted(Frame, frozen=True):
    """One chunk, with the id of the newest one that is committed (version 2 of Deliver)."""

    key: ClassVar[Key] = Key.DELIVER
    version: ClassVar[int] = 2
    subscription_id: U8
    committed_chunk_id: U64
    chunk: Rest


class Credit(Frame, frozen=True):
    """Allows that many more chunks to be sent."""

    subscription_id: U8
    credit: Annotated[int, fields.I16]


class CreditResponse(Frame, frozen=True):
    """Reports that a credit could not be used; a valid credit gets no response."""

    code: U16
    subscription_id: U8


class StoreOffset(Frame, frozen=True):
    """Stores an offset under a consumer's name; it gets no response."""

    reference: Text
    stream: Text
    offset: U64


class QueryOffset(Request, frozen=True):
    """Asks for a stored offset."""

    reference: Text
    stream: Text


class QueryOffsetResponse(Response, frozen=True):
    """The response to QueryOffset."""

    offset: U64 = 0


class Unsubscribe(Request, frozen=True):
    """Ends a subscription."""

    subscription_id: U8


class UnsubscribeResponse(Response, frozen=True):
    """The response to Unsubscribe."""


class ConsumerUpdate(Request, frozen=True):
    """Tells a single active consumer that it is active from now on, or not any more."""

    subscription_id: U8
    active: U8


class ConsumerUpdateResponse(Response, frozen=True):
    """The client's response, with the place to read from."""

    offset: Annotated[WireOffsetSpecification, fields.LAST_OFFSET_SPECIFICATION] = fields.NONE


class ResolveOffsetSpec(Request, frozen=True):
    """Asks for the offset that a specification means now."""

    stream: Text
    offset: Specification
    properties: TrailingProperties = msgspec.field(default_factory=dict)


class ResolveOffsetSpecResponse(Response, frozen=True):
    """The response, always an offset."""

    offset_type: U16 = 4
    offset: U64 = 0


# -- streams --------------------------------------------------------------------------------------------


class Create(Request, frozen=True):
    """Creates a stream."""

    stream: Text
    arguments: Properties = msgspec.field(default_factory=dict)


class CreateResponse(Response, frozen=True):
    """The response to Create."""


class Delete(Request, frozen=True):
    """Deletes a stream."""

    stream: Text


class DeleteResponse(Response, frozen=True):
    """The response to Delete."""


class CreateSuperStream(Request, frozen=True):
    """Creates a super stream: its partitions, and the routing key of each."""

    name: Text
    partitions: Texts
    binding_keys: Texts
    arguments: Properties = msgspec.field(default_factory=dict)


class CreateSuperStreamResponse(Response, frozen=True):
    """The response to CreateSuperStream."""


class DeleteSuperStream(Request, frozen=True):
    """Deletes a super stream with its partitions."""

    name: Text


class DeleteSuperStreamResponse(Response, frozen=True):
    """The response to DeleteSuperStream."""


class Metadata(Request, frozen=True):
    """Asks for the leader and the replicas of streams."""

    streams: Texts


class MetadataResponse(Frame, frozen=True):
    """The response to Metadata."""

    correlation_id: U32
    brokers: Annotated[
        Sequence[BrokerAddress],
        fields.array(fields.record(BrokerAddress, fields.U16, fields.STRING, fields.U32)),
    ]
    streams: Annotated[
        Sequence[StreamPlace],
        fields.array(
            fields.record(StreamPlace, fields.STRING, fields.U16, fields.U16, fields.array(fields.U16)),
        ),
    ]


class MetadataUpdate(Frame, frozen=True):
    """A stream was deleted, and with it this connection's publishers and subscriptions of it."""

    code: U16
    stream: Text


class Route(Request, frozen=True):
    """Asks for the partitions of a super stream that a routing key leads to."""

    routing_key: Text
    super_stream: Text


class RouteResponse(Response, frozen=True):
    """The response to Route."""

    streams: Texts = ()


class Partitions(Request, frozen=True):
    """Asks for the partitions of a super stream, in their order."""

    super_stream: Text


class PartitionsResponse(Response, frozen=True):
    """The response to Partitions."""

    streams: Texts = ()


class StreamStats(Request, frozen=True):
    """Asks for a stream's statistics."""

    stream: Text


class StreamStatsResponse(Response, frozen=True):
    """The response to StreamStats."""

    stats: Annotated[Mapping[str, int], fields.pairs(fields.STRING, fields.I64)] = msgspec.field(
        default_factory=dict
    )


# -- the connection -------------------------------------------------------------------------------------


class PeerProperties(Request, frozen=True):
    """The properties of the client."""

    properties: Properties = msgspec.field(default_factory=dict)


class PeerPropertiesResponse(Response, frozen=True):
    """The properties of the server."""

    properties: Properties = msgspec.field(default_factory=dict)


class SaslHandshake(Request, frozen=True):
    """Asks for the authentication mechanisms."""


class SaslHandshakeResponse(Response, frozen=True):
    """The response to SaslHandshake."""

    mechanisms: Texts = ()


class SaslAuthenticate(Request, frozen=True):
    """The client authenticates; for PLAIN with NUL, user, NUL, password."""

    mechanism: Text
    data: Annotated[bytes, fields.BYTES]


class SaslAuthenticateResponse(Response, frozen=True):
    """The response to SaslAuthenticate."""

    challenge: Annotated[bytes, fields.TRAILING_BYTES] = b""


class Tune(Frame, frozen=True):
    """The server's limits, then the client's: bytes of a frame, and seconds between heartbeats, 0 for no
    heartbeats."""

    frame_max: U32
    heartbeat: U32


class TuneResponse(Tune, frozen=True):
    """The client's Tune, as some clients send it."""


class Open(Request, frozen=True):
    """Opens a virtual host."""

    virtual_host: Text


class OpenResponse(Response, frozen=True):
    """The response to Open."""

    properties: TrailingProperties = msgspec.field(default_factory=dict)


class Close(Request, frozen=True):
    """One side ends the connection."""

    code: U16
    reason: Text


class CloseResponse(Response, frozen=True):
    """The response to Close."""


class Heartbeat(Frame, frozen=True):
    """Shows that the sender is alive."""


_COMMAND_VERSIONS = fields.array(fields.record(CommandVersion, fields.U16, fields.U16, fields.U16))


class ExchangeCommandVersions(Request, frozen=True):
    """The command versions that the client speaks."""

    versions: Annotated[Sequence[CommandVersion], _COMMAND_VERSIONS] = ()


class ExchangeCommandVersionsResponse(Response, frozen=True):
    """The command versions that the server speaks."""

    versions: Annotated[Sequence[CommandVersion], _COMMAND_VERSIONS] = ()
