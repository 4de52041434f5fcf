"""Records that cannot follow those before them: a damaged journal says so, and is not made true."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol import records, streams_records
from fencepost.coordinator.protocol.errors import InconsistentRecord
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)


def test_a_group_with_members_does_not_end(scene: Any) -> None:
    scene.join("A")
    with pytest.raises(InconsistentRecord, match="the group still has 1 members"):
        scene.coordinator.apply(records.Record(records.ConsumerGroupMetadataKey("g"), None))


def test_nor_does_one_with_targets(scene: Any) -> None:
    scene.join("A")
    scene.beat("A", -1)
    left = records.ConsumerGroupTargetAssignmentMemberValue({"id-of-x": (0,)})
    scene.coordinator.apply(records.Record(records.ConsumerGroupTargetAssignmentMemberKey("g", "A"), left))
    with pytest.raises(InconsistentRecord, match="the target assignment still has 1 members"):
        scene.coordinator.apply(records.Record(records.ConsumerGroupMetadataKey("g"), None))


class TestStreamsGroups:
    @pytest.fixture
    def streams(self, scene: Any) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id="A",
            member_epoch=0,
            rebalance_timeout_ms=1,
            topology=Topology(0, (Subtopology("0", ("x",)),)),
            process_id="p",
            active_tasks={},
            standby_tasks={},
            warmup_tasks={},
        )
        scene.process(request)
        return scene.coordinator

    def test_one_with_members_does_not_end(self, streams: Any) -> None:
        with pytest.raises(InconsistentRecord, match="the group still has 1 members"):
            streams.apply(records.Record(streams_records.StreamsGroupMetadataKey("app"), None))

    def test_a_member_goes_after_what_it_holds_and_is_to_hold(self, streams: Any) -> None:
        gone = records.Record(streams_records.StreamsGroupMemberMetadataKey("app", "A"), None)
        with pytest.raises(InconsistentRecord, match="of the member's assignment is missing"):
            streams.apply(gone)
        streams.apply(
            records.Record(streams_records.StreamsGroupCurrentMemberAssignmentKey("app", "A"), None)
        )
        streams.apply(records.Record(streams_records.StreamsGroupTargetAssignmentMemberKey("app", "A"), None))
        streams.apply(gone)
        assert not streams.streams.groups["app"].members

    def test_one_that_is_not_there_is_gone(self, streams: Any) -> None:
        before = streams.hard_state()
        streams.apply(records.Record(streams_records.StreamsGroupMemberMetadataKey("app", "nobody"), None))
        assert streams.hard_state() == before
