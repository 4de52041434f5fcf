"""Stretches of time in which no consumer reads a partition, and in which two hold it.

Both protocols are measured alike, from the consumers' point of view. A consumer reads from the end of its
`assigned` or `activated` callback until it begins to give up the partition. It holds the partition until it
has given it up. A lost partition, and the end of the process, end both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.observers import SacObserver


class Shifts:
    """The consumers at work on each partition. Times are in microseconds; a gap begins when the first
    consumer ends."""

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self.overlaps: list[int] = []
        self._at_work: dict[Hashable, dict[str, None]] = {}
        self._since: dict[Hashable, int] = {}
        """Time since which a partition has had no consumer, or at least two."""

    def begin(self, partition: Hashable, who: str, now_us: int) -> None:
        """Note that a consumer begins."""
        at_work = self._at_work.setdefault(partition, {})
        if who in at_work:
            return
        at_work[who] = None
        if len(at_work) == 1 and partition in self._since:
            self.gaps.append(now_us - self._since.pop(partition))
        elif len(at_work) == 2:
            self._since[partition] = now_us

    def end(self, partition: Hashable, who: str, now_us: int) -> None:
        """Note that a consumer ends; nothing happens if it was not at work."""
        at_work = self._at_work.get(partition, {})
        if who not in at_work:
            return
        del at_work[who]
        if not at_work:
            self._since[partition] = now_us
        elif len(at_work) == 1:
            self.overlaps.append(now_us - self._since.pop(partition))

    def end_all(self, who: str, now_us: int) -> None:
        """End a consumer, and all whose names begin with its name and a slash."""
        for partition, at_work in self._at_work.items():
            for each in [name for name in at_work if name == who or name.startswith(f"{who}/")]:
                self.end(partition, each, now_us)

    def close(self, now_us: int) -> None:
        """Count what is still open until now."""
        for partition, since in self._since.items():
            stretches = self.overlaps if self._at_work.get(partition) else self.gaps
            stretches.append(now_us - since)
        self._since.clear()


class _Shifts:
    """The readers of partitions, for the gaps, and their holders, for the overlaps."""

    def __init__(self) -> None:
        self._readers, self._holders = Shifts(), Shifts()

    @property
    def gaps(self) -> list[int]:
        """Lengths of the times in which partitions had no reader, in microseconds."""
        return self._readers.gaps

    @property
    def overlaps(self) -> list[int]:
        """Lengths of the times in which partitions had two holders, in microseconds."""
        return self._holders.overlaps

    def _begin(self, partition: Hashable, who: str, now_us: int) -> None:
        self._readers.begin(partition, who, now_us)
        self._holders.begin(partition, who, now_us)

    def _stop_reading(self, partition: Hashable, who: str, now_us: int) -> None:
        self._readers.end(partition, who, now_us)

    def _let_go(self, partition: Hashable, who: str, now_us: int) -> None:
        self._readers.end(partition, who, now_us)
        self._holders.end(partition, who, now_us)

    def _process(self, host: str, what: str, now_us: int) -> None:
        if what in ("crash", "stopped"):
            self._readers.end_all(host, now_us)
            self._holders.end_all(host, now_us)

    def on_end(self, now_us: int) -> None:
        """Close all stretches: the run is over."""
        self._readers.close(now_us)
        self._holders.close(now_us)


class MemberShifts(_Shifts, Observer):
    """Watches the members of a consumer group."""

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Note partitions that are taken and given up with callbacks."""
        for partition in partitions:
            if (kind, phase) == ("assigned", "end"):
                self._begin(partition, host, now_us)
            elif (kind, phase) == ("revoked", "begin"):
                self._stop_reading(partition, host, now_us)
            elif (kind, phase) in (("revoked", "end"), ("lost", "begin")):
                self._let_go(partition, host, now_us)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """End the part of a process that has ended."""
        self._process(host, what, now_us)


class ConsumerShifts(_Shifts, SacObserver):
    """Watches single active consumers. One whose connection has ended goes on until it notices."""

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """Note streams that are taken and given up with states."""
        stream, who = subscriber.subscription.stream, subscriber.name
        if target is SacMemberState.ACTIVE:
            self._begin(stream, who, now_us)
        elif target is SacMemberState.STEPPING_DOWN:
            self._stop_reading(stream, who, now_us)
        else:
            self._let_go(stream, who, now_us)

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """End the part of a process that has ended."""
        self._process(client, what, now_us)
