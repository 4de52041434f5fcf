"""What clients of streams groups write is what the server reads, and the other way round."""

from __future__ import annotations

import pytest

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, read_header
from fencepost.coordinator.codec.registry import ApiKey, codec_of
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode

KEY = ApiKey.STREAMS_GROUP_HEARTBEAT

KEEPALIVE = streams.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3)
JOIN = streams.StreamsGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=0,
    endpoint_information_epoch=4,
    instance_id="i",
    rack_id="r",
    rebalance_timeout_ms=60_000,
    topology=streams.Topology(
        epoch=1,
        subtopologies=(
            streams.Subtopology(
                subtopology_id="0",
                source_topics=("a", "b"),
                source_topic_regex=("c.*",),
                state_changelog_topics=(
                    streams.TopicInfo("store-changelog", 0, 1, (("cleanup.policy", "compact"),)),
                ),
                repartition_sink_topics=("sink",),
                repartition_source_topics=(streams.TopicInfo("source", 3, 2),),
                copartition_groups=(streams.CopartitionGroup((0, 1), (0,), (0,)),),
            ),
        ),
    ),
    active_tasks={"0": (0, 2)},
    standby_tasks={},
    warmup_tasks={"1": (1,)},
    process_id="p",
    user_endpoint=streams.Endpoint("host", 8080),
    client_tags={"zone": "a"},
    task_offsets=(streams.TaskOffset("0", 0, 17),),
    task_end_offsets=(),
    shutdown_application=True,
)
ANSWER = streams.StreamsGroupHeartbeatResponse(
    member_id="m",
    member_epoch=5,
    heartbeat_interval_ms=5_000,
    acceptable_recovery_lag=10_000,
    task_offset_interval_ms=60_000,
    status=tuple(streams.Status(code, f"detail {code}") for code in streams.StatusCode),
    tasks=streams.Tasks({"0": (0, 1)}, {"0": (2,)}, {}),
    endpoint_information_epoch=2,
    partitions_by_endpoint=(
        streams.EndpointPartitions(
            streams.Endpoint("host", 8080), (streams.TopicPartitions("a", (0, 1)),), ()
        ),
    ),
)
NO_NEWS = streams.StreamsGroupHeartbeatResponse(member_id="m", member_epoch=5, status=())
ERROR = streams.StreamsGroupHeartbeatResponse(
    error_code=ErrorCode.STREAMS_INVALID_TOPOLOGY, error_message="no", member_id="m"
)


def server_reads(message: streams.StreamsGroupHeartbeatRequest) -> streams.StreamsGroupHeartbeatRequest:
    frame = request_frame(KEY, 0, 7, "c", message)[4:]
    codec = codec_of(KEY, 0)
    assert codec is not None
    return codec.decode(frame, codec.body_of(frame, read_header(frame)), RequestContext(0, "c", "h"))


def encoded(reply: streams.StreamsGroupHeartbeatResponse) -> bytes:
    codec = codec_of(KEY, 0)
    assert codec is not None
    return b"".join(codec.encode(9, reply))[4:]


@pytest.mark.parametrize("request_", [KEEPALIVE, JOIN])
def test_heartbeats_of_streams_groups_arrive(request_: streams.StreamsGroupHeartbeatRequest) -> None:
    read = server_reads(request_)
    assert (read.client_id, read.client_host) == ("c", "h")
    for field in streams.StreamsGroupHeartbeatRequest.__struct_fields__:
        if not field.startswith("client_h") and field != "client_id":
            assert getattr(read, field) == getattr(request_, field), field


@pytest.mark.parametrize("reply", [ANSWER, NO_NEWS, ERROR])
def test_answers_to_them_arrive(reply: streams.StreamsGroupHeartbeatResponse) -> None:
    assert read_response(KEY, 0, encoded(reply)) == (9, reply)


def test_a_status_of_a_newer_broker_is_left_out() -> None:
    frame = encoded(
        streams.StreamsGroupHeartbeatResponse(
            status=(streams.Status(streams.StatusCode.ASSIGNMENT_DELAYED, "later"),)
        )
    )
    newer = frame.replace(b"\x05\x06later", b"\x09\x06later")
    assert newer != frame
    assert read_response(KEY, 0, newer)[1].status == ()


def test_a_short_answer_to_a_streams_heartbeat_is_refused() -> None:
    with pytest.raises(MalformedFrame):
        read_response(KEY, 0, encoded(ANSWER)[:-1])
