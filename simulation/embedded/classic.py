"""The trace of classic groups: what their coordinator shows after each step, as rows."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.outcome import MemberFenced, Outcome
from fencepost.simulation.embedded.group_rows import GroupRows
from fencepost.simulation.embedded.members import classic_members
from fencepost.simulation.kernel.observers import StepEvent
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind

_ASKS: dict[type, str] = {JoinGroupRequest: "join", SyncGroupRequest: "full", HeartbeatRequest: "keepalive"}
_STATES = {
    ClassicGroupState.PREPARING_REBALANCE: "JOINING",
    ClassicGroupState.COMPLETING_REBALANCE: "RECONCILING",
    ClassicGroupState.STABLE: "STABLE",
}


class ClassicTraceWriter(GroupRows):
    """Writes the rows of one classic group; `group_epoch` is its generation."""

    def __init__(self, recorder: TraceRows) -> None:
        super().__init__(recorder)
        self._generation = -1
        self._members: dict[MemberId, tuple[str, tuple[TopicPartition, ...]]] = {}

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Compares the group with what it was."""
        active = self.world.active
        group = None if active is None else active.classic.groups.get(self.world.group_id)
        if group is None:
            return
        if group.generation != self._generation:
            self._generation = group.generation
            self._add(
                now_us,
                host,
                RowKind.GROUP_EPOCH.value,
                state_to=str(group.state),
                group_epoch=group.generation,
                detail="join",
            )
        self._compare_members(classic_members(group), _STATES.get(group.state, "JOINING"), outcome, now_us)
        if type(event) in _ASKS:
            self._request(event, outcome, now_us)
        self._tell_state(host, str(group.state), group.generation, now_us)

    def _request(self, event: Any, outcome: Outcome, now_us: int) -> None:
        reply: Any = outcome.reply
        code = ErrorCode.NONE if reply is None else reply.error_code
        self._add(
            now_us,
            event.member_id or getattr(reply, "member_id", ""),
            RowKind.HEARTBEAT.value,
            member_epoch=getattr(event, "generation", -1),
            group_epoch=self._generation,
            error="" if code is ErrorCode.NONE else code.name,
            detail=_ASKS[type(event)],
        )

    def _compare_members(self, members: list[Any], state: str, outcome: Outcome, now_us: int) -> None:
        now = {member.member_id: (state, member.assignment) for member in members}
        reasons = {each.member_id: each.reason for each in outcome.effects if isinstance(each, MemberFenced)}
        for member_id in [each for each in self._members if each not in now]:
            del self._members[member_id]
            self._add(now_us, member_id, RowKind.MEMBER_REMOVED.value, detail=reasons.get(member_id, "left"))
            self._add(now_us, member_id, RowKind.HOST.value, detail="stopped")
        for member_id, (_, given) in now.items():
            if member_id not in self._members:
                self._add(now_us, member_id, RowKind.HOST.value, detail="start")
            old_state, had = self._members.get(member_id, ("", ()))
            if state != old_state:
                self._add(now_us, member_id, RowKind.MEMBER_STATE.value, state_from=old_state, state_to=state)
            if lost := tuple(sorted({*had} - {*given})):
                self._callback(now_us, member_id, "revoked", lost)
            if gained := tuple(sorted({*given} - {*had})):
                self._callback(now_us, member_id, "assigned", gained)
        self._members = now

    def _callback(
        self, now_us: int, member_id: MemberId, kind: str, partitions: tuple[TopicPartition, ...]
    ) -> None:
        for row in (RowKind.CALLBACK_BEGIN.value, RowKind.CALLBACK_END.value):
            self._add(now_us, member_id, row, partitions=partitions, detail=kind)
