"""A consumer that handles records in batches and commits each batch after it is handled.

The rebalance callbacks decide what happens to a batch that is not full yet. If a partition is revoked, its
batch is handled and committed before another member gets the partition. If a partition is lost, its batch is
dropped: another member may have read the same records already, and a commit would be refused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

Handler = Callable[[str, int, list[bytes]], None]
"""Takes a topic, a partition and the values of a batch."""


class BatchConsumer:
    """Reads topics in a group, and hands the records of each partition to a handler in batches."""

    def __init__(
        self, settings: dict[str, str | int], topics: list[str], handle: Handler, size: int = 100
    ) -> None:
        self._handle = handle
        self._size = size
        self._batches: dict[tuple[str, int], list[Message]] = {}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
        self._consumer.subscribe(topics, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, timeout: float) -> None:
        """Wait for one record at most `timeout` seconds, and handle its batch if that is full."""
        message = self._consumer.poll(timeout)
        if message is None:
            return
        if (error := message.error()) is not None:
            if error.fatal():
                raise KafkaException(error)
            return  # librdkafka retries all others itself
        partition = _partition(message)
        batch = self._batches.setdefault(partition, [])
        batch.append(message)
        if len(batch) >= self._size:
            self._finish(partition)

    @property
    def waiting(self) -> int:
        """The number of records that were read and are not handled yet."""
        return sum(map(len, self._batches.values()))

    def close(self) -> None:
        """Handle what was read, commit it, and leave the group."""
        self._consumer.close()  # calls _revoked

    def _finish(self, partition: tuple[str, int]) -> None:
        """Handle the batch of a partition, and commit it."""
        batch = self._batches.pop(partition, [])
        if batch:
            self._handle(*partition, [message.value() or b"" for message in batch])
            self._consumer.commit(message=batch[-1], asynchronous=False)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._finish((each.topic, each.partition))

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._batches.pop((each.topic, each.partition), None)


def _partition(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def main() -> None:
    """Print the size of each batch of the topic orders, until SIGTERM or Ctrl-C."""
    settings: dict[str, str | int] = {
        "bootstrap.servers": os.environ.get("KAFKA_SERVERS", "127.0.0.1:9092"),
        "group.id": "invoices",
        "group.protocol": "consumer",
    }

    def report(topic: str, partition: int, values: list[bytes]) -> None:
        print(topic, partition, len(values), flush=True)

    consumer = BatchConsumer(settings, ["orders"], report)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            consumer.poll(1.0)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
