"""What commands that need real brokers have in common: which cluster, and how long to play on it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.scenarios.values import Duration

if TYPE_CHECKING:
    from fencepost.simulation.clusters.cluster import Cluster

Nodes: TypeAlias = Annotated[Literal[1, 3], Parameter(help="Of a cluster that is started.")]
Profile: TypeAlias = Annotated[
    Literal["fast", "stock"],
    Parameter(help="Of a cluster that is started: quick sessions, or Kafka's own settings."),
]

OWN_CLUSTERS = ("jvm", "docker")
_LEAST_US = 1_000_000


@asynccontextmanager
async def reached(
    cluster: str, nodes: int, profile: Literal["fast", "stock"], config: Mapping[str, bool | int | str]
) -> AsyncIterator[Cluster | str]:
    """One of ours for the length of the block, with that configuration of its coordinators, or HOST:PORT."""
    if cluster not in OWN_CLUSTERS:
        yield cluster
        return
    from fencepost.simulation.clusters.cluster import Cluster

    runner = cast("Literal['jvm', 'docker']", cluster)
    properties = {key: _property(value) for key, value in config.items()}
    async with Cluster(nodes=nodes, runner=runner, profile=profile, properties=properties) as own:
        yield own


def _property(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def played_us(text: str) -> int:
    """The value of --duration in microseconds.

    :raises FencepostError: if it is none, or less than a second.
    """
    try:
        duration = Duration.parse(text)
    except ValueError as error:
        raise FencepostError(f"--duration: {error}") from None
    if duration.us < _LEAST_US:
        raise FencepostError(f"--duration {text}: expected at least a second")
    return duration.us


def quiet_logs() -> None:
    """Errors of ours only; aiokafka says at length that brokers are away."""
    configure_logs("error")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
