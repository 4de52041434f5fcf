"""Which records are written, in which order, and how they are read again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import InconsistentRecord
from fencepost.coordinator.consumer.states import MemberState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest
from fencepost.coordinator.protocol.errors import FencepostError


class TestOrder:
    def test_a_join(self, scene: Any) -> None:
        scene.join("A")
        assert scene.written() == ["5:A", "3", "7:A", "6", "8:A"]

    def test_a_join_that_changes_other_targets(self, scene: Any) -> None:
        scene.join("B")
        scene.join("A")
        assert scene.written() == ["5:A", "3", "7:A", "7:B", "6", "8:A"]

    def test_a_join_whose_target_has_to_wait(self, scenes: Any) -> None:
        scene = scenes(group_consumer_assignment_interval_ms=1_000)
        scene.topics(x=4)
        scene.join("A")
        scene.join("B")
        assert scene.written() == ["5:B", "3", "8:B"]

    def test_a_member_goes(self, scene: Any) -> None:
        scene.join("A")
        scene.beat("A", -1)
        assert scene.written() == ["-8:A", "-7:A", "-5:A", "3"]

    def test_a_group_goes(self, scene: Any) -> None:
        scene.join("A")
        scene.commit("A", 2)
        scene.beat("A", -1)
        scene.process(DeleteGroupsRequest(group_id="g"))
        assert scene.written() == ["-1", "-6", "-3"]
        assert not scene.coordinator.groups

    def test_a_confirmation(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.beat("A", 2)
        assert scene.written() == ["8:A"]
        scene.beat("A", 2, {"x": (0, 1)})
        assert scene.written() == ["8:A"]
        scene.beat("A", 3, {"x": (0, 1)})
        assert scene.written() == []


def load(*records: r.Record) -> GroupCoordinator:
    coordinator = GroupCoordinator(GroupCoordinatorConfig())
    coordinator.replay(records, 0)
    return coordinator


def metadata(member_id: str = "A", instance_id: str | None = None) -> r.Record:
    return r.Record(
        r.ConsumerGroupMemberMetadataKey("g", member_id),
        r.ConsumerGroupMemberMetadataValue(
            instance_id=instance_id,
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=("x",),
            subscribed_topic_regex=None,
            rebalance_timeout_ms=1,
            server_assignor=None,
        ),
    )


def current(member_id: str, epoch: int, *partitions: int, **fields: Any) -> r.Record:
    value = r.ConsumerGroupCurrentMemberAssignmentValue(
        **{
            "member_epoch": epoch,
            "previous_member_epoch": 0,
            "state": 0,
            "assigned": {"t": partitions} if partitions else {},
            **fields,
        }
    )
    return r.Record(r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id), value)


def target(member_id: str, *partitions: int) -> r.Record:
    value = r.ConsumerGroupTargetAssignmentMemberValue({"t": partitions})
    return r.Record(r.ConsumerGroupTargetAssignmentMemberKey("g", member_id), value)


GROUP = r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(3, 5))
TARGET = r.Record(
    r.ConsumerGroupTargetAssignmentMetadataKey("g"), r.ConsumerGroupTargetAssignmentMetadataValue(3, 7)
)
REGEX = r.Record(
    r.ConsumerGroupRegularExpressionKey("g", "x"), r.ConsumerGroupRegularExpressionValue(("x",), 1, 2)
)


def end(record: r.Record) -> r.Record:
    return r.Record(record.key, None)


class TestReplay:
    def test_records_may_come_in_any_order(self) -> None:
        parts = (GROUP, metadata(), target("A", 0), TARGET, current("A", 3, 0), REGEX)
        states = [load(*order).hard_state() for order in itertools.permutations(parts)]
        assert all(state == states[0] for state in states)
        assert load(*parts).groups["g"].state == "Stable"

    @pytest.mark.parametrize(
        "record", [GROUP, metadata(), target("A", 0), TARGET, current("A", 3, 0), REGEX], ids=str
    )
    def test_any_record_makes_the_group_and_a_tombstone_of_nothing_is_nothing(self, record: r.Record) -> None:
        assert list(load(record).groups) == ["g"]
        assert not load(end(record)).groups

    def test_tombstones_of_members_that_are_gone_are_nothing(self) -> None:
        gone = (end(current("B", 1)), end(target("B")), end(metadata("B")), end(REGEX))
        assert load(GROUP, *gone).hard_state() == load(GROUP).hard_state()

    def test_partitions_without_an_assignment_epoch_get_the_members(self) -> None:
        group = load(metadata(), current("A", 4, 0, 1, assignment_epochs={"t": {1: 2}})).groups["g"]
        assert group.members["A"].assignment_epochs == {"t": {0: 4, 1: 2}}
        away = load(metadata(), current("A", -2, 0)).groups["g"]
        assert away.members["A"].assignment_epochs == {"t": {0: 0}}

    def test_a_state_of_a_newer_coordinator_is_unknown(self) -> None:
        group = load(metadata(), current("A", 4, 0, state=9)).groups["g"]
        assert group.members["A"].state is MemberState.UNKNOWN

    def test_the_tombstone_of_an_assignment_takes_everything_away(self) -> None:
        group = load(metadata(), current("A", 4, 0), end(current("A", 4))).groups["g"]
        member = group.members["A"]
        assert (member.member_epoch, member.previous_member_epoch, dict(member.assigned)) == (-1, -1, {})
        assert len(group.partition_epochs) == 0

    def test_an_older_holder_may_be_read_after_a_newer_one(self) -> None:
        """While a log is being compacted, the release between the two may be gone already."""
        newer_first = load(
            metadata("A"), metadata("B"), current("A", 2, 0), current("B", 3, 0), current("A", 3, 1)
        )
        epochs = newer_first.groups["g"].partition_epochs.as_dict()
        assert epochs == {"t": {0: 3, 1: 3}}

    def test_consumer_records_replace_a_group_of_offsets(self, scene: Any) -> None:
        assert scene.commit("", -1) == ["NONE"]
        assert not scene.coordinator.groups
        scene.join("A")
        scene.reload()
        assert list(scene.coordinator.groups) == ["g"]
        assert "g" in scene.coordinator.offsets

    @pytest.mark.parametrize(
        ("records", "why"),
        [
            ((metadata(), end(GROUP)), "still has 1 members"),
            ((target("A", 0), end(GROUP)), "target assignment still has 1 members"),
            ((GROUP, end(GROUP)), "own tombstone is missing"),
            ((metadata(), current("A", 2), end(metadata())), "tombstone of the member's assignment"),
            ((metadata(), target("A", 0), current("A", -1), end(metadata())), "member's target is missing"),
            ((target("A", 0), end(TARGET)), "assignment still has 1 members"),
            ((metadata(), metadata("B"), current("A", 2, 0), current("B", 2, 0)), "held at epoch 2"),
        ],
        ids=str,
    )
    def test_a_broken_journal_names_the_record(self, records: Any, why: str) -> None:
        with pytest.raises(InconsistentRecord, match=why) as error:
            load(*records)
        assert type(records[-1].key).__name__ in str(error.value)
        assert isinstance(error.value, FencepostError)


def test_every_prefix_of_the_journal_is_a_state_that_was(scene: Any) -> None:
    history: list[tuple[int, Any]] = []

    def remember() -> None:
        history.append((len(list(scene.journal.batches())), scene.coordinator.hard_state()))

    scene.join("A")
    remember()
    scene.join("B", instance_id="i")
    remember()
    scene.beat("A", 2)
    remember()
    scene.beat("B", -2, instance_id="i")
    remember()
    scene.join("C", instance_id="i")
    remember()
    scene.settle("A", "C")
    remember()
    scene.beat("A", -1)
    remember()
    for length, state in history:
        journal = MemoryJournal(itertools.islice(scene.journal.batches(), length))
        other = GroupCoordinator(scene.config)
        other.replay(journal, 0)
        assert other.hard_state() == state


def test_a_group_that_was_deleted_can_be_made_again(scene: Any) -> None:
    scene.join("A")
    scene.beat("A", -1)
    scene.process(DeleteGroupsRequest(group_id="g"))
    assert scene.join("B").member_epoch == 2
    scene.reload()
    scene.reload(compact=True)
    assert scene.beat("B", 2).member_epoch == 2
