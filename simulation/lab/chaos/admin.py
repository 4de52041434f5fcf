"""What is asked of a cluster around a run: its settings, its topics, and who coordinates. Survives brokers.

A question goes to one broker after the other until one answers it, for a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from fencepost.coordinator.codec.administration import ElectCall, ReassignCall, ReplicaReply
from fencepost.coordinator.codec.client import ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS
from fencepost.coordinator.codec.groups import DeleteGroupsCall, LeaveGroupCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import administration, cluster
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId, TopicId
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.clusters.probe import addresses
from fencepost.simulation.lab.conform.broker import VERSIONS, configuration
from fencepost.simulation.lab.conform.wire import WireConnection

OFFSETS_TOPIC = "__consumer_offsets"

Protocol: TypeAlias = Literal["consumer", "streams", "classic"]
"""What the members of a group speak."""

_DESCRIBE: Mapping[Protocol, tuple[ApiKey, int, Callable[..., object]]] = {
    "consumer": (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest),
    "streams": (ApiKey.STREAMS_GROUP_DESCRIBE, 0, StreamsGroupDescribeRequest),
    "classic": (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest),
}
_CLIENT_ID = "fencepost-chaos"
_ANSWER_S = 2.0
_LIMIT_S = 60.0
"""How long a question is asked again, at most; brokers restart meanwhile."""
_EMPTIED_S = 5.0
"""How long a group that is to be deleted may have members, after a run's own are out of it."""
_PAUSE_S = 0.05
_RETRIED = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_REPLICATION_FACTOR,  # as many brokers are not registered at the moment
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NON_EMPTY_GROUP,
    }
)


class TopicTaken(EnvironmentLacks):
    """A topic that a run is to make is somebody else's."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the cluster has a topic {name} already, and a run makes and deletes its own: "
            "name a cluster without it, or have one started"
        )


class Admin:
    """Asks a cluster's brokers, wherever one answers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._addresses = tuple(addresses(bootstrap_servers).values())
        self._connection: WireConnection | None = None
        self._next = 0
        self._unanswered = 0
        """How many questions got no answer; what they asked for may have been done."""
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """The answer of some broker.

        :raises EnvironmentLacks: if there is none for a minute.
        """
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        async with self._turn:
            while True:
                try:
                    return await self._once(api_key, version, message)
                except EnvironmentLacks:
                    self._unanswered += 1
                    await self.close()
                    self._next += 1
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(_PAUSE_S)

    async def _once(self, api_key: int, version: int, message: Any) -> Any:
        if self._connection is None:
            host, port = self._addresses[self._next % len(self._addresses)]
            self._connection = await WireConnection.open(host, port, _CLIENT_ID, _ANSWER_S)
        return await self._connection.ask(api_key, version, message)

    async def _ask(self, api_key: int, message: Any) -> Any:
        return await self.ask(api_key, VERSIONS[api_key], message)

    async def _until(self, ask: Callable[[], Any], what: str, limit_s: float = _LIMIT_S) -> Any:
        """The outcome of a change, once it is none that another try may mend.

        :raises EnvironmentLacks: if it is not made for so long.
        """
        deadline = asyncio.get_running_loop().time() + limit_s
        while True:
            outcome = await ask()
            if outcome.error_code not in _RETRIED:
                return outcome
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentLacks(f"{what}: the cluster answers {outcome.error_code.name}")
            await asyncio.sleep(_PAUSE_S)

    # -- the cluster --------------------------------------------------------------------------------------

    async def configuration(self) -> GroupCoordinatorConfig:
        """The settings of the broker's group coordinator."""
        return await configuration(self)

    async def nodes(self) -> dict[int, tuple[str, int]]:
        """Where each broker listens."""
        reply = await self._ask(ApiKey.METADATA, cluster.MetadataRequest(topics=()))
        return {node.node_id: (node.host, node.port) for node in reply.brokers}

    async def leader(self, partition: int) -> int | None:
        """The node that leads a partition of the coordinators' log; None if none does."""
        found = await self._topic(OFFSETS_TOPIC)
        leaders = {each.partition: each.leader_id for each in found.partitions}
        leader = leaders.get(partition, -1)
        return None if leader < 0 else leader

    async def coordinator(self, group_id: str) -> tuple[str, int]:
        """Where a group's coordinator listens. Asking makes a fresh cluster create the coordinators' log.

        :raises EnvironmentLacks: if none does.
        """

        async def ask() -> cluster.FoundCoordinator:
            reply = await self._ask(ApiKey.FIND_COORDINATOR, cluster.FindCoordinatorRequest(keys=(group_id,)))
            found: cluster.FoundCoordinator = reply.coordinators[0]
            return found

        found = await self._until(ask, f"the coordinator of {group_id}")
        if found.node is None:
            raise EnvironmentLacks(f"no coordinator for groups: {found.error_code.name}")
        return found.node.host, found.node.port

    async def move_leader(self, partition: int, replicas: tuple[int, ...]) -> bool:
        """Make the first of these brokers, which all hold it, lead a partition of the coordinators' log."""
        call = ReassignCall(topic=OFFSETS_TOPIC, partition=partition, replicas=replicas)
        placed: ReplicaReply = await self.ask(ALTER_PARTITION_REASSIGNMENTS, 0, call)
        if placed.error_code is not ErrorCode.NONE:
            return False
        elect = ElectCall(topic=OFFSETS_TOPIC, partition=partition)
        elected: ReplicaReply = await self.ask(ELECT_LEADERS, 2, elect)
        return elected.error_code is ErrorCode.NONE

    # -- topics and groups --------------------------------------------------------------------------------

    async def _topic(self, name: str) -> cluster.TopicMetadata:
        request = cluster.MetadataRequest(
            topics=(cluster.TopicReference(name=name),), allow_auto_topic_creation=False
        )
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, request)
        return reply.topics[0]

    async def topics(self) -> list[str]:
        """The names of all topics."""
        reply: cluster.MetadataResponse = await self._ask(ApiKey.METADATA, cluster.MetadataRequest())
        return [topic.name for topic in reply.topics if topic.name]

    async def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if there is no such topic."""
        found = await self._topic(name)
        return len(found.partitions) if found.error_code is ErrorCode.NONE else 0

    async def create_topic(self, name: str, partitions: int) -> TopicId:
        """Create a topic, with the cluster's own number of replicas; its id, once brokers know it.

        :raises TopicTaken: if somebody else has created it.
        :raises EnvironmentLacks: if it can't be created.
        """
        taken = ErrorCode.TOPIC_ALREADY_EXISTS
        asked_before = False
        topic = administration.NewTopic(name=name, partitions=partitions, replication_factor=-1)
        request = administration.CreateTopicsRequest(topics=(topic,), validate_only=False)

        async def ask() -> administration.CreatedTopic:
            nonlocal asked_before
            unanswered = self._unanswered
            reply = await self._ask(ApiKey.CREATE_TOPICS, request)
            created: administration.CreatedTopic = reply.topics[0]
            if created.error_code is taken and not asked_before and self._unanswered == unanswered:
                raise TopicTaken(name)
            asked_before = True
            return created

        created = await self._until(ask, f"creating the topic {name}")
        if created.error_code not in (ErrorCode.NONE, taken):
            raise EnvironmentLacks(f"the topic {name} can't be created: {created.error_code.name}")
        found = await self._known(name, lambda found: len(found.partitions) == partitions)
        assert found.topic_id is not None
        return found.topic_id

    async def grow_topic(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, until brokers know of it; one that has as many stays as it is."""
        request = administration.CreatePartitionsRequest(
            topics=(administration.GrownTopic(name=name, count=partitions),)
        )

        async def ask() -> administration.CreatedPartitions:
            reply = await self._ask(ApiKey.CREATE_PARTITIONS, request)
            grown: administration.CreatedPartitions = reply.topics[0]
            return grown

        await self._until(ask, f"growing the topic {name}")
        await self._known(name, lambda found: len(found.partitions) >= partitions)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, until brokers know of it.

        :raises EnvironmentLacks: if it can't be deleted.
        """
        request = administration.DeleteTopicsRequest(topics=(cluster.TopicReference(name=name),))

        async def ask() -> administration.DeletedTopic:
            reply = await self._ask(ApiKey.DELETE_TOPICS, request)
            deleted: administration.DeletedTopic = reply.topics[0]
            return deleted

        deleted = await self._until(ask, f"deleting the topic {name}")
        if deleted.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise EnvironmentLacks(f"the topic {name} can't be deleted: {deleted.error_code.name}")
        await self._known(name, lambda found: found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _known(
        self, name: str, holds: Callable[[cluster.TopicMetadata], bool]
    ) -> cluster.TopicMetadata:
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        while True:
            found = await self._topic(name)
            if holds(found):
                return found
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentLacks(f"the cluster does not tell of its change of topic {name}")
            await asyncio.sleep(_PAUSE_S)

    async def group_exists(self, group_id: str) -> bool:
        """Whether the cluster has a group of that id, of whatever protocol, with members or offsets alone."""

        async def ask() -> ListGroupsResponse:
            reply: ListGroupsResponse = await self._of_coordinator(
                group_id, ApiKey.LIST_GROUPS, 5, ListGroupsRequest()
            )
            return reply

        listed = await self._until(ask, f"looking for the group {group_id}")
        return any(group.group_id == group_id for group in listed.groups)

    async def group(self, group_id: str, protocol: Protocol) -> Any:
        """A group, once its coordinator answers; without members if none of that protocol is there.

        :raises EnvironmentLacks: if the coordinator does not answer for a minute.
        """

        async def ask() -> Any:
            return await self._described(group_id, protocol)

        return await self._until(ask, f"describing the group {group_id}")

    async def _described(self, group_id: str, protocol: Protocol) -> Any:
        api_key, version, request = _DESCRIBE[protocol]
        reply = await self._of_coordinator(group_id, api_key, version, request(group_ids=(group_id,)))
        return reply.groups[0]

    async def delete_group(self, group_id: str, protocol: Protocol, roster: ForeignMembers) -> None:
        """Delete a group, and those on the roster whose sessions have not ended since they were killed.

        :raises EnvironmentLacks: if it can't be deleted, or members of others stay in it.
        """
        call = DeleteGroupsCall(groups=(DeleteGroupsRequest(group_id=group_id),))

        async def ask() -> DeleteGroupsResponse:
            group = await self._described(group_id, protocol)
            own = [member.member_id for member in group.members if roster.has(group, member)]
            await self._remove(group_id, protocol, own)
            reply = await self._of_coordinator(group_id, ApiKey.DELETE_GROUPS, 2, call)
            deleted: DeleteGroupsResponse = reply.groups[0]
            return deleted

        deleted = await self._until(ask, f"deleting the group {group_id}", _EMPTIED_S)
        if deleted.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise EnvironmentLacks(f"the group {group_id} can't be deleted: {deleted.error_code.name}")

    async def _remove(self, group_id: str, protocol: Protocol, members: Sequence[MemberId]) -> None:
        if protocol == "streams":  # which LeaveGroup does not know
            for member_id in members:
                leave = StreamsGroupHeartbeatRequest(
                    group_id=group_id, member_id=member_id, member_epoch=LEAVE_EPOCH
                )
                await self._of_coordinator(group_id, ApiKey.STREAMS_GROUP_HEARTBEAT, 0, leave)
        elif members:
            leaving = tuple(LeaveGroupRequest(group_id=group_id, member_id=each) for each in members)
            call = LeaveGroupCall(group_id=group_id, members=leaving)
            await self._of_coordinator(group_id, ApiKey.LEAVE_GROUP, 5, call)

    async def _of_coordinator(self, group_id: str, api_key: int, version: int, message: Any) -> Any:
        host, port = await self.coordinator(group_id)
        connection = await WireConnection.open(host, port, _CLIENT_ID, _ANSWER_S)
        try:
            return await connection.ask(api_key, version, message)
        finally:
            await connection.close()
