"""TLS: what the server shows of itself."""

from __future__ import annotations

import ssl
from pathlib import Path

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_file


def tls_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """What a server needs of TLS: a certificate with its chain and its key, PEM both; one file may hold both.

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
        raise FencepostError(f"{where}: {error.reason or 'can not be read'}; expected {expected}") from None
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
