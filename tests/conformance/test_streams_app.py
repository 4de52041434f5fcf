"""StreamsApp against brokers: records once the dust settles, failures of every kind, ends."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from fencepost import AuthenticationError, EmbeddedKafka, GlobalThread, StreamsApp
from fencepost import StreamClientState as S
from fencepost import StreamThreadExceptionResponse as Response
from fencepost import StreamThreadState as T
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


class Work:
    """A processing function that counts, and raises at values that it is told of, as often as it is told."""

    def __init__(self, **bad: BaseException) -> None:
        self.seen: Counter[str] = Counter()
        self.order: dict[int, list[int]] = {}
        self.bad = bad

    async def __call__(self, partition: Any, records: Sequence[Any]) -> None:
        for record in records:
            value = record.value.decode()
            if value in self.bad:
                raise self.bad.pop(value)
            self.seen[value] += 1
            self.order.setdefault(partition.partition, []).append(record.offset)


NO_DELAY = {"group.streams.initial.rebalance.delay.ms": 0}


@pytest.fixture
async def kafka() -> Any:
    async with EmbeddedKafka(topics={"orders": 6, "prices": 1}, config=NO_DELAY) as kafka:
        for number in range(60):
            kafka.produce("orders", f"v{number}", partition=number % 6)
        yield kafka


def app_on(kafka: Any, work: Any, **settings: Any) -> StreamsApp:
    settings = {"topics": ["orders"], "group_id": "billing", "threads": 3, **settings}
    return StreamsApp(work, bootstrap_servers=kafka.bootstrap_servers, **settings)


async def test_three_threads_share_the_partitions_and_commit(kafka: Any, tmp_path: Any) -> None:
    work = Work()
    states: list[S] = []
    app = app_on(kafka, work, state_dir=tmp_path)
    app.set_state_listener(lambda new, old: states.append(new))
    async with app:
        await until(lambda: len(work.seen) == 60 and app.state is S.RUNNING)
        assert app.is_connected
        assert set(app.threads.values()) == {T.RUNNING}
        assert await app.remove_thread(60) is not None
        assert app.add_thread() is not None
        await until(lambda: list(app.threads.values()).count(T.RUNNING) == 3)
    assert states[0] is S.REBALANCING
    assert states[-2:] == [S.PENDING_SHUTDOWN, S.NOT_RUNNING]
    assert set(work.seen.values()) == {1}
    assert all(offsets == list(range(10)) for offsets in work.order.values())
    again = Work()
    async with app_on(kafka, again, state_dir=tmp_path) as app:
        await until(lambda: app.state is S.RUNNING)
        kafka.produce("orders", "new", partition=0)
        await until(lambda: again.seen)
    assert again.seen == {"new": 1}


@pytest.mark.parametrize("protocol", ["streams", "consumer"])
@pytest.mark.parametrize("error", [ValueError("bad record"), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_thread_is_replaced_and_nothing_is_lost(
    kafka: Any, error: BaseException, protocol: str
) -> None:
    work = Work(v30=error)
    settings = {"handler": lambda error: Response.REPLACE_THREAD, "group_protocol": protocol}
    async with app_on(kafka, work, **settings) as app:
        await until(lambda: len(work.seen) == 60)
        await until(lambda: list(app.threads.values()).count(T.RUNNING) == 3)
        assert app.state in (S.RUNNING, S.REBALANCING)
    assert app.state is S.NOT_RUNNING
    assert kafka.check() == []


@pytest.mark.parametrize("protocol", ["streams", "consumer"])
async def test_one_client_fails_and_the_other_takes_over(kafka: Any, protocol: str) -> None:
    bad, good = Work(), Work()
    failing = app_on(kafka, bad, client_id="bad", group_protocol=protocol)
    async with app_on(kafka, good, client_id="good", group_protocol=protocol) as going_on:
        await until(lambda: going_on.state is S.RUNNING)
        await failing.start()
        # Until the group is stable, the good client may have all tasks.
        await kafka.group("billing").wait_stable(members=6, timeout=90)
        for number in range(6):
            bad.bad[f"x{number}"] = ValueError("bad record")
            kafka.produce("orders", f"x{number}", partition=number)
        async with asyncio.timeout(60):
            assert await failing.wait_ended() is S.ERROR
        assert set(failing.threads.values()) == {T.DEAD}
        await until(lambda: sum(good.seen[f"x{number}"] for number in range(6)) == 6)
        assert going_on.is_running
        assert await failing.close()
        assert failing.state is S.ERROR
    assert kafka.check() == []


async def shut_down(servers: str, produce: Callable[[str], Any], topic: str, **settings: Any) -> None:
    """Three clients with three threads each run until a handler shuts the application down."""
    works = [Work(boom=ValueError("fatal")) for _ in range(3)]
    apps = [
        StreamsApp(
            work,
            topics=[topic],
            group_id=f"group-{topic}",
            client_id=f"client-{number}",
            threads=3,
            handler=lambda error: Response.SHUTDOWN_APPLICATION,
            bootstrap_servers=servers,
            **settings,
        )
        for number, work in enumerate(works)
    ]
    try:
        for app in apps:
            await app.start()
        await until(lambda: sum(len(work.seen) for work in works) >= 60)
        await until(lambda: all(app.state is S.RUNNING for app in apps))
        await produce("boom")
        async with asyncio.timeout(120):
            assert [await app.wait_ended() for app in apps] == [S.ERROR] * 3
        assert {state for app in apps for state in app.threads.values()} == {T.DEAD}
        assert all(work.seen["boom"] == 0 for work in works)
    finally:
        for app in apps:
            await app.close(60)


async def test_a_handler_shuts_the_whole_application_down(kafka: Any) -> None:
    async def produce(value: str) -> None:
        kafka.produce("orders", value, partition=2)

    await shut_down(kafka.bootstrap_servers, produce, "orders")


async def test_a_handler_shuts_the_whole_application_down_on_kafka(cluster: Any) -> None:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 6, 1)])
        await admin.close()

        async def produce(value: str) -> None:
            await producer.send_and_wait(topic, value.encode(), partition=2)

        for number in range(60):
            await producer.send_and_wait(topic, f"v{number}".encode(), partition=number % 6)
        await shut_down(cluster.bootstrap_servers, produce, topic)


async def test_where_the_protocol_has_no_word_for_it_only_one_client_is_shut_down(kafka: Any) -> None:
    bad, good = Work(boom=ValueError("fatal")), Work(boom=ValueError("fatal"))
    settings = {"group_protocol": "consumer", "handler": lambda error: Response.SHUTDOWN_APPLICATION}
    one, other = app_on(kafka, bad, **settings), app_on(kafka, good, **settings)
    async with one, other:
        await until(lambda: one.state is S.RUNNING and other.state is S.RUNNING)
        kafka.produce("orders", "boom", partition=2)
        await until(lambda: S.ERROR in (one.state, other.state))
        # What failed comes again, to the other one, whose handler answers the same.
        await until(lambda: one.state is S.ERROR and other.state is S.ERROR)
    assert bad.bad == good.bad == {}


async def test_a_store_is_as_far_as_the_commits(kafka: Any, tmp_path: Any) -> None:
    async def count(partition: Any, records: Sequence[Any], store: Any) -> None:
        for _ in records:
            store.put("count", (store.get("count") or 0) + 1)
        counted[partition.partition] = store.get("count")

    counted: dict[int, int] = {}
    for round_ in (1, 2):
        async with app_on(kafka, count, state_dir=tmp_path, threads=2) as app:
            await until(lambda: sum(counted.values()) == 60 * round_)  # noqa: B023 - awaited in the loop
            assert app.metrics is not None
        for number in range(60):
            kafka.produce("orders", f"w{number}", partition=number % 6)
    assert counted == dict.fromkeys(range(6), 20)


async def test_the_global_thread_reads_everything_before_the_others_start(kafka: Any) -> None:
    read: list[bytes] = []

    async def remember(partition: Any, records: Sequence[Any]) -> None:
        read.extend(record.value for record in records)

    async def check(partition: Any, records: Sequence[Any]) -> None:
        assert len(read) >= 60
        done.extend(records)

    done: list[Any] = []
    async with app_on(kafka, check, global_thread=GlobalThread(["orders"], remember)) as app:
        assert len(read) == 60
        await until(lambda: len(done) == 60 and app.state is S.RUNNING)
    missing = app_on(kafka, check, global_thread=GlobalThread(["nowhere"], remember))
    with pytest.raises(LookupError, match="nowhere"):
        await missing.start()
    assert missing.state is S.ERROR


async def test_the_global_thread_reads_what_was_committed_if_threads_do(kafka: Any) -> None:
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id="writer"
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait("prices", b"committed")
        await producer.begin_transaction()
        await producer.send_and_wait("prices", b"aborted")
        await producer.abort_transaction()
    read: list[bytes] = []

    async def remember(partition: Any, records: Sequence[Any]) -> None:
        read.extend(record.value for record in records)

    async def nothing(partition: Any, records: Sequence[Any]) -> None:
        pass

    work = GlobalThread(["prices"], remember)
    async with app_on(kafka, nothing, global_thread=work, isolation_level="read_committed"):
        assert read == [b"committed"]


async def test_threads_are_changed_on_the_clients_event_loop_only(kafka: Any) -> None:
    app, loop = app_on(kafka, Work(), threads=1), asyncio.get_running_loop()
    async with app:
        await until(lambda: app.state is S.RUNNING)
        with pytest.raises(RuntimeError, match="add_thread should be called on the event loop"):
            await asyncio.to_thread(app.add_thread)
        for ending in (app.remove_thread, app.close):
            with pytest.raises(RuntimeError, match="should be called on the event loop"):
                await asyncio.to_thread(asyncio.run, ending())
        assert list(app.threads.values()) == [T.RUNNING]
        await asyncio.to_thread(loop.call_soon_threadsafe, app.add_thread)
        await until(lambda: list(app.threads.values()) == [T.RUNNING] * 2)
    assert app.state is S.NOT_RUNNING


async def test_without_a_broker_threads_are_disconnected_and_can_be_closed(unused_tcp_port: int) -> None:
    app = StreamsApp(
        Work(),
        topics=["orders"],
        group_id="billing",
        threads=2,
        bootstrap_servers=f"127.0.0.1:{unused_tcp_port}",
    )
    await app.start()
    await until(lambda: app.state is S.DISCONNECTED)
    assert set(app.threads.values()) == {T.DISCONNECTED}
    assert app.is_running
    assert not app.is_connected
    assert await app.close(60)
    assert app.state is S.NOT_RUNNING


@pytest.mark.parametrize("protocol", ["streams", "consumer", "classic"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_goes_to_the_handler(protocol: str, mechanism: str) -> None:
    asked: list[BaseException] = []

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.SHUTDOWN_CLIENT

    async with EmbeddedKafka(topics={"orders": 1}, users={"alice": "secret"}) as kafka:
        app = app_on(
            kafka,
            Work(),
            threads=1,
            handler=on_exception,
            group_protocol=protocol,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="wrong",
        )
        async with app:
            assert await asyncio.wait_for(app.wait_ended(), 20) is S.ERROR
    assert [type(error) for error in asked] == [AuthenticationError]
