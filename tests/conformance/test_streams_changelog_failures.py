"""Changelogs that can't be written or read: what passes is tried again, and all else goes to the handler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiokafka.admin
import pytest

from fencepost import AuthenticationError, EmbeddedKafka, StreamsApp, StreamsError
from fencepost import StreamClientState as S
from fencepost import StreamThreadExceptionResponse as Response
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.kafka.changelog import KafkaChangelog
from fencepost.member.streams.application.changelog import ChangelogUnavailable
from fencepost.member.streams.application.store import StateDirectory, TaskStore
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CONFIG = {"group.streams.initial.rebalance.delay.ms": 0}


async def remember(partition: Any, records: Sequence[Any], store: Any) -> None:
    for record in records:
        store.put("last", record.value * 2)


@pytest.mark.parametrize(("size", "limit"), [(700_000, 1_048_588), (1_000, 1_500)])
async def test_a_change_that_is_too_large_goes_to_the_handler(size: int, limit: int) -> None:
    """With the first pair the producer refuses it, with the second one the broker does."""
    asked: list[BaseException] = []

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.REPLACE_THREAD if len(asked) < 2 else Response.SHUTDOWN_CLIENT

    async with EmbeddedKafka(topics={"orders": 2}, config=CONFIG) as kafka:
        kafka.create_topic(
            "billing-orders-changelog",
            2,
            config={"cleanup.policy": "compact", "max.message.bytes": str(limit)},
        )
        app = StreamsApp(
            remember,
            topics=["orders"],
            group_id="billing",
            handler=on_exception,
            commit_interval_ms=50,
            bootstrap_servers=kafka.bootstrap_servers,
        )
        async with app:
            kafka.produce("orders", b"small", partition=0)
            kafka.produce("orders", b"small", partition=1)
            await until(lambda: len(kafka.group("billing").offsets()) == 2)
            kafka.produce("orders", b"x" * size, partition=0)
            assert await asyncio.wait_for(app.wait_ended(), 60) is S.ERROR
        assert [type(error) for error in asked] == [StreamsError] * 2
        assert "the store of orders-0 can't be written to billing-orders-changelog" in str(asked[0])
        assert kafka.group("billing").offsets() == {("orders", 0): 1, ("orders", 1): 1}


async def test_a_producer_is_as_good_as_new_after_a_change_that_was_too_large() -> None:
    asked: list[BaseException] = []
    async with EmbeddedKafka(topics={"orders": 1}, config=CONFIG) as kafka:
        kafka.create_topic(
            "billing-orders-changelog", 1, config={"cleanup.policy": "compact", "max.message.bytes": "1500"}
        )

        async def skip_large(partition: Any, records: Sequence[Any], store: Any) -> None:
            await remember(partition, [each for each in records if not asked or len(each.value) < 99], store)

        app = StreamsApp(
            skip_large,
            topics=["orders"],
            group_id="billing",
            handler=lambda error: (asked.append(error), Response.REPLACE_THREAD)[1],
            commit_interval_ms=50,
            bootstrap_servers=kafka.bootstrap_servers,
        )
        async with app:
            for number, value in enumerate([b"small", b"x" * 1_000, b"small again"], 1):
                kafka.produce("orders", value)
                await until(lambda: sum(kafka.group("billing").offsets().values()) == number, 15)  # noqa: B023
        assert len(asked) == 1
        assert kafka.records("billing-orders-changelog", 0)[-1].offset == 1


PLACE = TopicPartition("orders", 0)


async def restore(kafka: Any, *, creates: bool = False, **settings: Any) -> dict[Any, Any]:
    """What a new store has after one try to restore it."""
    settings = {"bootstrap_servers": kafka.bootstrap_servers, **settings}
    changelog = KafkaChangelog("billing", settings, creates=creates)
    directory = StateDirectory(None, "billing")
    directory.lock()
    try:
        store = directory.store(PLACE)
        await changelog.restore(PLACE, store)
        return dict(store.items())
    finally:
        directory.close()
        await changelog.close()


async def fill(kafka: Any) -> None:
    kafka.create_topic("billing-orders-changelog", 1)
    changelog = KafkaChangelog("billing", {"bootstrap_servers": kafka.bootstrap_servers}, creates=False)
    await changelog.write(PLACE, {"a": 1})
    await changelog.close()


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("FETCH", "TOPIC_AUTHORIZATION_FAILED"),
        ("LIST_OFFSETS", "TOPIC_AUTHORIZATION_FAILED"),
        ("LIST_OFFSETS", "UNSUPPORTED_VERSION"),
    ],
)
async def test_a_changelog_that_may_not_be_read_is_no_matter_of_time(api: str, code: str) -> None:
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        await fill(kafka)
        kafka.fail_next(api, code, times=100)
        with pytest.raises(
            StreamsError, match="the store of orders-0 can't be restored from billing-orders-ch"
        ):
            await restore(kafka)


@pytest.mark.parametrize("code", ["UNKNOWN_SERVER_ERROR", "OFFSET_NOT_AVAILABLE"])
async def test_what_may_pass_is_a_matter_of_time(code: str) -> None:
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        await fill(kafka)
        kafka.fail_next("LIST_OFFSETS", code)
        with pytest.raises(ChangelogUnavailable, match="billing-orders-changelog: "):
            await restore(kafka)
        assert await restore(kafka) == {"a": 1}


async def test_a_changelog_that_may_not_be_created_is_no_matter_of_time() -> None:
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        kafka.fail_next("CREATE_TOPICS", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(StreamsError, match="billing-orders-changelog can't be created"):
            await restore(kafka, creates=True)


async def test_a_changelog_that_grows_has_stores_of_new_partitions(tmp_path: Path) -> None:
    async with EmbeddedKafka(topics={"orders": 2, "billing-orders-changelog": 1}) as kafka:
        settings = {"bootstrap_servers": kafka.bootstrap_servers}
        changelog = KafkaChangelog("billing", settings, creates=False)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(changelog.close)
            first, second = TaskStore(tmp_path / "first"), TaskStore(tmp_path / "second")
            await changelog.restore(PLACE, first)
            place = TopicPartition("orders", 1)
            with pytest.raises(StreamsError, match="has 1 partitions, too few for partition 1 of orders"):
                await changelog.restore(place, second)
            await changelog.restore(PLACE, first)
            admin = aiokafka.admin.AIOKafkaAdminClient(**settings)
            await admin.start()
            stack.push_async_callback(admin.close)
            grown = aiokafka.admin.NewPartitions(total_count=2)
            await admin.create_partitions({"billing-orders-changelog": grown})
            await changelog.restore(place, second)
            assert await changelog.write(place, {"a": 1}) == 1


async def test_a_changelog_that_brokers_do_not_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.member.kafka.changelog._VISIBLE_S", 0.1)
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        with pytest.raises(ChangelogUnavailable, match="there is no topic billing-orders-changelog"):
            await restore(kafka)
        await fill(kafka)
        kafka.fail_next("METADATA", "TOPIC_AUTHORIZATION_FAILED", times=100)
        with pytest.raises(StreamsError, match="TopicAuthorizationFailedError: billing-orders-changelog"):
            await restore(kafka)


async def test_a_changelog_behind_a_password() -> None:
    async with EmbeddedKafka(topics={"orders": 1}, users={"alice": "secret"}) as kafka:
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "alice"}
        with pytest.raises(AuthenticationError, match=kafka.bootstrap_servers.rpartition(":")[0]):
            await restore(kafka, **login, sasl_mechanism="PLAIN", sasl_plain_password="wrong")


@pytest.mark.parametrize("protocol", ["streams", "consumer", "classic"])
async def test_a_changelog_that_may_not_be_read_goes_to_the_handler(protocol: str) -> None:
    asked: list[BaseException] = []

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.SHUTDOWN_CLIENT

    async with EmbeddedKafka(topics={"orders": 1}, config=CONFIG) as kafka:
        await fill(kafka)
        reader = f"aiokafka-{aiokafka.__version__}"
        kafka.fail_next("LIST_OFFSETS", "TOPIC_AUTHORIZATION_FAILED", reader, times=1_000)
        app = StreamsApp(
            remember,
            topics=["orders"],
            group_id="billing",
            handler=on_exception,
            group_protocol=protocol,
            bootstrap_servers=kafka.bootstrap_servers,
        )
        async with app:
            assert await asyncio.wait_for(app.wait_ended(), 20) is S.ERROR
        assert "can't be restored" in str(asked[0])
