"""Turns a step into a request: what a member knows, and what its symbols mean for it now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fencepost.coordinator.codec import groups as group_messages
from fencepost.coordinator.codec import offsets as offset_messages
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import classic, consumer, ids
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.coordinator.protocol.streams import (
    NO_TASKS,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    Tasks,
)
from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.classic_requests import classic_request
from fencepost.simulation.lab.conform.knowledge import ClassicKnowledge, Knowledge
from fencepost.simulation.lab.conform.streams_requests import heartbeat

ADMIN = "admin"
UNKNOWN_TOPIC_ID: ids.TopicId = "f3wAAAAAAAAAAAAAAAAAAQ"


_VERSIONS: Mapping[int, int] = {
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 0,
    ApiKey.STREAMS_GROUP_DESCRIBE: 0,
}
"""Versions of APIs whose versions make no difference to a request."""


class WireRequest(NamedTuple):
    """A request as it goes over the wire, and its sender."""

    api_key: int
    version: int
    message: Any
    sender: str
    """The client id; each has its own connection."""
    group_id: str
    """The group that the request is about."""


class ResolveContext:
    """Everything that the steps of one schedule are resolved against."""

    def __init__(self, group_id: str, prefix: str) -> None:
        self.group_id = group_id
        self.prefix = prefix
        """Prefix of each topic's name in the cluster."""
        self.members: dict[str, Knowledge[ids.Partitions]] = {}
        self.streams_members: dict[str, Knowledge[Tasks]] = {}
        self.classic_members: dict[str, ClassicKnowledge] = {}
        self.topic_ids: dict[str, ids.TopicId] = {}
        """Ids of topics that exist, or did, by their names in the schedule."""
        self._asked: dict[str, None] = {group_id: None}
        """All groups that requests were about."""

    def member(self, name: str) -> Knowledge[ids.Partitions]:
        """Return the knowledge of the member with that name."""
        return self.members.setdefault(name, Knowledge(name, ids.NO_PARTITIONS))

    def topic(self, name: str) -> str:
        """Return a topic's name in the cluster."""
        return self.prefix + name

    def _group(self, group: str | None) -> str:
        """Return another group's name, made unlike all others; a blank one stays blank."""
        if group is None:
            return self.group_id
        return f"{self.group_id}-{group}" if group.strip() else group

    def call(self, step: schedule.Step) -> WireRequest:
        """Return the request of a step that sends one to the group's coordinator."""
        group_id = self._group(getattr(step, "group", None))
        if group_id.strip():
            self._asked[group_id] = None
        sender = getattr(step, "member", None) or ADMIN
        version = getattr(step, "version", None)
        api_key, message = self._request(step, group_id)
        return WireRequest(
            api_key, _VERSIONS[api_key] if version is None else version, message, sender, group_id
        )

    def _request(self, step: schedule.Step, group_id: str) -> tuple[ApiKey, Any]:
        match step:
            case schedule.Beat():
                return ApiKey.CONSUMER_GROUP_HEARTBEAT, self._beat(step, group_id)
            case schedule.StreamsBeat():
                self.streams_members.setdefault(step.member, Knowledge(step.member, NO_TASKS))
                message = heartbeat(step, group_id, self.streams_members, self.topic)
                return ApiKey.STREAMS_GROUP_HEARTBEAT, message
            case schedule.ClassicJoinStep() | schedule.ClassicSyncStep() | schedule.ClassicBeat():
                return classic_request(step, group_id, self.classic_members, self.topic)
            case schedule.DescribeStreams():
                return ApiKey.STREAMS_GROUP_DESCRIBE, StreamsGroupDescribeRequest(group_ids=(group_id,))
            case schedule.Describe():
                request: Any = consumer.ConsumerGroupDescribeRequest(group_ids=(group_id,))
                return ApiKey.CONSUMER_GROUP_DESCRIBE, request
            case schedule.DescribeClassic():
                return ApiKey.DESCRIBE_GROUPS, classic.DescribeGroupsRequest(group_ids=(group_id,))
            case schedule.List():
                request = consumer.ListGroupsRequest(states_filter=step.states, types_filter=step.types)
                return ApiKey.LIST_GROUPS, request
            case schedule.CommitStep():
                return ApiKey.OFFSET_COMMIT, self._commit(step, group_id)
            case schedule.Fetch():
                return ApiKey.OFFSET_FETCH, self._fetch(step, group_id)
            case _:
                return self._administration(step, group_id)

    def _administration(self, step: schedule.Step, group_id: str) -> tuple[ApiKey, Any]:
        match step:
            case schedule.Forget():
                topics = self._topics(step.topics, by_id=False)
                return ApiKey.OFFSET_DELETE, offset_messages.OffsetDeleteCall(
                    group_id=group_id, topics=topics
                )
            case schedule.Remove():
                return ApiKey.LEAVE_GROUP, self._remove(step, group_id)
            case schedule.DeleteGroup():
                one = consumer.DeleteGroupsRequest(group_id=group_id)
                return ApiKey.DELETE_GROUPS, group_messages.DeleteGroupsCall(groups=(one,))
            case _:
                raise AssertionError(f"{type(step).__name__} is no request to a group's coordinator")

    def _beat(self, step: schedule.Beat, group_id: str) -> consumer.ConsumerGroupHeartbeatRequest:
        member = self.member(step.member)
        regex = step.regex
        if regex is not None and regex.strip():
            regex = f"{re.escape(self.prefix)}(?:{regex})"
        return consumer.ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member.member_id if step.member_id is None else step.member_id,
            member_epoch=member.epochs.of(step.epoch),
            instance_id=step.instance,
            rack_id=step.rack,
            rebalance_timeout_ms=step.rebalance_timeout_ms,
            subscribed_topic_names=None if step.names is None else tuple(map(self.topic, step.names)),
            subscribed_topic_regex=regex if step.version else None,
            server_assignor=step.assignor,
            topic_partitions=self._owned(step.owned, member),
        )

    def _owned(self, owned: schedule.Owned, member: Knowledge[ids.Partitions]) -> ids.Partitions | None:
        held = _pairs(member.assigned)
        match owned:
            case schedule.Owned.NULL:
                return None
            case schedule.Owned.EMPTY:
                held = []
            case schedule.Owned.PARTIAL:
                held = held[1:]
            case schedule.Owned.BEFORE:
                held = _pairs(member.before)
            case schedule.Owned.FOREIGN:
                held = [pair for other in self.members.values() for pair in _pairs(other.assigned)]
            case schedule.Owned.UNKNOWN:
                held = [*held, (UNKNOWN_TOPIC_ID, 0)]
            case _:
                pass
        return ids.partitions_of(held)

    def _commit(self, step: schedule.CommitStep, group_id: str) -> offset_messages.OffsetCommitCall:
        member_id, epoch = self._identity(step.member, step.epoch)
        position = OffsetAndMetadata(offset=step.offset, metadata="m" * step.metadata_bytes)
        topics = self._topics(step.topics, by_id=step.version >= 10)
        return offset_messages.OffsetCommitCall(
            group_id=group_id,
            member_id=member_id or "",
            member_epoch=epoch,
            instance_id=step.instance if step.version >= 7 else None,
            retention_time_ms=-1,
            api_version=step.version,
            topics=tuple(
                OfTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        offset_messages.CommittedPartition(number, position) for number in topic.partitions
                    ),
                )
                for topic in topics
            ),
        )

    def _fetch(self, step: schedule.Fetch, group_id: str) -> offset_messages.OffsetFetchCall:
        member_id, epoch = self._identity(step.member, step.epoch)
        topics = None if step.topics is None else self._topics(step.topics, by_id=step.version >= 10)
        group = offset_messages.OffsetFetchGroup(
            group_id=group_id, member_id=member_id, member_epoch=epoch, topics=topics
        )
        return offset_messages.OffsetFetchCall(
            groups=(group,), require_stable=step.stable, api_version=step.version
        )

    def _identity(self, name: str | None, epoch: schedule.Epoch | int) -> tuple[ids.MemberId | None, int]:
        """Return id and epoch for a commit or a fetch. Without a member there is no id, and only the step's
        own epoch."""
        if name is None:
            return None, epoch if isinstance(epoch, int) else ids.NO_EPOCH
        if (classic_member := self.classic_members.get(name)) is not None:
            return classic_member.member_id, classic_member.generations.of(epoch)
        streams = self.streams_members.get(name)
        member = self.member(name) if streams is None else streams
        return member.member_id, member.epochs.of(epoch)

    def _member_id(self, name: str) -> ids.MemberId:
        """Return the id of a member of either protocol; its name if it was given no id."""
        classic_member = self.classic_members.get(name)
        if classic_member is not None:
            return classic_member.member_id or name
        return self.member(name).member_id

    def _topics(self, topics: Mapping[str, Iterable[int]], *, by_id: bool) -> tuple[OfTopic[int], ...]:
        return tuple(
            OfTopic(
                name=None if by_id else self.topic(name),
                topic_id=self.topic_ids.get(name, UNKNOWN_TOPIC_ID) if by_id else None,
                partitions=tuple(numbers),
            )
            for name, numbers in topics.items()
        )

    def _remove(self, step: schedule.Remove, group_id: str) -> group_messages.LeaveGroupCall:
        return group_messages.LeaveGroupCall(
            group_id=group_id,
            members=tuple(
                consumer.LeaveGroupRequest(
                    group_id=group_id,
                    member_id=self._member_id(one.member) if one.member else "",
                    instance_id=one.instance,
                )
                for one in step.members
            ),
            single=step.version < 3,
        )

    def farewell(self, members: tuple[consumer.LeaveGroupRequest, ...]) -> list[WireRequest]:
        """Return the requests that remove these members, and all groups that requests were about."""
        calls = []
        for streams in self.streams_members.values():
            goodbye = StreamsGroupHeartbeatRequest(
                group_id=self.group_id, member_id=streams.member_id, member_epoch=ids.LEAVE_EPOCH
            )
            calls.append(WireRequest(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, goodbye, ADMIN, self.group_id))
        if members:
            leave = group_messages.LeaveGroupCall(group_id=self.group_id, members=members)
            calls.append(WireRequest(ApiKey.LEAVE_GROUP, 5, leave, ADMIN, self.group_id))
        for group_id in self._asked:
            delete = group_messages.DeleteGroupsCall(
                groups=(consumer.DeleteGroupsRequest(group_id=group_id),)
            )
            calls.append(WireRequest(ApiKey.DELETE_GROUPS, 2, delete, ADMIN, group_id))
        return calls

    def hear(self, step: schedule.Step, answer: Any) -> None:
        """Let a member learn from the broker's response."""
        match step:
            case schedule.Beat() if not step.lost and step.group is None:
                self.member(step.member).hear(answer, answer.assignment)
            case schedule.StreamsBeat() if not step.lost and step.group is None:
                self.streams_members[step.member].hear(answer, answer.tasks)
            case schedule.ClassicJoinStep(lost=True):
                pass
            case schedule.ClassicJoinStep() | schedule.ClassicSyncStep() | schedule.ClassicBeat():
                # An instance id without a member says nothing about the member.
                about_it = step.group is None and step.member_id is None and step.instance is None
                known = getattr(answer, "error_code", None) is not ErrorCode.UNKNOWN_MEMBER_ID
                if answer is not None and (about_it or (known and step.group is step.member_id is None)):
                    self.classic_members[step.member].hear(answer)


def _pairs(partitions: ids.Partitions) -> list[tuple[ids.TopicId, int]]:
    return [(topic, number) for topic, numbers in partitions.items() for number in numbers]
