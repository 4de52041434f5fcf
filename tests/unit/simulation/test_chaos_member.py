"""A member's process of a run on real brokers: what its application commits by itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.event_channel import EventChannel
from fencepost.simulation.lab.chaos.member import RealMember

ORDERS = [TopicPartition("orders", number) for number in range(3)]
TERMS = m.Terms(
    name="member-1",
    process=1,
    seed=1,
    began_us=0,
    bootstrap_servers="127.0.0.1:9",
    group_id="g",
    topics=("orders",),
    max_poll_interval_ms=300_000,
    request_timeout_ms=30_000,
    gather_ms=100,
    max_poll_records=500,
    callback=("constant", 0, 0),
    processing=("constant", 0, 0),
    client="fencepost",
    instance_id=None,
    assignor=None,
    pattern=None,
    commit="sync",
    auto_commit_interval_ms=5_000,
)


class Consumer:
    """Takes commits down."""

    def __init__(self) -> None:
        self.owned = set(ORDERS)
        self.commits: list[dict[TopicPartition, int]] = []

    def assignment(self) -> set[TopicPartition]:
        return self.owned

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.commits.append(offsets)


@pytest.fixture
async def member(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)  # nobody orders anything
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made: Any = RealMember(TERMS, EventChannel(theirs, 0), theirs)
        made._consumer = Consumer()
        yield made


def batch(partition: TopicPartition, *offsets: int) -> dict[TopicPartition, list[Any]]:
    return {partition: [SimpleNamespace(offset=offset, value=b"1") for offset in offsets]}


async def test_a_callback_that_finds_a_batch_at_work_commits_what_was_processed_before(
    member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await member._process(batch(ORDERS[0], 4, 5))

    async def revoked_meanwhile(us: int) -> None:
        if not member._consumer.commits:
            await member.on_partitions_revoked(ORDERS[:2])

    monkeypatch.setattr(member, "_sleep", revoked_meanwhile)
    await member._process(batch(ORDERS[0], 6, 7) | batch(ORDERS[1], 1))
    assert member._consumer.commits == [{ORDERS[0]: 6}]


async def test_what_others_may_have_processed_meanwhile_is_not_committed(member: Any) -> None:
    await member._process(batch(ORDERS[0], 4) | batch(ORDERS[1], 8))
    member._consumer.owned = {ORDERS[0]}
    await member._commit(member._consumer)
    member._consumer.owned = set(ORDERS)
    await member.on_partitions_assigned([ORDERS[1]])
    await member._commit(member._consumer)
    assert member._consumer.commits == [{ORDERS[0]: 5}, {ORDERS[0]: 5}]
