"""A consumer's driver between a transport under a script, and a listener and an observer that take notes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.consumer.driver import ConsumerDriver

FOO = "foo-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
LATENCY_S = 0.01


class ScriptedTransport:
    """Answers after a moment: heartbeats with what the test put into `answers`, else with "as before"."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests: list[Any] = []
        self.answers: list[Any] = []
        self.commit_error = ErrorCode.NONE
        self.lookups: list[Exception | None] = []
        self.closed = False
        self.silent = False

    def _later(self, value: Any) -> asyncio.Future[Any]:
        future = self.loop.create_future()

        def answer() -> None:
            if future.done():
                return
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

        if not self.silent:
            self.loop.call_later(LATENCY_S, answer)
        return future

    def send(self, request: Request, timeout_ms: int) -> asyncio.Future[Response]:
        assert timeout_ms == 30_000
        self.requests.append(request)
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            if request.member_epoch < 0:
                return self._later(ConsumerGroupHeartbeatResponse(member_epoch=request.member_epoch))
            answer = self.answers.pop(0) if self.answers else {}
            if isinstance(answer, Exception):
                return self._later(answer)
            fields = {"member_epoch": request.member_epoch or 2, "heartbeat_interval_ms": 5_000, **answer}
            return self._later(ConsumerGroupHeartbeatResponse(**fields))
        if isinstance(request, OffsetCommitRequest):
            if isinstance(self.commit_error, Exception):
                return self._later(self.commit_error)
            return self._later(OffsetCommitResponse(errors=dict.fromkeys(request.offsets, self.commit_error)))
        found = dict.fromkeys(getattr(request, "partitions", None) or (), OffsetAndMetadata(offset=-1))
        return self._later(OffsetFetchResponse(group_id="group", offsets=found))

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        assert group_id == "group"
        return self._later(self.lookups.pop(0) if self.lookups else None)

    def topic_names(self, topic_ids: Iterable[str]) -> asyncio.Future[Mapping[str, str]]:
        return self._later({topic_id: topic_id.removesuffix("-id") for topic_id in topic_ids})

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        return self._later(dict.fromkeys(partitions, 3 if earliest else 90))

    def offsets_by_duration(
        self, partitions: Iterable[TopicPartition], duration_ms: int
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        return self._later(dict.fromkeys(partitions, duration_ms))

    def close(self) -> None:
        self.closed = True

    @property
    def heartbeats(self) -> list[ConsumerGroupHeartbeatRequest]:
        return [request for request in self.requests if isinstance(request, ConsumerGroupHeartbeatRequest)]


class Listener:
    """Notes its calls; takes its time and raises if it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def _call(self, kind: str, partitions: tuple[TopicPartition, ...]) -> None:
        self.calls.append((kind, partitions))
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    async def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        await self._call("assigned", partitions)

    async def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        await self._call("revoked", partitions)

    async def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        await self._call("lost", partitions)


class Observer:
    """Notes everything that an observer is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*args: Any) -> None:
            self.seen.append((name, *args))

        return note


class Rig:
    def __init__(self, **config: Any) -> None:
        self.transport = ScriptedTransport()
        self.listener = Listener()
        self.observer = Observer()
        self.driver = ConsumerDriver(
            "group",
            "member",
            self.transport,
            LoopClock(),
            listener=self.listener,
            config=ConsumerConfig(**{"auto_offset_reset": "earliest", **config}),
            rng=random.Random(1),
            observer=self.observer,
        )

    async def stable(self, *numbers: int) -> None:
        self.transport.answers.append({"assignment": {FOO: numbers} if numbers else {}})
        self.driver.subscribe(["foo"])
        self.driver.poll_begin()
        await asyncio.sleep(0.2)
        assert self.driver.state == "STABLE"
