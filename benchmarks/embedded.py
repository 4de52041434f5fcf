"""What an embedded Kafka costs a test, beside kfake and confluent-kafka's mock cluster in the same run.

    python benchmarks/embedded.py [--rounds N] [--json] [--no-kfake] [--no-mock]

Start to ready in a warm process; from `subscribe` to a first assignment for real clients, each time in a new
group, the servers taking turns; the same with a new server each time, its start included; memory over a bare
Python with pytest. kfake is built where Go is there. What a server can't do is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import aiokafka
from confluent_kafka import Consumer, Producer
from wire import kfake_command, running

from fencepost import EmbeddedKafka

TOPIC = "one"
LIMIT_S = 30.0
PAUSE_S = 0.02
"""Before each join: what a server does behind its last answers is not in another one's time."""


def start_ms(rounds: int, brokers: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        kafka = EmbeddedKafka(brokers=brokers, topics={TOPIC: 1})
        kafka.start()
        times.append((time.perf_counter() - began) * 1e3)
        kafka.close()
    return statistics.median(times[1:])


def confluent_ms(servers: str) -> float:
    """Milliseconds until librdkafka, with group.protocol=consumer, tells that it has its partition."""
    assigned_at: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "group.protocol": "consumer",
            "log_level": 0,
        }
    )
    began = time.perf_counter()
    consumer.subscribe([TOPIC], on_assign=lambda *_: assigned_at.append(time.perf_counter()))
    while not assigned_at:
        if time.perf_counter() - began > LIMIT_S:
            raise TimeoutError
        # As applications do it: a poll that returns every millisecond competes with the server for Python.
        consumer.poll(0.1)
    consumer.close()
    return (assigned_at[0] - began) * 1e3


class Assigned(aiokafka.ConsumerRebalanceListener):
    """Notes when the first partitions are assigned."""

    def __init__(self) -> None:
        self.at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_partitions_revoked(self, revoked: object) -> None:
        """There are none yet."""

    def on_partitions_assigned(self, assigned: object) -> None:
        """The moment that is measured."""
        if not self.at.done():
            self.at.set_result(time.perf_counter())


def aiokafka_ms(servers: str) -> float:
    """Milliseconds until aiokafka, of the classic protocol, tells that it is assigned its partition."""

    async def measure() -> float:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=uuid.uuid4().hex)
        assigned = Assigned()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LIMIT_S):
                consumer.subscribe([TOPIC], listener=assigned)
                await consumer.start()
                return (await assigned.at - began) * 1e3
        finally:
            await consumer.stop()

    return asyncio.run(measure())


CLIENTS: dict[str, Callable[[str], float]] = {"confluent-kafka": confluent_ms, "aiokafka": aiokafka_ms}


@contextmanager
def mock() -> Iterator[str]:
    """librdkafka's mock cluster, in this process."""
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    producer.produce(TOPIC, b"made")
    producer.flush(10)
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"


@contextmanager
def fencepost() -> Iterator[str]:
    """An embedded Kafka."""
    with EmbeddedKafka(topics={TOPIC: 1}) as kafka:
        yield kafka.bootstrap_servers


@contextmanager
def kfake(command: list[str]) -> Iterator[str]:
    """A kfake in a process of its own."""
    with running("kfake", command) as server:
        yield f"127.0.0.1:{server.port}"


def from_nothing(
    kinds: dict[str, Callable[[], AbstractContextManager[str]]], rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds until a new server is ready and confluent-kafka has its first assignment, by server."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds + 1):
        for name, start in kinds.items():
            began = time.perf_counter()
            with start() as address:
                ready_ms = (time.perf_counter() - began) * 1e3
                times[name].append(ready_ms + confluent_ms(address))
    return {name: distribution(each[1:]) for name, each in times.items()}


def first_assignments(servers: dict[str, str], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """By client and server. Mean and slowest tenth tell of joins in which librdkafka waited for nothing."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for client, measure in CLIENTS.items():
        times: dict[str, list[float]] = {name: [] for name in servers}
        able = dict(servers)
        for _ in range(rounds + 1):
            for name, address in tuple(able.items()):
                time.sleep(PAUSE_S)
                try:
                    times[name].append(measure(address))
                except Exception as error:
                    print(f"{client} on {name}: {type(error).__name__}: {error}", file=sys.stderr)
                    del able[name]
        found[client] = {name: distribution(each[1:]) for name, each in times.items() if len(each) > 1}
    return found


def distribution(times: list[float]) -> dict[str, float]:
    """What is told of some durations; `nine of ten` take no longer than that."""
    return {
        "median": statistics.median(times),
        "mean": statistics.mean(times),
        "nine of ten": sorted(times)[(len(times) * 9 - 1) // 10],
    }


MEMORY = """
import re
from pathlib import Path
import pytest
def rss(): return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = rss()
from fencepost import EmbeddedKafka
with EmbeddedKafka(topics={"one": 1}) as kafka:
    kafka.produce("one", "a")
    print(rss() - before)
"""


def memory_mb() -> float:
    return float(subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-kfake", action="store_true")
    parser.add_argument("--no-mock", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, object] = {
        "start_ms": start_ms(100, 1),
        "start_3_brokers_ms": start_ms(100, 3),
        "memory_mb": memory_mb(),
    }
    kinds: dict[str, Callable[[], AbstractContextManager[str]]] = {"fencepost": fencepost}
    if not arguments.no_kfake and (command := kfake_command()) is not None:
        kinds["kfake"] = partial(kfake, command)
    if not arguments.no_mock:
        kinds["mock"] = mock
    with ExitStack() as stack:
        servers = {name: stack.enter_context(start()) for name, start in kinds.items()}
        assignments = first_assignments(servers, arguments.rounds)
    assignments["from nothing"] = from_nothing(kinds, arguments.rounds)
    if arguments.json:
        print(json.dumps({**result, "first_assignment_ms": assignments}))
        return
    for title, value in result.items():
        print(f"{title:28}{value:10.1f}")
    print(f"\n{'first assignment, ms':28}" + "".join(f"{name:>12}" for name in servers))
    for client, by_server in assignments.items():
        for kind in distribution([0.0]):
            shown = (f"{by_server[name][kind]:.1f}" if name in by_server else "" for name in servers)
            print(f"{f'{client}, {kind}':28}" + "".join(f"{each:>12}" for each in shown))


if __name__ == "__main__":
    main()
