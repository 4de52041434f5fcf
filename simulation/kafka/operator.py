"""The operator of a group: it sends requests to the coordinator that read or change the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from fencepost.member.base.transport import TransportError
from fencepost.simulation.kafka.foreign_member import ForeignMember
from fencepost.simulation.kafka.requests import error_of
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import Host

if TYPE_CHECKING:
    from fencepost.coordinator.protocol.outcome import Request
    from fencepost.simulation.kafka.world import KafkaWorld

_TRIES: Final = 5
_BACKOFF_US: Final = 500_000
_FILTERS: Final[Sequence[tuple[tuple[str, ...], tuple[str, ...]]]] = (
    ((), ()),
    (("Stable", "Reconciling"), ()),
    (("empty",), ()),
    ((), ("consumer",)),
    (("assigning",), ("Classic", "streams")),
)
"""Filters for listing groups: states and types."""


class Operator(Host):
    """The operator's host. It sends each request to the coordinator, and retries it a few times."""

    def __init__(self, world: KafkaWorld) -> None:
        super().__init__("operator", world.loop)
        self._world = world
        self._rng = world.draws.random("operator")
        self._timeout_ms = world.scenario.network.request_timeout.ms
        self._way = self._connected()
        self._foreign = 0
        """Number of foreign members that have joined."""

    def _connected(self) -> SimulatedTransport:
        """Return connections that find the coordinator for themselves."""
        world = self._world
        return SimulatedTransport(
            self, world.network, world.cluster.brokers, first=0, timeout_us=self._timeout_ms * 1_000
        )

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Send the requests of a step; observers receive the responses."""
        if request == "foreign-member":
            self._foreign += 1
            member = ForeignMember(
                self, self._connected(), self._world.group_id, self._foreign, timeout_ms=self._timeout_ms
            )
            self.spawn(member.live(self._world.topics))
        else:
            self.spawn(self._send_all(self._requests(request, topics, share)))

    def vanish(self) -> None:
        """End the process at the end of the run."""
        self.end()
        self._world.network.forget(self)
        self.cancel_tasks()

    def _requests(self, request: str, topics: Sequence[str], share: float) -> list[Request]:
        group_id = self._world.group_id
        match request:
            case "list":
                states, types = self._rng.choice(_FILTERS)
                return [consumer.ListGroupsRequest(states_filter=states, types_filter=types)]
            case "describe":
                groups = (group_id, "no-such-group", "")
                return [
                    consumer.ConsumerGroupDescribeRequest(group_ids=groups),
                    DescribeGroupsRequest(group_ids=groups),
                ]
            case "offsets":
                return [OffsetFetchRequest(group_id=group_id, partitions=None, require_stable=True)]
            case "delete-offsets":
                return [OffsetDeleteRequest(group_id=group_id, partitions=self._partitions(topics))]
            case "reset-offsets":
                offsets = {
                    partition: OffsetAndMetadata(
                        offset=0, metadata="back to the start"[: 4 * partition.partition]
                    )
                    for partition in self._partitions(topics)
                }
                return [OffsetCommitRequest(group_id=group_id, offsets=offsets)]
            case "remove-members":
                return [consumer.LeaveGroupBatchRequest(group_id=group_id, members=self._some_members(share))]
            case _:
                assert request == "delete-group"
                return [consumer.DeleteGroupsRequest(group_id=group_id)]

    def _partitions(self, topics: Sequence[str]) -> tuple[TopicPartition, ...]:
        """Return all partitions of those topics, or of all topics, and one that does not exist."""
        by_name = self._world.topics.by_name
        known = [by_name[name] for name in topics or by_name if name in by_name]
        found = [TopicPartition(each.name, number) for each in known for number in range(each.partitions)]
        missing = [TopicPartition(each.name, each.partitions) for each in known[:1]]
        return tuple(found + missing)

    def _some_members(self, share: float) -> tuple[consumer.LeaveGroupRequest, ...]:
        """Return requests to remove some hosts' members, static ones by their instance ids, and one member
        that does not exist."""
        hosts = [each for each in self._world.members.values() if each.member_id]
        chosen = self._rng.sample(hosts, min(len(hosts), max(1, round(share * len(hosts)))))
        group_id = self._world.group_id
        found = []
        for host in sorted(chosen, key=lambda each: each.name):
            draw = self._rng.random()
            member_id = host.member_id if host.instance_id is None or draw < 0.3 else ""
            if host.instance_id is not None and draw > 0.85:
                member_id = "another"
            found.append(
                consumer.LeaveGroupRequest(
                    group_id=group_id, member_id=member_id, instance_id=host.instance_id
                )
            )
        return (*found, consumer.LeaveGroupRequest(group_id=group_id, member_id="nobody"))

    async def _send_all(self, requests: Sequence[Request]) -> None:
        for request in requests:
            response: Any = None
            for _ in range(_TRIES):
                try:
                    response = await self._way.send(request, self._timeout_ms)
                    code = error_of(response)
                except TransportError as error:
                    response, code = error, ErrorCode.NOT_COORDINATOR
                if not code.retriable or code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    break
                await self._find()
            self._world.tell("on_operation", request, response)

    async def _find(self) -> None:
        try:
            await self._way.find_coordinator(self._world.group_id)
        except (TransportError, ProtocolError):
            await self.pause_us(_BACKOFF_US)
