"""Kills `fencepost serve --journal` again and again under load, and looks for what was lost.

    python benchmarks/crash.py [--cycles N] [--seed N] [--json]

Three members of a group process and commit what an idempotent producer sends, all over one server process
that is killed (SIGKILL) at random moments and started again on its journal. Nobody is told; clients find out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from fencepost import KIP848Consumer
from fencepost.coordinator.codec.offsets import OffsetFetchCall, OffsetFetchGroup
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.brokers.connection import BrokerConnection

GROUP, TOPIC, PARTITIONS, MEMBERS = "crash", "orders", 6, 3
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
    # Who is silent for a while is no dead member: a busy machine may stop all of this for a minute.
    "group.consumer.max.session.timeout.ms": 1_800_000,
    "group.consumer.session.timeout.ms": 1_800_000,
}
READY_S = 60.0
MOMENT_S = 0.4
"""A kill comes up to that long after the first commit since the start."""


class Server:
    """One process at a time, always on the same port and journal."""

    def __init__(self, journal: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = [word for name, value in SETTINGS.items() for word in ("--config", f"{name}={value}")]
        self._command = [
            *(sys.executable, "-m", "fencepost.simulation", "serve", "--port", str(self.port)),
            *("--topics", f"{TOPIC}:{PARTITIONS}", "--journal", str(journal), "--journal-records", *settings),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self.starts_s: list[float] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        began = time.perf_counter()
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), READY_S)
        assert line.startswith(b"fencepost ready"), f"the server did not start again: {line!r}"
        self.starts_s.append(time.perf_counter() - began)

    async def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class Member:
    """A consumer that commits all it gets, and remembers what was acknowledged."""

    def __init__(self, servers: str) -> None:
        self.epochs = [0]
        self.assignments = 0
        self.committed: dict[int, int] = {}
        self.commits = 0
        self.consumer = KIP848Consumer(
            TOPIC,
            bootstrap_servers=servers,
            group_id=GROUP,
            listener=self,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.assignments += bool(partitions)

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        pass

    def has_committed_its_share(self) -> bool:
        """Whether it owns what it owns once all have joined, and has committed all of that."""
        owned = {one.partition for one in self.consumer.assignment()}
        return len(owned) == PARTITIONS // MEMBERS and owned <= self.committed.keys()

    async def run(self) -> None:
        while True:
            try:
                found = await self.consumer.getmany(timeout_ms=50)
                offsets = {one: records[-1].offset + 1 for one, records in found.items() if records}
                if offsets:
                    await self.consumer.commit(offsets)
                    self.commits += 1
                    self.committed.update({one.partition: offset for one, offset in offsets.items()})
            except (KafkaError, OSError):
                await asyncio.sleep(0.01)
            self.epochs.append(self.consumer.member_epoch)


class Load:
    """An idempotent producer that never stops, and where each acknowledged value went."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.sent = 0

    async def run(self, servers: str) -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
            while True:
                number, self.sent = self.sent, self.sent + 1
                future = await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                future.add_done_callback(lambda done, number=number: self._done(done, number))
                if number % 20 == 0:
                    await asyncio.sleep(0.005)

    def _done(self, future: asyncio.Future[Any], number: int) -> None:
        if not future.cancelled() and future.exception() is None:
            found = future.result()
            self.acknowledged[found.partition, found.offset] = number


async def committed(server: Server) -> dict[int, int]:
    """What the server says is committed."""
    connection = await BrokerConnection.open("127.0.0.1", server.port, "judge")
    try:
        group = OffsetFetchGroup(group_id=GROUP, topics=None)
        call = OffsetFetchCall(groups=(group,), require_stable=False, api_version=9)
        reply = await connection.ask(ApiKey.OFFSET_FETCH, 9, call)
        return {
            one.partition: one.offset.offset for topic in reply.groups[0].topics for one in topic.partitions
        }
    finally:
        await connection.close()


async def stored(server: Server) -> dict[tuple[int, int], int]:
    """All records, by partition and offset."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=server.address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: dict[tuple[int, int], int] = {}
        while len(found) < sum(ends.values()):
            for one, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found.update({(one.partition, record.offset): int(record.value) for record in records})
        return found
    finally:
        await consumer.stop()


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def until(condition: Any, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


async def crash(cycles: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kill and start as often as asked; what was lost, and what members saw."""
    rng = random.Random(seed)
    server = Server(folder / "journal")
    await server.start()
    members = [Member(server.address) for _ in range(MEMBERS)]
    for member in members:
        await member.consumer.start()
    load = Load()
    tasks = [asyncio.ensure_future(member.run()) for member in members]
    tasks.append(asyncio.ensure_future(load.run(server.address)))
    await until(lambda: all(m.has_committed_its_share() for m in members), "the group did not settle")
    settled = [(member.consumer.member_epoch, member.assignments) for member in members]
    lost_offsets = 0
    for _ in range(cycles):
        before = sum(member.commits for member in members)
        await until(lambda n=before: sum(m.commits for m in members) > n, "no member commits any more")  # type: ignore[misc]
        await asyncio.sleep(rng.uniform(0, MOMENT_S))
        await server.kill()
        acknowledged = {n: offset for member in members for n, offset in member.committed.items()}
        await server.start()
        after = await committed(server)
        lost_offsets += sum(after.get(number, -1) < offset for number, offset in acknowledged.items())
        for task in tasks:
            if task.done():
                task.result()
    commits = sum(member.commits for member in members)
    tasks[-1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[-1]
    there = await stored(server)
    rebalances = sum(
        (member.consumer.member_epoch, member.assignments) != found
        for member, found in zip(members, settled, strict=True)
    )
    for task in tasks[:-1]:
        task.cancel()
    for member in members:
        await member.consumer.stop()
    await server.kill()
    return {
        "cycles": cycles,
        "commits": commits,
        "lost_offsets": lost_offsets,
        "records": len(load.acknowledged),
        "lost_records": sum(there.get(place) != number for place, number in load.acknowledged.items()),
        "duplicates": len(there) - len(set(there.values())),
        "epochs_that_went_back": sum(
            later < earlier
            for member in members
            for earlier, later in zip(member.epochs, member.epochs[1:], strict=False)
        ),
        "rebalances": rebalances,
        "start_ms": statistics.median(server.starts_s) * 1e3,
        "journal_bytes": size_of(folder),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=200, help="how often it is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.disable()  # aiokafka tells of each connection that breaks
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = asyncio.run(crash(arguments.cycles, arguments.seed, Path(folder)))
        except EnvironmentLacks as error:
            sys.exit(str(error))
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):24}{value:12,.0f}")


if __name__ == "__main__":
    main()
