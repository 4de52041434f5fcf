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

    def test_of_two_that_are_in_the_way_the_first_of_a_java_set_is_told(self, counting):
        counting.topics(**{"in": 4}, app_repartition=2, app_changelog=3)
        reply = counting.join("a")
        assert reply.status[0].detail == (
            "Existing topic app-repartition has different number of partitions: expected 4, found 2"
        )

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

    @pytest.mark.parametrize(
        ("missing", "said"), [(3, "t0, t1, t2"), (5, "t0, t1, t2 and 2 additional topics")]
    )
    def test_three_missing_topics_are_named(self, scenes, missing, said):
        scene = scenes(Topology(0, (Subtopology("0", tuple(f"t{number}" for number in range(missing))),)))
        reply = scene.join("a")
        assert reply.status[0].detail == f"Source topics {said} are missing."


class TestRepartitionTopicsThatAreReadWithOthers:
    def joined(self, scenes, *internal, source_topics=(0,), **partitions):
        """The first member of an application whose repartition topics are read together, and with sources."""
        names = tuple(topic.name for topic in internal)
        together = CopartitionGroup(source_topics, (), tuple(range(len(internal))))
        sources = ("in",) if source_topics else ()
        scene = scenes(
            Topology(
                0,
                (
                    Subtopology("0", ("other",), repartition_sink_topics=names),
                    Subtopology(
                        "1", sources, repartition_source_topics=internal, copartition_groups=(together,)
                    ),
                ),
            )
        )
        scene.topics(**partitions)
        return scene, scene.join("a")

    def test_they_get_the_number_of_those(self, scenes):
        scene, _ = self.joined(scenes, TopicInfo("r"), other=2, **{"in": 4})
        assert scene.wanted_topics() == {"r": 4}

    def test_a_number_of_their_own_has_to_be_that(self, scenes):
        scene, _ = self.joined(scenes, TopicInfo("r", 4), other=2, **{"in": 4})
        assert scene.wanted_topics() == {"r": 4}
        scene, reply = self.joined(scenes, TopicInfo("r", 3), other=2, **{"in": 4})
        assert scene.statuses() == ["INCORRECTLY_PARTITIONED_TOPICS"]
        assert reply.status[0].detail == (
            "Number of partitions [3] of repartition topic [r] doesn't match number of partitions [4] "
            "of the source topic."
        )

    def test_among_themselves_the_largest_counts(self, scenes):
        scene, _ = self.joined(scenes, TopicInfo("r"), TopicInfo("s"), source_topics=(), other=2)
        assert scene.wanted_topics() == {"r": 2, "s": 2}

    def test_among_themselves_one_that_has_a_number_decides(self, scenes):
        scene, _ = self.joined(scenes, TopicInfo("r", 5), TopicInfo("s"), source_topics=(), other=2)
        assert scene.wanted_topics() == {"r": 5, "s": 5}
        scene, reply = self.joined(scenes, TopicInfo("r", 5), TopicInfo("s", 3), source_topics=(), other=2)
        assert scene.statuses() == ["INCORRECTLY_PARTITIONED_TOPICS"]
        assert reply.status[0].detail == (
            "Following topics do not have the same number of partitions: [{r=5, s=3}]"
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
            (
                Topology(0, (Subtopology("0", ("in",), repartition_source_topics=(TopicInfo("r", -1),)),)),
                ErrorCode.UNKNOWN_SERVER_ERROR,
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
