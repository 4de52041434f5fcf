"""Kafka Streams in the protocol of streams groups (KIP-1071) against our endpoint. Needs a JDK."""

from __future__ import annotations

import signal
import time

import aiokafka
import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

VALUES = [f"value {number}" for number in range(40)]


async def produce(served) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=served.bootstrap_servers) as producer:
        for number, value in enumerate(VALUES):
            await producer.send_and_wait("orders", value.encode(), key=value.encode(), partition=number % 4)


def tasks(instance) -> tuple[set[str], set[str]]:
    """The active and the standby tasks that an instance runs just now."""
    instance.tell("tasks")
    line = instance.wait(lambda one: one.startswith("TASKS"))
    active, standby = ({*text.split(",")} - {"-"} for text in line.split()[1:])
    return active, standby


def wait_tasks(instance, active: int, standby: int = 0) -> None:
    """Until it runs that many."""
    deadline = time.monotonic() + 60
    while tuple(map(len, tasks(instance))) != (active, standby):
        assert time.monotonic() < deadline, f"it only said {instance.said[-20:]}"
        time.sleep(0.2)


def reads(instance, wanted: set[str]) -> None:
    """Until it has read them all."""
    missing = wanted - {line.removeprefix("RECORD ") for line in instance.said}
    while missing:
        missing.discard(instance.wait(lambda line: line.startswith("RECORD")).removeprefix("RECORD "))


def running(instance) -> None:
    instance.wait(lambda line: line.startswith("STATE RUNNING"))


@pytest.fixture
def session_ms() -> int:
    return 6_000


@pytest.fixture
def application(served, streams_application):
    """Starts instances of one application: 12 tasks that read, and 12 that keep state if it counts."""

    def start(topology: str, threads: int = 1):
        threads = f"num.stream.threads={threads}"  # type: ignore[assignment]
        return streams_application(
            served.bootstrap_servers, "app", "streams", topology, "orders", "single", threads
        )

    return start


@pytest.mark.long
async def test_two_instances_run_share_and_take_over(served, application):
    await produce(served)
    first = application("count")
    running(first)
    image = served.look(lambda broker: broker.cluster.image)
    internal = {name: topic.partitions for name, topic in image.by_name.items() if name.startswith("app-")}
    assert internal == {"app-counts-repartition": 12, "app-counts-changelog": 12}
    reads(first, set(VALUES))
    second = application("count")
    running(second)
    wait_tasks(first, 12)
    wait_tasks(second, 12)
    group = served.look(lambda broker: broker.coordinator.streams.groups["app"])
    assert group.state == "Stable"
    assert len({member.process_id for member in group.members.values()}) == 2
    second.tell("describe")
    seen = second.wait(lambda line: line.startswith("GROUP"))
    assert seen == "GROUP Stable members 2 subtopologies 2 tasks 24"
    first.process.send_signal(signal.SIGKILL)
    wait_tasks(second, 24)
    assert not any(line.startswith("RECORD") for line in second.said), "what was committed is not read again"
    second.close()
    assert served.look(lambda broker: len(broker.coordinator.streams.groups["app"].members)) == 0


async def test_an_application_shuts_down_as_a_whole(served, application):
    first, second = application("copy"), application("copy", threads=2)
    running(first)
    running(second)
    wait_tasks(first, 4)
    wait_tasks(second, 8)
    first.tell("throw SHUTDOWN_APPLICATION")
    assert first.wait(lambda line: line.startswith("UNCAUGHT")).endswith("SHUTDOWN_APPLICATION")
    for instance in (first, second):
        instance.wait(lambda line: line == "STATE ERROR PENDING_ERROR")
    for instance in (first, second):
        instance.close()
