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
from fencepost.simulation.mutants.mutant import Mutants, Original, instead_of

_put_aside: Final[dict[Reconciler, tuple[Any, int]]] = {}
"""By reconciler, the offsets of a late commit and its time. Members themselves have no place for it."""


def _commit_after_release(
    original: Original, self: Any, callback: Callback, error: BaseException | None, now_ms: int
) -> None:
    """The commit that was put aside is sent after the callback has ended."""
    original(self, callback, error, now_ms)
    if self.reconciler in _put_aside and callback.kind is CallbackKind.REVOKED:
        self.commits.make(CommitKind.AUTO, *_put_aside.pop(self.reconciler), self.reconciler.topic_ids())


def _commits_in_the_background(original: Original, self: Any, consumed: Any, now_ms: int) -> Any:
    """Commits do not wait for the application to come back for more."""
    actions = original(self, consumed, now_ms)
    self._auto_commit(now_ms)
    return (*actions, *self._step(now_ms))


_left_behind: Final[dict[ConsumerMember, int]] = {}
"""The epoch of each member before its last step."""


_NEVER_MS: Final = 2**62

COMMITS_SOON: Final = ("slow-callbacks-and-poll-timeouts", *CHURN)


MEMBER_MUTANTS: Final = Mutants()


@MEMBER_MUTANTS.bug(
    "keepalive-after-lost-reply",
    "request-fields",
    LOSSES,
    (Heartbeats, "failed"),
    source="franz-go eca3a457; KIP-848, ConsumerGroupHeartbeat",
)
def _keepalive_after_failure(original: Original, self: Heartbeats, now_ms: int, *, wait: bool = True) -> None:
    """After a lost response the member sends only keepalives, so it never gets what was in it."""
    sent = self._sent
    self._sent = SentFields()
    original(self, now_ms, wait=wait)
    self._sent = sent


@MEMBER_MUTANTS.bug(
    "revoked-partition-committed-late",
    "commit-before-release commit-while-owned",
    COMMITS_SOON,
    (Reconciler, "_commit"),
    source="KIP-848, Rebalance Listener",
    also=(instead_of(ConsumerMember, "_callback_ended", _commit_after_release),),
    memory=(_put_aside,),
)
def _late_commit(_: Original, self: Reconciler, current: Pass, offsets: Any, deadline_ms: int) -> PassResult:
    """A member commits a revoked partition's records after it released the partition."""
    _put_aside[self] = offsets, deadline_ms
    return self._revoke(current)


@MEMBER_MUTANTS.bug(
    "commit-ahead-of-processing",
    "commit-within-processed",
    COMMITS_SOON,
    (Positions, "uncommitted"),
    source="KAFKA-18641",
    also=(instead_of(MemberMachine, "poll_end", _commits_in_the_background),),
)
def _commits_what_was_fetched(original: Original, self: Positions, *, delivered: bool) -> Any:
    """A member commits records that the application has not processed yet."""
    return original(self, delivered=True)


@MEMBER_MUTANTS.bug(
    "records-after-revocation",
    "records-while-owned",
    COMMITS_SOON,
    (Positions, "suspend"),
    source="KAFKA-20332",
)
def _never_suspends(_: Original, self: Positions, partitions: Iterable[TopicPartition]) -> None:
    """The application gets records of a partition while the partition is being revoked."""
    return


@MEMBER_MUTANTS.bug(
    "commit-with-old-epoch",
    "epoch-as-answered",
    CHURN,
    (ConsumerMember, "_send_others"),
    source="franz-go 6f5471d4",
    memory=(_left_behind,),
)
def _epoch_of_the_step_before(original: Original, self: ConsumerMember, now_ms: int) -> None:
    """A commit carries an epoch older than the member's."""
    newest = self.member_epoch
    self.member_epoch = _left_behind.get(self, newest)
    try:
        original(self, now_ms)
    finally:
        self.member_epoch = _left_behind[self] = newest


@MEMBER_MUTANTS.bug(
    "released-and-still-listed",
    "owned-honest callbacks-balanced",
    CHURN,
    (Assignment, "end_revoked"),
    source="franz-go d5ceeb73",
)
def _stale_list(original: Original, self: Assignment, revoked: Any) -> None:
    """Heartbeats keep listing released partitions."""
    self.unconfirmed = {}


@MEMBER_MUTANTS.bug(
    "static-member-locks-itself-out",
    "frees-own-instance",
    ("static-rolling-deploy",),
    (ConsumerMember, "_release_instance"),
    source="Kafka 4.3: UNRELEASED_INSTANCE_ID after a join whose response was lost",
)
def _never_frees(original: Original, self: Any, now_ms: int) -> None:
    """A static member gives up when its own earlier join still holds its instance id."""
    self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, "")


@MEMBER_MUTANTS.bug(
    "empty-commit-blocks",
    "commits-go-on",
    ("steady", *CHURN),
    (MemberMachine, "_auto_commit"),
    source="KAFKA-16203",
    overrides=("application.auto_commit_interval=1s",),
)
def _empty_commit_blocks(original: Original, self: MemberMachine, now_ms: int) -> None:
    """After an auto-commit with nothing to commit, no other auto-commit follows."""
    if self.positions.uncommitted(delivered=False):
        original(self, now_ms)
    else:
        self.commits.next_auto_ms = _NEVER_MS


@MEMBER_MUTANTS.bug(
    "no-leave-beside-heartbeat",
    "leaves-told",
    ("rolling-deploy", "scale-up-and-down"),
    (Heartbeats, "leave_request"),
    source="KAFKA-16639",
    overrides=("network.latency=1s",),
)
def _no_leave_beside_a_heartbeat(original: Original, self: Heartbeats, option: CloseOption) -> Any:
    """A member that closes while a heartbeat is in flight never sends its leave."""
    return None if self.in_flight is not None else original(self, option)


@MEMBER_MUTANTS.bug(
    "retries-at-once",
    "retries-back-off",
    ("coordinator-crash-loop", "coordinator-failover"),
    (Backoff, "next_ms"),
    source="KAFKA-4777",
)
def _at_once(_: Original, self: Backoff) -> int:
    """Failed requests are sent again without a wait."""
    return 1


@MEMBER_MUTANTS.bug(
    "fenced-for-good",
    "fenced-returns",
    ("frozen-members", "partitioned-members"),
    (ConsumerMember, "_progress"),
    source="KAFKA-16178",
)
def _stays_fenced(original: Original, self: ConsumerMember, now_ms: int) -> bool:
    """A fenced member drops its partitions and never joins again."""
    waits = self.callbacks.running is not None or self.callbacks.release is not None
    return False if self.state is ConsumerMemberState.FENCED and not waits else original(self, now_ms)


@MEMBER_MUTANTS.bug(
    "polls-missed-late", "poll-timeouts", ("slow-callbacks-and-poll-timeouts",), (Polls, "end")
)
def _waits_twice_as_long(original: Original, self: Polls, now_ms: int) -> None:
    """A member whose application does not poll stays in the group for twice the poll interval."""
    original(self, now_ms)
    assert self.deadline_ms is not None
    self.deadline_ms += self.deadline_ms - now_ms


@MEMBER_MUTANTS.bug("committed-offset-forgotten", "starts-at-committed", CHURN, (Positions, "fetched"))
def _forgets_what_is_committed(
    original: Original, self: Positions, token: int, response: OffsetFetchResponse, now_ms: int
) -> Any:
    """A new owner starts at the beginning of the log instead of the committed offset."""
    return original(self, token, msgspec.structs.replace(response, offsets={}), now_ms)


@MEMBER_MUTANTS.bug("partition-left-out", "partitions-read", ("steady", *CHURN), (Positions, "fetchable"))
def _leaves_one_out(original: Original, self: Positions) -> Any:
    """A member that owns several partitions never fetches one of them."""
    found = original(self)
    return dict(list(found.items())[1:]) if len(found) > 1 else found


@MEMBER_MUTANTS.bug(
    "subscription-kept-secret",
    "subscription-told",
    ("regex-subscriptions", "swarm"),
    (ConsumerMember, "subscribe"),
)
def _keeps_it_to_itself(
    original: Original, self: ConsumerMember, topics: Iterable[str], pattern: str | None, now_ms: int
) -> Any:
    """A member in a group does not send its changed subscription."""
    if self.state not in ACTIVE:
        return original(self, topics, pattern, now_ms)
    self.subscription = Subscription.of(topics, pattern)
    return ()


@MEMBER_MUTANTS.bug(
    "loading-is-fatal",
    "gives-up-rightly",
    ("coordinator-crash-loop", "coordinator-failover", "broker-failures"),
    (consumer_machine, "heartbeat_rule"),
)
def _loading_is_the_end(original: Original, code: ErrorCode) -> ErrorRule:
    """A member gives up when the coordinator is still loading."""
    return ErrorRule.FATAL if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else original(code)


@MEMBER_MUTANTS.bug(
    "stopped-by-callback", "reconciles-on", ("slow-callbacks-and-poll-timeouts", "swarm"), (Polls, "begin")
)
def _waits_for_good(original: Original, self: Polls) -> None:
    """After a callback that raised, the member stops moving to its target."""
    waits = self.waits_for_next
    original(self)
    self.waits_for_next = waits


@MEMBER_MUTANTS.bug(
    "commits-to-the-wrong-broker",
    "searches-anew",
    ("coordinator-failover", "manual-commits"),
    (CoordinatorLookup, "note"),
)
def _stays_with_its_broker(_: Original, self: CoordinatorLookup, code: ErrorCode, now_ms: int) -> None:
    """A commit is sent again and again to a broker that is not the coordinator."""
    if not code:
        self.answered()


@MEMBER_MUTANTS.bug(
    "failed-commit-never-ends",
    "commits-end",
    ("frozen-members", "partitioned-members", "coordinator-crash-loop"),
    (MemberMachine, "_commit_ended"),
    source="KAFKA-10489",
    overrides=("application.commit=sync",),
)
def _never_fails(
    original: Original, self: MemberMachine, commit: Commit, error: ErrorCode, now_ms: int
) -> None:
    """An application whose commit fails waits forever."""
    if not (error and commit.kind is CommitKind.MANUAL):
        original(self, commit, error, now_ms)


@MEMBER_MUTANTS.bug(
    "errors-swallowed",
    "errors-raised",
    ("slow-callbacks-and-poll-timeouts",),
    (Outbox, "raise_to_application"),
)
def _swallows(original: Original, self: Outbox, error: Exception, *, fatal: bool = False) -> None:
    """The application does not get the exception that its callback raised."""
    if fatal:
        original(self, error, fatal=fatal)


@MEMBER_MUTANTS.bug(
    "silent-coordinator-kept",
    "searches-anew",
    ("lossy-network", "manual-commits"),
    (ConsumerMember, "request_failed"),
    source="KAFKA-17293",
)
def _silence_is_no_loss(
    original: Original, self: ConsumerMember, token: int, failure: Any, now_ms: int
) -> Any:
    """A member whose heartbeats get no response sends them to the same broker again and again."""
    if token != self.heartbeats.in_flight:
        return original(self, token, failure, now_ms)
    self.instance.may_be_held()
    if self.heartbeats.answered(token):
        self.heartbeats.failed(now_ms)
    return self._step(now_ms)


@MEMBER_MUTANTS.bug("released-before-the-response", "commit-before-release", CHURN, (Reconciler, "_commit"))
def _commit_unheard(original: Original, self: Reconciler, current: Pass, *arguments: Any) -> PassResult:
    """A member commits, and releases its partitions before the response to the commit."""
    original(self, current, *arguments)
    return self._revoke(current)
