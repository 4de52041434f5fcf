"""The member of a stream thread as the thread sees it, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fencepost.coordinator.protocol.ids import TopicPartition


class PartitionRecords(NamedTuple):
    """Records of one partition, in their order."""

    partition: TopicPartition
    records: Sequence[Any]
    next_offset: int
    """The offset at which to go on once all of them are processed."""


class CommitRefused(Exception):
    """Offsets were not committed: the member lost its partitions, or the coordinator did not respond.

    The next owner of the partition receives these records again.
    """


class ThreadEvents(Protocol):
    """Callbacks of a member to its thread. A rebalance's callbacks run while the thread polls or closes."""

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are given up when this ends; processed offsets may still be committed."""

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These are added (or none): the rebalance is over."""

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are lost; nothing can be committed for them."""

    def on_connection(self) -> None:
        """The result of the member's `is_connected` may have changed; also while records are processed."""

    def on_shutdown_requested(self) -> None:
        """The group is to be shut down, at the request of some client of the application (KIP-671)."""


class StreamThreadMember(Protocol):
    """One member of the group, used by one thread. Its exceptions go to the exception handler."""

    async def start(self) -> None:
        """Connect, and begin to join."""

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return the records that came; none after `poll_ms` without any, or if there is no broker."""

    @property
    def joined(self) -> bool:
        """True if the member owns its target, even an empty one, and the group is ready."""

    @property
    def round_s(self) -> float:
        """The longest time that the current round of joining may take, in seconds; 0 without a round."""

    def is_connected(self) -> bool:
        """Return true if the last request to the coordinator was answered, or none was sent yet (KIP-457)."""

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an owned partition, or None if the group has no offset."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets.

        :raises CommitRefused: if they were not committed. Other exceptions go to the handler.
        """

    def ask_for_shutdown(self) -> None:
        """Request the shutdown of the application, with every request from now on and on leaving."""

    def wake(self) -> None:
        """End a wait for a broker. A poll under way ends in its own time, as in Kafka Streams."""

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group at once, and disconnect, in at most that many seconds. Never raises.

        `told_to_end` is true if the group ends all members. The member does not leave if that would keep the
        others from learning of it.
        """


class GlobalReader(Protocol):
    """Reads all partitions of the global thread's topics from their beginning. It is in no group."""

    async def start(self) -> None:
        """Connect, and find the current ends of the topics."""

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return the records that came; none after a short while without any."""

    @property
    def caught_up(self) -> bool:
        """True if everything was read that existed when it started."""

    async def close(self) -> None:
        """Disconnect. Never raises."""
