"""The store of committed offsets: when two are alike, and what it tells before topics are known."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetFetchRequest
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue

X0 = TopicPartition("x", 0)


def stored(*offsets: int) -> OffsetStore:
    store = OffsetStore()
    for partition, offset in enumerate(offsets):
        value = OffsetCommitValue(offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=0)
        store.apply(OffsetCommitKey("g", "x", partition), value)
    return store


def test_stores_are_equal_that_hold_the_same() -> None:
    assert stored(1) == stored(1)
    assert stored(1) != stored(2)
    assert stored(1) != stored(1, 1)


def test_offsets_are_read_before_the_topics_are_known(scene: Any) -> None:
    """A coordinator may have loaded its journal before it hears of the cluster's topics."""
    scene.join("A")
    assert scene.commit("A", scene.member("A").member_epoch) == ["NONE"]
    loaded = GroupCoordinator(scene.config)
    loaded.replay(scene.journal, scene.now_ms)
    for partitions in ((X0,), None):
        request = OffsetFetchRequest(group_id="g", partitions=partitions)
        reply: Any = loaded.handle(request, scene.now_ms).reply
        assert {partition: found.offset for partition, found in reply.offsets.items()} == {X0: 7}
