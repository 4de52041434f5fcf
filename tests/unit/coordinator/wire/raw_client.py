"""Connections that speak kio's messages, and what they say."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.brokers import Broker, Brokers
from tests.batches import batch
from tests.kio_objects import milliseconds
from tests.waiting import SECONDS

REQUIRED = {
    3: {"include_topic_authorized_operations": False},
    10: {"key_type": 0},
}
"""Fields of requests that kio knows no default for, and that no test is about."""


def request(key: int, version: int, number: int, client_id: bytes, /, **fields: Any) -> bytes:
    """One request without its length."""
    schema = load_request_schema(key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, schema(**REQUIRED.get(key, {}), **fields))
    header = struct.pack(">hhih", key, version, number, len(client_id)) + client_id
    return header + (b"\0" if schema.__flexible__ else b"") + buffer.getvalue()


class Wire:
    """One connection that speaks kio's messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "me"
    ) -> None:
        self.reader, self.writer = reader, writer
        self.client_id = client_id.encode()
        self.number = 0
        self.expected: list[tuple[int, int, int]] = []

    @classmethod
    async def to(cls, broker: Brokers, client_id: str = "me", *, port: int | None = None) -> Wire:
        streams = await asyncio.open_connection("127.0.0.1", port or broker.ports[0], limit=1 << 24)
        wire = cls(*streams, client_id)
        OPEN.append(wire)
        return wire

    def send(self, key: int, version: int, /, **fields: Any) -> None:
        self.number += 1
        self.raw(request(key, version, self.number, self.client_id, **fields))
        self.expected.append((key, version, self.number))

    def raw(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self) -> Any:
        frame = await asyncio.wait_for(self.frame(), SECONDS)
        key, version, number = self.expected.pop(0)
        schema = load_response_schema(key, version)
        flexible = schema.__flexible__ and key != 18
        assert struct.unpack(">i", frame[:4]) == (number,)
        header = 5 if flexible else 4
        entity, size = entity_reader(schema)(frame, header)
        assert header + size == len(frame)
        return entity

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return await self.receive()

    async def ended(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), SECONDS) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


OPEN: list[Wire] = []


def nested(key: int, version: int, kind: str, /, **fields: Any) -> Any:
    module = load_request_schema(key, version).__module__
    return getattr(__import__(module, fromlist=[kind]), kind)(**fields)


def fetch_fields(
    broker: Broker, *, max_wait: int, min_bytes: int = 1, offset: int = 0, topic: str = "orders"
) -> dict:
    partition = nested(1, 17, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic_id = uuid_from_topic_id(broker.cluster.image.by_name[topic].topic_id)
    return {
        "max_wait": milliseconds(max_wait),
        "min_bytes": min_bytes,
        "topics": (nested(1, 17, "FetchTopic", topic_id=topic_id, partitions=(partition,)),),
        "forgotten_topics_data": (),
    }


def produce_fields(value: bytes | None, acks: int = 1, topic: str = "orders") -> dict:
    records = None if value is None else batch(value)
    partition = nested(0, 9, "PartitionProduceData", index=0, records=records)
    return {
        "acks": acks,
        "timeout": milliseconds(1000),
        "topic_data": (nested(0, 9, "TopicProduceData", name=topic, partition_data=(partition,)),),
    }


def heartbeat_fields(epoch: int, member_id: str = "m", **more: Any) -> dict:
    first = {
        "rebalance_timeout": milliseconds(1000),
        "subscribed_topic_names": ("orders",),
        "topic_partitions": (),
    }
    later = {"rebalance_timeout": milliseconds(-1), "topic_partitions": None}
    return {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        **(later if epoch else first),
        **more,
    }
