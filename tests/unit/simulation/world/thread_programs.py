"""Programs with threads, as services have them, which a world runs in processes of their own."""

# as services are written

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import logging.handlers
import multiprocessing
import queue
import signal
import socket
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import aiosqlite
import confluent_kafka
import kafka
import prometheus_client
import requests
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.unit.simulation.world.own_programs import tell
from tests.unit.simulation.world.programs_of_users import consumer


def talks_between_threads() -> None:
    """Use what Python has for threads, each once."""
    found: queue.Queue[str] = queue.Queue(maxsize=2)
    ready, lock, allowed = threading.Event(), threading.RLock(), threading.Semaphore(2)
    together, local = threading.Barrier(3), threading.local()

    def work(number: int) -> None:
        local.number = number
        together.wait()
        ready.wait(5)
        with allowed, lock, lock:
            time.sleep(0.5)
            found.put(f"{local.number} at {time.monotonic():.1f}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    threading.Timer(1, ready.set).start()
    told = sorted(found.get(timeout=10).partition(" at ")[2] for _ in threads)
    try:
        found.get(timeout=2)
    except queue.Empty:
        told.append(f"empty at {time.monotonic():.1f}")
    for each in threads:
        each.join()
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        told += [str(each) for each in executor.map(lambda number: number * 2, range(3))]
    asyncio.run(tell(*told, any(each.is_alive() for each in threads)))


async def overlaps_in_an_executor() -> None:
    begin = time.monotonic()
    seen: list[int] = []

    def work(number: int) -> int:
        time.sleep(3 - number)
        seen.append(number)
        return number

    results = await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(3)))
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    await loop.run_in_executor(None, loop.call_soon_threadsafe, called.set)
    await called.wait()
    await tell(results, seen, round(time.monotonic() - begin, 1))


def locks_each_other_out() -> None:
    first, second = threading.Lock(), threading.Lock()

    def work() -> None:
        with second:
            time.sleep(1)
            first.acquire()

    thread = threading.Thread(target=work, name="other")
    thread.start()
    with first:
        time.sleep(0.5)
        with second:
            thread.join()


class Account:
    """A bug: the balance is read in one lock and written in another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.balance = 0

    def add(self) -> None:
        time.sleep(1)
        with self.lock:
            before = self.balance
        with self.lock:
            self.balance = before + 1


def loses_an_update() -> None:
    account = Account()
    threads = [threading.Thread(target=account.add) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    asyncio.run(tell(account.balance))


def fails_in_a_thread() -> None:
    """Use a library in a thread that no world can run."""
    thread = threading.Thread(target=lambda: confluent_kafka.Producer({}))
    thread.start()
    thread.join()


def stops_threads_by_a_signal() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    seen: list[float] = []

    def work() -> None:
        while not stopped.wait(0.25):
            seen.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    stopped.wait()
    thread.join()
    asyncio.run(tell(len(seen), "stopped"))


def receives_during_a_signal() -> None:
    """Block in `recv` while a signal comes, and then until the timeout."""
    signals: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
    near, far = socket.socketpair()

    def sends() -> None:
        time.sleep(2)
        far.send(b"late")

    thread = threading.Thread(target=sends)
    thread.start()
    found = near.recv(10)
    near.settimeout(3)
    try:
        near.recv(10)
    except TimeoutError:
        at = time.monotonic()
    thread.join()
    asyncio.run(tell(found.decode(), len(signals), round(at, 1)))


class OwnConnection(sqlite3.Connection):
    """A connection as a program extends it."""


def waits_for_a_database() -> None:
    """Use each way to write while another thread's transaction lasts."""

    def holds(name: str, begun: threading.Event) -> None:
        with sqlite3.connect(f"{name}.db") as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            begun.set()
            time.sleep(2)

    insert = "INSERT INTO orders VALUES (2)"
    ways: dict[str, Callable[[sqlite3.Connection], object]] = {
        "execute": lambda each: each.execute(insert),
        "executemany": lambda each: each.executemany("INSERT INTO orders VALUES (?)", [(2,), (3,)]),
        "executescript": lambda each: each.executescript(
            f"BEGIN; /* ; */ {insert}; COMMIT; {insert}; SELECT 1"
        ),
        "cursor": lambda each: each.cursor().executescript(f"{insert};"),
        "own": lambda each: each.execute(insert),
        "pragma": lambda each: each.execute("PRAGMA busy_timeout = 30000") and each.execute(insert),
        "backup": lambda each: sqlite3.connect("copy.db").backup(each),
        "late": lambda each: each.execute(insert),
    }
    seen: list[str] = []
    for name, way in ways.items():
        own: dict[str, Any] = {"factory": OwnConnection} if name == "own" else {}
        connection = sqlite3.connect(f"{name}.db", timeout=1 if name in ("late", "pragma") else 5, **own)
        assert isinstance(connection, OwnConnection if own else sqlite3.Connection)
        connection.execute("CREATE TABLE orders (number INTEGER)")
        connection.commit()
        begun = threading.Event()
        thread = threading.Thread(target=holds, args=(name, begun))
        thread.start()
        begun.wait()
        before = time.monotonic()
        try:
            way(connection)
            lasted = round(time.monotonic() - before)
            thread.join()
            connection.commit()
            count = (
                0 if name == "backup" else connection.execute("SELECT sum(number) FROM orders").fetchone()[0]
            )
            seen.append(f"{name} {lasted} {count}")
        except sqlite3.OperationalError as error:
            seen.append(f"{name} {error} {round(time.monotonic() - before)}")
            thread.join()
    asyncio.run(tell(*seen))


# -- libraries ---------------------------------------------------------------------------------------------


async def uses_aiosqlite() -> None:
    async with aiosqlite.connect("orders.db") as database:
        await database.execute("CREATE TABLE orders (number INTEGER)")
        await asyncio.gather(
            *(database.execute("INSERT INTO orders VALUES (?)", (number,)) for number in range(5))
        )
        await database.commit()
        async with database.execute("SELECT sum(number), datetime('now') FROM orders") as cursor:
            row = await cursor.fetchone()
    assert row is not None
    await tell(*row)


async def uses_sqlalchemy() -> None:
    """Write in two transactions at a time: the second waits for the first, as SQLite has it."""
    engine = create_async_engine("sqlite+aiosqlite:///orders.db", pool_size=2)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (number INTEGER)"))

    async def insert(number: int, seconds: float) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
            await asyncio.sleep(seconds)

    await asyncio.gather(insert(1, 2), insert(2, 0))
    at = time.monotonic()
    async with engine.connect() as connection:
        count = (await connection.execute(text("SELECT sum(number) FROM orders"))).scalar()
    await engine.dispose()
    await tell(count, 2 < at < 2.5)


def uses_a_queue_listener() -> None:
    found: queue.Queue[Any] = queue.Queue()
    kept: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(1)
            kept.append(f"{record.getMessage()} at {time.monotonic():.0f}")

    listener = logging.handlers.QueueListener(found, Keeps())
    listener.start()
    log = logging.getLogger("orders")
    log.addHandler(logging.handlers.QueueHandler(found))
    for number in range(3):
        log.warning("order %d", number)
    written = time.monotonic()
    listener.stop()
    asyncio.run(tell(*kept, written))


def uses_loguru(enqueue: bool) -> None:
    """Log from two threads to a sink that takes a second."""
    import loguru

    kept: list[str] = []

    def sink(message: Any) -> None:
        time.sleep(1)
        kept.append(f"{message.record['message']} at {message.record['time']:%S} {time.monotonic():.0f}")

    loguru.logger.remove()
    number = loguru.logger.add(sink, enqueue=enqueue)
    thread = threading.Thread(target=loguru.logger.info, args=("order 1",))
    thread.start()
    thread.join()
    loguru.logger.info("order {}", 2)
    written = time.monotonic()
    loguru.logger.complete()
    loguru.logger.remove(number)
    asyncio.run(tell(*kept, written))


def shares_as_processes_do() -> None:
    """Use what `multiprocessing` has, in one process."""
    orders: Any = multiprocessing.get_context("spawn").Queue(2)
    lock, seen = multiprocessing.Lock(), multiprocessing.Event()
    own = ["order"]

    def work() -> None:
        with lock:
            orders.put(own)
        seen.set()

    thread = threading.Thread(target=work)
    thread.start()
    found = orders.get(timeout=5)
    seen.wait()
    thread.join()
    told = [found, found is own, orders.empty()]
    orders.close()
    orders.join_thread()
    for use in (orders.put_nowait, lambda _: orders.get()):
        try:
            use(own)
        except ValueError as error:
            told.append(str(error).rpartition(" is ")[2])
    kinds: list[Any] = [multiprocessing.Lock, multiprocessing.RLock, multiprocessing.Condition]
    kinds += [multiprocessing.Semaphore, multiprocessing.BoundedSemaphore]
    taken: list[bool] = []
    for each in [kind() for kind in kinds]:

        def take(each: Any = each) -> None:
            taken.append(each.acquire(block=False) or each.acquire(False, 1) or each.acquire(True, -1))
            taken.append(each.acquire(timeout=1))
            each.acquire(True, None)
            each.release()

        assert each.acquire(block=True, timeout=None)
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(2)
        each.release()
        thread.join()
        with each:
            pass
    asyncio.run(tell(*told, any(taken), len(taken), f"{time.monotonic():.0f}"))


def forks() -> None:
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        executor.submit(print)


def joins_an_executor() -> None:
    """Tell the order in which an executor joins threads, which are in a set."""
    executor = concurrent.futures.ThreadPoolExecutor(8)
    everything_began = threading.Barrier(8)
    list(executor.map(lambda _: everything_began.wait(), range(8)))
    told_apart = [each.name.rpartition("_")[2] for each in executor._threads]
    executor.shutdown()
    asyncio.run(tell(*told_apart))


def uses_opentelemetry() -> None:
    exported: list[str] = []

    class Exporter(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            exported.append(f"{len(spans)} at {time.monotonic():.0f}")
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Exporter(), schedule_delay_millis=2000))
    tracer = provider.get_tracer("orders")
    for _ in range(5):
        with tracer.start_as_current_span("order"):
            time.sleep(1)
    provider.shutdown()
    asyncio.run(tell(*exported))


def serves_metrics() -> None:
    for machine in (prometheus_client.PROCESS_COLLECTOR, prometheus_client.GC_COLLECTOR):
        prometheus_client.REGISTRY.unregister(machine)  # they tell about the real machine
    prometheus_client.Counter("orders", "Orders.").inc(3)
    prometheus_client.start_http_server(8080)
    threading.Event().wait(60)


def asks_by_requests(host: str) -> None:
    while True:
        with contextlib.suppress(requests.ConnectionError):
            found = requests.get(f"http://{host}:8080/metrics", timeout=5).text
            break
        time.sleep(0.5)
    asyncio.run(tell("orders_total 3.0" in found or found))


class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes how long its callbacks are held, which another thread of the client calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.called.append("revoked")

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.called.append(f"assigned at {time.monotonic():.0f}")


class SlowListener(kafka.AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Notes its calls, which may take longer without harm: the client's loop goes on."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.called.append("revoked")

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.called.append(f"assigned at {time.monotonic():.0f}")

    async def on_partitions_lost(self, lost: Any) -> None:
        self.called.append(f"lost at {time.monotonic():.0f}")


def is_called_by_kafka_python() -> None:
    """Tell the calls to a listener in a minute, with a session that is shorter than a slow one."""
    polling = consumer(made=kafka.KafkaConsumer, session_timeout_ms=10_000, enable_auto_commit=True)
    listener = SlowListener()
    polling.subscribe(["orders"], listener=listener)
    while time.monotonic() < 60:
        polling.poll(timeout_ms=1000)
    polling.unsubscribe()
    asyncio.run(tell(*listener.called))


def copies_by_kafka_python() -> None:
    """Write an invoice for each order, with a client that blocks."""
    producer = kafka.KafkaProducer(bootstrap_servers="kafka:9092", acks="all")
    reading = consumer("orders", made=kafka.KafkaConsumer)
    for record in reading:
        producer.send("invoices", record.value, key=record.key).get(timeout=30)
        reading.commit()


def polls_by_kafka_python() -> None:
    """Tell when each order was read, and when partitions were assigned."""
    reading = consumer(made=kafka.KafkaConsumer, enable_auto_commit=True)
    listener = Listener()
    reading.subscribe(["orders"], listener=listener)
    found: list[str] = []
    while len(found) < 2:
        for records in reading.poll(timeout_ms=1000).values():
            found.extend(f"{record.value.decode()} at {time.monotonic():.0f}" for record in records)
    reading.close()
    asyncio.run(tell(listener.called[1], *found))


def asks_by_tls(host: str) -> None:
    """Use the blocking clients that people use, with addresses that need TLS."""
    time.sleep(1)
    found = [requests.get(f"https://{host}/", timeout=5).text]
    with urllib.request.urlopen(f"https://{host}/", timeout=5) as response:
        found.append(response.read().decode())
    producer = kafka.KafkaProducer(bootstrap_servers="kafka:9092", security_protocol="SSL")
    producer.send("told", " ".join(found).encode()).get(timeout=30)
    producer.close()
