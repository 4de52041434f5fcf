"""Which versions of which APIs are spoken, and how each is translated; ApiVersions is derived from it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from fencepost.coordinator.codec import (
    acls,
    administration,
    classic,
    cluster,
    consumer,
    groups,
    inspection,
    logs,
    offsets,
    sasl,
    schema,
    streams,
    transactions,
)
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader, response_header
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
    """Return how a person knows an API, such as `Fetch`; the number of one that is not spoken here."""
    try:
        return ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        return f"API {api_key}"


class Api(NamedTuple):
    """One API: its versions, the first flexible one among them, and its two translators."""

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    decode: Callable[[dict[str, Any], RequestContext], Any]
    encode: Callable[[Any, schema.Shape], Any]
    """Gives the bytes of an answer, or, if there are records in it, their pieces."""


_APIS: tuple[Api, ...] = (
    Api(ApiKey.PRODUCE, 3, 13, 9, logs.decode_produce, logs.encode_produce),
    Api(ApiKey.FETCH, 4, 18, 12, logs.decode_fetch, logs.encode_fetch),
    Api(ApiKey.LIST_OFFSETS, 1, 11, 6, logs.decode_list_offsets, logs.encode_list_offsets),
    Api(ApiKey.METADATA, 0, 13, 9, cluster.decode_metadata, cluster.encode_metadata),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, 8, offsets.decode_commit, offsets.encode_commit),
    Api(ApiKey.OFFSET_FETCH, 1, 10, 6, offsets.decode_fetch, offsets.encode_fetch),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, 3, cluster.decode_find_coordinator, cluster.encode_find_coordinator),
    Api(ApiKey.JOIN_GROUP, 0, 9, 6, classic.decode_join, classic.encode_join),
    Api(ApiKey.HEARTBEAT, 0, 4, 4, classic.decode_heartbeat, classic.encode_heartbeat),
    Api(ApiKey.LEAVE_GROUP, 0, 5, 4, groups.decode_leave, groups.encode_leave),
    Api(ApiKey.SYNC_GROUP, 0, 5, 4, classic.decode_sync, classic.encode_sync),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, classic.decode_describe_groups, classic.encode_describe_groups),
    Api(ApiKey.LIST_GROUPS, 0, 5, 3, groups.decode_list, groups.encode_list),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, 2, sasl.decode_handshake, sasl.encode_handshake),
    Api(ApiKey.API_VERSIONS, 0, 4, 3, cluster.decode_api_versions, cluster.encode_api_versions),
    Api(
        ApiKey.CREATE_TOPICS,
        2,
        7,
        5,
        administration.decode_create_topics,
        administration.encode_create_topics,
    ),
    Api(
        ApiKey.DELETE_TOPICS,
        1,
        6,
        4,
        administration.decode_delete_topics,
        administration.encode_delete_topics,
    ),
    Api(ApiKey.DELETE_RECORDS, 0, 2, 2, logs.decode_delete_records, logs.encode_delete_records),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        0,
        5,
        2,
        transactions.decode_init_producer_id,
        transactions.encode_init_producer_id,
    ),
    Api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        2,
        4,
        4,
        logs.decode_offset_for_leader_epoch,
        logs.encode_offset_for_leader_epoch,
    ),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        0,
        5,
        3,
        transactions.decode_add_partitions,
        transactions.encode_add_partitions,
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, transactions.decode_add_offsets, transactions.encode_add_offsets),
    Api(ApiKey.END_TXN, 0, 5, 3, transactions.decode_end, transactions.encode_end),
    Api(
        ApiKey.TXN_OFFSET_COMMIT,
        0,
        5,
        3,
        transactions.decode_offset_commit,
        transactions.encode_offset_commit,
    ),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2, acls.decode_describe, acls.encode_describe),
    Api(ApiKey.CREATE_ACLS, 1, 3, 2, acls.decode_create, acls.encode_create),
    Api(ApiKey.DELETE_ACLS, 1, 3, 2, acls.decode_delete, acls.encode_delete),
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        1,
        4,
        4,
        administration.decode_describe_configs,
        administration.encode_describe_configs,
    ),
    Api(
        ApiKey.ALTER_CONFIGS,
        0,
        2,
        2,
        administration.decode_alter_configs,
        administration.encode_alter_configs,
    ),
    Api(
        ApiKey.DESCRIBE_LOG_DIRS,
        1,
        5,
        2,
        inspection.decode_describe_log_dirs,
        inspection.encode_describe_log_dirs,
    ),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, sasl.decode_authenticate, sasl.encode_authenticate),
    Api(
        ApiKey.CREATE_PARTITIONS,
        0,
        3,
        2,
        administration.decode_create_partitions,
        administration.encode_create_partitions,
    ),
    Api(ApiKey.DELETE_GROUPS, 0, 2, 2, groups.decode_delete_groups, groups.encode_delete_groups),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        1,
        administration.decode_incremental_alter_configs,
        administration.encode_incremental_alter_configs,
    ),
    Api(ApiKey.OFFSET_DELETE, 0, 0, 1, offsets.decode_delete, offsets.encode_delete),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, cluster.decode_describe_cluster, cluster.encode_describe_cluster),
    Api(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        0,
        0,
        inspection.decode_describe_producers,
        inspection.encode_describe_producers,
    ),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        0,
        0,
        inspection.decode_describe_transactions,
        inspection.encode_describe_transactions,
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        0,
        2,
        0,
        inspection.decode_list_transactions,
        inspection.encode_list_transactions,
    ),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, consumer.decode_heartbeat, consumer.pack_heartbeat),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, consumer.decode_describe, consumer.encode_describe),
    Api(
        ApiKey.LIST_CONFIG_RESOURCES,
        0,
        1,
        0,
        inspection.decode_list_config_resources,
        inspection.encode_list_config_resources,
    ),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        0,
        0,
        cluster.decode_describe_topic_partitions,
        cluster.encode_describe_topic_partitions,
    ),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, 0, streams.decode_heartbeat, streams.encode_heartbeat),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, 0, streams.decode_describe, streams.encode_describe),
)

REGISTRY: dict[int, Api] = {int(api.key): api for api in _APIS}

_TOLD_FROM = {ApiKey.PRODUCE: 0}
"""Versions that are told though they are refused, as Kafka does it: older librdkafka takes a broker without
them for one that knows no gzip, snappy or lz4, and sends what it should compress as it is (KAFKA-18659)."""

SPOKEN: tuple[ApiVersion, ...] = tuple(
    ApiVersion(int(api.key), _TOLD_FROM.get(api.key, api.min_version), api.max_version) for api in _APIS
)
"""What ApiVersions answers."""

ASKED_AGAIN = frozenset({ApiKey.API_VERSIONS, ApiKey.METADATA})
"""Every client that connects asks these, mostly in the same words, and so of each new server in a process.

Their answers follow from the request, the address that was asked, and what the cluster is made of.
"""
_KEPT = 4
"""A client that joins a group asks for all topics, and then for its own, twice each."""
_KEPT_BYTES = 1024
"""Requests above this size are no client's first ones; they are not worth keeping."""

_MALFORMED = (MalformedFrame, struct.error, IndexError, UnicodeDecodeError)


class VersionCodec:
    """The translators of one (API, version), with its schema loaded."""

    __slots__ = ("_asked", "_kept", "_read", "_shape", "api", "flexible", "flexible_answer", "version")

    def __init__(self, api: Api, version: int) -> None:
        self.api = api
        self.version = version
        self.flexible = version >= api.flexible_from
        self.flexible_answer = self.flexible and api.key is not ApiKey.API_VERSIONS
        self._read = schema.request_reader(api.key, version)
        self._shape = schema.Shape(api.key, version)
        self._asked: dict[bytes, Any] = {}
        """Requests by the bytes of their bodies."""
        self._kept: dict[int, tuple[Any, list[bytes]]] = {}
        """Answers by their identity, with their bytes."""

    def body_of(self, frame: bytes, header: RequestHeader) -> int:
        """Where the request's body starts.

        :raises MalformedFrame: if the header's tagged fields go beyond the frame.
        """
        if not self.flexible:
            return header.body_offset
        try:
            return skip_tagged_fields(frame, header.body_offset)
        except IndexError as error:
            raise MalformedFrame("request ends within its header") from error

    def decode(self, frame: bytes, body_offset: int, context: RequestContext) -> Any:
        """The request's message.

        Bytes behind the body are ignored, as Kafka does.
        :raises MalformedFrame: if the body is none of this API and version.
        """
        if self.api.key in ASKED_AGAIN and len(frame) <= _KEPT_BYTES:
            body = frame[body_offset:]
            request = self._asked.get(body)
            if request is None:
                request = self._decoded(frame, body_offset, context)
                if len(self._asked) >= _KEPT:
                    self._asked.clear()
                self._asked[body] = request
            return request
        return self._decoded(frame, body_offset, context)

    def _decoded(self, frame: bytes, body_offset: int, context: RequestContext) -> Any:
        try:
            if len(frame) <= schema.UNCOUNTED_BYTES:
                values, _ = self._read(frame, body_offset)
            else:
                read_counted = schema.counting_request_reader(self.api.key, self.version)
                values, _ = read_counted(frame, body_offset)
            return self.api.decode(values, context)
        except _MALFORMED as error:
            name = self.api.key.name
            raise MalformedFrame(f"{name} version {self.version} can't be read: {error}") from error

    def encode(self, correlation_id: int, reply: Any) -> list[bytes]:
        """The whole response frame in pieces. Encoding the same object again costs next to nothing."""
        kept = self._kept.get(id(reply))
        chunks = self._encoded(reply) if kept is None else kept[1]
        header = response_header(correlation_id, sum(map(len, chunks)), flexible=self.flexible_answer)
        return [header + chunks[0], *chunks[1:]]

    def _encoded(self, reply: Any) -> list[bytes]:
        answer = self.api.encode(reply, self._shape)
        chunks = [answer] if isinstance(answer, bytes) else joined(answer)
        if self.api.key in ASKED_AGAIN:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[id(reply)] = (reply, chunks)
        return chunks


_codecs: dict[tuple[int, int], VersionCodec] = {}


def codec_of(api_key: int, version: int) -> VersionCodec | None:
    """The translators of this version, or None when the API or the version is not spoken."""
    found = _codecs.get((api_key, version))
    if found is None:
        api = REGISTRY.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            return None
        found = _codecs[api_key, version] = VersionCodec(api, version)
    return found


def load_first_answers() -> None:
    """Load what the first question of every client takes, in each version.

    With kio's own imports it takes 0.1 s, and longer on a busy machine: better now than while a client waits.
    """
    api = REGISTRY[ApiKey.API_VERSIONS]
    for version in range(api.min_version, api.max_version + 1):
        codec_of(api.key, version)


def unsupported_api_versions(correlation_id: int) -> list[bytes]:
    """The answer to ApiVersions in a version that is not spoken: version 0, with the versions that are."""
    api = REGISTRY[ApiKey.API_VERSIONS]
    reply = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_versions=(ApiVersion(api.key, api.min_version, api.max_version),),
    )
    codec = codec_of(ApiKey.API_VERSIONS, 0)
    assert codec is not None
    return codec.encode(correlation_id, reply)
