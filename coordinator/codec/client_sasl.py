"""The client's half of SaslHandshake (17) and SaslAuthenticate (36)."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol import sasl


def encode_handshake(request: sasl.SaslHandshakeRequest, shape: Shape) -> Any:
    """SaslHandshake, versions 0 and 1."""
    return shape.SaslHandshakeRequest(mechanism=request.mechanism)


def decode_handshake(values: dict[str, Any], version: int) -> sasl.SaslHandshakeResponse:
    """SaslHandshake, versions 0 and 1."""
    return sasl.SaslHandshakeResponse(
        error_code=error_of(values["error_code"]), mechanisms=tuple(values["mechanisms"])
    )


def encode_authenticate(request: sasl.SaslAuthenticateRequest, shape: Shape) -> Any:
    """SaslAuthenticate, versions 0 to 2."""
    return shape.SaslAuthenticateRequest(auth_bytes=request.token)


def decode_authenticate(values: dict[str, Any], version: int) -> sasl.SaslAuthenticateResponse:
    """SaslAuthenticate, versions 0 to 2."""
    return sasl.SaslAuthenticateResponse(
        error_code=error_of(values["error_code"]),
        error_message=values["error_message"],
        token=bytes(values["auth_bytes"]),
        session_lifetime_ms=values.get("session_lifetime", 0),
    )
