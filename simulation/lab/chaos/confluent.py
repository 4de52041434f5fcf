"""A member's program with confluent-kafka's consumer, which joins as KIP-848 says (group.protocol=consumer).

It behaves like `member`. librdkafka hides its inside: there are no states and no requests to see, only
callbacks, records and commits. Offsets are stored for the next commit once their records are processed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.application import Behaviour, one_expression, runs
from fencepost.simulation.lab.chaos.event_channel import EventChannel, Orders

_POLL_S = 0.05


class _Record:
    """A message with its offset as a plain attribute."""

    __slots__ = ("number", "offset", "partition")

    def __init__(self, message: Message) -> None:
        topic, partition, offset, value = (
            message.topic(),
            message.partition(),
            message.offset(),
            message.value(),
        )
        assert topic is not None
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.partition = TopicPartition(topic, partition)
        self.offset = offset
        self.number = int(value)


class ConfluentMember:
    """The one member of this process."""

    def __init__(self, terms: m.Terms, telling: EventChannel, channel: socket.socket) -> None:
        self._terms = terms
        self._telling = telling
        self._behaviour = Behaviour(terms)
        self._stop = False
        self._stall_until_us = 0
        self._orders = Orders(channel)
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._commits = 0
        self._consumer = Consumer(self._settings())

    def _settings(self) -> dict[str, Any]:
        terms = self._terms
        settings = {
            "bootstrap.servers": terms.bootstrap_servers,
            "group.id": terms.group_id,
            "group.protocol": "consumer",
            "client.id": terms.name,
            "group.instance.id": terms.instance_id,
            "group.remote.assignor": terms.assignor,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": terms.commit == "auto",
            "auto.commit.interval.ms": terms.auto_commit_interval_ms,
            "enable.auto.offset.store": False,
            "max.poll.interval.ms": terms.max_poll_interval_ms,
            "socket.timeout.ms": terms.request_timeout_ms,
            "fetch.min.bytes": 1 << 20,
            "fetch.wait.max.ms": terms.gather_ms,
            "reconnect.backoff.max.ms": 1_000,
            "on_commit": self._committed,
            "log_level": 0,
        }
        return {name: value for name, value in settings.items() if value is not None}

    # -- orders -------------------------------------------------------------------------------------------

    def _heed(self) -> None:
        while self._selector.select(0):
            for order in self._orders.read():
                match order:
                    case m.Stop():
                        self._stop = True
                    case m.SubscribeOrder(topics, pattern):
                        self._subscribe(topics, pattern)
                    case m.Stall(until_us):
                        self._stall_until_us = until_us
                    case m.SlowCallbackOrder(lasts_us):
                        self._behaviour.stall_us = lasts_us

    def _subscribe(self, topics: tuple[str, ...], pattern: str | None) -> None:
        self._consumer.subscribe(
            subscribed(topics, pattern),
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    # -- the program --------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run from start to stop."""
        self._telling.say(m.Up, self._consumer.memberid())
        self._subscribe(self._terms.topics, self._terms.pattern)
        error = ""
        self._heed()
        while not self._stop and not error:
            error = self._poll()
            self._heed()
        if self._stop:
            self._telling.say(m.Stopping)
        self._consumer.close()
        self._telling.say(m.Stopped, error)

    def _poll(self) -> str:
        """Poll once and handle the result; return the error if a fatal one ended the consumer."""
        messages = self._consumer.consume(self._terms.max_poll_records, timeout=_POLL_S)
        # An error with this code does not report itself as fatal.
        errors = [error for each in messages if (error := each.error()) is not None]
        if any(error.code() == KafkaError._FATAL for error in errors):
            return "_FATAL"
        records = [_Record(each) for each in messages if each.error() is None]
        handed = [
            (partition, run)
            for partition, of_partition in groupby(
                sorted(records, key=lambda each: (each.partition, each.offset)),
                key=lambda each: each.partition,
            )
            for run in runs(list(of_partition))
        ]
        for partition, run in handed:
            self._telling.say(m.Delivered, partition, run[0].offset, run[-1].offset + 1)
        for partition, run in self._behaviour.flawed(handed):
            self._sleep(self._behaviour.processing_us(len(run)))
            self._sleep(self._stall_until_us - self._telling.now_us())
            end = run[-1].offset + 1
            numbers = tuple(record.number for record in run)
            self._telling.say(m.Processed, partition, run[0].offset, end, numbers)
            self._store(partition, end)
        if handed and self._terms.commit != "auto":
            self._commit(asynchronous=self._terms.commit == "async")
        if not handed:
            self._sleep(self._stall_until_us - self._telling.now_us())
        return ""

    def _commit(self, *, asynchronous: bool) -> None:
        """Commit everything that is stored; the next commit covers one that fails."""
        with contextlib.suppress(KafkaException):
            if asynchronous:
                self._consumer.commit(asynchronous=True)
            else:
                self._consumer.commit(asynchronous=False)

    def _store(self, partition: TopicPartition, end: int) -> None:
        try:
            self._consumer.store_offsets(offsets=[KafkaPartition(*partition, end)])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was taken away meanwhile
                raise

    def _sleep(self, us: int) -> None:
        if us > 0:
            time.sleep(us / 1_000_000)

    # -- callbacks ----------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._callback("assigned", partitions)

    def _revoked(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        if self._terms.commit != "auto":
            self._commit(asynchronous=False)
        self._callback("revoked", partitions)

    def _lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._callback("lost", partitions)

    def _callback(self, kind: str, partitions: list[KafkaPartition]) -> None:
        chosen = tuple(sorted(TopicPartition(each.topic, each.partition) for each in partitions))
        self._telling.say(m.CalledBack, kind, "begin", chosen)
        self._sleep(self._behaviour.callback_us())
        self._telling.say(m.CalledBack, kind, "end", chosen)

    def _committed(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        """Report the response to a commit. Its epoch is internal to librdkafka."""
        done = [each for each in partitions if each.offset >= 0]
        if not done:
            return
        self._commits += 1
        offsets = {
            TopicPartition(each.topic, each.partition): OffsetAndMetadata(offset=each.offset) for each in done
        }
        request = OffsetCommitRequest(
            group_id=self._terms.group_id, member_id=self._consumer.memberid() or "", offsets=offsets
        )
        if error is not None:
            self._telling.say(m.Committed, self._commits, request, None, str(error.name()))
            return
        codes = {TopicPartition(each.topic, each.partition): _code(each.error) for each in done}
        self._telling.say(m.Committed, self._commits, request, OffsetCommitResponse(errors=codes), "")


def subscribed(topics: tuple[str, ...], pattern: str | None) -> list[str]:
    """Return what to subscribe to; librdkafka takes a name that begins with ^ for an expression."""
    return [*topics] if pattern is None else [f"^({one_expression(topics, pattern)})$"]


def takes(pattern: str) -> bool:
    """Return true if librdkafka accepts such an expression; no broker is asked."""
    consumer = Consumer({"group.id": "unused", "group.protocol": "consumer", "log_level": 0})
    try:
        consumer.subscribe(subscribed((), pattern))
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def _code(error: KafkaError | None) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    try:
        return ErrorCode(error.code())
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def prepare() -> None:
    """Do nothing: there is nothing to load beforehand."""


def main(terms: m.Terms, channel: socket.socket) -> None:
    """Run that member until an order stops it. Orders arrive on the channel, and events go back."""
    ConfluentMember(terms, EventChannel(channel, terms.began_us), channel).live()
