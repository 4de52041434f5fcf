"""The leaders of partitions, and the epochs that count them (KIP-101, KIP-320)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from typing import Final, NamedTuple

from fencepost.coordinator.protocol.ids import NO_EPOCH

NO_LEADER: Final = -1
"""The leader of a partition whose in-sync replicas are all stopped."""
EPOCHS_OF_A_RESTART: Final = 2
"""A restart of all brokers takes each partition's leader away, and elects it again."""


def running(node_ids: tuple[int, ...], stopped: Collection[int]) -> tuple[int, ...]:
    """Return the brokers that are not stopped."""
    return tuple(each for each in node_ids if each not in stopped) if stopped else node_ids


class Leadership(NamedTuple):
    """The leader of one partition, as Kafka's controller would choose it.

    The leader changes only if its broker stops, if a partition without one gets it back, or in an election.
    Each of these changes raises the epoch.
    """

    replicas: tuple[int, ...]
    """The brokers of its replicas, the preferred leader first."""
    in_sync: tuple[int, ...]
    """Those with all records, in the same order. The last one that stopped stays: only it can lead again."""
    leader_id: int
    epoch: int

    @classmethod
    def first(cls, replicas: tuple[int, ...], stopped: Collection[int], epoch: int) -> Leadership:
        """Return the state of a partition that nothing has happened to."""
        in_sync = running(replicas, stopped)
        return cls(replicas, in_sync or replicas, in_sync[0] if in_sync else NO_LEADER, epoch)

    def without(self, node_id: int) -> Leadership:
        """Return the state after a broker has stopped."""
        remaining = tuple(each for each in self.in_sync if each != node_id)
        after = self._replace(in_sync=remaining or self.in_sync)
        return after._led_by(remaining[0] if remaining else NO_LEADER) if self.leader_id == node_id else after

    def with_started(self, node_id: int, stopped: Collection[int]) -> Leadership:
        """Return the state after a broker has started. Its replica has all records at once, if there is a
        leader."""
        after = self
        if self.leader_id == NO_LEADER:
            if node_id not in self.in_sync:
                return self
            after = self._led_by(node_id)
        in_sync = tuple(each for each in self.replicas if each == node_id or each not in stopped)
        return after._replace(in_sync=in_sync)

    def preferred(self, stopped: Collection[int]) -> Leadership:
        """Return the state after an election of the preferred leader."""
        preferred = self.replicas[0]
        may_lead = self.leader_id != NO_LEADER and preferred in self.in_sync and preferred not in stopped
        return self._led_by(preferred) if may_lead and preferred != self.leader_id else self

    def moved_to(self, node_id: int, *, alone: bool = False) -> Leadership:
        """Return the state in which that broker leads at a higher epoch; `alone` if others lost records."""
        return self._led_by(node_id)._replace(in_sync=(node_id,) if alone else self.in_sync)

    def placed_on(self, replicas: tuple[int, ...], stopped: Collection[int]) -> Leadership:
        """Return the state after a reassignment to these brokers, each of which has all records at once.

        The leader stays if it can. The epoch rises if it can't, or if a replica goes, as in Kafka's
        PartitionChangeBuilder. Without a leader, no broker has the records: it stays so.
        """
        if self.leader_id == NO_LEADER:
            return self._replace(replicas=replicas)
        in_sync = running(replicas, stopped)
        leader_id = self.leader_id if self.leader_id in in_sync else in_sync[0]
        after = self._replace(replicas=replicas, in_sync=in_sync)
        return (
            after
            if leader_id == self.leader_id and {*replicas} >= {*self.replicas}
            else after._led_by(leader_id)
        )

    def restarted(self) -> Leadership:
        """Return the state after all running brokers were killed and started again."""
        if self.leader_id == NO_LEADER:
            return self
        return self._replace(epoch=self.epoch + EPOCHS_OF_A_RESTART)

    def _led_by(self, node_id: int) -> Leadership:
        return self._replace(leader_id=node_id, epoch=self.epoch + 1)


class EpochStarts:
    """The first offset of each leader epoch in a log, like Kafka's LeaderEpochFileCache.

    An epoch without records gives way to the next one.
    """

    __slots__ = ("_epochs", "_offsets")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._offsets: list[int] = []

    @property
    def latest(self) -> int:
        """The newest epoch; NO_EPOCH in a log that was never led."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def begin(self, epoch: int, offset: int) -> None:
        """Let the records from an offset on have this epoch, if it is new."""
        if epoch <= self.latest:
            return
        self.end_at(offset)
        self._epochs.append(epoch)
        self._offsets.append(offset)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at an offset; NO_EPOCH before the first one."""
        index = bisect_right(self._offsets, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """Return the latest epoch up to `epoch`, and the offset after its records; None for an unknown one.

        An epoch before the first one ends where the first one starts.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return None
        if epoch == self.latest:
            return epoch, log_end
        index = bisect_right(self._epochs, epoch)
        return (self._epochs[index - 1] if index else epoch), self._offsets[index]

    def end_at(self, offset: int) -> None:
        """Forget epochs that begin at an offset or after it."""
        while self._offsets and self._offsets[-1] >= offset:
            self._epochs.pop()
            self._offsets.pop()

    def start_at(self, offset: int) -> None:
        """Forget epochs whose records all lie before the log's new start."""
        index = bisect_right(self._offsets, offset) - 1
        if index >= 0:
            del self._epochs[:index], self._offsets[:index]
            self._offsets[0] = offset
