"""The replicated log of the group: it outlives every broker, and can be made to fail."""

from __future__ import annotations

from fencepost.coordinator.host import AppendFailed
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.records import Record

_COMPACT_BEYOND = 2_000
"""Records; a coordinator that loads reads all that there are, and so do the checkers, twice."""


class ReplicatedJournal(MemoryJournal):
    """A journal that is compacted now and then, as Kafka's cleaner does; `failing` refuses appends."""

    __slots__ = ("failing",)

    def __init__(self) -> None:
        super().__init__(compact_beyond=_COMPACT_BEYOND)
        self.failing = 0
        """How many faults make appends fail now."""

    def append(self, records: tuple[Record, ...]) -> None:
        """Keep one batch.

        :raises AppendFailed: while it fails, as a partition without enough replicas does.
        """
        if self.failing:
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not enough replicas are in sync")
        super().append(records)
