"""Requests to a cluster around a run: its settings, its topics, and its coordinator. Brokers may fail
meanwhile.

A request goes to one broker after the other until one responds, for a limited time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from fencepost.coordinator.codec.administration import ElectCall, ReassignCall, ReplicaReply
from fencepost.coordinator.codec.client import ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS
from fencepost.coordinator.codec.groups import DeleteGroupsCall, LeaveGroupCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.administration import CreatedTopic
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId, TopicId
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.brokers.requests import ClusterRequests, poll
from fencepost.simulation.judge.base import OF_LOG
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers

MemberProtocol: TypeAlias = Literal["consumer", "streams", "classic"]
"""The protocol that the members of a group speak."""

_DESCRIBE: Mapping[MemberProtocol, tuple[ApiKey, int, Callable[..., object]]] = {
    "consumer": (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, consumer.ConsumerGroupDescribeRequest),
    "streams": (ApiKey.STREAMS_GROUP_DESCRIBE, 0, StreamsGroupDescribeRequest),
    "classic": (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest),
}
_CLIENT_ID = "fencepost-chaos"
_ANSWER_S = 2.0
_LIMIT_S = 60.0
"""Maximum time for which a request is repeated, in seconds; brokers restart meanwhile."""
_EMPTIED_S = 5.0
"""Maximum time for which a group to be deleted may have members, after the run's own have left, in seconds.
"""
_PAUSE_S = 0.05
_RETRIED = OF_LOG | frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_REPLICATION_FACTOR,  # too few brokers are registered at the moment
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NON_EMPTY_GROUP,
    }
)


class _WithErrorCode(Protocol):
    @property
    def error_code(self) -> ErrorCode: ...


Reply = TypeVar("Reply", bound=_WithErrorCode)


class TopicTaken(EnvironmentLacks):
    """A topic that a run has to create was created by another client."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the cluster has a topic {name} already, and a run makes and deletes its own: "
            "name a cluster without it, or have one started"
        )


class Admin:
    """Sends requests to a cluster's brokers, to whichever responds."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._addresses = kafka_addresses(bootstrap_servers, "--cluster")
        self._connection: BrokerConnection | None = None
        self._next = 0
        self._unanswered = 0
        """Number of requests without a response; the changes that they asked for may have been made."""
        self._turn = asyncio.Lock()
        self._requests = ClusterRequests(self.ask, visible_s=_LIMIT_S, pause_s=_PAUSE_S)

    async def close(self) -> None:
        """Close the connections."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """Return the response of any broker.

        :raises EnvironmentLacks: if no broker responds for a minute.
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
            self._connection = await BrokerConnection.open(host, port, _CLIENT_ID, _ANSWER_S)
        return await self._connection.ask(api_key, version, message)

    async def _until(
        self, ask: Callable[[], Awaitable[Reply]], what: str, limit_s: float = _LIMIT_S
    ) -> Reply:
        """Return the outcome of a change, once another attempt would not improve it.

        :raises EnvironmentLacks: if it is not made in time.
        """
        return await poll(
            ask,
            lambda outcome: outcome.error_code not in _RETRIED,
            lambda outcome: f"{what}: the cluster answers {outcome.error_code.name}",
            limit_s=limit_s,
            pause_s=_PAUSE_S,
        )

    # -- the cluster --------------------------------------------------------------------------------------

    async def configuration(self) -> GroupCoordinatorConfig:
        """Return the settings of the group coordinators."""
        return await self._requests.configuration()

    async def nodes(self) -> dict[int, tuple[str, int]]:
        """Return where each broker listens."""
        return {node.node_id: (node.host, node.port) for node in await self._requests.nodes()}

    async def leader(self, partition: int) -> int | None:
        """Return the node that leads a partition of the coordinators' log; None if it has no leader."""
        found = await self._requests.topic(OFFSETS_TOPIC)
        leaders = {each.partition: each.leader_id for each in found.partitions}
        leader = leaders.get(partition, -1)
        return None if leader < 0 else leader

    async def coordinator(self, group_id: str) -> tuple[str, int]:
        """Return where a group's coordinator listens. Asking makes a fresh cluster create its log.

        :raises EnvironmentLacks: if there is no coordinator.
        """
        found = await self._until(
            lambda: self._requests.find_coordinator(group_id), f"the coordinator of {group_id}"
        )
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

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return await self._requests.topics()

    async def partitions(self, name: str) -> int:
        """Return how many partitions a topic has; 0 if there is no such topic."""
        found = await self._requests.topic(name)
        return len(found.partitions) if found.error_code is ErrorCode.NONE else 0

    async def create_topic(self, name: str, partitions: int) -> TopicId:
        """Create a topic, with the cluster's own number of replicas, and return its id once brokers know it.

        :raises TopicTaken: if another client has created it.
        :raises EnvironmentLacks: if it can't be created.
        """
        taken = ErrorCode.TOPIC_ALREADY_EXISTS
        asked_before = False

        async def ask() -> CreatedTopic:
            nonlocal asked_before
            unanswered = self._unanswered
            created = await self._requests.create_topic(name, partitions)
            if created.error_code is taken and not asked_before and self._unanswered == unanswered:
                raise TopicTaken(name)
            asked_before = True
            return created

        created = await self._until(ask, f"creating the topic {name}")
        if created.error_code not in (ErrorCode.NONE, taken):
            raise EnvironmentLacks(f"the topic {name} can't be created: {created.error_code.name}")
        found = await self._requests.await_topic(name, lambda found: len(found.partitions) == partitions)
        assert found.topic_id is not None
        return found.topic_id

    async def grow_topic(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, until brokers know of it; one that has as many stays unchanged."""
        await self._until(lambda: self._requests.grow_topic(name, partitions), f"growing the topic {name}")
        await self._requests.await_topic(name, lambda found: len(found.partitions) >= partitions)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, until brokers know of it.

        :raises EnvironmentLacks: if it can't be deleted.
        """
        deleted = await self._until(lambda: self._requests.delete_topic(name), f"deleting the topic {name}")
        if deleted.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise EnvironmentLacks(f"the topic {name} can't be deleted: {deleted.error_code.name}")
        await self._requests.await_no_topic(name)

    async def group_exists(self, group_id: str) -> bool:
        """Return true if the cluster has a group of that id, of any protocol, with members or with offsets
        alone."""

        async def ask() -> consumer.ListGroupsResponse:
            reply: consumer.ListGroupsResponse = await self._of_coordinator(
                group_id, ApiKey.LIST_GROUPS, 5, consumer.ListGroupsRequest()
            )
            return reply

        listed = await self._until(ask, f"looking for the group {group_id}")
        return any(group.group_id == group_id for group in listed.groups)

    async def group(self, group_id: str, protocol: MemberProtocol) -> Any:
        """Return a group, once its coordinator responds; without members if no group of that protocol exists.

        :raises EnvironmentLacks: if the coordinator does not respond for a minute.
        """

        return await self._until(
            lambda: self._described(group_id, protocol), f"describing the group {group_id}"
        )

    async def _described(self, group_id: str, protocol: MemberProtocol) -> Any:
        api_key, version, request = _DESCRIBE[protocol]
        reply = await self._of_coordinator(group_id, api_key, version, request(group_ids=(group_id,)))
        return reply.groups[0]

    async def delete_group(self, group_id: str, protocol: MemberProtocol, roster: ForeignMembers) -> None:
        """Delete a group, with members on the roster whose sessions have not ended since they were killed.

        :raises EnvironmentLacks: if it can't be deleted, or members of other clients stay in it.
        """
        call = DeleteGroupsCall(groups=(consumer.DeleteGroupsRequest(group_id=group_id),))

        async def ask() -> consumer.DeleteGroupsResponse:
            group = await self._described(group_id, protocol)
            own = [member.member_id for member in group.members if roster.has(group, member)]
            await self._remove(group_id, protocol, own)
            reply = await self._of_coordinator(group_id, ApiKey.DELETE_GROUPS, 2, call)
            deleted: consumer.DeleteGroupsResponse = reply.groups[0]
            return deleted

        deleted = await self._until(ask, f"deleting the group {group_id}", _EMPTIED_S)
        if deleted.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise EnvironmentLacks(f"the group {group_id} can't be deleted: {deleted.error_code.name}")

    async def _remove(self, group_id: str, protocol: MemberProtocol, members: Sequence[MemberId]) -> None:
        if protocol == "streams":  # which LeaveGroup does not know
            for member_id in members:
                leave = StreamsGroupHeartbeatRequest(
                    group_id=group_id, member_id=member_id, member_epoch=LEAVE_EPOCH
                )
                await self._of_coordinator(group_id, ApiKey.STREAMS_GROUP_HEARTBEAT, 0, leave)
        elif members:
            leaving = tuple(consumer.LeaveGroupRequest(group_id=group_id, member_id=each) for each in members)
            call = LeaveGroupCall(group_id=group_id, members=leaving)
            await self._of_coordinator(group_id, ApiKey.LEAVE_GROUP, 5, call)

    async def _of_coordinator(self, group_id: str, api_key: int, version: int, message: Any) -> Any:
        """Return the response of a group's coordinator, wherever it is by then.

        :raises EnvironmentLacks: if there is none, or it does not respond for a minute.
        """
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        while True:
            host, port = await self.coordinator(group_id)
            try:
                connection = await BrokerConnection.open(host, port, _CLIENT_ID, _ANSWER_S)
                try:
                    return await connection.ask(api_key, version, message)
                finally:
                    await connection.close()
            except EnvironmentLacks:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE_S)
