"""Logins and TLS on the command line: who may connect to a served endpoint, and how a client gets into one.

The client's part reads a file of Kafka's client settings, as Kafka's own tools take one, with Java's names or
librdkafka's. Other settings in it are ignored: the file may be there for other programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_text
from fencepost.coordinator.sasl.credentials import check_user
from fencepost.coordinator.sasl.mechanisms import MECHANISMS
from fencepost.simulation.brokers.security import OPEN, ClientSecurity

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


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)
_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_SEPARATOR: Final = re.compile(r"(?<!\\)\s*[=:]\s*|(?<!\\)\s+")


def client_security(
    file: Path | None, option: str, environ: Mapping[str, str] = os.environ
) -> ClientSecurity:
    """What the file says; without one, neither TLS nor a login. `option` is where it was given.

    :raises FencepostError: if it can't be read, or asks for what is not supported; the text has no password.
    """
    if file is None:
        return OPEN
    where = f"{option} {file}"
    properties = _properties(_text(file, where))
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise FencepostError(f"{where}: security.protocol={protocol}: expected {_one_of(PROTOCOLS)}")
    try:
        return ClientSecurity(
            **(_tls(properties, where) if protocol.endswith("SSL") else {}),
            **(_login(properties, where, environ) if protocol.startswith("SASL") else {}),
        )
    except FencepostError as error:
        raise error if str(error).startswith(where) else FencepostError(f"{where}: {error}") from None


def _tls(properties: Mapping[str, str], where: str) -> dict[str, Any]:
    kind = properties.get("ssl.truststore.type", "JKS").upper()
    trusted = properties.get("ssl.truststore.certificates", "")
    place = properties.get("ssl.ca.location") or properties.get("ssl.truststore.location")
    if place is not None and "ssl.ca.location" not in properties and kind != "PEM":
        expected = "expected PEM, or ssl.ca.location=FILE.pem"
        raise FencepostError(f"{where}: ssl.truststore.type={kind}: {expected}")
    if place is not None:
        trusted = _text(Path(place), f"{where}: certificates {place}")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    found = {"tls": True, "trusted": trusted, "checks_host": algorithm.lower() not in ("", "none")}
    return found | _own(properties, where)


def _own(properties: Mapping[str, str], where: str) -> dict[str, str]:
    """The client's own certificate and key: files, or PEM itself."""
    kind = properties.get("ssl.keystore.type", "JKS").upper()
    place = properties.get("ssl.certificate.location")
    if place is None and (store := properties.get("ssl.keystore.location")) is not None:
        if kind != "PEM":
            expected = "expected PEM, or ssl.certificate.location=FILE.pem and ssl.key.location"
            raise FencepostError(f"{where}: ssl.keystore.type={kind}: {expected}")
        place = store
    certificate = properties.get("ssl.certificate.pem") or properties.get("ssl.keystore.certificate.chain")
    key = properties.get("ssl.key.pem") or properties.get("ssl.keystore.key")
    if place is not None:
        certificate = _text(Path(place), f"{where}: certificate {place}")
    if (key_place := properties.get("ssl.key.location")) is not None:
        key = _text(Path(key_place), f"{where}: key {key_place}")
    if not certificate:
        if key:
            raise FencepostError(f"{where}: a client's key without its certificate: ssl.certificate.location")
        return {}
    if not key and "PRIVATE KEY-----" not in certificate:
        raise FencepostError(f"{where}: a client's certificate without its key: expected ssl.key.location")
    password = properties.get("ssl.key.password", "")
    return {"certificate": certificate, "key": key or _keys_of(certificate), "key_password": password}


def _keys_of(text: str) -> str:
    return "\n".join(_KEY.findall(text))


def _login(properties: Mapping[str, str], where: str, environ: Mapping[str, str]) -> dict[str, Any]:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "(none)"
    if mechanism not in MECHANISMS:
        raise FencepostError(f"{where}: sasl.mechanism={mechanism}: expected {_one_of(MECHANISMS)}")
    said = {
        found[1]: found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        for found in _JAAS.finditer(properties.get("sasl.jaas.config", ""))
    }
    name = properties.get("sasl.username") or said.get("username", "")
    password = properties.get("sasl.password") or said.get("password") or environ.get(PASSWORD_VARIABLE, "")
    if not name or not password:
        raise FencepostError(
            f"{where}: expected sasl.username, and sasl.password or the environment variable "
            f"{PASSWORD_VARIABLE}; or both in sasl.jaas.config"
        )
    check_user(name, password)
    return {"mechanism": mechanism, "username": name, "password": password}


def _text(file: Path, where: str) -> str:
    try:
        return read_text(file)
    except UnreadableFile as error:
        raise FencepostError(f"{where}: can't be read: {error.reason}") from None


def _properties(text: str) -> dict[str, str]:
    """Java's format: comments, lines that go on after a backslash, and backslashes before any character."""
    found = {}
    for line in re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text).splitlines():
        if line.strip() and line.lstrip()[0] not in "#!":
            key, *rest = _SEPARATOR.split(line.strip(), maxsplit=1)
            found[_plain(key)] = _plain("".join(rest))
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
