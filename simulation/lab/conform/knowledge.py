"""What a member was told of its epoch, whatever protocol it speaks."""

from __future__ import annotations

from fencepost.simulation.lab.conform.schedule import Epoch


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
