"""A coordinator of ours that plays the records of another one, outcome by outcome, for observers.

The other one is a real coordinator, or a simulated one that is judged as if it were real. Observers are
notified as in the simulated world, with a `RecordsObserved` in place of the event that was not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import InconsistentRecord
from fencepost.coordinator.protocol.ids import MemberId, TopicId
from fencepost.coordinator.protocol.outcome import Outcome, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.kernel.observers import RecordsObserved, hook_lists
from fencepost.simulation.lab.chaos.merge import commit_before, marks_of

Hooks: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]
"""Observers' methods by hook, as `hook_lists` makes them."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One outcome of the real coordinator, or several that can't be told apart."""

    t_us: int
    """Time since the start of the run, by the broker's clock: the end of the millisecond that it wrote."""
    timestamp_ms: int
    offset: int
    leader: int
    leader_epoch: int
    records: tuple[Record, ...]
    image: TopicsImage
    """Topics as the broker knew them when the records had been read."""
    unsettled: frozenset[TopicId]

    @property
    def marks(self) -> tuple[Hashable, ...]:
        """The marks that responses to members may wait for."""
        return tuple(marks_of(self.records))

    @property
    def after(self) -> Hashable | None:
        """The mark that the arrival itself waits for, if members report their commits."""
        return commit_before(self.records)


class PlayedCoordinator:
    """One group. `coordinator` is ours, with the state of the outcomes that were played.

    `config` is the other coordinator's, as far as judges need it. `hooks` may be set until the first
    arrival is played.
    """

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupCoordinatorConfig | None = None,
        hooks: Hooks | None = None,
        leader_epoch: int = -1,
    ) -> None:
        self.group_id = group_id
        self.coordinator = GroupCoordinator(GroupCoordinatorConfig() if config is None else config)
        self.hooks: Hooks = hook_lists(()) if hooks is None else hooks
        self._left: set[MemberId] = set()
        self._revoking_since: dict[MemberId, int] = {}
        self.leader_epoch = leader_epoch
        """The leader epoch of what was played last; -1 if nothing was."""

    def left(self, member_id: MemberId) -> None:
        """Note that this member sent its leave: its removal is not a timeout."""
        self._left.add(member_id)

    def play(self, arrival: Arrival, now_us: int) -> None:
        """Apply an outcome, and notify observers. Arrivals are played in the order in which they came."""
        coordinator, host = self.coordinator, f"broker-{arrival.leader}"
        if arrival.leader_epoch != self.leader_epoch:
            if self.leader_epoch >= 0:
                self._tell("on_coordinator_state", host, "active", now_us)
            self.leader_epoch = arrival.leader_epoch
        if arrival.image is not coordinator.image:
            coordinator.handle(TopicsChanged(image=arrival.image), now_us // 1_000)
        cause, removed = self._cause(arrival.records), self._removals(arrival.records, now_us)
        applied, refused = [], []
        for record in arrival.records:
            try:
                key, value = record.key, record.value
                if isinstance(key, r.GroupMetadataKey) and isinstance(value, r.GroupMetadataValue | None):
                    coordinator.classic.follow(key, value)
                else:
                    coordinator.apply(record)
                applied.append(record)
            except InconsistentRecord as error:
                refused.append(f"offset {arrival.offset}: {error}")
        self._note_revocations(arrival.records, now_us)
        event = RecordsObserved(
            group_id=self.group_id,
            cause=cause,
            removed=removed,
            unsettled=arrival.unsettled,
            refused=tuple(refused),
        )
        self._tell("on_coordinator_step", host, event, Outcome(records=tuple(applied)), now_us)

    def _tell(self, hook: str, *arguments: object) -> None:
        for method in self.hooks[hook]:
            method(*arguments)

    def _cause(self, records: Sequence[Record]) -> str:
        """Return the cause of a raise of the group's epoch, as far as the records show it."""
        classic = self._classic_change(records)
        if classic is not None:
            came, went = classic
            if came or not went:
                return "join" if came else "full"
            return "leave" if all(member_id in self._left for member_id in went) else "timeout"
        group = self.coordinator.groups.get(self.group_id)
        members = {} if group is None else group.members
        told = [
            each.key.member_id
            for each in records
            if isinstance(each.key, r.ConsumerGroupMemberMetadataKey) and each.value is not None
        ]
        if told:
            return "full" if all(member_id in members for member_id in told) else "join"
        gone = [
            each.key.member_id
            for each in records
            if isinstance(each.key, r.ConsumerGroupMemberMetadataKey) and each.value is None
        ]
        if gone:
            return "leave" if all(member_id in self._left for member_id in gone) else "timeout"
        if any(isinstance(each.key, r.ConsumerGroupRegularExpressionKey) for each in records):
            return "expressions"
        return "topics" if any(isinstance(each.key, r.ConsumerGroupMetadataKey) for each in records) else ""

    def _removals(self, records: Sequence[Record], now_us: int) -> dict[MemberId, str]:
        if (classic := self._classic_change(records)) is not None:
            reasons = {each: "left" if each in self._left else "session" for each in classic[1]}
            self._left.difference_update(reasons)
            return reasons
        group = self.coordinator.groups.get(self.group_id)
        if group is None:
            return {}
        found: dict[MemberId, str] = {}
        replaced = False
        for each in records:
            key = each.key
            if not isinstance(key, r.ConsumerGroupMemberMetadataKey):
                continue
            if each.value is not None:
                replaced = replaced or bool(found)
            elif (member := group.members.get(key.member_id)) is not None:
                since = self._revoking_since.get(key.member_id)
                slow = since is not None and now_us - since >= 1_000 * member.rebalance_timeout_ms
                found[key.member_id] = (
                    "left" if key.member_id in self._left else "rebalance" if slow else "session"
                )
                self._left.discard(key.member_id)
        return dict.fromkeys(found, "replaced") if replaced else found

    def _classic_change(self, records: Sequence[Record]) -> tuple[set[MemberId], set[MemberId]] | None:
        """Return the members that joined and left with a classic group's record; None if it is about no such
        group."""
        value = next((each.value for each in records if isinstance(each.value, r.GroupMetadataValue)), None)
        if value is None:
            return None
        group = self.coordinator.classic.groups.get(self.group_id)
        before = set() if group is None else {*group.members}
        now = {member.member_id for member in value.members}
        return now - before, before - now

    def _note_revocations(self, records: Sequence[Record], now_us: int) -> None:
        unrevoked = ConsumerGroupMemberState.UNREVOKED_PARTITIONS.code
        for each in records:
            key, value = each.key, each.value
            if not isinstance(key, r.ConsumerGroupCurrentMemberAssignmentKey):
                continue
            if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue) and value.state == unrevoked:
                self._revoking_since.setdefault(key.member_id, now_us)
            else:
                self._revoking_since.pop(key.member_id, None)
