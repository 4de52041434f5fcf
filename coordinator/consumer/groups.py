"""All consumer groups of a coordinator: their records, their state in memory, and their timers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from fencepost.coordinator.assign.registry import configured_assignors
from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.config import ConsumerGroupSettings, GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.consumer import describe, leaving, regular_expressions
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.heartbeat import ConsumerHeartbeatContext, heartbeat
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.soft import (
    ConsumerGroupContact,
    ConsumerGroupSoftState,
    ConsumerSoftState,
)
from fencepost.coordinator.consumer.states import GROUP_TABLE, ConsumerGroupMemberState
from fencepost.coordinator.consumer.validation import check_request
from fencepost.coordinator.epoch_groups import EpochGroups, check_commit_epoch, check_held_since
from fencepost.coordinator.kinds import GroupMember, ReportedMember, RequestHandler
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, PartitionFence
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    Effect,
    Outcome,
    RegularExpressionsResolved,
    ResolveRegularExpressions,
)
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.timers import GroupTimerKind

V4_3 = ReleaseVersion.V4_3
"""A module-level name: in Python 3.11 an attribute of an enum class costs as much as a call."""


class Migration(Protocol):
    """The conversion of a classic group into a consumer group, and back."""

    def upgrade(
        self, request: consumer.ConsumerGroupHeartbeatRequest, member_id: MemberId, now_ms: int
    ) -> Outcome | None:
        """Let a member join a classic group with the newer protocol; return None if there is no such group.

        :raises ProtocolError: GROUP_ID_NOT_FOUND if the group remains a classic one.
        """

    def removal(
        self, group: ConsumerGroup, gone: Sequence[ConsumerGroupMember], image: TopicsImage, now_ms: int
    ) -> tuple[Record, ...]:
        """Return the records that remove members for good, or turn the rest into a classic group."""


class ConsumerGroups(EpochGroups[ConsumerGroup, ConsumerGroupSettings]):
    """Takes events about consumer groups, and the records that they led to.

    `assignors` are a user's own, by name; `config.group_consumer_assignors` says which ones are offered.

    :raises FencepostError: on construction, if the configuration names an assignor that does not exist.
    """

    __slots__ = ("_newest_topics", "assignors", "migration", "soft")

    soft: ConsumerSoftState

    name = consumer.CONSUMER_GROUP_TYPE
    group_type = ConsumerGroup
    group_table = GROUP_TABLE
    member_key = ConsumerGroupMemberMetadataKey
    heartbeat_requests = (consumer.ConsumerGroupHeartbeatRequest,)

    def __init__(
        self, config: GroupCoordinatorConfig, assignors: Mapping[str, Assignor] | None = None
    ) -> None:
        self.assignors = configured_assignors(config.group_consumer_assignors, assignors)
        self.soft = ConsumerSoftState(self._session_timeout_ms)
        super().__init__(config, lambda own: own.settings(config))
        self.migration: Migration
        """Set by the coordinator: it knows groups of both kinds."""
        self._newest_topics = -1

    def handlers(self) -> Mapping[type, RequestHandler]:
        """Return the handlers of KIP-848's requests."""
        return {
            consumer.ConsumerGroupHeartbeatRequest: self.heartbeat,
            consumer.ConsumerGroupDescribeRequest: self.describe,
            RegularExpressionsResolved: self.regular_expressions_resolved,
        }

    # Records

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Discard preparations for records that were not written."""
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self.resolution_ended(effect.group_id)
        self.soft.discard(outcome.records)
        return ()

    # Heartbeats

    def answer_again(self, request: consumer.ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome | None:
        """Return the response to a heartbeat that equals the member's last one, if its inputs are
        unchanged."""
        soft = self.soft.groups.get(request.group_id)
        if soft is not None:
            contact = soft.contacts.get(request.member_id)
            if (
                contact is not None
                and contact.version == soft.version
                and now_ms < contact.until_ms
                and contact.request == request
            ):
                contact.last_ms = now_ms
                return contact.answer
        return None

    def heartbeat(self, request: consumer.ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        """ConsumerGroupHeartbeat."""
        try:
            return self._checked_heartbeat(request, now_ms)
        except ProtocolError as error:
            reply = consumer.ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
            return Outcome(reply=reply)

    def _checked_heartbeat(self, request: consumer.ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        if self.name not in self.config.group_coordinator_rebalance_protocols:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is disabled.")
        check_request(request, self.assignors)
        group_id = request.group_id
        member_id = request.member_id or request.generated_member_id
        if not member_id and request.member_epoch == JOIN_EPOCH:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        group = self._groups.get(group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            upgraded = self.migration.upgrade(request, member_id, now_ms)
            if upgraded is not None:
                return upgraded
            group = ConsumerGroup(group_id)
        if request.member_epoch < JOIN_EPOCH:
            return leaving.leave(group, request, self.removal(now_ms))
        soft = self.soft.of(group_id)
        outcome = heartbeat(group, soft, request, member_id, self.surroundings(group_id, now_ms))
        if outcome.effects:
            self.soft.resolving[group_id] = None
        contact = soft.contacts.get(member_id)
        if contact is not None:
            contact.last_ms = now_ms
            contact.awaited_epoch = None
            if not outcome.effects and member_id == request.member_id:
                self._keep(request, outcome, group, soft, contact)
        return outcome

    def _keep(
        self,
        request: consumer.ConsumerGroupHeartbeatRequest,
        outcome: Outcome,
        group: ConsumerGroup,
        soft: ConsumerGroupSoftState,
        contact: ConsumerGroupContact,
    ) -> None:
        """Keep a response to repeat, if the next heartbeat can be predicted."""
        reply: Any = outcome.reply
        if not outcome.records:
            # A member that waits for partitions is evaluated each time: it depends on the records of others.
            if not group.settled_for(request.member_id):
                return
            contact.version = soft.version
        elif _moves_an_epoch(outcome):
            # The member reports its partitions only once.
            request = msgspec.structs.replace(request, member_epoch=reply.member_epoch, topic_partitions=None)
            outcome = Outcome(reply=reply)
            contact.version, contact.awaited_epoch = -1, reply.member_epoch
        else:
            return
        refresh_ms = self.config.group_consumer_regex_refresh_interval_ms
        until_ms = regular_expressions.next_check_ms(group, refresh_ms, contact.last_ms)
        contact.request, contact.answer = request, outcome
        contact.until_ms = min(until_ms, soft.refresh_deadline_ms)

    def surroundings(self, group_id: str, now_ms: int) -> ConsumerHeartbeatContext:
        """Return everything other than the group that a heartbeat of one of its members depends on."""
        return ConsumerHeartbeatContext(
            image=self.image,
            newest_topics=self._newest_topics,
            settings=self._settings.of(group_id),
            assignors=self.assignors,
            max_size=self.config.group_consumer_max_size,
            regex_refresh_interval_ms=self.config.group_consumer_regex_refresh_interval_ms,
            resolving=group_id in self.soft.resolving,
            preference_raises_epoch=self.config.release_version is not V4_3,
            now_ms=now_ms,
        )

    def removal(self, now_ms: int) -> leaving.Removal:
        """Return the function that removes members at that time."""
        return partial(self._removal, now_ms)

    def _removal(
        self, now_ms: int, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]
    ) -> tuple[Record, ...]:
        return self.migration.removal(group, members, self.image, now_ms)

    def end_of_members(
        self, group: ConsumerGroup, member_ids: Collection[MemberId], now_ms: int
    ) -> tuple[Record, ...]:
        """Return the records that remove members, or turn the rest into a classic group."""
        return self._removal(now_ms, group, tuple(group.members[one] for one in member_ids))

    def raised(self, group: ConsumerGroup) -> tuple[Record, ...]:
        """Return the record that raises the epoch of a group, and changes nothing else."""
        nobody = ()
        return leaving.removal_records(group, nobody, self.image, self.config.release_version)

    # What happens without a request

    def topics_changed(self, before: TopicsImage, after: TopicsImage, changed: Iterable[str]) -> None:
        """Take over the changed topics of the cluster; `changed` has the names of those that differ."""
        self.image = after
        if self._newest_topics < 0 or any(topic_id not in before.by_id for topic_id in after.by_id):
            self._newest_topics = after.version
        names = frozenset(changed)
        for group_id, group in self._groups.items():
            soft = self.soft.groups[group_id]
            soft.version += 1
            if group.is_subscribed_to_any(names):
                soft.request_metadata_refresh()

    def regular_expressions_resolved(self, event: RegularExpressionsResolved, now_ms: int) -> Outcome:
        """Handle the matches that were found for a group's regular expressions."""
        self.resolution_ended(event.group_id)
        group = self._groups.get(event.group_id)
        if group is None or not event.topics:
            return NOTHING
        records, epoch = regular_expressions.resolution_records(group, event, self.image, now_ms)
        if epoch > group.group_epoch:
            self.soft.of(event.group_id).metadata_refreshed(epoch, now_ms)
        return Outcome(records=records)

    def resolution_ended(self, group_id: str) -> None:
        """Note that the resolution of the group's regular expressions has ended."""
        self.soft.resolving.pop(group_id, None)
        self.soft.of(group_id).version += 1

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that ends something; return None without one."""
        while (key := self.soft.timers.pop_due(now_ms)) is not None:
            if key.kind is GroupTimerKind.SESSION:
                if self.soft.session_is_over(key, now_ms):
                    return self._fence(key, now_ms)
                continue
            group = self._groups.get(key.group_id)
            if group is not None and key.member_id in group.members:
                self.soft.retry_later(key, now_ms)
                return self._fence(key, now_ms)
        return None

    # Administration

    def describe(self, request: consumer.ConsumerGroupDescribeRequest, now_ms: int) -> Outcome:
        """ConsumerGroupDescribe: describe each group of the request, in that order."""

        def described(group_id: str) -> consumer.DescribedGroup:
            group = self._groups.get(group_id)
            if group is not None:
                return describe.describe(group, self.image, tuple(self.assignors))
            return describe.missing(group_id, f"Group {group_id} not found.")

        return Outcome(
            reply=consumer.ConsumerGroupDescribeResponse(groups=tuple(map(described, request.group_ids)))
        )

    def remove_members(self, request: consumer.LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        """LeaveGroup: removes those of several members that are there."""
        return leaving.remove_members(self._groups[request.group_id], request, self.removal(now_ms))

    def end_of_empty(self, group: ConsumerGroup) -> tuple[Record, ...] | None:
        """Return the tombstones of a group without members; None if it has members."""
        return None if group.members else leaving.group_tombstones(group)

    # Offsets

    def check_commit(
        self, group: ConsumerGroup, image: TopicsImage, now_ms: int, request: OffsetCommitRequest
    ) -> PartitionFence | None:
        """Fence an OffsetCommit by the member's epoch."""
        return check_commit(group, request)

    # What observers see

    def members(
        self, group: ConsumerGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the members, by member id; some may speak the classic protocol."""
        return describe.members(group, owned, image)

    def reported(
        self, request: consumer.ConsumerGroupHeartbeatRequest, member_id: MemberId, image: TopicsImage
    ) -> ReportedMember:
        """Return what a heartbeat reports about its member."""
        group = self._groups.get(request.group_id)
        member = None if group is None else group.members.get(member_id)
        if member is None:
            return ReportedMember(request.topic_partitions, None)
        stable = member.state == ConsumerGroupMemberState.STABLE
        return ReportedMember(request.topic_partitions, member.assigned, stable)

    def knows_its_topics(self, group: ConsumerGroup, image: TopicsImage) -> bool:
        """Return true if all regular expressions are resolved, and the target is based on the present
        topics."""
        found = all(each.regex in group.resolved for each in group.members.values() if each.regex)
        return found and group.metadata_hash == metadata_hash(group.counts.topics(), image)


def _moves_an_epoch(outcome: Outcome) -> bool:
    """Return true if a heartbeat moves its member to another epoch, and its response has no assignment."""
    reply: Any = outcome.reply
    return (
        len(outcome.records) == 1
        and type(outcome.records[0].key) is ConsumerGroupCurrentMemberAssignmentKey
        and reply.assignment is None
    )


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> PartitionFence | None:
    """Check that the request may commit, as `check_commit_epoch` does (KIP-848, OffsetCommit; KIP-1251).

    The current epoch may commit for every partition, assigned or not. An older one may commit for a partition
    that the member has held since then, or since before.
    """
    member = check_commit_epoch(group, request, "consumer")
    if member is None:
        return None
    return partial(check_held_since, member, request.member_epoch, what="Partition")
