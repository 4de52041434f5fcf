"""Frames that are wrong in every way, thrown at the brokers: nothing crashes, hangs, or grows.

    python benchmarks/fuzz.py [--frames N] [--seed N] [--json]

A third is valid requests of every API and version with values at and beyond their limits, a third the same
with bytes changed, the rest random bytes behind a header that is right, or behind none. Each has a connection
of its own, made without a socket. Beside them a good client heartbeats, which must notice nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import gc
import io
import json
import random
import re
import struct
import sys
import time
import types
import typing
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import structlog
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.server.brokers import Broker
from fencepost.coordinator.server.connection import KafkaServerConnection
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.repeated import RepeatedAnswers

CONFIG = GroupCoordinatorConfig(
    group_max_size=20,
    group_consumer_max_size=20,
    group_min_session_timeout_ms=100,
    group_max_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=100,
)
"""Small limits: what is remembered of requests that were in order must not look like a leak."""
AT_ONCE = 100
POOL = 5_000
TURN_S = 20.0
"""A turn that takes longer counts as a hang."""
NAMES = ("", "a", "orders", "g", "é✓", "x" * 300, "retention.ms", "consumer", "range")
_read_heartbeat = entity_reader(load_response_schema(68, 1))
_TOPIC = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
_SMALL = re.compile(r"num_partitions|count|partition_index|timeout")


class Requests:
    """Draws frames."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._apis = [
            (int(api.key), version)
            for api in REGISTRY.values()
            for version in range(api.min_version, api.max_version + 1)
        ]
        self._batch = _batch()
        self._drawn: list[bytes] = []

    def draw(self) -> bytes:
        """A frame with its length."""
        match self.rng.randrange(6):
            case 0 | 1:
                return self._framed(self._valid())
            case 2 | 3:
                return self._changed(self._framed(self._valid()))
            case 4:
                head, _ = self._head(*self.rng.choice(self._apis))
                return self._framed(head + self._noise(120))
        return self._noise(200)

    def _framed(self, data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    def _noise(self, most: int) -> bytes:
        rng = self.rng
        likely = (0, 0, 0, 1, 1, 2, 3, 127, 128, 255, rng.randrange(256))
        return bytes(rng.choice(likely) for _ in range(rng.randrange(most)))

    def _head(self, key: int, version: int) -> tuple[bytes, Any]:
        schema = load_request_schema(key, version)
        head = struct.pack(">hhih", key, version, self.rng.randrange(1_000), 4) + b"fuzz"
        return head + (b"\0" if schema.__flexible__ else b""), schema

    def _valid(self) -> bytes:
        """One that is new, or as a rule one that was drawn before: they cost more than all the rest."""
        if len(self._drawn) < POOL:
            self._drawn.append(self._new())
            return self._drawn[-1]
        at = self.rng.randrange(POOL)
        if self.rng.random() < 0.05:
            self._drawn[at] = self._new()
        return self._drawn[at]

    def _new(self) -> bytes:
        head, schema = self._head(*self.rng.choice(self._apis))
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, self._entity(schema))
        return head + buffer.getvalue()

    def _changed(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.rng.randrange(1, 5)):
            at = self.rng.randrange(4, len(changed))
            match self.rng.randrange(4):
                case 0:
                    changed[at] = self.rng.randrange(256)
                case 1:
                    changed[at] ^= 1 << self.rng.randrange(8)
                case 2:
                    changed.insert(at, self.rng.choice((0, 1, 255)))
                case 3 if len(changed) > 20:
                    del changed[at]
        if self.rng.random() < 0.7:  # else the length is wrong too
            changed[:4] = struct.pack(">i", len(changed) - 4)
        return bytes(changed)

    # -- values of kio's types --------------------------------------------------------------------------

    def _entity(self, schema: Any) -> Any:
        hints = typing.get_type_hints(schema)
        return schema(
            **{field.name: self._value(hints[field.name], field) for field in dataclasses.fields(schema)}
        )

    def _value(self, hint: Any, field: Any) -> Any:
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if type(None) in options and self.rng.random() < 0.3 and "tag" not in field.metadata:
            return None
        (plain,) = (option for option in options if option is not type(None))
        if typing.get_origin(plain) is tuple:
            (element, *_) = typing.get_args(plain)
            return tuple(self._one(element, field) for _ in range(self.rng.choice((0, 1, 1, 2, 3))))
        return self._one(plain, field)

    def _one(self, plain: Any, field: Any) -> Any:
        rng, kind = self.rng, field.metadata.get("kafka_type")
        if dataclasses.is_dataclass(plain):
            return self._entity(plain)
        makers: dict[str, Callable[[], Any]] = {
            "string": lambda: rng.choice(NAMES),
            "bytes": lambda: rng.randbytes(rng.randrange(60)),
            "records": lambda: self._batch if rng.random() < 0.5 else rng.randbytes(rng.randrange(90)),
            "uuid": lambda: rng.choice((_TOPIC, uuid.UUID(int=0), uuid.UUID(int=rng.getrandbits(128)))),
            "bool": lambda: rng.random() < 0.5,
            "float64": lambda: rng.choice((0.0, -1.0, 1e300, float("nan"))),
            "error_code": lambda: next(iter(plain)),
        }
        if kind in makers:
            return makers[kind]()
        if kind.startswith("timedelta"):
            return datetime.timedelta(milliseconds=rng.choice((-1, 0, 1, 100, 2**31 - 1)))
        if kind.startswith("datetime"):
            return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        bits = int(re.sub(r"\D", "", kind)) - 1
        if _SMALL.search(field.name) or kind.startswith("u"):
            return rng.choice((0, 1, 2, 12))
        return rng.choice((0, 1, 2, 12, -1, 2**bits - 1, -(2**bits), rng.randrange(2**bits)))


def _batch() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, 1_000, b"key", b"value", [])
    return bytes(builder.build())


class Wire:
    """Stands for a socket: takes what is written, and closes when it is told."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_open = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.is_open

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 9092) if name.endswith("name") else None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Client:
    """A connection without a socket."""

    def __init__(self, broker: Broker, table: Any) -> None:
        (services,) = broker.services
        self.wire = Wire()
        self.connection = KafkaServerConnection(
            services,
            table,
            RepeatedAnswers(services.cluster, table),
            max_frame_bytes=1 << 20,
            on_made=lambda _: None,
            on_lost=lambda _: None,
        )
        self.connection.connection_made(cast("asyncio.Transport", self.wire))

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def hang_up(self) -> None:
        self.connection.connection_lost(None)


def _heartbeat(epoch: int) -> bytes:
    schema = load_request_schema(68, 1)
    buffer = io.BytesIO()
    fields = {"subscribed_topic_names": ("good",), "topic_partitions": ()} if epoch == 0 else {}
    entity_writer(schema)(
        buffer,
        schema(
            group_id="good",
            member_id="good",
            member_epoch=epoch,
            rebalance_timeout=datetime.timedelta(seconds=60 if epoch == 0 else -0.001),
            **{"topic_partitions": None, **fields},
        ),
    )
    body = struct.pack(">hhih", 68, 1, 7, 4) + b"good\0" + buffer.getvalue()
    return struct.pack(">i", len(body)) + body


def _epoch(client: Client) -> int:
    """The epoch that the one answer to a client tells."""
    (answer,) = client.wire.written
    client.wire.written.clear()
    reply, _ = _read_heartbeat(answer, 9)
    assert reply.error_code == 0, reply
    return int(reply.member_epoch)


def rss_mb() -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


async def fuzz(frames: int, seed: int) -> dict[str, float]:
    """Throw so many frames; what was seen.

    :raises AssertionError: if the broker failed at a request, or the good client was disturbed.
    """
    requests, answered, closed, slowest = Requests(seed), 0, 0, 0.0
    async with Broker({"orders": 3, "good": 3}, config=CONFIG) as broker:
        table = handlers()
        good = Client(broker, table)
        good.send(_heartbeat(0))
        epoch = _epoch(good)
        warm_mb, warm_at = 0.0, frames // 5
        for start in range(0, frames, AT_ONCE):
            began = time.perf_counter()
            clients = []
            for _ in range(min(AT_ONCE, frames - start)):
                data = requests.draw()
                client = Client(broker, table)
                one = time.perf_counter()
                client.send(data)
                slowest = max(slowest, time.perf_counter() - one)
                clients.append(client)
            for _ in range(2):  # after a long turn the loop reads before the next one
                await asyncio.sleep(0)
            for client in clients:
                answered += bool(client.wire.written)
                closed += not client.wire.is_open
                client.hang_up()
            good.send(_heartbeat(epoch))
            while not good.wire.written and time.perf_counter() - began < TURN_S:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert _epoch(good) == epoch, f"the good client was disturbed at frame {start}"
            assert time.perf_counter() - began < TURN_S, f"a turn took too long at frame {start}"
            if start <= warm_at < start + AT_ONCE:
                gc.collect()
                warm_mb = rss_mb()
    gc.collect()
    return {
        "frames": frames,
        "answered": answered,
        "closed": closed,
        "slowest_ms": slowest * 1e3,
        "grown_mb": rss_mb() - warm_mb,
    }


def run(frames: int, seed: int) -> dict[str, float]:
    """Throw so many frames; what was seen.

    :raises AssertionError: as `fuzz`, and if any request failed within the broker.
    """
    with structlog.testing.capture_logs() as logs:
        found = asyncio.run(_run(frames, seed, logs))
    failed = [line for line in logs if line["event"] == "request_failed"]
    assert not failed, failed[0]
    return found


async def _run(frames: int, seed: int, logs: list[Any]) -> dict[str, float]:
    async def forget() -> None:
        """Lines about what was refused are not kept: there are too many."""
        while True:
            logs[:] = [line for line in logs if line["event"] == "request_failed"][:3]
            await asyncio.sleep(0)

    forgetting = asyncio.ensure_future(forget())
    try:
        return await fuzz(frames, seed)
    finally:
        forgetting.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20_848)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.process_time()
    found = run(arguments.frames, arguments.seed)
    found["cpu_s"] = time.process_time() - began
    if arguments.json:
        print(json.dumps(found))
        return
    for title, value in found.items():
        print(f"{title:24}{value:12,.1f}")


if __name__ == "__main__":
    sys.exit(main())
