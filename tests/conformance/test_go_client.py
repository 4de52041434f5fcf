"""franz-go, the Go client, against our endpoint, in both protocols and with a password. Needs Go."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost import EmbeddedKafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SOURCES = pathlib.Path(__file__).parent / "go"
PRODUCED = {f"value {number}" for number in range(50)}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=2, topics={"orders": 12}) as running:
        yield running


@pytest.fixture
def judge(
    go_program: Callable[[pathlib.Path], pathlib.Path], java_process: Callable[[list[str]], Any]
) -> Callable[..., Any]:
    """Starts one; what the Java judges can do, it can."""
    program = str(go_program(SOURCES))
    return lambda *arguments: java_process([program, *arguments])


def owns(one: Any, count: int) -> list[int]:
    """The partitions, once there are that many."""
    line = one.wait(lambda line: line.startswith("OWNS") and len(json.loads(line[5:])) == count)
    return json.loads(line[5:])  # type: ignore[no-any-return]


def reads(one: Any, wanted: set[str]) -> None:
    """Until each was read, and what was read is committed."""
    missing = set(wanted)
    while missing:
        missing.discard(one.wait(lambda line: line.startswith("RECORD"))[7:])
    one.wait(lambda line: line == "COMMITTED")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_it_produces_joins_shares_commits_and_leaves(kafka: EmbeddedKafka, judge: Any, protocol: str) -> None:
    judge("produce", kafka.bootstrap_servers, "orders", "50").wait(lambda line: line == "PRODUCED 50")
    first = judge("consume", kafka.bootstrap_servers, "g", "orders", protocol)
    assert owns(first, 12) == list(range(12))
    reads(first, PRODUCED)
    second = judge("consume", kafka.bootstrap_servers, "g", "orders", protocol)
    assert len({*owns(first, 6), *owns(second, 6)}) == 12
    kafka.group("g").wait_stable(members=2, timeout=60)
    assert sum(kafka.group("g").offsets().values()) == 50
    first.close()
    owns(second, 12)
    assert not any(line.startswith("RECORD") for line in second.said), "what was committed is not read again"
    second.close()
    assert kafka.group("g").members() == []
    assert kafka.check() == []


def test_it_logs_in_with_the_right_password_only(judge: Any) -> None:
    with EmbeddedKafka(topics={"orders": 1}, users={"alice": "open,sesame=1"}) as kafka:
        where = ("consume", kafka.bootstrap_servers, "g", "orders", "consumer", "alice")
        one = judge(*where, "open,sesame=1")
        assert owns(one, 1) == [0]
        one.close()
        judge(*where, "guess").wait(lambda line: "SASL_AUTHENTICATION_FAILED" in line)
        assert kafka.group("g").members() == []
