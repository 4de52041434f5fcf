"""Records of classic groups: the assignments that leaders have sent, and the generations of real groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import NO_GENERATION
from fencepost.coordinator.protocol.consumer_protocol import (
    MalformedConsumerProtocol,
    read_assignment,
    read_subscription,
)
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.member.classic.assignors.sticky import StickyAssignor, read_previous
from fencepost.simulation.judge.base import Finding, Judge
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

_NEW: Final = r.GroupMetadataValue(protocol_type="", generation=0)


def check_assignment(group_id: str, value: r.GroupMetadataValue) -> Iterator[Finding]:
    """Findings of classic-assignment in what a leader has assigned.

    As a broker does, it takes any bytes: some clients leave out fields of their version, and so give nothing
    to judge them by.
    """
    try:
        subscriptions = {member.member_id: read_subscription(member.subscription) for member in value.members}
        assignments = {member.member_id: read_assignment(member.assignment) for member in value.members}
    except MalformedConsumerProtocol:
        return
    given: dict[tuple[str, int], MemberId] = {}
    owned: dict[tuple[str, int], MemberId] = {}
    for member_id, subscription in subscriptions.items():
        owned.update(
            ((topic, number), member_id)
            for topic, numbers in subscription.owned.items()
            for number in numbers
        )
    for member_id, assignment in assignments.items():
        for topic, numbers in assignment.partitions.items():
            if topic not in subscriptions[member_id].topics:
                yield (
                    "classic-assignment",
                    f"{member_id} of {group_id} was given {topic}, which is not in its subscription",
                )
            for number in numbers:
                holder = given.setdefault((topic, number), member_id)
                owner = owned.get((topic, number), member_id)
                if holder != member_id or owner != member_id:
                    other = holder if holder != member_id else owner
                    yield (
                        "classic-assignment",
                        f"{topic}-{number} of {group_id} was given to {member_id} in generation"
                        f" {value.generation}, and {other} {'was given' if other == holder else 'has'} it",
                    )


def check_stickiness(group_id: str, value: r.GroupMetadataValue) -> Iterator[Finding]:
    """Yield members that lost more with the sticky assignor than the balance asks for (KIP-341).

    A member of the newest generation keeps what no other such member claims, up to its share. Claims of
    members that missed that generation do not count. Only members that all subscribe alike are judged.
    """
    if value.protocol != StickyAssignor.name:
        return
    try:
        subscriptions = {member.member_id: read_subscription(member.subscription) for member in value.members}
        assignments = {member.member_id: read_assignment(member.assignment) for member in value.members}
    except MalformedConsumerProtocol:
        return
    newest = max((each.generation for each in subscriptions.values()), default=NO_GENERATION)
    if newest == NO_GENERATION or len({frozenset(each.topics) for each in subscriptions.values()}) != 1:
        return  # the first generation, or clients that do not send theirs
    claims = {
        member_id: frozenset(read_previous(each.user_data))
        for member_id, each in subscriptions.items()
        if each.generation == newest
    }
    given = {
        member_id: {(topic, number) for topic, numbers in each.partitions.items() for number in numbers}
        for member_id, each in assignments.items()
    }
    every = set[tuple[str, int]]().union(*given.values())
    for member_id, claimed in claims.items():
        others = frozenset[tuple[str, int]]().union(*(claims[one] for one in claims if one != member_id))
        own = claimed.difference(others).intersection(every)
        if len(own & given[member_id]) < min(len(own), len(every) // len(given)):
            yield (
                "classic-assignment",
                f"{member_id} of {group_id} claims {len(own)} partitions in generation {value.generation},"
                f" and keeps {len(own & given[member_id])}",
            )


def check_fresh_assignments(records: Iterable[r.Record]) -> Iterator[Finding]:
    """Check what a leader has sent: it follows from the subscriptions in the same record."""
    for record in records:
        if isinstance(value := record.value, r.GroupMetadataValue):
            yield from check_assignment(record.key.group_id, value)
            yield from check_stickiness(record.key.group_id, value)


class ObservedClassicGroups(Judge):
    """Watches the classic group of a real coordinator through the records that it wrote."""

    def __init__(self) -> None:
        self._newest: dict[str, r.GroupMetadataValue | None] = {}
        """By group, its newest record; None if it was a consumer group until now."""

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one outcome."""
        if not isinstance(event, RecordsObserved):
            return
        for record in outcome.records:
            key, value = record.key, record.value
            if isinstance(value, r.GroupMetadataValue):
                if event.cause != "load":
                    self.report_all(self._written(key.group_id, value))
                self._newest[key.group_id] = value
            elif isinstance(key, r.GroupMetadataKey):
                self._newest.pop(key.group_id, None)
            elif isinstance(key, r.ConsumerGroupMetadataKey) and value is None:
                self._newest[key.group_id] = None

    def _written(self, group_id: str, value: r.GroupMetadataValue) -> Iterator[Finding]:
        """Check a record. The recorded generation never falls, unless the group has ended.

        A record that shows another member id or subscription assigns nothing, as one of a group that was a
        consumer group: its members hold what that gave them.
        """
        before = self._newest.get(group_id, _NEW)
        if before is None:
            return
        if value.generation < before.generation:
            yield (
                "classic-generations",
                f"the generation of {group_id} on record fell from {before.generation} to {value.generation}",
            )
        if not _is_same(_assigned(before), _assigned(value)):
            yield from check_assignment(group_id, value)


def _assigned(value: r.GroupMetadataValue) -> dict[MemberId, bytes]:
    return {member.member_id: member.assignment for member in value.members}


def _is_same(before: Mapping[MemberId, bytes], after: Mapping[MemberId, bytes]) -> bool:
    """Return true if no leader has assigned anything: a static member at most has another id."""
    return before == after or (
        before.keys() != after.keys() and sorted(before.values()) == sorted(after.values())
    )
