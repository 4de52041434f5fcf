"""The callbacks of the application: its rebalance listener, aiokafka's or ours, and the member's observer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition as KafkaPartition

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.arguments import refused_awaitable
from fencepost.member.base.errors import CallbackFailed, CommitFailed
from fencepost.member.base.listener import AnyEvent, AnyState, MemberObserver, Phase
from fencepost.member.base.log import log

_REQUIRED = ("on_partitions_revoked", "on_partitions_assigned")
_STILL_MEMBER = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS)
"""Refusals of a commit after which the member is still in its group."""


class ApplicationListener:
    """Calls the application's listener with sets of aiokafka's TopicPartition.

    A listener without `on_partitions_lost`, such as aiokafka's own, is notified of lost partitions by
    `on_partitions_revoked`. It can't tell lost partitions from revoked ones. So a CommitFailedError of a
    member that is out of the group is logged there and not raised, as in aiokafka.
    """

    def __init__(self, listener: Any = None) -> None:
        self._listener: Any = None
        self.replace(listener)

    def replace(self, listener: Any) -> None:
        """Call this one from now on; None calls no listener.

        :raises TypeError: if it lacks the methods of a ConsumerRebalanceListener.
        """
        if listener is not None:
            missing = [name for name in _REQUIRED if not callable(getattr(listener, name, None))]
            if missing:
                raise TypeError(
                    "listener should be a ConsumerRebalanceListener or an object like one: "
                    f"{type(listener).__name__} has no {' and no '.join(missing)}"
                )
        self._listener = listener

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are added."""
        return self._call("on_partitions_assigned", partitions)

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are taken away."""
        if self._listener is None or self._knows_lost:
            return self._call("on_partitions_revoked", partitions)
        return self._revoke(partitions, are_lost=False)

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are lost."""
        if self._listener is None or self._knows_lost:
            return self._call("on_partitions_lost", partitions)
        return self._revoke(partitions, are_lost=True)

    @property
    def _knows_lost(self) -> bool:
        return callable(getattr(self._listener, "on_partitions_lost", None))

    def _revoke(self, partitions: tuple[TopicPartition, ...], *, are_lost: bool) -> Awaitable[None] | None:
        """Call on_partitions_revoked of a listener that can't tell lost partitions from revoked ones."""
        with _RefusedCommits(are_lost):
            result = self._call("on_partitions_revoked", partitions)
            return self._finish(result, are_lost=are_lost) if inspect.isawaitable(result) else None
        return None

    @staticmethod
    async def _finish(result: Awaitable[None], *, are_lost: bool) -> None:
        with _RefusedCommits(are_lost):
            await result

    def _call(self, name: str, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        if self._listener is None:
            return None
        result: Awaitable[None] | None = getattr(self._listener, name)(
            {KafkaPartition(*partition) for partition in partitions}
        )
        return result


class _RefusedCommits:
    """Logs a commit that was refused because the member is out of the group, in place of raising it.

    For lost partitions, any other exception is raised under the name of the method that the listener has.
    """

    def __init__(self, are_lost: bool) -> None:
        self._are_lost = are_lost

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CommitFailedError):
            reason = error.__cause__
            is_member = isinstance(reason, CommitFailed) and reason.code in _STILL_MEMBER
            if self._are_lost or not is_member:  # the member retries its callback
                log(logging.WARNING, "commit refused: the partitions are lost", error=str(error))
                return True
        if self._are_lost and isinstance(error, Exception):
            raise CallbackFailed.of("on_partitions_revoked", error) from error
        return False


CallbackSeen = Callable[[CallbackKind, Phase, tuple[TopicPartition, ...]], None]


class MemberWatch:
    """Reports each state of the member and each callback; passes everything on to an observer."""

    def __init__(
        self, on_state: Callable[[AnyState], None], on_callback: CallbackSeen, observer: MemberObserver | None
    ) -> None:
        self._on_state = on_state
        self._on_callback = on_callback
        self._observer = observer
        self.connected = True
        """True if the last request to the coordinator was answered, or none was sent yet."""

    def on_state(self, event: AnyEvent, source: AnyState, target: AnyState) -> None:
        """The machine took an arrow of its table."""
        self._tell("on_state", event, source, target)
        self._on_state(target)

    def on_request(self, request: Request) -> None:
        """A request to the coordinator is sent."""
        self._tell("on_request", request)

    def on_response(self, request: Request, response: Response | Exception) -> None:
        """A request was answered or failed."""
        self.connected = not isinstance(response, Exception)
        self._tell("on_response", request, response)

    def on_callback(self, kind: CallbackKind, phase: Phase, partitions: tuple[TopicPartition, ...]) -> None:
        """A rebalance callback begins, has ended, or has raised."""
        self._on_callback(kind, phase, partitions)
        self._tell("on_callback", kind, phase, partitions)

    def on_commit(self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception) -> None:
        """A commit was answered or failed."""
        self.connected = not isinstance(response, Exception)
        self._tell("on_commit", request, response)

    def _tell(self, what: str, *seen: object) -> None:
        """Pass this on. The member's responses and callbacks must not get lost in an observer that raises."""
        if self._observer is not None:
            try:
                refused = refused_awaitable(what, getattr(self._observer, what)(*seen))
                if refused is not None:
                    raise TypeError(refused)
            except Exception as error:
                log(logging.ERROR, "a member's observer failed", at=what, exc_info=error)
