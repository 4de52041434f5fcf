"""Regular expressions that are short and large: refused before they take long, and matched in slices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import re2
from confluent_kafka.admin import AdminClient

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.regular_expressions import validate
from fencepost.coordinator.protocol import regular_expressions
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.regular_expressions import compiled, matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.scenarios.check import pattern_mistake
from tests.unit.coordinator.wire.raw_client import Wire

ROOT = Path(__file__).parents[3]
COSTLY = "(a|b|c)*" * 1_200
"""RE2 takes a tenth of a second for one name."""
PATIENT = GroupCoordinatorConfig(
    group_consumer_session_timeout_ms=600_000, group_consumer_max_session_timeout_ms=600_000
)
"""The member sends no heartbeat while its expression is matched, which may take a slow machine minutes."""


@pytest.mark.parametrize(
    "expression",
    [
        ".{1,1000}" * 20,
        ".{1,1000}" * 2,
        r"\pL{1,1000}",
        "((a|b|c)*){1000}",
        "(a*)*" * 1_999,
        "a" * 10_001,
        "|".join(f"topic-{number}-.*" for number in range(700)),
    ],
)
def test_an_expression_that_is_too_large_is_refused_with_the_limit(expression):
    with pytest.raises(ProtocolError) as refused:
        validate(expression)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "too large" in refused.value.message or "at most 10000" in refused.value.message
    assert len(refused.value.message) < 500
    mistake = pattern_mistake(expression)
    assert mistake is not None
    assert mistake.startswith("expected a regular expression in RE2's syntax: it ")


@pytest.mark.parametrize(
    "expression",
    [".{1,249}", "[a-z]{1,249}-[0-9]+", "|".join(f"topic-{number}" for number in range(1_000)), COSTLY],
    ids=["any", "repeated", "many", "costly"],
)
def test_an_expression_of_a_usual_size_matches_as_re2_does(expression):
    names = ["a", "abc", "topic-7", "topic-999", "x" * 249]
    expected = tuple(name for name in names if re2.fullmatch(expression, name))
    assert at_once(matching(expression, names)) == expected


def test_matching_yields_in_proportion_to_the_size():
    names = [f"n{number}" for number in range(100)]
    assert sum(1 for _ in matching("n.*", names)) == 0
    assert sum(1 for _ in matching(COSTLY, names)) == 100


def test_what_was_compiled_takes_a_bounded_memory():
    most = compiled.cache_info().maxsize
    assert most is not None
    assert most * regular_expressions.MAX_EXPRESSION_BYTES <= 1 << 26


def test_expressions_are_compiled_in_one_place():
    users = [
        path
        for package in ("coordinator", "member", "simulation")
        for path in (ROOT / package).rglob("*.py")
        if "import re2" in path.read_text()
    ]
    assert [path.relative_to(ROOT).as_posix() for path in users] == [
        "coordinator/protocol/regular_expressions.py"
    ]


async def joined(wire: Wire, expression: str) -> int:
    from datetime import timedelta

    answer = await wire.ask(
        68,
        1,
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout=timedelta(seconds=1),
        subscribed_topic_names=(),
        subscribed_topic_regex=expression,
        topic_partitions=(),
    )
    return int(answer.error_code)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(300)
async def test_other_clients_are_served_while_an_expression_is_matched():
    async with Broker({f"{'abc' * 70}{number}": 1 for number in range(8)}, config=PATIENT) as broker:
        member, other = await Wire.to(broker), await Wire.to(broker)
        admin = await asyncio.to_thread(AdminClient, {"bootstrap.servers": broker.bootstrap_servers})
        assert await joined(member, COSTLY) == 0
        shard = next(iter(broker.groups.shards))
        assert shard.coordinator is not None
        group = shard.coordinator.groups["g"]
        answered = 0
        async with asyncio.timeout(240):
            while COSTLY not in group.resolved:
                assert group.members, f"the member's session ended after {answered} other requests"
                await other.ask(18, 3, client_software_name="other", client_software_version="1")
                answered += 1
        assert answered > 2
        assert await joined(member, ".{1,1000}" * 20) == ErrorCode.INVALID_REGULAR_EXPRESSION
        metadata = await asyncio.to_thread(admin.list_topics, timeout=10)
        assert len(metadata.topics) == 8
        for wire in (member, other):
            await wire.close()
