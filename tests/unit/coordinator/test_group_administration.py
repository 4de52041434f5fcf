"""Describe, list, delete, and the removal of members by an administrator."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator import administration
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.transactions import TransactionEnded

X0 = TopicPartition("x", 0)


def described(scene: Any, group_id: str = "g") -> consumer.DescribedGroup:
    reply = scene.process(consumer.ConsumerGroupDescribeRequest(group_ids=(group_id,))).reply
    (group,) = reply.groups
    assert isinstance(group, consumer.DescribedGroup)
    return group


class TestDescribe:
    def test_a_group_in_the_middle_of_a_revocation(self, scene: Any) -> None:
        scene.join("A", instance_id="i", rack_id="r", client_id="c", client_host="h")
        scene.join("B", server_assignor="range")
        scene.beat("A", 2, client_id="c", client_host="h")
        group = described(scene)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 3, 3)
        assert group.assignor_name == "range"
        a, b = group.members
        assert (a.member_id, a.instance_id, a.rack_id, a.client_id, a.client_host) == (
            "A",
            "i",
            "r",
            "c",
            "h",
        )
        assert (a.member_epoch, a.subscribed_topic_names, a.subscribed_topic_regex) == (2, ("x",), "")
        # It still holds what it has to revoke.
        assert a.assignment == (
            consumer.DescribedPartitions(topic_id="id-of-x", topic_name="x", partitions=(0, 1, 2, 3)),
        )
        assert a.target_assignment == (
            consumer.DescribedPartitions(topic_id="id-of-x", topic_name="x", partitions=(0, 1)),
        )
        assert b.assignment == ()

    def test_deleted_topics_are_left_out(self, scene: Any) -> None:
        scene.topics(x=1, y=1)
        scene.join("A", ("x", "y"))
        scene.topics(y=1)
        (member,) = described(scene).members
        assert [each.topic_name for each in member.assignment] == ["y"]
        assert [each.topic_name for each in member.target_assignment] == ["y"]

    def test_without_a_preference_the_first_assignor_is_named(self, scene: Any) -> None:
        scene.join("A")
        assert described(scene).assignor_name == "uniform"

    def test_missing_groups(self, scene: Any) -> None:
        scene.commit("", -1)
        assert described(scene).error_code is E.GROUP_ID_NOT_FOUND
        assert described(scene, "other").error_code is E.GROUP_ID_NOT_FOUND
        assert described(scene, "").error_code is E.INVALID_GROUP_ID

    def test_answers_come_in_the_order_of_the_request(self, scene: Any) -> None:
        scene.join("A")
        reply = scene.process(consumer.ConsumerGroupDescribeRequest(group_ids=("z", "g", "a"))).reply
        assert [group.group_id for group in reply.groups] == ["z", "g", "a"]


class TestList:
    @pytest.fixture
    def several(self, scene: Any) -> Any:
        scene.join("A", group_id="stable")
        scene.join("A", group_id="empty")
        scene.beat("A", -1, group_id="empty")
        scene.commit("", -1)
        return scene

    @pytest.mark.parametrize(
        ("states", "types", "expected"),
        [
            ((), (), ["empty", "g", "stable"]),
            (("STABLE",), (), ["stable"]),
            ((" Empty ", "stable"), (), ["empty", "g", "stable"]),
            ((), ("Consumer",), ["empty", "stable"]),
            ((), ("classic",), ["g"]),
            (("empty",), ("consumer",), ["empty"]),
            (("Nonsense",), (), []),
            ((), ("nonsense",), []),
        ],
    )
    def test_filters(self, several: Any, states: Any, types: Any, expected: list[str]) -> None:
        reply = several.process(consumer.ListGroupsRequest(states_filter=states, types_filter=types)).reply
        assert [group.group_id for group in reply.groups] == expected

    def test_rows(self, several: Any) -> None:
        empty, simple, stable = several.process(consumer.ListGroupsRequest()).reply.groups
        assert (stable.protocol_type, stable.group_state, stable.group_type) == (
            "consumer",
            "Stable",
            "consumer",
        )
        assert (empty.protocol_type, empty.group_state, empty.group_type) == ("consumer", "Empty", "consumer")
        assert (simple.protocol_type, simple.group_state, simple.group_type) == ("", "Empty", "classic")


class TestDelete:
    def delete(self, scene: Any, group_id: str = "g") -> E:
        code = scene.process(consumer.DeleteGroupsRequest(group_id=group_id)).reply.error_code
        assert isinstance(code, E)
        return code

    def test_a_group_with_members_stays(self, scene: Any) -> None:
        scene.join("A")
        assert self.delete(scene) is E.NON_EMPTY_GROUP
        assert not scene.last.records

    def test_an_empty_group_goes_with_its_offsets(self, scene: Any) -> None:
        scene.join("A")
        scene.commit("A", 2)
        scene.beat("A", -1)
        assert self.delete(scene) is E.NONE
        assert not scene.coordinator.groups
        assert "g" not in scene.coordinator.offsets
        assert self.delete(scene) is E.GROUP_ID_NOT_FOUND

    def test_a_group_of_offsets_goes(self, scene: Any) -> None:
        scene.commit("", -1)
        assert self.delete(scene) is E.NONE
        assert "g" not in scene.coordinator.offsets


class TestSimpleGroups:
    """Groups that never had members: Kafka knows them without their offsets, too."""

    @pytest.fixture
    def emptied(self, scene: Any) -> Any:
        """The group "g", whose only offset was deleted."""
        scene.commit("", -1)
        assert self.delete_offset(scene) == {X0: E.NONE}
        return scene

    def delete_offset(self, scene: Any) -> Any:
        reply = scene.process(OffsetDeleteRequest(group_id="g", partitions=(X0,))).reply
        assert reply.error_code is E.NONE
        return reply.errors

    def delete(self, scene: Any) -> Any:
        return scene.process(consumer.DeleteGroupsRequest(group_id="g")).reply.error_code

    def listed(self, scene: Any) -> list[tuple[str, str, str, str]]:
        return [
            (row.group_id, row.group_state, row.group_type, row.protocol_type)
            for row in scene.process(consumer.ListGroupsRequest()).reply.groups
        ]

    def test_the_group_stays_after_its_last_offset(self, emptied: Any) -> None:
        assert self.listed(emptied) == [("g", "Empty", "classic", "")]
        (group,) = emptied.process(DescribeGroupsRequest(group_ids=("g",))).reply.groups
        assert (group.group_state, group.error_code) == ("Empty", E.NONE)
        assert self.delete_offset(emptied) == {X0: E.NONE}
        assert emptied.commit("A", 1) == ["UNKNOWN_MEMBER_ID"]

    def test_it_can_be_deleted(self, emptied: Any) -> None:
        assert self.delete(emptied) is E.NONE
        assert emptied.written() == ["-2"]
        assert self.listed(emptied) == []
        assert self.delete(emptied) is E.GROUP_ID_NOT_FOUND

    def test_the_next_sweep_deletes_it(self, emptied: Any) -> None:
        (swept,) = emptied.after(emptied.config.offsets_retention_check_interval_ms)
        assert list(map(emptied.short, swept.records)) == ["-2"]
        assert self.listed(emptied) == []

    def test_a_sweep_of_many_groups_takes_several_steps(
        self, scene: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(administration, "SWEPT_AT_ONCE", 2)
        for number in range(5):
            group_id, offsets = f"g{number}", {X0: OffsetAndMetadata(offset=7)}
            scene.process(
                OffsetCommitRequest(group_id=group_id, member_id="", member_epoch=-1, offsets=offsets)
            )
            scene.process(OffsetDeleteRequest(group_id=group_id, partitions=(X0,)))
        scene.now_ms += scene.config.offsets_retention_check_interval_ms
        due_ms = scene.coordinator.next_deadline()
        outcomes = [scene.process(DeadlineReached(due_ms))]
        deleted = scene.process(consumer.DeleteGroupsRequest(group_id="g2"))
        assert deleted.reply.error_code is E.NONE
        while scene.coordinator.next_deadline() == due_ms:
            outcomes.append(scene.process(DeadlineReached(due_ms)))
        assert [[record.key.group_id for record in each.records] for each in outcomes] == [
            ["g0", "g1"],
            ["g3"],
            ["g4"],
        ]
        assert self.listed(scene) == []

    def test_a_load_of_the_whole_log_keeps_it_and_one_of_a_compacted_log_does_not(self, emptied: Any) -> None:
        emptied.reload()
        assert self.listed(emptied) == [("g", "Empty", "classic", "")]
        emptied.reload(compact=True)
        assert self.listed(emptied) == []

    def test_a_group_with_members_takes_its_place(self, emptied: Any) -> None:
        emptied.join("A")
        assert "-2" in emptied.written()
        emptied.beat("A", -1)
        assert self.delete(emptied) is E.NONE
        assert self.listed(emptied) == []

    def test_a_new_offset_is_in_the_same_group(self, emptied: Any) -> None:
        assert emptied.commit("", -1) == ["NONE"]
        assert self.listed(emptied) == [("g", "Empty", "classic", "")]
        assert self.delete(emptied) is E.NONE
        assert self.listed(emptied) == []

    def test_a_refused_first_commit_makes_one(self, scene: Any) -> None:
        large = OffsetAndMetadata(offset=1, metadata="x" * 5_000)
        request = OffsetCommitRequest(group_id="g", member_id="", member_epoch=-1, offsets={X0: large})
        assert scene.process(request).reply.errors == {X0: E.OFFSET_METADATA_TOO_LARGE}
        assert self.listed(scene) == [("g", "Empty", "classic", "")]
        scene.after(scene.config.offsets_retention_check_interval_ms)
        assert self.listed(scene) == []

    def test_an_aborted_transaction_leaves_one(self, scene: Any) -> None:
        assert scene.commit("", -1, producer_id=5) == ["NONE"]
        scene.process(TransactionEnded(group_id="g", producer_id=5, commit=False))
        assert self.listed(scene) == [("g", "Empty", "classic", "")]

    def test_one_with_an_open_transaction_outlives_the_sweep(self, scene: Any) -> None:
        assert scene.commit("", -1, producer_id=5) == ["NONE"]
        assert scene.after(scene.config.offsets_retention_check_interval_ms) == []
        assert self.listed(scene) == [("g", "Empty", "classic", "")]


class TestRemoveMembers:
    def remove(self, scene: Any, member_id: str = "", instance_id: str | None = None) -> E:
        request = consumer.LeaveGroupRequest(group_id="g", member_id=member_id, instance_id=instance_id)
        code = scene.process(request).reply.error_code
        assert isinstance(code, E)
        return code

    @pytest.fixture
    def static(self, scene: Any) -> Any:
        scene.join("A", instance_id="i")
        scene.join("B")
        return scene

    @pytest.mark.parametrize(("member_id", "instance_id"), [("A", None), ("", "i"), ("A", "i")])
    def test_by_either_name(self, static: Any, member_id: str, instance_id: str | None) -> None:
        assert self.remove(static, member_id, instance_id) is E.NONE
        assert list(static.group.members) == ["B"]
        assert static.group.group_epoch == 4

    @pytest.mark.parametrize(
        ("member_id", "instance_id", "code"),
        [
            ("Z", None, E.UNKNOWN_MEMBER_ID),
            ("", None, E.UNKNOWN_MEMBER_ID),
            ("A", "j", E.UNKNOWN_MEMBER_ID),
            ("B", "i", E.FENCED_INSTANCE_ID),
        ],
    )
    def test_what_does_not_fit(self, static: Any, member_id: str, instance_id: str | None, code: E) -> None:
        assert self.remove(static, member_id, instance_id) is code
        assert len(static.group.members) == 2

    def test_in_a_missing_group_nobody_is_known(self, scene: Any) -> None:
        assert self.remove(scene, "A") is E.UNKNOWN_MEMBER_ID

    def test_several_at_once_raise_the_epoch_once(self, static: Any) -> None:
        static.join("C")
        wanted = (("", "i"), ("Z", None), ("B", None), ("A", None))
        members = tuple(
            consumer.LeaveGroupRequest(group_id="g", member_id=m, instance_id=i) for m, i in wanted
        )
        reply = static.process(consumer.LeaveGroupBatchRequest(group_id="g", members=members)).reply
        codes = [each.error_code for each in reply.members]
        assert codes == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE]
        assert static.written() == ["-8:A", "-7:A", "-5:A", "-8:B", "-7:B", "-5:B", "3"]
        assert list(static.group.members) == ["C"]
        assert static.group.group_epoch == 5

    def test_none_of_several_raises_nothing(self, static: Any) -> None:
        members = (consumer.LeaveGroupRequest(group_id="g", member_id="Z"),)
        reply = static.process(consumer.LeaveGroupBatchRequest(group_id="g", members=members)).reply
        assert [each.error_code for each in reply.members] == [E.UNKNOWN_MEMBER_ID]
        assert static.written() == []
