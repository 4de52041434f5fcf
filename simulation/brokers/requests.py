"""The requests to a cluster around a run: its topics, its coordinators and its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.codec.cluster import BrokerVersions
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import RELEASE_VERSION, GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.protocol import administration, cluster
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode

AskBroker: TypeAlias = Callable[[int, int, Any], Awaitable[Any]]
"""Returns a broker's response to a message, from its API key and version."""

REQUEST_VERSIONS: Final[Mapping[int, int]] = {
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
}

_ASSIGNORS: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}

T = TypeVar("T")


async def poll(
    look: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool],
    complaint: Callable[[T], str],
    *,
    limit_s: float,
    pause_s: float,
) -> T:
    """Look repeatedly, and return the first outcome that fulfils the condition.

    :raises EnvironmentLacks: if no outcome does within the limit; `complaint` makes the text from the last
        outcome.
    """
    deadline = asyncio.get_running_loop().time() + limit_s
    while not holds(found := await look()):
        if asyncio.get_running_loop().time() > deadline:
            raise EnvironmentLacks(complaint(found))
        await asyncio.sleep(pause_s)
    return found


class ClusterRequests:
    """Sends a cluster one request at a time. Use `await_topic` to wait for a change of a topic."""

    def __init__(self, ask: AskBroker, *, visible_s: float, pause_s: float) -> None:
        self._ask_broker = ask
        self._visible_s = visible_s
        self._pause_s = pause_s

    async def _ask(self, api_key: int, message: Any) -> Any:
        return await self._ask_broker(api_key, REQUEST_VERSIONS[api_key], message)

    # -- topics -------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, cluster.MetadataRequest())
        return [topic.name for topic in reply.topics if topic.name]

    async def topic(self, name: str) -> cluster.TopicMetadata:
        """Return the broker's metadata of a topic."""
        request = cluster.MetadataRequest(
            topics=(cluster.TopicReference(name=name),), allow_auto_topic_creation=False
        )
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, request)
        return reply.topics[0]

    async def await_topic(
        self, name: str, holds: Callable[[cluster.TopicMetadata], bool]
    ) -> cluster.TopicMetadata:
        """Return the brokers' metadata of a topic, once it fulfils the condition.

        :raises EnvironmentLacks: if it does not in time.
        """
        return await poll(
            lambda: self.topic(name),
            holds,
            lambda _: f"the cluster does not report its change of topic {name}",
            limit_s=self._visible_s,
            pause_s=self._pause_s,
        )

    async def await_no_topic(self, name: str) -> None:
        """Wait until the brokers no longer know a topic.

        :raises EnvironmentLacks: if they still do after some time.
        """
        await self.await_topic(name, lambda found: found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def create_topic(self, name: str, partitions: int) -> administration.CreatedTopic:
        """Create a topic with the cluster's default number of replicas."""
        topic = administration.NewTopic(name=name, partitions=partitions, replication_factor=-1)
        request = administration.CreateTopicsRequest(topics=(topic,), validate_only=False)
        reply: administration.CreateTopicsResponse = await self._ask(ApiKey.CREATE_TOPICS, request)
        return reply.topics[0]

    async def grow_topic(self, name: str, partitions: int) -> administration.CreatedPartitions:
        """Raise a topic's number of partitions to `partitions`."""
        grown = administration.GrownTopic(name=name, count=partitions)
        request = administration.CreatePartitionsRequest(topics=(grown,))
        reply: administration.CreatePartitionsResponse = await self._ask(ApiKey.CREATE_PARTITIONS, request)
        return reply.topics[0]

    async def delete_topic(self, name: str) -> administration.DeletedTopic:
        """Delete a topic."""
        request = administration.DeleteTopicsRequest(topics=(cluster.TopicReference(name=name),))
        reply: administration.DeleteTopicsResponse = await self._ask(ApiKey.DELETE_TOPICS, request)
        return reply.topics[0]

    # -- the cluster --------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[cluster.Node, ...]:
        """Return the brokers that are alive."""
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, cluster.MetadataRequest(topics=()))
        return tuple(reply.brokers)

    async def find_coordinator(self, group_id: str) -> cluster.FoundCoordinator:
        """Find a group's coordinator. On a fresh cluster the request also creates `__consumer_offsets`."""
        reply: cluster.FindCoordinatorResponse = await self._ask(
            ApiKey.FIND_COORDINATOR, cluster.FindCoordinatorRequest(keys=(group_id,))
        )
        return reply.coordinators[0]

    async def versions(self) -> BrokerVersions:
        """Return the APIs and features that the broker speaks."""
        client = cluster.ApiVersionsRequest(
            client_software_name="fencepost", client_software_version="conform"
        )
        found: BrokerVersions = await self._ask(ApiKey.API_VERSIONS, client)
        return found

    # -- configuration ------------------------------------------------------------------------------------

    async def configure_group(self, group_id: str, values: Mapping[str, str | None]) -> ErrorCode:
        """Set these properties of a group; a property without a value is removed."""
        operation = administration.ConfigOperation
        changes = tuple(
            administration.ConfigChange(name, value, operation.DELETE if value is None else operation.SET)
            for name, value in values.items()
        )
        group = administration.ChangedResource(
            resource_type=administration.ResourceType.GROUP, name=group_id, changes=changes
        )
        reply: administration.AlterConfigsResponse = await self._ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, administration.AlterConfigsRequest(resources=(group,))
        )
        return reply.resources[0].error_code

    async def await_group_configuration(self, group_id: str, values: Mapping[str, str]) -> None:
        """Wait until the brokers report these properties of a group.

        :raises EnvironmentLacks: if they do not in time.
        """

        async def told() -> dict[str, str | None]:
            found = await self._described(administration.ResourceType.GROUP, group_id, tuple(values))
            return {entry.name: entry.value for entry in found.entries}

        await poll(
            told,
            lambda found: all(found.get(name) == value for name, value in values.items()),
            lambda _: f"the cluster does not report its change of group {group_id}",
            limit_s=self._visible_s,
            pause_s=self._pause_s,
        )

    async def _described(
        self, kind: administration.ResourceType, name: str, keys: tuple[str, ...]
    ) -> administration.DescribedConfigs:
        resource = administration.ConfigResource(resource_type=kind, name=name, keys=keys)
        reply: administration.DescribeConfigsResponse = await self._ask(
            ApiKey.DESCRIBE_CONFIGS, administration.DescribeConfigsRequest(resources=(resource,))
        )
        return reply.resources[0]

    async def configuration(self) -> GroupCoordinatorConfig:
        """Return the settings of the group coordinators; a setting that no broker reports has Kafka's
        default.

        :raises EnvironmentLacks: if no broker reports any.
        """
        names = tuple(
            field.name.replace("_", ".") for field in msgspec.structs.fields(GroupCoordinatorConfig)
        )
        described = None
        for node in await self.nodes():  # a broker reports only its own, and it is unknown which one responds
            described = await self._described(administration.ResourceType.BROKER, str(node.node_id), names)
            if described.error_code is ErrorCode.NONE:
                break
        if described is None or described.error_code is not ErrorCode.NONE:
            code = "no broker" if described is None else described.error_code.name
            raise EnvironmentLacks(f"the broker does not report its configuration: {code}")
        told = {entry.name: entry.value for entry in described.entries if entry.value is not None}
        told["group.consumer.assignors"] = ",".join(
            _ASSIGNORS.get(name.strip(), name.strip())
            for name in told.get("group.consumer.assignors", "uniform,range").split(",")
        )
        told.setdefault(RELEASE_VERSION, await self._release())
        return GroupCoordinatorConfig.from_properties(told)

    async def _release(self) -> ReleaseVersion:
        """Return the release whose rules the broker follows. Each release reports a new API or feature."""
        spoken = (await self.versions()).api_versions.get(ApiKey.TXN_OFFSET_COMMIT)
        return ReleaseVersion.V4_4 if spoken is not None and spoken.max_version >= 6 else ReleaseVersion.V4_3
