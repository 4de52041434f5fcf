"""`fencepost conform` against kfake, a broker that does not speak all of Kafka. Needs Go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.simulation.cli import main

pytestmark = [pytest.mark.real, pytest.mark.processes, pytest.mark.timeout(600)]

SOURCES = Path(__file__).parent / "kfake"


@pytest.fixture
def kfake(go_program: Callable[[Path], Path]) -> Iterator[str]:
    with subprocess.Popen([str(go_program(SOURCES))], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def test_only_what_it_lists_is_sent(kfake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = {"type": "streams_beat", "member": "A", "epoch": 0}
    describe = {"type": "describe"}
    file = tmp_path / "schedules.json"
    file.write_text(json.dumps({"name": "s", "topics": {"x": 1}, "steps": [streams, describe]}))
    assert main(["conform", "--cluster", kfake, "--schedules", str(file), "--json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"] == [{"api": "STREAMS_GROUP_HEARTBEAT 0", "requests": 1}]
