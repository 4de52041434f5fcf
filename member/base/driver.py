"""One group member on asyncio, as an application uses it, whatever protocol it speaks."""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import (
    CommitFinished,
    LeaveFinished,
    RaiseToApplication,
    WakeApplication,
)
from fencepost.member.base.errors import CommitFailed, NoOffsetForPartition
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.listener import MemberObserver, RebalanceListener
from fencepost.member.base.machine import MemberMachine
from fencepost.member.base.shell import MachineShell
from fencepost.member.base.transport import Clock, Transport


class MemberDriver(MachineShell, abc.ABC):
    """One member of one group, over a transport and a clock, on the running event loop.

    Call all methods from the loop's thread. Errors that only the application can deal with are raised by
    `poll_begin`: MemberError once, FatalMemberError from then on, CallbackFailed when a listener raised.
    """

    __slots__ = ("_changes", "_commits", "_errors", "_fatal", "_leaving", "on_change")

    def __init__(
        self,
        member: MemberMachine,
        transport: Transport,
        clock: Clock,
        *,
        listener: RebalanceListener | None,
        observer: MemberObserver | None,
    ) -> None:
        super().__init__(member, transport, clock, listener=listener, observer=observer)
        self._commits: dict[int, asyncio.Future[None]] = {}
        self._leaving: list[asyncio.Future[None]] = []
        self._errors: list[Exception] = []
        self._fatal: Exception | None = None
        self._changes = 0
        self.on_change: Callable[[], None] | None = None
        """Called whenever `changes` grows, for applications that wait for more than one thing."""

    # -- state -------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def state(self) -> enum.StrEnum:
        """The member's state."""

    @property
    def member_id(self) -> MemberId:
        """The member id; empty until the coordinator has given one."""
        return self._member.member_id

    @property
    def member_epoch(self) -> int:
        """The newest epoch or generation received; 0 while joining and out of the group."""
        return self._member.member_epoch

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that the member owns, sorted: from the start of on_assigned to the end of on_revoked
        or on_lost."""
        return self._member.owned_partitions()

    @property
    def changes(self) -> int:
        """Grows when an application in poll should look again: `fetchable` may have changed, or there is an
        error to raise."""
        return self._changes

    def fetchable(self) -> Mapping[TopicPartition, int]:
        """The partitions that may be fetched now, each with the offset of its next record."""
        return self._member.positions.fetchable()

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record of an owned partition; None while it is looked up, or if not
        owned."""
        return self._member.positions.position(partition)

    def undecided(self, partition: TopicPartition) -> NoOffsetForPartition | None:
        """Return the reason why the application has to seek in this partition, if there is one."""
        kind = self._member.positions.undecided.get(partition)
        return None if kind is None else kind.of(partition)

    @property
    def fatal(self) -> Exception | None:
        """The error that stopped the member for good; None while it goes on."""
        return self._fatal

    @property
    def unheard(self) -> tuple[Exception, ...]:
        """The errors since the last poll that the next poll is to raise."""
        return tuple(self._errors)

    def delivered(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Everything that was handed over, committed or not."""
        return self._member.positions.delivered()

    # -- calls of the application ------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Subscribe to these topics, to those that an RE2 pattern matches, or both; nothing: unsubscribe.

        It replaces the previous subscription. The member joins with the next `poll_begin`.

        :raises ValueError: after `close`.
        """
        self._run(self._member.subscribe(topics, pattern, self._clock.now_ms()))

    def unsubscribe(self) -> asyncio.Future[None]:
        """Give everything up and leave; the future is done when that is over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.append(future)
        self._run(self._member.unsubscribe(self._clock.now_ms()))
        return future

    async def close(self, option: CloseOption = CloseOption.DEFAULT, *, timeout_ms: int = 30_000) -> None:
        """Commit what was handed over, give everything up, leave, and stop within the time.

        A callback that still runs when the time is over is cancelled.
        """
        if self._stopped:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.append(future)
        self._run(self._member.close(self._clock.now_ms(), option, timeout_ms))
        try:
            await future
        finally:
            self._stop()

    def abandon(self) -> None:
        """Stop at once and notify no one, as a process that is killed; calls that wait are cancelled."""
        if not self._stopped:
            self._stop()

    def poll_begin(self) -> None:
        """Begin a poll: the application waits for records; those of the polls before count as processed.

        Commits that are due are sent, reconciliations may take partitions away, and a member that was removed
        for not polling joins again.

        :raises MemberError, CallbackFailed: the errors since the last poll; this poll has not begun.
        """
        now_ms = self._clock.now_ms()
        self._raise_pending(now_ms)
        self._run(self._member.poll_begin(now_ms))

    def poll_end(self, consumed: Mapping[TopicPartition, int]) -> None:
        """End a poll: the application got all records before these offsets; the poll timer starts.

        Hand over only records of partitions that are `fetchable` at this moment.
        """
        self._run(self._member.poll_end(consumed, self._clock.now_ms()))

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or everything that was handed over; retry within default_api_timeout_ms.

        Without offsets, only those not committed yet are sent, and no request if all are; `delivered` is all
        of them.

        :raises CommitFailed: with the coordinator's error, STALE_MEMBER_EPOCH and UNKNOWN_MEMBER_ID included.
        """
        commit_id, actions = self._member.commit(offsets, self._clock.now_ms())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits[commit_id] = future
        self._run(actions)
        await future

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on reading from this offset. In on_assigned it sets the start.

        :raises ValueError: if the partition is not owned, or is about to be given up.
        """
        self._run(self._member.seek(partition, offset, self._clock.now_ms()))

    def offset_out_of_range(self, partition: TopicPartition) -> None:
        """Reset a position by `auto_offset_reset`: a fetch found that the log has no record there."""
        self._run(self._member.offset_out_of_range(partition, self._clock.now_ms()))

    def _raise_pending(self, now_ms: int) -> None:
        if self._errors:
            self._run(self._member.poll_failed(now_ms))
            raise self._errors.pop(0)
        if self._fatal is not None:
            raise self._fatal

    def _stop(self) -> None:
        """Stop the machine; calls that wait for it are cancelled."""
        super()._stop()
        for future in (*self._commits.values(), *self._leaving):
            future.cancel()
        self._commits.clear()
        self._leaving.clear()

    # -- callbacks of the machine ------------------------------------------------------------------------

    def _raise_to_application(self, action: RaiseToApplication) -> None:
        self._log(logging.INFO, "member error", error=str(action.error), fatal=action.fatal)
        if action.fatal:
            self._fatal = action.error
        elif not any(str(error) == str(action.error) for error in self._errors):
            self._errors.append(action.error)

    def _commit_finished(self, action: CommitFinished) -> None:
        future = self._commits.pop(action.commit_id)
        if future.done():
            return
        if action.error is ErrorCode.NONE:
            future.set_result(None)
        else:
            future.set_exception(CommitFailed(action.error, "offsets were not committed"))

    def _leave_finished(self, _: LeaveFinished) -> None:
        waiting = self._leaving[:]
        self._leaving.clear()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _wake_application(self, _: WakeApplication) -> None:
        self._changes += 1
        if self.on_change is not None:
            self.on_change()

    def _moved(self, action: Any) -> None:
        """Report an arrow that the member took."""
        if self._observer is not None:
            self._observer.on_state(action.event, action.source, action.target)
        self._log(logging.DEBUG, "member moved", by=action.event, source=action.source, target=action.target)

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **MachineShell._PERFORM,
        RaiseToApplication: _raise_to_application,
        CommitFinished: _commit_finished,
        LeaveFinished: _leave_finished,
        WakeApplication: _wake_application,
    }
