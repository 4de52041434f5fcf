"""What all mechanisms have in common: tokens come, tokens go, and in the end there is a user."""

from __future__ import annotations

from typing import Protocol


class AuthenticationFailed(Exception):
    """The client is not who it says, or says nothing that makes sense. The text may be told to the client.

    It is empty where a reason would tell too much.
    """


class SaslExchange(Protocol):
    """One client's attempt to log in by one mechanism."""

    user: str | None
    """Who the client is, once that is proven."""

    def respond(self, token: bytes) -> bytes:
        """The answer to what the client sent.

        :raises AuthenticationFailed: if that is the end of it.
        """
