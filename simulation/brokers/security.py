"""The security settings of our clients for a Kafka: TLS, a login, both or neither, in the terms of each
library."""

from __future__ import annotations

import ssl
from tempfile import NamedTemporaryFile
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError

_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM_MODULE: Final = "scram.ScramLoginModule"


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """The security settings of a client: its login, its certificate, and the certificates that it trusts.
    `repr()` shows no password.

    :raises FencepostError: if the certificates or the key are invalid.
    """

    tls: bool = False
    trusted: str = ""
    """Trusted certificates (PEM): a broker's own, or one that signed it. Empty for those that the system
    trusts."""
    checks_host: bool = True
    """True if the broker's certificate must be for the requested host."""
    certificate: str = ""
    """The certificate that the client presents (PEM, with its chain); empty for none."""
    key: str = ""
    """The key of the certificate (PEM)."""
    key_password: str = ""
    """The password of the key; empty if it has none."""
    mechanism: str = ""
    """The SASL mechanism; empty for no login."""
    username: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        self.context()

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol})"

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.mechanism else transport

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection; None without TLS.

        :raises FencepostError: if the certificates or the key can't be used.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cadata=self.trusted or None)
        except (ssl.SSLError, ValueError):
            raise FencepostError("the trusted certificates can't be read: expected PEM") from None
        # As in Java, any trusted certificate ends a chain, including a broker's own.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = self.checks_host
        if self.certificate:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        """Load the client's certificate. Python reads certificates only from files, so it uses a private file
        that it deletes at once."""
        with NamedTemporaryFile("w", suffix=".pem", encoding="ascii", errors="replace") as file:
            file.write(f"{self.key}\n{self.certificate}\n")
            file.flush()
            try:
                context.load_cert_chain(file.name, password=lambda: self.key_password)
            except ssl.SSLError as error:
                if error.reason == "KEY_VALUES_MISMATCH":
                    raise FencepostError("the client's key belongs to another certificate") from None
                locked = "ENCRYPTED" in self.key
                why = "the password of the client's key is wrong, or" if locked else "the client's"
                raise FencepostError(f"{why} certificate and key can't be read: expected PEM") from None

    def aiokafka(self) -> dict[str, Any]:
        """Return the arguments for aiokafka's clients."""
        found: dict[str, Any] = {"security_protocol": self.protocol, "ssl_context": self.context()}
        if self.mechanism:
            found["sasl_mechanism"] = self.mechanism
            found["sasl_plain_username"] = self.username
            found["sasl_plain_password"] = self.password
        return found

    def java(self) -> dict[str, str]:
        """Return the properties for Kafka's own clients."""
        found = {"security.protocol": self.protocol}
        if self.tls:
            if self.trusted:
                found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.trusted}
            if self.certificate:
                found |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.certificate.chain": self.certificate,
                    "ssl.keystore.key": self.key,
                }
                if self.key_password:
                    found["ssl.key.password"] = self.key_password
            found["ssl.endpoint.identification.algorithm"] = "https" if self.checks_host else ""
        if self.mechanism:
            module = _MODULES.get(self.mechanism, _SCRAM_MODULE)
            found["sasl.mechanism"] = self.mechanism
            found["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module} required "
                f"username={_quoted(self.username)} password={_quoted(self.password)};"
            )
        return found


OPEN: Final = ClientSecurity()
"""Neither TLS nor a login."""


def _quoted(text: str) -> str:
    """Return the text quoted as JAAS reads it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
