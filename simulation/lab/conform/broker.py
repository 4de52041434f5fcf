"""The broker that judges: its abilities, its configuration, and its responses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, Final

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.codec.cluster import BrokerVersions
from fencepost.coordinator.codec.groups import DeleteGroupsCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, NO_PARTITIONS, TopicId
from fencepost.simulation.brokers.connection import BrokerConnection, to_the_end
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.brokers.requests import (
    REQUEST_VERSIONS,
    ClusterRequests,
    poll,
)
from fencepost.simulation.judge.base import OF_LOG

CLIENT_ID: Final = "fencepost-conform"
_VISIBLE_S: Final = 10.0
_POLL_S: Final = 0.01
_CONFIGURED_S: Final = 0.1
"""Delay of a group coordinator behind the client that changed its settings, in seconds."""

JUDGE_PROPERTIES: Final[Mapping[str, int]] = {
    f"group.{kind}.session.timeout.ms": 45_000 for kind in ("consumer", "streams")
}
"""Properties for a broker that is started to judge: Kafka's own sessions in every profile. A busy machine may
need seconds for a step, and schedules that wait for the end of a session set a timeout of their own."""

_PROBE: Final = "probe"
_probe_numbers = itertools.count()

READY_S: Final = 30.0
"""Maximum time until a coordinator is there, in seconds."""

_OF_KAFKA: Final = "metadata.version"
"""A feature that only Kafka's own controllers have."""


class ReferenceBroker:
    """A broker with KIP-848."""

    def __init__(
        self, admin: BrokerConnection, config: GroupCoordinatorConfig, versions: BrokerVersions
    ) -> None:
        self.config = config
        """The group settings in the broker's own configuration."""
        self.is_kafka = _OF_KAFKA in versions.features
        """True if the broker is Kafka's own, and no other program that speaks its protocol."""
        self._admin = admin
        self._requests = ClusterRequests(self._ask, visible_s=_VISIBLE_S, pause_s=_POLL_S)
        self._versions = versions.api_versions
        self._coordinators: dict[int, tuple[str, int]] = {}
        self._made: dict[str, None] = {}
        """Topics that the broker was asked to create, and may have created."""
        self._configured: dict[str, dict[str, None]] = {}
        """Names of the settings that groups were given."""

    @classmethod
    async def connect(cls, bootstrap: str) -> ReferenceBroker:
        """Connect to the first broker that responds.

        :raises FencepostError: if one of `bootstrap` is not HOST:PORT.
        :raises EnvironmentLacks: if no broker can be reached, or they lack KIP-848.
        """
        host, port = (await examine(bootstrap)).address
        admin = await BrokerConnection.open(host, port, CLIENT_ID)
        try:
            requests = ClusterRequests(admin.ask, visible_s=_VISIBLE_S, pause_s=_POLL_S)
            versions = await requests.versions()
            config = await requests.configuration()
        except BaseException:
            await admin.close()
            raise
        return cls(admin, config, versions)

    async def close(self) -> None:
        """Close the connections."""
        await self._admin.close()

    def speaks(self, api_key: int, version: int) -> bool:
        """Return true if the broker speaks that version."""
        found = self._versions.get(api_key)
        return found is not None and found.min_version <= version <= found.max_version

    @property
    def can_configure(self) -> bool:
        """True if groups can be configured."""
        api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        return self.speaks(api_key, REQUEST_VERSIONS[api_key])

    async def coordinator(self, group_id: str) -> tuple[str, int]:
        """Return host and port of the group's coordinator."""
        part = offsets_partition(group_id, self.config.offsets_topic_num_partitions)
        address = self._coordinators.get(part)
        if address is None:
            address = self._coordinators[part] = await self._find_coordinator(group_id)
        return address

    async def _find_coordinator(self, group_id: str) -> tuple[str, int]:
        """Ask until there is a coordinator: the first request makes a fresh cluster create
        `__consumer_offsets`."""
        found = await poll(
            lambda: self._requests.find_coordinator(group_id),
            lambda found: found.node is not None or found.error_code not in OF_LOG,
            lambda found: (
                f"no coordinator for groups: {found.error_code.name} for {READY_S:g} s;"
                " are there as many brokers as __consumer_offsets is to have replicas?"
            ),
            limit_s=READY_S,
            pause_s=0.1,
        )
        if found.node is None:
            raise EnvironmentLacks(f"no coordinator for groups: {found.error_code.name}")
        return found.node.host, found.node.port

    async def _ask(self, api_key: int, version: int, message: Any) -> Any:
        return await to_the_end(self._admin.ask(api_key, version, message))

    # Topics

    async def create_topic(self, name: str, partitions: int) -> administration.CreatedTopic:
        """Send CreateTopics for one topic; return the result with its id, once the brokers know it."""
        self._made[name] = None
        created = await self._requests.create_topic(name, partitions)
        if created.error_code is ErrorCode.NONE:
            await self._requests.await_topic(name, lambda found: len(found.partitions) == partitions)
        return created

    async def adopt_topic(self, name: str, partitions: int) -> TopicId:
        """Return the id of a topic that the broker makes by itself, once it exists.

        :raises EnvironmentLacks: if it is not created, or has no id.
        """
        await self._requests.await_topic(name, lambda found: len(found.partitions) == partitions)
        topic_id = (await self._requests.topic(name)).topic_id
        if topic_id is None:
            raise EnvironmentLacks(f"the broker does not return the id of topic {name}")
        return topic_id

    async def grow_topic(self, name: str, partitions: int) -> administration.CreatedPartitions:
        """Send CreatePartitions for one topic; return the result once the brokers know it."""
        grown = await self._requests.grow_topic(name, partitions)
        if grown.error_code is ErrorCode.NONE:
            await self._requests.await_topic(name, lambda found: len(found.partitions) == partitions)
        return grown

    async def delete_topic(self, name: str) -> administration.DeletedTopic:
        """Send DeleteTopics for one topic; return the result once the brokers know it."""
        deleted = await self._requests.delete_topic(name)
        if deleted.error_code is ErrorCode.NONE:
            await self._requests.await_no_topic(name)
        return deleted

    async def delete_topics_of(self, prefix: str) -> None:
        """Delete the topics whose names begin with `prefix`, and those that the broker made for groups."""
        for name in dict.fromkeys([*self._made, *await self._requests.topics()]):
            if name.startswith(prefix):
                await self.delete_topic(name)
                self._made.pop(name, None)

    # Groups

    async def configure_group(self, group_id: str, values: Mapping[str, str]) -> ErrorCode:
        """Send IncrementalAlterConfigs for one group; return the result once the brokers know it."""
        self._configured.setdefault(group_id, {}).update(dict.fromkeys(values))
        code = await self._requests.configure_group(group_id, values)
        if code is ErrorCode.NONE:
            await self._requests.await_group_configuration(group_id, values)
        await asyncio.sleep(_CONFIGURED_S)
        return code

    async def forget_group(self, group_id: str) -> None:
        """Remove the group's settings, which outlive it."""
        if (names := self._configured.pop(group_id, None)) is not None:
            await self._requests.configure_group(group_id, names)


# A broker's coordinators learn of topics later than what answers Metadata, and each partition of
# `__consumer_offsets` by itself. A separate group in the same partition, whose only member is assigned
# everything that exists, shows what its coordinator knows.


def neighbour(group_id: str, partitions: int) -> str:
    """Return a group id that is not in use, in the same partition of `__consumer_offsets` as the group."""
    place = offsets_partition(group_id, partitions)
    candidates = (f"{group_id}-probe{number}" for number in _probe_numbers)
    return next(name for name in candidates if offsets_partition(name, partitions) == place)


async def await_topics(
    connection: BrokerConnection, group_id: str, topics: Mapping[str, tuple[TopicId, int]], partitions: int
) -> None:
    """Wait until the group's coordinator knows these topics with these numbers of partitions, 0 if deleted.

    `partitions` is the number of partitions of `__consumer_offsets`.

    :raises EnvironmentLacks: if it does not learn of them.
    """
    expected = {topic_id: tuple(range(count)) for topic_id, count in topics.values() if count}
    await poll(
        lambda: to_the_end(_assigned(connection, neighbour(group_id, partitions), tuple(topics))),
        lambda found: found == expected,
        lambda _: f"the coordinator of {group_id} does not notice topics",
        limit_s=_VISIBLE_S,
        pause_s=_POLL_S,
    )


async def _assigned(
    connection: BrokerConnection, group_id: str, names: tuple[str, ...]
) -> Mapping[TopicId, tuple[int, ...]]:
    join = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=_PROBE,
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=names,
        topic_partitions=NO_PARTITIONS,
    )
    leave = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=_PROBE, member_epoch=LEAVE_EPOCH)
    answer: ConsumerGroupHeartbeatResponse = await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, join)
    await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, leave)
    group = DeleteGroupsRequest(group_id=group_id)
    await connection.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsCall(groups=(group,)))
    return answer.assignment or NO_PARTITIONS
