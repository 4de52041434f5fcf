"""Function calls from a heartbeat's bytes to those of its response, through an in-memory transport."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.connection import KafkaServerConnection
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.repeated import RepeatedAnswers
from tests.unit.coordinator.wire.raw_client import heartbeat_fields, request

MOST_CALLS = 22
read_reply = entity_reader(load_response_schema(68, 1))


class MemoryTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name in {"peername", "sockname"} else default

    def write(self, data: Any) -> None:
        self.written += data

    def taken(self) -> bytes:
        written, self.written = self.written, b""
        return written


def our_calls(action: Callable[[], object]) -> list[str]:
    """The functions of the product that run, in the order of their calls."""
    calls = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "fencepost/coordinator" in frame.f_code.co_filename.replace("\\", "/"):
            calls.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("count", [1, 3])
async def test_a_steady_heartbeat_takes_few_calls(count: int) -> None:
    async with Brokers({"orders": 1}, ports=(0,) * count) as brokers:
        services = brokers.services[brokers.groups.leader_id("g") - 1]
        table = handlers()
        connection = KafkaServerConnection(
            services,
            table,
            RepeatedAnswers(brokers.cluster, table),
            max_frame_bytes=1 << 20,
            on_made=lambda made: None,
            on_lost=lambda lost: None,
        )
        transport = MemoryTransport()
        connection.connection_made(transport)

        def send(epoch: int, number: int) -> None:
            frame = request(68, 1, number, b"me", **heartbeat_fields(epoch))
            connection.data_received(struct.pack(">i", len(frame)) + frame)

        send(0, 1)
        joined, _ = read_reply(transport.taken(), 9)
        assert joined.error_code == 0
        send(joined.member_epoch, 2)
        transport.taken()
        send(joined.member_epoch, 3)
        before = transport.taken()
        again = request(68, 1, 4, b"me", **heartbeat_fields(joined.member_epoch))
        calls = our_calls(lambda: connection.data_received(struct.pack(">i", len(again)) + again))
        assert transport.taken()[8:] == before[8:]
        assert len(calls) <= MOST_CALLS, calls
