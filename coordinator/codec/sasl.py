"""SaslHandshake (17) and SaslAuthenticate (36).

SaslAuthenticate: 1 brings the session's lifetime.
"""

from __future__ import annotations

import struct
from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import sasl

_SIZE = struct.Struct(">i")


def decode_handshake(values: dict[str, Any], context: RequestContext) -> sasl.SaslHandshakeRequest:
    """SaslHandshake, versions 0 and 1."""
    return sasl.SaslHandshakeRequest(mechanism=values["mechanism"], tokens_are_bare=context.api_version == 0)


def encode_handshake(reply: sasl.SaslHandshakeResponse, shape: Shape) -> Any:
    """SaslHandshake, versions 0 and 1."""
    return shape.SaslHandshakeResponse(error_code=reply.error_code, mechanisms=reply.mechanisms)


def decode_authenticate(values: dict[str, Any], context: RequestContext) -> sasl.SaslAuthenticateRequest:
    """SaslAuthenticate, versions 0 to 2."""
    return sasl.SaslAuthenticateRequest(token=bytes(values["auth_bytes"]))


def encode_authenticate(reply: sasl.SaslAuthenticateResponse, shape: Shape) -> Any:
    """SaslAuthenticate, versions 0 to 2."""
    return shape.SaslAuthenticateResponse(
        error_code=reply.error_code,
        error_message=reply.error_message,
        auth_bytes=reply.token,
        session_lifetime=reply.session_lifetime_ms,
    )


def bare_token(token: bytes) -> bytes:
    """A token as it is sent after a handshake of version 0: its length, and nothing else before it."""
    return _SIZE.pack(len(token)) + token
