"""What the handlers of one broker share, and what they are told about each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.outcome import Request
from fencepost.coordinator.server.cluster import Cluster
from fencepost.coordinator.server.runner import CoordinatorRunner


class NoReply:
    """The answer to a request that wants none (Produce with acks 0)."""


NO_REPLY = NoReply()


class Services(NamedTuple):
    """The parts of a broker that answer requests."""

    cluster: Cluster
    runner: CoordinatorRunner
    config: GroupCoordinatorConfig
    node_id: int
    loop: asyncio.AbstractEventLoop
    auto_create_topics: bool = False
    default_partitions: int = 1

    def ask(self, request: Request) -> Any:
        """The coordinator's reply; its type is the request's counterpart."""
        return self.runner.process(request)


class Asked(NamedTuple):
    """One request as it came."""

    context: RequestContext
    local_host: str
    """The address of ours that the client used."""


Handler: TypeAlias = Callable[[Services, Any, Asked], Any]
"""Answers a message with its reply, with a future of it, or with NO_REPLY."""
