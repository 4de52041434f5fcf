"""Bugs that clients had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.commits import CommitKind
from fencepost.member.base.machine import MemberMachine
from fencepost.member.base.positions import Positions
from fencepost.member.consumer.heartbeats import Heartbeats, SentFields
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.reconciliation import Assignment, Callback, Pass, PassResult, Reconciler
from fencepost.simulation.mutants.coordinators import CHURN, LOSSES
from fencepost.simulation.mutants.mutant import Mutant, Original, Patch, instead_of


def _keepalive_after_failure(original: Original, self: Heartbeats, now_ms: int, *, wait: bool = True) -> None:
    """After a failure the next heartbeat says only what changed."""
    sent = self._sent
    self._sent = SentFields()
    original(self, now_ms, wait=wait)
    self._sent = sent


_put_aside: Final[dict[Reconciler, tuple[Any, int]]] = {}
"""By reconciler: what a late commit holds and until when. Members themselves have no place for it."""


def _late_commit(_: Original) -> Original:
    """The commit before a release is put aside, and the release goes on without it."""
    _put_aside.clear()

    def commit(self: Reconciler, current: Pass, offsets: Any, deadline_ms: int) -> PassResult:
        _put_aside[self] = offsets, deadline_ms
        return self._revoke(current)

    return commit


def _commit_after_release(
    original: Original, self: Any, callback: Callback, error: BaseException | None, now_ms: int
) -> None:
    """What was put aside is committed once the callback has ended."""
    original(self, callback, error, now_ms)
    if self.reconciler in _put_aside and callback.kind is CallbackKind.REVOKED:
        self.commits.make(CommitKind.AUTO, *_put_aside.pop(self.reconciler), self.reconciler.topic_ids())


def _commits_what_was_fetched(original: Original, self: Positions, *, delivered: bool) -> Any:
    """Everything handed over is committed, processed or not."""
    return original(self, delivered=True)


def _commits_in_the_background(original: Original, self: Any, consumed: Any, now_ms: int) -> Any:
    """Commits do not wait for the application to come back for more."""
    actions = original(self, consumed, now_ms)
    self._auto_commit(now_ms)
    return (*actions, *self._step(now_ms))


def _never_suspends(_: Original, self: Positions, partitions: Iterable[TopicPartition]) -> None:
    """Partitions on their way out can still be fetched."""
    return


def _epoch_of_the_step_before(original: Original) -> Original:
    """A commit that goes out in the step in which the epoch moves has the epoch of before."""
    left_behind: dict[ConsumerMember, int] = {}

    def send_others(self: ConsumerMember, now_ms: int) -> None:
        newest = self.member_epoch
        self.member_epoch = left_behind.get(self, newest)
        try:
            original(self, now_ms)
        finally:
            self.member_epoch = left_behind[self] = newest

    return send_others


def _stale_list(original: Original, self: Assignment, revoked: Any) -> None:
    """The list of owned partitions is the one of the acknowledgement before."""
    self.unconfirmed = {}


def _never_frees(original: Original, self: Any, now_ms: int) -> None:
    """A join that is refused is refused for good, whoever has the instance id."""
    self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, "")


COMMITS_SOON: Final = ("slow-callbacks-and-poll-timeouts", *CHURN)

MEMBER_MUTANTS: Final = (
    Mutant(
        "keepalive-after-lost-reply",
        "franz-go eca3a457; KIP-848, ConsumerGroupHeartbeat",
        "After a lost reply the member goes on with keepalives: what the reply carried never comes.",
        ("request-fields",),
        LOSSES,
        (instead_of(Heartbeats, "failed", _keepalive_after_failure),),
    ),
    Mutant(
        "revoked-partition-committed-late",
        "KIP-848, Rebalance Listener",
        "What was processed of a revoked partition is committed after it was let go.",
        ("commit-before-release", "commit-while-owned"),
        COMMITS_SOON,
        (
            Patch(Reconciler, "_commit", _late_commit),
            instead_of(ConsumerMember, "_callback_ended", _commit_after_release),
        ),
    ),
    Mutant(
        "commit-ahead-of-processing",
        "KAFKA-18641",
        "Records that the application has not processed yet are committed.",
        ("commit-within-processed",),
        COMMITS_SOON,
        (
            instead_of(Positions, "uncommitted", _commits_what_was_fetched),
            instead_of(MemberMachine, "poll_end", _commits_in_the_background),
        ),
    ),
    Mutant(
        "records-after-revocation",
        "KAFKA-20332",
        "Records of a partition come while it is being revoked.",
        ("records-while-owned",),
        COMMITS_SOON,
        (instead_of(Positions, "suspend", _never_suspends),),
    ),
    Mutant(
        "commit-with-old-epoch",
        "franz-go 6f5471d4",
        "A commit carries an epoch that the member has left behind.",
        ("epoch-as-answered",),
        CHURN,
        (Patch(ConsumerMember, "_send_others", _epoch_of_the_step_before),),
    ),
    Mutant(
        "released-and-still-listed",
        "franz-go d5ceeb73",
        "Heartbeats go on listing partitions that were let go.",
        ("owned-honest", "callbacks-balanced"),
        CHURN,
        (instead_of(Assignment, "end_revoked", _stale_list),),
    ),
    Mutant(
        "static-member-locks-itself-out",
        "Kafka 4.3: UNRELEASED_INSTANCE_ID after a join whose response was lost",
        "A static member gives up when its own earlier join keeps its instance id.",
        ("frees-own-instance",),
        ("static-rolling-deploy",),
        (instead_of(ConsumerMember, "_release_instance", _never_frees),),
    ),
)
