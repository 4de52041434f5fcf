"""Subscriptions of members: counts by topic and by regular expression, and topics as ids.

A group's effective topics are the names its members list and the names its regular expressions were
resolved to. A topic counts once for each member that names it, and once for each resolved expression.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.records import ConsumerGroupRegularExpressionValue
from fencepost.coordinator.protocol.topics import TopicsImage

Resolved = Mapping[str, ConsumerGroupRegularExpressionValue]


class SubscriptionCounts:
    """Number of uses of each topic, regular expression and assignor; entries of zero are dropped."""

    __slots__ = ("assignors", "by_name", "by_regex", "regexes")

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        """Members that name the topic."""
        self.by_regex: dict[str, int] = {}
        """Resolved regular expressions that match the topic."""
        self.regexes: dict[str, int] = {}
        """Members that subscribe to the regular expression."""
        self.assignors: dict[str, int] = {}
        """Members that ask for the assignor."""

    def copy(self) -> SubscriptionCounts:
        """Counts that may be changed apart from these."""
        other = SubscriptionCounts()
        other.by_name = self.by_name.copy()
        other.by_regex = self.by_regex.copy()
        other.regexes = self.regexes.copy()
        other.assignors = self.assignors.copy()
        return other

    def replace(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        """Count `new` instead of `old`."""
        old_names = () if old is None else old.subscribed_topic_names
        new_names = () if new is None else new.subscribed_topic_names
        if old_names != new_names:
            count(self.by_name, old_names, -1)
            count(self.by_name, new_names, 1)
        _move(self.regexes, None if old is None else old.regex, None if new is None else new.regex)
        _move(
            self.assignors,
            None if old is None else old.server_assignor,
            None if new is None else new.server_assignor,
        )

    def replace_resolution(self, old: Iterable[str], new: Iterable[str]) -> None:
        """Count the topics of a resolved regular expression instead of those it had."""
        count(self.by_regex, old, -1)
        count(self.by_regex, new, 1)

    def topics(self) -> list[str]:
        """Return all topics with a subscriber, sorted."""
        return sorted({*self.by_name, *self.by_regex})

    def homogeneous(self, members: int) -> bool:
        """Return true if all members certainly have the same subscription.

        True if no member uses a regular expression and all members name each topic. Also true if all members
        use the same expression and name no topic.
        """
        if not self.regexes:
            return all(named == members for named in self.by_name.values())
        return len(self.regexes) == 1 and not self.by_name and next(iter(self.regexes.values())) == members


def count(counts: dict[str, int], keys: Iterable[str], by: int) -> None:
    """Add `by` to the count of each key; a count of zero is removed."""
    for key in keys:
        number = counts.get(key, 0) + by
        if number > 0:
            counts[key] = number
        else:
            counts.pop(key, None)


def _move(counts: dict[str, int], old: str | None, new: str | None) -> None:
    if old != new:
        count(counts, () if old is None else (old,), -1)
        count(counts, () if new is None else (new,), 1)


def effective_topics(member: ConsumerGroupMember, resolved: Resolved) -> Collection[str]:
    """Names of the member's topics; a regular expression without a resolution matches nothing yet."""
    regex = member.regex
    resolution = None if regex is None else resolved.get(regex)
    if resolution is None or not resolution.topics:
        return member.subscribed_topic_names
    if not member.subscribed_topic_names:
        return resolution.topics
    return {*member.subscribed_topic_names, *resolution.topics}


def existing_ids(names: Iterable[str], image: TopicsImage) -> frozenset[TopicId]:
    """Return ids of those topics that exist."""
    by_name = image.by_name
    return frozenset([by_name[name].topic_id for name in names if name in by_name])


def topic_ids(names: Iterable[str], image: TopicsImage) -> tuple[TopicId, ...]:
    """Return ids of those topics that exist, ascending."""
    return tuple(sorted(existing_ids(names, image)))
