"""The one way in which shells run a coordinator: handle, append, apply, and only then reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.consumer.states import GROUP_TABLE
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.offsets.commit import rejected
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    LeaveGroupBatchRequest,
    LeaveGroupBatchResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.machine import IllegalTransition, StateTable
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import DeadlineReached, Event, Outcome, Response
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.sac_records import SacRecord
from fencepost.coordinator.protocol.streams import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput, SacOutcome
from fencepost.coordinator.streams.states import STREAMS_GROUP_TABLE


class AppendFailed(Exception):
    """A journal could not take a batch, and has none of it. `code` is the log's own error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Journal(Protocol):
    """Where a coordinator's records go: all of a batch, or none of it."""

    def append(self, records: tuple[Record, ...]) -> None:
        """Keep one batch.

        :raises AppendFailed: if it is not kept.
        """


_CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def client_error(code: ErrorCode) -> ErrorCode:
    """What a member is told when the log failed with that error: whether and where to try again."""
    return _CLIENT_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


class SacJournal(Protocol):
    """Where the records of single active consumers go: all of a batch, or none of it."""

    def append(self, records: tuple[SacRecord, ...]) -> None:
        """Keep one batch.

        :raises AppendFailed: if it is not kept.
        """


class CoordinatorRuntime:
    """A coordinator with its journal. What `process` answers is written: it may be sent as it is."""

    __slots__ = ("coordinator", "journal")

    def __init__(self, coordinator: GroupCoordinator, journal: Journal) -> None:
        self.coordinator = coordinator
        self.journal = journal

    def process(self, event: Event, now_ms: int) -> Outcome:
        """One step. If the journal fails, nothing changed and the reply says so to the client."""
        outcome = self.coordinator.handle(event, now_ms)
        if not outcome.records:
            return outcome
        try:
            self.journal.append(outcome.records)
        except AppendFailed as failure:
            code = client_error(failure.code)
            return Outcome(reply=refusal(event, code), effects=self.coordinator.discard(outcome, code))
        before = self._states(outcome.records)
        for record in outcome.records:
            self.coordinator.apply(record)
        after = self._states(outcome.records)
        if after != before:
            self._check_arrows(before, after)
        return outcome

    def run_due(self, now_ms: int) -> list[Outcome]:
        """Run all timers that are due; only the outcomes that wrote or do something are answered."""
        outcomes = []
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= now_ms:
            outcome = self.process(DeadlineReached(), now_ms)
            if outcome.records or outcome.effects:
                outcomes.append(outcome)
        return outcomes

    def configure(self, group_id: str, config: GroupConfig | None) -> None:
        """Give a group a configuration of its own, or take it away."""
        self.coordinator.set_group_config(group_id, config)

    def close(self) -> None:
        """The coordinator is about to give up what it knows: nothing is processed any more."""

    def _states(self, records: tuple[Record, ...]) -> dict[str, str]:
        """The state of each group with an epoch that the records are about; Empty for one that is missing."""
        groups, streams = self.coordinator.groups, self.coordinator.streams.groups
        found: dict[str, str] = {}
        for record in records:
            group_id = record.key.group_id
            if group_id not in found:
                group = groups.get(group_id) or streams.get(group_id)
                found[group_id] = "Empty" if group is None else group.state
        return found

    def _check_arrows(self, before: dict[str, str], after: dict[str, str]) -> None:
        """Each group that is there now moved along an arrow of its table, or not at all."""
        coordinator = self.coordinator
        for group_id, source in before.items():
            target = after[group_id]
            if target == source:
                continue
            if group_id in coordinator.groups:
                table: StateTable[Any, Any] = GROUP_TABLE
            elif group_id in coordinator.streams.groups:
                table = STREAMS_GROUP_TABLE
            else:
                continue
            if not table.allows(source, target):
                raise IllegalTransition(f"{table.name}: {group_id} moved from {source} to {target}")


class SacRuntime:
    """The same for single active consumers. Effects are to be carried out in their order."""

    __slots__ = ("coordinator", "journal")

    def __init__(self, coordinator: SacCoordinator, journal: SacJournal) -> None:
        self.coordinator = coordinator
        self.journal = journal

    def process(self, event: SacInput, now_ms: int) -> SacOutcome:
        """One step. If the journal fails, nothing changed and the reply says so."""
        outcome = self.coordinator.handle(event, now_ms)
        if outcome.records:
            try:
                self.journal.append(outcome.records)
            except AppendFailed:
                return self.coordinator.discard(event, now_ms)
            for record in outcome.records:
                self.coordinator.apply(record)
        return outcome

    def run_due(self, now_ms: int) -> list[SacOutcome]:
        """Run all timers that are due."""
        outcomes = []
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= now_ms:
            outcomes.append(self.process(DeadlineReached(), now_ms))
        return outcomes


def refusal(event: Event, code: ErrorCode) -> Response | None:
    """The reply that gives this error to a request, and does nothing; None for an event nobody waits for."""
    make = _REFUSALS.get(type(event))
    return None if make is None else make(event, code)


def _no_consumer_groups(request: ConsumerGroupDescribeRequest, code: ErrorCode) -> Response:
    groups = (DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids)
    return ConsumerGroupDescribeResponse(groups=tuple(groups))


def _no_streams_groups(request: StreamsGroupDescribeRequest, code: ErrorCode) -> Response:
    groups = (DescribedStreamsGroup(group_id=group_id, error_code=code) for group_id in request.group_ids)
    return StreamsGroupDescribeResponse(groups=tuple(groups))


def _no_classic_groups(request: classic.DescribeGroupsRequest, code: ErrorCode) -> Response:
    return classic.DescribeGroupsResponse(
        groups=tuple(
            classic.DescribedClassicGroup(group_id=group_id, group_state="", error_code=code)
            for group_id in request.group_ids
        )
    )


def _blind_heartbeat(_: classic.HeartbeatRequest, code: ErrorCode) -> Response:
    """While groups are loaded nobody knows better than that the member is alive."""
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return classic.HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)


_REFUSALS: Mapping[type, Callable[[Any, ErrorCode], Response]] = {
    classic.JoinGroupRequest: lambda request, code: classic.JoinGroupResponse(
        error_code=code, member_id=request.member_id
    ),
    classic.SyncGroupRequest: lambda _, code: classic.SyncGroupResponse(error_code=code),
    classic.HeartbeatRequest: _blind_heartbeat,
    classic.DescribeGroupsRequest: _no_classic_groups,
    ConsumerGroupHeartbeatRequest: lambda _, code: ConsumerGroupHeartbeatResponse(error_code=code),
    ConsumerGroupDescribeRequest: _no_consumer_groups,
    StreamsGroupHeartbeatRequest: lambda _, code: StreamsGroupHeartbeatResponse(error_code=code),
    StreamsGroupDescribeRequest: _no_streams_groups,
    OffsetCommitRequest: rejected,
    OffsetFetchRequest: lambda request, code: OffsetFetchResponse(group_id=request.group_id, error_code=code),
    OffsetDeleteRequest: lambda _, code: OffsetDeleteResponse(error_code=code),
    ListGroupsRequest: lambda _, code: ListGroupsResponse(error_code=code),
    DeleteGroupsRequest: lambda request, code: DeleteGroupsResponse(
        group_id=request.group_id, error_code=code
    ),
    LeaveGroupBatchRequest: lambda _, code: LeaveGroupBatchResponse(error_code=code),
    LeaveGroupRequest: lambda request, code: LeaveGroupResponse(
        member_id=request.member_id, instance_id=request.instance_id, error_code=code
    ),
}
