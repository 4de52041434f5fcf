"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

OffsetCommit: 2 to 4 have a retention time, 6 brings leader epochs, 7 the instance id, 9 member epochs, 10
topic ids in place of names. OffsetFetch: 2 brings "all topics" and an error for the group, 7 stable offsets,
8 several groups, 9 member epochs, 10 topic ids.

Names and ids are resolved by the server, which knows the topics; so these messages still have both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.layout import EMPTY_FOR_NULL, Layout, only
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import NO_OFFSET, OffsetAndMetadata


class CommittedPartition(msgspec.Struct, frozen=True):
    """The position to commit for one partition."""

    partition: int
    offset: OffsetAndMetadata


class OffsetCommitCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetCommit request before its topics are looked up."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    retention_time_ms: int
    api_version: int
    topics: tuple[OfTopic[CommittedPartition], ...]


class PartitionError(msgspec.Struct, frozen=True):
    """A code for one partition."""

    partition: int
    error_code: ErrorCode


class OffsetCommitReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each partition of the request, in its order."""

    topics: tuple[OfTopic[PartitionError], ...]


class OffsetFetchGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of an OffsetFetch; `topics` None asks for all offsets."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = NO_EPOCH
    topics: tuple[OfTopic[int], ...] | None


class OffsetFetchCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetFetch request before its topics are looked up."""

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool
    api_version: int


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The committed position of one partition."""

    partition: int
    offset: OffsetAndMetadata = NO_OFFSET
    error_code: ErrorCode = ErrorCode.NONE


class FetchedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The committed positions of one group. With an error, `topics` are those of the request."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[OfTopic[FetchedOffset], ...] = ()


class OffsetFetchReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each group of the request, in its order."""

    groups: tuple[FetchedGroup, ...]


class OffsetDeleteCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetDelete request before its topics are looked up."""

    group_id: str
    topics: tuple[OfTopic[int], ...]


class OffsetDeleteReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for the group, and one for each partition when that is NONE."""

    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[OfTopic[PartitionError], ...] = ()


def of_topic(partitions: Layout | None = None, *, names: dict[str, str] | None = None) -> Layout:
    """Something about partitions of topics, which have names or ids."""
    return Layout(OfTopic, names, fields={} if partitions is None else {"partitions": partitions})


_POSITION = {
    "partition": "partition_index",
    "offset.offset": "committed_offset",
    "offset.leader_epoch": "committed_leader_epoch",
}


COMMITTED = of_topic(
    Layout(
        CommittedPartition,
        _POSITION | {"offset.metadata": "committed_metadata"},
        fields={"offset.metadata": EMPTY_FOR_NULL},
        read=lambda values, _: CommittedPartition(
            values["partition"],
            OffsetAndMetadata(
                offset=values["offset.offset"],
                leader_epoch=values.get("offset.leader_epoch", NO_EPOCH),
                metadata=values["offset.metadata"],
            ),
        ),
    )
)
"""Positions to commit, of an OffsetCommit or a TxnOffsetCommit."""
ERRORS = of_topic(Layout(PartitionError, {"partition": "partition_index"}))
_ASKED = of_topic(names={"partitions": "partition_indexes"})
_FETCHED = of_topic(
    Layout(
        FetchedOffset,
        _POSITION | {"offset.metadata": "metadata"},
        fields={"offset.metadata": EMPTY_FOR_NULL},
        read=lambda values, _: FetchedOffset(
            partition=values["partition"],
            offset=OffsetAndMetadata(
                offset=values["offset.offset"],
                leader_epoch=values.get("offset.leader_epoch", NO_EPOCH),
                metadata=values["offset.metadata"],
            ),
            error_code=values["error_code"],
        ),
    )
)


def _fetch_call(values: dict[str, Any], context: Any) -> OffsetFetchCall:
    groups = values.get("groups")
    if groups is None:
        groups = (OffsetFetchGroup(group_id=values["group_id"], topics=values["topics"]),)
    return OffsetFetchCall(
        groups=groups, require_stable=values.get("require_stable", False), api_version=context.api_version
    )


def _fetch_reply(values: dict[str, Any], _: int) -> OffsetFetchReply:
    """Before version 8 the response does not name its group."""
    groups = values.get("groups")
    if groups is None:
        code = values.get("error_code", ErrorCode.NONE)
        groups = (FetchedGroup(group_id="", error_code=code, topics=values["topics"]),)
    return OffsetFetchReply(groups=groups)


def _topics(group: FetchedGroup, version: int) -> tuple[OfTopic[FetchedOffset], ...]:
    """Version 1 has no place for the group's error but each partition."""
    if group.error_code is ErrorCode.NONE:
        return group.topics
    if version >= 2:
        return ()

    def failed(topic: OfTopic[FetchedOffset]) -> OfTopic[FetchedOffset]:
        found = (msgspec.structs.replace(one, error_code=group.error_code) for one in topic.partitions)
        return msgspec.structs.replace(topic, partitions=tuple(found))

    return tuple(map(failed, group.topics))


OFFSET_COMMIT_REQUEST = Layout(
    OffsetCommitCall,
    {
        "member_epoch": "generation_id_or_member_epoch",
        "instance_id": "group_instance_id",
        "retention_time_ms": "retention_time",
    },
    fields={"topics": COMMITTED},
    absent={"instance_id": None, "retention_time_ms": -1},
)
OFFSET_COMMIT_RESPONSE = Layout(OffsetCommitReply, fields={"topics": ERRORS})
OFFSET_FETCH_REQUEST = Layout(
    OffsetFetchCall,
    fields={"groups": Layout(OffsetFetchGroup, fields={"topics": _ASKED}), "topics": _ASKED},
    write={
        "group_id": lambda call, _: call.groups[0].group_id,
        "topics": lambda call, _: call.groups[0].topics,
    },
    read=_fetch_call,
)
OFFSET_FETCH_RESPONSE = Layout(
    OffsetFetchReply,
    fields={
        "groups": Layout(FetchedGroup, fields={"topics": _FETCHED}, write={"topics": _topics}),
        "topics": _FETCHED,
    },
    write={
        "error_code": lambda reply, _: reply.groups[0].error_code,
        "topics": lambda reply, version: _topics(reply.groups[0], version),
    },
    read=_fetch_reply,
)
OFFSET_DELETE_REQUEST = Layout(OffsetDeleteCall, fields={"topics": of_topic(only("partition_index"))})
OFFSET_DELETE_RESPONSE = Layout(OffsetDeleteReply, fields={"topics": ERRORS})
