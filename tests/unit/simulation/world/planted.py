"""Ten bugs of applications, each a small program next to its correct twin.

`PLANTED` has them by name. Each test function is what a user would write; `simulated` gives it its world.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError

import fencepost
from fencepost import KIP848Consumer, SimulatedWorld
from fencepost.simulation.world.entry import SimulatedFunction

Done = Callable[[Any], None]

TOPICS = {"orders": 4}
ORDERS = [f"order {number}" for number in range(150)]
SETTINGS: dict[str, Any] = {
    "bootstrap_servers": "kafka:9092",
    "group_id": "billing",
    "auto_offset_reset": "earliest",
}
WITHOUT_LOSSES: dict[str, None] = dict.fromkeys(
    [
        "member-crash",
        "member-freeze",
        "slow-callback",
        "poll-timeout",
        "partition",
        "loss",
        "slow-link",
        "lost-request",
        "lost-response",
        "append-failure",
        "broker-crash",
        "broker-pause",
        "coordinator-crash",
        "coordinator-unavailable",
    ]
)
"""Leaves deploys, errors that clients retry, broken connections, and coordinators that move.

By those a member does not lose its partitions before it has given them up.
"""


class Table:
    """A table of the application's database, with a compare-and-set."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    async def get(self, key: object, default: Any = None) -> Any:
        """Return the row of a key."""
        await asyncio.sleep(0.002)
        return self.rows.get(key, default)

    async def put(self, key: object, row: object) -> None:
        """Write a row."""
        await asyncio.sleep(0.002)
        self.rows[key] = row

    async def insert(self, key: object) -> bool:
        """Write a row, unless there is one: return true if there was none."""
        await asyncio.sleep(0.002)
        return self.rows.setdefault(key, False) is False and self.rows.update({key: True}) is None

    async def replace(self, key: object, old: object, row: object) -> bool:
        """Write a row, if it is still the old one."""
        await asyncio.sleep(0.002)
        if self.rows.get(key) != old:
            return False
        self.rows[key] = row
        return True


class Planted(NamedTuple):
    """A bug, its correct twin, and the invariants of which at least one reports it."""

    wrong: SimulatedFunction
    right: SimulatedFunction
    reported_as: frozenset[str]


PLANTED: dict[str, Planted] = {}


def planted(
    name: str,
    reported_as: Iterable[str],
    workers: Callable[[SimulatedWorld, bool], Awaitable[None] | None],
    **settings: Any,
) -> None:
    """Register a bug: `workers` starts its programs, correct ones if its second argument is true."""

    async def play(world: SimulatedWorld, *, right: bool) -> None:
        orders = asyncio.ensure_future(world.produce("orders", ORDERS, over=50))
        pending = workers(world, right)
        if pending is not None:
            await pending
        await orders
        await world.settled()

    async def wrong(world: SimulatedWorld) -> None:
        await play(world, right=False)

    async def right(world: SimulatedWorld) -> None:
        await play(world, right=True)

    wrong.__name__, right.__name__ = f"{name}-wrong", f"{name}-right"
    made = fencepost.simulated(**{"topics": TOPICS, **settings})
    PLANTED[name] = Planted(made(wrong), made(right), frozenset(reported_as))


def three(program: Callable[..., Any], *arguments: Any) -> Callable[[SimulatedWorld, bool], None]:
    """Start three programs, which get the world's `done`, and whether they are to be correct."""

    def start(world: SimulatedWorld, right: bool) -> None:
        made = [each() if isinstance(each, type) else each for each in arguments]
        for number in range(3):
            world.process(f"worker-{number}", program, world.done, right, *made)

    return start


# -- 1: commit before processing ------------------------------------------------------------------------


async def charges(done: Done, right: bool) -> None:
    consumer = AIOKafkaConsumer("orders", **SETTINGS, enable_auto_commit=False)
    async with consumer:
        async for record in consumer:
            if not right:
                await consumer.commit()
            await asyncio.sleep(0.1)
            done(record)
            if right:
                await consumer.commit()


planted("commit-before-processing", ["commit-after-processing", "record-processed"], three(charges))


# -- 2: no commit when partitions are revoked -----------------------------------------------------------


class CommitsOnRevoke(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked: object) -> None:
        if revoked:
            await self.consumer.commit()

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Nothing to do."""


async def sends_mails(done: Done, right: bool) -> None:
    """Commit once in a while. Restarts are graceful here: no mail is to be sent twice."""
    consumer = AIOKafkaConsumer(**SETTINGS, enable_auto_commit=False)
    consumer.subscribe(["orders"], listener=CommitsOnRevoke(consumer) if right else None)
    await consumer.start()
    try:
        uncommitted = 0
        while True:
            batch = await consumer.getmany(timeout_ms=500, max_records=5)
            for records in batch.values():
                for record in records:
                    done(record)
                    uncommitted += 1
            if uncommitted >= 10 or not batch:
                try:
                    await consumer.commit()
                except CommitFailedError:
                    if not right:
                        raise
                    # A rebalance came first: the callback has committed.
                uncommitted = 0
    finally:
        await consumer.commit()
        await consumer.stop()


planted(
    "no-commit-on-revoke",
    ["record-once"],
    three(sends_mails),
    faults=WITHOUT_LOSSES,
    claims=["exactly-once"],
)


# -- 3: work in background tasks, while the consumer commits by itself ----------------------------------


async def works_in_background(done: Done, right: bool) -> None:
    async def work(record: Any) -> None:
        await asyncio.sleep(0.8)
        done(record)

    tasks: set[asyncio.Task[None]] = set()
    consumer = AIOKafkaConsumer(
        "orders", **SETTINGS, enable_auto_commit=not right, auto_commit_interval_ms=1_000
    )
    async with consumer:
        while True:
            batch = await consumer.getmany(timeout_ms=500)
            for records in batch.values():
                for record in records:
                    task = asyncio.create_task(work(record))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            if right and tasks:
                await asyncio.gather(*tasks)
                await consumer.commit()


planted(
    "background-work-and-auto-commit",
    ["commit-after-processing", "record-processed"],
    three(works_in_background),
    claims=["at-least-once", "commit-after-processing"],
)


# -- 4: state that is not dropped when its partition is lost --------------------------------------------


class Totals(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts the orders of each partition. A row is the next offset, and the total up to there."""

    def __init__(self, table: Table, right: bool) -> None:
        self.table, self.right = table, right
        self.rows: dict[TopicPartition, tuple[int, int] | None] = {}

    async def on_partitions_revoked(self, revoked: object) -> None:
        if self.right:
            self.rows.clear()

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Rows are read when they are needed."""

    async def add(self, record: Any) -> None:
        place = TopicPartition(record.topic, record.partition)
        if place not in self.rows:
            self.rows[place] = await self.table.get(place.partition)
        row = self.rows[place]
        following, total = row or (0, 0)
        if record.offset < following:
            return  # it is in the total already
        new = (record.offset + 1, total + 1)
        if not self.right:
            await self.table.put(place.partition, new)
        elif not await self.table.replace(place.partition, row, new):
            raise RuntimeError("another worker counts this partition")
        self.rows[place] = new


async def counts(done: Done, right: bool, table: Table) -> None:
    consumer = AIOKafkaConsumer(**SETTINGS, enable_auto_commit=False)
    totals = Totals(table, right)
    consumer.subscribe(["orders"], listener=totals)
    async with consumer:
        async for record in consumer:
            await totals.add(record)
            done(record)
            with contextlib.suppress(KafkaError):  # then it is read once more
                await consumer.commit()


def three_count(world: SimulatedWorld, right: bool) -> None:
    table = Table()
    world.eventually(lambda: sum(total for _, total in table.rows.values()) == len(ORDERS), "total-is-right")
    three(counts, table)(world, right)


planted("state-not-dropped-on-loss", ["total-is-right"], three_count, claims=["at-least-once"])


# -- 5: a callback that takes longer than the poll timeout ----------------------------------------------


class Uploads:
    """Uploads the total of a partition before it is revoked, and downloads it when it is assigned."""

    def __init__(self, table: Table, totals: dict[int, int]) -> None:
        self.table, self.totals = table, totals

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        for partition in revoked:
            await asyncio.sleep(3)
            await self.table.put(partition.partition, self.totals.pop(partition.partition))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for partition in assigned:
            self.totals[partition.partition] = await self.table.get(partition.partition, 0)


async def uploads(done: Done, right: bool, table: Table, latest: dict[int, int]) -> None:
    totals: dict[int, int] = {}
    consumer = KIP848Consumer(
        "orders",
        **SETTINGS,
        enable_auto_commit=False,
        listener=Uploads(table, totals),
        max_poll_interval_ms=60_000 if right else 2_000,
    )
    async with consumer:
        async for record in consumer:
            totals[record.partition] += 1
            latest[record.partition] = totals[record.partition]
            done(record)
            await consumer.commit()


async def three_upload(world: SimulatedWorld, right: bool) -> None:
    """Add workers while orders come in. None crashes, so that each upload is made."""
    table, latest = Table(), dict[int, int]()
    world.eventually(lambda: sum(latest.values()) == len(ORDERS), "total-is-right")
    for number in range(3):
        world.process(f"worker-{number}", uploads, world.done, right, table, latest)
        await asyncio.sleep(15)


planted(
    "callback-outlasts-poll-timeout",
    ["total-is-right"],
    three_upload,
    faults=WITHOUT_LOSSES,
    claims=["at-least-once"],
)


# -- 6: a commit that fails, which nobody minds ---------------------------------------------------------


class EndsCommits(ConsumerRebalanceListener):  # type: ignore[misc]
    """Ends the commit that a rebalance meets. aiokafka would repeat it in the next generation, and move the
    group's offset back if another member owned the partition meanwhile."""

    def __init__(self) -> None:
        self.is_under_way = False
        self.commit: asyncio.Future[None] | None = None

    async def on_partitions_revoked(self, revoked: object) -> None:
        self.is_under_way = True
        if self.commit is not None:
            self.commit.cancel()

    async def on_partitions_assigned(self, assigned: object) -> None:
        self.is_under_way = False


async def at_most_once(done: Done, right: bool) -> None:
    """Commit first, so that no order is charged twice. An order whose commit failed is not charged.

    So is one that came before the start: aiokafka takes a refused OffsetFetch for a group without offsets.
    """
    settings = {**SETTINGS, "auto_offset_reset": "latest", "enable_auto_commit": False}
    consumer, rebalances = AIOKafkaConsumer(**settings), EndsCommits()
    consumer.subscribe(["orders"], listener=rebalances)
    async with consumer:
        async for record in consumer:
            partition = TopicPartition(record.topic, record.partition)
            commit = asyncio.ensure_future(consumer.commit({partition: record.offset + 1}))
            rebalances.commit = commit if right else None
            await asyncio.wait([commit])
            if right:
                if commit.cancelled() or rebalances.is_under_way:
                    continue
                commit.result()  # or raise: then read again from what is committed
            await asyncio.sleep(0.05)
            done(record)


planted("ignored-commit-error", ["record-once"], three(at_most_once), claims=["exactly-once"])


# -- 7: one static id for two processes -----------------------------------------------------------------


async def is_static(done: Done, instance_id: str) -> None:
    consumer = AIOKafkaConsumer("orders", **SETTINGS, enable_auto_commit=False, group_instance_id=instance_id)
    async with consumer:
        async for record in consumer:
            done(record)
            await consumer.commit()


def static_ones(world: SimulatedWorld, right: bool) -> None:
    world.eventually(lambda: len(world.group("billing").members()) == 3, "three-members")
    for number in range(3):
        name = f"worker-{number}"
        world.process(name, is_static, world.done, name if right else f"worker-{number % 2}")


planted("static-id-used-twice", ["three-members", "settles", "program-runs"], static_ones)


# -- 8: a wrong seek after an assignment ----------------------------------------------------------------


class SeeksToStored(ConsumerRebalanceListener):  # type: ignore[misc]
    """Offsets are in the application's own table, with the results."""

    def __init__(self, consumer: AIOKafkaConsumer, table: Table, right: bool) -> None:
        self.consumer, self.table, self.right = consumer, table, right

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing to do."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for partition in assigned:
            following = await self.table.get(partition.partition, 0)
            self.consumer.seek(partition, following if self.right or not following else following + 1)


async def stores_offsets(done: Done, right: bool, table: Table) -> None:
    consumer = AIOKafkaConsumer(**SETTINGS, enable_auto_commit=False)
    consumer.subscribe(["orders"], listener=SeeksToStored(consumer, table, right))
    async with consumer:
        async for record in consumer:
            done(record)
            following = max(record.offset + 1, await table.get(record.partition, 0))
            await table.put(record.partition, following)


planted("wrong-seek-after-assignment", ["record-processed"], three(stores_offsets, Table))


# -- 9: an at-least-once sink that claims exactly-once --------------------------------------------------


async def writes_to_sink(done: Done, right: bool, table: Table) -> None:
    consumer = AIOKafkaConsumer("orders", **SETTINGS, enable_auto_commit=False)
    async with consumer:
        async for record in consumer:
            if not right or await table.insert((record.partition, record.offset)):
                done(record)
            await consumer.commit()


planted("sink-without-deduplication", ["record-once"], three(writes_to_sink, Table), claims=["exactly-once"])


# -- 10: a shutdown that loses the last batch -----------------------------------------------------------


async def hands_over(done: Done, right: bool) -> None:
    """Read in one task, work in another. What is in the queue at the end is to be worked off."""
    queue: asyncio.Queue[Any] = asyncio.Queue(20)

    async def work() -> None:
        while True:
            record = await queue.get()
            await asyncio.sleep(0.2)
            done(record)
            queue.task_done()

    worker = asyncio.create_task(work())
    consumer = AIOKafkaConsumer("orders", **SETTINGS, enable_auto_commit=False)
    await consumer.start()
    try:
        while True:
            for records in (await consumer.getmany(timeout_ms=500, max_records=20)).values():
                for record in records:
                    await queue.put(record)
            await queue.join()
            await consumer.commit()
    finally:
        if right:
            await queue.join()
        with contextlib.suppress(KafkaError):  # who took over reads it again
            await consumer.commit()
        worker.cancel()
        await consumer.stop()


planted(
    "shutdown-loses-last-batch",
    ["commit-after-processing", "record-processed"],
    three(hands_over),
    claims=["at-least-once", "commit-after-processing"],
)
