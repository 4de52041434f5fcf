"""SASL PLAIN: the password itself (RFC 4616)."""

from __future__ import annotations

from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.sasl.exchange import AuthenticationFailed


class PlainExchange:
    """One token, `[authorization id] NUL user NUL password`, and an empty answer."""

    def __init__(self, credentials: Credentials) -> None:
        self.user: str | None = None
        self._credentials = credentials

    def respond(self, token: bytes) -> bytes:
        """Nothing, if the password is right.

        :raises AuthenticationFailed: if it is not.
        """
        try:
            identity, name, password = token.decode().split("\0")
        except ValueError:
            raise AuthenticationFailed from None
        if not self._credentials.is_password(name, password):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if identity not in ("", name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = name
        return b""
