"""Who may connect to a served endpoint: users from options, the environment and files, and TLS's files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_text
from fencepost.coordinator.sasl.credentials import check_user

if TYPE_CHECKING:
    import ssl

PASSWORD_VARIABLE = "FENCEPOST_SASL_PASSWORD"
"""Holds the password of users that come without one."""


def users_from(words: Sequence[str], file: Path | None) -> dict[str, str]:
    """Passwords by user: of NAME:PASSWORD, of NAME with the environment's password, and of a file's lines.

    :raises FencepostError: for a word or a line that is none of that, and for a file without a user, since
        no users at all stands for a server that takes anybody; the text holds no password.
    """
    users: dict[str, str] = {}
    for where, name, password in (*_from_words(words), *_from_file(file)):
        try:
            check_user(name, password)
        except FencepostError as error:
            raise FencepostError(f"{where}: {error}") from None
        if name in users:
            raise FencepostError(f"{where}: user {name!r} is there twice")
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
    """A line a user; empty lines and those that start with # are left out."""
    if file is None:
        return
    try:
        lines = read_text(file).splitlines()
    except UnreadableFile as error:
        raise FencepostError(f"--sasl-users {file}: can't be read: {error.reason}") from None
    told = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    told = [(number, line) for number, line in told if line and not line.startswith("#")]
    if not told:
        raise FencepostError(f"--sasl-users {file}: expected at least one NAME:PASSWORD")
    for number, line in told:
        name, colon, password = line.partition(":")
        if not colon:
            raise FencepostError(f"--sasl-users {file}, line {number}: expected NAME:PASSWORD")
        yield f"--sasl-users {file}, line {number}", name, password


def tls_from(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What the server needs of TLS, if it is to speak it.

    :raises FencepostError: if the files are none of that, or there is a key alone.
    """
    if certificate is None:
        if key is not None:
            raise FencepostError("--tls-key: expected with --tls-cert FILE")
        return None
    from fencepost.coordinator.server.tls import tls_context

    return tls_context(certificate, key)
