"""Actions that a member's machine asks its shell to carry out, whatever the protocol of the member.

A step's actions are carried out in order. `token` names a request: its response or failure is fed back once,
with the same token.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetFetchRequest

Actions: TypeAlias = tuple[Any, ...]
"""The actions that the shell has to carry out, in order: those of this module, and those of the protocol."""


class CallbackKind(enum.StrEnum):
    """The kinds of rebalance callback of the application."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
ASSIGNED, REVOKED, LOST = CallbackKind


class SendFindCoordinator(msgspec.Struct, frozen=True, gc=False):
    """Look the group's coordinator up."""

    token: int


class ResolveTopicNames(msgspec.Struct, frozen=True, gc=False):
    """Look the names of these topics up in fresh metadata."""

    token: int
    topic_ids: tuple[TopicId, ...]


class SendCommit(msgspec.Struct, frozen=True, gc=False):
    """Send this OffsetCommit to the coordinator."""

    token: int
    request: OffsetCommitRequest


class FetchOffsets(msgspec.Struct, frozen=True, gc=False):
    """Send this OffsetFetch to the coordinator."""

    token: int
    request: OffsetFetchRequest


class FindLogOffsets(msgspec.Struct, frozen=True, gc=False):
    """Look up the first (earliest) or next (latest) offset of each partition's log."""

    token: int
    partitions: tuple[TopicPartition, ...]
    earliest: bool


class FindOffsetsByDuration(msgspec.Struct, frozen=True, gc=False):
    """Request the offset of the first record in each log that is not older than this, or the end of the log.

    Ages are by the wall clock of the sender, which reads its time anew for each request.
    """

    token: int
    partitions: tuple[TopicPartition, ...]
    duration_ms: int


class RunCallback(msgspec.Struct, frozen=True, gc=False):
    """Run the application's callback; feed `callback_finished` when it ends. Never two at a time."""

    token: int
    kind: CallbackKind
    partitions: tuple[TopicPartition, ...]
    releases: bool
    """Everything owned is given up: when this ends, in whatever way, the member owns nothing."""


class RaiseToApplication(msgspec.Struct, frozen=True):
    """The application's next poll raises this; a fatal one is raised by every poll from now on."""

    error: Exception
    fatal: bool = False


class CommitFinished(msgspec.Struct, frozen=True, gc=False):
    """The commit that the application requested under this id ended."""

    commit_id: int
    error: ErrorCode
    """NONE if everything was committed."""


class LeaveFinished(msgspec.Struct, frozen=True, gc=False):
    """Reports that `unsubscribe` or `close` is over, with its callbacks, commit and leave (or gave up)."""


class WakeApplication(msgspec.Struct, frozen=True, gc=False):
    """Wakes an application in poll: the fetchable partitions have changed, or there is an error to raise."""


class Outbox:
    """The actions of the step under way, in their order."""

    __slots__ = ("actions", "wakes")

    def __init__(self) -> None:
        self.actions: list[Any] = []
        self.wakes = False
        """The step ends with waking the application."""

    def put(self, action: object | None) -> None:
        """Add an action; None adds nothing."""
        if action is not None:
            self.actions.append(action)

    def raise_to_application(self, error: Exception, *, fatal: bool = False) -> None:
        """Raise this from the application's next poll."""
        self.actions.append(RaiseToApplication(error, fatal))
        self.wakes = True

    def take(self) -> Actions:
        """Return the actions of the step, and start the next step with none."""
        if self.wakes:
            self.wakes = False
            self.actions.append(WakeApplication())
        actions = tuple(self.actions)
        self.actions.clear()
        return actions
