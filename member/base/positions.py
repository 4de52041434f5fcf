"""The read position and the committed offset of each owned partition.

A partition's position is the offset of the next record to hand to the application. It is known once the
committed offset was fetched, or, if nothing is committed, the log's end. Records that were handed over count
as processed from the application's next poll on (KAFKA-18641).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH, MemberId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetFetchRequest, OffsetFetchResponse
from fencepost.member.base import actions
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import NoOffsetForPartition, PositionOutOfRange


class PositionState(enum.Enum):
    """The states of a partition's position."""

    UNKNOWN = "unknown"
    RESETTING = "resetting"
    """Nothing is committed; the position is looked up in the log."""
    UNDECIDED = "undecided"
    """Nothing is committed, and the policy leaves the position to the application."""
    KNOWN = "known"


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
UNKNOWN, RESETTING, UNDECIDED, KNOWN = PositionState


class Position(msgspec.Struct, eq=False, gc=False):
    """One owned partition."""

    state: PositionState = UNKNOWN
    delivered: int = -1
    """Offset of the next record to hand over."""
    processed: int = -1
    """Records before this offset were handed over by polls that ended before the last one began."""
    committed: int = -1

    def start(self, offset: int) -> None:
        """Reading starts here."""
        self.state = KNOWN
        self.delivered = self.processed = offset


class Positions:
    """Positions of the partitions whose on_assigned callback ended."""

    __slots__ = (
        "_announced",
        "_asked",
        "_config",
        "_fetchable",
        "_fresh",
        "_frozen",
        "_group_id",
        "_member_id",
        "_partitions",
        "_reset_asked",
        "_suspended",
        "_tokens",
        "backoff",
        "fetch_in_flight",
        "reset_in_flight",
        "retry_at_ms",
        "sought",
        "undecided",
    )

    def __init__(
        self,
        group_id: str,
        member_id: MemberId | None,
        config: ConsumerConfig,
        backoff: Backoff,
        tokens: Iterator[int],
    ) -> None:
        self._group_id = group_id
        self._member_id = member_id
        self._config = config
        self._tokens = tokens
        self._partitions: dict[TopicPartition, Position] = {}
        self._suspended: frozenset[TopicPartition] = frozenset()
        self._asked: dict[TopicPartition, Position] = {}
        self._reset_asked: dict[TopicPartition, Position] = {}
        self._frozen = False
        self._fetchable: dict[TopicPartition, int] | None = {}
        """The value that `fetchable` returns, until something changes. Never mutated: callers may still use
        it."""
        self._announced: dict[TopicPartition, int | None] = {}
        """Partitions whose on_assigned callback runs, with the start offset that it set."""
        self._fresh: dict[TopicPartition, Position] = {}
        """Partitions of which records were handed over since the last `process`."""
        self.backoff = backoff
        self.sought: dict[TopicPartition, Position] = {}
        """Partitions whose position has to be looked up."""
        self.fetch_in_flight: int | None = None
        self.reset_in_flight: int | None = None
        self.retry_at_ms = 0
        self.undecided: dict[TopicPartition, type[NoOffsetForPartition]] = {}
        """Partitions whose position is the application's to decide, with the error to raise until it seeks.
        """

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the application is being notified that it owns exactly these; until `add` it may set the
        start."""
        self._announced = dict.fromkeys(partitions)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the application owns these. The position is looked up next if the callback did not set
        it."""
        for partition in partitions:
            position = self._partitions[partition] = Position()
            start = self._announced.pop(partition, None)
            if start is not None:
                position.start(start)
                self._fetchable = None
            elif not self._frozen:
                self.sought[partition] = position
        if not self._announced:
            self._announced = {}  # an empty one keeps its room

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Remove partitions that the application does not own any more."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self.sought.pop(partition, None)
        if not self._suspended.issuperset(partitions):
            self._fetchable = None
        self._suspended = self._suspended.difference(partitions)
        self._forget_decided()

    def _positions_found(self) -> None:
        self._fetchable = None
        self.sought = {
            partition: position
            for partition, position in self.sought.items()
            if position.state is UNKNOWN or position.state is RESETTING
        }
        self._forget_decided()

    def _forget_decided(self) -> None:
        if self.undecided:
            partitions = {} if self._frozen else self._partitions
            self.undecided = {
                partition: kind
                for partition, kind in self.undecided.items()
                if partition in partitions and partitions[partition].state is UNDECIDED
            }

    def freeze(self) -> None:
        """Freeze all partitions, which are about to be given up: nothing may be fetched any more."""
        self._frozen = True
        self._announced = {}
        self.sought = {}
        self._positions_found()

    def clear(self) -> None:
        """Remove all partitions."""
        self._partitions.clear()
        self._fresh.clear()
        self.sought = {}
        self._suspended = frozenset()
        self._frozen = False
        self.fetch_in_flight = self.reset_in_flight = None
        self.retry_at_ms = 0
        self.backoff.reset()
        self._positions_found()

    def suspend(self, partitions: Iterable[TopicPartition]) -> bool:
        """Mark exactly these as about to be released: not fetchable, and nothing new starts on them
        (KAFKA-19781). Return true if these were not marked before."""
        suspended = frozenset(partitions)
        if suspended == self._suspended:
            return False
        self._suspended = suspended
        self._fetchable = None
        return True

    def fetchable(self) -> Mapping[TopicPartition, int]:
        """Return the position of each partition that may be fetched now; the same object until something
        changes."""
        if self._fetchable is None:
            partitions = {} if self._frozen else self._partitions
            self._fetchable = {
                partition: position.delivered
                for partition, position in partitions.items()
                if position.state is KNOWN
            }
            for partition in self._suspended:
                self._fetchable.pop(partition, None)
        return self._fetchable

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record to hand over, even of a partition about to be released; None
        if not known."""
        position = self._partitions.get(partition)
        if position is None:
            return self._announced.get(partition)
        return position.delivered if position.state is KNOWN else None

    def deliver(self, consumed: Mapping[TopicPartition, int]) -> None:
        """Note that records before these offsets were handed over. Partitions that are not fetchable are
        unchanged."""
        if not consumed:
            return
        fetchable = self.fetchable()
        moved: dict[TopicPartition, int] = {}
        for partition, offset in consumed.items():
            if partition in fetchable:
                position = self._partitions[partition]
                position.delivered = moved[partition] = offset
                self._fresh[partition] = position
        if moved:
            self._fetchable = {**fetchable, **moved}

    def process(self) -> None:
        """Count everything that the application was handed as processed: it polls again."""
        if self._fresh:
            for position in self._fresh.values():
                position.processed = position.delivered
            self._fresh.clear()

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Go on from this offset. Return true if the partition is owned and may be moved."""
        if partition in self._announced:
            self._announced[partition] = offset
            return True
        position = self._partitions.get(partition)
        if position is None or self._frozen or partition in self._suspended:
            return False
        position.start(offset)
        self._positions_found()
        return True

    def reset(self, partition: TopicPartition) -> bool:
        """Reset a position that is outside of the log by `auto_offset_reset`, if that is its policy."""
        if partition not in self.fetchable():
            return True
        resets = self._config.resets_offsets
        position = self._partitions[partition]
        if resets:
            position.state = RESETTING
            self.sought[partition] = position
        else:
            position.state = UNDECIDED
            self.undecided[partition] = PositionOutOfRange
        self._positions_found()
        return resets

    def uncommitted(self, *, delivered: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the member's own commit needs: processed positions, or all delivered
        positions."""
        # Only a few of thousands of positions have moved since the last commit.
        if delivered:
            return {
                partition: OffsetAndMetadata(offset=position.delivered)
                for partition, position in self._partitions.items()
                if position.delivered != position.committed and position.state is KNOWN
            }
        return {
            partition: OffsetAndMetadata(offset=position.processed)
            for partition, position in self._partitions.items()
            if position.processed != position.committed and position.state is KNOWN
        }

    def delivered(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return everything that was handed over, committed or not."""
        return {
            partition: OffsetAndMetadata(offset=position.delivered)
            for partition, position in self._partitions.items()
            if position.state is KNOWN
        }

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that the coordinator took these."""
        for partition, offset in offsets.items():
            if (position := self._partitions.get(partition)) is not None:
                position.committed = offset.offset

    def _sought_in(self, state: PositionState) -> dict[TopicPartition, Position]:
        if not self.sought:
            return {}
        return {
            partition: position
            for partition, position in self.sought.items()
            if position.state is state and partition not in self._suspended
        }

    def wants_fetch(self) -> bool:
        """Return true if a committed offset has to be fetched."""
        return self.fetch_in_flight is None and bool(self._sought_in(UNKNOWN))

    def fetch_request(self, epoch: int, now_ms: int) -> actions.FetchOffsets | None:
        """Return the OffsetFetch for all partitions that need one, if it is due."""
        if self.fetch_in_flight is not None or now_ms < self.retry_at_ms:
            return None
        self._asked = self._sought_in(UNKNOWN)
        if not self._asked:
            return None
        request = OffsetFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch if epoch > 0 else NO_EPOCH,
            partitions=tuple(self._asked),
            require_stable=True,
        )
        action = actions.FetchOffsets(next(self._tokens), request)
        self.fetch_in_flight = action.token
        return action

    def fetched(self, token: int, response: OffsetFetchResponse, now_ms: int) -> list[TopicPartition] | None:
        """Take committed offsets over; return the partitions that are left to the application. None: not
        ours."""
        if token != self.fetch_in_flight:
            return None
        self.fetch_in_flight = None
        if response.error_code is not ErrorCode.NONE or response.unstable:
            # All requested offsets are needed, and an open transaction may still move some of them (KIP-447).
            self.retry_at_ms = now_ms + self.backoff.next_ms()
            return []
        self.backoff.reset()
        undecided: list[TopicPartition] = []
        for partition, position in self._asked.items():
            if self._partitions.get(partition) is not position or position.state is not UNKNOWN:
                continue
            found = response.offsets.get(partition)
            if found is not None and found.offset >= 0:
                position.start(found.offset)
                position.committed = found.offset
            elif self._config.resets_offsets:
                position.state = RESETTING
            else:
                position.state = UNDECIDED
                self.undecided[partition] = NoOffsetForPartition
                undecided.append(partition)
        self._asked = {}
        self._positions_found()
        return undecided

    def reset_request(self, now_ms: int) -> actions.FindLogOffsets | actions.FindOffsetsByDuration | None:
        """Return the lookup in the logs for all partitions that need it, if it is due."""
        if self.reset_in_flight is not None or now_ms < self.retry_at_ms:
            return None
        self._reset_asked = self._sought_in(RESETTING)
        if not self._reset_asked:
            return None
        token = self.reset_in_flight = next(self._tokens)
        partitions = tuple(self._reset_asked)
        duration_ms = self._config.offset_reset_duration_ms
        if duration_ms is not None:
            return actions.FindOffsetsByDuration(token, partitions, duration_ms)
        return actions.FindLogOffsets(token, partitions, self._config.auto_offset_reset == "earliest")

    def log_offsets_found(self, token: int, offsets: Mapping[TopicPartition, int], now_ms: int) -> bool:
        """Start at these; partitions that are missing are looked up again. Return true if the response is
        ours."""
        if token != self.reset_in_flight:
            return False
        self.reset_in_flight = None
        missing = False
        for partition, position in self._reset_asked.items():
            if self._partitions.get(partition) is not position or position.state is not RESETTING:
                continue
            if partition in offsets:
                position.start(offsets[partition])
            else:
                missing = True
        if missing:
            self.retry_at_ms = now_ms + self.backoff.next_ms()
        else:
            self.backoff.reset()
        self._reset_asked = {}
        self._positions_found()
        return True

    def failed(self, token: int, now_ms: int) -> bool:
        """Retry after the back-off a lookup that got no response. Return true if it was ours."""
        if token == self.fetch_in_flight:
            self.fetch_in_flight = None
        elif token == self.reset_in_flight:
            self.reset_in_flight = None
        else:
            return False
        self.retry_at_ms = now_ms + self.backoff.next_ms()
        return True

    def fetch_retry_ms(self) -> int | None:
        """Return the time at which to ask the coordinator again."""
        return self.retry_at_ms if self.wants_fetch() else None

    def reset_retry_ms(self) -> int | None:
        """Return the time at which to ask the logs again."""
        waits = self.reset_in_flight is None and bool(self._sought_in(RESETTING))
        return self.retry_at_ms if waits else None
