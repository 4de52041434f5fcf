"""The image: its command and its health check work without a container, too."""

from __future__ import annotations

import json
import os
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
        assert process.wait(timeout=60) == 0
    assert subprocess.run([sys.executable, *check[1:2], code], check=False, stderr=-1, timeout=60).returncode


def test_the_image_does_not_run_as_root_and_has_what_it_needs() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    assert "\nUSER fencepost\n" in stages[-1]
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = {"LICENSE", "README.md", "coordinator", "member", "public", "pyproject.toml", "simulation"}
    assert {each.removeprefix("!") for each in kept if each.startswith("!")} == {*copied, "requirements.lock"}
    assert all((ROOT / each).exists() for each in copied)


UNREACHABLE = re.compile("name resolution|Connection|SSLError|ProxyError|No matching distribution")


def in_place(root: Path, *command: str) -> None:
    """Run a command in a root file system; it must succeed, if its libraries are within reach."""
    done = subprocess.run(
        ["chroot", str(root), *command], check=False, capture_output=True, text=True, timeout=600
    )
    if done.returncode and (reason := UNREACHABLE.search(done.stdout + done.stderr)):
        pytest.skip(f"the image's libraries are out of reach: {reason[0]}")
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def has_docker() -> bool:
    docker = shutil.which("docker")
    return (
        docker is not None
        and not subprocess.run([docker, "info"], check=False, capture_output=True).returncode
    )


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_image_can_be_built(tmp_path: Path) -> None:
    if has_docker():
        build = ["docker", "build", "--quiet", "--tag", "fencepost-test", str(ROOT)]
        subprocess.run(build, check=True, timeout=890)
        return
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("needs a running docker, or root and debootstrap")
    root = tmp_path / "root"
    make = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "trixie", str(root), ""]
    made = subprocess.run(
        [*make, "/usr/share/debootstrap/scripts/sid"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if made.returncode:
        pytest.skip(f"debootstrap failed: {made.stdout[-200:]}")
    try:
        take_steps(root)
    finally:
        subprocess.run(["umount", str(root / "proc")], capture_output=True, check=False)
        shutil.rmtree(root)


def take_steps(root: Path) -> None:
    """Do in a root file system what the instructions of the image do, and run it."""
    (root / "usr/bin/python").symlink_to("python3")
    for each in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", each).exists():  # what pip needs on this machine
            (root / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/", each), root / each)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    user: list[str] = []
    for line in DOCKERFILE.splitlines():
        match line.split(maxsplit=1):
            case ["COPY", rest] if "--from" not in rest:  # both stages are one root here
                source, target = rest.split()
                for name in kept if source == "." else [source]:
                    place = root / target.strip("/") / (name if source == "." else "")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                    copy(ROOT / name, place)
            case ["RUN", rest]:
                in_place(root, "sh", "-ec", rest)
            case ["USER", name]:
                user = [f"--userspec={name}"]
    command = [*words("ENTRYPOINT"), *map(free, words("CMD"))]
    with subprocess.Popen(
        ["chroot", *user, str(root), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            while not (line := process.stdout.readline()).startswith("fencepost ready control "):
                assert line, process.stderr.read()
            code = words("HEALTHCHECK")[2].replace("http://127.0.0.1:9644", line.split()[-1])
            in_place(root, *words("HEALTHCHECK")[:2], code)
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0
