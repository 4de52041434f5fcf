"""Subscriptions by regular expression: the topics that they match, and the time of the coordinator's lookups
(KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.outcome import RegularExpressionsResolved, ResolveRegularExpressions
from fencepost.simulation.judge import consumer_model as model
from fencepost.simulation.judge.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.protocol.outcome import Outcome
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.kernel.observers import StepEvent

_NEVER: Final = (-(2**63), 0)


class Expressions:
    """The expressions of one group's members."""

    def __init__(self) -> None:
        self._looked = _NEVER
        """Time of the last lookup of topics, and the version of the image that was used."""
        self._waits = False
        """True if the topics are being looked up."""

    def waits_no_more(self) -> None:
        """Note that a lookup has ended, or that a coordinator has loaded: another one's never ends."""
        self._waits = False

    def check(
        self,
        event: StepEvent,
        outcome: Outcome,
        group: ConsumerGroup,
        image: TopicsImage,
        *,
        created: int,
        refresh_ms: int,
        now_ms: int,
    ) -> Iterator[Finding]:
        """Findings of one event, whose records are applied.

        `created` is the version of the newest image that added a topic.
        """
        before, who = self._looked, group.group_id
        looks = ((value.timestamp_ms, value.image_version) for value in group.resolved.values())
        self._looked = max(looks, default=_NEVER)
        used = {text for member in group.members.values() if (text := member.subscribed_topic_regex)}
        if isinstance(event, RegularExpressionsResolved):
            yield from _resolved(event, outcome, used, image, now_ms)
            return
        asked = [each for each in outcome.effects if isinstance(each, ResolveRegularExpressions)]
        for effect in asked:
            since_ms = now_ms - min(before, self._looked)[0]
            if self._waits or since_ms <= model.LOOKUP_PAUSE_MS or {*effect.regular_expressions} != used:
                yield (
                    "expressions-resolved",
                    f"{who} looks for topics of {effect.regular_expressions} {since_ms} ms after it did,"
                    f" {'while it waits for them, ' if self._waits else ''}its members subscribe to {used}",
                )
            self._waits = True
        if asked or not used or self._waits or not _is_taken(event, outcome):
            return
        looked_ms, version = max(before, self._looked)
        since_ms, unknown = now_ms - looked_ms, used - group.resolved.keys()
        if model.is_lookup_due(since_ms, refresh_ms, new=bool(unknown) or version < created):
            yield (
                "expressions-resolved",
                f"{who} does not look for topics of {sorted(unknown or used)}, {since_ms} ms after it did at"
                f" version {version} of {created}",
            )


def _resolved(
    event: RegularExpressionsResolved, outcome: Outcome, used: set[str], image: TopicsImage, now_ms: int
) -> Iterator[Finding]:
    """Check that the resolved topics are right, and on record."""
    written = {
        each.key.regular_expression: each.value
        for each in outcome.records
        if isinstance(each.key, r.ConsumerGroupRegularExpressionKey)
    }
    for text in sorted(event.topics.keys() & used | written.keys()):
        topics = event.topics.get(text, ())
        if event.image_version == image.version:
            found = tuple(name for name in model.matches(text, image) if name not in event.denied)
            if topics != found:
                yield (
                    "expressions-resolved",
                    f"{text} of {event.group_id} was taken for {topics}, it matches {found}",
                )
        right = r.ConsumerGroupRegularExpressionValue(topics, event.image_version, now_ms)
        if written.get(text) != right:
            yield (
                "expressions-resolved",
                f"{text} of {event.group_id} is {written.get(text)} by its record, expected is {right}",
            )


def _is_taken(event: StepEvent, outcome: Outcome) -> bool:
    """Return true if it is a heartbeat that was accepted."""
    return (
        isinstance(event, ConsumerGroupHeartbeatRequest)
        and event.member_epoch >= JOIN_EPOCH
        and getattr(outcome.reply, "error_code", None) is ErrorCode.NONE
    )
