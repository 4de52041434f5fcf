"""SaslHandshake and SaslAuthenticate (KIP-12, KIP-152, KIP-368)."""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode


class SaslHandshakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Chooses a mechanism. In version 0 bare tokens follow, from 1 on SaslAuthenticate."""

    mechanism: str
    tokens_are_bare: bool = False


class SaslHandshakeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The mechanisms that the broker offers."""

    error_code: ErrorCode = ErrorCode.NONE
    mechanisms: tuple[str, ...] = ()


class SaslAuthenticateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One token of the client. It may hold a password, so it is never shown."""

    token: bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(...)"


class SaslAuthenticateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The server's token, and the lifetime of the login, 0 for no limit."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    token: bytes = b""
    session_lifetime_ms: int = 0
