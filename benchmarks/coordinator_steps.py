"""How fast the pure coordinator is: steady heartbeats, and a group of 1,000 members that forms.

    python benchmarks/coordinator_steps.py [--members N] [--partitions N]

Prints operations a second; absolute figures depend on the machine, ratios within one run count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage

GROUP = "benchmark"
TOPIC_ID = "benchmark-topic-000000"


class Client(msgspec.Struct):
    """The least that a member must remember."""

    member_id: str
    epoch: int = 0
    assignment: Partitions = NO_PARTITIONS
    acknowledge: bool = False

    def request(self) -> ConsumerGroupHeartbeatRequest:
        if self.epoch == 0:
            return ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=0,
                rebalance_timeout_ms=300_000,
                subscribed_topic_names=("benchmark",),
                topic_partitions=NO_PARTITIONS,
            )
        owned = self.assignment if self.acknowledge else None
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, topic_partitions=owned
        )

    def received(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        self.acknowledge = response.assignment is not None
        if response.assignment is not None:
            self.assignment = response.assignment


def runtime(partitions: int, interval_ms: int) -> CoordinatorHost:
    config = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=interval_ms)
    made = CoordinatorHost(GroupCoordinator(config), MemoryJournal())
    topic = Topic(topic_id=TOPIC_ID, name="benchmark", partitions=partitions)
    made.step(TopicsChanged(image=TopicsImage.of([topic])), 0)
    return made


def form(made: CoordinatorHost, clients: list[Client], start_ms: int) -> Iterator[str]:
    """Joins back to back, a millisecond apart, then rounds of heartbeats until the group is stable."""
    now_ms, steps = start_ms, 0
    started = time.perf_counter()
    for client in clients:
        now_ms += 1
        beat(made, client, now_ms)
    steps += len(clients)
    yield f"{len(clients)} joins: {time.perf_counter() - started:.2f} s"
    rounds = 0
    while rounds == 0 or made.coordinator.groups[GROUP].state is not GroupState.STABLE:
        rounds += 1
        now_ms += 5_000
        for client in clients:
            beat(made, client, now_ms)
        steps += len(clients)
    spent = time.perf_counter() - started
    yield f"stable after {rounds} rounds of heartbeats: {spent:.2f} s, {steps / spent:,.0f} steps/s"


def beat(made: CoordinatorHost, client: Client, now_ms: int) -> None:
    reply = made.step(client.request(), now_ms).reply
    assert isinstance(reply, ConsumerGroupHeartbeatResponse)
    assert not reply.error_code, reply
    client.received(reply)


def steady(made: CoordinatorHost, clients: list[Client], now_ms: int, count: int, *, fresh: bool) -> str:
    """Keepalives of all members in turn; `fresh` ones are decoded anew, as a server has them."""
    keepalives = [msgspec.structs.replace(client, acknowledge=False).request() for client in clients]
    handle = made.coordinator.handle
    for request in keepalives:
        handle(request, now_ms)
    rounds = max(1, count // len(keepalives))
    raw = [msgspec.msgpack.encode(request) for request in keepalives]
    decoder = msgspec.msgpack.Decoder(ConsumerGroupHeartbeatRequest)
    spent = 0.0
    for number in range(rounds):
        requests = [decoder.decode(each) for each in raw] if fresh else keepalives
        started = time.perf_counter()
        for request in requests:
            handle(request, now_ms + number)
        spent += time.perf_counter() - started
    kind = "fresh" if fresh else "same"
    return f"steady heartbeat, {kind} request: {rounds * len(keepalives) / spent:,.0f} ops/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    arguments = parser.parse_args()
    for interval_ms in (1_000, 0):
        made = runtime(arguments.partitions, interval_ms)
        clients = [Client(member_id=f"member-{number:06}") for number in range(arguments.members)]
        print(f"{arguments.members} members, {arguments.partitions} partitions, interval {interval_ms} ms")
        for line in form(made, clients, 1_000):
            print(f"  {line}")
        if interval_ms:
            for fresh in (False, True):
                print(f"  {steady(made, clients, 10_000_000, 500_000, fresh=fresh)}")


if __name__ == "__main__":
    main()
