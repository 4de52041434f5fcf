"""A client that joins the group and makes every mistake that a member can make.

It sends what no correct member sends, next to correct heartbeats: epochs that it does not have, partitions
of others, and commits that it may not make. It releases at once what it has to release. At the end it leaves
twice, or without a word. Nothing is judged here: judges compare each response with the coordinator's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.member.base.transport import TransportError
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import Host

_BEATS: Final = 12
_TRIES: Final = 20
_PAUSE_US: Final = 1_000_000
_LIFE_US: Final = 30_000_000
"""The time after which it makes no more mistakes: responses may be slow, and the run has an end."""
_REBALANCE_TIMEOUT_MS: Final = 10_000


class ForeignMember:
    """One such client, from its join to its end."""

    def __init__(
        self, host: Host, way: SimulatedTransport, group_id: str, number: int, *, timeout_ms: int
    ) -> None:
        self._host = host
        self._way = way
        self._number = number
        self._timeout_ms = timeout_ms
        self._beat = ConsumerGroupHeartbeatRequest(
            group_id=group_id, member_id=f"foreign-{number}", member_epoch=ids.JOIN_EPOCH
        )
        self._epoch = ids.JOIN_EPOCH
        self._assigned: ids.Partitions = ids.NO_PARTITIONS

    async def live(self, image: TopicsImage) -> None:
        """Live the whole life, with the topics of this image. It ends early if the member is fenced."""
        everything = {topic.topic_id: tuple(range(topic.partitions)) for topic in image.by_name.values()}
        names = tuple(sorted(image.by_name))
        end_us = self._host.loop.now_us + _LIFE_US
        for _ in range(_BEATS):
            before = self._epoch
            if not await self._go_on(names):
                return
            commits = self._commits(ids.TopicPartition(names[0], 0))
            for request in (*self._mistakes(before, everything), *commits):
                if self._host.loop.now_us < end_us:
                    await self._send(request)
            await self._host.pause_us(_PAUSE_US)
            if self._host.loop.now_us >= end_us:
                break
        if self._number % 2:
            for _ in range(2):
                await self._send(msgspec.structs.replace(self._beat, member_epoch=ids.LEAVE_EPOCH))

    async def _go_on(self, names: tuple[str, ...]) -> bool:
        """Send a correct heartbeat, until it gets a response. Return true if it is accepted."""
        joins = self._epoch == ids.JOIN_EPOCH
        request = msgspec.structs.replace(
            self._beat,
            member_epoch=self._epoch,
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS if joins else -1,
            subscribed_topic_names=names if joins else None,
            topic_partitions=self._assigned,
        )
        for _ in range(_TRIES):
            response = await self._send(request)
            code = getattr(response, "error_code", ErrorCode.NOT_COORDINATOR)
            if isinstance(response, ConsumerGroupHeartbeatResponse) and code is ErrorCode.NONE:
                self._epoch = response.member_epoch
                if response.assignment is not None:
                    self._assigned = response.assignment
                return True
            if not code.retriable:
                return False
            await self._host.pause_us(_PAUSE_US)
            await self._find()
        return False

    def _mistakes(self, before: int, everything: ids.Partitions) -> Iterator[ConsumerGroupHeartbeatRequest]:
        """Yield wrong heartbeats; `before` is the epoch before the last correct one."""
        epoch = self._epoch
        changes: tuple[dict[str, Any], ...] = (
            {"member_epoch": epoch + 1},
            {"member_epoch": epoch + 1, "topic_partitions": everything},
            {"member_epoch": max(before, 1), "topic_partitions": everything},
            {"member_epoch": max(before - 1, 1), "topic_partitions": ids.NO_PARTITIONS},
            {"member_epoch": epoch, "member_id": "nobody"},
            {"member_epoch": ids.LEAVE_EPOCH, "member_id": "nobody"},
            {"member_epoch": epoch, "instance_id": "nobody"},
            {"member_epoch": -3},
            {
                "member_epoch": epoch,
                "topic_partitions": everything,
            },  # accepted: only its own count
            {"member_epoch": epoch},
        )
        for fields in changes:
            yield msgspec.structs.replace(self._beat, **fields)

    def _commits(self, place: ids.TopicPartition) -> Iterator[OffsetCommitRequest]:
        """Yield commits that no member may make."""
        own = self._beat.member_id
        for member_id, epoch in ((own, self._epoch + 1), ("nobody", self._epoch), (own, 0)):
            yield OffsetCommitRequest(
                group_id=self._beat.group_id,
                member_id=member_id,
                member_epoch=epoch,
                offsets={place: OffsetAndMetadata(offset=0)},
            )

    async def _send(self, request: object) -> Any:
        try:
            return await self._way.send(request, self._timeout_ms)
        except TransportError as error:
            return error

    async def _find(self) -> None:
        try:
            await self._way.find_coordinator(self._beat.group_id)
        except (TransportError, ProtocolError):
            await self._host.pause_us(_PAUSE_US)
