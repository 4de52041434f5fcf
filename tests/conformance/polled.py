"""Consumers of confluent-kafka that are polled by threads, for tests that look at their group meanwhile."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException

from fencepost import EmbeddedKafka

QUIET = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


class Polled:
    """A confluent-kafka consumer, polled by a thread as an application would do it."""

    def __init__(
        self, kafka: EmbeddedKafka, name: str, *, topics: tuple[str, ...] = ("orders",), **settings: Any
    ) -> None:
        self.lost: list[int] = []
        self.revoked: list[int] = []
        self.values: list[bytes] = []
        self._end = threading.Event()
        self._commits: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self.consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "g",
                "client.id": name,
                "auto.offset.reset": "earliest",
                **QUIET,
                **settings,
            }
        )
        self.consumer.subscribe(
            list(topics),
            on_lost=lambda consumer, partitions: self.lost.append(len(partitions)),
            on_revoke=lambda consumer, partitions: self.revoked.append(len(partitions)),
        )
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(queue.Empty):
                self._commit(self._commits.get_nowait())
            message = self.consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.values.append(message.value())
        self.consumer.close()

    def _commit(self, done: Future[None]) -> None:
        try:
            self.consumer.commit(asynchronous=False)
            done.set_result(None)
        except KafkaException as error:
            done.set_exception(error)

    def commit(self) -> None:
        """Commit between two polls: a commit beside a poll of another thread may never come back."""
        done: Future[None] = Future()
        self._commits.put(done)
        done.result(30)

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)


@contextmanager
def polled(kafka: EmbeddedKafka, *names: str, **settings: Any) -> Iterator[list[Polled]]:
    members = [Polled(kafka, name, **settings) for name in names]
    try:
        yield members
    finally:
        for member in members:
            member.end()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
