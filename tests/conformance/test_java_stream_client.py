"""RabbitMQ's own Java client at our node, and at a real RabbitMQ where one is up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fencepost import RabbitTransport, SacSubscription, SingleActiveConsumer
from fencepost.member.sac.offsets import FIRST

pytestmark = pytest.mark.real


async def test_rabbitmq_s_java_client_is_content(
    place: Any, java_programs: Any, rabbit_jars: list[Path], java_process: Any
) -> None:
    command = java_programs.command("StreamJudge", *rabbit_jars)
    names = place.name(), place.name()
    judge = java_process([*command, place.settings["host"], str(place.settings["port"]), *names])
    end = judge.wait(lambda line: line == "CLOSED" or line.startswith(("FAILED", "Exception")))
    assert end == "CLOSED", judge.said
    assert "shared by those that are left" in judge.said
    if place.ours is not None:
        assert place.ours.streams() == []


async def test_batches_in_every_compression_are_read(
    place: Any, java_programs: Any, rabbit_jars: list[Path], java_process: Any
) -> None:
    stream = await place.stream()
    command = java_programs.command("StreamJudge", *rabbit_jars)
    judge = java_process([*command, place.settings["host"], str(place.settings["port"]), stream])
    end = judge.wait(lambda line: line == "CLOSED" or line.startswith(("FAILED", "Exception")))
    assert end == "CLOSED", judge.said
    expected = [str(number).encode() for number in range(50)]
    there = {each: place.settings[each] for each in ("host", "port", "username", "password")}
    subscription = SacSubscription(stream=stream, name="group", offset=FIRST)
    async with (
        asyncio.timeout(60),
        SingleActiveConsumer(subscription, RabbitTransport(stream, **there)) as consumer,
    ):
        values = [(await consumer.getone()).value for _ in expected]
    assert [_data(value) for value in values] == expected
    if place.ours is not None:
        assert [_data(each.value) for each in place.ours.messages(stream)] == expected


def _data(message: bytes) -> bytes:
    """What is in a message of AMQP 1.0, behind what RabbitMQ's client puts before it."""
    found = message.rindex(b"\x00\x53\x75\xa0")
    return message[found + 5 :]
