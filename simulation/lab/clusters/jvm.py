"""Nodes as JVM processes of this machine, on loopback, each in a process group of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.clusters.artifacts import Installation, prepare
from fencepost.simulation.lab.clusters.layout import PROPERTIES, lay_out
from fencepost.simulation.lab.clusters.ports import consecutive, free_ports, require_free
from fencepost.simulation.lab.clusters.processes import (
    Condition,
    identify,
    sight_of,
    signal_group,
    start_program,
    telling_line,
)
from fencepost.simulation.lab.clusters.settings import NodeState
from fencepost.simulation.lab.clusters.state import StateFolder

LOG = "broker.log"
DISK_BYTES_PER_NODE = 128 << 20
"""Free space that each node needs. It takes a tenth of it at first; a full disk ends a broker without a
message."""

_SIGNAL_SECONDS = 10.0
_LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
_LOG_BYTES = 200_000
"""Size of the part at a log's end that is searched for a reason."""


def jvm_nodes(count: int, port: int | None) -> tuple[NodeState, ...]:
    """Return nodes on ports that are free now; `port` is the first node's for clients, the others' follow it.

    :raises EnvironmentLacks: if a requested port is taken, or no port is free.
    """
    chosen = () if port is None else consecutive(port, count)
    require_free(chosen)
    inner = free_ports(3 * count)
    clients = chosen or inner[2 * count :]
    return tuple(
        NodeState.on_loopback(index + 1, (clients[index], inner[index], inner[count + index]))
        for index in range(count)
    )


class JvmRunner:
    """Runs nodes from Kafka's jars. The state file identifies its processes, so any process can take over."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._installation: Installation | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    async def prepare(self) -> None:
        """Find Java, fetch Kafka if need be, and check that there is room."""
        self._installation = await prepare(self._folder.state.kafka)
        self._require_room()

    def _require_room(self) -> None:
        free = shutil.disk_usage(self._folder.path).free
        needed = DISK_BYTES_PER_NODE * len(self._folder.state.nodes)
        if free < needed:
            raise EnvironmentLacks(
                f"the disk of {self._folder.path} has {free >> 20} MB left, and the cluster needs "
                f"{needed >> 20} MB: make room, or set XDG_CACHE_HOME to a folder on another disk"
            )

    async def start(self, node_id: int) -> None:
        """Start the process; the node is up some time later."""
        if self._installation is None:
            self._installation = await prepare(self._folder.state.kafka)
        home = self._home(node_id)
        if not (home / "data").exists():
            state = self._folder.state
            lay_out(
                home,
                self._installation.formatted,
                *(state.nodes[node_id - 1], state.nodes),
                cluster_id=state.cluster_id,
                profile=state.profile,
                more=state.properties,
            )
        self._spawn(home, node_id)

    def _home(self, node_id: int) -> Path:
        return self._folder.path / f"node-{node_id}"

    def _spawn(self, home: Path, node_id: int) -> None:
        assert self._installation is not None
        java, *words = self._installation.command("kafka.Kafka", str(home / PROPERTIES))
        # What a killed node unpacked is deleted with its folder.
        child = start_program([java, *_LOG_OPTIONS, f"-Djava.io.tmpdir={home}", *words], home / LOG)
        self._children[node_id] = child
        try:
            node = self._folder.node(node_id)
            self._folder.change_node(msgspec.structs.replace(node, process=identify(child.pid)))
        except BaseException:
            child.kill()
            child.wait()
            raise

    async def kill(self, node_id: int) -> None:
        """Kill the node's process group."""
        self._send(node_id, signal.SIGKILL)
        await self._until(node_id, Condition.STOPPED)
        if (child := self._children.pop(node_id, None)) is not None:
            child.wait()

    async def pause(self, node_id: int) -> None:
        """SIGSTOP, if the node runs."""
        if self._send(node_id, signal.SIGSTOP):
            await self._until(node_id, Condition.PAUSED)

    async def resume(self, node_id: int) -> None:
        """SIGCONT, if the node is paused."""
        if self._send(node_id, signal.SIGCONT):
            await self._until(node_id, Condition.RUNNING)

    async def _until(self, node_id: int, wanted: Condition) -> None:
        """Wait until a signal has taken effect; a node may end meanwhile."""
        deadline = time.monotonic() + _SIGNAL_SECONDS
        while self._condition(node_id) not in (wanted, Condition.STOPPED):
            if time.monotonic() > deadline:
                raise EnvironmentLacks(f"node {node_id} was sent a signal and is still not {wanted}")
            await asyncio.sleep(0.005)

    def _send(self, node_id: int, number: signal.Signals) -> bool:
        process = self._folder.node(node_id).process
        return process is not None and signal_group(process, number)

    async def conditions(self) -> dict[int, Condition]:
        """Return the conditions that the system reports."""
        return {node.node_id: self._condition(node.node_id) for node in self._folder.state.nodes}

    def _condition(self, node_id: int) -> Condition:
        child = self._children.get(node_id)
        if child is not None and child.poll() is not None:
            return Condition.STOPPED
        process = self._folder.node(node_id).process
        sight = None if process is None else sight_of(process)
        if sight is None:
            return Condition.STOPPED
        return Condition.PAUSED if sight.stopped else Condition.RUNNING

    def complaint(self, node_id: int) -> str:
        """Return the reason that the node's log gives."""
        return telling_line(_end_of(self._home(node_id) / LOG))

    def leave_up(self) -> None:
        """Leave the processes running; one that ends before this process is still its child, and is
        collected."""
        for child in self._children.values():
            threading.Thread(target=child.wait, daemon=True).start()
        self._children.clear()

    def remove(self) -> None:
        """Kill all processes at once, collect them, and delete the folder."""
        for node in self._folder.state.nodes:
            self._send(node.node_id, signal.SIGKILL)
        for child in self._children.values():
            child.kill()
            child.wait()
        deadline = time.monotonic() + _SIGNAL_SECONDS
        for node in self._folder.state.nodes:
            while self._condition(node.node_id) is not Condition.STOPPED and time.monotonic() < deadline:
                time.sleep(0.01)
        self._folder.remove()


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
