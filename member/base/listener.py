"""The callbacks of an application about its partitions, and those of an observer about the member."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.base.actions import CallbackKind

if TYPE_CHECKING:
    from fencepost.member.classic.states import ClassicMemberEvent, ClassicMemberState
    from fencepost.member.consumer.states import ConsumerMemberEvent, ConsumerMemberState

Phase = Literal["begin", "end", "raised"]
"""A callback that raised has not ended: it is called again, or on_revoked or on_lost is. Callbacks that give
everything up, and all of a classic member, have ended even so."""

PROGRAM_ENDS: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""The exceptions that end the whole program; all else that a callback raises is its own failure."""

AnyEvent: TypeAlias = "ConsumerMemberEvent | ClassicMemberEvent"
AnyState: TypeAlias = "ConsumerMemberState | ClassicMemberState"


class RebalanceListener(Protocol):
    """The application's callbacks, plain or async. They never overlap; heartbeats go on while they run.

    An exception is raised to the application from its next poll. After one from `on_partitions_assigned` or
    `on_partitions_revoked`, the same reconciliation is retried at the poll after that.
    """

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are owned from now on; fetching starts when this ends. Empty after a pure revocation."""

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are given up when this ends. Processed offsets may still be committed here."""

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> Awaitable[None] | None:
        """These are lost, and may belong to another member already: nothing can be committed any more."""


class NoListener:
    """Do nothing."""

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Do nothing."""

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Do nothing."""

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Do nothing."""


class MemberObserver(Protocol):
    """Sees all steps of a member, as they happen. Must not call back into the driver."""

    def on_state(self, event: AnyEvent, source: AnyState, target: AnyState) -> None:
        """The machine took an arrow of its table."""

    def on_request(self, request: Request) -> None:
        """A request to the coordinator is sent; fetches of offsets are not reported."""

    def on_response(self, request: Request, response: Response | Exception) -> None:
        """A request, other than a commit, was answered or failed; called before the machine takes it in."""

    def on_callback(self, kind: CallbackKind, phase: Phase, partitions: tuple[TopicPartition, ...]) -> None:
        """A rebalance callback begins, has ended, or has raised."""

    def on_commit(self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception) -> None:
        """A commit was answered or failed."""
