"""When a group counts as stable, with real clients: not before all is found and given, and then at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from fencepost import EmbeddedKafka
from tests.conformance.polled import polled, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CONSUMER = {"group.protocol": "consumer", "client.id": "consumer"}
CLASSIC = {"group.protocol": "classic", "client.id": "classic", "heartbeat.interval.ms": 100}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 6, "ordeals": 2, "other": 1}) as running:
        yield running


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("first", ["classic", "consumer"])
def test_a_group_of_both_protocols(kafka, strategy, first):
    """Migration online, in either direction (KIP-848)."""
    settings = [CONSUMER, {**CLASSIC, "partition.assignment.strategy": strategy}]
    if first == "classic":
        settings.reverse()
    group = kafka.group("g")
    with polled(kafka, "one", **settings[0]) as one:
        group.wait_stable(1, timeout=60)
        with polled(kafka, "two", **settings[1]) as two:
            members = group.wait_stable(2, timeout=60)
            assert {each.client_id: each.protocol for each in members} == {
                "consumer": "consumer",
                "classic": "classic",
            }
            assert all(each.topics == ("orders",) and len(each.owned) == 3 for each in members)
            kafka.produce("orders", *(str(number) for number in range(60)))
            until(lambda: len({*one[0].values, *two[0].values}) == 60)
            assert one[0].values
            assert two[0].values
    assert kafka.check() == []


def test_a_regular_expression_is_looked_up_first(kafka):
    with polled(kafka, "one", topics=("^ord.*",), **CONSUMER):
        (member,) = kafka.group("g").wait_stable(1, timeout=60)
        assert member.topics == ("ordeals", "orders")
        assert len(member.owned) == 8
    assert kafka.check() == []


def test_an_expression_that_matches_nothing_is_no_reason_to_wait(kafka):
    with polled(kafka, "one", topics=("^nothing.*",), **CONSUMER):
        (member,) = kafka.group("g").wait_stable(1, timeout=60)
        assert (member.topics, member.owned) == ((), ())
    assert kafka.check() == []


@pytest.mark.parametrize("settings", [CONSUMER, CLASSIC], ids=["consumer", "classic"])
def test_partitions_that_are_added_are_given_first(kafka, settings):
    """Until the next heartbeat the coordinator itself has not looked: that breaks no invariant either."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    with polled(kafka, "one", **settings, **{"topic.metadata.refresh.interval.ms": 100}):
        kafka.group("g").wait_stable(1, timeout=60)
        admin.create_partitions([NewPartitions("orders", 9)])["orders"].result(60)
        assert kafka.check() == []
        (member,) = kafka.group("g").wait_stable(1, timeout=60)
        assert len(member.owned) == 9
    assert kafka.check() == []
