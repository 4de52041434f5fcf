"""How long a well-behaved client waits while a server is sent one hostile input, for every API.

    python benchmarks/hostile.py [--bytes N] [--only TEXT] [--json]

A server runs in a process of its own. One client asks for versions without a pause. Another client sends a
single frame. For each list in the newest request schema of each API there are frames with as many of the
smallest elements as fit, and with as many as the server takes: with different names, one name repeated, and
empty ones. There are frames with empty tagged fields, and Produce with very many records for each codec. The
frames come from kio's schemas, so a new API is measured without being listed here.

Printed for each input: its size, the response, the longest wait of the first client, and how memory grew.
The last line says how long SIGTERM takes while the slowest input is served. The exit code is 1 if a wait is
above one second, memory grew by more than 100 MB, or SIGTERM takes more than two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import operator
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
from kio.index import load_request_schema

from fencepost.coordinator.codec.fields import WireField, wire_fields
from fencepost.coordinator.codec.reader import LIST_COST, NUMBER_COST, STRING_COST, STRUCT_COST
from fencepost.coordinator.codec.registry import SPOKEN, ApiKey
from fencepost.coordinator.codec.schema import MAX_REQUEST_ELEMENTS
from fencepost.coordinator.codec.writer import LayoutField, field_writer, fields_writer, unsigned_varint
from fencepost.coordinator.protocol.ids import topic_id_from_uuid

WAIT_S = 1.0
MEMORY_MB = 100
SIGTERM_S = 2.0
GIVE_UP_S = 60.0
ASKS_EVERY_S = 0.01
SLACK = 200
"""The most that the structs and lists around a long list cost, in elements."""
TOPIC, GROUP = "t", "g"
METADATA_BYTES = 4_000
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, lambda data: data),
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data, 9))),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data, 9))),
}
"""By name: the number in a batch's attributes, and what compresses."""

Name = Callable[[int], str]
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
    """One batch of very many empty records, by each codec."""
    for codec, (number, compress) in CODECS.items():
        count = size // 7 if codec == "none" else 1_000_000
        records = b"".join(
            b"%c\x00\x00" % (2 * (4 + len(delta))) + delta + b"\x01\x01\x00"
            for delta in (unsigned_varint(2 * each) for each in range(count))
        )
        data = compress(records)
        fields = struct.pack(">hiqqqhii", number, count - 1, 1, 1, -1, -1, -1, count) + data
        checksum = _crc32c(fields)
        batch = struct.pack(">qiibI", 0, 9 + len(fields), -1, 2, checksum) + fields
        topic = struct.pack(">hi", len(TOPIC), 1)[:2] + TOPIC.encode()
        body = struct.pack(">hhii", -1, -1, 5_000, 1) + topic + struct.pack(">iii", 1, 0, len(batch)) + batch
        yield Hostile(f"PRODUCE {count:,} empty records, {codec}", _frame(ApiKey.PRODUCE, 3, body))


def _crc32c(data: bytes) -> int:
    from fencepost.coordinator.codec.batches import _crc32c as function

    return function()(data)


def inputs(size: int, part: str) -> Iterator[Hostile]:
    """Those with that text in their names."""
    yield from of_schemas(size, lambda name: part in name.lower())
    yield from (each for each in of_codecs(size) if part in each.name.lower())


class Server:
    """`fencepost serve` in a process of its own."""

    def __init__(self) -> None:
        command = Path(sys.executable).with_name("fencepost")
        self.process = subprocess.Popen(
            [str(command), "serve", "--port", "0", "--topics", f"{TOPIC}:1,u:50"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])
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


class WellBehaved:
    """A client that asks for versions without a pause, and notes its longest wait."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._frame = _frame(ApiKey.API_VERSIONS, 0, b"")
        self._stopped = False
        self._longest = 0.0
        self._asked_at = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as client:
            while not self._stopped:
                self._asked_at = time.perf_counter()
                client.sendall(self._frame)
                (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
                client.recv(size, socket.MSG_WAITALL)
                self._longest = max(self._longest, time.perf_counter() - self._asked_at)
                time.sleep(ASKS_EVERY_S)

    def longest_s(self) -> float:
        """The longest wait since this was asked last, the one that goes on included."""
        longest = max(self._longest, time.perf_counter() - self._asked_at - ASKS_EVERY_S)
        self._longest = 0.0
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
    wait_s: float
    memory_mb: int

    @property
    def is_fine(self) -> bool:
        """True if the server stayed responsive and freed the memory."""
        return self.wait_s <= WAIT_S and self.memory_mb <= MEMORY_MB


def measured(server: Server, good: WellBehaved, hostile: Hostile) -> Measured:
    """Send one input and look what it does."""
    before = server.memory_mb()
    good.longest_s()
    began = time.perf_counter()
    answered = ask(server.port, hostile.frame)
    took = time.perf_counter() - began
    time.sleep(3 * ASKS_EVERY_S)
    wait = good.longest_s()
    return Measured(hostile.name, len(hostile.frame), answered, took, wait, server.memory_mb() - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="about how long a frame is")
    parser.add_argument("--only", default="", help="inputs with this text in their names only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    server = Server()
    good = WellBehaved(server.port)
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
                f"{result.took_s:.2f} s, the other client waited {result.wait_s:.2f} s, "
                f"{result.memory_mb:+} MB",
                flush=True,
            )
    good.stop()
    if slowest is not None:
        threading.Thread(target=ask, args=(server.port, slowest[1].frame), daemon=True).start()
        time.sleep(0.1)
    stop_s = server.stop_s()
    is_fine = stop_s <= SIGTERM_S and all(result.is_fine for result in results)
    if options.json:
        rows = [result._asdict() | {"is_fine": result.is_fine} for result in results]
        print(json.dumps({"inputs": rows, "sigterm_s": round(stop_s, 2), "is_fine": is_fine}))
    else:
        worst = max(results, key=lambda result: result.wait_s, default=None)
        if worst is not None:
            print(f"{len(results)} inputs, the longest wait is {worst.wait_s:.2f} s: {worst.name}")
        print(f"SIGTERM during the slowest one: {stop_s:.2f} s")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
