"""The deletions of administrators in classic groups: offsets that no member needs, and groups without
members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.classic import CONSUMER_PROTOCOL_TYPE
from fencepost.coordinator.protocol.consumer import DeleteGroupsResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest, OffsetDeleteResponse
from fencepost.simulation.judge.base import Finding, shown_names
from fencepost.simulation.judge.classic_account import ExpectedGroup
from fencepost.simulation.judge.classic_expected import EMPTY

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator

_E = ErrorCode
_NONE = ErrorCode.NONE


def check_deleted(account: ExpectedGroup, reply: DeleteGroupsResponse) -> Iterator[Finding]:
    """Findings of a request to delete a group; it can be deleted exactly while it has no members."""
    right = _NONE if account.phase is EMPTY else _E.NON_EMPTY_GROUP
    if reply.error_code is not right:
        yield (
            "admin-changes",
            f"{account.group_id}, {account.phase} with {sorted(account.members)}, was to be deleted:"
            f" {reply.error_code.name} instead of {right.name}",
        )


def check_offsets_deleted(
    account: ExpectedGroup, request: OffsetDeleteRequest, reply: OffsetDeleteResponse, live: GroupCoordinator
) -> Iterator[Finding]:
    """Findings of a request to delete offsets: offsets of topics that no consumer subscribes to are deleted.

    The topics of members that are not consumers are unknown: nothing is deleted.
    """
    if account.phase is not EMPTY and account.protocol_type != CONSUMER_PROTOCOL_TYPE:
        if reply.error_code is not _E.NON_EMPTY_GROUP:
            yield (
                "admin-changes",
                f"offsets of {account.group_id}, a group of {account.protocol_type}, were deleted",
            )
        return
    right = {each: _error_of(account, each, live) for each in request.partitions}
    left = {each for each, _ in live.offsets.committed(account.group_id)}
    kept = {each for each, code in right.items() if code is _NONE} & left
    if reply.error_code is not _NONE or dict(reply.errors) != right or kept:
        yield (
            "admin-changes",
            f"{request} to {account.group_id}, {account.phase} with members of {account.topics}, was answered"
            f" {reply}, and left {shown_names(kept)}",
        )


def _error_of(account: ExpectedGroup, partition: TopicPartition, live: GroupCoordinator) -> ErrorCode:
    topic = live.image.by_name.get(partition.topic)
    if topic is None or partition.partition >= topic.partitions:
        return _E.UNKNOWN_TOPIC_OR_PARTITION
    subscribed = account.phase is not EMPTY and (account.topics is None or partition.topic in account.topics)
    return _E.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else _NONE
