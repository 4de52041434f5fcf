"""RecordJudge judge records: histories that they accept, and ones that they report."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from fencepost import KIP848Consumer, SimulatedWorld, run_simulated
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.world.record_judge import BATCH_US, CLAIMS, Done, RecordJudge
from tests.unit.simulation.world.programs_of_users import BOOTSTRAP, consumer, reads

FIRST = TopicPartition("orders", 0)
SECOND = 1_000_000


class History:
    """An account of one partition, with what it reported and who owns the partition."""

    def __init__(self, *claims: str) -> None:
        self.reported: list[tuple[str, str]] = []
        self.owner = ""
        self.hindered_us = 0
        self.record_judge = RecordJudge(
            claims or CLAIMS,
            lambda invariant, message: self.reported.append((invariant, message)),
            lambda program, partition: program == self.owner,
            lambda program: self.hindered_us,
        )

    def done(
        self, offset: int, program: str = "a", *, process: int = 1, at_us: int = 0, key: bytes = b"k"
    ) -> None:
        self.record_judge.processed(Done(FIRST, offset, program, process, at_us), key)

    def owns(self, program: str, *others: str, at_us: int = 0) -> None:
        """All members have confirmed who owns the partition, and the coordinator says the same."""
        self.owner = program
        members = [_member(program, (FIRST,)), *(_member(other, ()) for other in others)]
        self.record_judge.owners(members, lambda member: member.client_id, at_us)

    @property
    def invariants(self) -> list[str]:
        return [invariant for invariant, _ in self.reported]


def _member(program: str, owned: tuple[TopicPartition, ...]) -> GroupMember:
    return GroupMember(
        member_id=f"{program}-1",
        instance_id=None,
        client_id=program,
        client_host="/10.0.0.1",
        epoch=1,
        protocol="classic",
        topics=("orders",),
        assignment=owned,
        owned=owned,
    )


# -- order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "reported"),
    [
        ([0, 1, 2], []),
        ([0, 2, 1], ["record-order"]),
        ([0, 1, 0, 1, 2], []),  # it reads again what it had not committed
        ([2, 3, 0], ["record-order"]),
    ],
)
def test_records_of_a_key_are_done_in_their_order(offsets: list[int], reported: list[str]) -> None:
    history = History("order")
    for offset in offsets:
        history.done(offset)
    assert history.invariants == reported


def test_order_is_that_of_one_key_in_one_process() -> None:
    history = History("order")
    history.done(3, key=b"x")
    history.done(1, key=b"y")
    history.done(2, "b", process=2, key=b"x")
    assert history.invariants == []


def test_order_is_reported_with_the_record_and_the_key() -> None:
    history = History("order")
    history.done(1)
    history.done(0)
    ((_, message),) = history.reported
    assert message == (
        "orders-0 offset 0 with the key b'k' was first done after offset 1 of the same key, by a at 0.000 s"
    )


# -- owners -----------------------------------------------------------------------------------------


def test_program_that_let_go_may_finish_its_batch_and_no_more() -> None:
    history = History("owner-only")
    history.owns("b", "a", at_us=SECOND)
    history.done(0, "a", at_us=SECOND + BATCH_US)
    assert history.invariants == []
    history.done(1, "a", at_us=SECOND + BATCH_US + 1)
    assert history.invariants == ["processed-by-owner"]
    assert history.reported[0][1].endswith("the program had let go of it by 1.000 s; b owns it")


def test_program_that_was_hindered_has_that_time_from_its_end() -> None:
    history = History("owner-only")
    history.owns("b", "a", at_us=SECOND)
    history.hindered_us = 20 * SECOND
    history.done(0, "a", at_us=20 * SECOND + BATCH_US)
    assert history.invariants == []
    history.done(1, "a", at_us=20 * SECOND + BATCH_US + 1)
    assert history.invariants == ["processed-by-owner"]


def test_owner_may_do_records_at_any_time() -> None:
    history = History("owner-only")
    history.owns("b", "a")
    history.done(0, "b", at_us=1_000 * SECOND)
    assert history.invariants == []


def test_program_that_owns_it_again_may_go_on() -> None:
    history = History("owner-only")
    history.owns("b", "a", at_us=SECOND)
    history.owns("a", "b", at_us=20 * SECOND)
    history.done(0, "a", at_us=60 * SECOND)
    assert history.invariants == []


def test_coordinator_that_gives_it_back_counts_before_all_have_confirmed_it() -> None:
    history = History("owner-only")
    history.owns("b", "a", at_us=SECOND)
    history.owner = "a"
    history.done(0, "a", at_us=60 * SECOND)
    assert history.invariants == []


def test_next_process_of_a_program_has_let_go_of_nothing() -> None:
    history = History("owner-only")
    history.owns("b", "a", at_us=SECOND)
    history.record_judge.gone("a")
    history.done(0, "a", process=2, at_us=60 * SECOND)
    assert history.invariants == []


# -- programs ---------------------------------------------------------------------------------------


async def _reversed(done: Any) -> None:
    """The bug: work off a batch from its end."""
    async with consumer("orders") as reading:
        await asyncio.sleep(3)
        while True:
            for records in (await reading.getmany(timeout_ms=1000)).values():
                for record in reversed(records):
                    done(record)


async def _keeps_working(world: SimulatedWorld) -> None:
    """The bug: go on with what was read, whoever has the partition now."""
    async with consumer("orders") as reading:
        for record in [await reading.getone() for _ in range(60)]:
            await asyncio.sleep(1)
            world.done(record)
        await asyncio.Event().wait()


@pytest.mark.parametrize("claim", ["order", "owner-only"])
def test_programs_that_break_a_claim_are_reported(claim: str) -> None:
    async def out_of_order(world: SimulatedWorld) -> None:
        await world.produce("orders", *[f"order {number}" for number in range(9)], key="k")
        world.process("worker", _reversed, world.done)
        await world.settled()

    async def after_loss(world: SimulatedWorld) -> None:
        await world.produce("orders", *[f"order {number}" for number in range(60)])
        world.process("worker-0", _keeps_working, world)
        await asyncio.sleep(5)
        world.process("worker-1", _keeps_working, world)
        await asyncio.sleep(60)
        for program in world.programs.values():
            program.kill()

    test = out_of_order if claim == "order" else after_loss
    result = run_simulated(test, topics={"orders": 2}, faults=(), claims=[claim])
    assert not result.trouble, result.trouble
    assert [each.invariant for each in result.violations] == [CLAIMS[claim]]


# -- transactions and groups ----------------------------------------------------------------------------


async def _writes_prices() -> None:
    """Commit two prices, abort two, and commit one."""
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="prices")
    async with producer:
        for values, commits in ((b"ab", True), (b"cd", False), (b"e", True)):
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait("prices", bytes([value]))
            await (producer.commit_transaction() if commits else producer.abort_transaction())


@pytest.mark.parametrize(
    ("forgotten", "reported"),
    [
        (b"", []),
        (
            b"b",
            [
                "group g committed prices-0 at offset 2 by reader at T (FILE in reads), "
                "and no program had done offset 1",
                "1 of 3 records of prices-0 were never done: offsets 1",
            ],
        ),
    ],
)
def test_markers_and_aborted_records_are_nobodys_work(forgotten: bytes, reported: list[str]) -> None:
    async def test(world: SimulatedWorld) -> None:
        def done(record: Any) -> None:
            if record.value != forgotten:
                world.done(record)

        await world.process("writer", _writes_prices).ended()
        world.process("reader", reads, done, "prices", group_id="g", isolation_level="read_committed")
        await world.settled()

    result = run_simulated(test, topics={"prices": 1}, faults=())
    told = [re.sub(r"\d\.\d{3} s \(.*:\d+ in", "T (FILE in", each.message) for each in result.violations]
    assert told == reported
    assert forgotten or result.virtual_seconds < 20  # nothing is missing, so that nothing is waited for


def test_commits_of_a_group_that_reports_nothing_are_not_judged() -> None:
    async def slow(world: SimulatedWorld) -> None:
        made: Any = KIP848Consumer
        async with consumer("orders", group_id="slow", made=made, enable_auto_commit=True) as reading:
            async for record in reading:
                await asyncio.sleep(1)
                world.done(record)

    async def test(world: SimulatedWorld) -> None:
        world.process("silent", reads, lambda record: None, group_id="silent")
        world.process("slow", slow, world)
        await world.produce("orders", *[f"order {number}" for number in range(20)], over=10)
        await world.settled()

    assert run_simulated(test, topics={"orders": 2}, faults=()).violations == []
