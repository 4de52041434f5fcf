"""A classic group in memory: its members, its generation, and the members it waits for.

Most of it is soft state: a group goes through a whole round before anything is written. Its hard state is the
`GroupMetadataValue` of its last complete generation. In the states Stable and Empty the two agree.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from fencepost.coordinator.assign.java_order import hash_map_order
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import CLASSIC_GROUP_TABLE, ClassicGroupEvent, ClassicGroupState
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_subscribed_topics
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import GroupMetadataValue

_State = ClassicGroupState


class ClassicGroup:
    """One classic group. Members are in the order in which they joined."""

    __slots__ = (
        "generation",
        "group_id",
        "initial_delay",
        "joined",
        "leader",
        "members",
        "new_member_added",
        "offers",
        "pending_joins",
        "pending_syncs",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = _State.EMPTY
        self.state_timestamp_ms = now_ms
        """Time at which the group entered its state, in ms."""
        self.generation = 0
        self.protocol_type: str | None = None
        """The protocol type of all members; None until a member joins."""
        self.protocol: str | None = None
        """The one that this generation uses."""
        self.leader: MemberId | None = None
        self.members: dict[MemberId, ClassicGroupMember] = {}
        self.static_members: dict[str, MemberId] = {}
        """Member ids by instance id."""
        self.offers: dict[str, int] = {}
        """Number of members that offer each protocol."""
        self.joined = 0
        """Number of members that wait for the others to join."""
        self.pending_joins: dict[MemberId, None] = {}
        """Ids that were given out, and with which no client has joined yet."""
        self.pending_syncs: dict[MemberId, None] = {}
        """Members that have not asked for their assignment in this generation yet."""
        self.new_member_added = False
        """True if a member joined since the initial delay was last extended."""
        self.initial_delay: tuple[int, int] | None = None
        """The delay that runs and the time that may follow it, while the first members of an empty group
        join."""
        self.subscribed_topics: frozenset[str] | None = None
        """Topics of all members' subscriptions in this generation; None if they can't be read."""

    @classmethod
    def loaded(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """Return the group that a record holds."""
        group = cls(group_id, value.current_state_timestamp_ms)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        for record in value.members:
            group._take_in(ClassicGroupMember.loaded(record, value.protocol))
        if group.members:
            group.state = CLASSIC_GROUP_TABLE.next(group.state, ClassicGroupEvent.LOADED)
        group.compute_subscribed_topics()
        return group

    def value(self, assignments: Mapping[MemberId, bytes]) -> GroupMetadataValue:
        """Return the record of this generation with these assignments; a member without one has an empty
        assignment."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                member.record(self.protocol, assignments.get(member_id, b""))
                for member_id, member in self.members.items()
            ),
        )

    @property
    def assignments(self) -> dict[MemberId, bytes]:
        """The assignment of each member, as bytes."""
        return {member_id: member.assignment for member_id, member in self.members.items()}

    def move(self, event: ClassicGroupEvent, now_ms: int) -> None:
        """Change to the state that the event leads to.

        :raises IllegalTransition: if it leads to no state.
        """
        self.state = CLASSIC_GROUP_TABLE.next(self.state, event)
        self.state_timestamp_ms = now_ms

    def is_in(self, *states: ClassicGroupState) -> bool:
        """Return true if the group's state is one of these."""
        return self.state in states

    @property
    def uses_consumer_protocol(self) -> bool:
        """True if its members are consumers, whose subscriptions and assignments the coordinator can read."""
        return self.protocol_type == classic.CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members, in ms; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        """True if every member has joined and no join is pending."""
        return not self.pending_joins and self.joined == len(self.members)

    def supports(self, protocol_type: str, protocols: tuple[classic.JoinGroupProtocol, ...]) -> bool:
        """Return true if a member with these protocols can be in the group."""
        if self.state is _State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        # Every member must offer one of them.
        return self.protocol_type == protocol_type and any(
            self.offers.get(protocol.name, 0) == len(self.members) for protocol in protocols
        )

    def check_member(self, member_id: MemberId, instance_id: str | None) -> ClassicGroupMember:
        """Return the member of that id, which must hold the instance id if one is given.

        :raises ProtocolError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member holds it.
        """
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise _unknown(f"Instance id {instance_id} is unknown.")
            if holder != member_id:
                raise ProtocolError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Instance id {instance_id} is held by {holder}, not by {member_id}.",
                )
        member = self.members.get(member_id)
        if member is None:
            raise _unknown(f"{member_id} is not a member of group {self.group_id}.")
        return member

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        """Add a member; the first one leads, and sets the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._take_in(member)
        self.pending_joins.pop(member.member_id, None)

    def _take_in(self, member: ClassicGroupMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(member.protocols, 1)

    def _count(self, protocols: tuple[classic.JoinGroupProtocol, ...], by: int) -> None:
        for name in {protocol.name for protocol in protocols}:
            self.offers[name] = self.offers.get(name, 0) + by
            if not self.offers[name]:
                del self.offers[name]

    def offer(self, member: ClassicGroupMember, protocols: tuple[classic.JoinGroupProtocol, ...]) -> None:
        """Replace the protocols that a member offers."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def park_join(self, member: ClassicGroupMember, token: classic.Token) -> classic.Token | None:
        """Park a JoinGroup request; return the member's request that waited before, if any."""
        before, member.join = member.join, token
        self.joined += before is None
        return before

    def release_join(self, member: ClassicGroupMember) -> classic.Token | None:
        """Return the member's parked JoinGroup request, if any; it is not parked any more."""
        token, member.join = member.join, None
        self.joined -= token is not None
        return token

    def remove(self, member_id: MemberId) -> None:
        """Remove a member, or an id that was given out. If it led, the next member leads.

        Its parked requests must have been released.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)

    def rename(self, instance_id: str, old_id: MemberId, new_id: MemberId) -> ClassicGroupMember:
        """Give a static member that returned its new id; it keeps its place and its role."""
        member = self.members[old_id]
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        member.member_id = new_id
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; return false if no member has."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.join is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def protocol_of_next_generation(self) -> str:
        """Return the protocol with the most votes. Each member votes for the protocol it prefers of those all
        offer.

        If several have as many votes, it is the one that a Java hash map has first.

        :raises ValueError: if the members have no protocol in common.
        """
        common = {name for name, count in self.offers.items() if count == len(self.members)}
        votes = Counter(member.vote(common) for member in self.members.values())
        most = max(votes.values())
        return next(name for name in hash_map_order(votes) if votes[name] == most)

    def next_generation(self, now_ms: int) -> None:
        """Begin a generation of the members that are there; without members the group becomes empty."""
        self.generation += 1
        self.initial_delay = None
        if self.members:
            self.protocol = self.protocol_of_next_generation()
            self.move(ClassicGroupEvent.ALL_JOINED, now_ms)
        else:
            self.protocol = None
            self.move(ClassicGroupEvent.ALL_LEFT, now_ms)
        self.compute_subscribed_topics()

    def compute_subscribed_topics(self) -> None:
        """Read the members' subscriptions, if they are consumers'."""
        self.subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        try:
            topics = [
                read_subscribed_topics(member.metadata(self.protocol)) for member in self.members.values()
            ]
        except MalformedConsumerProtocol:
            return
        self.subscribed_topics = frozenset(itertools.chain.from_iterable(topics))

    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if a member subscribes to the topic; an unreadable consumer may subscribe to any."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def roster(self) -> tuple[classic.JoinGroupMember, ...]:
        """Return all members with their metadata, which the leader needs to assign."""
        return tuple(
            classic.JoinGroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        )


def _unknown(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
