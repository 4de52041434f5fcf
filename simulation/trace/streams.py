"""The trace of streams groups (KIP-1071): what their coordinator wrote and answered, as rows.

Partitions are those that active tasks read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.coordinator.kinds import named
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, TopicPartition
from fencepost.coordinator.protocol.outcome import MemberFenced, Outcome
from fencepost.coordinator.protocol.streams import (
    NO_TASK_IDS,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataValue,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.describe import partitions_read
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.kernel.observers import StepEvent
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.trace.writer import cause_of

if TYPE_CHECKING:
    from fencepost.coordinator.streams.group import StreamsGroup


class StreamsSteps:
    """The rows of one streams group; `add` takes them."""

    def __init__(self, add: Callable[..., None]) -> None:
        self._add = add
        self._image = TopicsImage()

    def know(self, image: TopicsImage) -> None:
        """Take the topics whose names the partitions have from now on."""
        self._image = image

    def step(
        self, host: str, group: StreamsGroup | None, event: StepEvent, outcome: Outcome, now_us: int
    ) -> None:
        """Tell what was written and answered."""
        if group is not None:
            self._written(host, group, event, outcome, now_us)
        if isinstance(event, StreamsGroupHeartbeatRequest) and isinstance(
            outcome.reply, StreamsGroupHeartbeatResponse
        ):
            self._heartbeat(group, event, outcome.reply, now_us)

    def _written(
        self, host: str, group: StreamsGroup, event: StepEvent, outcome: Outcome, now_us: int
    ) -> None:
        for record in outcome.records:
            key, value = record.key, record.value
            if isinstance(value, StreamsGroupMetadataValue):
                self._add(
                    now_us,
                    host,
                    RowKind.GROUP_EPOCH,
                    state_to=str(group.state),
                    group_epoch=value.epoch,
                    detail=_asks(event)
                    if isinstance(event, StreamsGroupHeartbeatRequest)
                    else cause_of(event),
                )
            elif isinstance(value, StreamsGroupTargetAssignmentMetadataValue):
                self._add(now_us, host, RowKind.TARGET, group_epoch=value.assignment_epoch)
            elif isinstance(key, StreamsGroupCurrentMemberAssignmentKey):
                placed = value if isinstance(value, StreamsGroupCurrentMemberAssignmentValue) else None
                self._assignment(group, key.member_id, placed, now_us)
            elif value is None and isinstance(key, StreamsGroupMemberMetadataKey):
                self._removed(key.member_id, outcome, now_us)

    def _assignment(
        self,
        group: StreamsGroup,
        member_id: MemberId,
        value: StreamsGroupCurrentMemberAssignmentValue | None,
        now_us: int,
    ) -> None:
        held: tuple[TopicPartition, ...] = ()
        if value is not None:
            held = self._read(group, value.assigned.active)
            held += self._read(group, value.pending_revocation.active)
        self._add(
            now_us,
            member_id,
            RowKind.ASSIGNMENT,
            state_to="" if value is None else str(StreamsGroupMemberState.of_code(value.state)),
            member_epoch=-1 if value is None else value.member_epoch,
            partitions=held,
            detail=member_id,
        )

    def _removed(self, member_id: MemberId, outcome: Outcome, now_us: int) -> None:
        reasons = {each.member_id: each.reason for each in outcome.effects if isinstance(each, MemberFenced)}
        self._add(
            now_us,
            member_id,
            RowKind.MEMBER_REMOVED,
            detail=reasons.get(member_id, "left"),
        )

    def _heartbeat(
        self,
        group: StreamsGroup | None,
        event: StreamsGroupHeartbeatRequest,
        reply: StreamsGroupHeartbeatResponse,
        now_us: int,
    ) -> None:
        error = "" if reply.error_code is ErrorCode.NONE else reply.error_code.name
        given = NO_TASK_IDS if reply.tasks is None else reply.tasks.active
        self._add(
            now_us,
            event.member_id,
            RowKind.HEARTBEAT,
            member_epoch=event.member_epoch if error else reply.member_epoch,
            partitions=() if group is None else self._read(group, given),
            error=error,
            detail=_asks(event),
        )

    def _read(self, group: StreamsGroup, tasks: TaskIds) -> tuple[TopicPartition, ...]:
        return named(partitions_read(group, tasks, self._image), self._image)


def _asks(request: StreamsGroupHeartbeatRequest) -> str:
    if request.member_epoch == JOIN_EPOCH:
        return "join"
    if request.member_epoch < JOIN_EPOCH:
        return "leave"
    if request.active_tasks is None:
        return "keepalive"
    return "ack" if request.rebalance_timeout_ms == -1 else "full"
