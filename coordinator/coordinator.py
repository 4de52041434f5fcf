"""The group coordinator: one pure object that takes events and answers what to write, say and do.

`handle` reads the hard state and changes only what is in no record: who was heard when, timers, the
cluster's topics. `apply` is the only writer of the hard state, live and on load. A shell appends the
records of an outcome, applies them, and then sends the reply; `CoordinatorRuntime` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from fencepost.coordinator import administration, group_offsets
from fencepost.coordinator.assign.registry import configured_assignors
from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.classic.groups import ClassicGroups
from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig, GroupSettings
from fencepost.coordinator.consumer import leaving, regular_expressions
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.heartbeat import Surroundings, heartbeat
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.soft import SoftState, TimerKey, TimerKind
from fencepost.coordinator.consumer.validation import check_request
from fencepost.coordinator.migration.requests import ClassicProtocol
from fencepost.coordinator.offsets import expiry, transactions
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.classic import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    LeaveGroupBatchRequest,
    LeaveGroupBatchResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    Effect,
    Event,
    MemberFenced,
    MemberHeard,
    Outcome,
    RebalanceRequested,
    RegularExpressionsResolved,
    ResolveRegularExpressions,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import (
    GroupMetadataKey,
    OffsetCommitKey,
    PendingOffsetCommitKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.replay import apply_to_groups

_CONSUMER_PROTOCOL = "consumer"
_NO_CONFIG = GroupConfig()


class GroupCoordinator:
    """The coordinator of all groups whose records are in one journal.

    `assignors` are a user's own, by name; `config.group_consumer_assignors` says which ones are offered.

    :raises FencepostError: on construction, if the configuration names an assignor that does not exist.
    """

    __slots__ = (
        "_assignors",
        "_classic_protocol",
        "_group_configs",
        "_groups",
        "_handlers",
        "_image",
        "_newest_topics",
        "_settings",
        "classic",
        "config",
        "groups",
        "offsets",
        "soft",
    )

    def __init__(
        self, config: GroupCoordinatorConfig, assignors: Mapping[str, Assignor] | None = None
    ) -> None:
        self.config = config
        self._assignors = configured_assignors(config.group_consumer_assignors, assignors)
        self._groups: dict[str, ConsumerGroup] = {}
        self.groups: Mapping[str, ConsumerGroup] = MappingProxyType(self._groups)
        """Consumer groups by id. Groups that are no more than committed offsets are in `offsets` only."""
        self.classic = ClassicGroups(config)
        """Classic groups, durable and as they run."""
        self.offsets = OffsetStore()
        self.soft = SoftState(self._session_timeout_ms, config.offsets_retention_check_interval_ms)
        """What is in no record; for this coordinator and those who check it."""
        self._classic_protocol = ClassicProtocol(
            config, self.groups, self.classic, self.soft, self._surroundings
        )
        self._image = TopicsImage()
        self._newest_topics = -1
        self._group_configs: dict[str, GroupConfig] = {}
        self._settings: dict[str, GroupSettings] = {}
        self._handlers: Mapping[type, Callable[[Any, int], Outcome]] = {
            ConsumerGroupHeartbeatRequest: self._heartbeat,
            JoinGroupRequest: self._classic_protocol.join,
            SyncGroupRequest: self._classic_protocol.sync,
            HeartbeatRequest: self._classic_protocol.heartbeat,
            DescribeGroupsRequest: self._describe_classic,
            OffsetCommitRequest: self._commit,
            OffsetFetchRequest: self._fetch,
            OffsetDeleteRequest: self._delete_offsets,
            ConsumerGroupDescribeRequest: self._describe,
            ListGroupsRequest: self._list,
            DeleteGroupsRequest: self._delete_group,
            LeaveGroupRequest: self._remove_member,
            LeaveGroupBatchRequest: self._remove_members,
            TopicsChanged: self._topics_changed,
            RegularExpressionsResolved: self._regular_expressions_resolved,
            DeadlineReached: self._deadline_reached,
            TransactionEnded: self._transaction_ended,
            MemberHeard: self._member_heard,
            SessionEnded: self._session_ended,
            RebalanceRequested: self._rebalance_requested,
        }

    def handle(self, event: Event, now_ms: int) -> Outcome:
        """What an event leads to. A request that breaks a rule is answered with Kafka's error."""
        if type(event) is ConsumerGroupHeartbeatRequest:
            soft = self.soft.groups.get(event.group_id)
            if soft is not None:
                contact = soft.contacts.get(event.member_id)
                if (
                    contact is not None
                    and contact.version == soft.version
                    and now_ms < contact.until_ms
                    and contact.request == event
                ):
                    contact.last_ms = now_ms
                    return contact.answer
        self.soft.now_ms = now_ms
        return self._handlers[type(event)](event, now_ms)

    def apply(self, record: Record) -> None:
        """Make a record true. It happens at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        key = record.key
        if type(key) is OffsetCommitKey:
            self.offsets.apply(key, record.value)  # type: ignore[arg-type]  # a record's value is its key's
            self.soft.arm_sweep()
            return
        if type(key) is GroupMetadataKey:
            self.classic.apply(key, record.value, self.soft.now_ms)  # type: ignore[arg-type]
            self.soft.arm_sweep()
            return
        if type(key) is PendingOffsetCommitKey:
            self.offsets.apply_pending(key, record.value)  # type: ignore[arg-type]
            return
        apply_to_groups(self._groups, record)
        self.soft.follow(record, self._groups.get(key.group_id))

    def replay(self, records: Iterable[Record], now_ms: int) -> None:
        """Load a journal: apply its records, then start all timers with their full length.

        :raises InconsistentRecord: if the journal is broken; the message names the record.
        """
        groups, offsets = self._groups, self.offsets
        for record in records:
            key = record.key
            if type(key) is OffsetCommitKey:
                offsets.apply(key, record.value)  # type: ignore[arg-type]
            elif type(key) is GroupMetadataKey:
                self.classic.replay(key, record.value)  # type: ignore[arg-type]
            elif type(key) is PendingOffsetCommitKey:
                offsets.apply_pending(key, record.value)  # type: ignore[arg-type]
            else:
                apply_to_groups(groups, record)
        self.soft.rebuild(self._groups, now_ms)
        self.classic.rebuild(now_ms)
        self._keep_sweeping()

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Tell that an outcome was not written, and its effects were not carried out; what to do instead.

        `code` is what its request is answered with.
        """
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self._resolution_ended(effect.group_id)
        return self.classic.discard(code, self.soft.now_ms)

    def unload(self) -> tuple[Effect, ...]:
        """The groups have another coordinator from now on: what to tell those who wait here."""
        return self.classic.unload()

    def next_deadline(self) -> int | None:
        """When to hand in `DeadlineReached`, in milliseconds; None if nothing is timed.

        It may turn out too early, for a member that was heard meanwhile: then that event does nothing.
        """
        first, second = self.soft.timers.next_deadline(), self.classic.timers.next_deadline()
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    @property
    def image(self) -> TopicsImage:
        """The cluster's topics, as of the last TopicsChanged."""
        return self._image

    def hard_state(self) -> dict[str, Any]:
        """All that records made, to compare with another coordinator's."""
        return {
            "groups": {group_id: group.hard_state() for group_id, group in self._groups.items()},
            "classic_groups": dict(self.classic.stored),
            "offsets": {
                group_id: list(self.offsets.committed(group_id)) for group_id in self.offsets.group_ids
            },
            "pending_offsets": {
                group_id: {
                    producer_id: dict(sorted(offsets.items()))
                    for producer_id, offsets in self.offsets.pending(group_id).items()
                }
                for group_id in self.offsets.group_ids
            },
        }

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Give a group a configuration of its own, or take it away. Configuration is in no record."""
        if config is None:
            self._group_configs.pop(group_id, None)
        else:
            self._group_configs[group_id] = config
        self._settings.pop(group_id, None)
        self.soft.restart_sessions((group_id,))

    def settings(self, group_id: str) -> GroupSettings:
        """The session length, heartbeat interval and assignment interval that hold for a group."""
        key = group_id if group_id in self._group_configs else ""
        found = self._settings.get(key)
        if found is None:
            found = self._settings[key] = self._group_configs.get(key, _NO_CONFIG).settings(self.config)
        return found

    def _session_timeout_ms(self, group_id: str) -> int:
        return self.settings(group_id).session_timeout_ms

    # Heartbeats

    def _heartbeat(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        try:
            return self._checked_heartbeat(request, now_ms)
        except ProtocolError as error:
            reply = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            return Outcome(reply=reply)

    def _checked_heartbeat(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        if _CONSUMER_PROTOCOL not in self.config.group_coordinator_rebalance_protocols:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is disabled.")
        check_request(request, self._assignors)
        group_id = request.group_id
        member_id = request.member_id or request.generated_member_id
        if not member_id and request.member_epoch == JOIN_EPOCH:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        group = self._groups.get(group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            upgraded = self._classic_protocol.upgrade(request, member_id, now_ms)
            if upgraded is not None:
                return upgraded
            group = ConsumerGroup(group_id)
        if request.member_epoch < JOIN_EPOCH:
            return leaving.leave(group, request, partial(self._removal, now_ms))
        soft = self.soft.of(group_id)
        outcome = heartbeat(group, soft, request, member_id, self._surroundings(group_id, now_ms))
        if outcome.effects:
            self.soft.resolving[group_id] = None
        contact = soft.contacts.get(member_id)
        if contact is not None:
            contact.last_ms = now_ms
            steady = not outcome.records and not outcome.effects and member_id == request.member_id
            # A member that waits for partitions is looked at each time: others' records decide for it.
            if steady and group.settled_for(member_id):
                refresh_ms = self.config.group_consumer_regex_refresh_interval_ms
                until_ms = regular_expressions.next_check_ms(group, refresh_ms, now_ms)
                contact.request, contact.answer, contact.version = request, outcome, soft.version
                contact.until_ms = min(until_ms, soft.refresh_deadline_ms)
        return outcome

    def _surroundings(self, group_id: str, now_ms: int) -> Surroundings:
        return Surroundings(
            image=self._image,
            newest_topics=self._newest_topics,
            settings=self.settings(group_id),
            assignors=self._assignors,
            max_size=self.config.group_consumer_max_size,
            regex_refresh_interval_ms=self.config.group_consumer_regex_refresh_interval_ms,
            resolving=group_id in self.soft.resolving,
            now_ms=now_ms,
        )

    # Offsets

    def _commit(self, request: OffsetCommitRequest, now_ms: int) -> Outcome:
        return group_offsets.commit_offsets(
            request,
            self._groups.get(request.group_id),
            self.classic,
            self.offsets,
            image=self._image,
            metadata_max_bytes=self.config.offset_metadata_max_bytes,
            now_ms=now_ms,
        )

    def _fetch(self, request: OffsetFetchRequest, now_ms: int) -> Outcome:
        group = self._groups.get(request.group_id)
        return group_offsets.fetch_offsets(request, group, self.offsets, self._image)

    def _transaction_ended(self, event: TransactionEnded, now_ms: int) -> Outcome:
        records = transactions.ended(self.offsets, event.group_id, event.producer_id, commit=event.commit)
        return Outcome(records=records)

    def _delete_offsets(self, request: OffsetDeleteRequest, now_ms: int) -> Outcome:
        group = self._groups.get(request.group_id)
        return group_offsets.delete_offsets(request, group, self.classic, self.offsets, self._image)

    # Administration

    def _describe(self, request: ConsumerGroupDescribeRequest, now_ms: int) -> Outcome:
        return administration.describe_groups(request, self._groups, self._image, tuple(self._assignors))

    def _describe_classic(self, request: DescribeGroupsRequest, now_ms: int) -> Outcome:
        classic = self.classic.groups
        return administration.describe_classic_groups(request, classic, self._groups, self.offsets)

    def _list(self, request: ListGroupsRequest, now_ms: int) -> Outcome:
        return administration.list_groups(request, self.classic.groups, self._groups, self.offsets)

    def _delete_group(self, request: DeleteGroupsRequest, now_ms: int) -> Outcome:
        return administration.delete_group(request, self.classic.groups, self._groups, self.offsets)

    def _remove_member(self, request: LeaveGroupRequest, now_ms: int) -> Outcome:
        batch = LeaveGroupBatchRequest(group_id=request.group_id, members=(request,))
        outcome = self._remove_members(batch, now_ms)
        assert isinstance(outcome.reply, LeaveGroupBatchResponse)
        return Outcome(records=outcome.records, reply=outcome.reply.members[0], effects=outcome.effects)

    def _remove_members(self, request: LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        if request.group_id in self.classic.groups:
            return self.classic.leave(request, now_ms)
        return administration.remove_members(request, self._groups, partial(self._removal, now_ms))

    # What happens without a request

    def _topics_changed(self, event: TopicsChanged, now_ms: int) -> Outcome:
        before, after = self._image, event.image
        self._image = after
        if self._newest_topics < 0 or any(topic_id not in before.by_id for topic_id in after.by_id):
            self._newest_topics = after.version
        names = sorted({*before.by_name, *after.by_name})
        changed = [name for name in names if before.by_name.get(name) != after.by_name.get(name)]
        for group_id, group in self._groups.items():
            soft = self.soft.groups[group_id]
            soft.version += 1
            if any(group.is_subscribed_to(name) for name in changed):
                soft.request_metadata_refresh()
        return Outcome(records=expiry.of_deleted_topics(self.offsets, before, after))

    def _regular_expressions_resolved(self, event: RegularExpressionsResolved, now_ms: int) -> Outcome:
        self._resolution_ended(event.group_id)
        group = self._groups.get(event.group_id)
        if group is None or not event.topics:
            return NOTHING
        records, epoch = regular_expressions.resolution_records(group, event, self._image, now_ms)
        if epoch > group.group_epoch:
            self.soft.of(event.group_id).metadata_refreshed(epoch, now_ms)
        return Outcome(records=records)

    def _resolution_ended(self, group_id: str) -> None:
        self.soft.resolving.pop(group_id, None)
        self.soft.of(group_id).version += 1

    def _deadline_reached(self, event: DeadlineReached, now_ms: int) -> Outcome:
        first, second = self.soft.timers.next_deadline(), self.classic.timers.next_deadline()
        if second is not None and (first is None or second < first):
            return self.classic.deadline_reached(now_ms) or NOTHING
        while (key := self.soft.timers.pop_due(now_ms)) is not None:
            if key.kind is TimerKind.SWEEP:
                return self._sweep(now_ms)
            if key.kind is TimerKind.REBALANCE:
                self.soft.retry_later(key, now_ms)
                return self._fence(key, now_ms)
            if key.kind in (TimerKind.JOIN, TimerKind.SYNC):
                group = self._groups.get(key.group_id)
                if group is not None and key.member_id in group.members:
                    self.soft.retry_later(key, now_ms)
                    return self._fence(key, now_ms)
            elif self.soft.session_is_over(key, now_ms):
                return self._fence(key, now_ms)
        return NOTHING

    def _member_heard(self, event: MemberHeard, now_ms: int) -> Outcome:
        soft = self.soft.groups.get(event.group_id)
        if soft is not None and event.member_id in soft.contacts:
            soft.contacts[event.member_id].last_ms = now_ms
        elif event.group_id in self.classic.groups:
            self.classic.heard(event.group_id, event.member_id, now_ms)
        return NOTHING

    def _session_ended(self, event: SessionEnded, now_ms: int) -> Outcome:
        group = self._groups.get(event.group_id)
        if group is not None and event.member_id in group.members:
            return self._fence(TimerKey(TimerKind.SESSION, event.group_id, event.member_id), now_ms)
        if event.group_id in self.classic.groups:
            return self.classic.session_ended(event.group_id, event.member_id, now_ms)
        return NOTHING

    def _rebalance_requested(self, event: RebalanceRequested, now_ms: int) -> Outcome:
        group = self._groups.get(event.group_id)
        if group is not None and group.members:
            return Outcome(records=leaving.removal_records(group, (), self._image))  # of nobody
        if event.group_id in self.classic.groups:
            return self.classic.rebalance(event.group_id, now_ms)
        return NOTHING

    def _removal(
        self, now_ms: int, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]
    ) -> tuple[Record, ...]:
        return self._classic_protocol.removal(group, members, self._image, now_ms)

    def _fence(self, key: TimerKey, now_ms: int) -> Outcome:
        group = self._groups[key.group_id]
        records = self._removal(now_ms, group, (group.members[key.member_id],))
        fenced = MemberFenced(group_id=key.group_id, member_id=key.member_id, reason=key.kind.value)
        return Outcome(records=records, effects=(fenced,))

    def _sweep(self, now_ms: int) -> Outcome:
        """Expired offsets go, and empty groups that have none left."""
        self._keep_sweeping()
        retention_ms = self.config.offsets_retention_ms
        records = administration.sweep(self.classic.groups, self._groups, self.offsets, retention_ms, now_ms)
        return Outcome(records=records) if records else NOTHING

    def _keep_sweeping(self) -> None:
        if self._groups or self.classic.groups or self.offsets.group_ids:
            self.soft.arm_sweep()
