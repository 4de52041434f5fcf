"""The trace of groups of both protocols: a classic group tells the same as a consumer group does.

Its epoch is the generation. A rebalance begins when the group begins to prepare it, so that is when the
generation to come counts as raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    Token,
)
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_assignment
from fencepost.coordinator.protocol.ids import TopicPartition, topic_partitions
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.trace.sizes import message_sizes
from fencepost.simulation.trace.writer import NONE, TraceWriter, cause_of

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.protocol.ids import MemberId
    from fencepost.simulation.kernel.observers import StepEvent

_ASKS: Final[dict[type, str]] = {
    JoinGroupRequest: "join",
    SyncGroupRequest: "full",
    HeartbeatRequest: "keepalive",
    LeaveGroupRequest: "leave",
}


class GroupTraceWriter(TraceWriter):
    """Writes every event of a world whose group may speak either protocol, and change it."""

    def __init__(self, recorder: TraceRows) -> None:
        super().__init__(recorder)
        self._waiting: dict[tuple[str, Token], tuple[str, StepEvent]] = {}
        """The client and its request, by broker and token, of requests that are not answered yet."""
        self._members: tuple[MemberId, ...] = ()
        """Of the classic group."""

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """A step of a group of either kind, and the answers to classic members."""
        active, group_id = self.world.active, self.world.group_id
        group = None if active is None else active.classic.groups.get(group_id)
        if group is None:
            self._members = ()
            consumers = None if active is None else active.groups.get(group_id)
            self._step(host, consumers, event, outcome, now_us)
            self._answers(host, event, outcome, now_us)
            return
        self._held.clear()  # of a consumer group that became this one
        self._raised(host, group, event, now_us)
        if type(event) is not HeartbeatRequest:
            self._gone(host, group, event, outcome, now_us)
        self._answers(host, event, outcome, now_us)
        state = str(group.state)
        if state != self._group_state:
            before, self._group_state = self._group_state, state
            self._settle(state)
            self._add(now_us, host, RowKind.GROUP_STATE, state_from=before, state_to=state)

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Drop what waits for a response of this broker: none will come."""
        self._waiting = {key: asked for key, asked in self._waiting.items() if key[0] != host}
        super().on_coordinator_state(host, what, now_us)

    def _raised(self, host: str, group: ClassicGroup, event: StepEvent, now_us: int) -> None:
        """The generation, or the one to come; a round that another coordinator forgot gives it back."""
        coming = group.generation + (group.state is ClassicGroupState.PREPARING_REBALANCE)
        before, self._group_epoch = self._group_epoch, coming
        if coming <= max(before, 0):
            return
        state = str(group.state)
        self._add(now_us, host, RowKind.GROUP_EPOCH, state_to=state, detail=cause_of(event))
        self._rebalancing = True
        self._settle(state)

    def _gone(self, host: str, group: ClassicGroup, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Members that are there no more, and what was written."""
        gone = {member_id: None for member_id in self._members if member_id not in group.members}
        for record in outcome.records:
            key, value = record.key, record.value
            if value is None and isinstance(key, r.ConsumerGroupMemberMetadataKey):
                if key.member_id not in group.members:
                    gone[key.member_id] = None
            elif isinstance(value, r.GroupMetadataValue) and type(event) is SyncGroupRequest:
                self._add(now_us, host, RowKind.TARGET, group_epoch=value.generation)
        for member_id in gone:
            self._removed(member_id, event, outcome, now_us)
        if gone or len(group.members) != len(self._members):
            self._members = tuple(group.members)

    def _answers(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Rows of the classic protocol's requests that were answered in this step."""
        if type(event) in _ASKS:
            member_id: MemberId = event.member_id  # type: ignore[union-attr,assignment]  # they all have one
            actor = self._hosts.get(member_id) or getattr(event, "client_id", "") or member_id
            if outcome.reply is not None:
                self._answered(actor, event, outcome.reply, now_us)
            elif isinstance(event, JoinGroupRequest | SyncGroupRequest):
                self._waiting[host, event.token] = actor, event
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse) and (host, effect.token) in self._waiting:
                self._answered(*self._waiting.pop((host, effect.token)), effect.response, now_us)

    def _answered(self, actor: str, event: StepEvent, reply: Any, now_us: int) -> None:
        self.heartbeats += 1
        error = "" if reply.error_code is NONE else reply.error_code.name
        partitions: tuple[TopicPartition, ...] = ()
        epoch = getattr(event, "generation", -1)
        if not error and isinstance(reply, JoinGroupResponse):
            epoch = reply.generation
        elif not error and isinstance(reply, SyncGroupResponse):
            partitions = _assigned(reply.assignment)
        self._add(
            now_us,
            actor,
            RowKind.HEARTBEAT,
            member_epoch=epoch,
            partitions=partitions,
            error=error,
            detail=f"{_ASKS[type(event)]} {message_sizes(event, reply, actor)}",
        )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    try:
        topics = read_assignment(assignment).partitions
    except MalformedConsumerProtocol:
        return ()
    return tuple(
        partition for topic in sorted(topics) for partition in topic_partitions(topic, topics[topic])
    )
