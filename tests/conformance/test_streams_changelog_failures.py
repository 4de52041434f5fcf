"""Changelogs that brokers take nothing of: what passes is tried again, and all else goes to the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fencepost.member import StreamClientState as S
from fencepost.member import StreamsApp, StreamsError
from fencepost.member import StreamThreadExceptionResponse as Response
from fencepost.simulation.embedded import EmbeddedKafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CONFIG = {"group.streams.initial.rebalance.delay.ms": 0}


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the broker is in another thread
            await asyncio.sleep(0.02)


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
