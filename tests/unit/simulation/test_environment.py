"""Which Java runs a Kafka node, and where nodes may listen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation import java as environment
from fencepost.simulation.lab.clusters import ports

OLD = "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"
CURRENT = "echo 'openjdk version \"21.0.8\" 2025-07-15' >&2"


def java(home: Path, text: str = CURRENT) -> Path:
    path = home / "bin/java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = java(tmp_path / "wheel")
    monkeypatch.setattr(environment, "wheel_java", lambda: path)
    return path


@pytest.mark.processes
@pytest.mark.usefixtures("wheel")
def test_the_users_java_comes_first_then_the_one_on_the_path(tmp_path: Path) -> None:
    chosen, found = java(tmp_path / "chosen"), java(tmp_path / "found")
    environ = {"JAVA_HOME": str(tmp_path / "chosen"), "PATH": str(found.parent)}
    assert environment.find_java(environ) == chosen
    del environ["JAVA_HOME"]
    assert environment.find_java(environ) == found


@pytest.mark.processes
def test_the_wheels_java_stands_in_for_none_and_for_an_old_one(tmp_path: Path, wheel: Path) -> None:
    assert environment.find_java({"PATH": ""}) == wheel
    assert environment.find_java({"PATH": str(java(tmp_path / "old", OLD).parent)}) == wheel


@pytest.mark.processes
@pytest.mark.parametrize(("text", "told"), [(OLD, "is Java 11, 17 or newer"), ("exit 3", "does not run")])
def test_an_unusable_java_is_told_where_there_is_no_other(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "wheel_java", lambda: None)
    program = java(tmp_path / "jdk", text)
    with pytest.raises(EnvironmentLacks, match=rf"the java on PATH \({program}\) {told}"):
        environment.find_java({"PATH": str(program.parent)})
    with pytest.raises(EnvironmentLacks, match=f"JAVA_HOME={tmp_path / 'jdk'} {told}"):
        environment.find_java({"JAVA_HOME": str(tmp_path / "jdk")})


def test_no_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "wheel_java", lambda: None)
    with pytest.raises(EnvironmentLacks, match="a Kafka broker needs Java, and this machine"):
        environment.find_java({"PATH": ""})


@pytest.mark.parametrize(
    ("text", "end"), [("32768\t60999\n", 32768), ("20000 60999", 20000), ("1024 65535", 32768), ("", 32768)]
)
def test_nodes_listen_below_the_ephemeral_range(text: str, end: int, tmp_path: Path) -> None:
    file = tmp_path / "range"
    file.write_text(text)
    assert ports.end_of_range(file) == end
    assert ports.end_of_range(tmp_path / "none") == 32768


def test_free_ports_are_different_and_free() -> None:
    found = ports.free_ports(9, random.Random(1))
    assert len(set(found)) == 9
    assert all(10_000 <= port < ports.end_of_range() for port in found)
    ports.require_free(found)


def test_a_port_that_is_taken_is_found_out_and_drawn_around() -> None:
    (first,) = ports.free_ports(1, random.Random(2))
    with socket.create_server((ports.LOOPBACK, first)):
        with pytest.raises(ports.PortTaken, match=f"port {first} on 127.0.0.1 is taken"):
            ports.require_free([first])
        assert first not in ports.free_ports(3, random.Random(2))


def test_ports_end_at_65535() -> None:
    assert list(ports.consecutive(65_533, 3)) == [65_533, 65_534, 65_535]
    with pytest.raises(EnvironmentLacks, match="need ports up to 65536"):
        ports.consecutive(65_534, 3)
