"""The client's half of the mechanisms: the tokens it sends, and its checks of the server's responses."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Generator

from fencepost.coordinator.sasl.credentials import SCRAM_HASHES, scram_keys
from fencepost.coordinator.sasl.mechanisms import AuthenticationFailed

_NO_BINDING = "n,,"


def client_tokens(
    mechanism: str, name: str, password: str, client_nonce: str
) -> Generator[bytes, bytes, None]:
    """Yields each token for the server, and is sent the server's response to it.

    `mechanism` is one of `MECHANISMS`; the nonce is fresh random text without commas.

    :raises AuthenticationFailed: if the server's responses are not SCRAM messages, or it does not know the
        password.
    """
    if mechanism == "PLAIN":
        yield f"\0{name}\0{password}".encode()
    else:
        yield from _scram(SCRAM_HASHES[mechanism], name, password, client_nonce)


def _scram(hash_name: str, name: str, password: str, client_nonce: str) -> Generator[bytes, bytes, None]:
    """RFC 5802, 3 and 5."""
    bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={client_nonce}"
    answer = yield (_NO_BINDING + bare).encode()
    try:
        first = answer.decode()
        nonce, salt, iterations = (
            part.removeprefix(f"{letter}=") for letter, part in zip("rsi", first.split(",")[:3], strict=True)
        )
        client_key, server_key = scram_keys(
            hash_name, password, base64.b64decode(salt, validate=True), int(iterations)
        )
    except ValueError:
        raise AuthenticationFailed("the server's response is not a SCRAM message") from None
    if not nonce.startswith(client_nonce):
        raise AuthenticationFailed("the server's response is to another login")
    unproven = f"c={_text(_NO_BINDING.encode())},r={nonce}"
    message = f"{bare},{first},{unproven}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = yield f"{unproven},p={_text(proof)}".encode()
    if not hmac.compare_digest(final, f"v={_text(hmac.digest(server_key, message, hash_name))}".encode()):
        raise AuthenticationFailed("the server does not know the password")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
