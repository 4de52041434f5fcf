"""The broker that judges: is it one that can, how is it configured, and what does it say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from fencepost.coordinator.codec.administration import AlterConfigsCall
from fencepost.coordinator.codec.client import INCREMENTAL_ALTER_CONFIGS
from fencepost.coordinator.codec.cluster import BrokerVersions
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import RELEASE_VERSION, GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.protocol import administration, cluster
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.simulation.lab.clusters.probe import examine
from fencepost.simulation.lab.conform.probe import offsets_partition
from fencepost.simulation.lab.conform.wire import WireConnection, to_the_end

CLIENT_ID = "fencepost-conform"
_VISIBLE_S = 10.0
_POLL_S = 0.01
_CONFIGURED_S = 0.1
"""A group coordinator hears of settings a little later than who changed them."""

VERSIONS: Mapping[int, int] = {
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.CREATE_PARTITIONS: 3,
    INCREMENTAL_ALTER_CONFIGS: 1,
}
"""The versions of what is asked around the schedules' own requests."""

RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What a coordinator answers that is not there yet."""


READY_S = 30.0
"""How long it may take to be there."""


class Asking(Protocol):
    """Whatever a broker can be asked through."""

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """The broker's answer."""


class Judge:
    """A broker with KIP-848."""

    def __init__(
        self, admin: WireConnection, config: GroupCoordinatorConfig, versions: BrokerVersions
    ) -> None:
        self.config = config
        """What the broker's own configuration says of groups."""
        self._admin = admin
        self._versions = versions.api_versions
        self._coordinators: dict[int, tuple[str, int]] = {}
        self._made: dict[str, None] = {}
        """Topics that the broker was asked to create, and may have created."""
        self._configured: dict[str, dict[str, None]] = {}
        """The names of the settings that groups were given."""

    @classmethod
    async def connect(cls, bootstrap: str) -> Judge:
        """Meet the first broker that answers.

        :raises FencepostError: if one of `bootstrap` is not HOST:PORT.
        :raises EnvironmentLacks: if none can be reached, or they lack KIP-848.
        """
        host, port = (await examine(bootstrap)).address
        admin = await WireConnection.open(host, port, CLIENT_ID)
        try:
            versions: BrokerVersions = await admin.ask(
                ApiKey.API_VERSIONS,
                VERSIONS[ApiKey.API_VERSIONS],
                cluster.ApiVersionsRequest(
                    client_software_name="fencepost", client_software_version="conform"
                ),
            )
            config = await configuration(admin)
        except BaseException:
            await admin.close()
            raise
        return cls(admin, config, versions)

    async def close(self) -> None:
        """Hang up."""
        await self._admin.close()

    def speaks(self, api_key: int, version: int) -> bool:
        """Whether the broker speaks that version."""
        found = self._versions.get(api_key)
        return found is not None and found.min_version <= version <= found.max_version

    @property
    def can_configure(self) -> bool:
        """Whether groups can be configured."""
        return self.speaks(INCREMENTAL_ALTER_CONFIGS, VERSIONS[INCREMENTAL_ALTER_CONFIGS])

    async def coordinator(self, group_id: str) -> tuple[str, int]:
        """Host and port of the group's coordinator."""
        part = offsets_partition(group_id, self.config.offsets_topic_num_partitions)
        address = self._coordinators.get(part)
        if address is None:
            address = self._coordinators[part] = await self._find_coordinator(group_id)
        return address

    async def _find_coordinator(self, group_id: str) -> tuple[str, int]:
        """The first question of a fresh cluster makes it create `__consumer_offsets`."""
        request = cluster.FindCoordinatorRequest(keys=(group_id,))
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            answer = await self._ask(ApiKey.FIND_COORDINATOR, request)
            (found,) = answer.coordinators
            if found.node is not None:
                return found.node.host, found.node.port
            if found.error_code not in RETRIED:
                raise EnvironmentLacks(f"no coordinator for groups: {found.error_code.name}")
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentLacks(
                    f"no coordinator for groups: {found.error_code.name} for {READY_S:g} s;"
                    " are there as many brokers as __consumer_offsets is to have replicas?"
                )
            await asyncio.sleep(0.1)

    async def _ask(self, api_key: int, message: Any) -> Any:
        return await to_the_end(self._admin.ask(api_key, VERSIONS[api_key], message))

    # Topics

    async def create_topic(self, name: str, partitions: int) -> administration.CreatedTopic:
        """CreateTopics for one topic; with its id, once the brokers know it."""
        topic = administration.NewTopic(name=name, partitions=partitions, replication_factor=-1)
        self._made[name] = None
        reply = await self._ask(
            ApiKey.CREATE_TOPICS, administration.CreateTopicsRequest(topics=(topic,), validate_only=False)
        )
        created: administration.CreatedTopic = reply.topics[0]
        if created.error_code is ErrorCode.NONE:
            await self._until(name, lambda found: len(found.partitions) == partitions)
        return created

    async def adopt_topic(self, name: str, partitions: int) -> TopicId:
        """The id of a topic that the broker makes by itself, once it is there.

        :raises EnvironmentLacks: if it does not come, or has no id.
        """
        await self._until(name, lambda found: len(found.partitions) == partitions)
        topic_id = (await self._metadata(name)).topic_id
        if topic_id is None:
            raise EnvironmentLacks(f"the broker does not tell the id of topic {name}")
        return topic_id

    async def grow_topic(self, name: str, partitions: int) -> administration.CreatedPartitions:
        """CreatePartitions for one topic, once the brokers know it."""
        grown = administration.GrownTopic(name=name, count=partitions)
        reply = await self._ask(
            ApiKey.CREATE_PARTITIONS, administration.CreatePartitionsRequest(topics=(grown,))
        )
        done: administration.CreatedPartitions = reply.topics[0]
        if done.error_code is ErrorCode.NONE:
            await self._until(name, lambda found: len(found.partitions) == partitions)
        return done

    async def delete_topic(self, name: str) -> administration.DeletedTopic:
        """DeleteTopics for one topic, once the brokers know it."""
        request = administration.DeleteTopicsRequest(topics=(cluster.TopicReference(name=name),))
        reply = await self._ask(ApiKey.DELETE_TOPICS, request)
        deleted: administration.DeletedTopic = reply.topics[0]
        if deleted.error_code is ErrorCode.NONE:
            await self._until(name, lambda found: found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return deleted

    async def delete_topics_of(self, prefix: str) -> None:
        """Delete the topics whose names begin so, with those that the broker has made for groups."""
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, cluster.MetadataRequest())
        listed = (topic.name for topic in reply.topics if topic.name is not None)
        for name in dict.fromkeys([*self._made, *listed]):
            if name.startswith(prefix):
                await self.delete_topic(name)
                self._made.pop(name, None)

    async def _metadata(self, name: str) -> cluster.TopicMetadata:
        request = cluster.MetadataRequest(
            topics=(cluster.TopicReference(name=name),), allow_auto_topic_creation=False
        )
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, request)
        return reply.topics[0]

    async def _until(self, name: str, holds: Callable[[cluster.TopicMetadata], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + _VISIBLE_S
        while not holds(await self._metadata(name)):
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentLacks(f"the broker does not tell of its change of topic {name}")
            await asyncio.sleep(_POLL_S)

    async def configure_group(self, group_id: str, values: Mapping[str, str]) -> ErrorCode:
        """IncrementalAlterConfigs for one group, once the brokers know it."""
        self._configured.setdefault(group_id, {}).update(dict.fromkeys(values))
        code = await self._alter(group_id, values)
        if code is ErrorCode.NONE:
            await self._until_configured(group_id, values)
        await asyncio.sleep(_CONFIGURED_S)
        return code

    async def forget_group(self, group_id: str) -> None:
        """Take the group's settings away, which outlive it."""
        if (names := self._configured.pop(group_id, None)) is not None:
            await self._alter(group_id, names)

    async def _alter(self, group_id: str, values: Mapping[str, str | None]) -> ErrorCode:
        call = AlterConfigsCall(resource_type=administration.ResourceType.GROUP, name=group_id, values=values)
        reply = await self._ask(INCREMENTAL_ALTER_CONFIGS, call)
        code: ErrorCode = reply.error_code
        return code

    async def _until_configured(self, group_id: str, values: Mapping[str, str]) -> None:
        resource = administration.ConfigResource(
            resource_type=administration.ResourceType.GROUP, name=group_id, keys=tuple(values)
        )
        request = administration.DescribeConfigsRequest(resources=(resource,))
        deadline = asyncio.get_running_loop().time() + _VISIBLE_S
        while True:
            reply: administration.DescribeConfigsResponse = await self._ask(ApiKey.DESCRIBE_CONFIGS, request)
            told = {entry.name: entry.value for entry in reply.resources[0].entries}
            if all(told.get(name) == value for name, value in values.items()):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentLacks(f"the broker does not tell of its change of group {group_id}")
            await asyncio.sleep(_POLL_S)


async def configuration(admin: Asking) -> GroupCoordinatorConfig:
    """The broker's settings, as far as a coordinator has them; what it does not tell is Kafka's default.

    :raises EnvironmentLacks: if it does not tell any.
    """
    metadata: cluster.MetadataResponse = await admin.ask(
        ApiKey.METADATA, VERSIONS[ApiKey.METADATA], cluster.MetadataRequest(topics=())
    )
    described = None
    for node in metadata.brokers:  # a broker tells of itself only, and which one is asked is not known
        described = await _settings(admin, node.node_id)
        if described.error_code is ErrorCode.NONE:
            break
    if described is None or described.error_code is not ErrorCode.NONE:
        code = "no broker" if described is None else described.error_code.name
        raise EnvironmentLacks(f"the broker does not tell its configuration: {code}")
    told = {entry.name: entry.value for entry in described.entries if entry.value is not None}
    told["group.consumer.assignors"] = ",".join(
        _ASSIGNORS.get(name.strip(), name.strip())
        for name in told.get("group.consumer.assignors", "uniform,range").split(",")
    )
    told.setdefault(RELEASE_VERSION, await _release(admin))
    return GroupCoordinatorConfig.from_properties(told)


async def _release(admin: Asking) -> ReleaseVersion:
    """Whose rules the broker goes by: no property tells, but each release speaks of something new."""
    versions: BrokerVersions = await admin.ask(
        ApiKey.API_VERSIONS,
        VERSIONS[ApiKey.API_VERSIONS],
        cluster.ApiVersionsRequest(client_software_name="fencepost", client_software_version="conform"),
    )
    spoken = versions.api_versions.get(ApiKey.TXN_OFFSET_COMMIT)
    return ReleaseVersion.V4_4 if spoken is not None and spoken.max_version >= 6 else ReleaseVersion.V4_3


async def _settings(admin: Asking, node_id: int) -> administration.DescribedConfigs:
    names = tuple(field.name.replace("_", ".") for field in _fields())
    resource = administration.ConfigResource(
        resource_type=administration.ResourceType.BROKER, name=str(node_id), keys=names
    )
    reply: administration.DescribeConfigsResponse = await admin.ask(
        ApiKey.DESCRIBE_CONFIGS,
        VERSIONS[ApiKey.DESCRIBE_CONFIGS],
        administration.DescribeConfigsRequest(resources=(resource,)),
    )
    return reply.resources[0]


_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def _fields() -> tuple[Any, ...]:
    return msgspec.structs.fields(GroupCoordinatorConfig)
