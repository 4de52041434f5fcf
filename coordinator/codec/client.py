"""The client's side of the codec: request frames from messages, messages from response frames.

It uses the server's layouts. `fencepost conform` tests a conversation with another broker.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from fencepost.coordinator.codec import administration as admin
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import skip_tagged_fields
from fencepost.coordinator.codec.registry import REGISTRY, Api, ApiKey, api_name
from fencepost.coordinator.codec.schema import is_flexible, request_writer, response_reader

ELECT_LEADERS = 43
ALTER_PARTITION_REASSIGNMENTS = 45
"""APIs that clients use and that are not served."""

_HEADER = struct.Struct(">ihhih")
_CORRELATION_ID = struct.Struct(">i")

CLIENT_APIS: Mapping[int, Api] = REGISTRY | {
    ELECT_LEADERS: Api(ELECT_LEADERS, 1, 2, admin.ELECT_CALL, admin.ELECT_REPLY),
    ALTER_PARTITION_REASSIGNMENTS: Api(
        ALTER_PARTITION_REASSIGNMENTS, 0, 0, admin.REASSIGN_CALL, admin.REASSIGN_REPLY
    ),
}


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """Return a whole request, with its length before it."""
    body = request_writer(CLIENT_APIS[api_key].request, api_key, version)(message)
    client = client_id.encode()
    tags = b"\x00" if is_flexible(api_key, version) else b""
    pieces = [body] if isinstance(body, bytes) else body
    size = _HEADER.size - 4 + len(client) + len(tags) + sum(map(len, pieces))
    header = _HEADER.pack(size, api_key, version, correlation_id, len(client)) + client + tags
    return b"".join((header, *pieces))


def read_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Return the correlation id and the message of a response frame without its length.

    :raises MalformedFrame: if the frame is not of this API and version.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        at = _CORRELATION_ID.size
        if is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS:
            at = skip_tagged_fields(frame, at)
        message, _ = response_reader(api_key, version, CLIENT_APIS[api_key].response)(frame, at)
        return correlation_id, message
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedFrame(
            f"response to {api_name(api_key)} version {version} can't be read: {error}"
        ) from error
