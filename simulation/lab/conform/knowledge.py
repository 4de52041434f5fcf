"""What a member was told: its id, its epochs, and what it was assigned last and before that."""

from __future__ import annotations

from typing import Generic, TypeVar

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.simulation.lab.conform.schedule import Epoch

Held = TypeVar("Held")


class Epochs:
    """The epochs that a member was told, one after the other."""

    def __init__(self) -> None:
        self._told: list[int] = []

    def hear(self, epoch: int) -> bool:
        """An answer has that epoch. False if the member is none any more: it starts over."""
        if epoch <= 0:
            self._told = []
            return False
        if not self._told or self._told[-1] != epoch:
            self._told.append(epoch)
        return True

    def of(self, wanted: Epoch | int) -> int:
        """The epoch that a request carries. A member that was told nothing is new: 0."""
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
        return self._told[-back] if len(self._told) >= back else 0


class Knowledge(Generic[Held]):
    """What one member was told. `nothing` is an assignment without anything."""

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
        """An answer arrived, with this assignment if it has one."""
        if answer.error_code is not ErrorCode.NONE:
            return
        if answer.member_id:
            self.member_id = answer.member_id
        if not self.epochs.hear(answer.member_epoch):
            self.assigned = self.before = self._nothing
        elif assignment is not None and assignment != self.assigned:
            self.before, self.assigned = self.assigned, assignment
