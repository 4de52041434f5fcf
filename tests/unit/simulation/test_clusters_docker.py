"""Clusters in docker, with docker played by a script: which commands it gets, what is said when it fails."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.clusters import docker, state
from fencepost.simulation.lab.clusters.cluster import RealCluster, tidy_up
from fencepost.simulation.lab.clusters.processes import Condition, ProcessIdentity
from tests.unit.simulation.fake_machine import script

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"),
]

FAKE = Path(__file__).with_name("fake_docker.py")


@pytest.fixture(autouse=True)
def containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with docker; the folder is where its containers live."""
    script(tmp_path / "bin/docker", f'exec {shlex.quote(sys.executable)} -S {shlex.quote(str(FAKE))} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DOCKER_HOME", str(tmp_path / "containers"))
    monkeypatch.delenv("FAKE_KAFKA", raising=False)
    monkeypatch.delenv("FAKE_DOCKER", raising=False)
    return tmp_path / "containers"


def folders() -> list[Path]:
    parent = state.clusters_directory()
    return sorted(parent.iterdir()) if parent.exists() else []


def projects_that_are_up(containers: Path) -> list[str]:
    """Those of docker, not ours: only `down` ends one."""
    found = sorted(containers.iterdir()) if containers.exists() else []
    return [path.name for path in found if not (path / "down").exists()]


@pytest.mark.processes
async def test_three_nodes_are_killed_paused_and_restarted(containers: Path) -> None:
    async with RealCluster(nodes=3, runner="docker") as cluster:
        assert len(set(cluster.bootstrap_servers.split(","))) == 3
        (project,) = projects_that_are_up(containers)
        assert project == cluster.state.project
        await cluster.kill(1)
        await cluster.pause(2)
        stopped, paused, running = Condition.STOPPED, Condition.PAUSED, Condition.RUNNING
        assert await cluster.conditions() == {1: stopped, 2: paused, 3: running}
        await cluster.restart(1)
        await cluster.restart(2)
        assert await cluster.conditions() == {1: running, 2: running, 3: running}
    assert projects_that_are_up(containers) == []
    assert folders() == []


@pytest.mark.processes
async def test_a_container_that_ends_is_told_with_its_reason(
    containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KAFKA", "dies")
    with pytest.raises(EnvironmentLacks, match=r"node 1 ended .*IllegalStateException: no mood"):
        await RealCluster(runner="docker").start()
    assert projects_that_are_up(containers) == []
    assert folders() == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("compose", r"docker has no compose plugin \(Cannot connect"),
        ("{{.Server.Version}}", r"docker's daemon does not answer \(denied"),
        ("pull", "docker cannot fetch Kafka's image: denied"),
        ("up", "docker cannot start node 1: denied"),
    ],
)
async def test_what_docker_refuses_is_told(broken: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DOCKER", broken)
    with pytest.raises(EnvironmentLacks, match=told) as raised:
        await RealCluster(runner="docker").start()
    assert raised.value.exit_code == 3
    assert folders() == []


async def test_no_docker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        EnvironmentLacks,
        match="docker is not installed: install it, or run nodes without docker: jvm in place of docker",
    ):
        await RealCluster(runner="docker").start()
    assert folders() == []


@pytest.mark.processes
async def test_what_docker_does_not_take_down_now_is_taken_down_later(
    containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = RealCluster(runner="docker")
    await cluster.start()
    folder = cluster.leave_up()
    owner = ProcessIdentity(1, "in another life")
    folder.update(msgspec.structs.replace(folder.state, owner=owner))
    monkeypatch.setenv("FAKE_DOCKER", "down")
    assert tidy_up() == 0
    assert folders() == [folder.path]
    monkeypatch.delenv("FAKE_DOCKER")
    assert tidy_up() == 1
    assert projects_that_are_up(containers) == []
    assert folders() == []


@pytest.mark.parametrize(
    "text",
    [
        '{"Service": "kafka-1", "State": "running"}\n{"Service": "kafka-2", "State": "exited"}\n',
        '[{"Service": "kafka-1", "State": "running", "ID": "x"}, {"Service": "kafka-2", "State": "exited"}]',
        'time="2025" level=warning msg="odd"\n{"Service": "kafka-1", "State": "running"}\n'
        '{"Service": "kafka-2", "State": "exited"}',
    ],
)
def test_containers_are_listed_as_any_version_of_compose_does(text: str) -> None:
    found = docker._containers(text)
    assert [(each.service, each.state) for each in found] == [("kafka-1", "running"), ("kafka-2", "exited")]
