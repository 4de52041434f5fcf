"""One request that crosses the proxy, and its response; their contents are read when an observer asks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from fencepost.coordinator.codec.client import read_response
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.codec.relay import (
    MEMBER_APIS,
    expects_answer,
    read_member_answer,
    read_member_request,
)
from fencepost.coordinator.protocol.cluster import MetadataResponse
from fencepost.coordinator.protocol.ids import TopicId

_FIRST_METADATA_WITH_IDS = 10
_UNREAD_METADATA = 64
_UNREAD_BYTES = 1 << 20
"""Responses and bytes from which on they are read, although no id was asked for."""


class UnreadFrame(msgspec.Struct, frozen=True, gc=False):
    """A message that is not read: `api_key` and `api_version` of its request, and its `size` in bytes."""

    api_key: int
    api_version: int
    client_id: str
    size: int


class ObservedTopicNames:
    """Names of topics by id, from the metadata that clients received; read when an id is asked for."""

    def __init__(self) -> None:
        self._names: dict[TopicId, str] = {}
        self._unread: deque[tuple[int, bytes]] = deque()
        self._unread_bytes = 0

    def hear(self, version: int, frame: bytes) -> None:
        """Take a Metadata response."""
        if version >= _FIRST_METADATA_WITH_IDS:
            self._unread.append((version, frame))
            self._unread_bytes += len(frame)
            if len(self._unread) >= _UNREAD_METADATA or self._unread_bytes >= _UNREAD_BYTES:
                self.known()

    def add(self, metadata: MetadataResponse) -> None:
        """Add the names of these topics."""
        self._names.update(
            (topic.topic_id, topic.name) for topic in metadata.topics if topic.topic_id and topic.name
        )

    def name_of(self, topic_id: TopicId) -> str:
        """Return the topic's name; the id itself if no client received a name."""
        return (self._names if topic_id in self._names else self.known()).get(topic_id, topic_id)

    def known(self) -> Mapping[TopicId, str]:
        """Return the names of all topics in it."""
        while self._unread:
            version, frame = self._unread.popleft()
            _, metadata = read_response(ApiKey.METADATA, version, frame)
            assert isinstance(metadata, MetadataResponse)
            self.add(metadata)
        self._unread_bytes = 0
        return self._names


@dataclasses.dataclass(slots=True, eq=False)
class ProxyExchange:
    """A request, and what belongs to it until it gets a response.

    `lost` is true once its loss was reported, so that it is reported once. `is_kept` is true if it does not
    reach the broker. `broker` is the broker's response while a fault waits for it, and `late` the client's.
    `answer` is the frame for the client once it may be sent; `closes` is true if the connection is closed
    instead. Then `throttle_s` is the time for which the client is not read from.
    """

    header: RequestHeader
    member: str
    _frame: bytes
    _client_host: str
    _names: ObservedTopicNames
    lost: bool = False
    is_kept: bool = False
    is_received: bool = False
    closes: bool = False
    answer: bytes | None = None
    broker: asyncio.Future[bytes] | None = None
    late: asyncio.Future[Any] | None = None
    throttle_s: float = 0.0
    is_answered: bool = False
    _size: int = 0
    _request: object = None
    _response: object = None

    def __post_init__(self) -> None:
        self.is_answered = expects_answer(self._frame, self.header)
        self._size = len(self._frame)
        if self.header.api_key not in MEMBER_APIS:
            self._frame = b""

    @property
    def request(self) -> object:
        """The request's message; an `UnreadFrame` for other APIs than members', and if it can't be read."""
        if self._request is None:
            self._request = self._read_request() or self._unread(self._size)
            self._frame = b""
        return self._request

    def response(self, frame: bytes) -> object:
        """Return the message of its response, which is this frame; an `UnreadFrame` as for requests."""
        if self._response is None:
            self._response = self._read_response(frame) or self._unread(len(frame))
        return self._response

    def _read_response(self, frame: bytes) -> Any:
        if self.header.api_key not in MEMBER_APIS:
            return None
        try:
            return read_member_answer(frame, self.header, self._names.name_of)
        except MalformedFrame:
            return None

    def _read_request(self) -> Any:
        if not self._frame:
            return None
        try:
            return read_member_request(self._frame, self.header, self._client_host, self._names.name_of)
        except MalformedFrame:
            return None

    def _unread(self, size: int) -> UnreadFrame:
        header = self.header
        return UnreadFrame(header.api_key, header.api_version, header.client_id, size)
