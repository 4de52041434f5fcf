"""Slips about the time of removals, rebalances and targets, and about the content of targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

import fencepost.coordinator.assign.registry as assignors
import fencepost.coordinator.consumer.heartbeat as heartbeats
from fencepost.coordinator.assign import uniform
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.assign.uniform_mixed import _Balancer
from fencepost.coordinator.consumer import leaving, regular_expressions
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.soft import ConsumerSoftState
from fencepost.coordinator.consumer.target import replaced_id
from fencepost.coordinator.epoch_groups import MemberContact, SoftState
from fencepost.coordinator.protocol.ids import Partitions
from fencepost.coordinator.protocol.records import ConsumerGroupMetadataKey, Record
from fencepost.member.base.commits import Commit, CommitKind, Commits
from fencepost.simulation.mutants.coordinators import CHURN
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Mutants, Original, instead_of

_MISSED_MS: Final = 30_000
"""Time for which a new coordinator believes that it has heard from no member, in ms."""


def _with_range(change: Callable[[Assignor], Assignor]) -> Callable[[Any], Any]:
    """The range assignor, changed."""

    def replace(built_in: Mapping[str, Assignor]) -> Mapping[str, Assignor]:
        return {**built_in, "range": change(built_in["range"])}

    return replace


def _by_member_id(original: Assignor) -> Assignor:
    """Ranges are ordered by member ids, whatever the instance ids."""
    return lambda spec: original(msgspec.structs.replace(spec, instance_ids={}))


_lost: Final[dict[int, Commit]] = {}
"""Commits without a response, by the identity of their member's queue."""


def _lost_is_sent_again(original: Original, self: Commits, token: int, response: Any, now_ms: int) -> Any:
    """A commit without a response is sent again after the commit that followed it."""
    found = original(self, token, response, now_ms)
    ended = found is not None and found[3]
    if ended and (lost := _lost.pop(id(self), None)) is not None and lost is not found[0]:
        self.make(CommitKind.AUTO, dict(lost.offsets), now_ms + _MISSED_MS, {})
    return found


REBALANCE_MUTANTS: Final = Mutants()


@REBALANCE_MUTANTS.bug(
    "half-sessions",
    "members-kept",
    ("coordinator-failover", "partitioned-members", "crash-and-return"),
    (SoftState, "_session_end_ms"),
)
def _half(original: Original, self: SoftState[Any, Any, Any], group_id: str, contact: MemberContact) -> int:
    """Sessions last half the session timeout."""
    whole: int = original(self, group_id, contact)
    return contact.last_ms + (whole - contact.last_ms) // 2


@REBALANCE_MUTANTS.bug(
    "sessions-go-on",
    "members-kept",
    ("coordinator-crash-loop", "rolling-deploy"),
    (ConsumerSoftState, "rebuild"),
)
def _sessions_go_on(
    original: Original, self: ConsumerSoftState, groups: Mapping[str, ConsumerGroup], now_ms: int
) -> None:
    """A new coordinator counts session time from before it loaded."""
    original(self, groups, now_ms)
    for group_id, soft in self.groups.items():
        for member_id, contact in soft.contacts.items():
            contact.last_ms -= _MISSED_MS
            self._arm_session(group_id, member_id, contact)


@REBALANCE_MUTANTS.bug(
    "return-rebalances", "epoch-caused", ("static-rolling-deploy",), (heartbeats, "_change")
)
def _return_is_a_change(
    original: Original, group: ConsumerGroup, old: Any, new: ConsumerGroupMember, *rest: Any
) -> Any:
    """A static member that returns with the same subscription raises the group epoch."""
    found = original(group, old, new, *rest)
    returned = replaced_id(group, new) is not None
    return msgspec.structs.replace(found, raises_epoch=True) if returned else found


@REBALANCE_MUTANTS.bug("departure-raises-nothing", "epoch-caused", CHURN, (leaving, "removal_records"))
def _nobody_else_hears(original: Original, *arguments: Any) -> tuple[Record, ...]:
    """A removed member does not raise the group epoch, so no member gets its partitions."""
    records: tuple[Record, ...] = original(*arguments)
    return tuple(record for record in records if not isinstance(record.key, ConsumerGroupMetadataKey))


@REBALANCE_MUTANTS.bug("targets-too-often", "target-due", CHURN, (heartbeats, "may_assign_again"))
def _at_any_time(_: Original, *arguments: Any) -> bool:
    """Each change computes a target at once and ignores the assignment interval."""
    return True


@REBALANCE_MUTANTS.bug("heartbeat-moves-nobody", "heartbeat-reconciles", CHURN, (heartbeats, "reconcile"))
def _silence_waits(
    original: Original, member: ConsumerGroupMember, *, owned: Partitions | None, **named: Any
) -> Any:
    """A heartbeat without a partition list does not move its member to the target."""
    return member if owned is None else original(member, owned=owned, **named)


@REBALANCE_MUTANTS.bug(
    "mixed-from-scratch", "target-sticky", ("mixed-subscriptions",), (uniform, "uniform_mixed")
)
def _from_scratch(original: Original, spec: GroupSpec) -> Any:
    """If subscriptions differ, the assignor ignores the previous target."""
    return original(msgspec.structs.replace(spec, targets={}))


@REBALANCE_MUTANTS.bug(
    "mixed-unbalanced", "target-balanced", ("mixed-subscriptions",), (_Balancer, "_balance")
)
def _nothing_is_moved(_: Original, self: _Balancer, topic: Any) -> bool:
    """If subscriptions differ, the assignor takes nothing from members that have too much."""
    return False


REBALANCE_MUTANTS.append(
    Mutant(
        "ranges-by-member-id",
        UNREPORTED,
        "The range assignor orders static members by member id, which changes with each restart.",
        ("target-balanced",),
        ("range-assignor",),
        (instead_of(assignors, "BUILT_IN", _with_range(_by_member_id)),),
    )
)


@REBALANCE_MUTANTS.bug(
    "retry-overtakes",
    "offsets-advance",
    ("manual-commits", "rolling-deploy", "lossy-network"),
    (Commits, "failed"),
    also=(instead_of(Commits, "answered", _lost_is_sent_again),),
    memory=(_lost,),
)
def _lost_is_kept(original: Original, self: Commits, token: int, now_ms: int) -> Any:
    """A commit without a response is sent again after a newer commit."""
    if self._sent is not None:
        _lost[id(self)] = self._sent
    return original(self, token, now_ms)


@REBALANCE_MUTANTS.bug(
    "new-topics-wait", "expressions-resolved", ("regex-subscriptions",), (regular_expressions, "to_resolve")
)
def _new_topics_wait(original: Original, *arguments: Any, **named: Any) -> Any:
    """A topic that an expression matches is found only at the next refresh."""
    return original(*arguments, **{**named, "newest_topics": 0})
