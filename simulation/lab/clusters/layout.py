"""The files in a node's folder when it starts: what formatting would write, without a JVM for it."""

from __future__ import annotations

import base64
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from fencepost.simulation.lab.clusters.settings import (
    NodeState,
    Profile,
    broker_properties,
    properties_text,
)

PROPERTIES = "server.properties"
META = "meta.properties"
"""The file with a node's identity; the only file of its data that differs from node to node."""


def new_id() -> str:
    """Return a Kafka id: 16 random bytes in URL-safe base64, never with a dash in front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def lay_out(
    home: Path,
    formatted: Path,
    node: NodeState,
    nodes: Sequence[NodeState],
    *,
    cluster_id: str,
    profile: Profile,
    more: Mapping[str, str],
) -> None:
    """Give a new node its data, with what is in `formatted`, and its properties: the profile's and `more`."""
    data = home / "data"
    shutil.copytree(formatted, data)
    identity = {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(node.node_id),
        "directory.id": new_id(),
    }
    (data / META).write_text(properties_text(identity), encoding="utf-8")
    properties = broker_properties(node, nodes, profile, str(data), more=more)
    (home / PROPERTIES).write_text(properties_text(properties), encoding="utf-8")
