"""What a Kafka cluster has, asked of whichever broker answers: its topics, by one Metadata request.

The question blocks, and needs no client: it is asked before a client is made, so that a broker which is away,
one that lets nobody in, or a topic that is not there is told plainly.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.simulation.trace.security import OPEN, ClientSecurity

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
_METADATA_VERSION: Final = 12
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_LONGEST_ANSWER: Final = 64 << 20
_LENGTH: Final = struct.Struct(">i")


class KnownTopic(msgspec.Struct, frozen=True):
    """A topic of a cluster."""

    topic_id: TopicId | None
    partitions: int


class ClusterTopics(msgspec.Struct, frozen=True):
    """The topics of a cluster, by name, and where its brokers are."""

    topics: Mapping[str, KnownTopic]
    brokers: frozenset[str]
    """HOST:PORT of each."""


def addresses(servers: str, option: str) -> list[tuple[str, int]]:
    """Host and port of each broker of a list with commas.

    :raises FencepostError: if one is not HOST:PORT; `option` is where it was given.
    """
    found = []
    for word in servers.split(","):
        host, _, port = word.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise FencepostError(f"{option}: expected HOST:PORT, such as 127.0.0.1:9092, got {servers}")
        found.append((host.strip("[]"), int(port)))
    return found


class _Refused(Exception):
    """The broker does not let us in; the text says why."""


def ask_topics(servers: str, option: str, security: ClientSecurity = OPEN) -> ClusterTopics:
    """The cluster's topics, as the first broker of the list knows them that answers.

    :raises FencepostError: if the list is none, or the login is refused.
    :raises EnvironmentLacks: if none of them answers as a Kafka broker does.
    """
    reasons = []
    _load_codec()
    for host, port in addresses(servers, option):
        try:
            with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
                connection.settimeout(ANSWER_SECONDS)
                return _ask(connection, host, security)
        except _Refused as refused:
            raise FencepostError(f"{option}: {host}:{port} refuses the login: {refused}") from None
        except TimeoutError:
            reasons.append("no answer in time")
        except ssl.SSLError as error:
            reasons.append(f"TLS: {_told(error)}")
        except (BrokenPipeError, ConnectionResetError):
            reasons.append(_hung_up(security))
        except (OSError, ValueError) as error:
            strerror = getattr(error, "strerror", None)
            reasons.append(strerror.lower() if strerror else str(error))
    why = "; ".join(dict.fromkeys(reasons))
    raise EnvironmentLacks(f"{option}: no Kafka broker answers at {servers} ({why})")


def require_topic(servers: str, topic: str, option: str, security: ClientSecurity = OPEN) -> KnownTopic:
    """The topic of that name.

    :raises FencepostError: if the cluster has none, its brokers' address is none, or the login is refused.
    :raises EnvironmentLacks: if no broker answers.
    """
    known = ask_topics(servers, option, security).topics.get(topic)
    if known is None:
        raise FencepostError(f"{option}: {servers} has no topic {topic!r}: create it, or name another")
    return known


def _load_codec() -> None:
    """Import what asks and what reads, while nobody waits: a broker gives who connects only so long."""
    import fencepost.coordinator.codec.client  # noqa: F401  # it takes half a second
    from fencepost.coordinator.codec.registry import ApiKey
    from fencepost.coordinator.codec.schema import response_reader

    for api_key, version in (
        (ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION),
        (ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION),
        (ApiKey.METADATA, _METADATA_VERSION),
    ):
        response_reader(api_key, version)


def _told(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".").lower()
    return (error.reason or "no answer to the handshake").replace("_", " ").lower()


def _hung_up(security: ClientSecurity) -> str:
    """Who wants a certificate of a client may say so by hanging up, at any time from the handshake on."""
    speaks = security.protocol
    if security.tls and not security.certificate:
        speaks += ", and to clients without a certificate"
    return f"it closed the connection: is that a Kafka broker that speaks {speaks}?"


def _ask(connection: socket.socket, host: str, security: ClientSecurity) -> ClusterTopics:
    if (context := security.context()) is not None:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return _topics(_Conversation(secured, security))
    return _topics(_Conversation(connection, security))


def _topics(broker: _Conversation) -> ClusterTopics:
    from fencepost.coordinator.codec.registry import ApiKey
    from fencepost.coordinator.protocol.cluster import MetadataRequest

    broker.log_in()
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    metadata = broker.ask(ApiKey.METADATA, _METADATA_VERSION, everything)
    return ClusterTopics(
        {
            topic.name: KnownTopic(topic.topic_id, len(topic.partitions))
            for topic in metadata.topics
            if topic.name and topic.error_code is ErrorCode.NONE
        },
        frozenset(f"{node.host}:{node.port}" for node in metadata.brokers),
    )


class _Conversation:
    """Requests and answers on a connection, one after the other."""

    def __init__(self, connection: socket.socket, security: ClientSecurity) -> None:
        self._connection = connection
        self._security = security
        self._asked = 0

    def ask(self, api_key: int, version: int, request: Any) -> Any:
        """The answer to a request.

        :raises ValueError: if it is none, or none comes.
        :raises OSError: if the connection breaks.
        """
        from fencepost.coordinator.codec.client import read_response, request_frame
        from fencepost.coordinator.codec.framing import MalformedFrame

        self._asked += 1
        self._connection.sendall(request_frame(api_key, version, self._asked, "fencepost", request))
        (size,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if not 0 < size < _LONGEST_ANSWER:
            raise ValueError("its answer is none of Kafka's")
        answer = self._receive(size)
        try:
            return read_response(api_key, version, answer)[1]
        except MalformedFrame as error:
            raise ValueError("its answer is none of Kafka's") from error

    def log_in(self) -> None:
        """Do so, if that is asked for.

        :raises _Refused: if the broker does not believe us, or we do not believe it.
        """
        if not (mechanism := self._security.mechanism):
            return
        from fencepost.coordinator.codec.registry import ApiKey
        from fencepost.coordinator.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
        from fencepost.coordinator.sasl.client import client_tokens
        from fencepost.coordinator.sasl.mechanisms import AuthenticationFailed

        hello = SaslHandshakeRequest(mechanism=mechanism)
        answer = self.ask(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, hello)
        if answer.error_code is not ErrorCode.NONE:
            known = ", ".join(answer.mechanisms) or "none"
            raise _Refused(f"it takes no {mechanism}; mechanisms that it takes: {known}")
        client = client_tokens(
            mechanism, self._security.username, self._security.password, secrets.token_hex(16)
        )
        try:
            token = next(client)
            while True:
                proof = SaslAuthenticateRequest(token=token)
                answer = self.ask(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, proof)
                if answer.error_code is not ErrorCode.NONE:
                    raise _Refused(answer.error_message or answer.error_code.name)
                token = client.send(answer.token)
        except StopIteration:
            return
        except AuthenticationFailed as error:
            raise _Refused(str(error)) from None

    def _receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._connection.recv(min(size, 1 << 16))
            if not part:
                raise BrokenPipeError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
