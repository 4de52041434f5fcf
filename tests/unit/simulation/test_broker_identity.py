"""What is asked of a broker before it is used, and what is said of those that will not do."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.lab.clusters.ports import free_ports

pytestmark = pytest.mark.real


@contextlib.asynccontextmanager
async def server(*answers: bytes, silent: bool = False) -> AsyncIterator[int]:
    """Answers each connection's requests with these, one after the other, then hangs up."""
    connections: list[asyncio.Task[None] | None] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        for answer in answers:
            await reader.read(1000)
            writer.write(answer)
        if silent:
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(client, "127.0.0.1", 0) as running:
        yield running.sockets[0].getsockname()[1]
        await asyncio.gather(*(task for task in connections if task is not None))


def framed(number: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, number) + body


def versions(*keys: int, features: dict[str, int] | None = None) -> bytes:
    body = struct.pack(">hb", 0, len(keys) + 1)
    body += b"".join(struct.pack(">hhhb", key, 0, 1, 0) for key in keys) + struct.pack(">i", 0)
    levels = b"".join(
        bytes([len(name) + 1]) + name.encode() + struct.pack(">hhb", level, 0, 0)
        for name, level in (features or {}).items()
    )
    epoch = b"\x01\x08" + bytes(8)
    finalized = b"\x02" + bytes([len(levels) + 1]) + bytes([len(features or {}) + 1]) + levels
    return framed(1, body + b"\x02" + epoch + finalized)


METADATA = framed(
    2, struct.pack(">ii", 1, 7) + b"\x00\x04host" + struct.pack(">ihh", 99, -1, 2) + b"id" + bytes(8)
)


async def test_our_own_endpoint_answers() -> None:
    async with Broker({"orders": 3}) as broker:
        answer = await examine(broker.bootstrap_servers, seconds=20)
        assert list(answer.nodes.values()) == [broker.bootstrap_servers]
        assert answer.cluster_id
        assert answer.speaks_kip848


async def test_apis_features_and_nodes_are_read() -> None:
    features = {"group.version": 1, "metadata.version": 30}
    async with server(versions(3, 18, 68, features=features), METADATA) as port:
        answer = await examine(f"127.0.0.1:{port}")
    apis = dict.fromkeys((3, 18, 68), (0, 1))
    assert answer == (("127.0.0.1", port), "id", {7: "host:99"}, apis, features)


NO_GROUPS = r"no KIP-848 consumer groups: Kafka 4\.0 or newer"
NOT_KAFKA = "does not answer as a plaintext Kafka listener does: "


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((versions(3, 18), METADATA), NO_GROUPS),
        ((versions(3, 18, 68, features={"metadata.version": 30}), METADATA), NO_GROUPS),
        (
            (versions(3, 18, 68, features={"metadata.version": 30, "group.version": 0}), METADATA),
            NO_GROUPS,
        ),
        ((framed(1, b"\x00"),), NOT_KAFKA),
        ((framed(9, b"\x00\x00\x01"),), NOT_KAFKA),
        ((framed(1, struct.pack(">hb", 0, 100)),), NOT_KAFKA),
        ((framed(1, b"\x00\x00\xff\xff\xff\xff\xff\xff"),), NOT_KAFKA),
        ((framed(1, struct.pack(">h", 35)),), NOT_KAFKA),
        # Usual mistakes are told by their name.
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), NOT_KAFKA + "it speaks HTTP;"),
        ((b"<html>",), NOT_KAFKA + "it speaks HTTP;"),
        ((b"\x15\x03\x03\x00\x02\x02\x50",), NOT_KAFKA + "it speaks TLS;"),
        ((b"",), NOT_KAFKA + "it closes the connection at a Kafka request;"),
    ],
)
async def test_a_broker_that_will_not_do_is_told(answers: tuple[bytes, ...], told: str) -> None:
    async with server(*answers) as port:
        with pytest.raises(EnvironmentLacks, match=told):
            await examine(f"127.0.0.1:{port}", seconds=20)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_there_is_told(host: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(EnvironmentLacks) as raised:
        await examine(f"{host}:{port}", seconds=20)
    assert str(raised.value) == (
        f"no broker answers at {host}:{port} (connection refused): start one, or: fencepost cluster up"
    )


async def test_a_name_that_nobody_has_is_told() -> None:
    with pytest.raises(EnvironmentLacks, match=r"no broker answers at nowhere\.invalid:9092 \([\w ]+\): "):
        await examine("nowhere.invalid:9092", seconds=20)


async def test_no_answer_in_time_is_told() -> None:
    async with server(silent=True) as port:
        with pytest.raises(EnvironmentLacks, match="it accepts connections, and there was no answer in time"):
            await examine(f"127.0.0.1:{port}", seconds=0.1)


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        ":9092",
        "localhost:",
        "localhost:x",
        "localhost:0",
        "h:70000",
        "",
        ",",
        "h:1,h",
        "h:1,h:x",
    ],
)
async def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    with pytest.raises(FencepostError, match="expected HOST:PORT") as raised:
        await examine(address)
    assert raised.value.exit_code == 2


async def test_of_several_brokers_one_has_to_answer() -> None:
    (nobody,) = free_ports(1)
    async with server(versions(3, 18, 68), METADATA) as port:
        answer = await examine(f"127.0.0.1:{nobody}, 127.0.0.1:{port},", seconds=20)
    assert answer.speaks_kip848
    with pytest.raises(EnvironmentLacks, match=rf"no broker answers at 127\.0\.0\.1:{nobody} "):
        await examine(f"127.0.0.1:{nobody},127.0.0.1:{port}", seconds=20)
