"""The Java client of Kafka's jars against our endpoint. Needs a JDK, and Maven the first time."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


class Judge:
    """A consumer, or another action of the judge, in a Java process."""

    def __init__(self, java: Any) -> None:
        self.java = java
        self.process = java.process
        self.wait = java.wait
        self.close = java.close

    @property
    def said(self) -> list[str]:
        return self.java.said

    def wait_owned(self, count: int) -> list[int]:
        """The partitions, once there are that many."""
        line = self.wait(lambda one: one.startswith("OWNS") and len(json.loads(one[5:])) == count)
        return json.loads(line[5:])

    def reads(self, wanted: set[str]) -> None:
        """Until each was read, at least once, and what was read is committed."""
        missing = set(wanted)
        while missing:
            value = self.wait(lambda one: one.startswith("RECORD"))[7:]
            assert value in wanted
            missing.discard(value)
        self.wait(lambda one: one == "COMMITTED")


@pytest.fixture
def judge(java_programs, java_process, served) -> Callable[..., Judge]:
    java = java_programs.command("ConsumerJudge")

    def start(action: str, *arguments: str) -> Judge:
        return Judge(java_process([*java, action, served.bootstrap_servers, *arguments]))

    return start


PRODUCED = {f"value {number}" for number in range(500)}


def test_it_produces_joins_consumes_commits_and_shares(served, judge):
    judge("produce", "orders", "500").wait(lambda line: line == "PRODUCED 500")
    first = judge("consume", "g", "orders")
    assert first.wait_owned(12) == list(range(12))
    first.reads(PRODUCED)
    second = judge("consume", "g", "orders")
    theirs = second.wait_owned(6)
    assert sorted(theirs + [n for n in range(12) if n not in theirs]) == list(range(12))
    first.wait(lambda line: line == "REVOKED 6")
    members = served.look(lambda broker: dict(broker.coordinator.groups["g"].members))
    assert [sum(map(len, member.assigned.values())) for member in members.values()] == [6, 6]
    first.close()
    second.wait_owned(12)
    assert not any(line.startswith("RECORD") for line in second.said), "what was committed is not read again"
    second.close()
    assert served.look(lambda broker: len(broker.coordinator.groups["g"].members)) == 0


@pytest.mark.parametrize(
    "installation", [pytest.param("kafka_installation", marks=pytest.mark.long), "newest_kafka_installation"]
)
def test_it_moves_records_and_offsets_in_transactions(
    served, java_programs, java_process, installation, request
):
    """By a newer client, too, which speaks newer versions of its requests first."""
    kafka = request.getfixturevalue(installation)
    command = java_programs.command("TransactionJudge", kafka=kafka)
    java = java_process([*command, served.bootstrap_servers, "orders", "single"])
    assert java.wait(lambda line: line.startswith("COMMITTED")) == "COMMITTED true"
    assert java.wait(lambda line: line.startswith("REFUSED")) == "REFUSED CommitFailedException"
    assert java.wait(lambda line: line.startswith("MOVED")) == "MOVED 20"


@pytest.mark.long
def test_its_admin_client_sees_the_group(judge):
    judge("produce", "orders", "500").wait(lambda line: line == "PRODUCED 500")
    member = judge("consume", "g", "orders")
    member.wait_owned(12)
    member.reads(PRODUCED)
    admin = judge("administer", "g")
    admin.wait(lambda line: line == "REMOVED")
    member.wait(lambda line: line == "REVOKED 12")
    member.close()
    admin.process.stdin.close()
    admin.wait(lambda line: line.startswith("LEFT"))
    told = [line for line in admin.said if not line.startswith(("OFFSET", "LATEST"))]
    assert told == [
        "GROUP g Consumer consumer Stable",
        "DESCRIBED Stable Consumer uniform epochs 2 2",
        "MEMBER /127.0.0.1 2 12 12",
        "TOPIC 12",
        "MISSING GroupIdNotFoundException",
        "DELETED GroupNotEmptyException",
        "REMOVED",
        "LEFT 0",
    ]
    offsets = dict(line.split()[1:] for line in admin.said if line.startswith("OFFSET"))
    assert sum(map(int, offsets.values())) == 500
    assert f"LATEST {offsets['orders-0']}" in admin.said


@pytest.mark.long
@pytest.mark.parametrize("session_ms", [5_000])
def test_a_killed_one_is_replaced_and_a_pattern_is_subscribed(served, judge):
    survivor, victim = judge("consume", "g", "^ord.*"), judge("consume", "g", "^ord.*")
    survivor.wait_owned(6)
    victim.wait_owned(6)
    victim.process.send_signal(signal.SIGKILL)
    survivor.wait_owned(12)


def test_a_static_member_keeps_its_place(served, judge):
    first = judge("consume", "g", "orders", "one")
    first.wait_owned(12)
    epoch = served.look(lambda broker: broker.coordinator.groups["g"].group_epoch)
    first.close()
    again = judge("consume", "g", "orders", "one")
    again.wait_owned(12)
    assert served.look(lambda broker: broker.coordinator.groups["g"].group_epoch) == epoch


def kind_of_group(served) -> str:
    def look(broker) -> str:
        return "consumer" if "g" in broker.coordinator.groups else "classic"

    return served.look(look)


def test_in_a_classic_group_it_shares_cooperates_and_resumes(served, judge):
    judge("produce", "orders", "500").wait(lambda line: line == "PRODUCED 500")
    first = judge("consume-classic", "g", "orders")
    assert first.wait_owned(12) == list(range(12))
    first.reads(PRODUCED)
    second = judge("consume-classic", "g", "orders")
    theirs = second.wait_owned(6)
    assert sorted(theirs + [n for n in range(12) if n not in theirs]) == list(range(12))
    first.close()
    second.wait_owned(12)
    assert not any(line.startswith("RECORD") for line in second.said), "what was committed is not read again"
    assert kind_of_group(served) == "classic"
    second.close()


@pytest.mark.long
def test_in_a_classic_group_it_comes_back_as_a_static_member(served, judge):
    first = judge("consume-classic", "g", "orders", "one")
    first.wait_owned(12)
    second = judge("consume-classic", "g", "orders", "two")
    theirs = second.wait_owned(6)
    first.wait_owned(6)
    generation = served.look(lambda broker: broker.coordinator.classic.groups["g"].generation)
    second.close()
    again = judge("consume-classic", "g", "orders", "two")
    assert again.wait_owned(6) == theirs
    assert served.look(lambda broker: broker.coordinator.classic.groups["g"].generation) == generation
    again.close()
    first.close()


@pytest.mark.long
def test_it_rolls_from_the_classic_protocol_to_the_new_one_and_back(served, judge):
    judge("produce", "orders", "500").wait(lambda line: line == "PRODUCED 500")
    old = [judge("consume-classic", "g", "orders")]
    old[0].wait_owned(12)
    old[0].reads(PRODUCED)
    old.append(judge("consume-classic", "g", "orders"))
    old[1].wait_owned(6)
    assert kind_of_group(served) == "classic"
    for action in ("consume", "consume-classic"):
        new = [judge(action, "g", "orders")]
        new[0].wait_owned(4)
        assert kind_of_group(served) == "consumer"
        old[0].close()
        new[0].wait_owned(6)
        new.append(judge(action, "g", "orders"))
        new[1].wait_owned(4)
        old[1].close()
        new[1].wait_owned(6)
        assert not any(line.startswith("RECORD") for each in new for line in each.said)
        old = new
    assert kind_of_group(served) == "classic"
    old[0].close()
    old[1].wait_owned(12)
    old[1].close()
