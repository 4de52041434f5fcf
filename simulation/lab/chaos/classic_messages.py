"""Requests and responses of the classic protocol, as members' processes report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode

CLASSIC_REQUESTS: Final = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest)
CLASSIC_RESPONSES: Final = (JoinGroupResponse, SyncGroupResponse, HeartbeatResponse, LeaveGroupResponse)

_encode = msgspec.msgpack.Encoder().encode
_DECODERS: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (*CLASSIC_REQUESTS, *CLASSIC_RESPONSES)
}


def packed(message: Any) -> tuple[str, bytes]:
    """Return the name of a message's type, and the message as bytes."""
    return type(message).__name__, _encode(message)


def unpacked(kind: str, body: bytes) -> Any:
    """Return the message again."""
    return _DECODERS[kind].decode(body)


def member_id_of(response: object) -> str:
    """Return the member id in the response to a join; "" if it has none."""
    if isinstance(response, JoinGroupResponse) and response.error_code in (
        ErrorCode.NONE,
        ErrorCode.MEMBER_ID_REQUIRED,
    ):
        return response.member_id
    return ""
