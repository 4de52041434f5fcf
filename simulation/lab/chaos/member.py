"""A member's program: a consumer of either protocol, and an application that behaves like the simulated one.

It polls, takes its time for each record, is slow or fails in callbacks on order, and ends gracefully or not
at all. It reports every event at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Any

from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord
from aiokafka.structs import TopicPartition as KafkaPartition

from fencepost.coordinator.codec.client import request_frame
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.codec.schema import response_reader
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest, MetadataRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, TopicPartition
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.base.leave import CloseOption
from fencepost.member.classic.assignors import ASSIGNORS
from fencepost.member.kafka.classic import ClassicConsumer
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.application import Behaviour, one_expression, runs
from fencepost.simulation.lab.chaos.event_channel import EventChannel, Orders, RealMemberObserver

_POLL_MS = 50
"""Time that one call of `getmany` waits, in ms; a stop or a stall is noticed within this time."""
_AFTER_ERROR_S = 0.1
_CLOSE_MS = 30_000


class RealMember:
    """The one member of this process, on the running loop."""

    def __init__(self, terms: m.Terms, telling: EventChannel, channel: socket.socket) -> None:
        self._terms = terms
        self._telling = telling
        self._behaviour = Behaviour(terms)
        self._stop: m.Stop | None = None
        self._stall_until_us = 0
        self._orders = Orders(channel)
        self._consumer: KIP848Consumer | None = None
        self._commits: set[asyncio.Future[None]] = set()
        self._processed: dict[KafkaPartition, int] = {}
        """The offset after the last processed record; kept for partitions that were taken away, until they
        return."""
        asyncio.get_running_loop().add_reader(channel, self._heed)

    # -- orders -------------------------------------------------------------------------------------------

    def _heed(self) -> None:
        for order in self._orders.read():
            match order:
                case m.Stop():
                    self._stop = order
                case m.SubscribeOrder(topics, pattern):
                    self._subscribe(topics, pattern)
                case m.Stall(until_us):
                    self._stall_until_us = max(until_us, self._stall_until_us)
                case m.SlowCallbackOrder(lasts_us):
                    self._behaviour.stall_us = max(lasts_us, self._behaviour.stall_us)
                case _:
                    self._behaviour.raises = True

    def _subscribe(self, topics: tuple[str, ...], pattern: str | None) -> None:
        if self._consumer is None:
            return
        if pattern is None:
            self._consumer.subscribe(topics)
        else:
            self._consumer.subscribe(pattern=one_expression(topics, pattern))

    # -- the program --------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run from start to stop."""
        consumer = await self._connect()
        if consumer is None:
            self._telling.say(m.Stopped, "")
            return
        self._consumer = consumer
        self._telling.say(m.Up, consumer.member_id, self._terms.protocol)
        self._subscribe(self._terms.topics, self._terms.pattern)
        error = await self._poll(consumer)
        forever = self._stop is not None and self._stop.forever
        if self._stop is not None:
            self._telling.say(m.Stopping, forever)
        try:
            await consumer.stop(
                CloseOption.LEAVE_GROUP if forever else CloseOption.DEFAULT, timeout_ms=_CLOSE_MS
            )
        except (KafkaError, CallbackFailed) as closing:
            error = error or type(closing).__name__
        self._telling.say(m.Stopped, error)

    async def _connect(self) -> KIP848Consumer | None:
        """Return a consumer that is connected to the cluster; None if an order stopped the program first."""
        while self._stop is None:
            consumer = self._make()
            try:
                await consumer.start()
            except KafkaError:
                await asyncio.sleep(_AFTER_ERROR_S)
            else:
                return consumer
        return None

    def _make(self) -> KIP848Consumer:
        terms = self._terms
        if terms.protocol == "classic":
            return ClassicConsumer(
                assignors=(ASSIGNORS[terms.strategy](),),
                session_timeout_ms=terms.session_timeout_ms,
                heartbeat_interval_ms=terms.heartbeat_interval_ms,
                metadata_max_age_ms=terms.metadata_max_age_ms,
                **self._settings(),
            )
        return KIP848Consumer(group_remote_assignor=terms.assignor, **self._settings())

    def _settings(self) -> dict[str, Any]:
        terms = self._terms
        return terms.client_settings | dict(
            group_instance_id=terms.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=terms.commit == "auto",
            auto_commit_interval_ms=terms.auto_commit_interval_ms,
            listener=self,
            observer=RealMemberObserver(self._telling, self._standing),
        )

    def _standing(self) -> tuple[int, tuple[TopicPartition, ...]]:
        consumer = self._consumer
        if consumer is None:
            return 0, ()
        owned = (TopicPartition(*partition) for partition in consumer.assignment())
        return consumer.member_epoch, tuple(sorted(owned))

    async def _poll(self, consumer: KIP848Consumer) -> str:
        """Poll and process until told to stop; return the error if a fatal one ended it."""
        while self._stop is None:
            try:
                taken = await consumer.getmany(timeout_ms=_POLL_MS)
            except (KafkaError, CallbackFailed) as error:
                if consumer.has_failed:
                    return type(error).__name__
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            await self._process(taken)
            if taken and self._terms.commit == "sync":
                await self._commit(consumer)
            elif taken and self._terms.commit == "async":
                self._commits.add(task := asyncio.ensure_future(self._commit(consumer)))
                task.add_done_callback(self._commits.discard)
        return ""

    async def _commit(self, consumer: KIP848Consumer) -> None:
        """Commit what is processed, as a callback may find a batch at work. The next commit covers one that
        fails."""
        owned = consumer.assignment()
        offsets = {partition: offset for partition, offset in self._processed.items() if partition in owned}
        if offsets:
            with contextlib.suppress(KafkaError):
                await consumer.commit(offsets)

    async def _process(self, taken: dict[KafkaPartition, list[ConsumerRecord]]) -> None:
        handed = [(TopicPartition(*each), run) for each, records in taken.items() for run in runs(records)]
        for partition, run in handed:
            self._telling.say(m.Delivered, partition, run[0].offset, run[-1].offset + 1)
        for partition, run in self._behaviour.flawed(handed):
            await self._sleep(self._behaviour.processing_us(len(run)))
            await self._sleep(self._stall_until_us - self._telling.now_us())
            numbers = tuple(int(record.value) for record in run)
            self._telling.say(m.Processed, partition, run[0].offset, run[-1].offset + 1, numbers)
        self._processed |= {partition: records[-1].offset + 1 for partition, records in taken.items()}
        if not handed:
            await self._sleep(self._stall_until_us - self._telling.now_us())

    async def _sleep(self, us: int) -> None:
        if us > 0:
            await asyncio.sleep(us / 1_000_000)

    # -- callbacks ----------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """Handle the application's callback. Other members may have processed more meanwhile."""
        for partition in partitions:
            self._processed.pop(partition, None)
        await self._callback()

    async def on_partitions_revoked(self, partitions: Iterable[KafkaPartition]) -> None:
        """Handle the application's callback. It commits, if that is left to the application."""
        if self._terms.commit != "auto" and self._consumer is not None:
            await self._commit(self._consumer)
        await self._callback()

    async def on_partitions_lost(self, partitions: Iterable[KafkaPartition]) -> None:
        """Handle the application's callback."""
        await self._callback()

    async def _callback(self) -> None:
        await self._sleep(self._behaviour.callback_us())
        self._behaviour.raise_if_told()


def prepare() -> None:
    """Load what the first requests of each process would load: a third of a second, each time."""
    join = ConsumerGroupHeartbeatRequest(
        group_id="", member_id="", member_epoch=0, subscribed_topic_names=(), topic_partitions=NO_PARTITIONS
    )
    requests: dict[ApiKey, tuple[tuple[int, ...], Any]] = {
        ApiKey.FIND_COORDINATOR: ((3, 6), FindCoordinatorRequest(keys=("",))),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ((1,), join),
        ApiKey.METADATA: ((12, 13), MetadataRequest(topics=())),
    }
    for key, (versions, request) in requests.items():
        for version in versions:
            request_frame(key, version, 0, "", request)
            response_reader(key, version)
    for key in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH):
        response_reader(key, 9)


def main(terms: m.Terms, channel: socket.socket) -> None:
    """Run that member until an order stops it. Orders arrive on the channel, and events go back."""

    async def live() -> None:
        await RealMember(terms, EventChannel(channel, terms.began_us), channel).live()

    asyncio.run(live())
