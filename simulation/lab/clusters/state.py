"""The known state of a cluster outside the process that started it: one folder with a state file each.

`fencepost cluster up` returns, and `status` and `down` find the cluster here. The clusters of processes that
died without tidying up are found here too; the process that starts the next cluster removes them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.reading import UnreadableFile, read_file
from fencepost.simulation.java import cache_directory
from fencepost.simulation.lab.clusters.processes import ProcessIdentity, sight_of
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    KafkaVersion,
    NodeState,
    Profile,
)

RunnerName: TypeAlias = Literal["jvm", "docker"]

STATE_FILE = "state.json"
UP = "up"
"""The name of the one cluster that `fencepost cluster up` keeps."""

_FORGOTTEN_SECONDS = 3600.0


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster."""

    runner: RunnerName
    profile: Profile
    cluster_id: str
    nodes: tuple[NodeState, ...]
    owner: ProcessIdentity | None
    """The process whose end is the cluster's end; None once the cluster stays up by itself."""
    kafka: KafkaVersion = KAFKA_VERSION
    properties: dict[str, str] = {}
    """Further properties of each node, beyond those of the profile and of its place."""
    project: str = ""
    """The name of the docker compose project."""

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every node, as clients take it."""
        return ",".join(node.clients.address for node in self.nodes)


class StateFolder:
    """The folder of one cluster, with its state file and whatever its runner keeps there."""

    def __init__(self, path: Path, state: ClusterState) -> None:
        self.path = path
        self.state = state

    def update(self, state: ClusterState) -> None:
        """Keep a new state, in memory and in the file."""
        self.state = state
        beside = self.path / f".{STATE_FILE}"
        beside.write_bytes(msgspec.json.encode(state))
        beside.replace(self.path / STATE_FILE)

    def change_node(self, node: NodeState) -> None:
        """Keep a node's new state."""
        nodes = tuple(node if each.node_id == node.node_id else each for each in self.state.nodes)
        self.update(msgspec.structs.replace(self.state, nodes=nodes))

    def node(self, node_id: int) -> NodeState:
        """Return one node's state."""
        return next(node for node in self.state.nodes if node.node_id == node_id)

    def remove(self) -> None:
        """Delete the folder. Another process may do the same at this time."""
        shutil.rmtree(self.path, ignore_errors=True)


def clusters_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that holds the folders."""
    return cache_directory(environ) / "clusters"


def create(name: str | None, state: ClusterState, environ: Mapping[str, str] = os.environ) -> StateFolder:
    """Create a folder, under a name of its own if none is given.

    :raises FileExistsError: if there is a folder with that name.
    :raises EnvironmentLacks: if the cache can't be written.
    """
    parent = clusters_directory(environ)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
        folder = StateFolder(made, state)
        folder.update(state)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot write the folder for clusters {parent}: {(error.strerror or str(error)).lower()}; "
            "make room, or set XDG_CACHE_HOME to another folder"
        ) from error
    target = parent / (name or f"run-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        made.rename(target)
    except OSError as error:
        folder.remove()
        raise FileExistsError(str(target)) from error
    folder.path = target
    return folder


def find(name: str, environ: Mapping[str, str] = os.environ) -> StateFolder | None:
    """Return the folder of that name, if it exists and its state can be read."""
    return _read(clusters_directory(environ) / name)


def left_behind(environ: Mapping[str, str] = os.environ) -> Iterator[StateFolder]:
    """Yield the folders of clusters whose owner died without removing them.

    Folders that never got a state file, or a foreign one, are deleted after an hour.
    """
    parent = clusters_directory(environ)
    for path in sorted(parent.iterdir()) if parent.is_dir() else ():
        folder = _read(path)
        if folder is None:
            if _age_seconds(path) > _FORGOTTEN_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        elif folder.state.owner is not None and sight_of(folder.state.owner) is None:
            yield folder


def _read(path: Path) -> StateFolder | None:
    try:
        text = read_file(path / STATE_FILE)
        return StateFolder(path, msgspec.json.decode(text, type=ClusterState))
    except (UnreadableFile, msgspec.MsgspecError):
        return None


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
