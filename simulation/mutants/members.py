"""Bugs that clients had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

import fencepost.member.consumer.machine as consumer_machine
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetFetchResponse
from fencepost.member.base.actions import CallbackKind, Outbox
from fencepost.member.base.application import Polls
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind
from fencepost.member.base.errors import ErrorRule
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.lookups import CoordinatorLookup
from fencepost.member.base.machine import MemberMachine
from fencepost.member.base.positions import Positions
from fencepost.member.consumer.assignment import Subscription
from fencepost.member.consumer.heartbeats import Heartbeats, SentFields
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.reconciliation import Assignment, Callback, Pass, PassResult, Reconciler
from fencepost.member.consumer.states import ACTIVE, ConsumerMemberState
from fencepost.simulation.mutants.coordinators import CHURN, LOSSES
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of


def _keepalive_after_failure(original: Original, self: Heartbeats, now_ms: int, *, wait: bool = True) -> None:
    """After a failure, the next heartbeat has only what changed."""
    sent = self._sent
    self._sent = SentFields()
    original(self, now_ms, wait=wait)
    self._sent = sent


_put_aside: Final[dict[Reconciler, tuple[Any, int]]] = {}
"""By reconciler, the offsets of a late commit and its time. Members themselves have no place for it."""


def _late_commit(_: Original, self: Reconciler, current: Pass, offsets: Any, deadline_ms: int) -> PassResult:
    """The commit before a release is put aside, and the release continues without it."""
    _put_aside[self] = offsets, deadline_ms
    return self._revoke(current)


def _commit_after_release(
    original: Original, self: Any, callback: Callback, error: BaseException | None, now_ms: int
) -> None:
    """The commit that was put aside is sent after the callback has ended."""
    original(self, callback, error, now_ms)
    if self.reconciler in _put_aside and callback.kind is CallbackKind.REVOKED:
        self.commits.make(CommitKind.AUTO, *_put_aside.pop(self.reconciler), self.reconciler.topic_ids())


def _commit_unheard(original: Original, self: Reconciler, current: Pass, *arguments: Any) -> PassResult:
    """The release does not wait for the response to the commit before it."""
    original(self, current, *arguments)
    return self._revoke(current)


def _commits_what_was_fetched(original: Original, self: Positions, *, delivered: bool) -> Any:
    """Everything handed over is committed, processed or not."""
    return original(self, delivered=True)


def _commits_in_the_background(original: Original, self: Any, consumed: Any, now_ms: int) -> Any:
    """Commits do not wait for the application to come back for more."""
    actions = original(self, consumed, now_ms)
    self._auto_commit(now_ms)
    return (*actions, *self._step(now_ms))


def _never_suspends(_: Original, self: Positions, partitions: Iterable[TopicPartition]) -> None:
    """Partitions that are being released can still be fetched."""
    return


_left_behind: Final[dict[ConsumerMember, int]] = {}
"""The epoch of each member before its last step."""


def _epoch_of_the_step_before(original: Original, self: ConsumerMember, now_ms: int) -> None:
    """A commit that is sent in the step in which the epoch changes has the old epoch."""
    newest = self.member_epoch
    self.member_epoch = _left_behind.get(self, newest)
    try:
        original(self, now_ms)
    finally:
        self.member_epoch = _left_behind[self] = newest


def _stale_list(original: Original, self: Assignment, revoked: Any) -> None:
    """The list of owned partitions is that of the previous acknowledgement."""
    self.unconfirmed = {}


def _never_frees(original: Original, self: Any, now_ms: int) -> None:
    """A refused join is final, whichever member has the instance id."""
    self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, "")


def _empty_commit_blocks(original: Original, self: MemberMachine, now_ms: int) -> None:
    """A commit without offsets counts as under way forever."""
    if self.positions.uncommitted(delivered=False):
        original(self, now_ms)
    else:
        self.commits.next_auto_ms = _NEVER_MS


def _no_leave_beside_a_heartbeat(original: Original, self: Heartbeats, option: CloseOption) -> Any:
    """While a heartbeat is in flight, no leave is sent, and it is not sent later either."""
    return None if self.in_flight is not None else original(self, option)


def _at_once(_: Original, self: Backoff) -> int:
    """Every retry follows at once."""
    return 1


def _stays_fenced(original: Original, self: ConsumerMember, now_ms: int) -> bool:
    """A member that has released everything does not join again."""
    waits = self.callbacks.running is not None or self.callbacks.release is not None
    return False if self.state is ConsumerMemberState.FENCED and not waits else original(self, now_ms)


def _waits_twice_as_long(original: Original, self: Polls, now_ms: int) -> None:
    """The poll timer has twice its time."""
    original(self, now_ms)
    assert self.deadline_ms is not None
    self.deadline_ms += self.deadline_ms - now_ms


def _forgets_what_is_committed(
    original: Original, self: Positions, token: int, response: OffsetFetchResponse, now_ms: int
) -> Any:
    """Committed offsets are fetched, but not used."""
    return original(self, token, msgspec.structs.replace(response, offsets={}), now_ms)


def _leaves_one_out(original: Original, self: Positions) -> Any:
    """One of several partitions is never fetched."""
    found = original(self)
    return dict(list(found.items())[1:]) if len(found) > 1 else found


def _keeps_it_to_itself(
    original: Original, self: ConsumerMember, topics: Iterable[str], pattern: str | None, now_ms: int
) -> Any:
    """A subscription that changes while the member is in its group is not sent."""
    if self.state not in ACTIVE:
        return original(self, topics, pattern, now_ms)
    self.subscription = Subscription.of(topics, pattern)
    return ()


def _loading_is_the_end(original: Original, code: ErrorCode) -> ErrorRule:
    """A loading coordinator counts as one that refuses."""
    return ErrorRule.FATAL if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else original(code)


def _waits_for_good(original: Original, self: Polls) -> None:
    """The next poll does not resume what a callback that raised has stopped."""
    waits = self.waits_for_next
    original(self)
    self.waits_for_next = waits


def _stays_with_its_broker(_: Original, self: CoordinatorLookup, code: ErrorCode, now_ms: int) -> None:
    """The member learns only from heartbeats that the coordinator has changed."""
    if not code:
        self.answered()


def _never_fails(
    original: Original, self: MemberMachine, commit: Commit, error: ErrorCode, now_ms: int
) -> None:
    """A failed commit ends, and its application is not notified."""
    if not (error and commit.kind is CommitKind.MANUAL):
        original(self, commit, error, now_ms)


def _swallows(original: Original, self: Outbox, error: Exception, *, fatal: bool = False) -> None:
    """Only fatal errors reach the application."""
    if fatal:
        original(self, error, fatal=fatal)


_NEVER_MS: Final = 2**62

COMMITS_SOON: Final = ("slow-callbacks-and-poll-timeouts", *CHURN)


def _silence_is_no_loss(
    original: Original, self: ConsumerMember, token: int, failure: Any, now_ms: int
) -> Any:
    """The coordinator counts as lost only if a commit or a leave fails."""
    if token != self.heartbeats.in_flight:
        return original(self, token, failure, now_ms)
    self.instance.may_be_held()
    if self.heartbeats.answered(token):
        self.heartbeats.failed(now_ms)
    return self._step(now_ms)


MEMBER_MUTANTS: Final = (
    Mutant(
        "keepalive-after-lost-reply",
        "franz-go eca3a457; KIP-848, ConsumerGroupHeartbeat",
        "After a lost response the member sends only keepalives, so it never gets what was in it.",
        ("request-fields",),
        LOSSES,
        (instead_of(Heartbeats, "failed", _keepalive_after_failure),),
    ),
    Mutant(
        "revoked-partition-committed-late",
        "KIP-848, Rebalance Listener",
        "A member commits a revoked partition's records after it released the partition.",
        ("commit-before-release", "commit-while-owned"),
        COMMITS_SOON,
        (
            instead_of(Reconciler, "_commit", _late_commit),
            instead_of(ConsumerMember, "_callback_ended", _commit_after_release),
        ),
        memory=(_put_aside,),
    ),
    Mutant(
        "commit-ahead-of-processing",
        "KAFKA-18641",
        "A member commits records that the application has not processed yet.",
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
        "The application gets records of a partition while the partition is being revoked.",
        ("records-while-owned",),
        COMMITS_SOON,
        (instead_of(Positions, "suspend", _never_suspends),),
    ),
    Mutant(
        "commit-with-old-epoch",
        "franz-go 6f5471d4",
        "A commit carries an epoch older than the member's.",
        ("epoch-as-answered",),
        CHURN,
        (instead_of(ConsumerMember, "_send_others", _epoch_of_the_step_before),),
        memory=(_left_behind,),
    ),
    Mutant(
        "released-and-still-listed",
        "franz-go d5ceeb73",
        "Heartbeats keep listing released partitions.",
        ("owned-honest", "callbacks-balanced"),
        CHURN,
        (instead_of(Assignment, "end_revoked", _stale_list),),
    ),
    Mutant(
        "static-member-locks-itself-out",
        "Kafka 4.3: UNRELEASED_INSTANCE_ID after a join whose response was lost",
        "A static member gives up when its own earlier join still holds its instance id.",
        ("frees-own-instance",),
        ("static-rolling-deploy",),
        (instead_of(ConsumerMember, "_release_instance", _never_frees),),
    ),
    Mutant(
        "empty-commit-blocks",
        "KAFKA-16203",
        "After an auto-commit with nothing to commit, no other auto-commit follows.",
        ("commits-go-on",),
        ("steady", *CHURN),
        (instead_of(MemberMachine, "_auto_commit", _empty_commit_blocks),),
        ("application.auto_commit_interval=1s",),
    ),
    Mutant(
        "no-leave-beside-heartbeat",
        "KAFKA-16639",
        "A member that closes while a heartbeat is in flight never sends its leave.",
        ("leaves-told",),
        ("rolling-deploy", "scale-up-and-down"),
        (instead_of(Heartbeats, "leave_request", _no_leave_beside_a_heartbeat),),
        ("network.latency=1s",),
    ),
    Mutant(
        "retries-at-once",
        "KAFKA-4777",
        "Failed requests are sent again without a wait.",
        ("retries-back-off",),
        ("coordinator-crash-loop", "coordinator-failover"),
        (instead_of(Backoff, "next_ms", _at_once),),
    ),
    Mutant(
        "fenced-for-good",
        "KAFKA-16178",
        "A fenced member drops its partitions and never joins again.",
        ("fenced-returns",),
        ("frozen-members", "partitioned-members"),
        (instead_of(ConsumerMember, "_progress", _stays_fenced),),
    ),
    Mutant(
        "polls-missed-late",
        UNREPORTED,
        "A member whose application does not poll stays in the group for twice the poll interval.",
        ("poll-timeouts",),
        ("slow-callbacks-and-poll-timeouts",),
        (instead_of(Polls, "end", _waits_twice_as_long),),
    ),
    Mutant(
        "committed-offset-forgotten",
        UNREPORTED,
        "A new owner starts at the beginning of the log instead of the committed offset.",
        ("starts-at-committed",),
        CHURN,
        (instead_of(Positions, "fetched", _forgets_what_is_committed),),
    ),
    Mutant(
        "partition-left-out",
        UNREPORTED,
        "A member that owns several partitions never fetches one of them.",
        ("partitions-read",),
        ("steady", *CHURN),
        (instead_of(Positions, "fetchable", _leaves_one_out),),
    ),
    Mutant(
        "subscription-kept-secret",
        UNREPORTED,
        "A member in a group does not send its changed subscription.",
        ("subscription-told",),
        ("regex-subscriptions", "swarm"),
        (instead_of(ConsumerMember, "subscribe", _keeps_it_to_itself),),
    ),
    Mutant(
        "loading-is-fatal",
        UNREPORTED,
        "A member gives up when the coordinator is still loading.",
        ("gives-up-rightly",),
        ("coordinator-crash-loop", "coordinator-failover", "broker-failures"),
        (instead_of(consumer_machine, "heartbeat_rule", _loading_is_the_end),),
    ),
    Mutant(
        "stopped-by-callback",
        UNREPORTED,
        "After a callback that raised, the member stops moving to its target.",
        ("reconciles-on",),
        ("slow-callbacks-and-poll-timeouts", "swarm"),
        (instead_of(Polls, "begin", _waits_for_good),),
    ),
    Mutant(
        "commits-to-the-wrong-broker",
        UNREPORTED,
        "A commit is sent again and again to a broker that is not the coordinator.",
        ("searches-anew",),
        ("coordinator-failover", "manual-commits"),
        (instead_of(CoordinatorLookup, "note", _stays_with_its_broker),),
    ),
    Mutant(
        "failed-commit-never-ends",
        "KAFKA-10489",
        "An application whose commit fails waits forever.",
        ("commits-end",),
        ("frozen-members", "partitioned-members", "coordinator-crash-loop"),
        (instead_of(MemberMachine, "_commit_ended", _never_fails),),
        ("application.commit=sync",),
    ),
    Mutant(
        "errors-swallowed",
        UNREPORTED,
        "The application does not get the exception that its callback raised.",
        ("errors-raised",),
        ("slow-callbacks-and-poll-timeouts",),
        (instead_of(Outbox, "raise_to_application", _swallows),),
    ),
    Mutant(
        "silent-coordinator-kept",
        "KAFKA-17293",
        "A member whose heartbeats get no response sends them to the same broker again and again.",
        ("searches-anew",),
        ("lossy-network", "manual-commits"),
        (instead_of(ConsumerMember, "request_failed", _silence_is_no_loss),),
    ),
    Mutant(
        "released-before-the-response",
        UNREPORTED,
        "A member commits, and releases its partitions before the response to the commit.",
        ("commit-before-release",),
        CHURN,
        (instead_of(Reconciler, "_commit", _commit_unheard),),
    ),
)
