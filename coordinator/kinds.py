"""A kind of group as an object, for the coordinator, the endpoint, the trace and tests.

A coordinator dispatches over the kinds that it has: consumer, classic, streams, and those of `FURTHER_KINDS`.
An id belongs to at most one of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Self, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.machine import StateTable
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetFetchRequest, PartitionFence
from fencepost.coordinator.protocol.outcome import NOTHING, Effect, Outcome, ParkedResponse
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.timers import Timers

GiveWay: TypeAlias = Callable[[str], "tuple[Record, ...] | None"]
"""Returns the records that end a group of another kind: () if there is no such group, None if it must
stay."""
RequestHandler: TypeAlias = Callable[[Any, int], Outcome]
"""Handles a request at a time."""
Applier: TypeAlias = Callable[[Any, Any], None]
"""Makes a record true, given its key and value."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group. `epoch` is the generation of a member that speaks the classic protocol."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    protocol: str
    """`consumer` (KIP-848), `classic` or `streams` (KIP-1071)."""
    topics: tuple[str, ...]
    """The names that it subscribes to, that its regular expression matches, or that its topology reads."""
    assignment: tuple[TopicPartition, ...]
    """Partitions that the coordinator assigned to it. For a Streams member: the input of its active tasks."""
    owned: tuple[TopicPartition, ...]
    """Partitions that it last reported as owned. A classic member reports no partitions and counts as owning
    all."""
    active_tasks: tuple[str, ...] = ()
    """Tasks of a Streams application by Kafka's names, such as `0_3`: subtopology and partition."""
    standby_tasks: tuple[str, ...] = ()
    warmup_tasks: tuple[str, ...] = ()


class ReportedMember(msgspec.Struct, frozen=True):
    """One heartbeat: what the member reports, and what the coordinator knows of the member."""

    owned: Partitions | None
    """Partitions that the member reports as owned; None if it reports nothing."""
    assigned: Partitions | None
    """Partitions assigned to it; None if it is not a member."""
    is_stable: bool = False
    """True if the coordinator waits for nothing more from it."""


class GroupKind:
    """All groups of one kind in a coordinator. A group has `group_id`, `state`, `members` and an epoch.

    The defaults are for a kind without rules for offsets, timers or settings.
    """

    __slots__ = ()

    name: ClassVar[str]
    """The kind's name in ListGroups, in the trace, and as the `protocol` of members."""
    group_table: ClassVar[StateTable[Any, Any] | None] = None
    """The arrows along which a batch of records may move a group; None if the group checks them itself."""
    member_key: ClassVar[type | None] = None
    """The key of the records whose tombstone removes a member, if there is one."""
    heartbeat_requests: ClassVar[tuple[type, ...]] = ()
    """Requests in which members report what they own."""
    leaves_by_request: ClassVar[bool] = True
    """True if LeaveGroup can remove a member."""
    confirms_by_heartbeat: ClassVar[bool] = True
    """True if members report what they own. If not, they ask for their assignment."""

    api_keys: ClassVar[tuple[int, ...]] = ()
    """Kafka's requests that an endpoint hands to the coordinator as they are; their bytes are the codec's."""

    groups: Mapping[str, Any]
    timers: Timers[Any]

    @classmethod
    def make(cls, config: GroupCoordinatorConfig, give_way: GiveWay) -> Self:
        """Return an instance for one coordinator; needed for the kinds of `FURTHER_KINDS`."""
        return cls()

    # Requests and records

    @abstractmethod
    def handlers(self) -> Mapping[type, RequestHandler]:
        """Return the handlers of the requests that only this kind knows."""

    @abstractmethod
    def appliers(self) -> Mapping[type, Applier]:
        """Return the functions that apply this kind's records, by the type of their keys."""

    def replayers(self) -> Mapping[type, Applier]:
        """Return the same for a journal that is read; `rebuild` ends it."""
        return self.appliers()

    def begin(self, now_ms: int) -> None:
        """Take the time of the event that is about to be handled."""

    def rebuild(self, now_ms: int) -> None:
        """Start all timers with their full length, after a load."""

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Discard preparations for records that were not written; return responses to parked requests."""
        return ()

    def unload(self) -> tuple[ParkedResponse, ...]:
        """Return responses to parked requests: the groups have another coordinator from now on."""
        return ()

    def hard_state(self) -> dict[str, Any]:
        """Return all that records made, by group."""
        return {group_id: group.hard_state() for group_id, group in self.groups.items()}

    # Time and the cluster

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that ends something; return None without one."""
        return None

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        """Restart a member's session, as the shell knows that it is alive."""

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome:
        """End a member's session, whatever its timer says."""
        return NOTHING

    def rebalance(self, group_id: str, now_ms: int) -> Outcome:
        """Let a group that has members rebalance for its own sake."""
        return NOTHING

    def topics_changed(self, before: TopicsImage, after: TopicsImage, changed: Iterable[str]) -> None:
        """Take in the cluster's new topics; `changed` are the names of those that differ."""

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the configuration of a group, or remove it with None."""

    # Administration

    def listed(self, group: Any) -> consumer.ListedGroup:
        """Return the group's row in ListGroups."""
        return consumer.ListedGroup(
            group_id=group.group_id, protocol_type=self.name, group_state=group.state, group_type=self.name
        )

    def remove_members(self, request: consumer.LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        """LeaveGroup, for a group that is there. By default no member can be removed so."""
        return no_members_removed(request)

    @abstractmethod
    def end_of_empty(self, group: Any) -> tuple[Record, ...] | None:
        """Return the tombstones of a group without members; None if it has members."""

    def gives_way(self, group: Any) -> tuple[Record, ...] | None:
        """Return the tombstones of a group that a member of another kind replaces; None if it stays."""
        return None

    # Offsets

    def check_commit(
        self, group: Any, image: TopicsImage, now_ms: int, request: OffsetCommitRequest
    ) -> PartitionFence | None:
        """Fence an OffsetCommit: return a check for each partition, or None if it may commit for any.

        :raises ProtocolError: if the member may not commit at all.
        """
        return None

    def check_fetch(self, group: Any, request: OffsetFetchRequest) -> None:
        """Fence an OffsetFetch.

        :raises ProtocolError: if the member is unknown, or its epoch is not the request's.
        """

    def may_delete_offsets(self, group: Any) -> bool:
        """Return true if offsets of topics without subscribers may be deleted."""
        return True

    def offsets_may_expire(self, group: Any) -> bool:
        """Return true if the group's offsets may expire in its present state."""
        return True

    def retained_since_ms(self, group: Any) -> int | None:
        """Return the time from which an offset's age counts, in ms; None if it counts from the commit."""
        return None

    # What observers see

    def epoch(self, group: Any) -> int:
        """Return the group's epoch."""
        epoch: int = group.group_epoch
        return epoch

    @abstractmethod
    def members(
        self, group: Any, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the group's members, by member id; `owned` is what they last reported as owned."""

    def member_ids(self, group: Any) -> Collection[MemberId]:
        """Return the ids of members, and those that were given out to join with."""
        ids: Collection[MemberId] = group.members.keys()
        return ids

    def reported(self, request: Any, member_id: MemberId, image: TopicsImage) -> ReportedMember:
        """Return what a heartbeat reports about its member."""
        return ReportedMember(None, None)

    def knows_its_topics(self, group: Any, image: TopicsImage) -> bool:
        """Return true if the group's assignment is based on the present topics.

        Coordinators look at changed topics in the next heartbeat; until then groups are unchanged.
        """
        return True

    def member_state(self, group: Any) -> str:
        """Return the state of members that do not report it: JOINING, RECONCILING or STABLE."""
        return "STABLE"

    def may_read(self, group: Any, topic: str) -> bool:
        """Return true if a member subscribes to the topic in any way."""
        subscribed: bool = group.is_subscribed_to(topic)
        return subscribed


class GroupKinds:
    """The kinds of a coordinator, in the order in which they are asked."""

    __slots__ = ("_all", "_groups")

    def __init__(self, kinds: Iterable[GroupKind]) -> None:
        self._all = tuple(kinds)
        self._groups = tuple((kind.groups, kind) for kind in self._all)

    def __iter__(self) -> Iterator[GroupKind]:
        return iter(self._all)

    def find(self, group_id: str) -> tuple[GroupKind, Any] | None:
        """Return the group of that id with its kind."""
        for groups, kind in self._groups:
            group = groups.get(group_id)
            if group is not None:
                return kind, group
        return None

    def of(self, group_id: str) -> GroupKind | None:
        """Return the kind of the group of that id."""
        for groups, kind in self._groups:
            if group_id in groups:
                return kind
        return None

    def group_ids(self) -> Iterator[str]:
        """Yield the ids of all groups."""
        for groups, _ in self._groups:
            yield from groups

    def is_member(self, group_id: str, member_id: MemberId) -> bool:
        """Return true if a member is in a group of any kind, or was given that id to join with."""
        found = self.find(group_id)
        return found is not None and member_id in found[0].member_ids(found[1])

    def members(
        self, group_id: str, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the members of a group, by member id; an empty list if it is missing."""
        found = self.find(group_id)
        return [] if found is None else found[0].members(found[1], owned, image)


def no_members_removed(request: consumer.LeaveGroupBatchRequest) -> Outcome:
    """Return the response to LeaveGroup for a group in which no member is known."""
    replies = tuple(
        consumer.LeaveGroupResponse(
            member_id=one.member_id, instance_id=one.instance_id, error_code=ErrorCode.UNKNOWN_MEMBER_ID
        )
        for one in request.members
    )
    return Outcome(reply=consumer.LeaveGroupBatchResponse(members=replies))


def named(partitions: Partitions, image: TopicsImage) -> tuple[TopicPartition, ...]:
    """Return partitions under their topics' names, sorted; those of deleted topics are left out."""
    by_name = [
        (name, numbers) for topic_id, numbers in partitions.items() if (name := image.name_of(topic_id))
    ]
    return tuple(one for name, numbers in sorted(by_name) for one in topic_partitions(name, numbers))


FURTHER_KINDS: Final[list[type[GroupKind]]] = []
"""Group kinds other than Kafka's three; this is the one place to add one."""
