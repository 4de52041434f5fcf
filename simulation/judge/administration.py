"""Replies to administrators about groups, and the effects of their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.classic import (
    DescribedClassicMember,
    DescribeGroupsRequest,
)
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedMember,
    LeaveGroupBatchRequest,
    ListGroupsRequest,
    MemberType,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import OffsetCommitKey, PendingOffsetCommitKey, Record
from fencepost.simulation.judge.base import OF_LOG, Finding, shown_names
from fencepost.simulation.judge.consumer_model import group_state

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.judge.journal import Shadow
    from fencepost.simulation.kernel.observers import StepEvent

_NONE: Final = ErrorCode.NONE
_OF_OFFSETS: Final = frozenset({OffsetCommitKey, PendingOffsetCommitKey})


class AdministrationChecks:
    """Judges the replies to administrators, and the effects of their requests. `before` is the state that a
    request met."""

    def __init__(self, default_assignor: str) -> None:
        self._default_assignor = default_assignor
        self._committed: set[str] = set()
        """Groups for which offsets were committed, whether any of them is left or not."""
        self._told: Mapping[type, Callable[[GroupCoordinator, Any, Any], Iterator[Finding]]] = {
            ListGroupsRequest: self._listed,
            ConsumerGroupDescribeRequest: self._described,
            DescribeGroupsRequest: self._described_classic,
        }
        self._changed: Mapping[type, Callable[..., Iterator[Finding]]] = {
            OffsetDeleteRequest: self._offsets_deleted,
            DeleteGroupsRequest: self._deleted,
            LeaveGroupBatchRequest: self._removed,
        }

    def check(
        self, live: GroupCoordinator, shadow: Shadow, event: StepEvent, outcome: Outcome
    ) -> Iterator[Finding]:
        """Findings of one step, which administrators may have requested; the shadow has not taken it in."""
        if isinstance(event, OffsetCommitRequest):
            self._committed.add(event.group_id)
        told, changed = self._told.get(type(event)), self._changed.get(type(event))
        if told is not None:
            yield from told(live, event, outcome.reply)
        elif changed is not None and not _was_not_written(outcome.reply):
            yield from changed(live, shadow.coordinator, event, outcome.reply)

    def adopt(self, records: Iterable[Record]) -> None:
        """Take in the records that were in the journal before the first check."""
        self._committed.update(each.key.group_id for each in records if type(each.key) in _OF_OFFSETS)

    # -- replies --------------------------------------------------------------------------------------------

    def _listed(self, live: GroupCoordinator, request: ListGroupsRequest, reply: Any) -> Iterator[Finding]:
        rows = {
            group_id: (_state_of(group), "consumer", "consumer") for group_id, group in live.groups.items()
        }
        for group_id, classic in live.classic.groups.items():
            rows[group_id] = str(classic.state), "classic", classic.protocol_type or ""
        for group_id, streams in live.streams.groups.items():
            rows[group_id] = str(streams.state), "streams", "streams"
        for group_id in self._committed:
            if group_id in live.offsets:
                rows.setdefault(group_id, ("Empty", "classic", ""))
        states = {each.strip().lower().replace("_", "") for each in request.states_filter}
        types = {each.lower() for each in request.types_filter}
        expected = {
            group_id: row
            for group_id, row in rows.items()
            if (not states or row[0].lower() in states) and (not types or row[1] in types)
        }
        told = {
            each.group_id: (each.group_state, each.group_type, each.protocol_type) for each in reply.groups
        }
        if told != expected or list(told) != sorted(told) or len(told) != len(reply.groups):
            yield "told-equals-state", f"{request} returned {told}; expected {expected}"

    def _described(
        self, live: GroupCoordinator, request: ConsumerGroupDescribeRequest, reply: Any
    ) -> Iterator[Finding]:
        if [each.group_id for each in reply.groups] != [*request.group_ids]:
            yield "told-equals-state", f"{request} returned other groups"
            return
        for told in reply.groups:
            group = live.groups.get(told.group_id)
            if group is None:
                right = ErrorCode.GROUP_ID_NOT_FOUND if told.group_id else ErrorCode.INVALID_GROUP_ID
                if told.error_code is not right or told.members:
                    yield (
                        "told-equals-state",
                        f"the description of a missing group {told.group_id!r} is {told}",
                    )
                continue
            yield from self._of_group(live, group, told)

    def _of_group(
        self, live: GroupCoordinator, group: ConsumerGroup, told: DescribedGroup
    ) -> Iterator[Finding]:
        epochs = told.error_code, told.group_state, told.group_epoch, told.assignment_epoch
        stored = _NONE, _state_of(group), group.group_epoch, group.assignment_epoch
        if epochs != stored:
            yield "told-equals-state", f"{group.group_id} is at {epochs} in its description; it has {stored}"
        named = {each.server_assignor for each in group.members.values()} - {None}
        default = self._default_assignor
        if told.assignor_name != default and told.assignor_name not in named:
            yield (
                "told-equals-state",
                f"{group.group_id} has assignor {told.assignor_name!r} in its description",
            )
        if [each.member_id for each in told.members] != sorted(group.members):
            yield "told-equals-state", f"{group.group_id} has other members in its description"
            return
        for each in told.members:
            member = group.members[each.member_id]
            yield from _of_member(live, group, member, each)

    def _described_classic(
        self, live: GroupCoordinator, request: DescribeGroupsRequest, reply: Any
    ) -> Iterator[Finding]:
        if [each.group_id for each in reply.groups] != [*request.group_ids]:
            yield "told-equals-state", f"{request} returned other groups"
            return
        for told in reply.groups:
            classic = live.classic.groups.get(told.group_id)
            expected = _as_classic(live, told.group_id) if classic is None else _of_classic(classic)
            shown = (
                told.group_state,
                told.error_code,
                told.protocol_type,
                told.protocol_data,
                set(told.members),
            )
            if shown != expected:
                yield (
                    "told-equals-state",
                    f"{told.group_id!r} is {shown} in its description; expected {expected}",
                )

    # -- changes --------------------------------------------------------------------------------------------

    def _offsets_deleted(
        self, live: GroupCoordinator, before: GroupCoordinator, request: OffsetDeleteRequest, reply: Any
    ) -> Iterator[Finding]:
        group_id = request.group_id
        had = {partition for partition, _ in before.offsets.committed(group_id)}
        group = live.groups.get(group_id)
        if reply.error_code is not _NONE:
            if group is not None or (had and live.kinds.find(group_id) is None):
                yield "admin-changes", f"{request} was refused with {reply.error_code.name}"
            return
        if group is None and live.kinds.find(group_id) is not None:
            return  # members of other kinds of group may subscribe to anything
        subscribed = set() if group is None else _subscribed(group)
        gone = set()
        for partition in request.partitions:
            topic, right = live.image.by_name.get(partition.topic), _NONE
            if topic is None or partition.partition >= topic.partitions:
                right = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.topic in subscribed:
                right = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                gone.add(partition)
            if (told := reply.errors.get(partition)) is not right:
                yield "admin-changes", f"{request}: {partition} got {told} instead of {right.name}"
        left = {partition for partition, _ in live.offsets.committed(group_id)}
        if left != had - gone:
            yield "admin-changes", f"{request} left {shown_names(left)} of {shown_names(had)}"

    def _deleted(
        self, live: GroupCoordinator, before: GroupCoordinator, request: DeleteGroupsRequest, reply: Any
    ) -> Iterator[Finding]:
        group_id, code = request.group_id, reply.error_code
        group, is_there = before.groups.get(group_id), live.kinds.find(group_id) is not None
        if code is _NONE:
            if is_there or group_id in live.offsets or (group is not None and group.members):
                yield "admin-changes", f"{group_id} was deleted: it had members, or is still there"
        elif code is ErrorCode.NON_EMPTY_GROUP:
            if not is_there or (group is not None and not group.members):
                yield "admin-changes", f"{group_id} is empty, and was not deleted"
        elif code is not ErrorCode.GROUP_ID_NOT_FOUND or is_there or group_id in before.offsets:
            yield "admin-changes", f"{group_id} was not deleted: {code.name}"

    def _removed(
        self, live: GroupCoordinator, before: GroupCoordinator, request: LeaveGroupBatchRequest, reply: Any
    ) -> Iterator[Finding]:
        group = before.groups.get(request.group_id)
        if group is None:
            return  # no record has a classic group's members before their generation is complete
        had = group.members
        by_instance = {each.instance_id: each.member_id for each in had.values() if each.instance_id}
        expected: list[ErrorCode] = []
        gone: set[str] = set()
        for one in request.members:
            holder = one.member_id if one.instance_id is None else by_instance.get(one.instance_id)
            if holder is None or holder not in had:
                expected.append(ErrorCode.UNKNOWN_MEMBER_ID)
            elif one.instance_id is not None and one.member_id not in ("", holder):
                expected.append(ErrorCode.FENCED_INSTANCE_ID)
            else:
                expected.append(_NONE)
                gone.add(holder)
        told = [each.error_code for each in reply.members]
        if told != expected:
            yield "admin-changes", f"{request} returned {told} instead of {expected}"
        found = live.kinds.find(request.group_id)
        left = set() if found is None else {*found[1].members}
        if left != had.keys() - gone:
            yield "admin-changes", f"{request} left {sorted(left)} of {sorted(had)}"


def _was_not_written(reply: Any) -> bool:
    """Return true if the log accepted no records then: nothing has changed."""
    return reply.error_code in OF_LOG


def _state_of(group: ConsumerGroup) -> str:
    return str(group_state(group.members.values(), group.group_epoch, group.assignment_epoch))


def _of_member(
    live: GroupCoordinator, group: ConsumerGroup, member: ConsumerGroupMember, told: DescribedMember
) -> Iterator[Finding]:
    stored = (
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        member.subscribed_topic_names,
        member.subscribed_topic_regex,
        MemberType.CONSUMER if member.classic is None else MemberType.CLASSIC,
    )
    shown = (
        told.instance_id,
        told.rack_id,
        told.member_epoch,
        told.client_id,
        told.client_host,
        told.subscribed_topic_names,
        told.subscribed_topic_regex,
        told.member_type,
    )
    if stored != shown:
        yield "told-equals-state", f"{told.member_id} has {shown} in its description; stored is {stored}"
    for what, parts, held in (
        ("assignment", told.assignment, (member.assigned, member.pending_revocation)),
        ("target", told.target_assignment, (group.targets.get(member.member_id, {}),)),
    ):
        expected = {
            (topic_id, live.image.by_id[topic_id].name, number)
            for part in held
            for topic_id, numbers in part.items()
            if topic_id in live.image.by_id
            for number in numbers
        }
        partitions = [
            (each.topic_id, each.topic_name, number) for each in parts for number in each.partitions
        ]
        if {*partitions} != expected or len(partitions) != len(expected):
            yield (
                "told-equals-state",
                f"the {what} of {told.member_id} is {partitions} in its description; expected {expected}",
            )


_ClassicView = tuple[str, ErrorCode, str, str, set[DescribedClassicMember]]


def _as_classic(live: GroupCoordinator, group_id: str) -> _ClassicView:
    """Return a group of another kind as DescribeGroups shows it: offsets alone are an empty group."""
    if live.kinds.find(group_id) is None and group_id in live.offsets:
        return "Empty", _NONE, "", "", set()
    return "Dead", ErrorCode.GROUP_ID_NOT_FOUND, "", "", set()


def _of_classic(group: ClassicGroup) -> _ClassicView:
    stable = str(group.state) == "Stable"
    members = {
        DescribedClassicMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            metadata={each.name: each.metadata for each in member.protocols}.get(group.protocol or "", b"")
            if stable
            else b"",
            assignment=member.assignment,
        )
        for member in group.members.values()
    }
    protocol = (group.protocol or "") if stable else ""
    return str(group.state), _NONE, group.protocol_type or "", protocol, members


def _subscribed(group: ConsumerGroup) -> set[str]:
    """The topics that members subscribe to, by name or by an expression."""
    names: set[str] = set()
    for member in group.members.values():
        names.update(member.subscribed_topic_names)
        if (found := group.resolved.get(member.subscribed_topic_regex or "")) is not None:
            names.update(found.topics)
    return names
