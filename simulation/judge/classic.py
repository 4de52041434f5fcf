"""The state of classic groups, the assignments of their leaders, and recorded generations of real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import (
    NO_GENERATION,
)
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

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.judge.classic_account import ExpectedGroup
    from fencepost.simulation.judge.classic_expected import Deadline

_INSTANCE: Final = attrgetter("instance_id")
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


def check_timer(live: GroupCoordinator, account: ExpectedGroup, deadline: Deadline) -> Iterator[Finding]:
    """Findings of one timer of a group."""
    timers: Any = live.classic.timers
    at_ms, right_ms = timers.deadline_of(deadline), account.deadlines.get(deadline)
    if at_ms != right_ms:
        who = deadline.member_id or account.group_id
        yield "timers-armed", f"the {deadline.kind} timer of {who} is at {at_ms}, not at {right_ms}"


def check_state(account: ExpectedGroup, live: GroupCoordinator) -> Iterator[Finding]:
    """Findings of the state of a group after an event: its description, and its timers."""
    group_id = account.group_id
    group = live.classic.groups.get(group_id)
    if group is None:
        yield "classic-members", f"{group_id} was deleted, it has {sorted(account.members)}"
        return
    at, right = (group.state, group.generation), (account.phase, account.generation)
    if at != right:
        yield (
            "classic-rounds" if at[0] is not right[0] else "classic-generations",
            f"{group_id} is {at[0]} in generation {at[1]} instead of {right[0]} in {right[1]}",
        )
        return
    if not _seats_alike(group.members, account.members):
        seats = {each.member_id: each.instance_id for each in group.members.values()}
        yield "classic-members", f"{group_id} has the members {seats} instead of {sorted(account.members)}"
        return
    instances = [*map(_INSTANCE, group.members.values())]
    if len(group.static_members) != (static := len(instances) - instances.count(None)):
        yield (
            "static-bijection",
            f"{group_id} has {static} static members and {len(group.static_members)} instance ids",
        )
    if group.protocol != account.protocol or (group.protocol_type or None) != account.protocol_type:
        yield (
            "classic-joined",
            f"{group_id} has protocol {group.protocol_type} {group.protocol} instead of"
            f" {account.protocol_type} {account.protocol}",
        )
    if group.pending_joins.keys() != account.given_ids or group.pending_syncs.keys() != account.unsynced:
        yield (
            "classic-rounds",
            f"{group_id} waits for {[*group.pending_joins]} to join and {[*group.pending_syncs]} to sync, not"
            f" for {sorted(account.given_ids)} and {sorted(account.unsynced)}",
        )
    for deadline in account.deadlines:
        yield from check_timer(live, account, deadline)


def _seats_alike(one: Mapping[MemberId, Any], other: Mapping[MemberId, Any]) -> bool:
    """Return true if these are the same members, with the same instance ids.

    It is fast, since hundreds of members are compared in many steps.
    """
    if one.keys() != other.keys():
        return False
    if [*one] == [*other]:
        return [*map(_INSTANCE, one.values())] == [*map(_INSTANCE, other.values())]
    return all(one[member_id].instance_id == other[member_id].instance_id for member_id in one)
