"""The example in Java: its own tests pass where Java is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.simulation.lab.clusters.artifacts import Installation

pytestmark = [pytest.mark.real, pytest.mark.processes, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, *words: str, **named: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        check=False,
        timeout=140,
    )


def found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def command(folder: Path) -> str:
    """The command `fencepost` of this environment."""
    fencepost = folder / "fencepost"
    fencepost.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fencepost.simulation "$@"\n')
    fencepost.chmod(0o755)
    return str(fencepost)


def test_the_tests_of_the_java_service_pass(tmp_path: Path, kafka_installation: Installation) -> None:
    javac = found("javac")
    jars = os.pathsep.join(map(str, kafka_installation.jars))
    sources = sorted(map(str, (EXAMPLES / "java-service").glob("*.java")))
    compiled = run(
        tmp_path, javac, "-Xlint:all", "-Werror", "--release", "17", "-cp", jars, "-d", ".", *sources
    )
    assert compiled.returncode == 0, compiled.stderr
    server = subprocess.Popen(
        [command(tmp_path), "serve", "--port", "0", "--control", "0", "--quick", "--brokers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = next(line.split()[3] for line in server.stdout if "control" in line)
        silent = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        java = str(kafka_installation.java)
        tested = run(tmp_path, java, silent, "-cp", os.pathsep.join((".", jars)), "OrdersTest", url)
        assert tested.stdout.strip() == "6 passed", tested.stdout + tested.stderr
    finally:
        server.terminate()
        server.communicate(timeout=60)
