"""Writes traces to a Kafka topic, one record per row. The key is the run, so a run's rows keep their order.

A separate thread holds the producer, which is idempotent: a row that is sent again after a lost response is
written once. A broker never blocks the caller that hands rows over, unless the caller wants to wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.brokers.blocking import require_topic
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.trace.documents import encode
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

OPTION: Final = "--trace-topic"
MOST_WAITING: Final = 200_000
"""Limit of the rows that wait for the broker: above it, a patient writer waits, and others drop rows."""
FLUSH_SECONDS: Final = 30.0
"""Time for which the broker may accept none of the waiting rows, in seconds."""
_LINGER_MS: Final = 20
_PAUSE_S: Final = 0.02
_AT_ONCE: Final = 1_000
_REQUEST_TIMEOUT_MS: Final = 10_000


class TraceTopic(NamedTuple):
    """The place of a trace: brokers as clients take them, the topic, and the security settings."""

    servers: str
    topic: str
    security: ClientSecurity = OPEN
    option: str = OPTION
    """The option that gave the place, for error messages."""

    @property
    def shown(self) -> str:
        """The place as it was given."""
        return f"{self.option} {self.servers}/{self.topic}"

    @classmethod
    def parse(cls, text: str, security: ClientSecurity = OPEN, option: str = OPTION) -> TraceTopic:
        """Return the place that HOST:PORT/TOPIC names; several brokers are separated by commas.

        :raises FencepostError: if the text names no such place.
        """
        servers, slash, topic = text.partition("/")
        if not slash or not servers or not topic:
            raise FencepostError(f"{option} {text}: expected HOST:PORT/TOPIC, such as 127.0.0.1:9092/traces")
        return cls(servers, topic, security, option)


class _Waiting(NamedTuple):
    run_id: str
    rows: Sequence[Row]
    began_ms: int | None
    """Start of the run by the clock, in ms; None if the run's time is not the clock's."""


class _Record(NamedTuple):
    run_id: str
    row: Row
    began_ms: int | None


class TopicWriter:
    """A producer of rows. If `patient`, `send` waits while too many rows are on their way; otherwise it drops
    rows.

    :raises FencepostError: if the place is invalid, the login is refused, or the topic does not exist.
    :raises EnvironmentLacks: if no broker answers.
    """

    def __init__(self, place: TraceTopic, *, patient: bool) -> None:
        require_topic(place.servers, place.topic, place.shown, place.security)
        self.place = place
        self.sent = 0
        """Rows that the broker has acknowledged."""
        self.dropped = 0
        self._patient = patient
        self._queue: deque[_Waiting] = deque()
        self._rest: deque[_Record] = deque()
        """The unsent rest of the part of the queue that is being sent."""
        self._waiting = 0
        self._room = threading.Condition()
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        self._thread = threading.Thread(target=self._run, name="fencepost-trace-topic", daemon=True)
        self._thread.start()

    def send(self, run_id: str, rows: Sequence[Row], began_ms: int | None = None) -> None:
        """Hand rows over. With `began_ms`, the start of the run, records have the time of their rows.

        :raises EnvironmentLacks: if a patient writer can't send its rows any more.
        """
        with self._room:
            if self._patient:
                self._wait_for_room()
            elif self._waiting >= MOST_WAITING or self._failure is not None:
                self.dropped += len(rows)
                return
            self._waiting += len(rows)
            self._queue.append(_Waiting(run_id, rows, began_ms))

    def close(self) -> None:
        """Send what waits, and end.

        :raises EnvironmentLacks: if rows could not be written.
        """
        self._closing.set()
        sent = -1
        while self._thread.is_alive() and self.sent != sent:  # waiting rows may take their time
            sent = self.sent
            self._thread.join(FLUSH_SECONDS)
        if self._thread.is_alive():
            with self._room:
                self._failure = self._failure or _stuck()
            self._abandon()
            self._thread.join()
        with self._room:
            self._raise_failure()
            if self.dropped:
                raise EnvironmentLacks(
                    f"{self.place.shown}: {self.dropped:,} rows were dropped, the broker took them too slowly"
                )

    def _abandon(self) -> None:
        loop, task = self._running.result()
        loop.call_soon_threadsafe(task.cancel)

    def _wait_for_room(self) -> None:
        sent = -1
        while self._waiting >= MOST_WAITING and self._failure is None:
            if not self._room.wait_for(lambda: self._waiting < MOST_WAITING, FLUSH_SECONDS):
                if self.sent == sent:
                    self._failure = _stuck()
                sent = self.sent
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            lost = self._waiting + self.dropped
            why = str(self._failure) or type(self._failure).__name__
            raise EnvironmentLacks(f"{self.place.shown}: {lost:,} rows were not written: {why}")

    # -- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except asyncio.CancelledError:
            return  # the caller that gave up knows why
        except Exception as error:
            with self._room:
                self._failure = self._failure or error
                self._room.notify_all()

    async def _produce(self) -> None:
        from aiokafka import AIOKafkaProducer

        task = asyncio.current_task()
        assert task is not None
        self._running.set_result((asyncio.get_running_loop(), task))
        producer = AIOKafkaProducer(
            bootstrap_servers=self.place.servers.split(","),
            client_id="fencepost-trace",
            enable_idempotence=True,
            linger_ms=_LINGER_MS,
            compression_type="gzip",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            **self.place.security.aiokafka(),
        )
        try:
            await producer.start()
            while True:
                closing = self._closing.is_set()
                while self._queue or self._rest:
                    await self._send(producer, tuple(islice(self._taken(), _AT_ONCE)))
                if closing:
                    return
                await asyncio.sleep(_PAUSE_S)
        except asyncio.CancelledError:
            # An idempotent producer never gives up by itself, and its `stop` would wait for it.
            await producer._sender.close()
            raise
        finally:
            await producer.stop()

    def _taken(self) -> Iterator[_Record]:
        """Yield the records that wait, and remove each from the queue."""
        while self._rest or self._queue:
            if not self._rest:
                run_id, rows, began_ms = self._queue.popleft()
                self._rest.extend(_Record(run_id, row, began_ms) for row in rows)
            yield self._rest.popleft()

    async def _send(self, producer: AIOKafkaProducer, records: Sequence[_Record]) -> None:
        sent = [
            await producer.send(
                self.place.topic,
                encode(run_id, row),
                key=run_id.encode(),
                timestamp_ms=None if began_ms is None else began_ms + row.t_us // 1_000,
            )
            for run_id, row, began_ms in records
        ]
        await asyncio.gather(*sent)
        with self._room:
            self._waiting -= len(sent)
            self.sent += len(sent)
            self._room.notify_all()


def _stuck() -> TimeoutError:
    return TimeoutError(f"the broker took none for {FLUSH_SECONDS:.0f} s")


class TopicTrace:
    """A topic as the place of one run's trace; closing it sends what waits.

    :raises FencepostError: if the login is refused, or the topic does not exist.
    :raises EnvironmentLacks: if no broker answers.
    """

    def __init__(self, place: TraceTopic, run_id: str) -> None:
        self.began_ms: int | None = None
        """Start of the run by the clock, in ms, if its time is the clock's; to be set before rows come."""
        self._run_id = run_id
        self._writer = TopicWriter(place, patient=True)

    def write(self, rows: Sequence[Row], /) -> None:
        """Send these rows.

        :raises EnvironmentLacks: if rows can't be written any more.
        """
        self._writer.send(self._run_id, rows, self.began_ms)

    def close(self) -> None:
        """Send what waits.

        :raises EnvironmentLacks: if rows could not be written.
        """
        self._writer.close()

    def __enter__(self) -> TopicTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
