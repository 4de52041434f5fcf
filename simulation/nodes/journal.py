"""The replicated log of the group: it outlives every broker, and can be made to fail."""

from __future__ import annotations

from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.runtime import AppendFailed

_COMPACT_FROM = 2_000
"""Records; a coordinator that loads reads all that there are, and so do the checkers, twice."""


class ReplicatedJournal(MemoryJournal):
    """A journal that is compacted now and then, as Kafka's cleaner does; `failing` refuses appends."""

    __slots__ = ("_compact_at", "failing")

    def __init__(self) -> None:
        super().__init__()
        self.failing = 0
        """How many faults make appends fail now."""
        self._compact_at = _COMPACT_FROM

    def append(self, records: tuple[Record, ...]) -> None:
        """Keep one batch.

        :raises AppendFailed: while it fails, as a partition without enough replicas does.
        """
        if self.failing:
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not enough replicas are in sync")
        super().append(records)

    def clean(self) -> None:
        """Compact, once it is worth it."""
        if len(self) > self._compact_at:
            self.compact()
            self._compact_at = max(_COMPACT_FROM, 2 * len(self))
