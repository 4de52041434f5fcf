"""One service that commits in on_partitions_revoked, written for AIOKafkaConsumer, on both consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from fencepost import EmbeddedKafka, KIP848Consumer
from fencepost.member.base.errors import CallbackFailed
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CONSUMERS: dict[str, Callable[..., Any]] = {
    "aiokafka": lambda *topics, **settings: AIOKafkaConsumer(
        *topics, heartbeat_interval_ms=100, session_timeout_ms=6_000, **settings
    ),
    "fencepost": KIP848Consumer,
}
ALL = {TopicPartition("orders", 0): 2, TopicPartition("orders", 1): 1}


class Service(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads and commits as partitions go. It catches nothing in its callback."""

    def __init__(self, kafka: EmbeddedKafka, kind: str, name: str = "service", **settings: Any) -> None:
        self.kafka = kafka
        self.group = kafka.group("g")
        self.kind = kind
        self.names_offsets = False
        """True if it commits offsets of the revoked partitions, in place of all that it has read."""
        self.assigned = 0
        self.revoked: list[str] = []
        """What came of each commit in on_partitions_revoked that had something to commit."""
        self.raised: list[str] = []
        """What the service's loop was told."""
        self.before_commit: Callable[[], None] = lambda: None
        self.consumer = CONSUMERS[kind](
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            retry_backoff_ms=20,
            **settings,
        )
        self.consumer.subscribe(["orders"], listener=self)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += bool(assigned)

    async def on_partitions_revoked(self, revoked: Any) -> None:
        if not revoked:
            return  # aiokafka calls it before the first join
        self.before_commit()
        try:
            await self.consumer.commit({each: ALL[each] for each in revoked} if self.names_offsets else None)
        except Exception as error:
            self.revoked.append(type(error).__name__)
            raise
        self.revoked.append("committed")

    async def start(self) -> None:
        """Start, and read all that there is."""
        await self.consumer.start()
        count = 0
        async with asyncio.timeout(30):
            while count < sum(ALL.values()):
                count += await self.poll()

    async def poll(self) -> int:
        """Poll once; return the number of records."""
        try:
            taken = await self.consumer.getmany(timeout_ms=50)
        except Exception as error:
            self.raised.append(f"{type(error).__name__}: {error}")
            return 0
        return sum(map(len, taken.values()))

    async def until(self, done: Callable[[], bool]) -> None:
        """Poll until this is true."""
        async with asyncio.timeout(30):
            while not done():
                await self.poll()


@pytest.fixture
async def kafka() -> AsyncIterator[Any]:
    async with EmbeddedKafka(topics={"orders": 2}) as running:
        running.produce("orders", "a", "b", partition=0)
        running.produce("orders", "c", partition=1)
        yield running


async def another_joins(service: Service) -> None:
    other = CONSUMERS[service.kind](
        "orders", bootstrap_servers=service.kafka.bootstrap_servers, group_id="g", enable_auto_commit=False
    )
    starting = asyncio.ensure_future(other.start())
    await service.until(lambda: bool(service.revoked))
    await service.until(starting.done)
    await other.stop()


async def removed_while_it_commits(service: Service) -> None:
    def expire() -> None:
        service.before_commit = lambda: None
        service.group.expire("service")

    service.before_commit = expire
    await another_joins(service)


async def fenced(service: Service) -> None:
    service.group.fence("service")
    await service.until(lambda: service.assigned > 1)


async def expired(service: Service) -> None:
    service.group.expire("service")
    await service.until(lambda: service.assigned > 1)


async def not_polled(service: Service) -> None:
    await until(lambda: not service.group.members())
    await service.until(lambda: service.assigned > 1)


async def refused_for_good(service: Service) -> None:
    api = "ConsumerGroupHeartbeat" if service.kind == "fencepost" else "Heartbeat"
    service.kafka.fail_next(api, "GROUP_AUTHORIZATION_FAILED")
    await service.until(lambda: bool(service.raised))


async def unsubscribed(service: Service) -> None:
    left = service.consumer.unsubscribe()
    if left is not None:
        await left
    await until(lambda: not service.group.members())


async def stopped(service: Service) -> None:
    await service.consumer.stop()


COMMITTED, REFUSED = ["committed"], ["CommitFailedError"]
NOT_CALLED: list[str] = []

SITUATIONS: list[tuple[Callable[[Service], Any], list[str], list[str]]] = [
    # the situation, and what came of commit() in on_partitions_revoked: with aiokafka, and here
    (another_joins, COMMITTED, COMMITTED),
    (removed_while_it_commits, REFUSED, REFUSED),
    (fenced, COMMITTED, REFUSED),
    (expired, COMMITTED, REFUSED),
    (not_polled, COMMITTED, REFUSED),
    (refused_for_good, NOT_CALLED, REFUSED),
    (unsubscribed, NOT_CALLED, COMMITTED),
    (stopped, NOT_CALLED, COMMITTED),
]


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("names_offsets", [False, True], ids=["all", "given"])
@pytest.mark.parametrize(
    ("happens", "aiokafkas", "ours"), SITUATIONS, ids=[each[0].__name__ for each in SITUATIONS]
)
async def test_a_commit_in_on_partitions_revoked(
    kafka: EmbeddedKafka,
    happens: Callable[[Service], Any],
    aiokafkas: list[str],
    ours: list[str],
    names_offsets: bool,
    kind: str,
) -> None:
    settings = {"max_poll_interval_ms": 500} if happens is not_polled else {}
    service = Service(kafka, kind, **settings)
    service.names_offsets = names_offsets
    await service.start()
    await happens(service)
    committed = kafka.group("g").offsets()
    await service.consumer.stop()
    assert service.revoked[:1] == (aiokafkas if kind == "aiokafka" else ours)
    assert bool(committed) == (service.revoked[:1] == COMMITTED)
    assert committed.items() <= ALL.items()
    told = [each.split(":")[0] for each in service.raised]
    assert told == (["GroupAuthorizationFailedError"] if happens is refused_for_good else [])
    assert kafka.check() == []


class FailingService(Service):
    """Has a defect of its own in on_partitions_revoked."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        if revoked:
            self.revoked.append("failed")
            raise KeyError("not saved")


async def test_another_failure_for_lost_partitions_names_the_method_that_the_service_wrote(
    kafka: EmbeddedKafka,
) -> None:
    service = FailingService(kafka, "fencepost")
    await service.start()
    await fenced(service)
    assert service.raised == ["CallbackFailed: on_partitions_revoked raised KeyError('not saved')"]
    with pytest.raises(CallbackFailed, match="on_partitions_revoked raised KeyError"):
        await service.consumer.stop()


class LosingService(Service):
    """Knows lost partitions from revoked ones, and commits all the same."""

    async def on_partitions_lost(self, lost: Any) -> None:
        await self.on_partitions_revoked(lost)


async def test_a_listener_that_knows_lost_partitions_is_told_of_its_failed_commit(
    kafka: EmbeddedKafka,
) -> None:
    service = LosingService(kafka, "fencepost")
    await service.start()
    await fenced(service)
    assert [each.split("(")[0] for each in service.raised] == [
        "CallbackFailed: on_partitions_lost raised CommitFailedError"
    ]
    await service.consumer.stop()
