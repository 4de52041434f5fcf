"""The causes of a rebalance: the group's epoch is raised once, for a change of an input of targets, and at
once.

These inputs are the members, their subscriptions, the existing topics, and the preferred assignor. A static
member that comes back unchanged is no change: that is the purpose of static membership (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.outcome import RebalanceRequested
from fencepost.simulation.checkers.base import Finding
from fencepost.simulation.checkers.targets import is_taken_over
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.simulation.checkers.step import GroupStep

_FIRST: Final = 1
"""The epoch of a group before its first change."""

_Pair: TypeAlias = "tuple[ConsumerGroupMember | None, ConsumerGroupMember | None]"


class EpochCauses:
    """Checks the epoch of one group against the group's changes."""

    def __init__(self) -> None:
        self._digest = 0
        """The digest of the group's topics, by its last record."""
        self._matched: dict[str, tuple[str, ...]] = {}
        """The topics of each expression that was resolved."""

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event."""
        group = step.group
        if group is None:
            return
        digest, self._digest = self._digest, group.metadata_hash
        matched, self._matched = self._matched, self._matched_by_now(step)
        if step.is_load or is_taken_over(step):
            return
        epoch = max(step.known.group_epoch, _FIRST)
        raised = group.group_epoch - epoch
        if raised == 0 and not step.members and matched is self._matched:
            return
        pairs = list(_pairs(step))
        if raised > 0 and not (
            digest != self._digest
            or isinstance(step.event, RebalanceRequested)
            or matched != self._matched
            or any(_inputs(before) != _inputs(after) for before, after in pairs)
        ):
            yield (
                "epoch-caused",
                f"the epoch of {step.group_id} was raised to {group.group_epoch}, and nothing that its"
                " target depends on has changed",
            )
        if isinstance(step.event, RecordsObserved):
            return  # several outcomes may appear as one
        if raised > 1:
            yield "epoch-caused", f"the epoch of {step.group_id} was raised from {epoch} by {raised} at once"
        if raised <= 0 and (why := self._due(step, pairs, matched)):
            yield "epoch-caused", f"the epoch of {step.group_id} stayed {epoch}, though {why}"

    def knows(self, group: ConsumerGroup) -> bool:
        """Return true if the digest of the group's topics is the last one seen."""
        return self._digest == group.metadata_hash

    def _matched_by_now(self, step: GroupStep) -> dict[str, tuple[str, ...]]:
        """Return the topics that expressions match after the event; the same object if the event did not
        change them."""
        found = self._matched
        for record in step.outcome.records:
            key, value = record.key, record.value
            if isinstance(key, r.ConsumerGroupRegularExpressionKey) and key.group_id == step.group_id:
                found = {text: topics for text, topics in found.items() if text != key.regular_expression}
                if isinstance(value, r.ConsumerGroupRegularExpressionValue):
                    found[key.regular_expression] = value.topics
        return found

    def _due(self, step: GroupStep, pairs: list[_Pair], matched: dict[str, tuple[str, ...]]) -> str:
        """Return the change that should have raised the epoch; empty if there was none."""
        if isinstance(step.event, RebalanceRequested):
            return "a rebalance was requested"
        for text, topics in self._matched.items():
            if topics != matched.get(text, ()):
                return f"{text} matches {topics} now"
        for before, after in pairs:
            if after is None:
                assert before is not None
                return f"{before.member_id} was removed"
            names = () if before is None else before.subscribed_topic_names
            if after.subscribed_topic_names != names:
                return f"{after.member_id} subscribes to {after.subscribed_topic_names}"
            if after.regex in matched and (before is None or before.regex != after.regex):
                return f"{after.member_id} subscribes to {after.regex}, which is known"
            if before is not None and before.regex is not None and after.regex is None:
                return f"{after.member_id} dropped its expression"
        return ""


def _pairs(step: GroupStep) -> Iterator[_Pair]:
    """Yield each member before and after; a member that replaces a static one was that member before."""
    gone = {
        change.before.instance_id: change.before
        for change in step.members
        if change.after is None and change.before is not None and change.before.instance_id is not None
    }
    replaced = set()
    for change in step.members:
        after = change.after
        if change.before is None and after is not None:
            before = gone.get(after.instance_id or "")
            if before is not None:
                replaced.add(before.member_id)
            yield before, after
    for change in step.members:
        if change.before is not None and change.member_id not in replaced:
            yield change.before, change.after


def _inputs(member: ConsumerGroupMember | None) -> tuple[object, ...]:
    """Return the values of one member on which a target depends."""
    if member is None:
        return ()
    return member.subscribed_topic_names, member.regex, member.server_assignor
