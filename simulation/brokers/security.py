"""How a client of ours gets into a Kafka: TLS, a login, both or neither, in the words of each library."""

from __future__ import annotations

import ssl
from tempfile import NamedTemporaryFile
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError

_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM_MODULE: Final = "scram.ScramLoginModule"


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has to say, to show and to trust. Its text tells no password.

    :raises FencepostError: if the certificates or the key are none.
    """

    tls: bool = False
    trusted: str = ""
    """Certificates (PEM) that a broker's may be, or be signed with; empty: those that the system trusts."""
    checks_host: bool = True
    """True if the broker's certificate must be for the host that was asked for."""
    certificate: str = ""
    """What the client shows of itself (PEM, with its chain); empty for nothing."""
    key: str = ""
    """Of the certificate (PEM)."""
    key_password: str = ""
    """Empty for a key without."""
    mechanism: str = ""
    """Of SASL; empty for no login."""
    username: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        self.context()

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol})"

    @property
    def protocol(self) -> str:
        """Kafka's name of it."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.mechanism else transport

    def context(self) -> ssl.SSLContext | None:
        """For a connection, if it is one of TLS.

        :raises FencepostError: if the certificates or the key can't be used.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cadata=self.trusted or None)
        except (ssl.SSLError, ValueError):
            raise FencepostError("the trusted certificates can't be read: expected PEM") from None
        # As in Java, whatever is trusted ends a chain: a broker's own certificate too.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = self.checks_host
        if self.certificate:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        """Python takes certificates from files only; this one is nobody else's, and gone at once."""
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
        """Arguments of its clients."""
        found: dict[str, Any] = {"security_protocol": self.protocol, "ssl_context": self.context()}
        if self.mechanism:
            found["sasl_mechanism"] = self.mechanism
            found["sasl_plain_username"] = self.username
            found["sasl_plain_password"] = self.password
        return found

    def java(self) -> dict[str, str]:
        """Properties of Kafka's own clients."""
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
    """As JAAS reads it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
