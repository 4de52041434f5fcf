"""The server's half of the SASL mechanisms: PLAIN and SCRAM, by their names.

Each takes tokens and returns tokens; a successful exchange ends with a user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Protocol

from fencepost.coordinator.sasl.credentials import SCRAM_HASHES, Credentials, Verifier


class AuthenticationFailed(Exception):
    """The client is not who it claims to be, or sends invalid messages. The text may be sent to the client.

    It is empty if a reason would reveal too much.
    """


class SaslExchange(Protocol):
    """One client's attempt to log in by one mechanism."""

    user: str | None
    """The name of the client's user, once that is proven."""

    def respond(self, token: bytes) -> bytes:
        """Return the response to a token of the client.

        :raises AuthenticationFailed: if authentication failed.
        """


class ScramExchange:
    """SCRAM, a proof of a password that is never sent, both ways (RFC 5802, RFC 7677).

    The client sends two tokens, each with a response. `server_nonce` is fresh random text without commas.
    """

    def __init__(self, credentials: Credentials, hash_name: str, server_nonce: str) -> None:
        self.user: str | None = None
        self._credentials = credentials
        self._hash_name = hash_name
        self._server_nonce = server_nonce
        self._name = ""
        self._verifier: Verifier | None = None
        self._nonce = self._gs2_header = ""
        self._messages = ""
        """The client's first message, bare, and ours."""

    def respond(self, token: bytes) -> bytes:
        """Return the server's first message, then its final one.

        :raises AuthenticationFailed: if the client's messages are not SCRAM messages, or the proof is wrong.
        """
        try:
            text = token.decode()
            return (self._first(text) if self._verifier is None else self._final(text)).encode()
        except (ValueError, binascii.Error):
            raise AuthenticationFailed from None

    def _first(self, text: str) -> str:
        binding, identity, bare = text.split(",", 2)
        if binding not in {"n", "y"}:
            raise AuthenticationFailed("channel binding is not supported")
        name_part, nonce_part, *_ = bare.split(",")
        name, nonce = _value(name_part, "n"), _value(nonce_part, "r")
        self._name = _unescaped(name)
        if identity and _value(identity, "a") != name:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if not nonce:
            raise AuthenticationFailed
        self._gs2_header = f"{binding},{identity},"
        self._nonce = nonce + self._server_nonce
        self._verifier = self._credentials.verifier(self._hash_name, self._name)
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._messages = f"{bare},{answer}"
        return answer

    def _final(self, text: str) -> str:
        assert self._verifier is not None
        unproven, _, proof_text = text.rpartition(",p=")
        binding, nonce, *_ = unproven.split(",")
        proof = base64.b64decode(proof_text, validate=True)
        header = base64.b64encode(self._gs2_header.encode()).decode()
        if binding != f"c={header}" or nonce != f"r={self._nonce}" or self.user is not None:
            raise AuthenticationFailed
        message = f"{self._messages},{unproven}".encode()
        signature = hmac.digest(self._verifier.stored_key, message, self._hash_name)
        if len(proof) != len(signature):
            raise AuthenticationFailed
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, self._verifier.stored_key):
            raise AuthenticationFailed
        self.user = self._name
        ours = hmac.digest(self._verifier.server_key, message, self._hash_name)
        return f"v={base64.b64encode(ours).decode()}"


def _value(attribute: str, name: str) -> str:
    letter, equals, value = attribute.partition("=")
    if letter != name or not equals:
        raise AuthenticationFailed
    return value


def _unescaped(name: str) -> str:
    """Return a user's name, in which commas and equals signs are written as =2C and =3D."""
    rest = name.replace("=2C", "").replace("=3D", "")
    if not name or "=" in rest:
        raise AuthenticationFailed
    return name.replace("=2C", ",").replace("=3D", "=")


class PlainExchange:
    """SASL PLAIN, the password itself (RFC 4616).

    One token, `[authorization id] NUL user NUL password`, and an empty response.
    """

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


MECHANISMS = ("PLAIN", *SCRAM_HASHES)


def exchange_of(mechanism: str, credentials: Credentials, server_nonce: str) -> SaslExchange:
    """Return a fresh exchange of one of `MECHANISMS`; the nonce is random text without commas."""
    if mechanism == "PLAIN":
        return PlainExchange(credentials)
    return ScramExchange(credentials, SCRAM_HASHES[mechanism], server_nonce)
