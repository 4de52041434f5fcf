"""Lines on stderr: what comes again and again is told now and then, and libraries are told as we are."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from fencepost.simulation.cli.logs import SAID_AGAIN_S, Repeats

LOGS = """
import logging, structlog
from fencepost.simulation.cli.logs import configure_logs
configure_logs()
for port in (1, 2, 3):
    logging.getLogger("aiokafka.client").warning("Unable to update metadata from %s", [1])
    structlog.get_logger().warning("connection_closed", peer=f"127.0.0.1:{port}", reason="no such API")
    structlog.get_logger().warning("proxy_closed_client", broker="broker-1", reason="no frame")
logging.getLogger("aiokafka").info("nobody asked")
structlog.get_logger().warning("connection_closed", peer="127.0.0.1:4", reason="another")
structlog.get_logger().warning("marker_refused")
structlog.get_logger().warning("marker_refused")
"""


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_line_is_said_once_in_a_while_with_how_often_it_came() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    assert [repeats.since("a"), repeats.since("a"), repeats.since("b"), repeats.since("a")] == [
        0,
        None,
        0,
        None,
    ]
    clock.now += SAID_AGAIN_S
    assert [repeats.since("a"), repeats.since("a"), repeats.since("b")] == [2, None, 0]


def test_a_library_s_line_tells_its_count() -> None:
    clock = Clock()
    repeats = Repeats(clock)

    def said() -> str | None:
        record = logging.LogRecord("aiokafka", logging.WARNING, "", 0, "no %s", ("broker",), None)
        return record.getMessage() if repeats.of_others(record) else None

    assert [said(), said(), said()] == ["no broker", None, None]
    clock.now += SAID_AGAIN_S
    assert said() == "no broker (2 more times before this)"


def test_what_is_known_of_lines_is_bounded() -> None:
    repeats = Repeats(Clock())
    assert {repeats.since(number) for number in range(5_000)} == {0}
    assert repeats.since(4_999) is None


@pytest.mark.processes
def test_lines_of_libraries_and_ours_look_alike_and_come_once() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        "Unable to update metadata from [1]",
        "connection_closed",
        "proxy_closed_client",
        "connection_closed",
        "marker_refused",
        "marker_refused",
    ]
    assert lines[0]["logger"] == "aiokafka.client"
    assert [line.get("reason") for line in lines[1:4]] == ["no such API", "no frame", "another"]
    assert {line["level"] for line in lines} == {"warning"}
