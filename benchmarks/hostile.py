"""How long a well-behaved client waits while a server is sent one hostile input, for every API.

    python benchmarks/hostile.py [--bytes N] [--only TEXT] [--json]

A server runs in a process of its own. One client asks for versions without a pause. Another client sends a
single frame. For each list in the newest request schema of each API there are frames with as many of the
smallest elements as fit, and with as many as the server takes: with different names, one name repeated, and
empty ones. There are frames with empty tagged fields, and Produce with very many records for each codec. The
frames come from kio's schemas, so a new API is measured without being listed here.

Printed for each input: its size, the response, the longest wait of the first client by the clock and in the
server's CPU time, and how memory grew. Other programs on the machine lengthen the former, not the latter.
The last line says how long SIGTERM takes while the slowest input is served.

Then come crowds (`--only crowd`): many connections that act together, each kind against a server of its own.
Printed for each: the same waits, the server's CPU time in all, how memory grew, and how long SIGTERM takes in
the midst of it.

The exit code is 1 if more than one second of CPU time passes while the first client waits, memory grew by
more than 100 MB (by a crowd: 700 MB), or SIGTERM takes more than two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import operator
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from kio.index import load_request_schema

from fencepost.coordinator.codec.fields import WireField, wire_fields
from fencepost.coordinator.codec.reader import LIST_COST, NUMBER_COST, STRING_COST, STRUCT_COST
from fencepost.coordinator.codec.record_checks import MAX_RECORDS
from fencepost.coordinator.codec.registry import SPOKEN, ApiKey
from fencepost.coordinator.codec.schema import MAX_REQUEST_ELEMENTS
from fencepost.coordinator.codec.writer import LayoutField, field_writer, fields_writer, unsigned_varint
from fencepost.coordinator.protocol.ids import topic_id_from_uuid
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame
from fencepost.coordinator.rabbit_codec.codec import encode

WAIT_S = 1.0
MEMORY_MB = 100
CROWD_MEMORY_MB = 700
"""Twice the budget of 256 MiB, for requests and for responses, and what is not counted."""
CROWD_S = 6.0
"""Time that a crowd has, in s."""
SIGTERM_S = 2.0
GIVE_UP_S = 60.0
ASKS_EVERY_S = 0.01
SLACK = 200
"""The most that the structs and lists around a long list cost, in elements."""
TOPIC, GROUP = "t", "g"
METADATA_BYTES = 4_000
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip_encode),
    "snappy": (2, snappy_encode),
    "lz4": (3, lz4_encode),
    "zstd": (4, zstd_encode),
}
"""By name: the number in a batch's attributes, and what compresses."""

Name = Callable[[int], str]
OPENING: tuple[Frame, ...] = (
    frames.PeerProperties(1),
    frames.SaslHandshake(2),
    frames.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
    frames.Tune(1 << 20, 0),
    frames.Open(4, "/"),
    frames.Create(5, TOPIC, {}),
)
"""RabbitMQ's handshake, and a stream. Each frame has one response."""
NAMES: dict[str, Name] = {
    "empty": lambda number: "",
    "different": lambda number: f"{number:x}",
    "one topic": lambda number: TOPIC,
    "one group": lambda number: GROUP,
}


class Hostile(NamedTuple):
    """One input."""

    name: str
    frame: bytes


def lists(entity: Any) -> Iterator[tuple[WireField, ...]]:
    """The list fields of a schema's class, each with the fields that lead to it."""
    for field in wire_fields(entity):
        if field.is_array and (field.tag is None or field.struct is not None):
            yield (field,)
        if field.struct is not None:
            for path in lists(field.struct):
                yield (field, *path)


def _value(field: WireField, path: tuple[WireField, ...], count: int, name: Name, number: int) -> Any:
    """The value of a field: `count` elements if the path ends here, one if it goes on here."""
    is_here = bool(path) and path[0] is field
    if field.is_array:
        if is_here:
            elements = range(count if len(path) == 1 else 1)
        else:  # within the elements of the list that is long
            elements = range(0 if path or not name(0) else 1)
        if field.struct is not None:
            return tuple(
                _struct(field.struct, path[1:] if is_here else (), count, name, each) for each in elements
            )
        return tuple(_plain(field, name, each) for each in elements)
    if field.struct is not None:
        if field.is_nullable and not is_here:
            return None
        return _struct(field.struct, path[1:] if is_here else (), count, name, number)
    if field.is_nullable and field.kafka_type != "string":
        return None
    return _plain(field, name, number)


def _cost(field: WireField, *, inner: bool) -> int:
    """Return the cost of one element of a list. With `inner`, each list inside it has one element too."""
    if field.struct is None:
        return STRING_COST if field.kafka_type in {"string", "bytes", "records"} else NUMBER_COST
    own = (each for each in wire_fields(field.struct) if each.is_array and each.tag is None)
    return STRUCT_COST + sum(LIST_COST + (_cost(each, inner=True) if inner else 0) for each in own)


def _plain(field: WireField, name: Name, number: int) -> Any:
    match field.kafka_type:
        case "string":
            return name(number)
        case "bytes":
            return b""
        case "records":
            return None
        case "uuid":
            return topic_id_from_uuid(uuid.UUID(int=number))
        case "bool":
            return True
        case "int16" if field.name == "acks":
            return -1
        case "int8" if field.name in {"resource_type", "key_type"}:
            return 2 if field.name == "resource_type" else 0
        case "int32" if field.is_array or field.name.startswith("partition"):
            return number if name(0) != name(1) else 0
        case _:
            return 0


def body(entity: Any, path: tuple[WireField, ...], count: int, name: Name) -> bytes:
    written = _struct(entity, path, count, name, 0)
    return written if isinstance(written, bytes) else b"".join(written)


def _struct(entity: Any, path: tuple[WireField, ...], count: int, name: Name, number: int) -> Any:
    values = {
        field: _value(field, path, count, name, number)
        for field in wire_fields(entity)
        if field.tag is None or (path and path[0] is field)
    }
    writers = (
        LayoutField(field, operator.itemgetter(field), field_writer(field, flexible=entity.__flexible__))
        for field in values
    )
    return fields_writer(entity, writers)(values)


def _frame(api_key: int, version: int, body: bytes, tags: bytes | None = None) -> bytes:
    header = struct.pack(">hhih", api_key, version, 1, 1) + b"x"
    if load_request_schema(api_key, version).__flexible__:
        header += b"\x00" if tags is None else tags
    return struct.pack(">i", len(header) + len(body)) + header + body


def of_schemas(size: int, is_wanted: Callable[[str], object] = bool) -> Iterator[Hostile]:
    """Frames of about `size` bytes, for every list of every API, if their names are wanted."""
    for api in SPOKEN:
        key, version = ApiKey(api.api_key), api.max_version
        entity = load_request_schema(key, version)
        for path, (kind, name) in itertools.product(lists(entity), NAMES.items()):
            where = ".".join(field.name for field in path)
            if not is_wanted(f"{key.name} {where}, {kind}"):
                continue
            small = len(body(entity, path, 1_000, name)) - len(body(entity, path, 0, name))
            many = max(1, size * 1_000 // max(1, small))
            allowed = (MAX_REQUEST_ELEMENTS - SLACK) // _cost(path[-1], inner=name(0) != "")
            for count in sorted({many, min(many, allowed)}):
                frame = _frame(key, version, body(entity, path, count, name))
                yield Hostile(f"{key.name} {where}, {kind}, {count:,}", frame)
        if entity.__flexible__ and is_wanted(f"{key.name} tags of the header"):
            tags = unsigned_varint(size // 2) + b"\x05\x00" * (size // 2)
            yield Hostile(
                f"{key.name} tags of the header", _frame(key, version, body(entity, (), 0, str), tags)
            )


def of_codecs(size: int) -> Iterator[Hostile]:
    """One batch of as many empty records as the server takes, by each codec."""
    for codec in CODECS:
        for count in (MAX_RECORDS >> halves for halves in itertools.count()):
            records = b"".join(
                b"%c\x00\x00" % (2 * (5 + len(delta))) + delta + b"\x01\x01\x00"
                for delta in (unsigned_varint(2 * each) for each in range(count))
            )
            frame = produced(records, count, codec)
            if len(frame) <= size:
                yield Hostile(f"PRODUCE {count:,} empty records, {codec}", frame)
                break


def _crc32c(data: bytes) -> int:
    from fencepost.coordinator.codec.batches import _crc32c as function

    return function()(data)


def _text(text: str) -> bytes:
    return unsigned_varint(len(text) + 1) + text.encode()


def _list(elements: Sequence[bytes]) -> bytes:
    return unsigned_varint(len(elements) + 1) + b"".join(elements)


def of_strings_and_topologies() -> Iterator[Hostile]:
    """A long string, and a chain of repartition topics, the last one first."""
    body = b"\x00" + _text("i" * 2_000_000) + struct.pack(">i", 1_000) + b"\x00"
    yield Hostile("INIT_PRODUCER_ID id of 2 MB", _frame(ApiKey.INIT_PRODUCER_ID, 2, body))

    def part(name: str, sources: Sequence[str], reads: Sequence[str], writes: str) -> bytes:
        topics = [_text(each) + struct.pack(">ih", 0, 1) + b"\x01\x00" for each in reads]
        own = _text(name) + _list([_text(each) for each in sources]) + b"\x01\x01" + _list([_text(writes)])
        return own + _list(topics) + b"\x01\x00"

    chain = [part("first", [TOPIC], [], "d0")]
    chain += (part(f"s{number}", [], [f"d{number}"], f"d{number + 1}") for number in range(1_500))
    body = b"\x00" + _text("streams") + _text("m" * 22) + struct.pack(">ii", 0, 0) + b"\x00\x00"
    body += struct.pack(">i", 300_000) + b"\x01" + struct.pack(">i", 1) + _list(chain[::-1]) + b"\x00"
    body += b"\x01\x01\x01" + _text("p") + b"\xff\x01\x00\x00\x00\x00"
    yield Hostile("STREAMS_GROUP_HEARTBEAT chain of 1,500", _frame(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body))


def produced(records: bytes, count: int, codec: str) -> bytes:
    """A Produce request with one batch of records that are encoded already."""
    number, compress = CODECS[codec]
    data = compress(records)
    fields = struct.pack(">hiqqqhii", number, count - 1, 1, 1, -1, -1, -1, count) + data
    batch = struct.pack(">qiibI", 0, 9 + len(fields), -1, 2, _crc32c(fields)) + fields
    topic = struct.pack(">hi", len(TOPIC), 1)[:2] + TOPIC.encode()
    body = struct.pack(">hhii", -1, -1, 5_000, 1) + topic + struct.pack(">iii", 1, 0, len(batch)) + batch
    return _frame(ApiKey.PRODUCE, 7, body)


def _record(value: bytes) -> bytes:
    body = b"\x00\x00\x00\x01" + unsigned_varint(2 * len(value)) + value + b"\x00"
    return unsigned_varint(2 * len(body)) + body


class Crowd(NamedTuple):
    """Many connections that act together."""

    name: str
    connections: int
    frames: Callable[[int], bytes]
    """What the connection of that number sends."""
    reads: bool = True
    """True if the clients read responses."""
    good: bytes = b""
    """The request of the client that waits, if not for versions."""
    opening: bytes = b""
    """RabbitMQ's handshake, if a stream broker is meant."""


def _batch(size: int) -> bytes:
    """A batch of that size that compresses well, as JSON does."""
    return produced(_record(b'{"name": "value"}' * (size // 17)), 1, "zstd")


def crowds() -> Iterator[Crowd]:
    """Crowds of every kind."""
    resource = b"\x02\x04" + _text("1") + b"\x00\x00" + b"\x01\x01\x00"
    configs = _frame(ApiKey.DESCRIBE_CONFIGS, 4, resource)
    yield Crowd("15 x 64 DescribeConfigs", 15, lambda _: 64 * configs)
    yield Crowd("50 x 64 DescribeConfigs", 50, lambda _: 64 * configs)
    yield Crowd("2,000 x 1 DescribeConfigs", 2_000, lambda _: configs)
    metadata = _frame(ApiKey.METADATA, 5, struct.pack(">ib", -1, 0))
    yield Crowd("2,000 x 500 Metadata, unread", 2_000, lambda _: 500 * metadata, reads=False)
    described = b"\x01" + struct.pack(">i", 2_000) + b"\xff\x00"
    pages = _frame(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, described)
    yield Crowd("10 x 2,000 DescribeTopicPartitions", 10, lambda _: 2_000 * pages)
    unfinished = struct.pack(">i", 100_000_000)
    yield Crowd("40 x 90 MB of 100 MB", 40, lambda _: unfinished + bytes(90_000_000), reads=False)

    def waiting(number: int) -> bytes:
        parts = b"".join(struct.pack(">iqi", each % 50, 0, 1 << 20) for each in range(200))
        body = struct.pack(">iiii", -1, 600_000, 1 << 28, 1 << 29) + b"\x00"
        return _frame(
            ApiKey.FETCH, 4, body + struct.pack(">ih", 1, 1) + b"u" + struct.pack(">i", 200) + parts
        )

    into_u = produced(_record(b"v"), 1, "none").replace(b"\x00\x01" + TOPIC.encode(), b"\x00\x01u", 1)
    yield Crowd("1,000 fetches of 200 partitions wait", 1_000, waiting, reads=False, good=into_u)
    bomb = produced(_record(bytes(60_000_000)), 1, "zstd")
    yield Crowd("20 x 5 zstd bombs of 60 MB", 20, lambda _: 5 * bomb, good=_batch(500_000))

    def topics(number: int) -> bytes:
        each = b"".join(
            struct.pack(">h", len(name)) + name.encode() + struct.pack(">ihii", 1, 1, 0, 0)
            for name in (f"of-{number}-{one}" for one in range(2_000))
        )
        return _frame(ApiKey.CREATE_TOPICS, 2, struct.pack(">i", 2_000) + each + struct.pack(">ib", 1_000, 0))

    yield Crowd("5 x CreateTopics of 2,000", 5, topics)

    def groups(number: int) -> bytes:
        sent = []
        for one in range(500):
            body = _text(f"g{number}-{one}") + _text(f"m{number}-{one}") + struct.pack(">i", 0) + b"\x00\x00"
            body += struct.pack(">i", 1_000) + _list([_text(TOPIC)]) + b"\x00\x00\x01\x00"
            sent.append(_frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body))
        return b"".join(sent)

    yield Crowd("40 x 500 groups of one member", 40, groups)
    opening = b"".join(map(encode, OPENING))
    single = {"single-active-consumer": "true", "name": "g"}

    def consumers(_: int) -> bytes:
        subscribed = (frames.Subscribe(9, number, TOPIC, properties=single) for number in range(200))
        return opening + b"".join(map(encode, subscribed))

    good = encode(frames.QueryOffset(9, "r", TOPIC))
    name = "100 x 200 single active consumers join, and end together"
    yield Crowd(name, 100, consumers, good=good, opening=opening)


def inputs(size: int, part: str) -> Iterator[Hostile]:
    """Those with that text in their names."""
    yield from of_schemas(size, lambda name: part in name.lower())
    yield from (each for each in of_codecs(size) if part in each.name.lower())
    yield from (each for each in of_strings_and_topologies() if part in each.name.lower())


STREAM_BROKER = """
import asyncio, signal
from fencepost.coordinator.rabbit_server.broker import StreamBroker

async def serve():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with StreamBroker(ports=(0,)) as broker:
        print(*broker.addresses, flush=True)
        await ended.wait()

asyncio.run(serve())
"""


class Server:
    """`fencepost serve`, or a stream broker, in a process of its own."""

    def __init__(self, *, of_streams: bool = False) -> None:
        command = [str(Path(sys.executable).with_name("fencepost")), "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", STREAM_BROKER]
            if of_streams
            else [*command, "--topics", f"{TOPIC}:1,u:50"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])
        if not of_streams:
            self._prepare()

    def _prepare(self) -> None:
        """Commit large offsets: what a repeated group multiplies."""
        metadata = struct.pack(">h", METADATA_BYTES) + b"m" * METADATA_BYTES
        parts = b"".join(struct.pack(">iq", number, 1) + metadata for number in range(50))
        body = (
            struct.pack(">h", len(GROUP))
            + GROUP.encode()
            + struct.pack(">i", -1)
            + b"\x00\x00"
            + struct.pack(">ih", 1, 1)
            + b"u"
            + struct.pack(">i", 50)
            + parts
        )
        ask(self.port, _frame(ApiKey.OFFSET_COMMIT, 5, body))

    def memory_mb(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return 0 if found is None else int(found[1]) >> 10

    def cpu_s(self) -> float:
        """The CPU time that the server used, in s."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop_s(self) -> float:
        """Seconds from SIGTERM to the end; the process is killed after a minute."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(GIVE_UP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.perf_counter() - began


def ask(port: int, frame: bytes) -> int:
    """Send a frame and read the whole response: its size, or -1 if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), GIVE_UP_S) as client:
        try:
            client.sendall(frame)
            head = client.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                return -1
            (size,) = struct.unpack(">i", head)
            left = size
            while left > 0:
                data = client.recv(min(left, 1 << 20))
                if not data:
                    return -1
                left -= len(data)
        except OSError:
            return -1
        return int(size)


class Waits(NamedTuple):
    """The longest wait of a client, by the clock and in CPU time of the server."""

    wait_s: float
    wait_cpu_s: float

    def __str__(self) -> str:
        return f"{self.wait_s:.2f} s ({self.wait_cpu_s:.2f} s of CPU time)"


def _read(client: socket.socket) -> None:
    (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
    client.recv(size, socket.MSG_WAITALL)


class WellBehaved:
    """A client that asks for versions without a pause, and notes its longest wait."""

    def __init__(self, server: Server, frame: bytes = b"", opening: bytes = b"") -> None:
        self._server = server
        self._opening = opening
        self._frame = frame or _frame(ApiKey.API_VERSIONS, 0, b"")
        self._stopped = False
        self._longest = Waits(0.0, 0.0)
        self._asked_at: Waits | None = self._now()
        """When it asked; None while it waits for no response."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with (
            contextlib.suppress(OSError, struct.error),
            socket.create_connection(("127.0.0.1", self._server.port)) as client,
        ):
            client.sendall(self._opening)
            for _ in OPENING if self._opening else ():
                _read(client)
            while not self._stopped:
                self._asked_at = self._now()
                client.sendall(self._frame)
                _read(client)
                self._longest = self._with_this_wait()
                self._asked_at = None
                time.sleep(ASKS_EVERY_S)

    def _now(self) -> Waits:
        return Waits(time.perf_counter(), self._server.cpu_s())

    def _with_this_wait(self) -> Waits:
        if (asked_at := self._asked_at) is None:
            return self._longest
        waited = map(operator.sub, self._now(), asked_at)
        return Waits(*map(max, self._longest, waited))

    def longest(self) -> Waits:
        """Return the longest waits since the last call, the present one included."""
        longest = self._with_this_wait()
        self._longest = Waits(0.0, 0.0)
        return longest

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        self._thread.join(1)


class Measured(NamedTuple):
    """The effect of one input on the server."""

    name: str
    sent: int
    answered: int
    took_s: float
    waits: Waits
    memory_mb: int

    @property
    def is_fine(self) -> bool:
        """True if the server stayed responsive and freed the memory."""
        return self.waits.wait_cpu_s <= WAIT_S and self.memory_mb <= MEMORY_MB


def measured(server: Server, good: WellBehaved, hostile: Hostile) -> Measured:
    """Send one input and look what it does."""
    before = server.memory_mb()
    good.longest()
    began = time.perf_counter()
    answered = ask(server.port, hostile.frame)
    took = time.perf_counter() - began
    time.sleep(3 * ASKS_EVERY_S)
    waits = good.longest()
    return Measured(hostile.name, len(hostile.frame), answered, took, waits, server.memory_mb() - before)


class Together(NamedTuple):
    """The effect of a crowd."""

    name: str
    waits: Waits
    cpu_s: float
    memory_mb: int
    sigterm_s: float

    @property
    def is_fine(self) -> bool:
        """True if another client was served, and the server ended when it was asked to."""
        is_quick = self.waits.wait_cpu_s <= WAIT_S and self.sigterm_s <= SIGTERM_S
        return is_quick and self.memory_mb <= CROWD_MEMORY_MB


def crowded(crowd: Crowd) -> Together:
    """Let a crowd act against a server of its own."""
    server = Server(of_streams=bool(crowd.opening))
    good = WellBehaved(server, crowd.good, crowd.opening)
    time.sleep(0.5)
    before, cpu_s = server.memory_mb(), server.cpu_s()
    good.longest()
    members = selectors.DefaultSelector()
    for number in range(crowd.connections):
        client = socket.create_connection(("127.0.0.1", server.port), GIVE_UP_S)
        client.setblocking(False)
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if crowd.reads else 0)
        members.register(client, events, memoryview(crowd.frames(number)))
    most, end = 0, time.perf_counter() + CROWD_S
    while (now := time.perf_counter()) < end:
        for key, events in members.select(0.05):
            _act(members, key, events, reads=crowd.reads)
        most = max(most, server.memory_mb() - before)
        if crowd.opening and now > end - CROWD_S / 2:
            for key in list(members.get_map().values()):
                members.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    waits, used = good.longest(), server.cpu_s() - cpu_s
    good.stop()
    stop_s = server.stop_s()
    for key in list(members.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return Together(crowd.name, waits, used, most, stop_s)


def _act(members: selectors.BaseSelector, key: selectors.SelectorKey, events: int, *, reads: bool) -> None:
    client, left = cast("socket.socket", key.fileobj), key.data
    try:
        if events & selectors.EVENT_READ and not client.recv(1 << 20):
            raise ConnectionResetError
        if events & selectors.EVENT_WRITE:
            left = left[client.send(left[: 1 << 20]) :]
            wanted = (selectors.EVENT_WRITE if left else 0) | (selectors.EVENT_READ if reads else 0)
            if wanted:
                members.modify(client, wanted, left)
            else:
                members.unregister(client)
                KEPT.append(client)
    except OSError:
        members.unregister(client)
        client.close()


KEPT: list[socket.socket] = []
"""Connections that sent all they have to send, and stay open."""


def _rows(results: Sequence[Measured] | Sequence[Together]) -> list[dict[str, Any]]:
    """Return results as JSON has them."""
    rows = [one._asdict() | one.waits._asdict() | {"is_fine": one.is_fine} for one in results]
    for row in rows:
        del row["waits"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="about how long a frame is")
    parser.add_argument("--only", default="", help="inputs with this text in their names only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    server = Server()
    good = WellBehaved(server)
    results = []
    slowest: tuple[float, Hostile] | None = None
    for hostile in inputs(options.bytes, options.only.lower()):
        result = measured(server, good, hostile)
        results.append(result)
        if slowest is None or result.took_s > slowest[0]:
            slowest = result.took_s, hostile
        if not options.json:
            print(
                f"{'' if result.is_fine else 'TOO MUCH '}{result.name}: sent {result.sent:,} bytes, "
                f"{f'{result.answered:,} bytes back' if result.answered >= 0 else 'closed'} after "
                f"{result.took_s:.2f} s, the other client waited {result.waits}, "
                f"{result.memory_mb:+} MB",
                flush=True,
            )
    good.stop()
    together = []
    for crowd in crowds():
        if options.only.lower() in f"crowd {crowd.name.lower()}":
            together.append(crowded(crowd))
            if not options.json:
                one = together[-1]
                print(
                    f"{'' if one.is_fine else 'TOO MUCH '}crowd, {one.name}: the other client waited "
                    f"{one.waits}, the server used {one.cpu_s:.1f} s of CPU time in all, "
                    f"{one.memory_mb:+} MB, SIGTERM took {one.sigterm_s:.2f} s",
                    flush=True,
                )
    if slowest is not None:
        threading.Thread(target=ask, args=(server.port, slowest[1].frame), daemon=True).start()
        time.sleep(0.1)
    stop_s = server.stop_s()
    is_fine = stop_s <= SIGTERM_S and all(result.is_fine for result in (*results, *together))
    if options.json:
        rows, many = map(_rows, (results, together))
        found = {"inputs": rows, "crowds": many, "sigterm_s": round(stop_s, 2), "is_fine": is_fine}
        print(json.dumps(found))
    else:
        worst = max(results, key=lambda result: result.waits.wait_cpu_s, default=None)
        if worst is not None:
            print(f"{len(results)} inputs, the longest wait is {worst.waits}: {worst.name}")
        print(f"SIGTERM during the slowest one: {stop_s:.2f} s")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
