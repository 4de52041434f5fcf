"""The trace of groups of every kind, in all worlds: each kind has one dialect.

The dialect of consumer groups and of streams groups is in `trace.writer`. A group of a further kind shows its
state, its epoch, its members and their requests.

A classic group has the same rows as a consumer group. Its epoch is the generation. A rebalance begins when
the group begins to prepare it, so the coming generation counts as raised then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import CLASSIC_GROUP_TYPE, CONSUMER_GROUP_TYPE, LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_assignment
from fencepost.coordinator.protocol.ids import TopicPartition, topic_partitions
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.streams.describe import STREAMS_GROUP_TYPE
from fencepost.simulation.kernel.observers import RecordsObserved
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.trace.sizes import message_sizes
from fencepost.simulation.trace.writer import NONE, TraceWriter, cause_of

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.kinds import GroupKind
    from fencepost.coordinator.protocol.ids import MemberId
    from fencepost.simulation.kernel.observers import StepEvent

_ASKS: Final[dict[type, str]] = {
    classic.JoinGroupRequest: "join",
    classic.SyncGroupRequest: "full",
    classic.HeartbeatRequest: "keepalive",
    LeaveGroupRequest: "leave",
}


class GroupTraceWriter(TraceWriter):
    """Writes every event of a world whose group may speak either protocol, and switch between them."""

    def __init__(self, recorder: TraceRows, first_members: int = 0) -> None:
        super().__init__(recorder, first_members)
        self._waiting: dict[tuple[str, classic.Token], StepEvent] = {}
        """Requests without a response yet, by broker and token."""
        self._members: tuple[MemberId, ...] = ()
        """Members of a group at its last comparison."""
        self._known: frozenset[MemberId] = frozenset()
        """The same members as a set."""

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write a step of a group of either kind, and the responses to classic members."""
        active, group_id = self.world.active, self.world.group_id
        found = None if active is None else active.kinds.find(group_id)
        name = CONSUMER_GROUP_TYPE if found is None else found[0].name
        group: Any = None if found is None else found[1]
        if name == STREAMS_GROUP_TYPE or isinstance(event, StreamsGroupHeartbeatRequest):
            self._step(host, group if name == STREAMS_GROUP_TYPE else None, event, outcome, now_us)
            return
        if name == CONSUMER_GROUP_TYPE:
            self._members, self._known = (), frozenset()
            self._step(host, group, event, outcome, now_us)
            self._answers(host, event, outcome, now_us)
            return
        if found is not None and name != CLASSIC_GROUP_TYPE:
            self._further(host, found, event, outcome, now_us)
            return
        if isinstance(event, TransactionEnded):
            self._transaction_ended(host, event, outcome.records, now_us)
        self._held.clear()  # of a consumer group that became this one
        self._raised(host, group, event, now_us)
        if type(event) is not classic.HeartbeatRequest:
            self._gone(host, group, event, outcome, now_us)
        self._answers(host, event, outcome, now_us)
        self._moved(host, group, now_us)

    def _further(
        self, host: str, found: tuple[GroupKind, Any], event: StepEvent, outcome: Outcome, now_us: int
    ) -> None:
        """Write what every kind of group has, for a group of a kind without a dialect of its own."""
        kind, group = found
        epoch = kind.epoch(group)
        if epoch != self._group_epoch:
            self._group_epoch = epoch
            self._add(now_us, host, RowKind.GROUP_EPOCH, state_to=str(group.state), detail=cause_of(event))
        for member_id in [one for one in self._members if one not in group.members]:
            self._removed(member_id, event, outcome, now_us)
        self._members = tuple(group.members)
        self._known = frozenset(self._members)
        if isinstance(event, kind.heartbeat_requests) and outcome.reply is not None:
            self._asked_and_answered(event, outcome.reply, type(event).__name__, now_us)
        self._moved(host, group, now_us)

    def _asked_and_answered(self, event: Any, reply: Any, detail: str, now_us: int) -> None:
        self.heartbeats += 1
        error = "" if reply.error_code is NONE else reply.error_code.name
        actor, epoch = self._actor(event, reply), getattr(reply, "member_epoch", -1)
        self._add(now_us, actor, RowKind.HEARTBEAT, member_epoch=epoch, error=error, detail=detail)

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Drop what waits for a response of this broker: none will come."""
        self.drop_waiting(host)
        super().on_coordinator_state(host, what, now_us)

    def drop_waiting(self, host: str) -> None:
        """Forget the requests that wait at a broker."""
        self._waiting = {key: asked for key, asked in self._waiting.items() if key[0] != host}

    def _actor(self, event: Any, reply: Any) -> str:
        """Return the host of a request's member; a client that is no member yet has its own id."""
        return self._hosts.get(event.member_id) or getattr(event, "client_id", "") or event.member_id

    def _raised(self, host: str, group: ClassicGroup, event: StepEvent, now_us: int) -> None:
        """Write a raise of the generation, present or coming; a round that another coordinator forgot lowers
        it again."""
        coming = group.generation + (group.state is ClassicGroupState.PREPARING_REBALANCE)
        before, self._group_epoch = self._group_epoch, coming
        if coming <= max(before, 0):
            return
        state = str(group.state)
        self._add(now_us, host, RowKind.GROUP_EPOCH, state_to=state, detail=cause_of(event))
        self._raise(state)

    def _gone(self, host: str, group: ClassicGroup, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write members that have been removed, and the target if it was written."""
        gone: dict[MemberId, None] = {}
        if not self._known <= group.members.keys():
            gone = {member_id: None for member_id in self._members if member_id not in group.members}
        for record in outcome.records:
            key, value = record.key, record.value
            if value is None and isinstance(key, r.ConsumerGroupMemberMetadataKey):
                if key.member_id not in group.members:
                    gone[key.member_id] = None
            elif isinstance(value, r.GroupMetadataValue) and isinstance(
                event, classic.SyncGroupRequest | RecordsObserved
            ):
                self._add(now_us, host, RowKind.TARGET, group_epoch=value.generation)
        for member_id in gone:
            self._removed(member_id, event, outcome, now_us)
        if gone or len(group.members) != len(self._members):
            self._members = tuple(group.members)
            self._known = frozenset(self._members)

    def _answers(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write rows of the classic protocol's requests that were answered in this step."""
        if type(event) in _ASKS:
            if outcome.reply is not None:
                self._answered(event, outcome.reply, now_us)
            elif isinstance(event, classic.JoinGroupRequest | classic.SyncGroupRequest):
                self._waiting[host, event.token] = event
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse) and (host, effect.token) in self._waiting:
                self._answered(self._waiting.pop((host, effect.token)), effect.response, now_us)

    def _answered(self, event: Any, reply: Any, now_us: int) -> None:
        self.heartbeats += 1
        actor = self._actor(event, reply)
        error = "" if reply.error_code is NONE else reply.error_code.name
        partitions: tuple[TopicPartition, ...] = ()
        epoch = getattr(event, "generation", -1)
        if not error and isinstance(reply, classic.JoinGroupResponse):
            epoch = reply.generation
            self._joined(actor)
        elif not error and isinstance(reply, classic.SyncGroupResponse):
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
