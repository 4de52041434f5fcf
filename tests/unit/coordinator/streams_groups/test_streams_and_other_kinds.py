"""Streams groups beside groups of other kinds: who gives way, lists, descriptions, deletion."""

from __future__ import annotations

from fencepost.coordinator.protocol import consumer, streams
from fencepost.coordinator.protocol.classic import JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode

CONSUMER_JOINS = consumer.ConsumerGroupHeartbeatRequest(
    group_id="app",
    member_id="x",
    member_epoch=0,
    rebalance_timeout_ms=1,
    subscribed_topic_names=("in",),
    topic_partitions={},
)


def test_a_streams_group_is_no_consumer_group(scene):
    scene.join("a")
    assert scene.process(CONSUMER_JOINS).reply.error_code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_consumer_group_is_no_streams_group(scene):
    scene.process(CONSUMER_JOINS)
    assert scene.join("a").error_code is ErrorCode.GROUP_ID_NOT_FOUND
    request = streams.StreamsGroupDescribeRequest(group_ids=("app", "none"))
    described = scene.process(request).reply.groups
    assert [one.error_message for one in described] == [
        "Group app is not a streams group.",
        "Group none not found.",
    ]


def test_an_empty_streams_group_gives_way_to_a_classic_one(scene):
    join = JoinGroupRequest(
        group_id="app",
        member_id="",
        protocol_type="consumer",
        protocols=(("range", b""),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        new_member_suffix="s",
        token=1,
    )
    scene.join("a")
    assert scene.process(join).reply == JoinGroupResponse(
        error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=""
    )
    scene.beat("a", -1)
    scene.process(join)
    assert "app" in scene.coordinator.classic.groups
    assert "app" not in scene.coordinator.streams.groups


def test_listed_and_deleted(scenes):
    scene = scenes()
    scene.join("a")
    for states, found in ((("not_ready",), 1), (("notready",), 0), ((), 1)):
        request = consumer.ListGroupsRequest(states_filter=states, types_filter=("Streams",))
        rows = scene.process(request).reply.groups
        assert len(rows) == found
    assert (rows[0].protocol_type, rows[0].group_type, rows[0].group_state) == (
        "streams",
        "streams",
        "NotReady",
    )
    delete = consumer.DeleteGroupsRequest(group_id="app")
    assert scene.process(delete).reply.error_code is ErrorCode.NON_EMPTY_GROUP
    scene.beat("a", -1)
    assert scene.process(delete).reply.error_code is ErrorCode.NONE
    assert scene.written() == ["-20", "-17", "-23"]
    assert not scene.coordinator.streams.groups
    assert not scene.coordinator.streams.soft.groups


def test_a_description_tells_all(counting):
    counting.topics(**{"in": 2}, app_repartition=2, app_changelog=2)
    counting.join("a", client_id="me", client_host="/1", client_tags={"zone": "z"}, rack_id="r")
    (found,) = counting.process(streams.StreamsGroupDescribeRequest(group_ids=("app",))).reply.groups
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert [one.subtopology_id for one in found.subtopologies] == ["0", "1"]
    counting.beat("a", 2, client_id="me", client_host="/1")
    (found,) = counting.process(streams.StreamsGroupDescribeRequest(group_ids=("app",))).reply.groups
    assert found.subtopologies[1].state_changelog_topics == (streams.TopicInfo("app-changelog", 2),)
    (member,) = found.members
    assert (member.client_id, member.client_host, member.rack_id) == ("me", "/1", "r")
    assert (member.process_id, member.topology_epoch, member.client_tags) == (
        "process-of-a",
        0,
        {"zone": "z"},
    )
    assert member.assignment == member.target_assignment == streams.Tasks({"0": (0, 1), "1": (0, 1)})
