"""The knowledge of a member: its id, its epochs, and its last two assignments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_assignment
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.simulation.lab.conform.schedule import Epoch

Held = TypeVar("Held")


class Epochs:
    """The epochs or generations that a member received, one after the other; before the first, `nothing`."""

    def __init__(self, nothing: int = 0) -> None:
        self._told: list[int] = []
        self._nothing = nothing

    def hear(self, epoch: int) -> bool:
        """Take the epoch of a response. Return false if it is no longer a member: it starts over."""
        if epoch <= 0:
            self._told = []
            return False
        if not self._told or self._told[-1] != epoch:
            self._told.append(epoch)
        return True

    def of(self, wanted: Epoch | int) -> int:
        """Return the epoch that a request carries. A member that has received none is new."""
        if isinstance(wanted, int):
            return wanted
        match wanted:
            case Epoch.PREVIOUS:
                return self._nth(2)
            case Epoch.OLDER:
                return self._nth(3)
            case Epoch.AHEAD:
                return self._nth(1) + 1
            case _:
                return self._nth(1)

    def _nth(self, back: int) -> int:
        return self._told[-back] if len(self._told) >= back else self._nothing


class Knowledge(Generic[Held]):
    """The knowledge of one member. `nothing` is an assignment without anything."""

    def __init__(self, member_id: MemberId, nothing: Held) -> None:
        self.member_id = member_id
        self.epochs = Epochs()
        self.assigned = nothing
        self.before = nothing
        self._nothing = nothing

    def hear(
        self,
        answer: ConsumerGroupHeartbeatResponse | StreamsGroupHeartbeatResponse,
        assignment: Held | None,
    ) -> None:
        """Take a response, with this assignment if it has one."""
        if answer.error_code is not ErrorCode.NONE:
            return
        if answer.member_id:
            self.member_id = answer.member_id
        if not self.epochs.hear(answer.member_epoch):
            self.assigned = self.before = self._nothing
        elif assignment is not None and assignment != self.assigned:
            self.before, self.assigned = self.assigned, assignment


class ClassicKnowledge:
    """The knowledge of one member of the classic protocol. Topics have their names in the cluster."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self.member_id: MemberId = ""
        self.generations = Epochs(classic.NO_GENERATION)
        self.protocol: str | None = None
        """The protocol that the group chose."""
        self.assigned: Mapping[str, tuple[int, ...]] = {}
        self.before: Mapping[str, tuple[int, ...]] = {}

    def hear(
        self, answer: classic.JoinGroupResponse | classic.SyncGroupResponse | classic.HeartbeatResponse
    ) -> None:
        """Take a response. A member that is unknown starts over, as clients do."""
        match answer:
            case _ if answer.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._start_over()
            case classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = answer.member_id
            case classic.JoinGroupResponse(error_code=ErrorCode.NONE):
                self.member_id = answer.member_id
                self.generations.hear(answer.generation)
                self.protocol = answer.protocol_name
            case classic.SyncGroupResponse(error_code=ErrorCode.NONE):
                self._assign(answer.assignment)

    def _assign(self, data: bytes) -> None:
        try:
            partitions = read_assignment(data).partitions
        except MalformedConsumerProtocol:
            partitions = {}
        if partitions != self.assigned:
            self.before, self.assigned = self.assigned, partitions
