"""The bytes of messages, as counted for the trace, against the codec that writes them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.codec.client import request_frame
from fencepost.coordinator.codec.groups import LeaveGroupCall, LeaveGroupReply
from fencepost.coordinator.codec.registry import ApiKey, codec_of
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.trace.sizes import message_sizes

texts = st.text(max_size=200)
optional = st.none() | texts
data = st.binary(max_size=300)
errors = st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID])
partitions = st.dictionaries(
    st.sampled_from([letter * 21 + "A" for letter in "BCDE"]),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=140, unique=True).map(tuple),
)


def on_the_wire(key: ApiKey, version: int, request: Any, reply: Any) -> str:
    codec = codec_of(key, version)
    assert codec is not None
    answered = b"".join(codec.encode(0, reply))
    return f"{len(request_frame(key, version, 7, 'client-1', request))}+{len(answered)}"


heartbeats = st.tuples(
    st.builds(
        consumer.ConsumerGroupHeartbeatRequest,
        group_id=texts,
        member_id=texts,
        member_epoch=st.integers(-2, 9),
        instance_id=optional,
        rack_id=optional,
        rebalance_timeout_ms=st.integers(-1, 99),
        subscribed_topic_names=st.none() | st.lists(texts, max_size=3).map(tuple),
        subscribed_topic_regex=optional,
        server_assignor=optional,
        topic_partitions=st.none() | partitions,
    ),
    st.builds(
        consumer.ConsumerGroupHeartbeatResponse,
        error_code=errors,
        error_message=optional,
        member_id=optional,
        member_epoch=st.integers(-2, 9),
        assignment=st.none() | partitions,
    ),
)
joins = st.tuples(
    st.builds(
        classic.JoinGroupRequest,
        group_id=texts,
        member_id=texts,
        instance_id=optional,
        protocol_type=texts,
        protocols=st.lists(st.builds(classic.JoinGroupProtocol, texts, data), max_size=3).map(tuple),
        session_timeout_ms=st.integers(0, 99),
        rebalance_timeout_ms=st.integers(0, 99),
    ),
    st.builds(
        classic.JoinGroupResponse,
        error_code=errors,
        protocol_type=optional,
        protocol_name=optional,
        leader=texts,
        member_id=texts,
        members=st.lists(
            st.builds(classic.JoinGroupMember, member_id=texts, instance_id=optional, metadata=data),
            max_size=3,
        ).map(tuple),
    ),
)
syncs = st.tuples(
    st.builds(
        classic.SyncGroupRequest,
        group_id=texts,
        generation=st.integers(0, 9),
        member_id=texts,
        instance_id=optional,
        protocol_type=optional,
        protocol_name=optional,
        assignments=st.dictionaries(texts, data, max_size=3),
    ),
    st.builds(
        classic.SyncGroupResponse,
        error_code=errors,
        protocol_type=optional,
        protocol_name=optional,
        assignment=data,
    ),
)


@given(heartbeats)
def test_heartbeats_are_counted_as_the_codec_writes_them(pair: tuple[Any, Any]) -> None:
    assert message_sizes(*pair, "client-1") == on_the_wire(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, *pair)


@given(joins)
def test_so_are_joins_of_the_classic_protocol(pair: tuple[Any, Any]) -> None:
    assert message_sizes(*pair, "client-1") == on_the_wire(ApiKey.JOIN_GROUP, 9, *pair)


@given(syncs)
def test_and_its_assignments(pair: tuple[Any, Any]) -> None:
    assert message_sizes(*pair, "client-1") == on_the_wire(ApiKey.SYNC_GROUP, 5, *pair)


@given(group_id=texts, member_id=texts, instance_id=optional, error=errors)
def test_and_its_heartbeats_and_farewells(
    group_id: str, member_id: str, instance_id: str | None, error: ErrorCode
) -> None:
    beat = classic.HeartbeatRequest(
        group_id=group_id, generation=1, member_id=member_id, instance_id=instance_id
    )
    answer = classic.HeartbeatResponse(error_code=error)
    assert message_sizes(beat, answer, "client-1") == on_the_wire(ApiKey.HEARTBEAT, 4, beat, answer)
    leave = consumer.LeaveGroupRequest(group_id=group_id, member_id=member_id, instance_id=instance_id)
    gone = consumer.LeaveGroupResponse(member_id=member_id, instance_id=instance_id, error_code=error)
    call, reply = LeaveGroupCall(group_id=group_id, members=(leave,)), LeaveGroupReply(members=(gone,))
    written = on_the_wire(ApiKey.LEAVE_GROUP, 5, call, reply)
    assert message_sizes(leave, gone, "client-1") == written


def test_a_mere_keepalive_is_as_long_as_the_analyses_take_it_to_be() -> None:
    member_id = "m" * 22
    request = consumer.ConsumerGroupHeartbeatRequest(group_id="payments", member_id=member_id, member_epoch=4)
    reply = consumer.ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=4, heartbeat_interval_ms=5_000
    )
    asked, answered = message_sizes(request, reply, "member-1").split("+")
    assert int(asked) + int(answered) == 103 + len("member-1") + len("payments")
