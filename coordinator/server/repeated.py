"""Responses that are sent again as bytes, without a message or a codec.

Clients that connect ask for versions and brokers in the same words; a client that joins a group sends five
such requests. In steady state, each heartbeat of a connection equals the previous one, except for its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.coordinator.codec.consumer import pack_heartbeat
from fencepost.coordinator.codec.framing import response_header
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import consumer

if TYPE_CHECKING:
    from fencepost.coordinator.server.cluster import KafkaCluster
    from fencepost.coordinator.server.services import Handler, OpenConnection, Services

ASKED_AGAIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.METADATA})
"""Every client that connects sends these requests, mostly in the same words.

Their responses follow from the request, the address that was asked, and the state of the cluster.
"""
_LONGEST: Final = 1024
"""Requests of more bytes are no client's first ones, and heartbeats are full requests: neither is kept."""
_MOST: Final = 256
_ROOM: Final = 8 << 20
"""Limits of responses, and of their bytes. When one is reached, all are dropped."""


class RepeatedRequest(NamedTuple):
    """A request from any client. `body` begins after the client's id."""

    local_host: str
    api_key: int
    api_version: int
    body: bytes


class KnownAnswer(NamedTuple):
    """A response that was sent once."""

    request: Any
    size: bytes
    rest: bytes
    """The bytes before (`size`) and after (`rest`) the request's number."""

    def to(self, frame: bytes) -> bytes:
        """Return the whole response to the request in this frame."""
        return self.size + frame[4:8] + self.rest


class RepeatedAnswers:
    """The responses of one broker, kept while topics and brokers are unchanged.

    They are from the handlers that it starts with: a handler that replaces one later is always called.
    """

    def __init__(self, cluster: KafkaCluster, handlers: Mapping[int, Handler]) -> None:
        self._cluster = cluster
        self._state = (cluster.shown, cluster.nodes, cluster.leader_changes)
        self._handlers: dict[int, Handler] = {key: handlers[key] for key in ASKED_AGAIN}
        self._answers: dict[RepeatedRequest, KnownAnswer] = {}
        self._bytes = 0

    def find(self, question: RepeatedRequest, handler: Handler) -> KnownAnswer | None:
        """Return the response that this handler gave, if it would give it again."""
        image, nodes, changes = self._state
        cluster = self._cluster
        if cluster.shown is not image or cluster.nodes is not nodes or cluster.leader_changes != changes:
            self._forget()  # an answer that changed the cluster is among them
            self._state = (cluster.shown, cluster.nodes, cluster.leader_changes)
        return self._answers.get(question) if handler is self._handlers[question.api_key] else None

    def keep(self, question: RepeatedRequest, handler: Handler, request: Any, answer: list[bytes]) -> None:
        """Remember the pieces of a response."""
        if len(question.body) > _LONGEST or handler is not self._handlers[question.api_key]:
            return
        whole = b"".join(answer)
        if len(self._answers) >= _MOST or self._bytes + len(whole) > _ROOM:
            self._forget()
        self._bytes += len(whole)
        self._answers[question] = KnownAnswer(request, whole[:4], whole[8:])

    def keep_later(
        self, question: RepeatedRequest, handler: Handler, request: Any
    ) -> Callable[[list[bytes]], None]:
        """Return a callback that keeps a response that takes several turns, unless topics or brokers change
        meanwhile."""
        image, nodes = self._cluster.shown, self._cluster.nodes

        def keep(answer: list[bytes]) -> None:
            if self._cluster.shown is image and self._cluster.nodes is nodes:
                self.keep(question, handler, request, answer)

        return keep

    def _forget(self) -> None:
        self._answers.clear()
        self._bytes = 0


class RepeatingHandlers(dict[int, "Handler"]):
    """Handlers behind something that sees each request, and has a shorter way for repeated heartbeats."""

    again: Callable[[Services, Any, OpenConnection], Any] | None = None
    """Handles a heartbeat that equals the last one of its connection; None if it has to take the long way."""


_REMEMBERED_BYTES = 1024
"""Heartbeats above this size are full requests; they are not worth remembering."""


class SteadyHeartbeat:
    """The last heartbeat of a connection."""

    __slots__ = ("_head", "_reply", "_rest", "_size", "_start", "_tail", "_whole_bytes", "request")

    def __init__(self) -> None:
        self._start = self._head = self._tail = self._size = self._rest = b""
        self._whole_bytes = -1
        self._reply: consumer.ConsumerGroupHeartbeatResponse | None = None
        self.request: consumer.ConsumerGroupHeartbeatRequest

    def is_again(self, frame: bytes) -> bool:
        """Return true if this is the same request."""
        return len(frame) <= _REMEMBERED_BYTES and frame[:4] == self._head and frame[8:] == self._tail

    def is_alone(self, data: bytes) -> bool:
        """Return true if received bytes are the same request with its length, and nothing else."""
        return len(data) == self._whole_bytes and data[:8] == self._start and data[12:] == self._tail

    def remember(self, frame: bytes, request: Any) -> None:
        """Keep a request's bytes and its message."""
        if len(frame) <= _REMEMBERED_BYTES and request.member_id:
            self._head, self._tail, self.request = frame[:4], frame[8:], request
            self._start = len(frame).to_bytes(4, "big") + self._head
            self._whole_bytes = 4 + len(frame)

    def answer(self, correlation_id: bytes, reply: consumer.ConsumerGroupHeartbeatResponse) -> bytes:
        """Return the response as bytes. The coordinator returns the same object while nothing changes: its
        bytes are kept."""
        if reply is not self._reply:
            answer = response_header(0, len(body := pack_heartbeat(reply)), flexible=True) + body
            self._reply, self._size, self._rest = reply, answer[:4], answer[8:]
        return self._size + correlation_id + self._rest
