"""Commits and offset fetches of a streams group's members: fenced by member, epoch and task (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fencepost.coordinator.protocol import offsets
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.streams import Topology
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.judge.base import OF_LOG, Finding


class StreamsCommits:
    """Remembers the last commits, and judges which members may commit and fetch."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, offsets.OffsetAndMetadata] = {}

    def judge(
        self, event: Any, reply: Any, members: Mapping[MemberId, StreamsGroupMember], topology: Topology
    ) -> Iterator[Finding]:
        """Yield what is wrong with the reply to a commit or a fetch, if it is one."""
        if isinstance(event, offsets.OffsetCommitRequest) and isinstance(reply, offsets.OffsetCommitResponse):
            expected = commit_error(event, members, topology)
            if expected is ErrorCode.NONE and not OF_LOG.isdisjoint(reply.errors.values()):
                expected = next(code for code in reply.errors.values() if code in OF_LOG)
            if wrong := sorted({code.name for code in reply.errors.values()} - {expected.name}):
                who = f"{event.member_id} at epoch {event.member_epoch}"
                yield "streams-commits", f"{who} commits, and gets {wrong}, expected {expected.name}"
            yield from self._fallen(event, reply)
            self._committed.update(
                (partition, event.offsets[partition]) for partition, code in reply.errors.items() if not code
            )
        elif isinstance(event, offsets.OffsetFetchRequest) and isinstance(reply, offsets.OffsetFetchResponse):
            expected = fetch_error(event, members)
            who = f"{event.member_id} at epoch {event.member_epoch}"
            if reply.error_code is not expected:
                got = reply.error_code.name
                yield "streams-commits", f"{who} fetches, and gets {got}, expected {expected.name}"
            for partition, found in reply.offsets.items():
                right = self._committed.get(partition, offsets.NO_OFFSET)
                if found.offset != right.offset:
                    yield "streams-commits", f"{who} gets {found.offset}, committed is {right.offset}"

    def _fallen(
        self, request: offsets.OffsetCommitRequest, reply: offsets.OffsetCommitResponse
    ) -> Iterator[Finding]:
        """Yield what a member takes back: one that gets a task goes on where the last commit ended.

        A client that commits to an empty group may choose any offset.
        """
        if request.member_epoch < 0:
            return
        for partition, code in reply.errors.items():
            before, offset = (
                self._committed.get(partition, offsets.NO_OFFSET).offset,
                request.offsets[partition].offset,
            )
            if not code and offset < before:
                yield (
                    "offsets-advance",
                    f"{request.member_id} commits {offset} of {partition.topic}-{partition.partition}, and"
                    f" {before} was committed",
                )


def commit_error(
    request: offsets.OffsetCommitRequest, members: Mapping[MemberId, StreamsGroupMember], topology: Topology
) -> ErrorCode:
    """Return the error that a commit must get, on all of its partitions.

    An epoch that the member has left may commit for tasks that the member has had since then.
    """
    if request.member_epoch < 0 and not members:
        return ErrorCode.NONE
    member = members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.member_epoch == member.member_epoch:
        return ErrorCode.NONE
    reads = {name: one.subtopology_id for one in topology.subtopologies for name in one.source_topics}
    since = [
        member.assignment_epochs.get(reads.get(topic, ""), {}).get(number)
        for topic, number in request.offsets
    ]
    held = all(epoch is not None and epoch <= request.member_epoch for epoch in since)
    if request.member_epoch < member.member_epoch and held:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH


def fetch_error(
    request: offsets.OffsetFetchRequest, members: Mapping[MemberId, StreamsGroupMember]
) -> ErrorCode:
    """Return the error that a fetch must get; a client that is no member may fetch as one without a name."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    fits = request.member_epoch == member.member_epoch
    return ErrorCode.NONE if fits else ErrorCode.STALE_MEMBER_EPOCH
