"""What a cluster asks of whatever runs its nodes."""

from __future__ import annotations

import enum
from typing import Protocol


class Condition(enum.StrEnum):
    """What a node's process is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Runner(Protocol):
    """Starts and stops the nodes of one cluster; node ids count from 1."""

    async def prepare(self) -> None:
        """Make ready what all nodes need.

        :raises EnvironmentLacks: if the machine lacks it.
        """

    async def start(self, node_id: int) -> None:
        """Start a node that is stopped; its data, if it has any, is as it left it."""

    async def kill(self, node_id: int) -> None:
        """SIGKILL; returns once the node is gone."""

    async def pause(self, node_id: int) -> None:
        """The node stands still: it answers nothing, and its connections stay open."""

    async def resume(self, node_id: int) -> None:
        """The node goes on."""

    async def conditions(self) -> dict[int, Condition]:
        """What each node is doing."""

    def complaint(self, node_id: int) -> str:
        """The line of the node's log that most likely says why it does not run."""

    def leave_up(self) -> None:
        """The nodes are to outlive this process: it has no part in their end."""

    def remove(self) -> None:
        """Kill every node and delete all data. Nothing waits, so that nothing can be interrupted."""
