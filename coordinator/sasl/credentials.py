"""Users, and the data to check their proofs of passwords. The passwords themselves are not kept."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import FencepostError

PASSWORD_VARIABLE = "FENCEPOST_SASL_PASSWORD"
"""The environment variable with the password of users that are named without one."""
ITERATIONS = 4096
"""Rounds of hashing: the minimum of RFC 5802, and Kafka's default."""
SCRAM_HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PLAIN_HASH = "sha256"


class Verifier(NamedTuple):
    """The data that a server keeps of a password: it can check a proof, but not make one (RFC 5802, 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = ITERATIONS

    def __repr__(self) -> str:
        return "Verifier(...)"


class Credentials:
    """The users of a cluster. `secret` is random bytes: salts are derived from them, for each user and hash.

    A user that does not exist has a salt too, always the same one, and a verifier that no proof matches. So
    guessing names reveals nothing.

    :raises FencepostError: for an invalid name or password.
    """

    def __init__(self, passwords: Mapping[str, str], secret: bytes) -> None:
        self._secret = secret
        self._plain: dict[str, Verifier] = {}
        self._scram: dict[tuple[str, str], Verifier] = {}
        for name, password in passwords.items():
            self.add(name, password)

    def __repr__(self) -> str:
        return f"Credentials({len(self.users)} users)"

    def add(self, name: str, password: str) -> None:
        """Add a user for all mechanisms, or change the password.

        :raises FencepostError: for an invalid name or password.
        """
        check_user(name, password)
        for hash_name in SCRAM_HASHES.values():
            made = _verifier(hash_name, password, self._salt(hash_name, name))
            self._scram[hash_name, name] = made
        self._plain[name] = self._scram[_PLAIN_HASH, name]

    def remove(self, name: str) -> None:
        """Remove a user."""
        self._plain.pop(name, None)
        for hash_name in SCRAM_HASHES.values():
            self._scram.pop((hash_name, name), None)

    @property
    def users(self) -> set[str]:
        """The names of all users."""
        return {*self._plain, *(name for _, name in self._scram)}

    def iterations(self, name: str) -> dict[str, int]:
        """Return the iterations of a user's credentials for SCRAM, by the name of the hash."""
        known = {hash_name: self._scram.get((hash_name, name)) for hash_name in SCRAM_HASHES.values()}
        return {hash_name: one.iterations for hash_name, one in known.items() if one is not None}

    def put(self, hash_name: str, name: str, salt: bytes, salted_password: bytes, iterations: int) -> None:
        """Set a credential for SCRAM of a salted password (KIP-554)."""
        client_key, server_key = _keys(hash_name, salted_password)
        stored_key = hashlib.new(hash_name, client_key).digest()
        self._scram[hash_name, name] = Verifier(salt, stored_key, server_key, iterations)

    def delete(self, hash_name: str, name: str) -> None:
        """Delete a credential for SCRAM."""
        del self._scram[hash_name, name]

    def verifier(self, hash_name: str, name: str) -> Verifier:
        """Return the verifier of that user's proofs; an unknown user gets one that no proof matches."""
        return self._scram.get((hash_name, name)) or self._nobody(hash_name, name)

    def _nobody(self, hash_name: str, name: str) -> Verifier:
        nothing = hmac.digest(self._secret, b"nobody\0" + name.encode(), hash_name)
        return Verifier(self._salt(hash_name, name), nothing, nothing)

    def is_password(self, name: str, password: str) -> bool:
        """Return true if it is that user's password; it takes the same time for any result."""
        known = self._plain.get(name) or self._nobody(_PLAIN_HASH, name)
        given = _verifier(_PLAIN_HASH, password, known.salt)
        return hmac.compare_digest(given.stored_key, known.stored_key)

    def _salt(self, hash_name: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"salt\0{hash_name}\0{name}".encode(), "sha256")[:16]


def check_user(name: str, password: str) -> None:
    """Refuse an invalid name or password.

    :raises FencepostError: if one is invalid; the text does not contain the password.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise FencepostError(f"user {name!r}: expected a name, not empty and without NUL")
    if not isinstance(password, str) or not password or "\0" in password:
        raise FencepostError(f"user {name!r}: expected a password, not empty and without NUL")


def scram_keys(hash_name: str, password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return the client's key and the server's, with which each proves that it knows the password (RFC 5802,
    3)."""
    return _keys(hash_name, hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations))


def _keys(hash_name: str, salted: bytes) -> tuple[bytes, bytes]:
    return hmac.digest(salted, b"Client Key", hash_name), hmac.digest(salted, b"Server Key", hash_name)


def _verifier(hash_name: str, password: str, salt: bytes) -> Verifier:
    client_key, server_key = scram_keys(hash_name, password, salt, ITERATIONS)
    return Verifier(salt, hashlib.new(hash_name, client_key).digest(), server_key)
