"""The rules of a group's inside: what raises its epoch, how targets are computed, how members reach them."""

from __future__ import annotations

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.reconcile import releases
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, Partitions
from fencepost.coordinator.protocol.records import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformRule

UNREVOKED, UNRELEASED = (
    ConsumerGroupMemberState.UNREVOKED_PARTITIONS,
    ConsumerGroupMemberState.UNRELEASED_PARTITIONS,
)


def _ok(x: ConformExchange) -> bool:
    return x.code is ErrorCode.NONE and x.request.member_epoch >= 0


def _old(x: ConformExchange) -> ConsumerGroupMember | None:
    """Return the member before, or the one that it replaces."""
    return x.known or x.holder


def _names_differ(x: ConformExchange) -> bool:
    old, new = _old(x), x.member
    return old is not None and new is not None and old.subscribed_topic_names != new.subscribed_topic_names


def _regexes(x: ConformExchange) -> tuple[str | None, str | None]:
    old, new = _old(x), x.member
    return None if old is None else old.regex, None if new is None else new.regex


def _regex_changed(x: ConformExchange) -> bool:
    old, new = _regexes(x)
    return old != new


def _missing_topic(x: ConformExchange) -> bool:
    names = x.request.subscribed_topic_names or ()
    return any(name not in x.after.image.by_name for name in names)


def _counts_changed(x: ConformExchange) -> bool:
    """Return true if the epoch rose although neither member nor subscription is new: the topics changed."""
    return x.bumped and x.known is not None and not _names_differ(x) and not _regex_changed(x)


EPOCH: tuple[ConformRule, ...] = (
    ConformRule(
        "bump.regex_dropped",
        "dropping a regular expression raises the epoch (KAFKA-19891)",
        lambda x: _ok(x) and (r := _regexes(x))[0] is not None and r[1] is None,
    ),
    ConformRule(
        "bump.regex_known",
        "an already resolved expression raises the epoch at once",
        lambda x: _ok(x) and _regex_changed(x) and _regexes(x)[1] in x.before.resolved,
    ),
    ConformRule(
        "bump.regex_unknown",
        "a new regular expression waits for its resolution",
        lambda x: _ok(x) and _regex_changed(x) and not x.bumped,
    ),
    ConformRule("bump.names", "other topics raise the epoch", lambda x: _ok(x) and _names_differ(x)),
    ConformRule(
        "bump.same_names",
        "the same topics in another order, or twice, change nothing",
        lambda x: (
            _ok(x) and x.known is not None and bool(x.request.subscribed_topic_names) and not _names_differ(x)
        ),
    ),
    ConformRule(
        "bump.metadata",
        "created, grown or deleted topics raise the epoch with the next heartbeat",
        lambda x: _ok(x) and _counts_changed(x),
    ),
    ConformRule(
        "bump.empty_subscription",
        "a member without topics joins without raising the epoch",
        lambda x: (
            _ok(x)
            and x.request.member_epoch == JOIN_EPOCH
            and x.known is None
            and not x.bumped
            and x.request.subscribed_topic_names == ()
        ),
    ),
    ConformRule(
        "bump.assignor",
        "another preferred assignor alone does not raise the epoch",
        lambda x: (
            _ok(x)
            and x.known is not None
            and not x.bumped
            and x.request.server_assignor is not None
            and x.known.server_assignor != x.request.server_assignor
        ),
    ),
    ConformRule(
        "bump.details",
        "another rack or timeout does not raise the epoch",
        lambda x: (
            _ok(x)
            and x.known is not None
            and not x.bumped
            and (new := x.member) is not None
            and (new.rack_id, new.rebalance_timeout_ms) != (x.known.rack_id, x.known.rebalance_timeout_ms)
        ),
    ),
    ConformRule(
        "bump.missing_topic",
        "a missing topic is no error",
        lambda x: _ok(x) and _missing_topic(x),
    ),
    ConformRule(
        "bump.join",
        "a new member raises the epoch",
        lambda x: _ok(x) and x.request.member_epoch == JOIN_EPOCH and x.known is None and x.bumped,
    ),
)


def _computed(x: ConformExchange) -> bool:
    return any(isinstance(record.key, ConsumerGroupTargetAssignmentMetadataKey) for record in x.records)


def _target_changed(x: ConformExchange) -> bool:
    return any(isinstance(record.key, ConsumerGroupTargetAssignmentMemberKey) for record in x.records)


def _votes(x: ConformExchange) -> list[str]:
    return [member.server_assignor for member in x.after.members.values() if member.server_assignor]


def _mixed(x: ConformExchange) -> bool:
    subscriptions = {(m.subscribed_topic_names, m.regex) for m in x.after.members.values()}
    return len(subscriptions) > 1


def _assignor(x: ConformExchange) -> str:
    votes = _votes(x)
    order = x.config.group_consumer_assignors
    return max(order, key=lambda name: (votes.count(name), -order.index(name)))


TARGETS: tuple[ConformRule, ...] = (
    ConformRule(
        "target.batched",
        "within the assignment interval the old target stays (KIP-1263)",
        lambda x: _ok(x) and x.after.group_epoch > x.after.assignment_epoch,
    ),
    ConformRule(
        "assignor.majority",
        "the assignor with most votes wins",
        lambda x: _ok(x) and _computed(x) and len(set(_votes(x))) > 1,
    ),
    ConformRule(
        "assignor.range_mixed",
        "the range target with different subscriptions",
        lambda x: _ok(x) and _computed(x) and _assignor(x) == "range" and _mixed(x),
    ),
    ConformRule(
        "assignor.range", "the range target", lambda x: _ok(x) and _computed(x) and _assignor(x) == "range"
    ),
    ConformRule(
        "assignor.uniform_mixed",
        "the uniform target with different subscriptions: sizes and moves",
        lambda x: _ok(x) and _computed(x) and _assignor(x) == "uniform" and _mixed(x),
    ),
    ConformRule(
        "assignor.uniform",
        "the uniform target: sizes and moves",
        lambda x: _ok(x) and _computed(x) and _assignor(x) == "uniform",
    ),
    ConformRule(
        "target.same",
        "a new epoch may have the same target",
        lambda x: _ok(x) and _computed(x) and not _target_changed(x),
    ),
)


def _owned(x: ConformExchange) -> Partitions | None:
    owned: Partitions | None = x.request.topic_partitions
    return owned


def _was(x: ConformExchange, state: ConsumerGroupMemberState) -> bool:
    return x.known is not None and x.known.state is state and x.known.member_epoch > 0


def _is(x: ConformExchange, state: ConsumerGroupMemberState) -> bool:
    return x.member is not None and x.member.state is state


def _subscription_changed(x: ConformExchange) -> bool:
    return _names_differ(x) or _regex_changed(x)


def _confirms(x: ConformExchange) -> bool:
    return x.known is not None and releases(_owned(x), x.known.pending_revocation)


def _lost(x: ConformExchange) -> bool:
    old, new = x.known, x.member
    return (
        old is not None
        and new is not None
        and any(
            not set(numbers).issubset(new.assigned.get(topic, ())) for topic, numbers in old.assigned.items()
        )
    )


RECONCILIATION: tuple[ConformRule, ...] = (
    ConformRule(
        "reconcile.shrink",
        "topics that a member unsubscribes from are revoked before a new target is due",
        lambda x: (
            _ok(x)
            and _subscription_changed(x)
            and _lost(x)
            and x.member is not None
            and x.known is not None
            and x.member.member_epoch == x.known.member_epoch
        ),
    ),
    ConformRule(
        "reconcile.revoke",
        "partitions outside the target are revoked, and the epoch does not change",
        lambda x: _ok(x) and not _was(x, UNREVOKED) and _is(x, UNREVOKED),
    ),
    ConformRule(
        "reconcile.revoke_released",
        "partitions that the member does not list are free at once",
        lambda x: _ok(x) and x.request.member_epoch > 0 and _lost(x) and not _is(x, UNREVOKED),
    ),
    ConformRule(
        "reconcile.unconfirmed_null",
        "a heartbeat without a list confirms nothing",
        lambda x: _ok(x) and _was(x, UNREVOKED) and _owned(x) is None,
    ),
    ConformRule(
        "reconcile.unconfirmed",
        "a revocation is not complete while any of its partitions is owned",
        lambda x: _ok(x) and _was(x, UNREVOKED) and _owned(x) is not None and not _confirms(x),
    ),
    ConformRule(
        "reconcile.revoke_again",
        "after one revocation the next target may need another",
        lambda x: _ok(x) and _was(x, UNREVOKED) and _confirms(x) and _is(x, UNREVOKED),
    ),
    ConformRule(
        "reconcile.confirmed_waits",
        "a confirmed revocation raises the member epoch, and the rest waits for others",
        lambda x: _ok(x) and _was(x, UNREVOKED) and _confirms(x) and _is(x, UNRELEASED),
    ),
    ConformRule(
        "reconcile.confirmed",
        "a confirmed revocation raises the member epoch",
        lambda x: _ok(x) and _was(x, UNREVOKED) and _confirms(x),
    ),
    ConformRule(
        "reconcile.unreleased_keeps_waiting",
        "partitions that others hold stay with them",
        lambda x: _ok(x) and _was(x, UNRELEASED) and _is(x, UNRELEASED),
    ),
    ConformRule(
        "reconcile.released",
        "partitions that others release are assigned",
        lambda x: _ok(x) and _was(x, UNRELEASED) and not _is(x, UNRELEASED),
    ),
    ConformRule(
        "reconcile.waits",
        "a member gets the free partitions at the new epoch, and waits for the rest",
        lambda x: _ok(x) and not _was(x, UNRELEASED) and _is(x, UNRELEASED),
    ),
    ConformRule(
        "reconcile.owned_unknown_topic",
        "a missing topic in the owned list is ignored",
        lambda x: _ok(x) and any(topic not in x.after.image.by_id for topic in _owned(x) or ()),
    ),
    ConformRule(
        "reconcile.next",
        "a stable member moves to the new target",
        lambda x: (
            _ok(x)
            and _was(x, ConsumerGroupMemberState.STABLE)
            and x.member is not None
            and x.known is not None
            and x.member.member_epoch > x.known.member_epoch
        ),
    ),
)


REGEX: tuple[ConformRule, ...] = (
    ConformRule(
        "regex.join_unresolved",
        "the first join with an expression gets an empty assignment",
        lambda x: (
            _ok(x)
            and x.request.member_epoch == JOIN_EPOCH
            and _regexes(x)[1] is not None
            and _regexes(x)[1] not in x.before.resolved
            and not x.request.subscribed_topic_names
        ),
    ),
    ConformRule(
        "regex.with_names",
        "topic names and an expression add up",
        lambda x: (
            _ok(x)
            and _computed(x)
            and any(
                m.regex in x.after.resolved and m.subscribed_topic_names for m in x.after.members.values()
            )
        ),
    ),
    ConformRule(
        "regex.removed",
        "an empty expression removes the expression, null keeps it",
        lambda x: _ok(x) and x.request.subscribed_topic_regex == "" and _regexes(x)[0] is not None,
    ),
    ConformRule(
        "regex.target",
        "matching topics are assigned",
        lambda x: _ok(x) and _computed(x) and bool(x.after.resolved),
    ),
)
"""Resolution itself is awaited, and compared by the epochs after it: `regex.resolution`."""
