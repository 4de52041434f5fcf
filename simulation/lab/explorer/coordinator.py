"""The coordinator between two events: the records that it would load, and the topics that it knows.

Each step is one of a coordinator that has just loaded, so that a failover may come before any of them. The
judges of simulated runs look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.encoding import encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.ids import STATIC_LEAVE_EPOCH, MemberId
from fencepost.coordinator.protocol.outcome import NOTHING, Event, TopicsChanged
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.coordination import Coordination
from fencepost.simulation.judge.liveness import uncovered, unsettled
from fencepost.simulation.lab.explorer.process import GROUP

CONFIG: Final = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=0)
"""A broker's defaults, except the pause between two targets: no time passes here."""
_HOST: Final = "broker"


class CoordinatorState(msgspec.Struct, frozen=True):
    """The relevant state of a coordinator: the newest record of each key, in one order, and the topics."""

    records: tuple[Record, ...] = ()
    image: TopicsImage = TopicsImage()

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for equal states."""
        return self.image.version, *(encode(record) for record in self.records)


class CoordinatorStep(msgspec.Struct, frozen=True):
    """The result of an event."""

    state: CoordinatorState
    reply: Any
    records: tuple[Record, ...]
    removed: tuple[MemberId, ...]
    """Members whose claims are void from now on."""
    findings: tuple[Finding, ...]


class _Host:
    """The host that judges look at: one broker, which is in charge."""

    name = _HOST
    status = "active"
    now_us = 0
    group_id = GROUP
    config = CONFIG

    def __init__(self, coordinator: GroupCoordinator, journal: MemoryJournal) -> None:
        self.coordinator = self.active = coordinator
        self.journal = journal
        self.coordinators = {_HOST: self}


def load(state: CoordinatorState, journal: MemoryJournal) -> CoordinatorHost[GroupCoordinator]:
    """Return the coordinator in this state, with an empty journal for its records."""
    journal.append(state.records)
    coordinator = GroupCoordinator(CONFIG)
    coordinator.replay(journal, 0)
    host = CoordinatorHost(coordinator, journal)
    host.process(TopicsChanged(image=state.image))
    return host


def step(state: CoordinatorState, event: Event) -> CoordinatorStep:
    """Run one event, and judge it. An exception of the coordinator is a finding, and changes nothing."""
    journal = MemoryJournal()
    coordinator_host = load(state, journal)
    coordinator = coordinator_host.coordinator
    judge, findings = Coordination(), list[Finding]()
    host: Any = _Host(coordinator, journal)
    judge.attach(host, lambda invariant, message, rule="": findings.append((invariant, message)))
    judge.adopt(coordinator, 0)
    try:
        outcome = coordinator_host.process(event)
    except Exception as error:
        raised = ("transitions", f"the coordinator raised {type(error).__name__}: {error}")
        return CoordinatorStep(state, None, (), (), (raised,))
    judge.on_coordinator_step(_HOST, event, outcome, 0)
    image = event.image if isinstance(event, TopicsChanged) else state.image
    after = CoordinatorState(_newest(state.records, outcome.records), image)
    removed = tuple(_removed(outcome.records))
    return CoordinatorStep(after, outcome.reply, outcome.records, removed, tuple(findings))


def differences(
    before: CoordinatorState, events: Iterable[Event], step: CoordinatorStep
) -> Iterator[Finding]:
    """Yield what a coordinator that was in another state, and went on, does differently with the last of the
    events.

    It has in memory what it keeps in addition to its records: timers, responses that it may give again, what
    it knows of topics. One that has just loaded has none of that, and must do the same in `step`.
    """
    host, outcome = load(before, MemoryJournal()), NOTHING
    try:
        for event in events:
            outcome = host.process(event)
    except Exception as error:
        yield "transitions", f"the coordinator raised {type(error).__name__}: {error}"
        return
    if outcome.reply != step.reply:
        other = ", ".join(_different(outcome.reply, step.reply))
        yield "journal-replay", f"a coordinator's memory makes it respond with {other}"
    if outcome.records != step.records:
        written = f"{len(outcome.records)} records, not {len(step.records)} as if it had just loaded"
        yield "journal-replay", f"a coordinator's memory makes it write {written}"


def _different(one: Any, other: Any) -> Iterator[str]:
    """Yield the fields of a response that differ from the other one."""
    there = msgspec.structs.asdict(other)
    for name, value in msgspec.structs.asdict(one).items():
        if value != there[name]:
            yield f"{name} {value!r}, not {there[name]!r}"


def _removed(records: Iterable[Record]) -> Iterator[MemberId]:
    """Yield members that have been removed, and static ones that have left for a while."""
    for record in records:
        key, value = record.key, record.value
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            placed = value if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue) else None
            if placed is None or placed.member_epoch == STATIC_LEAVE_EPOCH:
                yield key.member_id


def members(state: CoordinatorState) -> tuple[MemberId, ...]:
    """Return the members of the group, sorted."""
    keys = (record.key for record in state.records)
    return tuple(key.member_id for key in keys if isinstance(key, ConsumerGroupMemberMetadataKey))


def epochs_if_settled(state: CoordinatorState) -> Mapping[MemberId, int] | None:
    """Return the members' epochs if the group is stable, all have their targets, and nothing is left over."""
    coordinator = load(state, MemoryJournal()).coordinator
    group = coordinator.groups.get(GROUP)
    if group is None:
        return {}
    default = CONFIG.group_consumer_assignors[0]
    if any(unsettled(group, group.members)) or any(uncovered(group, state.image, default)):
        return None
    return {member_id: member.member_epoch for member_id, member in group.members.items()}


_LOADED: Final = (
    ConsumerGroupMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
)
"""Keys in an order in which they can be loaded."""


def _newest(old: Iterable[Record], new: Iterable[Record]) -> tuple[Record, ...]:
    """Return the records that are left when a journal is compacted, in one order whatever came first."""
    newest = {record.key: record for record in (*old, *new)}
    left = [record for record in newest.values() if record.value is not None]
    return tuple(sorted(left, key=_place))


def _place(record: Record) -> tuple[int, MemberId]:
    return _LOADED.index(type(record.key)), getattr(record.key, "member_id", "")
