"""Classic groups in the coordinator: generations, assignments, refusals, and records.

The rules are stated here a second time (Kafka's group membership protocol, KIP-62, KIP-345, KIP-429), and
applied to the state of the group before a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from fencepost.coordinator.classic.states import CLASSIC_GROUP_TABLE, ClassicGroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import (
    NO_GENERATION,
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    MalformedConsumerProtocol,
    read_assignment,
    read_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.member.classic.assignors.sticky import StickyAssignor, read_previous
from fencepost.simulation.judge.base import Finding, Judge
from fencepost.simulation.judge.commits import missing
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.coordinator import GroupCoordinator

_INSTANCE: Final = attrgetter("instance_id")
_S = ClassicGroupState
_E = ErrorCode
_FENCING: Final = frozenset(
    {_E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID, _E.ILLEGAL_GENERATION, _E.REBALANCE_IN_PROGRESS}
)
_OF_GENERATIONS: Final = frozenset(
    {r.GroupMetadataKey, r.ConsumerGroupMemberMetadataKey, r.ConsumerGroupMetadataKey}
)
"""Records of these keys begin, continue, or end the counting of a group's generations."""
_Fenced: TypeAlias = HeartbeatRequest | SyncGroupRequest | OffsetCommitRequest


class KnownClassic:
    """A classic group after the previous event."""

    __slots__ = ("generation", "instances", "members", "state", "timers")

    def __init__(self, group: ClassicGroup) -> None:
        self.generation = group.generation
        self.state = group.state
        instances = [*map(_INSTANCE, group.members.values())]
        self.members: Mapping[MemberId, str | None] = dict(zip(group.members, instances, strict=True))
        """Instance ids by member id."""
        static = len(instances) - instances.count(None)
        self.instances = (
            {name: each for each, name in self.members.items() if name is not None} if static else {}
        )
        self.timers = _most_timers(group)

    def is_still(self, group: ClassicGroup) -> bool:
        """Return true if an event without a request left the group unchanged.

        At most, such an event removes members. These may be pending members, which got an id and never
        joined: only their number is compared.
        """
        return (
            self.generation == group.generation
            and self.state is group.state
            and len(self.members) == len(group.members)
            and self.timers == _most_timers(group)
        )

    def expected_error(self, request: _Fenced, generation: int) -> ErrorCode:
        """Return the error for the member, instance and generation of a request; NONE if they are right."""
        if request.instance_id is not None:
            holder = self.instances.get(request.instance_id)
            if holder is None:
                return _E.UNKNOWN_MEMBER_ID
            if holder != request.member_id:
                return _E.FENCED_INSTANCE_ID
        if request.member_id not in self.members:
            return _E.UNKNOWN_MEMBER_ID
        return _E.NONE if generation == self.generation else _E.ILLEGAL_GENERATION


def check_answer(request: _Fenced, got: ErrorCode, known: KnownClassic) -> Iterator[Finding]:
    """Findings of classic-answers and commit-fenced."""
    commits = isinstance(request, OffsetCommitRequest)
    generation = request.member_epoch if isinstance(request, OffsetCommitRequest) else request.generation
    if commits and generation < 0 and known.state is _S.EMPTY:
        expected = _E.NONE
    else:
        expected = known.expected_error(request, generation)
        waits = _S.COMPLETING_REBALANCE if commits else _S.PREPARING_REBALANCE
        if expected is _E.NONE and known.state is waits:
            expected = _E.REBALANCE_IN_PROGRESS
    if got is not expected if expected is not _E.NONE else got in _FENCING:
        yield (
            "commit-fenced" if commits else "classic-answers",
            f"{request.member_id} of {request.group_id}, which is {known.state} in generation"
            f" {known.generation}, sent {type(request).__name__} in generation {generation}: {got.name}"
            f" instead of {expected.name}",
        )


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


def _fresh_assignments(records: Iterable[r.Record]) -> Iterator[Finding]:
    """Check what a leader has sent: it follows from the subscriptions in the same record."""
    for record in records:
        if isinstance(value := record.value, r.GroupMetadataValue):
            yield from check_assignment(record.key.group_id, value)
            yield from check_stickiness(record.key.group_id, value)


class WrittenGenerations:
    """The generations on record.

    A group whose members change to the other protocol keeps its generation, as its epoch, and has it again
    when they come back. A group without members keeps nothing: the group that replaces it begins at 0.
    """

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        """By group."""

    def check(self, records: Iterable[r.Record], known: Mapping[str, KnownClassic]) -> Iterator[Finding]:
        """Findings of classic-generations in one batch. `known` are the classic groups before it."""
        had_members: set[str] = set()
        """Return consumer groups that the batch ends, and that were not empty."""
        for record in records:
            key, value = record.key, record.value
            if isinstance(value, r.GroupMetadataValue):
                yield from self._write(key.group_id, value.generation)
            elif isinstance(key, r.GroupMetadataKey):
                classic = known.get(key.group_id)
                if classic is None or classic.state is _S.EMPTY:
                    self.newest.pop(key.group_id, None)
            elif isinstance(key, r.ConsumerGroupMemberMetadataKey) and value is None:
                had_members.add(key.group_id)
            elif (
                isinstance(key, r.ConsumerGroupMetadataKey)
                and value is None
                and key.group_id not in had_members
            ):
                self.newest.pop(key.group_id, None)

    def _write(self, group_id: str, generation: int) -> Iterator[Finding]:
        newest = self.newest.get(group_id, 0)
        self.newest[group_id] = generation
        if generation < newest:
            yield (
                "classic-generations",
                f"the generation of {group_id} on record fell from {newest} to {generation}",
            )


class ClassicGroupsJudge(Judge):
    """Watches the coordinators' classic groups. Consumer groups that they become are judged elsewhere."""

    def __init__(self) -> None:
        self._known: dict[str, KnownClassic] = {}
        self._written = WrittenGenerations()
        self._timers = 0
        """The most timers that the known groups may have, counted so that no step has to look at all of them.
        """

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Take the groups from a new coordinator: a group goes back to its last complete generation."""
        self._known.clear()
        self._timers = 0
        live = self.world.coordinators[host].coordinator
        if what == "active" and live is not None:
            for group in live.classic.groups.values():
                self._know(group)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one event."""
        live = self.world.coordinators[host].coordinator
        if live is None:
            return
        classic = live.classic
        if not (classic.groups or classic.stored or classic.timers or self._known or self._written.newest):
            return  # there is no classic group, nor any trace of one
        named = getattr(event, "group_id", None)
        known = self._known.get(named or "")
        reply = outcome.reply
        if known is not None and isinstance(event, HeartbeatRequest) and isinstance(reply, HeartbeatResponse):
            self.report_all(check_answer(event, reply.error_code, known))
            return
        if known is not None and isinstance(event, SyncGroupRequest) and isinstance(reply, SyncGroupResponse):
            self.report_all(check_answer(event, reply.error_code, known))
        elif known is not None and isinstance(event, OffsetCommitRequest):
            if isinstance(reply, OffsetCommitResponse) and not event.is_transactional:
                gone = missing(event, reply, live.image)
                for code in {code: None for each, code in reply.errors.items() if each not in gone}:
                    self.report_all(check_answer(event, code, known))
            return
        if counted := [record for record in outcome.records if type(record.key) in _OF_GENERATIONS]:
            self.report_all(self._written.check(counted, self._known))
        if isinstance(event, SyncGroupRequest):
            self.report_all(_fresh_assignments(outcome.records))
        for group_id in self._changed(live) if named is None else (named,):
            self._look(live, group_id)
        if len(live.classic.timers) > self._timers:
            self.report_all(_timers(live))

    def _changed(self, live: GroupCoordinator) -> list[str]:
        """The groups that an event concerned without naming one."""
        known, groups = self._known, live.classic.groups
        changed = [group_id for group_id in known if group_id not in groups]
        for group_id, group in groups.items():
            before = known.get(group_id)
            if before is None or not before.is_still(group):
                changed.append(group_id)
        return changed

    def _look(self, live: GroupCoordinator, group_id: str) -> None:
        """Take in the new state of one group."""
        group = live.classic.groups.get(group_id)
        if group is None:
            known = self._known.pop(group_id, None)
            self._timers -= 0 if known is None else known.timers
            return
        self.report_all(self._moved(group, self._known.get(group_id)))
        self.report_all(_sizes(group))
        self._know(group)

    def _know(self, group: ClassicGroup) -> None:
        before = self._known.get(group.group_id)
        now = self._known[group.group_id] = KnownClassic(group)
        self._timers += now.timers - (0 if before is None else before.timers)

    def _moved(self, group: ClassicGroup, known: KnownClassic | None) -> Iterator[Finding]:
        before = group.generation if known is None else known.generation
        if not before <= group.generation <= before + 1:
            yield (
                "classic-generations",
                f"the generation of {group.group_id} went from {before} to {group.generation}",
            )
        if known is not None and group.state is not known.state and not _reachable(known.state, group.state):
            yield (
                "transitions",
                f"{group.group_id} went from {known.state} to {group.state}, which is not an arrow of its"
                " table",
            )

    def on_end(self, now_us: int) -> None:
        """Check that the record of a group at rest agrees with it."""
        live = self.world.active
        if live is None:
            return
        for group_id, group in live.classic.groups.items():
            stored = live.classic.stored.get(group_id)
            if group.is_in(_S.STABLE, _S.EMPTY) and not _is_on_record(group, stored):
                self.report(
                    "classic-record",
                    f"{group_id}, {group.state} in generation {group.generation}, differs from its record",
                )


class ObservedClassicGroups(Judge):
    """Watches the classic group of a real coordinator through the records that it wrote."""

    def __init__(self) -> None:
        self._written = WrittenGenerations()
        self._assigned: dict[str, dict[MemberId, bytes] | None] = {}
        """The assignments of each group on record; None if it was a consumer group until now."""

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one outcome.

        A record that shows another member id or subscription assigns nothing, as one of a group that was a
        consumer group: its members hold what that gave them.
        """
        if not isinstance(event, RecordsObserved):
            return
        if event.cause != "load":
            self.report_all(self._written.check(outcome.records, {}))
        for record in outcome.records:
            key, value = record.key, record.value
            if isinstance(value, r.GroupMetadataValue):
                assigned = {member.member_id: member.assignment for member in value.members}
                before = self._assigned.get(key.group_id, {})
                self._assigned[key.group_id] = assigned
                if event.cause != "load" and before is not None and not _is_same(before, assigned):
                    self.report_all(check_assignment(key.group_id, value))
            elif isinstance(key, r.ConsumerGroupMetadataKey) and value is None:
                self._assigned[key.group_id] = None


def _is_same(before: Mapping[MemberId, bytes], after: Mapping[MemberId, bytes]) -> bool:
    """Return true if no leader has assigned anything: a static member at most has another id."""
    return before == after or (
        before.keys() != after.keys() and sorted(before.values()) == sorted(after.values())
    )


def _is_on_record(group: ClassicGroup, stored: r.GroupMetadataValue | None) -> bool:
    """Compare all but the time at which it entered its state: that is after the write."""
    if stored is None:
        return False
    moved = stored.current_state_timestamp_ms
    live = group.value(group.assignments)
    return msgspec.structs.replace(live, current_state_timestamp_ms=moved) == stored


def _reachable(source: ClassicGroupState, target: ClassicGroupState) -> bool:
    """Return true if one event may lead from one state to the other: it may start a round and end it."""
    table = CLASSIC_GROUP_TABLE
    return table.allows(source, target) or (
        table.allows(source, _S.PREPARING_REBALANCE) and table.allows(_S.PREPARING_REBALANCE, target)
    )


def _sizes(group: ClassicGroup) -> Iterator[Finding]:
    instances = [*map(_INSTANCE, group.members.values())]
    static = len(instances) - instances.count(None)
    if len(group.static_members) != static:
        yield (
            "static-bijection",
            f"{group.group_id} has {static} static members and {len(group.static_members)} instance ids",
        )
    if strangers := [each for each in group.pending_syncs if each not in group.members]:
        yield "bounded-memory", f"{group.group_id} waits for {strangers}, which are not members"


def _most_timers(group: ClassicGroup) -> int:
    return len(group.members) + len(group.pending_joins) + 2


def _timers(live: GroupCoordinator) -> Iterator[Finding]:
    limit = sum(map(_most_timers, live.classic.groups.values()))
    if len(live.classic.timers) > limit:
        yield (
            "bounded-memory",
            f"{len(live.classic.timers)} timers of classic groups run, {limit} at most are for members",
        )
