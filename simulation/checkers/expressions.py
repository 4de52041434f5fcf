"""Subscriptions by regular expression: the topics that they match, and the time of the coordinator's lookups
(KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.outcome import RegularExpressionsResolved, ResolveRegularExpressions
from fencepost.coordinator.protocol.regular_expressions import compiled
from fencepost.simulation.checkers.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.protocol.outcome import Outcome
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.kernel.observers import StepEvent

_PAUSE_MS: Final = 10_000
"""A group's expressions are not resolved again within this time."""
_NEVER: Final = (-(2**63), 0)


class Expressions:
    """The expressions of one group's members."""

    def __init__(self) -> None:
        self._looked = _NEVER
        """Time of the last lookup of topics, and the version of the image that was used."""
        self.used = False
        """True if members subscribe by expression, or did."""
        self._waits = False
        """True if the topics are being looked up."""
        self._image: TopicsImage | None = None
        self._created = 0
        """The version of the newest image that added a topic."""

    def loaded(self) -> None:
        """Note that a coordinator has loaded: the lookup of another one never ends, and all topics may be
        new."""
        self._waits = False
        self._image = None

    def sees(self, image: TopicsImage) -> None:
        """Note the topics that the coordinator knows; in the first image after it has loaded all are new."""
        if image is not self._image:
            if self._image is None or any(topic_id not in self._image.by_id for topic_id in image.by_id):
                self._created = image.version
            self._image = image

    def check(
        self,
        event: StepEvent,
        outcome: Outcome,
        group: ConsumerGroup,
        image: TopicsImage,
        *,
        refresh_ms: int,
        now_ms: int,
    ) -> Iterator[Finding]:
        """Findings of one event, whose records are applied."""
        self.sees(image)
        before, self._looked = self._looked, _last_look(group)
        if isinstance(event, RegularExpressionsResolved):
            self._waits = False
            yield from _resolved(event, outcome, group, image, now_ms)
            return
        used = _used(group)
        self.used = bool(used)
        asked = [each for each in outcome.effects if isinstance(each, ResolveRegularExpressions)]
        for effect in asked:
            since_ms = now_ms - min(before, self._looked)[0]
            if self._waits:
                yield "expressions-resolved", f"{group.group_id} looks for topics while it waits for them"
            if since_ms <= _PAUSE_MS:
                yield "expressions-resolved", f"{group.group_id} looks for topics {since_ms} ms after it did"
            if set(effect.regular_expressions) != used:
                yield (
                    "expressions-resolved",
                    f"{group.group_id} looks for topics of {effect.regular_expressions}, its members"
                    f" subscribe to {sorted(used)}",
                )
            self._waits = True
        if asked or not used or self._waits or not _is_taken(event, outcome):
            return
        looked_ms, version = max(before, self._looked)
        since_ms, unknown = now_ms - looked_ms, used - group.resolved.keys()
        if since_ms > _PAUSE_MS and (unknown or version < self._created or since_ms > refresh_ms):
            yield (
                "expressions-resolved",
                f"{group.group_id} does not look for topics of {sorted(unknown or used)}, {since_ms} ms after"
                f" it did at version {version} of {self._created}",
            )


def _used(group: ConsumerGroup) -> set[str]:
    """Return the expressions to which members subscribe."""
    return {text for member in group.members.values() if (text := member.subscribed_topic_regex)}


def _last_look(group: ConsumerGroup) -> tuple[int, int]:
    """Return the time and image version of the group's last lookup of topics, from the records."""
    looks = ((value.timestamp_ms, value.image_version) for value in group.resolved.values())
    return max(looks, default=_NEVER)


def _resolved(
    event: RegularExpressionsResolved,
    outcome: Outcome,
    group: ConsumerGroup,
    image: TopicsImage,
    now_ms: int,
) -> Iterator[Finding]:
    """Check that the resolved topics are right, and on record."""
    if event.image_version == image.version:
        for text, topics in event.topics.items():
            if topics != (right := _matches(text, image)):
                yield (
                    "expressions-resolved",
                    f"{text} of {group.group_id} was taken for {topics}, it matches {right}",
                )
    recorded = {
        each.key.regular_expression
        for each in outcome.records
        if isinstance(each.key, r.ConsumerGroupRegularExpressionKey)
    }
    for text in sorted(event.topics.keys() & _used(group) - recorded):
        yield "expressions-resolved", f"the topics of {text} of {group.group_id} are not on record"
    for record in outcome.records:
        key, value = record.key, record.value
        if not isinstance(key, r.ConsumerGroupRegularExpressionKey):
            continue
        if not isinstance(value, r.ConsumerGroupRegularExpressionValue) or (
            value.topics,
            value.image_version,
            value.timestamp_ms,
        ) != (event.topics.get(key.regular_expression), event.image_version, now_ms):
            yield (
                "expressions-resolved",
                f"{key.regular_expression} of {group.group_id} is {value} by its record, the result was"
                f" {event.topics.get(key.regular_expression)} at {now_ms} ms",
            )


def _is_taken(event: StepEvent, outcome: Outcome) -> bool:
    """Return true if it is a heartbeat that was accepted."""
    return (
        isinstance(event, ConsumerGroupHeartbeatRequest)
        and event.member_epoch >= JOIN_EPOCH
        and getattr(outcome.reply, "error_code", None) is ErrorCode.NONE
    )


def _matches(text: str, image: TopicsImage) -> tuple[str, ...]:
    try:
        expression = compiled(text)
    except ProtocolError:
        return ()
    return tuple(name for name in sorted(image.by_name) if expression.fullmatch(name) is not None)
