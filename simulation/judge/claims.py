"""Owners as the members see them: never two that the coordinator has not fenced.

A claim stands from the end of `on_assigned` to the end of `on_revoked` or the beginning of `on_lost`. It is
void once the coordinator has removed the member, or has let a static member go: a frozen process may still
believe in its claim, and its commits are refused.

A claim that the group can't know of does not count until the coordinator assigns the partition to the member.
That is so in Kafka, too, in two cases. A classic group that becomes a consumer group treats the last
assignment of its leader as the members' partitions; with a cooperative assignor they may still have more. And
a join that arrives late, after a newer request of its member, reports that the member owns nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, starmap

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupResponse
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.consumer_protocol import read_assignment
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse, Request, Response
from fencepost.simulation.judge.base import NOTHING, Finding, Judge, as_set, joined, without
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

_ASSIGNED = r.ConsumerGroupCurrentMemberAssignmentValue


class Claims:
    """The claims of all members of one group."""

    def __init__(self) -> None:
        self._claimants: dict[ids.TopicPartition, ids.MemberId] = {}
        self._claimed: dict[ids.MemberId, frozenset[ids.TopicPartition]] = {}
        """The same, by member."""
        self._unknown: dict[ids.MemberId, frozenset[ids.TopicPartition]] = {}
        """Partitions that members believe that they own, and that their group can't know of."""
        self._epochs: dict[ids.MemberId, int] = {}

    def stored(self, member_id: ids.MemberId, epoch: int | None) -> None:
        """Note that the coordinator keeps this member at this epoch; None: it has removed it."""
        if epoch is None or epoch == ids.STATIC_LEAVE_EPOCH:
            self._epochs.pop(member_id, None)
            self.drop_all(member_id)
        else:
            self._epochs[member_id] = epoch

    def claim(self, member_id: ids.MemberId, partitions: Iterable[ids.TopicPartition]) -> Iterator[Finding]:
        """Note that a member believes from now on that it owns these."""
        epoch = self._epochs.get(member_id)
        if epoch is None:
            return
        wanted = tuple(partitions)
        claimed = as_set(wanted)
        for partition in wanted:
            holder = self._claimants.setdefault(partition, member_id)
            if holder != member_id:
                claimed -= {partition}
                yield (
                    "one-claimant",
                    f"{member_id} (epoch {epoch}) believes that it owns"
                    f" {partition.topic}-{partition.partition},"
                    f" and so does {holder} (epoch {self._epochs.get(holder)}); neither is fenced",
                )
        self._claimed[member_id] = joined(self._claimed.get(member_id, NOTHING), claimed)

    def known(self, member_id: ids.MemberId, partitions: frozenset[ids.TopicPartition]) -> None:
        """Note that the member's group knows of these from now on, and can't know of any others that it
        claims."""
        unknown = without(self._claimed.get(member_id, NOTHING), partitions)
        self.drop(member_id, unknown)
        if unknown:
            self._unknown[member_id] = unknown

    def is_in_doubt(self, member_id: ids.MemberId) -> bool:
        """Return true if its group can't know of all that the member believes that it owns."""
        return member_id in self._unknown

    def assigned(
        self, member_id: ids.MemberId, partitions: frozenset[ids.TopicPartition]
    ) -> Iterator[Finding]:
        """Note that the coordinator knows from now on that the member has these."""
        found = self._unknown[member_id] & partitions
        self.drop(member_id, found)
        yield from self.claim(member_id, sorted(found))

    def drop(self, member_id: ids.MemberId, partitions: Iterable[ids.TopicPartition]) -> None:
        """Note that a member no longer believes that it owns these."""
        dropped = as_set(tuple(partitions))
        if member_id in self._unknown:
            left = without(self._unknown.pop(member_id), dropped)
            if left:
                self._unknown[member_id] = left
        claimed = self._claimed.get(member_id, NOTHING)
        if (left := without(claimed, dropped)) is not claimed:
            for partition in claimed & dropped:
                del self._claimants[partition]
            self._claimed[member_id] = left

    def drop_all(self, member_id: ids.MemberId) -> None:
        """The member is removed, or fenced."""
        self._unknown.pop(member_id, None)
        for partition in sorted(self._claimed.pop(member_id, ())):
            del self._claimants[partition]

    def drop_topic(self, topic: str) -> None:
        """Drop the claims on a topic: another topic of the same name is not the claimed one."""
        for member_id, partitions in [*self._claimed.items(), *self._unknown.items()]:
            self.drop(member_id, [p for p in partitions if p.topic == topic])


class OneClaimant(Judge):
    """Checks one-claimant over all members of a world."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, Claims] = defaultdict(Claims)
        self._member_ids: dict[str, ids.MemberId] = {}
        self._generations: dict[ids.MemberId, int] = {}
        """The generation for which each member of a classic group has joined, or was taken into it."""
        self._told: dict[ids.MemberId, int] = {}
        """The generation that each member was told last: records also list static ones that did not join."""
        self._generation = 0
        self._classic: ClassicGroup | None = None
        """The group as long as it is a classic one."""

    def _claims(self) -> Claims:
        return self._groups[self.world.group_id]

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Note the members that the coordinator keeps."""
        group, before = self._classic_group(), self._classic
        self._classic = group
        for record in outcome.records:
            key, value = record.key, record.value
            if type(key) is r.OffsetCommitKey:
                continue  # as in most batches
            if isinstance(key, r.ASSIGNMENT_KEYS):
                epoch = value.member_epoch if isinstance(value, r.ASSIGNMENT_VALUES) else None
                if epoch is None and group is not None and key.member_id in group.members:
                    # It stays, and the group has become a classic one: it may still leave without joining
                    # that.
                    self._generations[key.member_id] = group.generation
                    continue
                claims = self._groups[key.group_id]
                claims.stored(key.member_id, epoch)
                if group is None and before is not None and key.member_id in before.members:
                    claims.known(key.member_id, _given(before.members[key.member_id]))
                if isinstance(value, _ASSIGNED) and claims.is_in_doubt(key.member_id):
                    self.report_all(claims.assigned(key.member_id, self._named(value.assigned)))
        if type(event) is ConsumerGroupHeartbeatRequest and event.member_epoch == ids.JOIN_EPOCH:
            self._joined(event.member_id)
        if group is not None and type(event) is not HeartbeatRequest:
            self._in_generation(group, outcome, event)

    def _joined(self, member_id: ids.MemberId) -> None:
        """Note that a late join takes partitions from its member, as the coordinator releases them."""
        live = self.world.active
        group = None if live is None else live.groups.get(self.world.group_id)
        member = None if group is None else group.members.get(member_id)
        if member is not None and self._has_an_epoch(member_id):
            self._claims().known(member_id, self._named(member.assigned))

    def _has_an_epoch(self, member_id: ids.MemberId) -> bool:
        """Return true if a process is this member, and has received the response to a join."""
        host = self.world.hosts_by_member.get(member_id)
        if host is None or self._member_ids.get(host) != member_id:
            return False
        driver = self.world.members[host].driver
        return driver is not None and driver.member_epoch > ids.JOIN_EPOCH

    def _named(self, partitions: ids.Partitions) -> frozenset[ids.TopicPartition]:
        names = self.world.topics
        return _all((names.name_of(topic_id) or "", numbers) for topic_id, numbers in partitions.items())

    def _classic_group(self) -> ClassicGroup | None:
        live = self.world.active
        return None if live is None else live.classic.groups.get(self.world.group_id)

    def _in_generation(self, group: ClassicGroup, outcome: Outcome, event: StepEvent | None = None) -> None:
        """Keep those members of a classic group that joined for its generation.

        A static one that did not is kept by name only: the leader does not know which partitions it still
        has.
        """
        claims = self._claims()
        for record in outcome.records if isinstance(event, RecordsObserved) else ():
            if isinstance(record.value, r.GroupMetadataValue):
                for member in record.value.members:  # no record shows the response of a real coordinator
                    if (
                        member.instance_id is None
                        or self._told.get(member.member_id) == record.value.generation
                    ):
                        self._generations[member.member_id] = record.value.generation
                        claims.stored(member.member_id, record.value.generation)
        waited = (effect.response for effect in outcome.effects if isinstance(effect, ParkedResponse))
        for response in (outcome.reply, *waited):
            if isinstance(response, JoinGroupResponse) and response.generation >= 0:
                self._generations[response.member_id] = response.generation
                claims.stored(response.member_id, response.generation)
        if len(self._generations) > len(group.members):
            for member_id in [each for each in self._generations if each not in group.members]:
                del self._generations[member_id]
                claims.stored(member_id, None)
        if group.generation != self._generation:
            self._generation = group.generation
            for member_id, generation in self._generations.items():
                if generation < group.generation:
                    claims.stored(member_id, None)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Note which generation a member has joined."""
        if isinstance(response, JoinGroupResponse) and response.generation >= 0:
            self._told[response.member_id] = response.generation

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Drop members that joined for a generation that another coordinator never received."""
        if what == "active":
            self._classic = group = self._classic_group()
            if group is not None:
                self._in_generation(group, Outcome())

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Note that a process that starts, crashes or has stopped claims nothing."""
        if what in ("start", "crash", "stopped"):
            if (member_id := self._member_ids.get(host)) is not None:
                self._claims().drop_all(member_id)
            self._member_ids[host] = self.world.members[host].member_id

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Drop all claims on a deleted topic; a member that takes it up late claims nothing of a new topic of
        that name."""
        if what in ("deleted", "created"):
            self._claims().drop_topic(topic)

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[ids.TopicPartition], now_us: int
    ) -> None:
        """Claims begin and end with callbacks."""
        member_id = self._member_ids[host] = self.world.members[host].member_id
        if kind == "assigned" and phase == "end":
            self.report_all(self._claims().claim(member_id, partitions))
        elif (kind, phase) in (("revoked", "end"), ("lost", "begin")):
            self._claims().drop(member_id, partitions)


def _given(member: ClassicGroupMember) -> frozenset[ids.TopicPartition]:
    """Return the partitions that the leader has assigned to it last."""
    return _all(read_assignment(member.assignment).partitions.items())


def _all(topics: Iterable[tuple[str, Iterable[int]]]) -> frozenset[ids.TopicPartition]:
    return frozenset(chain.from_iterable(starmap(ids.topic_partitions, topics)))
