"""A client's conversation with a broker, without a socket: requests out, responses in.

A `Conversation` frames the requests of one connection and reads their responses. `Steps` are requests that
follow from one another, such as a login. A blocking and an asyncio connection (`simulation.brokers`) carry
both; a member's requests (`CallVersions`) travel on the connections of aiokafka.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.cluster import BrokerVersions
from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES, MalformedFrame
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.codec.schema import response_reader
from fencepost.coordinator.protocol.cluster import ApiVersionsRequest, MetadataRequest, MetadataResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from fencepost.coordinator.sasl.client import client_tokens
from fencepost.coordinator.sasl.mechanisms import AuthenticationFailed

HEAD_BYTES: Final = 8
"""Size of the part of a response with its length and the number of its request."""

_HEAD = struct.Struct(">ii")
_ERROR = struct.Struct(">h")

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_API_VERSIONS_VERSION: Final = 3
_NODES_VERSION: Final = 2
"""The version of Metadata that asks for the cluster's id and its brokers: even old brokers speak it."""
_TOPICS_VERSION: Final = 12
"""The version of Metadata that asks for topics: the first with both names and ids."""

T = TypeVar("T")


class Ask(NamedTuple):
    """One request of `Steps`."""

    api_key: int
    version: int
    message: Any


Steps: TypeAlias = Generator[Ask, Any, T]
"""Requests that follow from one another. Yields each request, is sent its response, and returns the
result."""


class LoginRefused(Exception):
    """The broker does not accept the login, or the client does not trust the broker. The text says why."""


class Conversation:
    """The requests and responses of one connection, one at a time."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._asked = (0, 0)

    def request(self, api_key: int, version: int, message: Any) -> bytes:
        """Return the frame of the next request."""
        self._correlation_id += 1
        self._asked = api_key, version
        return request_frame(api_key, version, self._correlation_id, self._client_id, message)

    def remaining_bytes(self, head: bytes) -> int:
        """Return the number of bytes of the response after its head, the first `HEAD_BYTES` of it.

        :raises MalformedFrame: if this is not a response to the last request.
        """
        if (guess := protocol_of(head)) is not None:
            raise MalformedFrame(guess)
        size: int
        correlation_id: int
        size, correlation_id = _HEAD.unpack(head)
        if correlation_id != self._correlation_id or not 4 <= size <= KAFKA_MAX_FRAME_BYTES:
            raise MalformedFrame("its response is not a Kafka response")
        return size - 4

    def response(self, rest: bytes) -> Any:
        """Return the message of the response to the last request, of which this is all after the head.

        :raises MalformedFrame: if it can't be read.
        """
        api_key, version = self._asked
        if api_key == ApiKey.API_VERSIONS and len(rest) >= _ERROR.size:
            # A broker that does not speak the version responds in version 0 (KIP-511).
            (error,) = _ERROR.unpack_from(rest)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                raise MalformedFrame(
                    f"it refuses ApiVersions version {version} with error {error}: it is older than Kafka 2.4"
                )
        return read_response(api_key, version, _HEAD.pack(0, self._correlation_id)[4:] + rest)[1]


def protocol_of(start: bytes) -> str | None:
    """Name the protocol that a response begins like, if it is one that is often mistaken for Kafka's."""
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS"
    if start[:5] == b"HTTP/" or start[:1] == b"<":
        return "it speaks HTTP"
    return None


class CallVersions(NamedTuple):
    """The versions of one API that a client can use."""

    key: ApiKey
    oldest: int
    newest: int

    def newest_of(self, versions: Mapping[int, tuple[int, int]]) -> int | None:
        """Return the newest version that both sides support, or None."""
        low, high = versions.get(self.key, (0, -1))
        version = min(high, self.newest)
        return version if version >= max(low, self.oldest) else None

    def complaint(self, versions: Mapping[int, tuple[int, int]]) -> str:
        """Return a message about a broker that speaks none of the versions."""
        spoken = "versions {} to {}".format(*versions[self.key]) if self.key in versions else "none"
        return (
            f"API {self.key:d} is needed in version {self.oldest} to {self.newest}, "
            f"the broker speaks {spoken}"
        )


def load_codec() -> None:
    """Prepare the readers for the steps below: a broker waits only for a limited time for a request."""
    for api_key, version in (
        (ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION),
        (ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION),
        (ApiKey.API_VERSIONS, _API_VERSIONS_VERSION),
        (ApiKey.METADATA, _NODES_VERSION),
        (ApiKey.METADATA, _TOPICS_VERSION),
    ):
        response_reader(api_key, version)


def identify() -> Steps[tuple[BrokerVersions, MetadataResponse]]:
    """Ask for the APIs and features that the broker speaks, and for the brokers of its cluster."""
    client = ApiVersionsRequest(client_software_name="fencepost", client_software_version="0")
    versions: BrokerVersions = yield Ask(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, client)
    metadata: MetadataResponse = yield Ask(ApiKey.METADATA, _NODES_VERSION, MetadataRequest(topics=()))
    return versions, metadata


def all_topics() -> Steps[MetadataResponse]:
    """Ask for all topics of the cluster, and create none."""
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    metadata: MetadataResponse = yield Ask(ApiKey.METADATA, _TOPICS_VERSION, everything)
    return metadata


def log_in(mechanism: str, username: str, password: str, nonce: str) -> Steps[None]:
    """Authenticate by SASL. The nonce is fresh random text without commas.

    :raises LoginRefused: if the broker refuses the login, or does not know the password itself.
    """
    hello = SaslHandshakeRequest(mechanism=mechanism)
    answer = yield Ask(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, hello)
    if answer.error_code is not ErrorCode.NONE:
        known = ", ".join(answer.mechanisms) or "none"
        raise LoginRefused(f"it does not accept {mechanism}, only: {known}")
    client = client_tokens(mechanism, username, password, nonce)
    try:
        token = next(client)
        while True:
            proof = SaslAuthenticateRequest(token=token)
            answer = yield Ask(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, proof)
            if answer.error_code is not ErrorCode.NONE:
                raise LoginRefused(answer.error_message or answer.error_code.name)
            token = client.send(answer.token)
    except StopIteration:
        return
    except AuthenticationFailed as error:
        raise LoginRefused(str(error)) from None
