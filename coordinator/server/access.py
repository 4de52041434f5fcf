"""Access to a served endpoint: users from options, the environment and files, and the certificate for TLS."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_file, read_text
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE, check_user


def users_from(words: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return passwords by user: from NAME:PASSWORD, NAME with the environment's password, and a file's lines.

    :raises FencepostError: for any other word or line, and for a file without a user, because a server
        without users accepts every client; the text contains no password.
    """
    users: dict[str, str] = {}
    for where, name, password in (*_from_words(words), *_from_file(file)):
        try:
            check_user(name, password)
        except FencepostError as error:
            raise FencepostError(f"{where}: {error}") from None
        if name in users:
            raise FencepostError(f"{where}: user {name!r} is given twice")
        users[name] = password
    return users


def _from_words(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for word in words:
        name, colon, password = word.partition(":")
        if not colon:
            password = os.environ.get(PASSWORD_VARIABLE, "")
            if not password:
                raise FencepostError(
                    f"--sasl-user {name}: expected {name or 'NAME'}:PASSWORD, or the password in the "
                    f"environment variable {PASSWORD_VARIABLE}"
                )
        yield "--sasl-user", name, password


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    """Yield one user per line; empty lines and lines that start with # are left out."""
    if file is None:
        return
    try:
        lines = read_text(file).splitlines()
    except UnreadableFile as error:
        raise FencepostError(f"--sasl-users {file}: can't be read: {error.reason}") from None
    users = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    users = [(number, line) for number, line in users if line and not line.startswith("#")]
    if not users:
        raise FencepostError(f"--sasl-users {file}: expected at least one NAME:PASSWORD")
    for number, line in users:
        name, colon, password = line.partition(":")
        if not colon:
            raise FencepostError(f"--sasl-users {file}, line {number}: expected NAME:PASSWORD")
        yield f"--sasl-users {file}, line {number}", name, password


def tls_from(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the server's side of TLS; None without a certificate.

    :raises FencepostError: if the files do not fit, or there is a key alone.
    """
    if certificate is None:
        if key is not None:
            raise FencepostError("--tls-key: expected with --tls-cert FILE")
        return None
    return tls_context(certificate, key)


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """Return the server's side of TLS: a certificate with its chain, and its key, in PEM files or one.

    :raises FencepostError: if a file can't be read, or is not that.
    """
    shown = _pem(certificate, "certificate")
    if b"CERTIFICATE-----" not in shown:
        raise FencepostError(f"TLS certificate {certificate}: there is no PEM certificate in it")
    if key is None and b"PRIVATE KEY-----" not in shown:
        raise FencepostError(
            f"TLS certificate {certificate}: there is no PEM key in it: expected one, or another file with it"
        )
    if key is not None and b"PRIVATE KEY-----" not in _pem(key, "key"):
        raise FencepostError(f"TLS key {key}: there is no PEM key in it")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    where = f"TLS certificate {certificate}" + (f" with key {key}" if key is not None else "")
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _Locked:
        raise FencepostError(f"{where}: the key needs a password, expected one without") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise FencepostError(f"{where}: the key belongs to another certificate") from None
        expected = "a PEM certificate, and the PEM key that belongs to it"
        raise FencepostError(f"{where}: {error.reason or 'cannot be read'}; expected {expected}") from None
    return context


def _pem(file: Path, what: str) -> bytes:
    try:
        return read_file(file)
    except UnreadableFile as error:
        raise FencepostError(f"TLS {what} {file}: {error.reason}") from None


class _Locked(Exception):
    """The key is encrypted."""


def _no_password() -> str:
    raise _Locked
