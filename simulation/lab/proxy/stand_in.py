"""The faults of a proxy: rules that lose, delay or change responses, or respond in a broker's stead."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import structlog

from fencepost.coordinator.codec.client import read_response
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader
from fencepost.coordinator.codec.reader import skip_tagged_fields
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, api_name, codec_of
from fencepost.coordinator.codec.relay import MEMBER_APIS
from fencepost.coordinator.codec.schema import is_flexible, throttled
from fencepost.coordinator.protocol import cluster, inspection, logs
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.server.refused import refusal_of
from fencepost.coordinator.server.services import Asked, ThrottledReply
from fencepost.simulation.embedded.fault_rules import FaultRule
from fencepost.simulation.embedded.faults import FaultInjector, NamedConnection, with_wrong_checksum
from fencepost.simulation.lab.proxy.exchange import ObservedTopicNames

log = structlog.get_logger(__name__)

_NOTED: Final = MEMBER_APIS | {ApiKey.FETCH, ApiKey.SYNC_GROUP}
"""The APIs by whose requests the members of a connection are known, and what they read."""
_CORRELATION_BYTES: Final = 4
_BATCH_HEAD: Final = struct.Struct(">qi")
"""The offset of a batch of records, and the number of bytes after this head."""


class StandIn:
    """The rules about requests that cross a proxy.

    `note` gets each rule that has met a request. `describe` returns the cluster as clients see it.
    """

    def __init__(
        self,
        note: Callable[[FaultRule], None],
        describe: Callable[[], cluster.MetadataResponse],
        names: ObservedTopicNames,
        connections: Callable[[], Iterable[NamedConnection]],
    ) -> None:
        self.faults = FaultInjector(
            lambda api, request, asked, rule: note(rule),
            tuple,
            lambda topic_id: names.known().get(topic_id),
            connections,
            _damaged,
            read=_message_of,
        )
        self._describe = describe
        self._names = names
        self._warned: set[tuple[int, int]] = set()

    def is_about(self, api_key: int) -> bool:
        """Return true if requests of that API need `ask`."""
        return api_key in _NOTED or self.faults.has_rules_about(api_key)

    def ask(
        self,
        connection: NamedConnection,
        frame: bytes,
        header: RequestHeader,
        carry_out: Callable[[], Any],
        *,
        client_host: str,
        broker: int,
    ) -> Any:
        """Return what `FaultInjector.handle` does; `carry_out` passes the request on."""
        context = RequestContext(header.api_version, header.client_id, client_host)
        request = self._read(frame, header, context)

        def refuse(error: ErrorCode, at_top: bool | None) -> Any:
            asked = request
            if isinstance(request, logs.FetchRequest):
                topics: dict[tuple[str | None, TopicId | None], list[logs.FetchPartition]] = {}
                for each in self.faults.fetched_on(connection):
                    name = None if request.by_id else each.name
                    topics.setdefault((name, each.topic_id), []).append(each.partition)
                named = (
                    logs.OfTopic(name=name, topic_id=topic_id, partitions=tuple(partitions))
                    for (name, topic_id), partitions in topics.items()
                )
                asked = msgspec.structs.replace(request, topics=tuple(named))
            return refusal_of(asked, header.api_version, error, self._described, at_top=at_top)

        asked = Asked(context, "", connection)
        return self.faults.handle(header.api_key, request, asked, carry_out, refuse, broker=broker)

    def _read(self, frame: bytes, header: RequestHeader, context: RequestContext) -> Any:
        """Return a request's message; None if it can't be read."""
        codec = codec_of(header.api_key, header.api_version)
        if codec is not None:
            try:
                return codec.decode(frame, codec.body_of(frame, header), context)
            except MalformedFrame as error:
                self._warn(header, str(error))
        elif (api := REGISTRY.get(header.api_key)) is not None:
            self._warn(
                header,
                f"{api_name(api.key)} version {header.api_version} is passed on: faults with an error, a "
                f"group or a topic need version {api.min_version} to {api.max_version}",
            )
        return None

    def _warn(self, header: RequestHeader, reason: str) -> None:
        """Warn once for each version of an API that a request of it is not read."""
        if header[:2] not in self._warned:
            self._warned.add(header[:2])
            log.warning("proxy_request_unread", reason=reason)

    def _described(self, request: Any) -> Any:
        named = request.topics
        if isinstance(request, inspection.DescribeLogDirsRequest):
            return inspection.DescribeLogDirsResponse(log_dirs=(inspection.LogDir(path="unknown"),))
        if isinstance(request, cluster.DescribeTopicPartitionsRequest):
            topics = tuple(cluster.TopicMetadata(name=each) for each in named or self._names.known().values())
            return cluster.DescribeTopicPartitionsResponse(topics=topics)
        told = self._describe()
        if named is None:
            known = {each.topic_id: each.name for each in told.topics} | dict(self._names.known())
            topics = tuple(cluster.TopicMetadata(name=name, topic_id=each) for each, name in known.items())
        else:
            topics = tuple(cluster.TopicMetadata(name=each.name, topic_id=each.topic_id) for each in named)
        return msgspec.structs.replace(told, topics=topics)


def response_frame(header: RequestHeader, reply: Any) -> bytes:
    """Return the frame of a reply without its length: a broker's own frame, or one in its stead."""
    throttle_ms = 0
    if isinstance(reply, ThrottledReply):
        reply, throttle_ms = reply
    api_key, version = header.api_key, header.api_version
    frame: bytes = reply if isinstance(reply, bytes) else b""
    if not frame:
        if api_key == ApiKey.API_VERSIONS and reply.error_code is ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # which every client can read (KIP-511)
        codec = codec_of(api_key, version)
        assert codec is not None
        frame = b"".join(codec.encode(header.correlation_id, reply))[_CORRELATION_BYTES:]
    if not throttle_ms:
        return frame
    at = _CORRELATION_BYTES
    if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version):
        at = skip_tagged_fields(frame, at)
    return throttled(api_key, version, frame, at, throttle_ms)


def _message_of(api_key: int, version: int, reply: Any) -> Any:
    """Return the message of a broker's response; None if it can't be read."""
    if not isinstance(reply, bytes) or codec_of(api_key, version) is None:
        return None
    try:
        return read_response(api_key, version, reply)[1]
    except MalformedFrame:
        return None


def _damaged(reply: Any, version: int) -> bytes | None:
    """Return a broker's Fetch response whose batches have wrong checksums; None without a whole batch."""
    if not isinstance(reply, bytes) or codec_of(ApiKey.FETCH, version) is None:
        return None
    _, read = read_response(ApiKey.FETCH, version, reply)
    at, damaged = 0, bytearray(reply)
    for batches in (each for topic in read.topics for one in topic.partitions for each in one.batches):
        at = reply.index(batches, at)
        end = at + len(batches)
        while at + _BATCH_HEAD.size <= end:
            _, size = _BATCH_HEAD.unpack_from(reply, at)
            if size <= 0 or at + _BATCH_HEAD.size + size > end:
                break
            after = at + _BATCH_HEAD.size + size
            damaged[at:after] = with_wrong_checksum(reply[at:after])
            at = after
        at = end
    return bytes(damaged) if damaged != reply else None
