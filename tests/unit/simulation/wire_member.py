"""A member of a consumer group on a socket: each request is the test's own. And what the trace has of it."""

from __future__ import annotations

import itertools
import socket
from typing import Any, ClassVar

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.framing import FrameBuffer
from fencepost.coordinator.codec.offsets import CommittedPartition, OffsetCommitCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.simulation.trace.schema import Row, RowKind

VERSIONS = {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1, ApiKey.OFFSET_COMMIT: 9, ApiKey.FIND_COORDINATOR: 4}


class WireMember:
    """A member of a consumer group, by hand. Whoever makes members closes them all by `close_all`."""

    _open: ClassVar[list[socket.socket]] = []

    def __init__(self, bootstrap_servers: str, group_id: str, member_id: str) -> None:
        host, _, port = bootstrap_servers.split(",", maxsplit=1)[0].rpartition(":")
        self._address = host, int(port)
        self.group_id = group_id
        self.member_id = self.client_id = member_id
        self.epoch = 0
        self.assignment: Any = None
        self._numbers = itertools.count(1)
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=60)
        self._open.append(self.socket)
        self._frames = FrameBuffer()

    def close(self) -> None:
        self.socket.close()

    @classmethod
    def close_all(cls) -> None:
        for each in cls._open:
            each.close()
        cls._open.clear()

    def ask(self, api: ApiKey, message: Any, version: int | None = None) -> Any:
        """The answer; EOFError if the connection is closed instead."""
        chosen = VERSIONS[api] if version is None else version
        try:
            self.socket.sendall(request_frame(api, chosen, next(self._numbers), self.client_id, message))
            return read_response(api, chosen, self.frame())[1]
        except ConnectionError as error:  # it was closed before the request came
            raise EOFError from error

    def frame(self) -> bytes:
        """The next response; EOFError if the connection is closed instead."""
        while (frame := self._frames.next_frame()) is None:
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError
            self._frames.feed(data)
        return frame

    def commit(self, partition: TopicPartition, offset: int) -> ErrorCode:
        """Commit an offset, and return the partition's error."""
        one = CommittedPartition(partition.partition, OffsetAndMetadata(offset=offset))
        call = OffsetCommitCall(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=None,
            retention_time_ms=-1,
            api_version=9,
            topics=(OfTopic(name=partition.topic, partitions=(one,)),),
        )
        error: ErrorCode = self.ask(ApiKey.OFFSET_COMMIT, call).topics[0].partitions[0].error_code
        return error

    def heartbeat(self, epoch: int | None = None, **fields: Any) -> consumer.ConsumerGroupHeartbeatResponse:
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            **fields,
        )
        reply: consumer.ConsumerGroupHeartbeatResponse = self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if reply.error_code == 0:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.assignment = reply.assignment
        return reply

    def join(self, *topics: str, **fields: Any) -> consumer.ConsumerGroupHeartbeatResponse:
        return self.heartbeat(
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=topics,
            topic_partitions={},
            **fields,
        )

    def confirm(self) -> consumer.ConsumerGroupHeartbeatResponse:
        """Say that it owns what it was given."""
        return self.heartbeat(topic_partitions=self.assignment)


def kinds(kafka: EmbeddedKafka, kind: RowKind) -> list[Row]:
    """The rows of the trace that are of that kind."""
    return [row for row in kafka.events() if row.kind == kind]
