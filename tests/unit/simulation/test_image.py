"""The image: its command and its health check work without a container, too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def words(instruction: str) -> list[str]:
    """The words of an instruction in JSON."""
    (found,) = re.findall(rf"^{instruction}\b[^\[\n]*(\[.*\])$", DOCKERFILE, re.MULTILINE)
    read: list[str] = json.loads(found)
    return read


def free(text: str) -> str:
    """The same with free ports of loopback."""
    return re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text)


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize("source", ["Dockerfile", "docker-compose.yml"])
def test_the_command_serves_and_its_check_finds_it_healthy(source: str) -> None:
    if source == "Dockerfile":
        command = words("CMD")
    else:
        services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
        command = services["fencepost"]["command"]
    assert words("ENTRYPOINT")[1:] == ["serve"]
    start = [sys.executable, "-m", "fencepost.simulation", "serve", *map(free, command)]
    check = words("HEALTHCHECK")
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("fencepost ready control "):
            assert line
        url = line.split()[-1]
        code = check[2].replace("http://127.0.0.1:9644", url)
        assert code != check[2]
        subprocess.run([sys.executable, *check[1:2], code], check=True, timeout=60)
        process.terminate()
        assert process.wait(timeout=20) == 0
    assert subprocess.run([sys.executable, *check[1:2], code], check=False, stderr=-1, timeout=60).returncode


def test_the_image_does_not_run_as_root_and_has_what_it_needs() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    assert "\nUSER fencepost\n" in stages[-1]
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = {"LICENSE", "README.md", "coordinator", "member", "public", "pyproject.toml", "simulation"}
    assert {each.removeprefix("!") for each in kept if each.startswith("!")} == {*copied, "requirements.lock"}
    assert all((ROOT / each).exists() for each in copied)


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_image_can_be_built() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("needs a running docker")
    subprocess.run(
        [docker, "build", "--quiet", "--tag", "fencepost-test", str(ROOT)], check=True, timeout=890
    )
