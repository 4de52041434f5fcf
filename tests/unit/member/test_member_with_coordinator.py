"""Members and the real coordinator, one method call apart: they settle, whatever the order of things."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetFetchRequest
from fencepost.coordinator.protocol.outcome import (
    Outcome,
    Request,
    ResolveRegularExpressions,
    Response,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.transport import Disconnected
from fencepost.member.consumer.driver import ConsumerDriver
from tests.hosting import steps_due

LATENCY_S = 0.001
FOO = Topic(topic_id="foo" + "A" * 19, name="foo", partitions=6)
BAR = Topic(topic_id="bar" + "A" * 19, name="bar", partitions=3)


class Cluster:
    """A coordinator with a journal, its timers on the loop, and a log of 100 records in each partition."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.journal = MemoryJournal()
        config = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=0)
        self.coordinator = GroupCoordinator(config)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.image = TopicsImage.of([FOO, BAR])
        self.process(TopicsChanged(image=self.image))

    @property
    def now_ms(self) -> int:
        return int(self.loop.time() * 1000 + 0.001)

    def process(self, event: Any) -> Outcome:
        steps_due(self.runtime, self.now_ms)
        outcome = self.runtime.step(event, self.now_ms)
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self.process(resolve(effect, self.coordinator.image))
        return outcome

    def change(self, image: TopicsImage) -> None:
        self.image = image
        self.process(TopicsChanged(image=image))

    @property
    def group(self) -> ConsumerGroup:
        return self.coordinator.groups["group"]


class DirectTransport:
    """The way to the cluster: a call after a moment. The next `lose` replies get lost on their way back."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lose = 0
        self.closed = False

    def _call(self, answer: Any) -> asyncio.Future[Any]:
        future = self.cluster.loop.create_future()

        def run() -> None:
            if future.done() or self.closed:
                return
            value = answer()
            if self.lose:
                self.lose -= 1
                future.set_exception(Disconnected("the reply is lost"))
            else:
                future.set_result(value)

        self.cluster.loop.call_later(LATENCY_S, run)
        return future

    def send(self, request: Request, timeout_ms: int) -> asyncio.Future[Response]:
        return self._call(lambda: self.cluster.process(request).reply)

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        return self._call(lambda: None)

    def topic_names(self, topic_ids: Iterable[str]) -> asyncio.Future[Mapping[str, str]]:
        image = self.cluster.image
        return self._call(lambda: {i: image.by_id[i].name for i in topic_ids if i in image.by_id})

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        return self._call(lambda: dict.fromkeys(partitions, 0 if earliest else 100))

    def close(self) -> None:
        self.closed = True


class Application:
    """A consumer that polls each 100 ms and takes up to ten records of each partition."""

    def __init__(self, cluster: Cluster, name: str, **config: Any) -> None:
        self.cluster = cluster
        self.transport = DirectTransport(cluster)
        self.listened: list[tuple[str, tuple[TopicPartition, ...]]] = []
        settings = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 1_000, **config}
        self.driver = ConsumerDriver(
            "group",
            name,
            self.transport,
            LoopClock(),
            listener=self,
            config=ConsumerConfig(**settings),
            rng=random.Random(name),
        )
        self.records: list[tuple[TopicPartition, int]] = []
        self.task: asyncio.Task[None] | None = None

    def start(self, *topics: str, pattern: str | None = None) -> Application:
        self.driver.subscribe(topics or (() if pattern else ("foo",)), pattern=pattern)
        self.task = asyncio.get_running_loop().create_task(self.run())
        return self

    async def run(self) -> None:
        while True:
            self.driver.poll_begin()
            await asyncio.sleep(0.1)
            taken = {p: min(100, at + 10) for p, at in self.driver.fetchable().items()}
            for partition, end in taken.items():
                start = self.driver.fetchable()[partition]
                self.records += [(partition, offset) for offset in range(start, end)]
            self.driver.poll_end(taken)

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.listened.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.listened.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.listened.append(("lost", partitions))

    def pause(self) -> None:
        """The application is busy and does not poll."""
        assert self.task is not None
        self.task.cancel()
        self.driver.poll_end({})

    async def stop(self, option: CloseOption = CloseOption.DEFAULT) -> None:
        self.pause()
        await self.driver.close(option)

    def crash(self) -> None:
        assert self.task is not None
        self.task.cancel()
        self.driver.abandon()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    yield Cluster()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def settled(cluster: Cluster, *applications: Application) -> None:
    """Everybody is STABLE at the group's epoch, owns the target, and together they own everything."""
    group = cluster.group
    assert group.state is GroupState.STABLE
    assert set(group.members) == {each.driver.member_id for each in applications}
    together: list[TopicPartition] = []
    for each in applications:
        driver = each.driver
        assert driver.state == "STABLE"
        assert driver.member_epoch == group.group_epoch
        target = group.targets[driver.member_id]
        owned = {
            TopicPartition(cluster.image.by_id[topic_id].name, n)
            for topic_id, numbers in target.items()
            for n in numbers
        }
        assert set(driver.assignment) == owned
        together += driver.assignment
    subscribed = {topic.name: topic for topic in cluster.image.by_name.values()}
    names = {partition.topic for partition in together}
    assert sorted(together) == sorted(
        TopicPartition(name, n) for name in names for n in range(subscribed[name].partitions)
    )


async def test_one_member_owns_everything(cluster: Cluster) -> None:
    one = Application(cluster, "one").start("foo", "bar")
    await asyncio.sleep(6)
    settled(cluster, one)
    assert len(one.driver.assignment) == 9
    assert set(one.driver.fetchable()) == set(one.driver.assignment)
    one.crash()


async def test_members_that_join_one_after_the_other_share(cluster: Cluster) -> None:
    applications = []
    for name in ("one", "two", "three"):
        applications.append(Application(cluster, name).start())
        await asyncio.sleep(20)
        settled(cluster, *applications)
    assert [len(each.driver.assignment) for each in applications] == [2, 2, 2]


async def test_members_that_join_together_share(cluster: Cluster) -> None:
    applications = [Application(cluster, name).start() for name in ("one", "two", "three")]
    await asyncio.sleep(30)
    settled(cluster, *applications)


async def test_nothing_is_read_twice_or_skipped_across_rebalances(cluster: Cluster) -> None:
    applications = [Application(cluster, "one").start()]
    await asyncio.sleep(0.35)
    applications.append(Application(cluster, "two").start())
    await asyncio.sleep(10)
    await applications[0].stop()
    await asyncio.sleep(30)
    settled(cluster, applications[1])
    read = sorted(record for each in applications for record in each.records)
    assert read == [(TopicPartition("foo", n), offset) for n in range(6) for offset in range(100)]


async def test_a_member_that_leaves_makes_room(cluster: Cluster) -> None:
    one, two = (Application(cluster, name).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    await two.stop()
    assert two.listened[-1][0] == "revoked"
    assert set(cluster.group.members) == {"one"}
    await asyncio.sleep(10)
    settled(cluster, one)


async def test_a_member_that_crashes_is_replaced_after_its_session(cluster: Cluster) -> None:
    one, two = (Application(cluster, name).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    two.crash()
    await asyncio.sleep(40)
    assert "two" in cluster.group.members
    await asyncio.sleep(20)
    settled(cluster, one)


async def test_a_member_that_is_not_polled_loses_its_partitions_and_comes_back(cluster: Cluster) -> None:
    one, two = (Application(cluster, name, max_poll_interval_ms=10_000).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    settled(cluster, one, two)
    two.pause()
    await asyncio.sleep(20)
    assert two.driver.state == "STALE"
    assert two.listened[-1][0] == "lost"
    settled(cluster, one)
    two.start()
    await asyncio.sleep(20)
    settled(cluster, one, two)


async def test_a_member_that_the_coordinator_fenced_joins_again(cluster: Cluster) -> None:
    one, two = (Application(cluster, name).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    cluster.process(LeaveGroupRequest(group_id="group", member_id="two"))
    await asyncio.sleep(30)
    assert [kind for kind, _ in two.listened].count("lost") == 1
    settled(cluster, one, two)


async def test_lost_replies_are_made_up_for(cluster: Cluster) -> None:
    one = Application(cluster, "one").start()
    await asyncio.sleep(6)
    two = Application(cluster, "two").start()
    for _ in range(20):
        one.transport.lose = two.transport.lose = 1
        await asyncio.sleep(1.7)
    await asyncio.sleep(60)
    settled(cluster, one, two)


async def test_a_subscription_change_takes_effect(cluster: Cluster) -> None:
    one, two = (Application(cluster, name).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    two.driver.subscribe(["bar"])
    await asyncio.sleep(20)
    assert {p.topic for p in one.driver.assignment} == {"foo"}
    assert {p.topic for p in two.driver.assignment} == {"bar"}
    settled(cluster, one, two)


async def test_a_pattern_follows_the_topics(cluster: Cluster) -> None:
    one = Application(cluster, "one").start(pattern="f.*")
    await asyncio.sleep(20)
    assert {p.topic for p in one.driver.assignment} == {"foo"}
    one.driver.subscribe(["bar"])
    await asyncio.sleep(20)
    assert {p.topic for p in one.driver.assignment} == {"bar"}


async def test_new_partitions_are_shared_out(cluster: Cluster) -> None:
    one, two = (Application(cluster, name).start() for name in ("one", "two"))
    await asyncio.sleep(20)
    grown = Topic(topic_id=FOO.topic_id, name="foo", partitions=10)
    cluster.change(cluster.image.with_topic(grown))
    await asyncio.sleep(20)
    settled(cluster, one, two)
    assert len(one.driver.assignment) + len(two.driver.assignment) == 10


async def test_a_static_member_keeps_its_partitions_over_a_restart(cluster: Cluster) -> None:
    one = Application(cluster, "one", group_instance_id="host-1").start()
    two = Application(cluster, "two", group_instance_id="host-2").start()
    await asyncio.sleep(20)
    before, epoch = two.driver.assignment, cluster.group.group_epoch
    await two.stop()
    assert cluster.group.members["two"].member_epoch == -2
    again = Application(cluster, "again", group_instance_id="host-2").start()
    await asyncio.sleep(20)
    assert again.driver.assignment == before
    assert cluster.group.group_epoch == epoch
    settled(cluster, one, again)


async def test_committed_positions_outlive_the_member(cluster: Cluster) -> None:
    one = Application(cluster, "one").start()
    await asyncio.sleep(5)
    await one.stop()
    reply = cluster.process(OffsetFetchRequest(group_id="group", partitions=None)).reply
    assert reply is not None
    assert {p: each.offset for p, each in reply.offsets.items()} == {  # type: ignore[union-attr]
        TopicPartition("foo", n): 100 for n in range(6)
    }
    assert reply.error_code is ErrorCode.NONE  # type: ignore[union-attr]
