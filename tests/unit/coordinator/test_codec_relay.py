"""What the middle reads: whether an answer comes, and the messages of members."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest

from fencepost.coordinator.codec.client import request_frame
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader, read_header
from fencepost.coordinator.codec.offsets import (
    CommittedPartition,
    FetchedGroup,
    FetchedOffset,
    OffsetCommitCall,
    OffsetCommitReply,
    OffsetFetchCall,
    OffsetFetchGroup,
    OffsetFetchReply,
    PartitionError,
)
from fencepost.coordinator.codec.registry import ApiKey, codec_of
from fencepost.coordinator.codec.relay import expects_answer, read_member_answer, read_member_request
from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAABQ"
NAMES = {TOPIC_ID: "orders"}.__getitem__
AT = offsets.OffsetAndMetadata(offset=42)


def asked(api_key: ApiKey, version: int, message: Any) -> tuple[bytes, RequestHeader]:
    frame = request_frame(api_key, version, 7, "m1", message)[4:]
    return frame, read_header(frame)


def answered(api_key: ApiKey, version: int, reply: Any) -> tuple[bytes, RequestHeader]:
    codec = codec_of(api_key, version)
    assert codec is not None
    return b"".join(codec.encode(7, reply))[4:], RequestHeader(api_key, version, 7, "m1", 0)


def topic(version: int, *partitions: Any) -> OfTopic[Any]:
    if version >= 10:
        return OfTopic(topic_id=TOPIC_ID, partitions=partitions)
    return OfTopic(name="orders", partitions=partitions)


@pytest.mark.parametrize("version", range(14))
def test_a_produce_that_wants_no_acknowledgement_gets_no_answer(version):
    for acks, transaction in itertools.product((0, 1, -1), (None, "t", "x" * 200)):
        _check_acks(version, acks, transaction)


def _check_acks(version, acks, transaction):
    text = None if transaction is None else transaction.encode()
    head = struct.pack(">hhih", 0, version, 1, 2) + b"me"
    if version >= 9:
        length = 0 if text is None else len(text) + 1
        size = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
        head += b"\0" + size + (text or b"")
    elif version >= 3:
        head += struct.pack(">h", -1 if text is None else len(text)) + (text or b"")
    frame = head + struct.pack(">hi", acks, 30_000)
    assert expects_answer(frame, read_header(frame)) is (acks != 0)
    with pytest.raises(MalformedFrame):
        expects_answer(head, read_header(frame))


def test_every_other_request_gets_an_answer():
    assert expects_answer(b"", RequestHeader(ApiKey.FETCH, 16, 1, "", 0))


@pytest.mark.parametrize("version", range(2))
def test_a_heartbeat_is_the_coordinators_request(version):
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=3,
        topic_partitions={TOPIC_ID: (1, 2)},
        api_version=version,
        client_id="m1",
        client_host="/127.0.0.1",
    )
    frame, header = asked(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
    assert read_member_request(frame, header, "/127.0.0.1", NAMES) == request
    reply = consumer.ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=4, assignment={TOPIC_ID: (0,)}
    )
    assert read_member_answer(*answered(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, reply), NAMES) == reply


@pytest.mark.parametrize("version", [9, 10])
def test_a_commit_is_the_coordinators_request(version):
    call = OffsetCommitCall(
        group_id="g",
        member_id="m",
        member_epoch=3,
        instance_id=None,
        retention_time_ms=-1,
        api_version=version,
        topics=(topic(version, CommittedPartition(1, AT)),),
    )
    expected = offsets.OffsetCommitRequest(
        group_id="g",
        member_id="m",
        member_epoch=3,
        offsets={TopicPartition("orders", 1): AT},
        topic_ids={"orders": TOPIC_ID} if version >= 10 else {},
        api_version=version,
    )
    assert read_member_request(*asked(ApiKey.OFFSET_COMMIT, version, call), "", NAMES) == expected
    reply = OffsetCommitReply(topics=(topic(version, PartitionError(1, ErrorCode.STALE_MEMBER_EPOCH)),))
    assert read_member_answer(
        *answered(ApiKey.OFFSET_COMMIT, version, reply), NAMES
    ) == offsets.OffsetCommitResponse(errors={TopicPartition("orders", 1): ErrorCode.STALE_MEMBER_EPOCH})


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_a_fetch_of_offsets_is_the_coordinators_request(version):
    group = OffsetFetchGroup(group_id="g", topics=(topic(version, 1, 3),))
    call = OffsetFetchCall(groups=(group,), require_stable=True, api_version=version)
    found = read_member_request(*asked(ApiKey.OFFSET_FETCH, version, call), "", NAMES)
    assert isinstance(found, offsets.OffsetFetchRequest)
    assert found.partitions == (TopicPartition("orders", 1), TopicPartition("orders", 3))
    assert found.require_stable
    reply = OffsetFetchReply(
        groups=(FetchedGroup(group_id="g", topics=(topic(version, FetchedOffset(partition=1, offset=AT)),)),)
    )
    assert read_member_answer(
        *answered(ApiKey.OFFSET_FETCH, version, reply), NAMES
    ) == offsets.OffsetFetchResponse(
        group_id="g" if version >= 8 else "", offsets={TopicPartition("orders", 1): AT}
    )


def test_a_fetch_of_all_offsets_and_one_for_several_groups():
    everything = OffsetFetchGroup(group_id="g", topics=None)
    call = OffsetFetchCall(groups=(everything,), require_stable=False, api_version=9)
    assert read_member_request(*asked(ApiKey.OFFSET_FETCH, 9, call), "", NAMES).partitions is None
    both = OffsetFetchCall(groups=(everything, everything), require_stable=False, api_version=9)
    assert isinstance(read_member_request(*asked(ApiKey.OFFSET_FETCH, 9, both), "", NAMES), OffsetFetchCall)


def test_versions_that_are_not_spoken_are_not_read():
    header = RequestHeader(ApiKey.CONSUMER_GROUP_HEARTBEAT, 99, 1, "m1", 10)
    assert read_member_request(b"\xff" * 40, header, "", NAMES) is None
    assert read_member_answer(b"\xff" * 40, header, NAMES) is None


def test_garbage_is_refused():
    header = RequestHeader(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1, "m1", 10)
    with pytest.raises(MalformedFrame):
        read_member_request(b"\xff" * 40, header, "", NAMES)
    with pytest.raises(MalformedFrame):
        read_member_answer(b"\xff" * 40, header, NAMES)
