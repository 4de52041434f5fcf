"""What a client writes and reads: request frames from messages, messages from response frames.

The messages are those that the server's translators read and write, so that one half is tested by the
other. A conversation with a broker of another make is tested by `fencepost conform`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from fencepost.coordinator.codec import client_administration as administration
from fencepost.coordinator.codec import client_classic as classic
from fencepost.coordinator.codec import client_cluster as cluster
from fencepost.coordinator.codec import client_groups as groups
from fencepost.coordinator.codec import client_offsets as offsets
from fencepost.coordinator.codec import client_replicas as replicas
from fencepost.coordinator.codec import client_sasl as sasl
from fencepost.coordinator.codec import client_streams as streams
from fencepost.coordinator.codec import client_streams_describe as streams_describe
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import skip_tagged_fields
from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.codec.schema import Shape, is_flexible, response_reader

ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
"""APIs that are asked for here and not served."""

_HEADER = struct.Struct(">ihhih")
_CORRELATION_ID = struct.Struct(">i")


class ClientApi(NamedTuple):
    """The client's two translators of one API, for the versions that their docstrings name."""

    encode: Callable[[Any, Shape], Any]
    decode: Callable[[dict[str, Any], int], Any]


CLIENT_APIS: dict[int, ClientApi] = {
    ApiKey.METADATA: ClientApi(cluster.encode_metadata, cluster.decode_metadata),
    ApiKey.OFFSET_COMMIT: ClientApi(offsets.encode_commit, offsets.decode_commit),
    ApiKey.OFFSET_FETCH: ClientApi(offsets.encode_fetch, offsets.decode_fetch),
    ApiKey.FIND_COORDINATOR: ClientApi(cluster.encode_find_coordinator, cluster.decode_find_coordinator),
    ApiKey.JOIN_GROUP: ClientApi(classic.encode_join, classic.decode_join),
    ApiKey.HEARTBEAT: ClientApi(classic.encode_heartbeat, classic.decode_heartbeat),
    ApiKey.LEAVE_GROUP: ClientApi(groups.encode_leave, groups.decode_leave),
    ApiKey.SYNC_GROUP: ClientApi(classic.encode_sync, classic.decode_sync),
    ApiKey.DESCRIBE_GROUPS: ClientApi(classic.encode_describe_groups, classic.decode_describe_groups),
    ApiKey.LIST_GROUPS: ClientApi(groups.encode_list, groups.decode_list),
    ApiKey.SASL_HANDSHAKE: ClientApi(sasl.encode_handshake, sasl.decode_handshake),
    ApiKey.API_VERSIONS: ClientApi(cluster.encode_api_versions, cluster.decode_api_versions),
    ApiKey.CREATE_TOPICS: ClientApi(administration.encode_create_topics, administration.decode_create_topics),
    ApiKey.DELETE_TOPICS: ClientApi(administration.encode_delete_topics, administration.decode_delete_topics),
    ApiKey.DESCRIBE_CONFIGS: ClientApi(
        administration.encode_describe_configs, administration.decode_describe_configs
    ),
    ApiKey.CREATE_PARTITIONS: ClientApi(
        administration.encode_create_partitions, administration.decode_create_partitions
    ),
    ApiKey.DELETE_GROUPS: ClientApi(groups.encode_delete_groups, groups.decode_delete_groups),
    ApiKey.SASL_AUTHENTICATE: ClientApi(sasl.encode_authenticate, sasl.decode_authenticate),
    ELECT_LEADERS: ClientApi(replicas.encode_elect, replicas.decode_elect),
    INCREMENTAL_ALTER_CONFIGS: ClientApi(
        administration.encode_alter_configs, administration.decode_alter_configs
    ),
    ALTER_PARTITION_REASSIGNMENTS: ClientApi(replicas.encode_reassign, replicas.decode_reassign),
    ApiKey.OFFSET_DELETE: ClientApi(offsets.encode_delete, offsets.decode_delete),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ClientApi(groups.encode_heartbeat, groups.decode_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ClientApi(groups.encode_describe, groups.decode_describe),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ClientApi(streams.encode_heartbeat, streams.decode_heartbeat),
    ApiKey.STREAMS_GROUP_DESCRIBE: ClientApi(
        streams_describe.encode_describe, streams_describe.decode_describe
    ),
}


@cache
def _shape(api_key: int, version: int) -> Shape:
    return Shape(api_key, version, of_request=True)


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """A whole request with its length before it."""
    body: bytes = CLIENT_APIS[api_key].encode(message, _shape(api_key, version))
    client = client_id.encode()
    tags = b"\x00" if is_flexible(api_key, version) else b""
    size = _HEADER.size - 4 + len(client) + len(tags) + len(body)
    return _HEADER.pack(size, api_key, version, correlation_id, len(client)) + client + tags + body


def read_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """The correlation id and the message of a response frame without its length.

    :raises MalformedFrame: if the frame is none of this API and version.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        at = _CORRELATION_ID.size
        if is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS:
            at = skip_tagged_fields(frame, at)
        values, _ = response_reader(api_key, version)(frame, at)
        return correlation_id, CLIENT_APIS[api_key].decode(values, version)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedFrame(
            f"answer to {api_name(api_key)} version {version} can't be read: {error}"
        ) from error
