"""All classic groups of a coordinator: their records, their state in memory, and their timers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from fencepost.coordinator.classic import describe, join, offset_fencing, rounds, sessions, sync
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupEvent, ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep, ClassicTimers
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.kinds import Applier, GroupKind, GroupMember, RequestHandler
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    Effect,
    MemberFenced,
    Outcome,
    ParkedResponse,
    Response,
)
from fencepost.coordinator.protocol.records import GroupMetadataKey, GroupMetadataValue, Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind, Timers


class ClassicGroups(GroupKind):
    """Handles events about classic groups, and applies the resulting records.

    `stored` is hard state, from the records. `groups` is the running state: it is ahead of the records while
    a group rebalances, and is made from them on load.
    """

    __slots__ = ("_config", "_groups", "_now_ms", "_step", "_stored", "groups", "stored", "timers")

    name = consumer.CLASSIC_GROUP_TYPE
    confirms_by_heartbeat = False

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self._config = config
        self._stored: dict[str, GroupMetadataValue] = {}
        self._groups: dict[str, ClassicGroup] = {}
        self.stored: Mapping[str, GroupMetadataValue] = MappingProxyType(self._stored)
        self.groups: Mapping[str, ClassicGroup] = MappingProxyType(self._groups)
        self.timers: ClassicTimers = Timers()
        self._now_ms = 0
        self._step: ClassicStep | None = None
        """The step whose records are being appended."""

    def handlers(self) -> Mapping[type, RequestHandler]:
        """Return no handlers: members of consumer groups speak the classic protocol, too."""
        return {}

    def begin(self, now_ms: int) -> None:
        """Take the time of the event that is about to be handled."""
        self._now_ms = now_ms

    # Requests

    def join(
        self, request: classic.JoinGroupRequest, now_ms: int, before: tuple[Record, ...] = ()
    ) -> Outcome:
        """JoinGroup. `before` ends a group of another kind, which gives way if this makes a new one."""
        try:
            join.check_request(request, self._config)
            group = self._groups.get(request.group_id)
            if group is None and request.member_id:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
        except ProtocolError as error:
            return Outcome(
                reply=classic.JoinGroupResponse(error_code=error.code, member_id=request.member_id)
            )
        is_new = group is None
        if group is None:
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, now_ms)
        step = self._begin(group, now_ms)
        if is_new:
            step.records = before
            step.write(group.value({}))
            step.failed = self._forget_group
        try:
            join.join(step, request)
        except ProtocolError as error:
            full = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            member_id = "" if full else request.member_id
            step.answer(request.token, classic.JoinGroupResponse(error_code=error.code, member_id=member_id))
        return self._outcome(step, request.token)

    def sync(self, request: classic.SyncGroupRequest, now_ms: int) -> Outcome:
        """SyncGroup."""
        group = self._groups.get(request.group_id)
        if not request.group_id:
            return Outcome(reply=classic.SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        if group is None:
            return Outcome(reply=classic.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        step = self._begin(group, now_ms)
        try:
            sync.sync(step, request)
        except ProtocolError as error:
            step.answer(request.token, classic.SyncGroupResponse(error_code=error.code))
        return self._outcome(step, request.token)

    def heartbeat(self, request: classic.HeartbeatRequest, now_ms: int) -> Outcome:
        """Heartbeat."""
        group = self._groups.get(request.group_id)
        if not request.group_id:
            return Outcome(reply=classic.HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        if group is None:
            return Outcome(reply=classic.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        try:
            sessions.heartbeat(self._begin(group, now_ms), request)
        except ProtocolError as error:
            return Outcome(reply=classic.HeartbeatResponse(error_code=error.code))
        return _ALIVE

    def remove_members(self, request: consumer.LeaveGroupBatchRequest, now_ms: int) -> Outcome:
        """LeaveGroup, for a group that is there."""
        step = self._begin(self._groups[request.group_id], now_ms)
        codes = sessions.leave(step, request.members)
        replies = tuple(
            consumer.LeaveGroupResponse(
                member_id=member.member_id, instance_id=member.instance_id, error_code=code
            )
            for member, code in zip(request.members, codes, strict=True)
        )
        return self._outcome(step, None, consumer.LeaveGroupBatchResponse(members=replies))

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        """Note that a member is alive: it committed, or the shell knows."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if (
            group is not None
            and member is not None
            and group.is_in(ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)
        ):
            self._begin(group, now_ms).restart_session(member)

    # Time

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer; return None if no timer is due."""
        key = self.timers.pop_due(now_ms)
        if key is None:
            return None
        return self._time_over(key, now_ms)

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome:
        """End a member's session, whatever its timer says."""
        if member_id not in self._groups[group_id].members:
            return NOTHING
        return self._time_over(GroupTimerKey(GroupTimerKind.SESSION, group_id, member_id), now_ms)

    def rebalance(self, group_id: str, now_ms: int) -> Outcome:
        """Make the members of a group join again."""
        step = self._begin(self._groups[group_id], now_ms)
        if step.group.members:
            rounds.start_or_complete(step)
        return self._outcome(step, None)

    def adopt(self, group: ClassicGroup, now_ms: int, *, rebalance: bool) -> None:
        """Run a group that was of another kind, once its record is written.

        With `rebalance`, its members join again.
        """
        step = self._step = self._new_step(group, now_ms)
        if rebalance:
            step.written = partial(rounds.start, step)

    def _time_over(self, key: GroupTimerKey, now_ms: int) -> Outcome:
        step = self._begin(self._groups[key.group_id], now_ms)
        before = tuple(step.group.members)
        match key.kind:
            case GroupTimerKind.SESSION:
                sessions.session_over(step, key.member_id)
            case GroupTimerKind.JOIN:
                rounds.join_time_over(step)
            case GroupTimerKind.SYNC:
                rounds.sync_time_over(step)
        fenced = [member_id for member_id in before if member_id not in step.group.members]
        effects = tuple(
            MemberFenced(group_id=key.group_id, member_id=member_id, reason=key.kind.value)
            for member_id in fenced
        )
        outcome = self._outcome(step, None)
        step.happened = effects + outcome.effects
        return Outcome(records=outcome.records, effects=step.happened)

    # Records

    def appliers(self) -> Mapping[type, Applier]:
        """Return the function that applies the one record of a classic group."""
        return {GroupMetadataKey: self.apply}

    def replayers(self) -> Mapping[type, Applier]:
        """Return the same, without the state in memory."""
        return {GroupMetadataKey: self.replay}

    def hard_state(self) -> dict[str, Any]:
        """Return the content of the records, by group."""
        return dict(self._stored)

    def apply(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a record, live; then run what waited for it."""
        now_ms = self._now_ms
        group_id = key.group_id
        if value is None:
            self._stored.pop(group_id, None)
            group = self._groups.get(group_id)
            self._step = None
            if group is not None:
                self._forget_group(self._new_step(group, now_ms), ErrorCode.NONE)
                group.move(ClassicGroupEvent.DELETED, now_ms)
            return
        self._stored[group_id] = value
        step, self._step = self._step, None
        if group_id not in self._groups:
            self._run(ClassicGroup.loaded(group_id, value) if step is None else step.group, now_ms)
        if step is not None and step.written is not None:
            step.written()

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a record while a journal is read."""
        if value is None:
            self._stored.pop(key.group_id, None)
        else:
            self._stored[key.group_id] = value

    def follow(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Set a group to another coordinator's record, for a coordinator that only follows."""
        self.replay(key, value)
        if value is None:
            self._groups.pop(key.group_id, None)
        else:
            self._groups[key.group_id] = ClassicGroup.loaded(key.group_id, value)

    def rebuild(self, now_ms: int) -> None:
        """Start over after a load: every session starts now, and no request is parked."""
        self._groups.clear()
        self.timers.clear()
        self._step = None
        for group_id, value in self._stored.items():
            self._run(ClassicGroup.loaded(group_id, value), now_ms)

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Undo the last step, whose records could not be appended; return the effects that remain.

        A member that was removed because its time was over is gone all the same, as in Kafka.
        """
        step, self._step = self._step, None
        if step is None:
            return ()
        undo = self._new_step(step.group, self._now_ms)
        if step.failed is not None:
            step.failed(undo, code)
        return (*step.happened, *undo.answers)

    def unload(self) -> tuple[ParkedResponse, ...]:
        """Return responses to all parked requests: the groups have another coordinator now."""
        code = ErrorCode.NOT_COORDINATOR
        answers: list[ParkedResponse] = []
        for group in self._groups.values():
            step = self._new_step(group, 0)
            for member in group.members.values():
                step.answer(
                    group.release_join(member),
                    classic.JoinGroupResponse(error_code=code, member_id=member.member_id),
                )
            rounds.fail_syncs(step, code)
            group.move(ClassicGroupEvent.DELETED, group.state_timestamp_ms)
            answers += step.answers
        self._groups.clear()
        self.timers.clear()
        return tuple(answers)

    # Administration, offsets, and what observers see

    def listed(self, group: ClassicGroup) -> consumer.ListedGroup:
        """Return the group's row in ListGroups."""
        return describe.listed(group)

    def end_of_empty(self, group: ClassicGroup) -> tuple[Record, ...] | None:
        """Return the tombstone of a group; None if it is not empty."""
        return end_of_classic(group.group_id) if group.is_in(ClassicGroupState.EMPTY) else None

    gives_way = end_of_empty

    def check_commit(
        self, group: ClassicGroup, image: TopicsImage, now_ms: int, request: OffsetCommitRequest
    ) -> None:
        """Fence an OffsetCommit by the generation; it also restarts the member's session."""
        if offset_fencing.check_commit(group, request) is not None:
            self.heard(request.group_id, request.member_id, now_ms)

    def may_delete_offsets(self, group: ClassicGroup) -> bool:
        """Return true if offsets of topics without subscribers may be deleted."""
        return offset_fencing.may_delete_offsets(group)

    def offsets_may_expire(self, group: ClassicGroup) -> bool:
        """Return true if the group's offsets may expire in its present state."""
        return offset_fencing.offsets_may_expire(group)

    def retained_since_ms(self, group: ClassicGroup) -> int | None:
        """Return the time from which an offset's age counts, in ms; None if it counts from the commit."""
        return offset_fencing.retained_since_ms(group)

    def epoch(self, group: ClassicGroup) -> int:
        """Return the generation."""
        return group.generation

    def members(
        self, group: ClassicGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the members, by member id."""
        return describe.members(group)

    def member_ids(self, group: ClassicGroup) -> Collection[MemberId]:
        """Return the ids of members, and those that were given out to join with."""
        return group.members.keys() | group.pending_joins.keys()

    def member_state(self, group: ClassicGroup) -> str:
        """Return the state of the members in their round."""
        return _MEMBER_STATES.get(group.state, "JOINING")

    def may_read(self, group: ClassicGroup, topic: str) -> bool:
        """Return true if a member subscribes to the topic in any of its protocols."""
        return group.uses_consumer_protocol and any(
            topic in describe.subscribed(protocol.metadata)
            for member in group.members.values()
            for protocol in member.protocols
        )

    def _run(self, group: ClassicGroup, now_ms: int) -> None:
        """Run the group: start the sessions of its members."""
        self._groups[group.group_id] = group
        step = self._new_step(group, now_ms)
        for member in group.members.values():
            step.restart_session(member)
        if len(group.members) > self._config.group_max_size:
            rounds.start(step)

    def _forget_group(self, undo: ClassicStep, _code: ErrorCode) -> None:
        """Delete the group and all its timers."""
        group = undo.group
        del self._groups[group.group_id]
        for member_id in (*group.members, *group.pending_joins):
            undo.end_session(member_id)
        undo.cancel_timer(GroupTimerKind.JOIN)
        undo.cancel_timer(GroupTimerKind.SYNC)

    def _begin(self, group: ClassicGroup, now_ms: int) -> ClassicStep:
        self._step = None
        return self._new_step(group, now_ms)

    def _new_step(self, group: ClassicGroup, now_ms: int) -> ClassicStep:
        return ClassicStep(group, self.timers, self._config, now_ms)

    def _outcome(
        self, step: ClassicStep, token: classic.Token | None, reply: Response | None = None
    ) -> Outcome:
        """Return the outcome of the step. If the step responds to the request itself, that is the reply."""
        if step.records:
            self._step = step
        effects: list[Effect] = []
        for answer in step.answers:
            if answer.token == token:
                reply = answer.response
            else:
                effects.append(answer)
        return Outcome(records=step.records, reply=reply, effects=tuple(effects))


def end_of_classic(group_id: str) -> tuple[Record, ...]:
    """Return the tombstone of a classic group, or of one that consists of committed offsets only."""
    return (Record(GroupMetadataKey(group_id), None),)


_MEMBER_STATES = {
    ClassicGroupState.COMPLETING_REBALANCE: "RECONCILING",
    ClassicGroupState.STABLE: "STABLE",
}
_ALIVE = Outcome(reply=classic.HeartbeatResponse())
