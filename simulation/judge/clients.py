"""Clients of which only the requests are known: they send the epochs that they received, and own their
assignments.

A client carries assignments out one after the other, while it goes on sending heartbeats. So it may list
partitions that a newer response has taken away already. A thread of Kafka Streams lists nothing in the
heartbeat after it joined, which the coordinator treats as a release. Then it lists the assignment of its
join. Two owners at once are the concern of another invariant, one-claimant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol import consumer, streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.judge.base import Finding, Judge, shown
from fencepost.simulation.judge.consumer_model import held, minus, union
from fencepost.simulation.kernel.observers import StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator

_Heartbeat: TypeAlias = consumer.ConsumerGroupHeartbeatRequest | streams.StreamsGroupHeartbeatRequest
_Answer: TypeAlias = consumer.ConsumerGroupHeartbeatResponse | streams.StreamsGroupHeartbeatResponse
_Member: TypeAlias = ConsumerGroupMember | StreamsGroupMember

_REMEMBERED = 8
"""The number of responses that a client may be behind: some may have been lost, and it takes time to follow
one."""


class ObservedClient:
    """The assignments and epochs that one member received, and those that it sent."""

    __slots__ = ("believed", "epochs", "member", "said", "told")

    def __init__(self, member: _Member, epoch: int) -> None:
        self.epochs: deque[int] = deque(maxlen=_REMEMBERED)
        self.believed = max(epoch - 1, 0)
        """Up to here the client may have received any epoch, before the first check or too long ago to be
        remembered."""
        self.told: deque[Partitions] = deque(maxlen=_REMEMBERED)
        """The assignments that it received, and has not yet listed as owned."""
        self.said = NO_PARTITIONS
        """The partitions that it listed last."""
        self.member = member
        """The coordinator's state of it before the current request."""

    def says(self, request: _Heartbeat, topics: Container[TopicId]) -> Iterator[Finding]:
        """Judge a heartbeat that was accepted; `topics` are the existing ones: others do not count."""
        who = f"{self.member.member_id} of {request.group_id}"
        if request.member_epoch == JOIN_EPOCH:
            self.told.clear()
        elif not self._was_told(request.member_epoch):
            yield (
                "epoch-as-answered",
                f"{who} sent epoch {request.member_epoch}, it received {list(self.epochs)}",
            )
        listed = _listed(request)
        if listed is None:
            return
        foreign = reduce(minus, (_held(self.member), self.said, *self.told), listed)
        if not isinstance(request, streams.StreamsGroupHeartbeatRequest):
            foreign = {topic_id: numbers for topic_id, numbers in foreign.items() if topic_id in topics}
        if foreign:
            yield (
                "owned-honest",
                f"{who} at epoch {request.member_epoch} listed {shown(foreign)} without owning it",
            )
        self.said = listed
        if listed and listed in self.told:  # it is done with that, and with its assignments before
            while self.told.popleft() != listed:
                pass

    def commits(self, request: OffsetCommitRequest) -> Iterator[Finding]:
        """Judge a commit that was accepted. Its epoch may be an old one, which was kept with the records."""
        if not self._was_told(request.member_epoch):
            yield (
                "epoch-as-answered",
                f"{request.member_id} of {request.group_id} commits at epoch {request.member_epoch}, it"
                f" received {list(self.epochs)}",
            )

    def _was_told(self, epoch: int) -> bool:
        return epoch <= self.believed or epoch in self.epochs

    def hears(self, answer: _Answer) -> None:
        """Take in a response, which may be lost on its way."""
        if answer.member_epoch not in self.epochs:
            if len(self.epochs) == _REMEMBERED:
                self.believed = max(self.believed, self.epochs[0])
            self.epochs.append(answer.member_epoch)
        if isinstance(answer, streams.StreamsGroupHeartbeatResponse):
            if answer.tasks is not None:
                self.told.append(union(NO_PARTITIONS, _by_role(answer.tasks)))
        elif answer.assignment is not None:
            self.told.append(union(NO_PARTITIONS, answer.assignment))


def _listed(request: _Heartbeat) -> Partitions | None:
    """Return the partitions that a member lists as owned; None if it lists none."""
    if isinstance(request, streams.StreamsGroupHeartbeatRequest):
        return None if request.owned is None else union(NO_PARTITIONS, _by_role(request.owned))
    return None if request.topic_partitions is None else union(NO_PARTITIONS, request.topic_partitions)


def _held(member: _Member) -> Partitions:
    """Return the partitions that the coordinator gave a member, and that it has not released."""
    if isinstance(member, StreamsGroupMember):
        return union(_by_role(member.assigned), _by_role(member.pending_revocation))
    return held(member)


def _by_role(tasks: streams.Tasks) -> Partitions:
    """Return tasks as partitions: the same task in another role is another partition."""
    roles = {"active": tasks.active, "standby": tasks.standby, "warm-up": tasks.warmup}
    return {f"{role} {one}:": numbers for role, ids in roles.items() for one, numbers in ids.items()}


def _member(live: GroupCoordinator, group_id: str, member_id: MemberId) -> _Member | None:
    found = live.kinds.find(group_id)
    if found is None or not found[0].confirms_by_heartbeat:
        return None
    member: _Member | None = found[1].members.get(member_id)
    return member


class Clients(Judge):
    """Checks all clients of one coordinator."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, MemberId], ObservedClient] = {}

    def on_steady_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Judge a heartbeat that changed nothing: it may list partitions all the same."""
        self.on_coordinator_step(host, event, outcome, now_us)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Look at heartbeats that were accepted, and at commits."""
        if isinstance(event, OffsetCommitRequest) and isinstance(outcome.reply, OffsetCommitResponse):
            self.report_all(self._commit(host, event, outcome.reply))
        elif isinstance(event, _Heartbeat) and isinstance(outcome.reply, _Answer):
            self._heartbeat(host, event, outcome.reply)

    def _heartbeat(self, host: str, request: _Heartbeat, reply: _Answer) -> None:
        live = self.world.coordinators[host].coordinator
        if reply.error_code is not ErrorCode.NONE or live is None:
            return
        member_id = reply.member_id or request.member_id
        key = request.group_id, member_id
        client = self._clients.get(key)
        if client is not None:
            self.report_all(client.says(request, live.image.by_id))
        member = _member(live, request.group_id, member_id)
        if member is None:
            self._clients.pop(key, None)
            return
        if client is None:  # a new one, or one from before the first check
            client = self._clients[key] = ObservedClient(member, reply.member_epoch)
        client.member = member
        client.hears(reply)

    def _commit(
        self, host: str, request: OffsetCommitRequest, reply: OffsetCommitResponse
    ) -> Iterator[Finding]:
        """Check that the offset is in the log, and the epoch one that the member received."""
        client = self._clients.get((request.group_id, request.member_id))
        if client is not None and ErrorCode.NONE in reply.errors.values() and self._is_told(host, request):
            yield from client.commits(request)
        ends = self.world.log_ends
        for partition, value in request.offsets.items():
            end = ends.get(partition)
            accepted = reply.errors.get(partition) is ErrorCode.NONE
            if accepted and end is not None and value.offset > end:
                yield (
                    "commit-within-processed",
                    f"{request.member_id or 'a client that is not a member'} of {request.group_id} committed"
                    f" {partition.topic}-{partition.partition} at {value.offset}, the log ends at {end}",
                )

    def _is_told(self, host: str, request: OffsetCommitRequest) -> bool:
        """Return true if the member receives its epoch by heartbeats, and not by the classic protocol."""
        live = self.world.coordinators[host].coordinator
        member = None if live is None else _member(live, request.group_id, request.member_id)
        return isinstance(member, StreamsGroupMember) or (member is not None and member.classic is None)
