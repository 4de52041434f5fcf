"""SaslHandshake and SaslAuthenticate (KIP-12, KIP-152, KIP-368), and the users of SCRAM (KIP-554)."""

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


class ScramDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A credential to delete; the mechanism is Kafka's number."""

    name: str
    mechanism: int


class ScramUpsertion(ScramDeletion, frozen=True, kw_only=True):
    """A credential to create or replace. It has data of a password, so it is never shown."""

    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return "ScramUpsertion(...)"


class AlterUserScramCredentialsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to change users."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


class AlteredUser(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one user."""

    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlterUserScramCredentialsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each user."""

    results: tuple[AlteredUser, ...]


class DescribeUserScramCredentialsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for users by name, or for all of them."""

    users: tuple[str, ...] | None = None


class DescribedUser(AlteredUser, frozen=True, kw_only=True):
    """One user, with the mechanism and the iterations of each credential."""

    credential_infos: tuple[tuple[int, int], ...] = ()


class DescribeUserScramCredentialsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each user."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    results: tuple[DescribedUser, ...] = ()
