"""Classic members and the real coordinator, one method call apart, while requests and hosts get lost."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetFetchRequest
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.driver import ClassicDriver
from tests.hosting import steps_due

FOO = Topic(topic_id="foo" + "A" * 19, name="foo", partitions=8)
RECORDS = 100
CONFIG = {
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 10_000,
    "request_timeout_ms": 4_000,
    "auto_commit_interval_ms": 1_000,
}


class Cluster:
    """A coordinator with a journal, its timers on the loop, and logs of 100 records."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.journal = MemoryJournal()
        self.tokens = 0
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.armed_ms = 0
        self._load()

    def _load(self) -> None:
        config = GroupCoordinatorConfig(
            group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=500
        )
        self.coordinator = GroupCoordinator(config)
        self.coordinator.replay(self.journal, self.now_ms)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.process(TopicsChanged(image=TopicsImage.of([FOO])))

    @property
    def now_ms(self) -> int:
        return int(self.loop.time() * 1000 + 0.001)

    def process(self, event: Any) -> Outcome:
        self._run_due()
        outcome = self.runtime.step(event, self.now_ms)
        self._answer(outcome)
        self._arm()
        return outcome

    def _run_due(self) -> None:
        for outcome in steps_due(self.runtime, self.now_ms):
            self._answer(outcome)

    def _arm(self) -> None:
        due_ms = self.coordinator.next_deadline()
        if due_ms is not None and not self.now_ms < self.armed_ms <= due_ms:
            self.armed_ms = due_ms
            self.loop.call_at(due_ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._run_due()
        self._arm()

    def _answer(self, outcome: Outcome) -> None:
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse):
                future = self.waiting.pop(effect.token, None)
                if future is not None and not future.done():
                    future.set_result(effect.response)

    def ask(self, request: Any, future: asyncio.Future[Any]) -> None:
        """Answer a request now, or when its time has come."""
        self.tokens += 1
        if isinstance(request, JoinGroupRequest):
            request = msgspec.structs.replace(
                request, token=self.tokens, new_member_suffix=str(self.tokens), client_host="/here"
            )
        elif isinstance(request, SyncGroupRequest):
            request = msgspec.structs.replace(request, token=self.tokens)
        self.waiting[self.tokens] = future
        reply = self.process(request).reply
        if reply is not None and self.waiting.pop(self.tokens, None) and not future.done():
            future.set_result(reply)

    def fail_over(self) -> None:
        """Another host loads the journal; what waits is not answered."""
        waiting, self.waiting = self.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Disconnected("the host is gone"))
        self._load()

    def has_member(self, member_id: str) -> bool:
        group = self.coordinator.classic.groups.get("group")
        return group is not None and member_id in group.members


class DirectTransport:
    """The way to the cluster: a call after a moment. Requests and replies may get lost."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lose_requests = self.lose_replies = 0
        self.closed = False

    def send(self, request: Any, timeout_ms: int) -> asyncio.Future[Any]:
        loop = self.cluster.loop
        answer: asyncio.Future[Any] = loop.create_future()
        received: asyncio.Future[Any] = loop.create_future()

        def arrive() -> None:
            if self.lose_requests:
                self.lose_requests -= 1
                received.set_exception(Disconnected("the request is lost"))
            else:
                self.cluster.ask(request, received)

        def come_back(_: Any) -> None:
            error = received.exception()
            if self.lose_replies:
                self.lose_replies -= 1
                error = Disconnected("the reply is lost")
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(received.result())

        def give_up() -> None:
            if not answer.done():
                answer.set_exception(RequestTimedOut("no answer"))

        loop.call_later(0.001, arrive)
        received.add_done_callback(lambda future: loop.call_later(0.001, come_back, future))
        loop.call_later(timeout_ms / 1000, give_up)
        return answer

    def _now(self, value: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.cluster.loop.create_future()
        self.cluster.loop.call_later(0.001, lambda: future.done() or future.set_result(value))
        return future

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        return self._now(None)

    def topic_names(self, topic_ids: Iterable[str]) -> asyncio.Future[Mapping[str, str]]:
        return self._now({})

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        return self._now(dict.fromkeys(partitions, 0 if earliest else RECORDS))

    def partition_counts(self, topics: Iterable[str]) -> asyncio.Future[Mapping[str, int]]:
        return self._now({"foo": FOO.partitions})

    def close(self) -> None:
        self.closed = True


class World:
    """A cluster, the applications in its group, and who owns what in their own eyes."""

    def __init__(self, seed: int, *, cooperative: bool) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster()
        self.cooperative = cooperative
        self.apps: list[Application] = []
        self.seen: dict[TopicPartition, set[int]] = {}
        self.started = 0

    def start(self) -> None:
        self.started += 1
        self.apps.append(Application(self, self.started))

    async def live(self, seconds: float) -> None:
        """Faults, one after the other, for that long."""
        end = self.cluster.loop.time() + seconds
        while self.cluster.loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.05, 3))
            app = self.rng.choice(self.apps)
            match self.rng.choice(["requests", "replies", "crash", "start", "stop", "pause", "slow", "over"]):
                case "requests":
                    app.transport.lose_requests = self.rng.randint(1, 3)
                case "replies":
                    app.transport.lose_replies = self.rng.randint(1, 3)
                case "crash" if len(self.apps) > 1:
                    app.crash()
                case "stop" if len(self.apps) > 1:
                    await app.stop()
                case "start" if len(self.apps) < 5:
                    self.start()
                case "pause":
                    app.busy_s = self.rng.choice([1, 15])
                case "slow":
                    app.callback_s = self.rng.choice([0, 0.5, 3])
                case "over":
                    self.cluster.fail_over()
        for app in self.apps:
            app.callback_s = 0
            app.transport.lose_requests = app.transport.lose_replies = 0


class Application:
    """A consumer that polls each 200 ms and takes up to five records of each partition."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.transport = DirectTransport(world.cluster)
        self.owned: set[TopicPartition] = set()
        self.busy_s = self.callback_s = 0.0
        process = uuid.UUID(int=number // 2)
        assignor: Any = StreamsAssignor(process, (("foo",),)) if world.cooperative else RangeAssignor()
        self.driver = ClassicDriver(
            "group",
            self.transport,
            LoopClock(),
            assignors=(assignor,),
            listener=self,
            config=ClassicConfig(**CONFIG),  # type: ignore[arg-type]
            rng=random.Random(world.rng.random()),
        )
        self.driver.subscribe(("foo",))
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        while True:
            self.driver.poll_begin()
            await asyncio.sleep(0.2)
            taken = {}
            for partition, at in self.driver.fetchable().items():
                taken[partition] = min(RECORDS, at + 5)
                self.world.seen.setdefault(partition, set()).update(range(at, taken[partition]))
            self.driver.poll_end(taken)
            busy_s, self.busy_s = self.busy_s, 0
            await asyncio.sleep(busy_s)

    async def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        for other in self.world.apps:
            if other is not self and other.owned & set(partitions):
                member_id = other.driver.member_id
                assert not self.world.cluster.has_member(member_id), f"two owners of {partitions}"
        self.owned |= set(partitions)
        await asyncio.sleep(self.callback_s)

    async def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        assert set(partitions) <= self.owned
        await asyncio.sleep(self.callback_s)
        self.owned -= set(partitions)

    async def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        assert set(partitions) == self.owned
        await asyncio.sleep(self.callback_s)
        self.owned.clear()

    async def stop(self) -> None:
        self.world.apps.remove(self)
        self.task.cancel()
        self.driver.poll_end({})
        await self.driver.close(timeout_ms=5_000)

    def crash(self) -> None:
        self.world.apps.remove(self)
        self.task.cancel()
        self.driver.abandon()


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
@pytest.mark.parametrize("seed", range(8))
async def test_a_group_settles_whatever_gets_lost(seed: int, cooperative: bool) -> None:
    world = World(seed, cooperative=cooperative)
    for _ in range(3):
        world.start()
    await world.live(60)
    await asyncio.sleep(60)
    for app in world.apps:
        assert not app.task.done(), app.task
        assert app.driver.is_settled, app.driver.state
        assert set(app.driver.assignment) == app.owned
    owned = sorted(partition for app in world.apps for partition in app.owned)
    assert owned == [TopicPartition("foo", number) for number in range(FOO.partitions)]
    assert all(world.seen[partition] == set(range(RECORDS)) for partition in owned)
    fetched = world.cluster.process(OffsetFetchRequest(group_id="group")).reply
    assert {partition: each.offset for partition, each in fetched.offsets.items()} == dict.fromkeys(
        owned, RECORDS
    )
    for app in tuple(world.apps):
        await app.stop()
    assert world.cluster.coordinator.classic.groups["group"].members == {}
