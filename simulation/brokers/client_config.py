"""A file of Kafka's client settings, as Kafka's tools take one: the TLS and login settings for a broker.

Java's names and librdkafka's are both known. Other settings are ignored: the file may be shared with other
programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fencepost.coordinator.config import SecurityProtocol
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_text
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE, check_user
from fencepost.coordinator.sasl.mechanisms import MECHANISMS
from fencepost.simulation.brokers.security import OPEN, ClientSecurity

PROTOCOLS: Final = tuple(SecurityProtocol.__members__)
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)
_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_SEPARATOR: Final = re.compile(r"(?<!\\)\s*[=:]\s*|(?<!\\)\s+")


def client_security(
    file: Path | None, option: str, environ: Mapping[str, str] = os.environ
) -> ClientSecurity:
    """Return the security settings in the file; without a file, neither TLS nor a login. `option` is the
    option that named the file.

    :raises FencepostError: if it can't be read, or has a setting that is not supported; the text has no
        password.
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
    """Return the client's own certificate and key, given as files or as PEM."""
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
    key = key or "\n".join(_KEY.findall(certificate))
    return {"certificate": certificate, "key": key, "key_password": password}


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
    """Parse Java's format: comments, lines continued by a backslash, and backslash escapes."""
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
