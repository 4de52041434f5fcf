"""Life of a streams group: joining, tasks that move, statuses, shutdown, leaving (KIP-1071)."""

from __future__ import annotations

import pytest

from fencepost.coordinator.config import GroupConfig, ReleaseVersion
from fencepost.coordinator.host import AppendFailed
from fencepost.coordinator.protocol import consumer, streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.records import GroupMetadataKey, Record
from fencepost.coordinator.streams.states import StreamsGroupMemberState, StreamsGroupState

ALL = {"0": (0, 1, 2, 3)}


def test_the_first_member_gets_all_tasks_at_once(scene):
    reply = scene.join("a")
    assert reply.error_code is ErrorCode.NONE
    assert (reply.member_epoch, reply.tasks) == (2, streams.Tasks(ALL))
    assert reply.status == ()
    assert reply.heartbeat_interval_ms == 5000
    assert scene.written() == ["19:a", "23", "17", "21:a", "20", "22:a"]
    assert scene.epochs() == (2, 2)
    assert scene.group.state is StreamsGroupState.STABLE


def test_a_second_member_waits_until_the_first_let_go(scene):
    scene.join("a")
    reply = scene.join("b")
    assert (reply.member_epoch, reply.tasks) == (3, streams.Tasks())
    assert scene.member("b").state is StreamsGroupMemberState.UNRELEASED_TASKS
    assert scene.group.state is StreamsGroupState.RECONCILING
    reply = scene.beat("a", 2)
    assert (reply.member_epoch, reply.tasks) == (2, streams.Tasks({"0": (0, 1)}))
    assert scene.member("a").state is StreamsGroupMemberState.UNREVOKED_TASKS
    assert scene.beat("b", 3).tasks is None
    reply = scene.beat("a", 2, streams.Tasks({"0": (0, 1)}))
    assert (reply.member_epoch, reply.tasks) == (3, None)
    assert scene.group.state is StreamsGroupState.RECONCILING
    assert scene.beat("b", 3).tasks == streams.Tasks({"0": (2, 3)})
    assert scene.group.state is StreamsGroupState.STABLE


def test_a_release_is_confirmed_by_a_list_only(scene):
    scene.join("a")
    scene.join("b")
    scene.beat("a", 2)
    for owned in (None, streams.Tasks(ALL), streams.Tasks({"0": (0, 1, 2)})):
        scene.beat("a", 2, owned)
        assert scene.member("a").state is StreamsGroupMemberState.UNREVOKED_TASKS
    scene.beat("a", 2, streams.Tasks({"0": (0,)}))
    assert scene.member("a").state is StreamsGroupMemberState.STABLE


def test_nothing_is_written_for_a_keepalive(scene):
    scene.join("a")
    for owned in (None, streams.Tasks(ALL)):
        reply = scene.beat("a", 2, owned)
        assert (reply.member_epoch, reply.tasks, reply.status) == (2, None, ())
        assert scene.written() == []


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_wrong_epoch_is_fenced(scene, epoch):
    scene.join("a")
    assert scene.error("a", epoch, streams.Tasks(ALL)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_good_with_tasks_that_are_assigned(scene):
    scene.join("a")
    scene.join("b", shutdown_application=False)
    scene.settle("a", "b")
    assert scene.member("a").previous_member_epoch == 2
    owned = scene.member("a").assigned
    assert scene.beat("a", 2, owned).member_epoch == 3
    assert scene.error("a", 2) is ErrorCode.FENCED_MEMBER_EPOCH
    assert scene.error("a", 2, streams.Tasks(ALL)) is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("epoch", "said"), [(1, "smaller member epoch (1)"), (3, "greater member epoch (3)")]
)
def test_a_refusal_says_why(scene, epoch, said):
    scene.join("a")
    assert said in scene.beat("a", epoch).error_message


def test_a_broker_without_the_protocol_takes_nobody(scenes):
    scene = scenes(group_coordinator_rebalance_protocols=("classic", "consumer"))
    assert scene.join("a").error_code is ErrorCode.UNSUPPORTED_VERSION


def test_strangers_are_unknown(scene):
    assert scene.error("a", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert scene.error("a", -1) is ErrorCode.GROUP_ID_NOT_FOUND
    scene.join("a")
    assert scene.error("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.error("b", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_not_even_its_own(scenes):
    scene = scenes(group_streams_max_size=1)
    scene.topics(**{"in": 1})
    scene.join("a")
    joining = {"rebalance_timeout_ms": 1, "topology": scene.topology, "process_id": "p"}
    assert scene.error("b", 0, streams.Tasks(), **joining) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.error("a", 0, streams.Tasks(), **joining) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_one_leaves_and_the_other_takes_over(scene):
    scene.join("a")
    scene.join("b")
    scene.settle("a", "b")
    reply = scene.beat("a", -1)
    assert (reply.member_id, reply.member_epoch, reply.status) == ("a", -1, ())
    assert scene.written() == ["-22:a", "-21:a", "-19:a", "17"]
    assert scene.epochs() == (4, 3)
    scene.settle("b")
    assert scene.active("b") == ALL
    scene.beat("b", -1)
    assert scene.group.state is StreamsGroupState.EMPTY
    assert scene.group.topology == scene.topology
    assert scene.coordinator.streams.soft.groups["app"].contacts == {}


def test_a_member_that_does_not_let_go_is_fenced(scene):
    scene.join("a", rebalance_timeout_ms=20_000)
    scene.join("b")
    scene.beat("a", 2)
    scene.after(19_000)
    scene.beat("a", 2)
    (outcome,) = scene.after(1_000)
    assert [effect.reason for effect in outcome.effects] == ["rebalance"]
    assert set(scene.group.members) == {"b"}
    assert scene.error("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_s_own_session_length_counts_at_once(scenes):
    scene = scenes(group_streams_min_session_timeout_ms=1_000)
    scene.topics(**{"in": 4})
    scene.join("a")
    scene.coordinator.set_group_config("app", GroupConfig(streams_session_timeout_ms=10_000))
    assert scene.after(9_999) == []
    (outcome,) = scene.after(1)
    assert [effect.reason for effect in outcome.effects] == ["session"]


@pytest.mark.parametrize("reason", ["session", "rebalance"])
def test_who_could_not_be_removed_is_removed_half_a_second_later(scene, reason):
    scene.join("a", rebalance_timeout_ms=20_000)
    if reason == "rebalance":
        scene.join("b")
        scene.beat("a", 2)
    scene.runtime.journal = Full()
    assert scene.after(45_000 if reason == "session" else 20_000) == []
    scene.runtime.journal = scene.journal
    assert scene.after(499) == []
    (outcome,) = scene.after(1)
    assert [(effect.member_id, effect.reason) for effect in outcome.effects] == [("a", reason)]


@pytest.mark.parametrize(
    ("epoch", "fields"),
    [
        (0, {}),
        (0, {"rebalance_timeout_ms": 1, "process_id": "p"}),
        (0, {"process_id": "p", "topology": "own"}),
        (0, {"rebalance_timeout_ms": 1, "topology": "own", "active_tasks": {"0": (0,)}}),
        (2, {"topology": "own"}),
        (2, {"active_tasks": {}}),
        (2, {"active_tasks": {"0": (4,)}, "standby_tasks": {}, "warmup_tasks": {}}),
        (2, {"active_tasks": {"9": (0,)}, "standby_tasks": {}, "warmup_tasks": {}}),
        (2, {"active_tasks": {}, "standby_tasks": {}, "warmup_tasks": {"0": (1,)}}),
        (2, {"instance_id": "i"}),
        (2, {"task_offsets": ()}),
        (2, {"task_end_offsets": ()}),
        (2, {"rack_id": " "}),
        (-2, {}),
        (-3, {}),
    ],
)
def test_invalid_requests(scene, epoch, fields):
    scene.join("a")
    fields = {name: scene.topology if value == "own" else value for name, value in fields.items()}
    assert scene.error("a", epoch, **fields) is ErrorCode.INVALID_REQUEST


class TestProcesses:
    def test_threads_share_and_a_process_holds_a_task_once(self, scenes):
        topology = streams.Topology(
            0, (streams.Subtopology("0", ("in",), state_changelog_topics=(streams.TopicInfo("c"),)),)
        )
        scene = scenes(topology, group_streams_num_standby_replicas=1)
        scene.topics(**{"in": 4}, c=4)
        for member_id, process_id in (("a", "p"), ("b", "p"), ("c", "q")):
            scene.join(member_id, process_id)
        scene.settle("a", "b", "c", rounds=12)
        assert scene.group.state is StreamsGroupState.STABLE
        held: dict[str, list[tuple[str, int]]] = {}
        for member in scene.group.members.values():
            for role in (member.assigned.active, member.assigned.standby):
                for one, numbers in role.items():
                    held.setdefault(member.process_id, []).extend((one, number) for number in numbers)
        assert {process: len(tasks) for process, tasks in held.items()} == {"p": 4, "q": 4}
        assert all(len(tasks) == len(set(tasks)) for tasks in held.values())

    def test_endpoints_are_told_when_the_member_does_not_know_them(self, scene):
        here, there = streams.Endpoint("here", 1), streams.Endpoint("there", 2)
        reply = scene.join("a", user_endpoint=here)
        assert reply.partitions_by_endpoint == (
            streams.EndpointPartitions(here, (streams.TopicPartitions("in", (0, 1, 2, 3)),)),
        )
        assert reply.endpoint_information_epoch == 0, "a group that was just made forgets it"
        scene.join("b", user_endpoint=there)
        scene.settle("a", "b")
        reply = scene.beat("a", 3)
        assert reply.endpoint_information_epoch == 3
        assert reply.partitions_by_endpoint == (
            streams.EndpointPartitions(there, (streams.TopicPartitions("in", (2, 3)),)),
            streams.EndpointPartitions(here, (streams.TopicPartitions("in", (0, 1)),)),
        )
        assert scene.beat("a", 3, endpoint_information_epoch=3).partitions_by_endpoint is None

    def test_a_group_that_follows_one_of_offsets_only_keeps_its_epoch_of_endpoints(self, scene):
        offsets = {TopicPartition("in", 0): OffsetAndMetadata(offset=1)}
        scene.process(OffsetCommitRequest(group_id="app", offsets=offsets))
        assert scene.join("a", user_endpoint=streams.Endpoint("here", 1)).endpoint_information_epoch == 1
        assert Record(GroupMetadataKey("app"), None) in scene.last.records

    def test_an_endpoint_without_topics_is_kafkas_own_defect(self, scenes):
        scene = scenes()
        joining = {"rebalance_timeout_ms": 1, "process_id": "p", "topology": scene.topology}
        code = scene.error("a", 0, streams.Tasks(), user_endpoint=streams.Endpoint("here", 1), **joining)
        assert code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert scene.last.reply.error_message is None


class TestKafka44:
    """Kafka 4.4.0, asked over the wire by `fencepost conform`."""

    @pytest.mark.parametrize("release", ReleaseVersion)
    def test_a_group_without_members_has_the_target_of_its_epoch(self, scenes, release):
        scene = scenes(release_version=release)
        scene.topics(**{"in": 4})
        scene.join("a")
        scene.join("b")
        scene.beat("a", -1)
        behind = scene.group.group_epoch - scene.group.assignment_epoch
        scene.beat("b", -1)
        assert behind == 1
        expected = 2 if release is ReleaseVersion.V4_3 else 0
        assert scene.group.group_epoch - scene.group.assignment_epoch == expected

    @pytest.mark.parametrize("release", ReleaseVersion)
    def test_a_member_that_joins_again_is_no_news_to_the_others(self, scenes, release):
        scene = scenes(release_version=release)
        scene.topics(**{"in": 4})
        here, there = streams.Endpoint("here", 1), streams.Endpoint("there", 2)
        scene.join("a", user_endpoint=here)
        known = scene.beat("a", 2).endpoint_information_epoch
        again = scene.join("a", user_endpoint=here).endpoint_information_epoch
        assert again - known == (1 if release is ReleaseVersion.V4_3 else 0)
        assert scene.join("a", user_endpoint=there).endpoint_information_epoch == again + 1


class TestShutdown:
    def test_it_reaches_everybody_and_changes_nothing_else(self, scene):
        scene.join("a")
        scene.join("b")
        scene.settle("a", "b")
        epochs = scene.epochs()
        scene.beat("a", 3, shutdown_application=True)
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]
        scene.beat("b", 3)
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]
        assert scene.epochs() == epochs
        scene.join("c")
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]

    def test_the_first_requester_is_named(self, scene):
        scene.join("a")
        scene.join("b")
        scene.settle("a", "b")
        scene.beat("b", 3, shutdown_application=True)
        reply = scene.beat("a", 3, shutdown_application=True)
        assert reply.status[0].detail.startswith("Streams group member b encountered")

    def test_a_leaving_member_may_request_it(self, scene):
        scene.join("a")
        scene.join("b")
        assert scene.beat("a", -1, shutdown_application=True).status == ()
        scene.beat("b", 3)
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]

    def test_so_may_one_that_is_no_member(self, scene):
        scene.join("a")
        assert scene.beat("x", -1, shutdown_application=True).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        scene.beat("a", 2)
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]

    def test_even_of_a_group_that_is_empty(self, scene):
        """It lasts until the next members are gone."""
        scene.join("a")
        scene.beat("a", -1)
        assert scene.beat("a", -1, shutdown_application=True).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        scene.join("b")
        assert scene.statuses() == ["SHUTDOWN_APPLICATION"]
        scene.beat("b", -1)
        scene.join("c")
        assert scene.statuses() == []

    def test_a_fenced_heartbeat_requests_nothing(self, scene):
        scene.join("a")
        assert scene.error("a", 7, shutdown_application=True) is ErrorCode.FENCED_MEMBER_EPOCH
        scene.beat("a", 2)
        assert scene.statuses() == []

    def test_it_ends_with_the_last_member_and_with_a_failover(self, scene):
        scene.join("a")
        scene.beat("a", 2, shutdown_application=True)
        scene.beat("a", -1)
        scene.join("a")
        assert scene.statuses() == []
        epoch = scene.member("a").member_epoch
        scene.beat("a", epoch, shutdown_application=True)
        scene.reload()
        scene.beat("a", epoch)
        assert scene.statuses() == []


class Full:
    """A journal that takes nothing."""

    def append(self, records):
        raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "told to fail")


class TestDelays:
    def test_the_first_members_wait_for_each_other(self, scenes):
        scene = scenes(group_streams_initial_rebalance_delay_ms=3_000)
        scene.topics(**{"in": 4})
        reply = scene.join("a")
        assert (reply.member_epoch, reply.tasks) == (1, streams.Tasks())
        assert scene.statuses() == ["ASSIGNMENT_DELAYED"]
        assert scene.group.state is StreamsGroupState.ASSIGNING
        scene.after(2_000)
        scene.join("b")
        (outcome,) = scene.after(1_000)
        assert len(outcome.records) == 3
        scene.settle("a", "b", rounds=1)
        assert (scene.active("a"), scene.active("b")) == ({"0": (0, 2)}, {"0": (1, 3)})
        assert scene.statuses() == []

    def test_targets_are_not_computed_too_often(self, scenes):
        scene = scenes(group_streams_assignment_interval_ms=1_000)
        scene.topics(**{"in": 4})
        scene.join("a")
        reply = scene.join("b")
        assert (reply.member_epoch, scene.statuses()) == (2, ["ASSIGNMENT_DELAYED"])
        assert scene.group.state is StreamsGroupState.ASSIGNING
        scene.after(1_000)
        assert scene.beat("b", 2).member_epoch == 3
        assert scene.statuses() == []

    def test_topics_that_were_found_for_records_that_were_lost_are_looked_for_again(self, scenes):
        scene = scenes(group_streams_initial_rebalance_delay_ms=3_000)
        scene.join("a")
        scene.topics(**{"in": 4})
        scene.runtime.journal = Full()
        assert scene.beat("a", 1).error_code is ErrorCode.NOT_COORDINATOR
        scene.runtime.journal = scene.journal
        scene.after(3_000)
        assert not any(scene.group.targets.values())
        assert scene.beat("a", 1).tasks == streams.Tasks(ALL)

    def test_a_wait_ends_with_a_group_that_is_deleted(self, scenes):
        scene = scenes(group_streams_initial_rebalance_delay_ms=3_000)
        scene.topics(**{"in": 4})
        scene.join("a")
        scene.beat("a", -1)
        scene.process(consumer.DeleteGroupsRequest(group_id="app"))
        assert len(scene.coordinator.streams.soft.timers) == 0


def test_the_number_of_standby_tasks_is_an_input_of_targets(scenes):
    topology = streams.Topology(
        0, (streams.Subtopology("0", ("in",), state_changelog_topics=(streams.TopicInfo("c"),)),)
    )
    scene = scenes(topology)
    scene.topics(**{"in": 2}, c=2)
    scene.join("a")
    scene.join("b")
    scene.settle("a", "b")
    scene.coordinator.set_group_config("app", GroupConfig(streams_num_standby_replicas=1))
    scene.settle("a", "b")
    assert scene.member("a").assigned == streams.Tasks({"0": (0,)}, {"0": (1,)})
    assert scene.group.last_assignment_configs == {"num.standby.replicas": "1"}
