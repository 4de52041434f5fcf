"""Replies to administrators about groups, and the effects of their requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fencepost.coordinator.protocol.classic import (
    DescribedClassicGroup,
    DescribedClassicMember,
    DescribeGroupsRequest,
)
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedMember,
    DescribedPartitions,
    LeaveGroupBatchRequest,
    ListedGroup,
    ListGroupsRequest,
    MemberType,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.simulation.judge.base import OF_LOG, Finding, repeated, shown_names
from fencepost.simulation.judge.consumer_model import group_state, held
from fencepost.simulation.judge.targets import assignor_of

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.judge.journal import Shadow
    from fencepost.simulation.kernel.observers import StepEvent

_NONE: Final = ErrorCode.NONE


class AdministrationChecks:
    """Judges the replies to administrators, and the effects of their requests. `before` is the state that a
    request met."""

    def __init__(self, default_assignor: str, committed: Collection[str]) -> None:
        self._default_assignor = default_assignor
        self._committed = committed
        """Groups for which offsets may have been committed, whether any of them is left or not."""
        self._told: Mapping[type, Callable[[GroupCoordinator, Any, Any], Iterable[object]]] = {
            ListGroupsRequest: self._listed,
            ConsumerGroupDescribeRequest: self._described,
            DescribeGroupsRequest: _described_classic,
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
        told, changed = self._told.get(type(event)), self._changed.get(type(event))
        if told is not None:
            reply: Any = outcome.reply
            for shown, expected in zip_longest(reply.groups, told(live, event, reply)):
                text = getattr(shown, "error_message", None)
                if (msgspec.structs.replace(shown, error_message=None) if text else shown) != expected:
                    yield "told-equals-state", f"{event} returned {shown}; expected {expected}"
        elif changed is not None and not _was_not_written(outcome.reply):
            yield from changed(live, shadow.coordinator, event, outcome.reply)

    # -- replies --------------------------------------------------------------------------------------------

    def _listed(self, live: GroupCoordinator, request: ListGroupsRequest, _: object) -> list[ListedGroup]:
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
        return [
            ListedGroup(group_id=group_id, group_state=state, group_type=kind, protocol_type=protocol)
            for group_id, (state, kind, protocol) in sorted(rows.items())
            if (not states or state.lower() in states) and (not types or kind in types)
        ]

    def _described(
        self, live: GroupCoordinator, request: ConsumerGroupDescribeRequest, reply: Any
    ) -> Iterator[DescribedGroup]:
        default = self._default_assignor
        told = {each.group_id: each.assignor_name for each in reply.groups}
        for group_id in request.group_ids:
            group = live.groups.get(group_id)
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
                yield DescribedGroup(group_id=group_id, error_code=code)
                continue
            assignor = assignor_of(group.members.values(), default)
            if assignor is None:  # in a draw the group may choose
                named = {member.server_assignor for member in group.members.values()}
                assignor = shown if (shown := told.get(group_id)) in named and shown else default
            yield DescribedGroup(
                group_id=group_id,
                group_state=_state_of(group),
                group_epoch=group.group_epoch,
                assignment_epoch=group.assignment_epoch,
                assignor_name=assignor,
                members=tuple(
                    _described_member(live, member, group.targets.get(member_id, NO_PARTITIONS))
                    for member_id, member in sorted(group.members.items())
                ),
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
        right = delete_errors(request, live.image, () if group is None else _subscribed(group))
        if reply.errors != right:
            yield "admin-changes", f"{request} was answered {reply} instead of {right}"
        gone = {partition for partition, code in right.items() if code is _NONE}
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


def delete_errors(
    request: OffsetDeleteRequest, image: TopicsImage, subscribed: Collection[str], *, every: bool = False
) -> dict[TopicPartition, ErrorCode]:
    """Return the error of each partition whose offset is to be deleted; `subscribed` are the topics that
    members may need, or `every` one."""
    errors = dict.fromkeys(request.partitions, _NONE)
    for partition in errors:
        topic = image.by_name.get(partition.topic)
        if topic is None or partition.partition >= topic.partitions:
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif every or partition.topic in subscribed:
            errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return errors


def _was_not_written(reply: Any) -> bool:
    """Return true if the log accepted no records then: nothing has changed."""
    return reply.error_code in OF_LOG


def _state_of(group: ConsumerGroup) -> str:
    return str(group_state(group.members.values(), group.group_epoch, group.assignment_epoch))


def _described_member(
    live: GroupCoordinator, member: ConsumerGroupMember, target: Partitions
) -> DescribedMember:
    return DescribedMember(
        **repeated(member, DescribedMember),
        assignment=_named(live, held(member)),
        target_assignment=_named(live, target),
        member_type=MemberType.CONSUMER if member.classic is None else MemberType.CLASSIC,
    )


def _named(live: GroupCoordinator, partitions: Partitions) -> tuple[DescribedPartitions, ...]:
    topics = (live.image.by_id[topic_id] for topic_id in partitions if topic_id in live.image.by_id)
    return tuple(
        DescribedPartitions(topic_id=topic_id, topic_name=name, partitions=partitions[topic_id])
        for name, topic_id in sorted((topic.name, topic.topic_id) for topic in topics)
    )


def _described_classic(
    live: GroupCoordinator, request: DescribeGroupsRequest, _: object
) -> Iterator[DescribedClassicGroup]:
    """Offsets alone are an empty group."""
    for group_id in request.group_ids:
        group = live.classic.groups.get(group_id)
        if group is None:
            is_empty = live.kinds.find(group_id) is None and group_id in live.offsets
            state, code = ("Empty", _NONE) if is_empty else ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
            yield DescribedClassicGroup(group_id=group_id, group_state=state, error_code=code)
            continue
        chosen = (group.protocol or "") if str(group.state) == "Stable" else ""
        yield DescribedClassicGroup(
            group_id=group_id,
            group_state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_data=chosen,
            members=tuple(
                DescribedClassicMember(
                    **repeated(member, DescribedClassicMember)
                    | {"metadata": {each.name: each.metadata for each in member.protocols}.get(chosen, b"")}
                )
                for member in group.members.values()
            ),
        )


def _subscribed(group: ConsumerGroup) -> set[str]:
    """The topics that members subscribe to, by name or by an expression."""
    names: set[str] = set()
    for member in group.members.values():
        names.update(member.subscribed_topic_names)
        if (found := group.resolved.get(member.subscribed_topic_regex or "")) is not None:
            names.update(found.topics)
    return names
