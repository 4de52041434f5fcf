"""Clients of whom only the requests are known: they say what they were told, and own what they were given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.simulation.checkers.base import Checker, Finding, shown
from fencepost.simulation.checkers.holders import merged
from fencepost.simulation.world.observers import StepEvent

_REMEMBERED = 8
"""How many epochs back a client may be: its answers may have been lost."""


class Client:
    """What one member was told."""

    __slots__ = ("epochs", "held")

    def __init__(self) -> None:
        self.epochs: deque[int] = deque(maxlen=_REMEMBERED)
        self.held: Partitions = NO_PARTITIONS
        """What the coordinator believed that it holds, before the request that is looked at."""

    def says(
        self, who: str, request: ConsumerGroupHeartbeatRequest, topics: frozenset[str]
    ) -> Iterator[Finding]:
        """A heartbeat that was accepted; partitions of deleted topics are nobody's business."""
        if request.member_epoch > 0 and request.member_epoch not in self.epochs:
            yield (
                "epoch-as-answered",
                f"{who} sent epoch {request.member_epoch}, it was told {list(self.epochs)}",
            )
        foreign = {
            topic_id: extra
            for topic_id, numbers in (request.topic_partitions or NO_PARTITIONS).items()
            if topic_id in topics
            and (extra := tuple(n for n in numbers if n not in self.held.get(topic_id, ())))
        }
        if foreign:
            yield "owned-honest", f"{who} says at epoch {request.member_epoch} that it owns {shown(foreign)}"


class Clients(Checker):
    """Checks all clients of one coordinator."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, MemberId], Client] = {}

    def on_steady_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """A heartbeat that changed nothing says something all the same."""
        self.on_coordinator_step(host, event, outcome, now_us)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Looks at heartbeats that were accepted, and at commits."""
        if isinstance(event, OffsetCommitRequest) and isinstance(outcome.reply, OffsetCommitResponse):
            self.report_all(self._commit(event, outcome.reply))
        elif isinstance(event, ConsumerGroupHeartbeatRequest) and isinstance(
            outcome.reply, ConsumerGroupHeartbeatResponse
        ):
            self._heartbeat(host, event, outcome.reply)

    def _heartbeat(
        self, host: str, request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse
    ) -> None:
        live = self.world.coordinators[host].coordinator
        if reply.error_code is not ErrorCode.NONE or live is None:
            return
        member_id = reply.member_id or request.member_id
        key = request.group_id, member_id
        client = self._clients.get(key)
        if client is None:  # a new one, or one of before anybody looked
            client = self._clients[key] = Client()
        else:
            who = f"{member_id} of {request.group_id}"
            self.report_all(client.says(who, request, frozenset(live.image.by_id)))
        group = live.groups.get(request.group_id)
        member = None if group is None else group.members.get(member_id)
        if member is None:
            del self._clients[key]
            return
        if reply.member_epoch not in client.epochs:
            client.epochs.append(reply.member_epoch)
        client.held = merged(member.assigned, member.pending_revocation)

    def _commit(self, request: OffsetCommitRequest, reply: OffsetCommitResponse) -> Iterator[Finding]:
        """Nobody can have processed what is not in the log."""
        ends = self.world.log_ends
        for partition, value in request.offsets.items():
            end = ends.get(partition)
            accepted = reply.errors.get(partition) is ErrorCode.NONE
            if accepted and end is not None and value.offset > end:
                yield (
                    "commit-within-processed",
                    f"{request.member_id} of {request.group_id} committed {partition.topic}-"
                    f"{partition.partition} at {value.offset}, the log ends at {end}",
                )
