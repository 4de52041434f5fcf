"""The example in Go: its own tests pass where Go is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "go-service"


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_tests_of_the_go_service_pass(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    folder = shutil.copytree(EXAMPLE, tmp_path / "go-service")
    fencepost = tmp_path / "fencepost"
    fencepost.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fencepost.simulation "$@"\n')
    fencepost.chmod(0o755)
    named = {"FENCEPOST": str(fencepost), "GOTOOLCHAIN": "local"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *words],
            cwd=folder,
            env={**os.environ, **named},
            capture_output=True,
            text=True,
            check=False,
            timeout=140,
        )

    built = run("build", "-mod=readonly", "./...")
    if built.returncode != 0 and "github.com/twmb/franz-go" in built.stderr and "dial" in built.stderr:
        pytest.skip(f"franz-go can't be fetched here: {built.stderr}")
    assert built.returncode == 0, built.stderr
    tested = run("test", "-mod=readonly", "-count=1", "./...")
    assert tested.returncode == 0, tested.stdout + tested.stderr
