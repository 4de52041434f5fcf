"""The group coordinator: one pure object that takes events and returns records, a reply and effects.

`handle` reads the hard state and changes only soft state: the last contacts with members, timers, the
cluster's topics. `apply` is the only writer of the hard state, live and on load. A shell appends the records
of an outcome, applies them, and then sends the reply; `CoordinatorHost` does that.

The groups of one kind are a `GroupKind`, their offsets are in `offsets.store`; this dispatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fencepost.coordinator import administration
from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.classic.groups import ClassicGroups
from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig, GroupSettings
from fencepost.coordinator.consumer.groups import ConsumerGroups
from fencepost.coordinator.kinds import FURTHER_KINDS, Applier, GroupKinds, no_members_removed
from fencepost.coordinator.migration.requests import ClassicProtocolRequests
from fencepost.coordinator.offsets import expiry, transactions
from fencepost.coordinator.offsets.commit import not_recorded
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.machine import IllegalTransition
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    Effect,
    Event,
    MemberHeard,
    Outcome,
    ParkedResponse,
    RebalanceRequested,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetCommitKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.refusals import client_error, refusal
from fencepost.coordinator.streams.groups import StreamsGroups


class GroupCoordinator:
    """The coordinator of all groups whose records are in one journal.

    `assignors` are a user's own, by name; `config.group_consumer_assignors` says which ones are offered.

    :raises FencepostError: on construction, if the configuration names an assignor that does not exist.
    """

    __slots__ = (
        "_appliers",
        "_begin",
        "_checked",
        "_classic_protocol",
        "_handlers",
        "_moving",
        "_replayers",
        "_sweep_ms",
        "_unswept",
        "classic",
        "config",
        "consumer",
        "groups",
        "kinds",
        "offsets",
        "soft",
        "streams",
    )

    def __init__(
        self, config: GroupCoordinatorConfig, assignors: Mapping[str, Assignor] | None = None
    ) -> None:
        self.config = config
        self.consumer = ConsumerGroups(config, assignors)
        """Consumer groups, durable and as they run. Those that are only offsets are in `offsets` alone."""
        self.groups = self.consumer.groups
        self.soft = self.consumer.soft
        self.classic = ClassicGroups(config)
        """Classic groups, durable and as they run."""
        self.offsets = OffsetStore(self._has_group)
        self.streams = StreamsGroups(config, self._give_way)
        """Streams groups, durable and as they run."""
        further = (kind.make(config, self._give_way) for kind in FURTHER_KINDS)
        self.kinds = GroupKinds((self.consumer, self.classic, self.streams, *further))
        """All groups by their kind."""
        self._classic_protocol = ClassicProtocolRequests(
            config, self.consumer, self.classic, self.kinds, self._give_way
        )
        self.consumer.migration = self._classic_protocol
        self._begin = tuple(kind.begin for kind in self.kinds)
        self._moving = frozenset(
            key for kind in self.kinds if kind.group_table is not None for key in kind.appliers()
        )
        """Keys of the records that can move a group along an arrow."""
        self._checked = tuple((kind.groups, kind) for kind in self.kinds if kind.group_table is not None)
        self._sweep_ms: int | None = None
        """Time of the next removal of expired offsets and of empty groups without offsets, in ms; None if not
        scheduled."""
        self._unswept: list[str] = []
        """Groups that the removal under way has not looked at."""
        self._appliers: dict[type, Callable[[Any, Any], None]] = {
            OffsetCommitKey: self.offsets.apply,
            PendingOffsetCommitKey: self.offsets.apply_pending,
        }
        """The function that applies a record, by the type of its key."""
        self._replayers = dict(self._appliers)
        """The same, on load."""
        self._handlers: dict[type, Callable[[Any, int], Outcome]] = {
            classic.JoinGroupRequest: self._classic_protocol.join,
            classic.SyncGroupRequest: self._classic_protocol.sync,
            classic.HeartbeatRequest: self._classic_protocol.heartbeat,
            classic.DescribeGroupsRequest: self._describe_classic,
            OffsetCommitRequest: self._commit,
            OffsetFetchRequest: self._fetch,
            OffsetDeleteRequest: self._delete_offsets,
            consumer.ListGroupsRequest: self._list,
            consumer.DeleteGroupsRequest: self._delete_group,
            consumer.LeaveGroupRequest: self._remove_member,
            consumer.LeaveGroupBatchRequest: self._remove_members,
            TopicsChanged: self._topics_changed,
            DeadlineReached: self._deadline_reached,
            TransactionEnded: self._transaction_ended,
            MemberHeard: self._member_heard,
            SessionEnded: self._session_ended,
            RebalanceRequested: self._rebalance_requested,
        }
        for kind in self.kinds:
            self._appliers |= kind.appliers()
            self._replayers |= kind.replayers()
            self._handlers |= kind.handlers()
        for appliers in (self._appliers, self._replayers):
            appliers[GroupMetadataKey] = partial(self._apply_classic, appliers[GroupMetadataKey])

    def _has_group(self, group_id: str) -> bool:
        return self.kinds.of(group_id) is not None

    def _apply_classic(self, apply: Applier, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Make a record of a classic group true; its tombstone also ends a simple group."""
        apply(key, value)
        self.offsets.forget_emptied(key.group_id)

    def handle(self, event: Event, now_ms: int) -> Outcome:
        """Return the outcome of an event. A request that breaks a rule gets Kafka's error."""
        if type(event) is consumer.ConsumerGroupHeartbeatRequest:
            again = self.consumer.answer_again(event, now_ms)
            if again is not None:
                return again
        for begin in self._begin:
            begin(now_ms)
        return self._handlers[type(event)](event, now_ms)

    def apply(self, record: Record) -> None:
        """Make a record true. It happens at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        key, value = record.key, record.value
        self._appliers[type(key)](key, value)
        if self._sweep_ms is None and value is not None:
            self._sweep_ms = self.soft.now_ms + self.config.offsets_retention_check_interval_ms

    def replay(self, records: Iterable[Record], now_ms: int) -> None:
        """Load a journal: apply its records, then start all timers with their full length.

        :raises InconsistentRecord: if the journal is broken; the message names the record.
        """
        for record in records:
            self._replayers[type(record.key)](record.key, record.value)
        for kind in self.kinds:
            kind.rebuild(now_ms)
        self.offsets.loaded()
        self._keep_sweeping(now_ms)

    def replay_one(self, record: Record) -> None:
        """Apply one record of a journal, and start no timer: for a coordinator that only follows another.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        self._replayers[type(record.key)](record.key, record.value)

    def apply_batch(self, records: tuple[Record, ...]) -> None:
        """Make the records of one outcome true.

        :raises InconsistentRecord: if one cannot follow the records before it.
        :raises IllegalTransition: if a group moved along no arrow of its table.
        """
        moving = [record for record in records if type(record.key) in self._moving]
        before = self._states(moving) if moving else None
        for record in records:
            self.apply(record)
        if before is not None and (after := self._states(moving)) != before:
            self._check_arrows(before, after)

    def _states(self, moving: Sequence[Record]) -> dict[str, str]:
        """Return the state of each group that these records may move; Empty for one that is missing."""
        found: dict[str, str] = {}
        for record in moving:
            group_id = record.key.group_id
            if group_id not in found:
                found[group_id] = "Empty"
                for groups, _ in self._checked:
                    group = groups.get(group_id)
                    if group is not None:
                        found[group_id] = group.state
                        break
        return found

    def _check_arrows(self, before: dict[str, str], after: dict[str, str]) -> None:
        """Check that each present group moved along an arrow of its table, or not at all."""
        for group_id, source in before.items():
            target = after[group_id]
            if target == source:
                continue
            table = next((kind.group_table for groups, kind in self._checked if group_id in groups), None)
            if table is not None and not table.allows(source, target):
                raise IllegalTransition(f"{table.name}: {group_id} moved from {source} to {target}")

    def not_written(self, event: Event, outcome: Outcome, code: ErrorCode, now_ms: int) -> Outcome:
        """Return the outcome to use instead of one that was not written, and whose effects were not carried
        out.

        `code` is the log's error; the client receives what Kafka makes of it.
        """
        code = client_error(code)
        effects: list[Effect] = []
        for kind in self.kinds:
            effects += kind.discard(outcome, code)
        committed = outcome.reply
        if isinstance(committed, OffsetCommitResponse):
            return Outcome(reply=not_recorded(committed, code), effects=tuple(effects))
        return Outcome(reply=refusal(event, code), effects=tuple(effects))

    def unload(self) -> tuple[ParkedResponse, ...]:
        """Return responses to parked requests: the groups have another coordinator from now on."""
        return tuple(effect for kind in self.kinds for effect in kind.unload())

    def next_deadline(self) -> int | None:
        """Return the time at which to hand in `DeadlineReached`, in ms; None if nothing is timed.

        It may be too early, if a member sent a heartbeat in the meantime: then that event does nothing.
        """
        found = self._sweep_ms
        for kind in self.kinds:
            deadline = kind.timers.next_deadline()
            if deadline is not None and (found is None or deadline < found):
                found = deadline
        return found

    @property
    def image(self) -> TopicsImage:
        """The cluster's topics, as of the last TopicsChanged."""
        return self.consumer.image

    def hard_state(self) -> dict[str, Any]:
        """Return all state from records, to compare with another coordinator's."""
        return {
            **{f"{kind.name}_groups": kind.hard_state() for kind in self.kinds},
            "offsets": {
                group_id: committed
                for group_id in self.offsets.group_ids
                if (committed := list(self.offsets.committed(group_id)))
            },
            "pending_offsets": {
                group_id: {
                    producer_id: dict(sorted(offsets.items())) for producer_id, offsets in pending.items()
                }
                for group_id in self.offsets.group_ids
                if (pending := self.offsets.pending(group_id))
            },
        }

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the configuration of a group, or remove it with None. No record holds it."""
        for kind in self.kinds:
            kind.set_group_config(group_id, config)

    def settings(self, group_id: str) -> GroupSettings:
        """Return the session length, heartbeat interval and assignment interval of a group."""
        return self.consumer.settings(group_id)

    # Offsets

    def _commit(self, request: OffsetCommitRequest, now_ms: int) -> Outcome:
        outcome = administration.commit_offsets(
            request,
            self.kinds,
            self.offsets,
            image=self.image,
            metadata_max_bytes=self.config.offset_metadata_max_bytes,
            now_ms=now_ms,
        )
        if self._sweep_ms is None and not outcome.records:
            self._keep_sweeping(now_ms)  # it may have made a simple group without a record
        return outcome

    def _fetch(self, request: OffsetFetchRequest, now_ms: int) -> Outcome:
        return administration.fetch_offsets(request, self.kinds, self.offsets, self.image)

    def _transaction_ended(self, event: TransactionEnded, now_ms: int) -> Outcome:
        records = transactions.ended(self.offsets, event.group_id, event.producer_id, commit=event.commit)
        return Outcome(records=records)

    def _delete_offsets(self, request: OffsetDeleteRequest, now_ms: int) -> Outcome:
        return administration.delete_offsets(request, self.kinds, self.offsets, self.image)

    # Administration

    def _describe_classic(self, request: classic.DescribeGroupsRequest, now_ms: int) -> Outcome:
        return administration.describe_classic_groups(request, self.kinds, self.offsets)

    def _list(self, request: consumer.ListGroupsRequest, now_ms: int) -> Outcome:
        return administration.list_groups(request, self.kinds, self.offsets)

    def _delete_group(self, request: consumer.DeleteGroupsRequest, now_ms: int) -> Outcome:
        return administration.delete_group(request, self.kinds, self.offsets)

    def _remove_member(self, request: consumer.LeaveGroupRequest, now_ms: int) -> Outcome:
        batch = consumer.LeaveGroupBatchRequest(group_id=request.group_id, members=(request,))
        outcome = self._remove_members(batch, now_ms)
        assert isinstance(outcome.reply, consumer.LeaveGroupBatchResponse)
        return Outcome(records=outcome.records, reply=outcome.reply.members[0], effects=outcome.effects)

    def _remove_members(self, request: consumer.LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        kind = self.kinds.of(request.group_id)
        return no_members_removed(request) if kind is None else kind.remove_members(request, now_ms)

    # What happens without a request

    def _topics_changed(self, event: TopicsChanged, now_ms: int) -> Outcome:
        before, after = self.image, event.image
        names = sorted({*before.by_name, *after.by_name})
        changed = [name for name in names if before.by_name.get(name) != after.by_name.get(name)]
        for kind in self.kinds:
            kind.topics_changed(before, after, changed)
        return Outcome(records=expiry.of_deleted_topics(self.offsets, before, after))

    def _deadline_reached(self, event: DeadlineReached, now_ms: int) -> Outcome:
        if self._sweep_ms is not None and self._sweep_ms <= now_ms:
            return self._sweep(now_ms)
        deadlines = [
            (deadline, kind) for kind in self.kinds if (deadline := kind.timers.next_deadline()) is not None
        ]
        if not deadlines:
            return NOTHING
        _, first = min(deadlines, key=lambda found: found[0])
        return first.deadline_reached(now_ms) or NOTHING

    def _member_heard(self, event: MemberHeard, now_ms: int) -> Outcome:
        kind = self.kinds.of(event.group_id)
        if kind is not None:
            kind.heard(event.group_id, event.member_id, now_ms)
        return NOTHING

    def _session_ended(self, event: SessionEnded, now_ms: int) -> Outcome:
        kind = self.kinds.of(event.group_id)
        return NOTHING if kind is None else kind.session_ended(event.group_id, event.member_id, now_ms)

    def _rebalance_requested(self, event: RebalanceRequested, now_ms: int) -> Outcome:
        kind = self.kinds.of(event.group_id)
        return NOTHING if kind is None else kind.rebalance(event.group_id, now_ms)

    def _give_way(self, group_id: str) -> tuple[Record, ...] | None:
        """Return the records that end a group of another kind with the id; no records without one, None if it
        stays."""
        return administration.give_way(self.kinds, self.offsets, group_id)

    def _sweep(self, now_ms: int) -> Outcome:
        """Remove expired offsets, and empty groups without offsets. Many groups take several steps."""
        if not self._unswept:
            self._unswept = sorted({*self.kinds.group_ids(), *self.offsets.group_ids})
        group_ids = self._unswept[: administration.SWEPT_AT_ONCE]
        del self._unswept[: administration.SWEPT_AT_ONCE]
        if not self._unswept:
            self._sweep_ms = None
            self._keep_sweeping(now_ms)
        retention_ms = self.config.offsets_retention_ms
        records = administration.sweep(self.kinds, self.offsets, group_ids, retention_ms, now_ms)
        return Outcome(records=records) if records else NOTHING

    def _keep_sweeping(self, now_ms: int) -> None:
        if any(kind.groups for kind in self.kinds) or self.offsets.group_ids:
            self._sweep_ms = now_ms + self.config.offsets_retention_check_interval_ms
