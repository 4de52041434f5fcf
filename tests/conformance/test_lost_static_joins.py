"""Static members whose instance id a broker keeps for them: at our broker and at Kafka's, through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from fencepost import EmbeddedKafka, KIP848Consumer, StreamsApp
from fencepost import StreamClientState as S
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import STATIC_LEAVE_EPOCH
from fencepost.simulation.kernel.rules import Direction, Matching, dropping
from tests.conformance.proxied import Site
from tests.unit.simulation.wire_member import WireMember
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def consumer_of(site: Site, topic: str, name: str) -> KIP848Consumer:
    return KIP848Consumer(
        topic,
        bootstrap_servers=site.servers,
        group_id=site.group,
        group_instance_id="host-1",
        client_id=name,
        request_timeout_ms=2_000,
    )


def lose_the_response_to_a_join(site: Site) -> None:
    lose_the_response_to(0, site)


def lose_the_response_to(epoch: int, site: Site) -> None:
    """Lose the response to the next heartbeat with that epoch: the broker has handled it."""
    rule = Matching(
        dropping,
        direction=Direction.RESPONSE,
        kinds=(ConsumerGroupHeartbeatRequest,),
        condition=lambda message: message.request.member_epoch == epoch,  # type: ignore[attr-defined]
        limit=1,
    )
    site.proxy.rules.append(rule)


async def test_a_lost_response_to_the_join_locks_nobody_out(site: Site) -> None:
    topic = await site.topic(2)
    async with site.consumer("ours", topic, "first"):
        pass  # the coordinator is loaded: what gets lost is a join that it took
    lose_the_response_to_a_join(site)
    consumer = consumer_of(site, topic, "m1")
    await consumer.start()
    try:
        await until(lambda: len(consumer.assignment()) == 2)
        sent = [
            request.member_epoch
            for member, _, request, _ in site.seen.requests
            if member == "m1" and isinstance(request, ConsumerGroupHeartbeatRequest)
        ]
        assert sent[:4] == [0, 0, -2, 0]
    finally:
        await consumer.stop()


def answers(site: Site, member: str) -> list[tuple[int, ErrorCode]]:
    """The responses to a member's joins and leaves: the epoch that it sent, and the error."""
    return [
        (request.member_epoch, response.error_code)  # type: ignore[attr-defined]
        for name, request, response in site.seen.responses
        if name == member and isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch <= 0
    ]


@pytest.mark.long
async def test_the_response_to_the_leave_may_be_lost_as_well(site: Site) -> None:
    topic = await site.topic(2)
    async with site.consumer("ours", topic, "first"):
        pass
    lose_the_response_to_a_join(site)
    lose_the_response_to(STATIC_LEAVE_EPOCH, site)
    async with site.consumer("ours", topic, group_instance_id="host-1") as reading:
        await site.produce(topic, range(20))
        await reading.has(range(20))
        assert all(rule.spent for rule in site.proxy.rules if isinstance(rule, Matching))
        assert answers(site, "m1")[0] == (0, ErrorCode.UNRELEASED_INSTANCE_ID)
        assert answers(site, "m1")[-1] == (0, ErrorCode.NONE)


async def test_a_member_that_a_broker_fences_frees_its_id(site: Site) -> None:
    topic, other = await site.topic(2), await site.topic(2)
    async with site.consumer("ours", topic, group_instance_id="host-1") as reading:
        await site.produce(topic, range(20))
        await reading.has(range(20))
        # Another connection speaks in the member's name, and takes its epoch to where the member is not.
        (host, port), *_ = site.upstreams.values()
        stranger = WireMember(f"{host}:{port}", site.group, reading.consumer.member_id)
        with contextlib.closing(stranger):
            for response in (
                stranger.heartbeat(STATIC_LEAVE_EPOCH, instance_id="host-1"),
                stranger.join(topic, other, instance_id="host-1"),
            ):
                assert response.error_code is ErrorCode.NONE
        await until(lambda: len(answers(site, "m1")) == 4)
        await site.produce(topic, range(20, 40))
        await reading.has(range(40))
        assert answers(site, "m1") == [
            (0, ErrorCode.NONE),
            (0, ErrorCode.UNRELEASED_INSTANCE_ID),
            (STATIC_LEAVE_EPOCH, ErrorCode.NONE),
            (0, ErrorCode.NONE),
        ]


async def test_a_second_process_with_the_id_is_refused_and_the_first_one_goes_on(site: Site) -> None:
    topic = await site.topic(2)
    first, second = consumer_of(site, topic, "m1"), consumer_of(site, topic, "m2")
    await first.start()
    try:
        await until(lambda: len(first.assignment()) == 2)
        lose_the_response_to_a_join(site)
        with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
            await second.start()
        await second.stop()
        epoch = first.member_epoch
        await asyncio.sleep(1)
        assert (first.member_epoch, len(first.assignment())) == (epoch, 2)
    finally:
        await first.stop()


async def test_a_fenced_static_member_comes_back_to_its_partitions() -> None:
    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        group = kafka.group("g")
        consumers = [
            KIP848Consumer(
                "orders",
                bootstrap_servers=kafka.bootstrap_servers,
                group_id="g",
                group_instance_id=name,
                client_id=name,
            )
            for name in ("one", "two")
        ]
        for each in consumers:
            await each.start()
        reading = [asyncio.create_task(_read(each)) for each in consumers]
        before = {m.instance_id: m.assignment for m in await group.wait_stable(members=2)}
        group.fence("one")
        members = group.members()
        assert [m.instance_id for m in members] == [m.instance_id for m in members if m.epoch >= 0], (
            "Kafka keeps a fenced static member"
        )
        await until(lambda: any((row.actor, row.state_to) == ("fence", "met") for row in kafka.events()))
        after = {m.instance_id: m.assignment for m in await group.wait_stable(members=2)}
        assert after == before
        for task in reading:
            task.cancel()
        for each in consumers:
            await each.stop()
        assert kafka.check() == []


async def _read(consumer: KIP848Consumer) -> None:
    async for _ in consumer:
        pass


async def test_threads_of_a_streams_app_survive_a_lost_join() -> None:
    seen: list[Any] = []

    async def work(partition: Any, records: Sequence[Any]) -> None:
        seen.extend(record.value for record in records)

    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        for number in range(20):
            kafka.produce("orders", f"v{number}", partition=number % 4)
        kafka.lose_next_response("ConsumerGroupHeartbeat")
        app = StreamsApp(
            work,
            bootstrap_servers=kafka.bootstrap_servers,
            topics=["orders"],
            group_id="g",
            group_protocol="consumer",
            group_instance_id="app",
            threads=2,
        )
        await app.start()
        await until(lambda: len(seen) >= 20)
        await until(lambda: app.state is S.RUNNING)
        kafka.group("g").fence(kafka.group("g").members()[0])
        for number in range(20, 40):
            kafka.produce("orders", f"v{number}", partition=number % 4)
        await until(lambda: len(set(seen)) == 40)
        await until(lambda: app.state is S.RUNNING)
        await app.close()
