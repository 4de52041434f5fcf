"""What the wire endpoint costs, beside franz-go's kfake in the same run where Go is there.

    python benchmarks/wire.py [--seconds N] [--json] [--no-kfake]

The server has a process of its own; this process makes the load with requests that were encoded before.
CPU time is the server's, from /proc. On a shared machine only the ratio within one run says anything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.codec.framing import FrameBuffer
from fencepost.coordinator.config import GroupCoordinatorConfig, NewTopicConfig
from fencepost.coordinator.server.broker import Broker
from fencepost.coordinator.server.broker_config import BrokerConfig
from fencepost.coordinator.server.loop import new_event_loop
from fencepost.coordinator.server.serve import serve
from fencepost.coordinator.server.topic_configs import TopicDefaults

HERE = Path(__file__).resolve()
KFAKE = HERE.parent / "kfake"
KFAKE_BINARY = HERE.parents[1] / "out" / "benchmarks" / "kfake"
CONNECTIONS = (1, 100, 1_000)
TOPICS = {"one": 1, "thousand": 1_000, "log": 4}
RECORDS = 100
_TICKS = os.sysconf("SC_CLK_TCK")
_read_heartbeat = entity_reader(load_response_schema(68, 1))


def frame(key: int, version: int, fields: dict[str, Any], number: int = 1) -> bytes:
    schema = load_request_schema(key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, schema(**fields))
    body = struct.pack(">hhih", key, version, number, 5) + b"bench"
    body += (b"\0" if schema.__flexible__ else b"") + buffer.getvalue()
    return struct.pack(">i", len(body)) + body


def nested(key: int, version: int, kind: str, /, **fields: Any) -> Any:
    module = load_request_schema(key, version).__module__
    return getattr(sys.modules[module], kind)(**fields)


def heartbeat(group: str, member: str, epoch: int, *, topic: str | None = None, owned: Any = None) -> bytes:
    return frame(
        68,
        1,
        {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "rebalance_timeout": timedelta(milliseconds=300_000 if topic else -1),
            "subscribed_topic_names": (topic,) if topic else None,
            "topic_partitions": () if topic else owned,
        },
    )


class Client(asyncio.Protocol):
    """Hands each answer, without its length, to `answered`."""

    def __init__(self, answered: Callable[[Client, bytes], None]) -> None:
        self.frames = FrameBuffer()
        self.answered = answered
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.frames.feed(data)
        while (answer := self.frames.next_frame()) is not None:
            self.answered(self, answer)


async def connect(port: int, answered: Callable[[Client, bytes], None]) -> Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(answered), "127.0.0.1", port)
    return client


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r":(\d+)\s*$", self.process.stdout.readline())
        assert found is not None
        self.start_s = time.perf_counter() - started
        self.port = int(found[1])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


async def heartbeats(server: Server, connections: int, seconds: float) -> dict[str, float]:
    """Members of one group each, so that the group's size costs nothing; each sends when it was answered."""
    count, running = 0, False
    steady: dict[Client, bytes] = {}
    joined = asyncio.Event()

    def answered(client: Client, data: bytes) -> None:
        nonlocal count
        again = steady.get(client)
        if again is None:
            reply, _ = _read_heartbeat(data, 5)
            assert reply.error_code == 0, reply
            number = len(steady)
            steady[client] = heartbeat(f"hb-{connections}-{number}", f"m{number}", reply.member_epoch)
            joined.set()
            return
        count += 1
        if running:
            client.transport.write(again)

    clients = []
    for number in range(connections):
        client = await connect(server.port, answered)
        clients.append(client)
        joined.clear()
        client.transport.write(heartbeat(f"hb-{connections}-{number}", f"m{number}", 0, topic="one"))
        await joined.wait()
    running = True
    cpu, began = server.cpu_s(), time.perf_counter()
    for client in clients:
        client.transport.write(steady[client])
    await asyncio.sleep(seconds)
    running = False
    took, used = time.perf_counter() - began, server.cpu_s() - cpu
    for client in clients:
        client.transport.close()
    await asyncio.sleep(0.05)
    return {"per_second": count / took, "cpu_us": used / count * 1e6}


async def first_assignment(server: Server, rounds: int = 50) -> float:
    """Milliseconds from connecting to the answer that holds the assignment, FindCoordinator included."""
    times = []
    for number in range(rounds):
        done = asyncio.get_running_loop().create_future()

        def answered(client: Client, data: bytes, number: int = number, done: Any = done) -> None:
            if data[:4] == b"\0\0\0\2":
                client.transport.write(heartbeat(f"first-{number}", "m", 0, topic="one"))
            else:
                reply, _ = _read_heartbeat(data, 5)
                done.set_result(len(reply.assignment.topic_partitions))

        began = time.perf_counter()
        client = await connect(server.port, answered)
        keys = {"key_type": 0, "coordinator_keys": (f"first-{number}",)}
        client.transport.write(frame(10, 4, keys, number=2))
        assert await done == 1
        times.append((time.perf_counter() - began) * 1e3)
        client.transport.close()
    return statistics.median(times)


async def thousand_join(server: Server, members: int = 1_000) -> dict[str, float]:
    """Seconds, and seconds of the server's CPU, until members that join back to back have a partition each.

    Each acknowledges what it got and asks again at once, as no client would; so the time is the server's.
    """
    owned: dict[int, int] = {}
    finished = asyncio.get_running_loop().create_future()

    def answered_by(number: int) -> Callable[[Client, bytes], None]:
        name = f"m{number:04}"

        def answered(client: Client, data: bytes) -> None:
            reply, _ = _read_heartbeat(data, 5)
            assert reply.error_code == 0, reply
            acknowledged = None
            if reply.assignment is not None:
                parts = reply.assignment.topic_partitions
                owned[number] = sum(len(part.partitions) for part in parts)
                acknowledged = tuple(
                    nested(68, 1, "TopicPartitions", topic_id=part.topic_id, partitions=part.partitions)
                    for part in parts
                )
            if len(owned) == members and all(count == 1 for count in owned.values()):
                if not finished.done():
                    finished.set_result(None)
                return
            again = heartbeat("thousand", name, reply.member_epoch, owned=acknowledged)
            delay = 0.0 if acknowledged is not None else 0.02
            asyncio.get_running_loop().call_later(delay, client.transport.write, again)

        return answered

    cpu, began = server.cpu_s(), time.perf_counter()
    clients = []
    for number in range(members):
        client = await connect(server.port, answered_by(number))
        clients.append(client)
        client.transport.write(heartbeat("thousand", f"m{number:04}", 0, topic="thousand"))
    await asyncio.wait_for(finished, 120)
    found = {"s": time.perf_counter() - began, "cpu_s": server.cpu_s() - cpu}
    for client in clients:
        client.transport.close()
    return found


def batch() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    value = os.urandom(1_000)
    for number in range(RECORDS):
        builder.append(number, 1_000, None, value, [])
    return bytes(builder.build())


async def produce(server: Server, seconds: float, depth: int = 5) -> dict[str, float]:
    records = batch()
    partition = nested(0, 9, "PartitionProduceData", index=0, records=records)
    topic = nested(0, 9, "TopicProduceData", name="log", partition_data=(partition,))
    request = frame(0, 9, {"acks": 1, "timeout": timedelta(milliseconds=1_000), "topic_data": (topic,)})
    count, running = 0, True

    def answered(client: Client, data: bytes) -> None:
        nonlocal count
        count += 1
        if running:
            client.transport.write(request)

    client = await connect(server.port, answered)
    client.transport.write(request)
    await asyncio.sleep(1.0)  # the first batch makes the server load what it needs
    cpu, began, before = server.cpu_s(), time.perf_counter(), count
    for _ in range(depth - 1):
        client.transport.write(request)
    await asyncio.sleep(seconds)
    running = False
    took, used, sent = time.perf_counter() - began, server.cpu_s() - cpu, (count - before) * len(records)
    await asyncio.sleep(0.1)
    client.transport.close()
    return {"mb_per_second": sent / took / 1e6, "cpu_us_per_mb": used / (sent / 1e6) * 1e6}


async def fetch(server: Server, seconds: float) -> dict[str, float]:
    """Reads the start of the log again and again, a megabyte a request."""
    partition = nested(1, 12, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = nested(1, 12, "FetchTopic", topic="log", partitions=(partition,))
    fields = {"min_bytes": 1, "topics": (topic,), "forgotten_topics_data": ()}
    request = frame(1, 12, {"max_wait": timedelta(milliseconds=500), **fields})
    received, running = 0, True

    def answered(client: Client, data: bytes) -> None:
        nonlocal received
        received += len(data)
        if running:
            client.transport.write(request)

    client = await connect(server.port, answered)
    cpu, began = server.cpu_s(), time.perf_counter()
    client.transport.write(request)
    await asyncio.sleep(seconds)
    running = False
    took, used = time.perf_counter() - began, server.cpu_s() - cpu
    await asyncio.sleep(0.1)
    client.transport.close()
    return {"mb_per_second": received / took / 1e6, "cpu_us_per_mb": used / (received / 1e6) * 1e6}


async def measure(server: Server, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"idle_rss_mb": server.rss_mb()}
    for connections in CONNECTIONS:
        found[f"heartbeats_{connections}"] = await heartbeats(server, connections, seconds)
    found["first_assignment_ms"] = await first_assignment(server)
    found["thousand_join"] = await thousand_join(server)
    found["produce"] = await produce(server, min(seconds, 2.0))
    found["fetch"] = await fetch(server, seconds)
    found["rss_mb"] = server.rss_mb()
    return found


def kfake_command() -> list[str] | None:
    """kfake, built once; None where there is no Go, or its modules can't be had."""
    if shutil.which("go") is None:
        return None
    if not KFAKE_BINARY.exists():
        KFAKE_BINARY.parent.mkdir(parents=True, exist_ok=True)
        build = ["go", "build", "-mod=mod", "-o", str(KFAKE_BINARY), "."]
        done = subprocess.run(build, cwd=KFAKE, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"kfake can't be built: {done.stderr[-300:]}", file=sys.stderr)
            return None
    return [str(KFAKE_BINARY), *(f"{name}:{count}" for name, count in TOPICS.items())]


@contextlib.contextmanager
def running(name: str, command: list[str]) -> Iterator[Server]:
    server = Server(name, command)
    try:
        yield server
    finally:
        server.end()


async def serve_forever() -> None:
    def ready(broker: Broker) -> None:
        print(f"ready {broker.bootstrap_servers}", flush=True)

    config = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=0)
    await serve("127.0.0.1", 0, TOPICS, BrokerConfig(config, NewTopicConfig(), TopicDefaults()), ready)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-kfake", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve_forever())
        return
    commands = {"fencepost": [sys.executable, str(HERE), "--serve"]}
    if not arguments.no_kfake and (peer := kfake_command()) is not None:
        commands["kfake"] = peer
    results = {}
    for name, command in commands.items():
        with running(name, command) as server:
            results[name] = asyncio.run(measure(server, arguments.seconds))
    if arguments.json:
        print(json.dumps(results))
        return
    rows = {
        **{
            f"heartbeats/s, {n} connections": lambda r, n=n: r[f"heartbeats_{n}"]["per_second"]
            for n in CONNECTIONS
        },
        **{
            f"CPU us a heartbeat, {n} connections": lambda r, n=n: r[f"heartbeats_{n}"]["cpu_us"]
            for n in CONNECTIONS
        },
        "connect to first assignment, ms": lambda r: r["first_assignment_ms"],
        "1,000 members x 1,000 partitions, s": lambda r: r["thousand_join"]["s"],
        "the same, the server's CPU, s": lambda r: r["thousand_join"]["cpu_s"],
        "produce, MB/s": lambda r: r["produce"]["mb_per_second"],
        "fetch, MB/s": lambda r: r["fetch"]["mb_per_second"],
        "CPU us a MB produced": lambda r: r["produce"]["cpu_us_per_mb"],
        "CPU us a MB fetched": lambda r: r["fetch"]["cpu_us_per_mb"],
        "memory idle, MB": lambda r: r["idle_rss_mb"],
        "memory at the end, MB": lambda r: r["rss_mb"],
    }
    print(f"{'':42}" + "".join(f"{name:>14}" for name in results))
    for title, value in rows.items():
        print(f"{title:42}" + "".join(f"{value(result):14,.1f}" for result in results.values()))


if __name__ == "__main__":
    main()
