"""What a streams group makes of its topology and of the topics it needs (KIP-1071)."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.streams import (
    CopartitionGroup,
    Subtopology,
    Tasks,
    TopicInfo,
    Topology,
)
from fencepost.coordinator.streams.states import StreamsGroupState

ALL = {"0": (0, 1, 2, 3)}


class TestTopics:
    def test_missing_source_topics(self, scenes):
        scene = scenes()
        reply = scene.join("a")
        assert (reply.member_epoch, reply.tasks) == (2, Tasks())
        assert scene.statuses() == ["MISSING_SOURCE_TOPICS"]
        assert scene.group.state is StreamsGroupState.NOT_READY
        scene.topics(**{"in": 2})
        reply = scene.beat("a", 2)
        assert (reply.member_epoch, reply.tasks, reply.status) == (3, Tasks({"0": (0, 1)}), ())
        assert scene.group.state is StreamsGroupState.STABLE

    def test_internal_topics_are_asked_for_until_they_are_there(self, counting):
        reply = counting.join("a")
        assert counting.statuses() == ["MISSING_INTERNAL_TOPICS"]
        assert counting.wanted_topics() == {"app-repartition": 4, "app-changelog": 4}
        assert reply.tasks == Tasks()
        counting.beat("a", 2)
        assert counting.wanted_topics() == {"app-repartition": 4, "app-changelog": 4}
        counting.topics(**{"in": 4}, app_repartition=4, app_changelog=4)
        reply = counting.beat("a", 2)
        assert counting.wanted_topics() == {}
        assert reply.tasks == Tasks({"0": (0, 1, 2, 3), "1": (0, 1, 2, 3)})

    def test_an_internal_topic_of_another_size_is_in_the_way(self, counting):
        counting.topics(**{"in": 4}, app_repartition=4, app_changelog=3)
        counting.join("a")
        assert counting.statuses() == ["INCORRECTLY_PARTITIONED_TOPICS"]
        assert counting.wanted_topics() == {}

    def test_tasks_go_when_a_source_topic_goes(self, scene):
        scene.join("a")
        scene.topics()
        scene.beat("a", 2, Tasks(ALL))
        assert scene.statuses() == ["MISSING_SOURCE_TOPICS"]
        assert scene.group.state is StreamsGroupState.NOT_READY
        scene.settle("a")
        assert scene.active("a") == {}

    def test_more_partitions_are_more_tasks(self, scene):
        scene.join("a")
        scene.topics(**{"in": 6})
        assert scene.beat("a", 2).tasks == Tasks({"0": (0, 1, 2, 3, 4, 5)})

    def test_other_topics_are_nobody_s_concern(self, scene):
        scene.join("a")
        scene.topics(**{"in": 4}, other=1)
        scene.beat("a", 2)
        assert scene.written() == []

    def test_topics_that_are_read_together_must_agree(self, scenes):
        topology = Topology(
            0, (Subtopology("0", ("in", "other"), copartition_groups=(CopartitionGroup((0, 1)),)),)
        )
        scene = scenes(topology)
        scene.topics(**{"in": 4}, other=3)
        reply = scene.join("a")
        assert scene.statuses() == ["INCORRECTLY_PARTITIONED_TOPICS"]
        assert reply.status[0].detail == (
            "Following topics do not have the same number of partitions: [{in=4, other=3}]"
        )


class TestTopologies:
    def test_another_topology_is_refused(self, scene):
        scene.join("a")
        other = Topology(0, (Subtopology("0", ("in", "more")),))
        joining = {"rebalance_timeout_ms": 1, "process_id": "p"}
        assert scene.error("b", 0, Tasks(), topology=other, **joining) is ErrorCode.INVALID_REQUEST
        newer = msgspec.structs.replace(scene.topology, epoch=1)
        assert scene.error("b", 0, Tasks(), topology=newer, **joining) is ErrorCode.INVALID_REQUEST

    def test_the_order_of_subtopologies_does_not_matter(self, scenes):
        one, two = Subtopology("0", ("in",)), Subtopology("1", ("other",))
        scene = scenes(Topology(0, (one, two)))
        scene.topics(**{"in": 1}, other=1)
        scene.join("a")
        assert scene.join("b", topology=Topology(0, (two, one))).error_code is ErrorCode.NONE

    def test_an_older_topology_is_taken_and_told(self, scenes):
        scene = scenes(Topology(3, (Subtopology("0", ("in",)),)))
        scene.topics(**{"in": 2})
        scene.join("a")
        scene.join("b", topology=Topology(2, (Subtopology("0", ("in",)),)))
        assert scene.statuses() == ["STALE_TOPOLOGY"]
        scene.beat("b", 3)
        assert scene.statuses() == ["STALE_TOPOLOGY"]

    @pytest.mark.parametrize(
        ("topology", "code"),
        [
            (Topology(0, (Subtopology("0"),)), ErrorCode.STREAMS_INVALID_TOPOLOGY),
            (
                Topology(0, (Subtopology("0", repartition_source_topics=(TopicInfo("r"),)),)),
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
            ),
            (
                Topology(
                    0,
                    (
                        Subtopology(
                            "0",
                            repartition_source_topics=(TopicInfo("r"),),
                            repartition_sink_topics=("r",),
                        ),
                    ),
                ),
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
            ),
            (
                Topology(0, (Subtopology("0", ("in",), state_changelog_topics=(TopicInfo("c", 3),)),)),
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
            ),
            (Topology(0, (Subtopology("0", ("__consumer_offsets",)),)), ErrorCode.STREAMS_INVALID_TOPOLOGY),
            (Topology(0, (Subtopology("0", ("no name",)),)), ErrorCode.STREAMS_INVALID_TOPOLOGY),
            (Topology(0, (Subtopology("0", (), ("in.*",)),)), ErrorCode.INVALID_REQUEST),
            (Topology(-1, (Subtopology("0", ("in",)),)), ErrorCode.UNKNOWN_SERVER_ERROR),
        ],
    )
    def test_what_is_no_topology_is_refused(self, scene, topology, code):
        joining = {"rebalance_timeout_ms": 1, "process_id": "p", "topology": topology}
        assert scene.error("a", 0, Tasks(), **joining) is code
