"""The scripts of CI: what `.ci/rabbitmq` ends, and what it says when it can't start."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "rabbitmq"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("pkill") is None, reason="no pkill, which .ci/rabbitmq takes"),
    pytest.mark.processes,
]


@pytest.fixture
def command(tmp_path: Path, unused_tcp_port: int) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs the script with a folder and a port of the test's own, where debootstrap is out of reach."""

    def run(word: str) -> subprocess.CompletedProcess[str]:
        own = {
            "FENCEPOST_TESTS_RABBITMQ_ROOTS": str(tmp_path),
            "FENCEPOST_TESTS_RABBITMQ_PORT": str(unused_tcp_port),
            "PATH": "/usr/bin:/bin",
        }
        return subprocess.run(
            [SCRIPT, word], env={**os.environ, **own}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def marked() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts processes whose arguments hold a mark."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(mark: str) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(["bash", "-c", f"exec -a 'beam {mark}' sleep 60"]))
        return processes[-1]

    yield start
    for each in processes:
        each.kill()
        each.wait()


def note_of(tmp_path: Path) -> Path:
    """The file in which `start` keeps the mark of what this checkout started."""
    number = subprocess.run(["cksum"], input=f"{ROOT}\n", capture_output=True, text=True, check=True)
    return tmp_path / f"started-{number.stdout.split()[0]}"


def test_stop_ends_what_this_checkout_started_and_nothing_else(
    tmp_path: Path,
    command: Callable[[str], subprocess.CompletedProcess[str]],
    marked: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    prefix = f"-fencepost tests-{tmp_path.name}"
    mine, another = marked(f"{prefix}-mine"), marked(f"{prefix}-another")
    assert command("stop").returncode == 0
    assert mine.poll() is None, "nothing was started from here"
    note_of(tmp_path).write_text(f"{prefix}-mine\n")
    assert command("stop").returncode == 0
    assert mine.wait(10) != 0
    assert another.poll() is None
    assert not note_of(tmp_path).exists()


def test_start_says_in_one_line_why_there_is_none(
    command: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    if shutil.which("debootstrap", path="/usr/bin:/bin") is not None:
        pytest.skip("debootstrap is where every program is")
    result = command("start")
    assert result.returncode == 3
    why = "debootstrap is not installed" if os.geteuid() == 0 else "it takes root"
    assert result.stderr.startswith(f"no RabbitMQ: {why}")
    assert result.stderr.count("\n") == 1
