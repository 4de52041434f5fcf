"""Subscriptions by regular expression (KIP-848, Regular Expressions): when to validate and resolve them.

Expressions are RE2's and must match a topic's whole name; internal topics are matched like any other. A
group's expressions are resolved together, and outside of the heartbeat that needs them: the coordinator's
step requests it as an effect, and the result returns as an event.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from fencepost.coordinator.consumer.group import NO_REFRESH, ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.subscription import SubscriptionCounts, existing_ids
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.outcome import RegularExpressionsResolved, ResolveRegularExpressions
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    Record,
)
from fencepost.coordinator.protocol.regular_expressions import compiled, matching
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash

MIN_REFRESH_INTERVAL_MS = 10_000
"""A group's expressions are not resolved again within this time, not even for a new one."""
NEVER_MS = 2**63 - 1

_SHOWN = 200
"""Characters of an expression that an error shows."""


def validate(expression: str) -> None:
    """Check that RE2 understands the expression, within the limits.

    :raises ProtocolError: INVALID_REGULAR_EXPRESSION if it does not.
    """
    try:
        compiled(expression)
    except ProtocolError as error:
        shown = expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}..."
        raise ProtocolError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {error.message}.",
        ) from error


def resolving(
    effect: ResolveRegularExpressions,
    image: TopicsImage,
    may_describe: Callable[[str], bool] | None = None,
) -> Sliced[RegularExpressionsResolved]:
    """Carry the effect out on this image: return the event to feed back to the coordinator.

    Topics that the client may not describe are left out, as by Kafka's TopicRegexResolver. An expression that
    is not valid matches nothing. The coordinator refuses it before a member can subscribe to it, so it is
    from a journal of another version.
    """
    names = sorted(image.by_name)
    topics: dict[str, tuple[str, ...]] = {}
    denied: set[str] = set()
    for expression in effect.regular_expressions:
        try:
            found = yield from matching(expression, names)
        except ProtocolError:
            found = ()
        if may_describe is not None:
            denied.update(name for name in found if not may_describe(name))
            found = tuple(name for name in found if name not in denied)
        topics[expression] = found
    return RegularExpressionsResolved(
        group_id=effect.group_id, topics=topics, image_version=image.version, denied=frozenset(denied)
    )


def resolve(effect: ResolveRegularExpressions, image: TopicsImage) -> RegularExpressionsResolved:
    """Do the same in one step."""
    return at_once(resolving(effect, image))


class RegexChange(enum.Enum):
    """The effect of a heartbeat on the regular expressions of its group."""

    NONE = enum.auto()
    UNRESOLVED = enum.auto()
    """The member has another expression, whose topics are not known yet."""
    RESOLVED = enum.auto()
    """The member has another one whose topics are known, or dropped its own: the target must follow."""


# Module-level names: in Python 3.11 an attribute of an enum class costs as much as a call.
NONE, UNRESOLVED, RESOLVED = RegexChange


def change_of(group: ConsumerGroup, old: ConsumerGroupMember, new: ConsumerGroupMember) -> RegexChange:
    """Return how the member's regular expression changed.

    :raises ProtocolError: INVALID_REGULAR_EXPRESSION if the expression is new in the group and malformed.
    """
    if old.subscribed_topic_regex == new.subscribed_topic_regex:
        return NONE
    if new.regex is None:
        return UNRESOLVED if old.regex is None else RESOLVED
    if new.regex not in group.counts.regexes:
        validate(new.regex)
        return UNRESOLVED
    return RESOLVED if new.regex in group.resolved else UNRESOLVED


def tombstone(group_id: str, expression: str) -> Record:
    """Return the record that ends an expression's resolution."""
    return Record(ConsumerGroupRegularExpressionKey(group_id, expression), None)


def to_resolve(
    group: ConsumerGroup,
    counts: SubscriptionCounts,
    *,
    brings_new: bool,
    newest_topics: int,
    refresh_interval_ms: int,
    now_ms: int,
) -> tuple[ResolveRegularExpressions, ...]:
    """Return the effect to resolve the expressions of a group that has some, if it is due.

    `counts` are the group's, including the member that sent the heartbeat. `brings_new` is true if its
    expression is new in the group. `newest_topics` is the version of the last image in which a topic was
    created.
    """
    refreshed_ms, version = group.last_resolution()
    if now_ms <= refreshed_ms + MIN_REFRESH_INTERVAL_MS:
        return ()
    due = (
        brings_new
        or len(counts.regexes) != len(group.resolved)
        or version < newest_topics
        or now_ms > refreshed_ms + refresh_interval_ms
    )
    if not due:
        return ()
    return (
        ResolveRegularExpressions(group_id=group.group_id, regular_expressions=tuple(sorted(counts.regexes))),
    )


def next_check_ms(group: ConsumerGroup, refresh_interval_ms: int, now_ms: int) -> int:
    """Return the time at which `to_resolve` may change its result without any event, in ms."""
    if not group.counts.regexes:
        return NEVER_MS
    refreshed_ms, _ = group.last_resolution()
    if refreshed_ms == NO_REFRESH:
        return NEVER_MS
    times = (refreshed_ms + MIN_REFRESH_INTERVAL_MS + 1, refreshed_ms + refresh_interval_ms + 1)
    return next((time for time in times if time > now_ms), now_ms)


def resolution_records(
    group: ConsumerGroup, resolved: RegularExpressionsResolved, image: TopicsImage, now_ms: int
) -> tuple[tuple[Record, ...], int]:
    """Return the records of a resolution, and the group epoch after it: raised if the target must follow.

    Each expression that is still in use gets a record, even if its matches are unchanged.
    """
    records = []
    counts = group.counts.copy()
    changed = False
    for expression, topics in sorted(resolved.topics.items()):
        if expression not in counts.regexes:
            continue
        old = group.resolved.get(expression)
        old_topics = () if old is None else old.topics
        if old_topics != topics:
            changed = True
            counts.replace_resolution(old_topics, topics)
        elif old is None and _strands(group, expression, image):
            changed = True
        value = ConsumerGroupRegularExpressionValue(topics, resolved.image_version, now_ms)
        records.append(Record(ConsumerGroupRegularExpressionKey(group.group_id, expression), value))
    digest = metadata_hash(counts.topics(), image)
    if not changed and digest == group.metadata_hash:
        return tuple(records), group.group_epoch
    epoch = group.group_epoch + 1
    raised = ConsumerGroupMetadataValue(epoch, digest)
    records.append(Record(ConsumerGroupMetadataKey(group.group_id), raised))
    return tuple(records), epoch


def _strands(group: ConsumerGroup, expression: str, image: TopicsImage) -> bool:
    """Return true if an expression without matches leaves partitions in the targets of its users.

    They are from an earlier expression. The group's topics may be unchanged, so nothing else would show that
    a new target is needed, and no member would read those partitions. If a new target is due anyway, no other
    sign is needed.
    """
    return group.assignment_epoch >= group.group_epoch and any(
        not existing_ids(member.subscribed_topic_names, image).issuperset(group.targets.get(member_id, ()))
        for member_id, member in group.members.items()
        if member.regex == expression
    )


def end_unused(group: ConsumerGroup, counts: SubscriptionCounts) -> tuple[Record, ...]:
    """Return the tombstones of expressions without users, and remove their topics from the counts.

    `counts` are the group's counts after the change of its members.
    """
    unused = sorted(regex for regex in group.counts.regexes if regex not in counts.regexes)
    for expression in unused:
        resolution = group.resolved.get(expression)
        if resolution is not None:
            counts.replace_resolution(resolution.topics, ())
    return tuple(tombstone(group.group_id, expression) for expression in unused)
