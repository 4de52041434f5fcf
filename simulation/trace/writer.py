"""The observer that writes the trace: it turns the events of a world into rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.consumer.states import STATES_BY_CODE
from fencepost.coordinator.kinds import named
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    MemberId,
    Partitions,
    TopicPartition,
    topic_partitions,
)
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    MemberFenced,
    Outcome,
    RebalanceRequested,
    RegularExpressionsResolved,
    Request,
    Response,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.streams_records import StreamsGroupCurrentMemberAssignmentValue
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.streams.describe import partitions_read
from fencepost.coordinator.streams.states import STREAMS_STATES_BY_CODE
from fencepost.coordinator.transactions.states import TransactionState
from fencepost.simulation.kernel.observers import (
    FindingReport,
    Observer,
    RecordsObserved,
    StepEvent,
    Violation,
    WorldView,
)
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.trace.sizes import message_sizes

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.streams.group import StreamsGroup

# Names in this module: in Python 3.11 an attribute of an enum class costs as much as a call.
NONE = ErrorCode.NONE
_HEARTBEAT = RowKind.HEARTBEAT.value
_ASSIGNMENT = RowKind.ASSIGNMENT.value
_MEMBER_STATE = RowKind.MEMBER_STATE.value
_CALLBACK_BEGIN, _CALLBACK_END = RowKind.CALLBACK_BEGIN.value, RowKind.CALLBACK_END.value
_RECORDS, _COMMIT = RowKind.RECORDS.value, RowKind.COMMIT.value
_KEEPALIVE = "keepalive"
_SETTLED = frozenset({"Stable", "Empty", "Dead"})


class TraceWriter(Observer):
    """Writes every event as a row. Actors are hosts: members' and brokers'.

    `first_members` is the number of members with which the group forms; 0 if it is not known.
    """

    world: WorldView

    def __init__(self, rows: TraceRows, first_members: int = 0) -> None:
        self._first_members = first_members
        self._hosts: Mapping[MemberId, str] = {}
        self._held: dict[MemberId, tuple[Partitions, TopicsImage, tuple[TopicPartition, ...]]] = {}
        """Each member's last assignment, and its partitions under the names of those topics."""
        self._append = rows.append
        self._transactions: dict[str, str] = {}
        """The state of each transactional id."""
        self._group_state = ""
        self._group_epoch = -1
        self._settled = ""
        """The last state of the group in which no rebalance was under way."""
        self._rebalancing = False
        self._from = ""
        """The settled state from which the rebalance under way began."""
        self._first: dict[str, bool] = {}
        """The members that started first, each with whether it has joined."""
        self._ended: Counter[bool] = Counter()
        """Rebalances that ended, by whether all first members had joined when they began."""
        self._complete = False
        self.heartbeats = 0

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Remember the world."""
        self.world = world
        self._hosts = world.hosts_by_member

    # -- the coordinator --------------------------------------------------------------------------------

    def on_steady_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        """Write a heartbeat that changed nothing: the hot path."""
        self.heartbeats += 1
        reply = outcome.reply
        self._append(
            (
                now_us,
                self._hosts.get(event.member_id, event.member_id),
                _HEARTBEAT,
                "",
                "",
                reply.member_epoch,
                self._group_epoch,
                () if reply.assignment is None else self._assigned(event.member_id, reply.assignment),
                "",
                _KEEPALIVE
                if event.topic_partitions is None and reply.assignment is None
                else _asked(event, reply, self._hosts.get(event.member_id, event.member_id)),
            )
        )

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write a heartbeat that was refused or changed something, or any other event of the coordinator."""
        active = self.world.active
        group = None if active is None else active.groups.get(self.world.group_id)
        self._step(host, group, event, outcome, now_us)

    def _step(
        self,
        host: str,
        group: ConsumerGroup | StreamsGroup | None,
        event: StepEvent,
        outcome: Outcome,
        now_us: int,
    ) -> None:
        """Write a step of a consumer group or a streams group."""
        if group is not None:
            self._group_epoch = group.group_epoch
        if isinstance(event, TransactionEnded):
            self._transaction_ended(host, event, outcome.records, now_us)
        self._records(host, group, event, outcome, now_us)
        if isinstance(event, ConsumerGroupHeartbeatRequest):
            self._heartbeat(event, outcome, now_us)
        elif isinstance(event, streams.StreamsGroupHeartbeatRequest):
            self._streams_heartbeat(group, event, outcome, now_us)
        if group is not None:
            self._moved(host, group, now_us)

    def _moved(self, host: str, group: Any, now_us: int) -> None:
        """Write the group's state, if it changed."""
        state = str(group.state)
        if state != self._group_state:
            before, self._group_state = self._group_state, state
            self._settle(state)
            self._add(now_us, host, RowKind.GROUP_STATE, state_from=before, state_to=state)

    def _heartbeat(self, event: ConsumerGroupHeartbeatRequest, outcome: Outcome, now_us: int) -> None:
        self.heartbeats += 1
        reply: Any = outcome.reply
        error = "" if reply.error_code is NONE else reply.error_code.name
        actor = self._hosts.get(event.member_id, event.member_id)
        if not error and event.member_epoch == JOIN_EPOCH:
            self._joined(actor)
        self._append(
            (
                now_us,
                actor,
                _HEARTBEAT,
                "",
                "",
                reply.member_epoch if not error else event.member_epoch,
                self._group_epoch,
                () if reply.assignment is None else self._assigned(event.member_id, reply.assignment),
                error,
                _asked(event, reply, actor),
            )
        )

    def _streams_heartbeat(
        self, group: Any, event: streams.StreamsGroupHeartbeatRequest, outcome: Outcome, now_us: int
    ) -> None:
        reply = outcome.reply
        if not isinstance(reply, streams.StreamsGroupHeartbeatResponse):
            return
        self.heartbeats += 1
        error = "" if reply.error_code is NONE else reply.error_code.name
        self._add(
            now_us,
            event.member_id,
            RowKind.HEARTBEAT,
            member_epoch=event.member_epoch if error else reply.member_epoch,
            partitions=() if group is None or reply.tasks is None else self._read(group, reply.tasks),
            error=error,
            detail=_asks(event),
        )

    def _records(self, host: str, group: Any, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        state = "" if group is None else str(group.state)
        for record in outcome.records:
            key, value = record.key, record.value
            if type(key) is r.OffsetCommitKey:
                continue  # most batches are commits, which members report themselves
            if isinstance(key, r.ASSIGNMENT_KEYS):
                self._assignment(group, key.member_id, value, now_us)
            elif isinstance(value, r.EPOCH_VALUES):
                cause = cause_of(event)
                self._add(
                    now_us, host, RowKind.GROUP_EPOCH, state_to=state, group_epoch=value.epoch, detail=cause
                )
                self._raise(state)
            elif isinstance(value, r.TARGET_VALUES):
                self._add(now_us, host, RowKind.TARGET, group_epoch=value.assignment_epoch)
            elif value is None and isinstance(key, r.MEMBER_KEYS):
                self._removed(key.member_id, event, outcome, now_us)

    def _assignment(self, group: Any, member_id: MemberId, value: Any, now_us: int) -> None:
        actor, state, epoch = self._hosts.get(member_id, member_id), "", -1
        held: tuple[TopicPartition, ...] = ()
        if value is None:
            self._held.pop(member_id, None)
        elif isinstance(value, StreamsGroupCurrentMemberAssignmentValue):
            state, epoch = str(STREAMS_STATES_BY_CODE[value.state]), value.member_epoch
            if group is not None:
                held = self._read(group, value.assigned) + self._read(group, value.pending_revocation)
        else:
            state, epoch = STATES_BY_CODE[value.state]._value_, value.member_epoch
            held = self._assigned(member_id, value.assigned)
            if value.pending_revocation:
                held += self._named(value.pending_revocation)
        self._append((now_us, actor, _ASSIGNMENT, "", state, epoch, self._group_epoch, held, "", member_id))

    def _raise(self, state: str) -> None:
        """Begin a rebalance with a raised epoch, unless one is under way."""
        if not self._rebalancing:
            self._rebalancing = True
            self._from, self._complete = self._settled, self._is_complete
        self._settle(state)

    def _settle(self, state: str) -> None:
        if state in _SETTLED:
            if self._rebalancing and self._from == state == "Stable":
                self._ended[self._complete] += 1
            self._rebalancing, self._settled = False, state

    @property
    def _is_complete(self) -> bool:
        return sum(self._first.values()) >= self._first_members

    @property
    def rebalances(self) -> int:
        """Number of rebalances of a formed group that ended, counted as the analyses do."""
        return self._ended[True] if self._is_complete else self._ended.total()

    def _joined(self, actor: str) -> None:
        if actor in self._first:
            self._first[actor] = True

    def _reason(self, member_id: MemberId, event: StepEvent, outcome: Outcome) -> str:
        """Return why the coordinator removed a member, in the words of the trace."""
        reason = "left"
        if isinstance(event, JoinGroupRequest) or (
            isinstance(event, ConsumerGroupHeartbeatRequest) and event.member_epoch >= 0
        ):
            reason = "replaced"
        elif isinstance(event, RecordsObserved):
            reason = event.removed.get(member_id, reason)
        for effect in outcome.effects:
            if isinstance(effect, MemberFenced) and effect.member_id == member_id:
                reason = effect.reason
        return reason

    def _removed(self, member_id: MemberId, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        actor = self._hosts.get(member_id, member_id)
        if actor in self.world.members and self.world.members[actor].member_id != member_id:
            actor = member_id  # of an earlier process: another member runs on this host now
        self._add(now_us, actor, RowKind.MEMBER_REMOVED, detail=self._reason(member_id, event, outcome))

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """A broker's host changed."""
        self._held.clear()
        self._add(now_us, host, RowKind.COORDINATOR, detail=what)

    def on_transaction_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        """A step of the coordinator of transactions."""
        row = RowKind.TRANSACTION
        for record in outcome.records:
            actor, value = record.key.transactional_id, record.value
            before = self._transactions.get(actor, "")
            state = "Dead" if value is None else str(TransactionState.of_code(value.status))
            self._transactions[actor] = state
            detail = "" if value is None else f"{value.producer_id} {value.producer_epoch}"
            self._add(now_us, actor, row, state_from=before, state_to=state, detail=detail)
        error = error_name(outcome.reply)
        if error:
            self._add(now_us, event.transactional_id, row, error=error, detail=type(event).__name__)

    def _transaction_ended(
        self, host: str, event: TransactionEnded, records: Iterable[r.Record], now_us: int
    ) -> None:
        counted = [
            (TopicPartition(each.key.topic, each.key.partition), each.value.offset)
            for each in records
            if isinstance(each.key, r.OffsetCommitKey) and isinstance(each.value, r.OffsetCommitValue)
        ]
        self._add(
            now_us,
            host,
            RowKind.TRANSACTION,
            state_to="Committed" if event.commit else "Aborted",
            partitions=tuple([partition for partition, _ in counted]),
            detail=" ".join([f"{each.topic}-{each.partition}:{offset}" for each, offset in counted]),
        )

    # -- members ----------------------------------------------------------------------------------------

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """A member machine moved."""
        driver = self.world.members[host].driver
        epoch, owned = (-1, ()) if driver is None else (driver.member_epoch, driver.assignment)
        states = str(source), str(target)
        self._append((now_us, host, _MEMBER_STATE, *states, epoch, self._group_epoch, owned, "", str(event)))

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """A rebalance callback began or ended."""
        row = _CALLBACK_BEGIN if phase == "begin" else _CALLBACK_END
        error = "CallbackFailed" if phase == "raised" else ""
        chosen = tuple(sorted(partitions))
        self._append((now_us, host, row, "", "", -1, self._group_epoch, chosen, error, str(kind)))

    def on_commit(
        self, host: str, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """A commit was answered, or was not."""
        error = type(response).__name__ if isinstance(response, Exception) else error_name(response)
        partitions = sorted(request.offsets)
        said = " ".join([f"{tp[0]}-{tp[1]}:{request.offsets[tp].offset}" for tp in partitions])
        self._append(
            (
                now_us,
                host,
                _COMMIT,
                "",
                "",
                request.member_epoch,
                self._group_epoch,
                tuple(partitions),
                error,
                said,
            )
        )

    def on_records_processed(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """The application finished with records."""
        end = self.world.log_ends.get(partition)
        span = f"{first}..{last_exclusive}" if end is None else f"{first}..{last_exclusive} of {end}"
        self._append((now_us, host, _RECORDS, "", "", -1, self._group_epoch, (partition,), "", span))

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """A member's host changed."""
        if what == "start" and len(self._first) < self._first_members:
            self._first.setdefault(host, False)
        self._add(now_us, host, RowKind.HOST, detail=what)

    def on_operation(self, request: Request, response: Response | Exception | None, now_us: int) -> None:
        """An operator asked the coordinator for something."""
        error = type(response).__name__ if isinstance(response, Exception) else error_name(response)
        told = "" if isinstance(response, Exception) else f" {_brought(response)}"
        self._add(
            now_us, "operator", RowKind.OPERATION, error=error, detail=f"{type(request).__name__}{told}"
        )

    # -- the world around -------------------------------------------------------------------------------

    def on_loss(self, host: str, broker: str, kind: str, request: Request, now_us: int) -> None:
        """The network lost a message."""
        row = RowKind.REQUEST_LOST if kind == "request" else RowKind.RESPONSE_LOST
        self._add(now_us, host, row, detail=f"{type(request).__name__} {broker}")

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """A topic changed."""
        self._add(now_us, topic, RowKind.TOPIC, detail=f"{what} {partitions}")

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """A fault began or ended."""
        self._add(now_us, str(fault), RowKind.FAULT, state_to=phase, detail=detail)

    def on_faults_end(self, now_us: int) -> None:
        """Nothing disturbs the group any more."""
        self._add(now_us, "", RowKind.FAULTS_END)

    def on_violation(self, violation: Violation) -> None:
        """A judge reported."""
        self._add(violation.t_us, "", RowKind.VIOLATION, error=violation.invariant, detail=violation.message)

    # -- rows -------------------------------------------------------------------------------------------

    def _add(
        self,
        now_us: int,
        actor: str,
        kind: RowKind,
        *,
        state_from: str = "",
        state_to: str = "",
        member_epoch: int = -1,
        group_epoch: int | None = None,
        partitions: tuple[TopicPartition, ...] = (),
        error: str = "",
        detail: str = "",
    ) -> None:
        # Each field by its name, and no call of `TraceRows.add`: a run adds a row for each heartbeat.
        epoch = self._group_epoch if group_epoch is None else group_epoch
        states = state_from, state_to
        self._append((now_us, actor, kind._value_, *states, member_epoch, epoch, partitions, error, detail))

    def _assigned(self, member_id: MemberId, partitions: Partitions) -> tuple[TopicPartition, ...]:
        """Return a member's assignment under topic names; mostly the same set as the last time."""
        topics = self.world.topics
        known = self._held.get(member_id)
        if known is not None and known[0] is partitions and known[1] is topics:
            return known[2]
        named = self._named(partitions)
        self._held[member_id] = partitions, topics, named
        return named

    def _read(self, group: StreamsGroup, tasks: streams.Tasks) -> tuple[TopicPartition, ...]:
        """Return the partitions that active tasks read."""
        return named(partitions_read(group, tasks.active, self.world.topics), self.world.topics)

    def _named(self, partitions: Partitions) -> tuple[TopicPartition, ...]:
        if not partitions:
            return ()
        known = self.world.topics.by_id
        by_name = [(known[i].name if i in known else i, numbers) for i, numbers in partitions.items()]
        return tuple(chain.from_iterable(starmap(topic_partitions, sorted(by_name))))


def _brought(response: Any) -> str:
    """Return the content of a response to operators: the state and members of each group, the error of each
    part."""
    if (groups := getattr(response, "groups", None)) is not None:
        return ", ".join(
            f"{each.group_id or '(no name)'} {each.group_state} {len(getattr(each, 'members', ()))}"
            for each in groups
        )
    if (members := getattr(response, "members", None)) is not None:
        return ", ".join(each.error_code.name for each in members)
    errors = getattr(response, "errors", {})
    return ", ".join(f"{each.topic}-{each.partition} {code.name}" for each, code in errors.items())


def error_name(response: Any) -> str:
    """Return the error of a response, the first one of a response with one for each partition; or ""."""
    errors = getattr(response, "errors", None)
    codes = [getattr(response, "error_code", NONE)] if errors is None else errors.values()
    return next((code.name for code in codes if code is not NONE), "")


def _asked(request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse, client: str) -> str:
    """Return the kind of a heartbeat, and its bytes. Those of a mere keepalive follow from the names."""
    return f"{_asks(request)} {message_sizes(request, reply, client)}"


def _asks(request: ConsumerGroupHeartbeatRequest | streams.StreamsGroupHeartbeatRequest) -> str:
    """Return the kind of a heartbeat: join, full, keepalive or leave; ack if it only says what the member
    owns."""
    if request.member_epoch == JOIN_EPOCH:
        return "join"
    if request.member_epoch < JOIN_EPOCH:
        return "leave"
    if isinstance(request, streams.StreamsGroupHeartbeatRequest):
        says_nothing = request.active_tasks is None
    else:
        says_nothing = request.topic_partitions is None
    if says_nothing:
        return _KEEPALIVE
    return "full" if request.rebalance_timeout_ms != -1 else "ack"


def cause_of(event: StepEvent) -> str:
    """Return the cause of a raise of a group's epoch."""
    if isinstance(event, ConsumerGroupHeartbeatRequest | streams.StreamsGroupHeartbeatRequest):
        return _asks(event)
    if isinstance(event, RecordsObserved):
        return event.cause
    return _CAUSES.get(type(event)) or type(event).__name__


_CAUSES: dict[type, str] = {
    DeadlineReached: "timeout",
    HeartbeatRequest: "keepalive",
    JoinGroupRequest: "join",
    LeaveGroupBatchRequest: "leave",
    LeaveGroupRequest: "leave",
    RebalanceRequested: "asked",
    SessionEnded: "timeout",
    SyncGroupRequest: "full",
    TopicsChanged: "topics",
    RegularExpressionsResolved: "expressions",
}
