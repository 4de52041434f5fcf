"""The APIs and versions that are spoken, and the translation of each; ApiVersions is derived from it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec import (
    administration,
    classic,
    cluster,
    consumer,
    groups,
    inspection,
    logs,
    offsets,
    schema,
    security,
    streams,
    transactions,
)
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader, response_header
from fencepost.coordinator.codec.layout import Layout
from fencepost.coordinator.codec.reader import skip_tagged_fields
from fencepost.coordinator.codec.writer import joined
from fencepost.coordinator.protocol.cluster import ApiVersion, ApiVersionsResponse
from fencepost.coordinator.protocol.errors import ErrorCode


class ApiKey(enum.IntEnum):
    """The APIs that are spoken here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89


def api_name(api_key: int) -> str:
    """Return the name of an API, such as `Fetch`; its number if Kafka has no such API."""
    try:
        return ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        names = {key: name for name, key in schema.kafka_apis().items()}
        return names.get(api_key, f"API {api_key}")


Pack: TypeAlias = Callable[[Any], bytes]


class Api(NamedTuple):
    """One API: the versions that are spoken, and the layouts of its two messages."""

    key: int
    min_version: int
    max_version: int
    request: Layout
    response: Layout
    pack: Pack | None = None
    """Writes responses of all versions instead of the layout, if that takes too long."""


def _api(
    key: ApiKey, min_version: int, max_version: int, module: ModuleType, pack: Pack | None = None
) -> Api:
    """Return an API whose layouts in that module have its name."""
    request, response = (getattr(module, f"{key.name}_{which}") for which in ("REQUEST", "RESPONSE"))
    return Api(key, min_version, max_version, request, response, pack)


_APIS: tuple[Api, ...] = (
    _api(ApiKey.PRODUCE, 3, 13, logs),
    _api(ApiKey.FETCH, 4, 18, logs),
    _api(ApiKey.LIST_OFFSETS, 1, 11, logs),
    _api(ApiKey.METADATA, 0, 13, cluster),
    _api(ApiKey.OFFSET_COMMIT, 2, 10, offsets),
    _api(ApiKey.OFFSET_FETCH, 1, 10, offsets),
    _api(ApiKey.FIND_COORDINATOR, 0, 6, cluster),
    _api(ApiKey.JOIN_GROUP, 0, 9, classic),
    _api(ApiKey.HEARTBEAT, 0, 4, classic),
    _api(ApiKey.LEAVE_GROUP, 0, 5, groups),
    _api(ApiKey.SYNC_GROUP, 0, 5, classic),
    _api(ApiKey.DESCRIBE_GROUPS, 0, 6, classic),
    _api(ApiKey.LIST_GROUPS, 0, 5, groups),
    _api(ApiKey.SASL_HANDSHAKE, 0, 1, security),
    _api(ApiKey.API_VERSIONS, 0, 4, cluster),
    _api(ApiKey.CREATE_TOPICS, 2, 7, administration),
    _api(ApiKey.DELETE_TOPICS, 1, 6, administration),
    _api(ApiKey.DELETE_RECORDS, 0, 2, logs),
    _api(ApiKey.INIT_PRODUCER_ID, 0, 5, transactions),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, logs),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, transactions),
    _api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, transactions),
    _api(ApiKey.END_TXN, 0, 5, transactions),
    _api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, transactions),
    _api(ApiKey.DESCRIBE_ACLS, 1, 3, security),
    _api(ApiKey.CREATE_ACLS, 1, 3, security),
    _api(ApiKey.DELETE_ACLS, 1, 3, security),
    _api(ApiKey.DESCRIBE_CONFIGS, 1, 4, administration),
    _api(ApiKey.ALTER_CONFIGS, 0, 2, administration),
    _api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, inspection),
    _api(ApiKey.SASL_AUTHENTICATE, 0, 2, security),
    _api(ApiKey.CREATE_PARTITIONS, 0, 3, administration),
    _api(ApiKey.DELETE_GROUPS, 0, 2, groups),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, administration),
    _api(ApiKey.OFFSET_DELETE, 0, 0, offsets),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, security),
    _api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, security),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, security),
    _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, security),
    _api(ApiKey.DESCRIBE_CLUSTER, 0, 2, cluster),
    _api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, inspection),
    _api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, inspection),
    _api(ApiKey.LIST_TRANSACTIONS, 0, 2, inspection),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer, pack=consumer.pack_heartbeat),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer),
    _api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, inspection),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, cluster),
    _api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, streams),
    _api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, streams),
)

REGISTRY: dict[int, Api] = {int(api.key): api for api in _APIS}

_TOLD_FROM: dict[int, int] = {ApiKey.PRODUCE: 0}
"""Versions that are announced although they are refused, as in Kafka. Older librdkafka assumes that a broker
without them lacks gzip, snappy and lz4, and then sends records uncompressed (KAFKA-18659)."""

SPOKEN: tuple[ApiVersion, ...] = tuple(
    ApiVersion(int(api.key), _TOLD_FROM.get(api.key, api.min_version), api.max_version) for api in _APIS
)
"""The content of an ApiVersions response."""

_HEADER_BYTES = 8
"""The length and the correlation id of a response; flexible ones have a byte for tagged fields, too."""
_MALFORMED = (MalformedFrame, struct.error, IndexError, UnicodeDecodeError)


class VersionCodec:
    """One (API, version) as a server reads and writes it, with its schema loaded."""

    __slots__ = ("_given", "_read", "_write", "api", "flexible", "flexible_answer", "version")

    def __init__(self, api: Api, version: int) -> None:
        self.api = api
        self.version = version
        self.flexible = schema.is_flexible(api.key, version)
        self.flexible_answer = self.flexible and api.key != ApiKey.API_VERSIONS
        self._read = schema.request_values_reader(api.request, api.key, version)
        self._write = api.pack or schema.response_writer(api.response, api.key, version)
        self._given = tuple(
            (place, name) for place, name in enumerate(RequestContext._fields) if name in api.request.ours
        )
        """The fields of the message that are in the context and not in the body."""

    def body_of(self, frame: bytes, header: RequestHeader) -> int:
        """Return the offset of the request's body in the frame.

        :raises MalformedFrame: if the header's tagged fields go beyond the frame.
        """
        if not self.flexible:
            return header.body_offset
        try:
            return skip_tagged_fields(frame, header.body_offset)
        except IndexError as error:
            raise MalformedFrame("request ends within its header") from error

    def decode(self, frame: bytes, body_offset: int, context: RequestContext) -> Any:
        """Return the request's message. Bytes after the body are ignored, as in Kafka.

        Bytes behind the body are ignored, as Kafka does.
        :raises MalformedFrame: if the body is not of this API and version.
        """
        api, read = self.api, self._read
        try:
            if len(frame) > schema.UNCOUNTED_BYTES:
                read = schema.counting_values_reader(api.request, api.key, self.version)
            values, _ = read(frame, body_offset)
            for place, name in self._given:
                values[name] = context[place]
            return api.request.made(values, context)
        except _MALFORMED as error:
            name = ApiKey(api.key).name
            raise MalformedFrame(f"{name} version {self.version} can't be read: {error}") from error

    def encode(self, correlation_id: int, reply: Any) -> list[bytes]:
        """Return the whole response frame in pieces."""
        body = self._write(reply)
        chunks = [body] if isinstance(body, bytes) else joined(body)
        header = response_header(correlation_id, sum(map(len, chunks)), flexible=self.flexible_answer)
        return [header + chunks[0], *chunks[1:]]

    def encode_throttled(self, correlation_id: int, reply: Any, throttle_time_ms: int) -> list[bytes]:
        """Return the frame of a response that says that its client is throttled (KIP-219).

        Those of old versions and of logins can't, and stay as they are.
        """
        whole = b"".join(self.encode(correlation_id, reply))
        at = _HEADER_BYTES + self.flexible_answer
        return [schema.throttled(self.api.key, self.version, whole, at, throttle_time_ms)]


_codecs: dict[tuple[int, int], VersionCodec] = {}


def codec_of(api_key: int, version: int) -> VersionCodec | None:
    """Return the translators of this version, or None if the API or the version is not spoken."""
    found = _codecs.get((api_key, version))
    if found is None:
        api = REGISTRY.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            return None
        found = _codecs[api_key, version] = VersionCodec(api, version)
    return found


def load_first_answers() -> None:
    """Load the code for the first request of every client, in each version.

    With kio's own imports this takes 0.1 s, and longer on a busy machine. So it is done before a client
    waits.
    """
    api = REGISTRY[ApiKey.API_VERSIONS]
    for version in range(api.min_version, api.max_version + 1):
        codec_of(api.key, version)


def unsupported_api_versions(correlation_id: int, newest: Mapping[int, int] | None = None) -> list[bytes]:
    """Return the response to an unknown version of ApiVersions: version 0, with the versions that are
    spoken, or up to `newest`."""
    api = REGISTRY[ApiKey.API_VERSIONS]
    last = api.max_version if newest is None else newest[api.key]
    reply = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_versions=(ApiVersion(api.key, api.min_version, last),),
    )
    codec = codec_of(ApiKey.API_VERSIONS, 0)
    assert codec is not None
    return codec.encode(correlation_id, reply)
