"""The group coordinator: one pure object that takes events and answers what to write, say and do.

`handle` reads the hard state and changes only what is in no record: who was heard when, timers, the
cluster's topics. `apply` is the only writer of the hard state, live and on load. A shell appends the
records of an outcome, applies them, and then sends the reply; `CoordinatorHost` does that.

What is one kind of group's is in `consumer.groups`, `classic.groups`, `streams.groups`, `offsets.store`; this
hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from fencepost.coordinator import administration, group_offsets
from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.classic.groups import ClassicGroups
from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig, GroupSettings
from fencepost.coordinator.consumer.groups import ConsumerGroups
from fencepost.coordinator.consumer.records import APPLY as CONSUMER_RECORDS
from fencepost.coordinator.consumer.states import GROUP_TABLE
from fencepost.coordinator.migration.requests import ClassicProtocolRequests
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
    DeleteGroupsRequest,
    LeaveGroupBatchRequest,
    LeaveGroupBatchResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.machine import IllegalTransition, StateTable
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
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetCommitKey,
    Record,
)
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.refusals import client_error, refusal
from fencepost.coordinator.streams.groups import StreamsGroups
from fencepost.coordinator.streams.records import APPLY as STREAMS_RECORDS
from fencepost.coordinator.streams.states import STREAMS_GROUP_TABLE
from fencepost.coordinator.timers import Timers


class Timed(Protocol):
    """The groups of one kind, as far as their timers go."""

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that ends something; None if there is none."""


class GroupCoordinator:
    """The coordinator of all groups whose records are in one journal.

    `assignors` are a user's own, by name; `config.group_consumer_assignors` says which ones are offered.

    :raises FencepostError: on construction, if the configuration names an assignor that does not exist.
    """

    __slots__ = (
        "_all",
        "_appliers",
        "_classic_protocol",
        "_handlers",
        "_replayers",
        "_sweep_ms",
        "_timed",
        "classic",
        "config",
        "consumer",
        "groups",
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
        self.offsets = OffsetStore()
        self.streams = StreamsGroups(config, self._give_way)
        """Streams groups, durable and as they run."""
        self._all = administration.AllGroups(self.groups, self.classic.groups, self.streams.groups)
        self._classic_protocol = ClassicProtocolRequests(
            config, self.consumer, self.classic, self.streams.groups
        )
        self.consumer.migration = self._classic_protocol
        self._timed: tuple[tuple[Timers[Any], Timed], ...] = (
            (self.soft.timers, self.consumer),
            (self.classic.timers, self.classic),
            (self.streams.soft.timers, self.streams),
        )
        self._sweep_ms: int | None = None
        """When offsets expire and empty groups without offsets go, next; None if there are none."""
        self._appliers: Mapping[type, Callable[[Any, Any], None]] = {
            OffsetCommitKey: self.offsets.apply,
            PendingOffsetCommitKey: self.offsets.apply_pending,
            GroupMetadataKey: self._apply_classic,
            **dict.fromkeys(CONSUMER_RECORDS, self.consumer.apply),
            **dict.fromkeys(STREAMS_RECORDS, self.streams.apply),
        }
        """By the type of the key: what makes a record true."""
        self._replayers: Mapping[type, Callable[[Any, Any], None]] = {
            **self._appliers,
            GroupMetadataKey: self.classic.replay,
            **dict.fromkeys(CONSUMER_RECORDS, self.consumer.replay),
            **dict.fromkeys(STREAMS_RECORDS, self.streams.replay),
        }
        """The same, on load."""
        self._handlers: Mapping[type, Callable[[Any, int], Outcome]] = {
            ConsumerGroupHeartbeatRequest: self.consumer.heartbeat,
            StreamsGroupHeartbeatRequest: self.streams.heartbeat,
            StreamsGroupDescribeRequest: self.streams.describe,
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
            RegularExpressionsResolved: self.consumer.regular_expressions_resolved,
            DeadlineReached: self._deadline_reached,
            TransactionEnded: self._transaction_ended,
            MemberHeard: self._member_heard,
            SessionEnded: self._session_ended,
            RebalanceRequested: self._rebalance_requested,
        }

    def handle(self, event: Event, now_ms: int) -> Outcome:
        """What an event leads to. A request that breaks a rule is answered with Kafka's error."""
        if type(event) is ConsumerGroupHeartbeatRequest:
            again = self.consumer.answer_again(event, now_ms)
            if again is not None:
                return again
        self.soft.now_ms = self.streams.soft.now_ms = now_ms
        return self._handlers[type(event)](event, now_ms)

    def apply(self, record: Record) -> None:
        """Make a record true. It happens at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        self._appliers[type(record.key)](record.key, record.value)
        if self._sweep_ms is None and record.value is not None:
            self._sweep_ms = self.soft.now_ms + self.config.offsets_retention_check_interval_ms

    def _apply_classic(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        self.classic.apply(key, value, self.soft.now_ms)

    def replay(self, records: Iterable[Record], now_ms: int) -> None:
        """Load a journal: apply its records, then start all timers with their full length.

        :raises InconsistentRecord: if the journal is broken; the message names the record.
        """
        for record in records:
            self._replayers[type(record.key)](record.key, record.value)
        self.consumer.rebuild(now_ms)
        self.streams.rebuild(now_ms)
        self.classic.rebuild(now_ms)
        self._keep_sweeping(now_ms)

    def apply_batch(self, records: tuple[Record, ...]) -> None:
        """Make the records of one outcome true.

        :raises InconsistentRecord: if one cannot follow the records before it.
        :raises IllegalTransition: if a group moved along no arrow of its table.
        """
        before = self._states(records)
        for record in records:
            self.apply(record)
        after = self._states(records)
        if after != before:
            self._check_arrows(before, after)

    def _states(self, records: tuple[Record, ...]) -> dict[str, str]:
        """The state of each group with an epoch that the records are about; Empty for one that is missing."""
        groups, streams = self.groups, self.streams.groups
        found: dict[str, str] = {}
        for record in records:
            group_id = record.key.group_id
            if group_id not in found:
                group = groups.get(group_id) or streams.get(group_id)
                found[group_id] = "Empty" if group is None else group.state
        return found

    def _check_arrows(self, before: dict[str, str], after: dict[str, str]) -> None:
        """Each group that is there now moved along an arrow of its table, or not at all."""
        for group_id, source in before.items():
            target = after[group_id]
            if target == source:
                continue
            if group_id in self.groups:
                table: StateTable[Any, Any] = GROUP_TABLE
            elif group_id in self.streams.groups:
                table = STREAMS_GROUP_TABLE
            else:
                continue
            if not table.allows(source, target):
                raise IllegalTransition(f"{table.name}: {group_id} moved from {source} to {target}")

    def not_written(self, event: Event, outcome: Outcome, code: ErrorCode, now_ms: int) -> Outcome:
        """Return the outcome in place of one that was not written, and whose effects were not carried out.

        `code` is the log's error; the client receives what Kafka makes of it.
        """
        code = client_error(code)
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self.consumer.resolution_ended(effect.group_id)
        self.soft.discard(outcome.records)
        self.streams.discard(outcome.records)
        effects = self.classic.discard(code, self.soft.now_ms)
        return Outcome(reply=refusal(event, code), effects=effects)

    def unload(self) -> tuple[Effect, ...]:
        """The groups have another coordinator from now on: what to tell those who wait here."""
        return self.classic.unload()

    def next_deadline(self) -> int | None:
        """When to hand in `DeadlineReached`, in milliseconds; None if nothing is timed.

        It may turn out too early, for a member that was heard meanwhile: then that event does nothing.
        """
        found = self._sweep_ms
        for timers, _ in self._timed:
            deadline = timers.next_deadline()
            if deadline is not None and (found is None or deadline < found):
                found = deadline
        return found

    @property
    def image(self) -> TopicsImage:
        """The cluster's topics, as of the last TopicsChanged."""
        return self.consumer.image

    def hard_state(self) -> dict[str, Any]:
        """All that records made, to compare with another coordinator's."""
        return {
            "groups": {group_id: group.hard_state() for group_id, group in self.groups.items()},
            "classic_groups": dict(self.classic.stored),
            "streams_groups": {
                group_id: group.hard_state() for group_id, group in self.streams.groups.items()
            },
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
        self.consumer.set_group_config(group_id, config)
        self.streams.set_group_config(group_id, config)

    def settings(self, group_id: str) -> GroupSettings:
        """The session length, heartbeat interval and assignment interval that hold for a group."""
        return self.consumer.settings(group_id)

    # Offsets

    def _commit(self, request: OffsetCommitRequest, now_ms: int) -> Outcome:
        return group_offsets.commit_offsets(
            request,
            self._all,
            self.classic,
            self.offsets,
            image=self.image,
            metadata_max_bytes=self.config.offset_metadata_max_bytes,
            now_ms=now_ms,
        )

    def _fetch(self, request: OffsetFetchRequest, now_ms: int) -> Outcome:
        return group_offsets.fetch_offsets(request, self._all, self.offsets, self.image)

    def _transaction_ended(self, event: TransactionEnded, now_ms: int) -> Outcome:
        records = transactions.ended(self.offsets, event.group_id, event.producer_id, commit=event.commit)
        return Outcome(records=records)

    def _delete_offsets(self, request: OffsetDeleteRequest, now_ms: int) -> Outcome:
        return group_offsets.delete_offsets(request, self._all, self.offsets, self.image)

    # Administration

    def _describe(self, request: ConsumerGroupDescribeRequest, now_ms: int) -> Outcome:
        return administration.describe_groups(
            request, self.groups, self.image, tuple(self.consumer.assignors)
        )

    def _describe_classic(self, request: DescribeGroupsRequest, now_ms: int) -> Outcome:
        return administration.describe_classic_groups(request, self._all, self.offsets)

    def _list(self, request: ListGroupsRequest, now_ms: int) -> Outcome:
        return administration.list_groups(request, self._all, self.offsets)

    def _delete_group(self, request: DeleteGroupsRequest, now_ms: int) -> Outcome:
        return administration.delete_group(request, self._all, self.offsets)

    def _remove_member(self, request: LeaveGroupRequest, now_ms: int) -> Outcome:
        batch = LeaveGroupBatchRequest(group_id=request.group_id, members=(request,))
        outcome = self._remove_members(batch, now_ms)
        assert isinstance(outcome.reply, LeaveGroupBatchResponse)
        return Outcome(records=outcome.records, reply=outcome.reply.members[0], effects=outcome.effects)

    def _remove_members(self, request: LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        if request.group_id in self.classic.groups:
            return self.classic.leave(request, now_ms)
        return administration.remove_members(request, self.groups, self.consumer.removal(now_ms))

    # What happens without a request

    def _topics_changed(self, event: TopicsChanged, now_ms: int) -> Outcome:
        before, after = self.image, event.image
        names = sorted({*before.by_name, *after.by_name})
        changed = [name for name in names if before.by_name.get(name) != after.by_name.get(name)]
        self.consumer.topics_changed(before, after, changed)
        self.streams.topics_changed(after, changed)
        return Outcome(records=expiry.of_deleted_topics(self.offsets, before, after))

    def _deadline_reached(self, event: DeadlineReached, now_ms: int) -> Outcome:
        if self._sweep_ms is not None and self._sweep_ms <= now_ms:
            return self._sweep(now_ms)
        deadlines = [
            (deadline, kind)
            for timers, kind in self._timed
            if (deadline := timers.next_deadline()) is not None
        ]
        if not deadlines:
            return NOTHING
        _, first = min(deadlines, key=lambda found: found[0])
        return first.deadline_reached(now_ms) or NOTHING

    def _member_heard(self, event: MemberHeard, now_ms: int) -> Outcome:
        heard = self.consumer.heard(event.group_id, event.member_id, now_ms)
        if not heard and not self.streams.heard(event.group_id, event.member_id, now_ms):
            self.classic.heard(event.group_id, event.member_id, now_ms)
        return NOTHING

    def _session_ended(self, event: SessionEnded, now_ms: int) -> Outcome:
        kind = self.streams if event.group_id in self.streams.groups else self.consumer
        ended = kind.session_ended(event.group_id, event.member_id, now_ms)
        if ended is None and event.group_id in self.classic.groups:
            return self.classic.session_ended(event.group_id, event.member_id, now_ms)
        return ended or NOTHING

    def _rebalance_requested(self, event: RebalanceRequested, now_ms: int) -> Outcome:
        kind = self.streams if event.group_id in self.streams.groups else self.consumer
        rebalanced = kind.rebalance(event.group_id)
        if rebalanced is None and event.group_id in self.classic.groups:
            return self.classic.rebalance(event.group_id, now_ms)
        return rebalanced or NOTHING

    def _give_way(self, group_id: str) -> tuple[Record, ...] | None:
        """What ends a group of another kind that has the id: nothing if there is none, None if it stays."""
        if group_id in self.groups:
            return None
        classic = self.classic.groups.get(group_id)
        if classic is not None:
            return administration.end_of_empty(classic)
        # Offsets that nobody's member committed are a classic group without members to Kafka.
        return administration.end_of_classic(group_id) if group_id in self.offsets else ()

    def _sweep(self, now_ms: int) -> Outcome:
        """Expired offsets go, and empty groups that have none left."""
        self._sweep_ms = None
        self._keep_sweeping(now_ms)
        retention_ms = self.config.offsets_retention_ms
        records = administration.sweep(self._all, self.offsets, retention_ms, now_ms)
        return Outcome(records=records) if records else NOTHING

    def _keep_sweeping(self, now_ms: int) -> None:
        if any(self._all) or self.offsets.group_ids:
            self._sweep_ms = now_ms + self.config.offsets_retention_check_interval_ms
