"""Who consumes what, from when to when: stretches with nobody, and with two at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.sac import ConnectionId
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.sac.clients import Subscriber
from fencepost.simulation.sac.observers import SacObserver
from fencepost.simulation.world.observers import Observer


class Shifts:
    """Of each partition: who is at work. Times in microseconds; a gap begins when the first one ends."""

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self.overlaps: list[int] = []
        self._at_work: dict[Hashable, dict[str, None]] = {}
        self._since: dict[Hashable, int] = {}
        """Since when a partition has nobody, or two at least."""

    def begin(self, partition: Hashable, who: str, now_us: int) -> None:
        """Somebody begins."""
        at_work = self._at_work.setdefault(partition, {})
        if who in at_work:
            return
        at_work[who] = None
        if len(at_work) == 1 and partition in self._since:
            self.gaps.append(now_us - self._since.pop(partition))
        elif len(at_work) == 2:
            self._since[partition] = now_us

    def end(self, partition: Hashable, who: str, now_us: int) -> None:
        """Somebody ends; nothing happens if it was not at work."""
        at_work = self._at_work.get(partition, {})
        if who not in at_work:
            return
        del at_work[who]
        if not at_work:
            self._since[partition] = now_us
        elif len(at_work) == 1:
            self.overlaps.append(now_us - self._since.pop(partition))

    def end_all(self, who: str, now_us: int) -> None:
        """Somebody is gone, or all whose names begin so and a slash."""
        for partition, at_work in self._at_work.items():
            for each in [name for name in at_work if name == who or name.startswith(f"{who}/")]:
                self.end(partition, each, now_us)

    def close(self, now_us: int) -> None:
        """What is open counts until now."""
        for partition, since in self._since.items():
            stretches = self.overlaps if self._at_work.get(partition) else self.gaps
            stretches.append(now_us - since)
        self._since.clear()


class MemberShifts(Observer):
    """Watches members of a consumer group: at work from `assigned` to `revoked`, `lost`, or their end."""

    def __init__(self) -> None:
        self.shifts = Shifts()

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Partitions come and go with callbacks."""
        for partition in partitions:
            if kind == "assigned" and phase == "end":
                self.shifts.begin(partition, host, now_us)
            elif kind != "assigned" and phase == "begin":
                self.shifts.end(partition, host, now_us)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """A process that ended is not at work."""
        if what in ("crash", "stopped"):
            self.shifts.end_all(host, now_us)

    def on_end(self, now_us: int) -> None:
        """The run is over."""
        self.shifts.close(now_us)


_AT_WORK: Mapping[Any, bool] = {SacMemberState.ACTIVE: True, SacMemberState.STEPPING_DOWN: True}


class ConsumerShifts(SacObserver):
    """Watches single active consumers: at work from their answer until they let go, or are gone."""

    def __init__(self) -> None:
        self.shifts = Shifts()

    def on_client_state(
        self,
        subscriber: Subscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """A consumer begins, or ends."""
        if subscriber.connection is None or (source in _AT_WORK) == (target in _AT_WORK):
            return
        change = self.shifts.begin if target in _AT_WORK else self.shifts.end
        change(subscriber.subscription.stream, subscriber.connection.owner, now_us)

    def on_connection(self, connection: ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """One whose connection is gone gets nothing any more."""
        if not opened:
            self.shifts.end_all(owner, now_us)

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """A process that ended is not at work."""
        if what in ("crash", "stopped"):
            self.shifts.end_all(client, now_us)

    def on_end(self, now_us: int) -> None:
        """The run is over."""
        self.shifts.close(now_us)
