"""The examples in Go, Java and JavaScript: their own tests pass where the language is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {
    "go-service": [
        ["go", "build", "-mod=readonly", "./..."],
        ["go", "test", "-mod=readonly", "-count=1", "./..."],
    ],
    "java-service": [["mvn", "-B", "-q", "test"]],
    "javascript-service": [["npm", "install", "--no-audit", "--no-fund"], ["npm", "test"]],
}
"""The commands of an example; the first one fetches its libraries."""
QUICK = {"GOTOOLCHAIN": "local", "MAVEN_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
UNREACHABLE = re.compile(
    "dial tcp|Could not transfer|Cannot access|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT"
)
"""Errors of the first commands if libraries can't be fetched."""


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STEPS)
def test_the_tests_of_a_service_pass(name: str, tmp_path: Path) -> None:
    for program in {STEPS[name][0][0], *(("javac",) if name == "java-service" else ())}:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = shutil.copytree(
        EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("node_modules", "target")
    )
    fencepost = tmp_path / "fencepost"
    fencepost.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fencepost.simulation "$@"\n')
    fencepost.chmod(0o755)

    for step in STEPS[name]:
        done = subprocess.run(
            step,
            cwd=folder,
            env={**os.environ, **QUICK, "FENCEPOST": str(fencepost)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        said = done.stdout + done.stderr
        if done.returncode != 0 and step == STEPS[name][0] and UNREACHABLE.search(said):
            pytest.skip(f"the libraries of {name} can't be fetched here: {said}")
        assert done.returncode == 0, said
