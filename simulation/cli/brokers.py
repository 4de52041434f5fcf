"""Options and helpers shared by commands that need real brokers: the cluster to use, and how long to play on
it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

from cyclopts import Parameter

from fencepost.coordinator.config import RELEASE_VERSION
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import given_options, only_with
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.lab.clusters import settings
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, KafkaVersion
from fencepost.simulation.scenarios.values import Duration

if TYPE_CHECKING:
    from fencepost.simulation.lab.clusters.cluster import RealCluster

Nodes: TypeAlias = Annotated[Literal[1, 3], Parameter(help="Number of nodes, if a cluster is started.")]
ClusterProfile: TypeAlias = Annotated[
    settings.Profile, Parameter(help="Settings of a started cluster: short sessions, or Kafka's defaults.")
]
Kafka: TypeAlias = Annotated[KafkaVersion, Parameter(help="The Kafka version to start.")]


@Parameter(name="*")
@dataclass(frozen=True)
class OwnCluster:
    """Options of a cluster that is started for a command."""

    nodes: Nodes = 3
    profile: ClusterProfile = "fast"
    kafka: Kafka = KAFKA_VERSION


@Parameter(name="*")
@dataclass(frozen=True)
class OwnNode(OwnCluster):
    """The same; one node unless the options say otherwise."""

    nodes: Nodes = 1


OWN_CLUSTERS = ("jvm", "docker")
_LEAST_US = 1_000_000


def check_own(cluster: str, own: OwnCluster, overrides: Iterable[str] = ()) -> None:
    """Refuse options and settings that have an effect only if a cluster is started.

    :raises FencepostError: if one is given, and the cluster is HOST:PORT of a running one.
    """
    if cluster in OWN_CLUSTERS:
        return
    only_with(f"--cluster jvm or docker, not a running cluster ({cluster})", *given_options(own))
    for override in overrides:
        if override.startswith("config."):
            raise FencepostError(f"--set {override}: has no effect: the brokers at {cluster} have their own")


@asynccontextmanager
async def reached(
    cluster: str, own: OwnCluster, config: Mapping[str, bool | int | str]
) -> AsyncIterator[RealCluster | str]:
    """Start a cluster with this configuration of its coordinators for the block, or return HOST:PORT.

    :raises FencepostError: on entry, if the configuration is for another release.
    :raises EnvironmentLacks: on entry, as `RealCluster.start` does.
    """
    if cluster not in OWN_CLUSTERS:
        yield cluster
        return
    from fencepost.simulation.lab.clusters.cluster import RealCluster

    runner = cast("Literal['jvm', 'docker']", cluster)
    async with RealCluster(
        **asdict(own), runner=runner, properties=_properties(config, own.kafka)
    ) as started:
        yield started


def _properties(config: Mapping[str, bool | int | str], kafka: KafkaVersion) -> dict[str, bool | int | str]:
    """Return the configuration as broker properties. The release is no property: the Kafka version
    decides it."""
    given = dict(config)
    release = given.pop(RELEASE_VERSION, None)
    if release is not None and not kafka.startswith(f"{release}."):
        raise FencepostError(
            f"{RELEASE_VERSION} of the scenario is {release}, but --kafka is {kafka}:"
            " expected --kafka of the same release"
        )
    return given


def played_us(text: str) -> int:
    """Return the value of --duration in microseconds.

    :raises FencepostError: if it is no duration, or less than a second.
    """
    try:
        duration = Duration.parse(text)
    except ValueError as error:
        raise FencepostError(f"--duration: {error}") from None
    if duration.us < _LEAST_US:
        raise FencepostError(f"--duration {text}: expected at least a second")
    return duration.us


def quiet_logs() -> None:
    """Log only our own errors; aiokafka logs a lot while brokers are away."""
    configure_logs("error")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
