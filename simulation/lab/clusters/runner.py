"""The interface of a cluster to the runner of its nodes."""

from __future__ import annotations

import enum
from typing import Protocol


class Condition(enum.StrEnum):
    """The condition of a node's process."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Runner(Protocol):
    """Starts and stops the nodes of one cluster; node ids count from 1."""

    async def prepare(self) -> None:
        """Prepare what all nodes need.

        :raises EnvironmentLacks: if the machine lacks it.
        """

    async def start(self, node_id: int) -> None:
        """Start a stopped node; its data, if it has any, is unchanged."""

    async def kill(self, node_id: int) -> None:
        """SIGKILL; returns once the node is gone."""

    async def pause(self, node_id: int) -> None:
        """Freeze the node: it responds to nothing, and its connections stay open."""

    async def resume(self, node_id: int) -> None:
        """Resume the node."""

    async def conditions(self) -> dict[int, Condition]:
        """Return the condition of each node."""

    def complaint(self, node_id: int) -> str:
        """Return the line of the node's log that most likely says why it does not run."""

    def leave_up(self) -> None:
        """Let the nodes outlive this process, which has no part in their end."""

    def remove(self) -> None:
        """Kill every node and delete all data. Nothing waits, so that nothing can be interrupted."""
