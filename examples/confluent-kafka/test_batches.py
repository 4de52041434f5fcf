"""Rebalances in the middle of a batch: no record is lost, and none is handled twice without a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from batches import BatchConsumer

from fencepost import EmbeddedKafka

pytestmark = pytest.mark.kafka(topics={"orders": 4})

VALUES = [b"%d" % number for number in range(40)]


class Workers:
    """Consumers of one group, what they have handled, and the turns in which they poll."""

    def __init__(self, kafka: EmbeddedKafka, protocol: str) -> None:
        self.group = kafka.group("invoices")
        self.handled: list[bytes] = []
        self._settings: dict[str, str | int] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "invoices",
            "group.protocol": protocol,
        }
        if protocol == "classic":
            self._settings |= {
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 100,
            }
        self.open: dict[str, BatchConsumer] = {}

    def add(self, name: str, size: int) -> BatchConsumer:
        settings = {**self._settings, "client.id": name}
        self.open[name] = BatchConsumer(settings, ["orders"], self._handle, size)
        return self.open[name]

    def _handle(self, topic: str, partition: int, values: list[bytes]) -> None:
        self.handled += values

    def poll_until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Poll all consumers by turns until the condition is true. Clients only act when they are polled."""
        deadline = monotonic() + seconds
        while not condition():
            assert monotonic() < deadline, f"members: {self.group.members()}, handled: {self.handled}"
            for each in self.open.values():
                each.poll(0.02)

    def settled(self, members: int) -> bool:
        """Return true if the group has this number of members, and each owns what it is assigned."""
        found = self.group.members()
        owning = [each for each in found if each.assignment and each.assignment == each.owned]
        return self.group.state == "Stable" and len(found) == len(owning) == members

    def close(self, name: str) -> None:
        self.open.pop(name).close()


@pytest.fixture(params=["consumer", "classic"])
def workers(request: pytest.FixtureRequest, kafka: EmbeddedKafka) -> Iterator[Workers]:
    made = Workers(kafka, request.param)
    yield made
    for name in list(made.open):
        made.close(name)


@pytest.fixture(autouse=True)
def records(kafka: EmbeddedKafka) -> None:
    """Ten records in each of the four partitions."""
    for number, value in enumerate(VALUES):
        kafka.produce("orders", value, partition=number % 4)


def test_full_batches_are_handled_and_committed(kafka: EmbeddedKafka, workers: Workers) -> None:
    workers.add("one", size=5)
    workers.poll_until(lambda: len(workers.handled) == 40)
    assert workers.group.offsets() == {("orders", partition): 10 for partition in range(4)}
    assert kafka.check() == []


def test_batches_of_revoked_partitions_are_committed_first(kafka: EmbeddedKafka, workers: Workers) -> None:
    one = workers.add("one", size=100)
    workers.poll_until(lambda: one.waiting == 40)
    assert workers.handled == []

    two = workers.add("two", size=100)
    workers.poll_until(lambda: workers.settled(members=2))
    assert len(workers.handled) == 20
    assert sorted(workers.group.offsets().values()) == [10, 10]

    kafka.produce("orders", "last")
    workers.poll_until(lambda: one.waiting + two.waiting == 21)
    workers.close("one")
    workers.close("two")
    assert sorted(workers.handled) == sorted([*VALUES, b"last"])
    assert kafka.check() == []


def test_batches_of_lost_partitions_are_dropped_and_read_again(
    kafka: EmbeddedKafka, workers: Workers
) -> None:
    one = workers.add("one", size=100)
    workers.poll_until(lambda: one.waiting == 40)

    workers.group.expire("one")
    workers.poll_until(lambda: one.waiting == 0)
    assert workers.handled == []
    assert workers.group.offsets() == {}

    workers.poll_until(lambda: one.waiting == 40)
    workers.close("one")
    assert sorted(workers.handled) == sorted(VALUES)
    assert kafka.check() == []
