"""Asks a Kafka cluster for its topics over a blocking socket, from whichever broker responds.

It runs before a client is made. So it can plainly report a broker that is down, a refused login, or a missing
topic.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.security import OPEN, ClientSecurity

if TYPE_CHECKING:
    from fencepost.coordinator.codec.conversation import Steps
    from fencepost.coordinator.protocol.cluster import MetadataResponse

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0

T = TypeVar("T")


class KnownTopic(msgspec.Struct, frozen=True):
    """A topic of a cluster."""

    topic_id: TopicId | None
    partitions: int


def ask_topics(servers: str, option: str, security: ClientSecurity = OPEN) -> Mapping[str, KnownTopic]:
    """Return the cluster's topics by name, as `ask_metadata` does."""
    return {
        topic.name: KnownTopic(topic.topic_id, len(topic.partitions))
        for topic in ask_metadata(servers, option, security).topics
        if topic.name and topic.error_code is ErrorCode.NONE
    }


def ask_metadata(servers: str, option: str, security: ClientSecurity = OPEN) -> MetadataResponse:
    """Return the cluster's brokers and topics, from the first broker in the list that responds.

    :raises FencepostError: if the list is malformed, or the login is refused.
    :raises EnvironmentLacks: if no broker responds as a Kafka broker.
    """
    # It takes half a second, and a broker drops a connection that sends no request for some time.
    from fencepost.coordinator.codec.conversation import LoginRefused, load_codec
    from fencepost.coordinator.codec.framing import MalformedFrame

    load_codec()
    reasons = []
    for address in kafka_addresses(servers, option):
        try:
            with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                connection.settimeout(ANSWER_SECONDS)
                return _secured(connection, address.host, security)
        except LoginRefused as refused:
            raise FencepostError(f"{option}: {address} refuses the login: {refused}") from None
        except TimeoutError:
            reasons.append("no answer in time")
        except ssl.SSLError as error:
            reasons.append(f"TLS: {_told(error)}")
        except (BrokenPipeError, ConnectionResetError):
            reasons.append(_hung_up(security))
        except OSError as error:
            reasons.append(error.strerror.lower() if error.strerror else str(error))
        except (ValueError, MalformedFrame) as error:
            reasons.append(str(error))
    why = "; ".join(dict.fromkeys(reasons))
    raise EnvironmentLacks(f"{option}: no Kafka broker answers at {servers} ({why}): start one")


def require_topic(servers: str, topic: str, option: str, security: ClientSecurity = OPEN) -> KnownTopic:
    """Return the topic of that name.

    :raises FencepostError: if the cluster does not have it, the list is malformed, or the login is refused.
    :raises EnvironmentLacks: if no broker responds.
    """
    known = ask_topics(servers, option, security).get(topic)
    if known is None:
        raise FencepostError(f"{option}: {servers} has no topic {topic!r}: create it, or name another")
    return known


def _told(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".").lower()
    return (error.reason or "no answer to the handshake").replace("_", " ").lower()


def _hung_up(security: ClientSecurity) -> str:
    """Return the likely reason: a broker that wants a client's certificate may close the connection during
    the handshake."""
    speaks = security.protocol
    if security.tls and not security.certificate:
        speaks += ", and to clients without a certificate"
    return f"it closed the connection: is that a Kafka broker that speaks {speaks}?"


def _secured(connection: socket.socket, host: str, security: ClientSecurity) -> MetadataResponse:
    if (context := security.context()) is not None:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return _metadata(_BlockingConnection(secured), security)
    return _metadata(_BlockingConnection(connection), security)


def _metadata(broker: _BlockingConnection, security: ClientSecurity) -> MetadataResponse:
    from fencepost.coordinator.codec.conversation import all_topics, log_in

    if security.mechanism:
        nonce = secrets.token_hex(16)
        broker.follow(log_in(security.mechanism, security.username, security.password, nonce))
    return broker.follow(all_topics())


class _BlockingConnection:
    """A conversation over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        from fencepost.coordinator.codec.conversation import HEAD_BYTES, Conversation

        self._socket = connection
        self._conversation = Conversation("fencepost")
        self._head_bytes = HEAD_BYTES

    def follow(self, steps: Steps[T]) -> T:
        """Send the requests of the steps, and return their result.

        :raises OSError: if the connection breaks.
        :raises MalformedFrame: if a response is not in Kafka's format.
        """
        try:
            ask = next(steps)
            while True:
                self._socket.sendall(self._conversation.request(*ask))
                size = self._conversation.remaining_bytes(self._receive(self._head_bytes))
                ask = steps.send(self._conversation.response(self._receive(size)))
        except StopIteration as end:
            result: T = end.value
            return result

    def _receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(min(size, 1 << 16))
            if not part:
                raise BrokenPipeError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
