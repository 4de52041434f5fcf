"""Addresses that need TLS work in a world: bytes pass unchanged."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from fencepost import HttpRequest, SimulatedWorld
from tests.unit.simulation.world.programs_of_users import passes, play


def answer(request: HttpRequest) -> str:
    return f"{request.method} {request.path}"


def test_asyncio_clients_speak_https_and_kafka_over_tls() -> None:
    seen: list[Any] = []

    async def talks() -> None:
        async with httpx.AsyncClient() as client:
            seen.append((await client.get("https://payments/httpx")).text)
        async with aiohttp.ClientSession() as session, session.get("https://payments/aiohttp") as response:
            seen.append(await response.text())
        settings: Any = {
            "bootstrap_servers": "kafka:9092",
            "security_protocol": "SSL",
            "ssl_context": ssl.create_default_context(),
        }
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("orders", b"order")
        async with AIOKafkaConsumer("orders", **settings, auto_offset_reset="earliest") as consumer:
            seen.append((await consumer.getone()).value)

    async def test(world: SimulatedWorld) -> None:
        world.http("payments", answer)
        await world.process("shop", talks).ended()

    passes(test)
    assert seen == ["GET /httpx", "GET /aiohttp", b"order"]


def test_client_logs_in_by_sasl_over_tls() -> None:
    async def produces(password: str) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers="kafka:9092",
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(),
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="shop",
            sasl_plain_password=password,
        )
        async with producer:
            await producer.send_and_wait("orders", b"order")

    async def test(world: SimulatedWorld) -> None:
        await world.process("shop", produces, "secret").ended()
        assert [each.value for each in world.records("orders")] == [b"order"]
        wrong = world.process("thief", produces, "guessed")
        await wrong.ended()
        wrong.kill()

    result = play(test, users={"shop": "secret"})
    assert not result.trouble, result.trouble
    assert result.violations == []
    assert {each.program for each in result.crashes} == {"thief"}


@pytest.mark.processes
def test_blocking_clients_speak_https_and_kafka_over_tls() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.http("payments", answer)
        program = "tests.unit.simulation.world.thread_programs:asks_by_tls"
        await world.process("shop", program, "payments").ended()
        assert [each.value for each in world.records("told")] == [b"GET / GET /"]

    passes(test)
