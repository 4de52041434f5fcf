"""RabbitMQ's own Java client at our node, and at a real RabbitMQ where one is up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
