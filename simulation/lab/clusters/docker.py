"""Nodes as containers, through `docker compose` and a compose file of the cluster's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.java import first_line
from fencepost.simulation.lab.clusters.compose import compose_file, docker_nodes, service
from fencepost.simulation.lab.clusters.ports import consecutive, free_ports, require_free
from fencepost.simulation.lab.clusters.processes import Condition, Finished, run_program, telling_line
from fencepost.simulation.lab.clusters.settings import NodeState
from fencepost.simulation.lab.clusters.state import StateFolder

COMPOSE_FILE = "docker-compose.yml"
ASK_SECONDS = 30.0
PULL_SECONDS = 900.0

_INSTEAD = "or run nodes without docker: jvm in place of docker"
_CONDITIONS = {"running": Condition.RUNNING, "paused": Condition.PAUSED}


class _Container(msgspec.Struct, rename="pascal"):
    service: str
    state: str


def docker_node_states(count: int, port: int | None) -> tuple[NodeState, ...]:
    """Return nodes whose client listeners are published on ports that are free now; else as `jvm_nodes`."""
    chosen = () if port is None else consecutive(port, count)
    require_free(chosen)
    ports = chosen or free_ports(count)
    hosts = [service(number) for number in range(1, count + 1)]
    return docker_nodes(hosts, ports)


class DockerRunner:
    """Runs nodes with docker compose, in a project of their own."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    async def prepare(self) -> None:
        """Check docker, its compose plugin and its daemon, and fetch the image."""
        await self._require(["compose", "version"], "docker has no compose plugin")
        await self._require(["version", "--format", "{{.Server.Version}}"], "docker's daemon does not answer")
        state = self._folder.state
        self._file.write_text(
            compose_file(
                state.nodes, state.profile, state.cluster_id, kafka=state.kafka, more=state.properties
            ),
            encoding="utf-8",
        )
        await self._compose("pull", "--quiet", seconds=PULL_SECONDS, doing="fetch Kafka's image")

    @property
    def _file(self) -> Path:
        return self._folder.path / COMPOSE_FILE

    async def _require(self, words: list[str], missing: str) -> None:
        try:
            done = await run_program([_docker(), *words], seconds=ASK_SECONDS)
        except TimeoutError as error:
            raise EnvironmentLacks(f"{missing} (no answer in {ASK_SECONDS:.0f} s): {_INSTEAD}") from error
        if done.code:
            raise EnvironmentLacks(f"{missing} ({first_line(done.output)}): set it up, {_INSTEAD}")

    def _words(self, *words: str) -> list[str]:
        project = self._folder.state.project
        return [_docker(), "compose", "--project-name", project, "--file", str(self._file), *words]

    async def _compose(self, *words: str, seconds: float = 120.0, doing: str) -> Finished:
        try:
            done = await run_program(self._words(*words), seconds=seconds)
        except TimeoutError as error:
            raise EnvironmentLacks(f"docker did not {doing} within {seconds:.0f} s") from error
        if done.code:
            raise EnvironmentLacks(f"docker cannot {doing}: {telling_line(done.output)}")
        return done

    def _at_once(self, *words: str) -> Finished:
        done = subprocess.run(
            self._words(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,  # Ctrl-C is for us; this runs to its end
        )
        return Finished(done.returncode, done.stdout)

    async def start(self, node_id: int) -> None:
        """Create the container, or start it again."""
        await self._compose(
            "up", "--detach", "--no-deps", "--no-recreate", service(node_id), doing=f"start node {node_id}"
        )

    async def kill(self, node_id: int) -> None:
        """SIGKILL. A paused container is resumed first: the signal would wait for that."""
        condition = (await self.conditions())[node_id]
        if condition is Condition.PAUSED:
            await self.resume(node_id)
        if condition is not Condition.STOPPED:
            await self._compose("kill", service(node_id), doing=f"kill node {node_id}")

    async def pause(self, node_id: int) -> None:
        """Freeze the container."""
        await self._compose("pause", service(node_id), doing=f"pause node {node_id}")

    async def resume(self, node_id: int) -> None:
        """Resume the container."""
        await self._compose("unpause", service(node_id), doing=f"resume node {node_id}")

    async def conditions(self) -> dict[int, Condition]:
        """Return the conditions that docker reports."""
        done = await self._compose("ps", "--all", "--format", "json", doing="list the nodes")
        states = {container.service: container.state for container in _containers(done.output)}
        return {
            node.node_id: _CONDITIONS.get(states.get(service(node.node_id), ""), Condition.STOPPED)
            for node in self._folder.state.nodes
        }

    def complaint(self, node_id: int) -> str:
        """Return the reason that the container's log gives."""
        done = self._at_once("logs", "--no-color", "--no-log-prefix", "--tail", "20", service(node_id))
        return telling_line(done.output)

    def leave_up(self) -> None:
        """Do nothing: containers are the daemon's anyway."""

    def remove(self) -> None:
        """Take the project down at once, with its network and volumes; then delete the folder.

        :raises EnvironmentLacks: if docker refuses. The folder stays: `fencepost cluster down` can try again.
        """
        if self._file.exists():
            done = self._at_once("down", "--volumes", "--remove-orphans", "--timeout", "0")
            if done.code:
                raise EnvironmentLacks(f"docker cannot take the cluster down: {telling_line(done.output)}")
        self._folder.remove()


def _docker() -> str:
    found = shutil.which("docker")
    if found is None:
        raise EnvironmentLacks(f"docker is not installed: install it, {_INSTEAD}")
    return found


def _containers(output: str) -> list[_Container]:
    """Return the containers of `docker compose ps --format json`: an array, or since 2.21 objects by line."""
    text = output.strip()
    if text.startswith("["):
        return msgspec.json.decode(text, type=list[_Container])
    return [msgspec.json.decode(line, type=_Container) for line in text.splitlines() if line.startswith("{")]
