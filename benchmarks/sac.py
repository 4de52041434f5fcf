"""Single active consumers: commands a second, and a node with 20,000 connections that is lost and comes back.

The coordinator has 10,000 groups of 10 consumers, half of them partitions of super streams, on 60,000
connections of three nodes. Every step appends to a journal in memory and applies it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable

from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput

NODES = ("a", "b", "c")


class Bench:
    def __init__(self, groups: int, consumers: int, connections: int) -> None:
        self.groups, self.consumers = groups, consumers
        self.connections = {node: [f"k{i}@{node}" for i in range(connections)] for node in NODES}
        self.runtime = CoordinatorHost(SacCoordinator(), SacMemoryJournal(compact_beyond=200_000))
        self.coordinator = self.runtime.coordinator

    def registrations(self) -> Iterable[SacInput]:
        number = 0
        for group in range(self.groups):
            for _ in range(self.consumers):
                number += 1
                on_node = self.connections[NODES[number % 3]]
                yield sac.RegisterConsumer(
                    stream=f"s{group}",
                    consumer_name="app",
                    connection=on_node[number // 3 % len(on_node)],
                    subscription_id=number // (3 * len(on_node)),
                    partition_index=group % 12 if group % 2 else sac.SIMPLE,
                )

    def answers(self) -> Iterable[SacInput]:
        """What follows a step-down: the group is activated."""
        for key in list(self.coordinator.state.groups):
            yield sac.ActivateConsumer(stream=key.stream, consumer_name=key.consumer_name)

    def run(self, what: str, events: Iterable[SacInput], now_ms: int) -> None:
        process, told, count = self.runtime.step, 0, 0
        started = time.process_time()
        for event in events:
            count += 1
            told += sum(type(effect) is sac.NotifyConsumer for effect in process(event, now_ms).effects)
        self.say(what, count, told, time.process_time() - started)

    def due(self, what: str, now_ms: int) -> None:
        started = time.process_time()
        outcomes, step = [], self.runtime.step
        while (due_ms := self.coordinator.next_deadline()) is not None and due_ms <= now_ms:
            outcomes.append(step(DeadlineReached(due_ms), now_ms))
        seconds = time.process_time() - started
        told = sum(type(effect) is sac.NotifyConsumer for each in outcomes for effect in each.effects)
        self.say(what, len(outcomes), told, seconds)

    @staticmethod
    def say(what: str, count: int, told: int, seconds: float) -> None:
        print(
            f"{what:<44} {count:>7,} in {seconds:6.2f} s {count / seconds:>9,.0f}/s {told:>7,} consumers told"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--consumers", type=int, default=10)
    parser.add_argument("--connections", type=int, default=20_000, help="of each of three nodes")
    options = parser.parse_args()
    gc.disable()
    bench = Bench(options.groups, options.consumers, options.connections)
    bench.run("register", bench.registrations(), 0)
    bench.run("activate", bench.answers(), 0)
    lost = [sac.ConnectionDown(one, sac.DownReason.NOCONNECTION) for one in bench.connections["a"]]
    bench.run("a node is lost: its connections", lost, 1_000)
    bench.due("60 s later: they are forgotten", 61_000)
    bench.run("the node is back", [sac.NodeUp("a")], 70_000)
    back = [sac.ConnectionReconnected(one) for one in bench.connections["a"]]
    bench.run("its connections report", back, 70_000)
    bench.run("activate", bench.answers(), 70_000)
    ended = [sac.ConnectionDown(one) for one in bench.connections["b"]]
    bench.run("a node ends: its connections", ended, 80_000)
    bench.run("activate", bench.answers(), 80_000)
    bench.run("a tick purges the third node", [sac.Tick(nodes=("a", "b"))], 90_000)
    loaded = SacCoordinator()
    started = time.process_time()
    loaded.replay(bench.runtime.journal, 100_000)  # type: ignore[attr-defined]
    Bench.say("replay: groups", len(loaded.state.groups), 0, time.process_time() - started)
    assert loaded.hard_state() == bench.coordinator.hard_state()


if __name__ == "__main__":
    main()
