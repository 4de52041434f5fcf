"""Offsets of classic groups, and what administrators see and do."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest, ListGroupsRequest
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetDeleteRequest, OffsetFetchRequest

RETENTION_MS = 10_080 * 60_000
CHECK_MS = 600_000


def delete(classic: Any) -> str:
    return classic.process(DeleteGroupsRequest(group_id="g")).reply.error_code.name


def listed(classic: Any, **filters: Any) -> list[tuple[str, str, str]]:
    groups = classic.process(ListGroupsRequest(**filters)).reply.groups
    return [(group.protocol_type, group.group_state, group.group_type) for group in groups]


def offset(classic: Any) -> int:
    wanted = TopicPartition("x", 0)
    reply = classic.process(OffsetFetchRequest(group_id="g", partitions=(wanted,))).reply
    return reply.offsets[wanted].offset


class TestCommits:
    def test_a_member_of_the_generation_commits(self, classic: Any) -> None:
        (one,) = classic.stable(1)
        assert classic.commit(one, 1) == "NONE"
        assert offset(classic) == 7

    @pytest.mark.parametrize(
        ("member", "generation", "error"),
        [
            (None, 0, "ILLEGAL_GENERATION"),
            (None, 2, "ILLEGAL_GENERATION"),
            (None, -1, "ILLEGAL_GENERATION"),
            ("stranger", 1, "UNKNOWN_MEMBER_ID"),
            ("", -1, "UNKNOWN_MEMBER_ID"),
        ],
    )
    def test_nobody_else_does(self, classic: Any, member: str | None, generation: int, error: str) -> None:
        (one,) = classic.stable(1)
        assert classic.commit(one if member is None else member, generation) == error
        assert offset(classic) == -1

    def test_a_member_commits_while_others_join(self, classic: Any) -> None:
        one, two = classic.stable(2)
        classic.join(one)
        assert classic.commit(two, 1) == "NONE"

    def test_nobody_commits_before_the_assignment(self, classic: Any) -> None:
        one, _ = classic.enter()
        classic.after(3_000)
        assert classic.commit(one, 1) == "REBALANCE_IN_PROGRESS"

    def test_into_an_empty_group_anybody_without_a_generation_commits(self, classic: Any) -> None:
        (one,) = classic.stable(1)
        classic.leave(one)
        assert classic.commit("", -1) == "NONE"
        assert classic.commit(one, 1) == "UNKNOWN_MEMBER_ID"

    def test_a_simple_consumer_s_offsets_are_there_for_a_group(self, classic: Any) -> None:
        assert classic.commit("", -1) == "NONE"
        assert listed(classic) == [("", "Empty", "classic")]
        classic.stable(1)
        assert offset(classic) == 7


class TestExpiry:
    def test_offsets_of_subscribed_topics_stay_in_a_stable_group(self, classic: Any) -> None:
        (one,) = classic.stable(1, session_timeout_ms=1_800_000)
        classic.commit(one, 1)
        for _ in range(RETENTION_MS // 1_000_000 + 2):
            classic.after(1_000_000)
            assert classic.beat(one, 1) == "NONE"
        assert offset(classic) == 7

    @pytest.mark.parametrize("metadata", [None, b"\x00\x01\x00\x00\x00\x01\x00\x01y\xff\xff\xff\xff"])
    def test_others_go(self, classic: Any, metadata: bytes | None) -> None:
        """Also of clients that leave out what version 1 adds: a broker reads what all versions begin with."""
        classic.scene.topics(x=1, y=1)
        subscription = {"range": other_subscription() if metadata is None else metadata}
        (one,) = classic.stable(1, session_timeout_ms=1_800_000, protocols=subscription)
        classic.commit(one, 1)
        for _ in range(RETENTION_MS // 1_000_000 + 2):
            classic.after(1_000_000)
            classic.beat(one, 1)
        assert offset(classic) == -1

    @pytest.mark.parametrize("metadata", [b"", b"\xff\xff", b"\x00\x00\x00\x00\x00\x09"])
    def test_consumers_that_cannot_be_read_keep_theirs(self, classic: Any, metadata: bytes) -> None:
        (one,) = classic.stable(1, session_timeout_ms=1_800_000, protocols={"range": metadata})
        classic.commit(one, 1)
        for _ in range(RETENTION_MS // 1_000_000 + 2):
            classic.after(1_000_000)
            classic.beat(one, 1)
        assert offset(classic) == 7

    def test_none_go_while_the_group_rebalances(self, classic: Any) -> None:
        classic.scene.topics(x=1, y=1)
        fields = {"session_timeout_ms": 1_800_000, "protocols": {"range": other_subscription()}}
        one, two = classic.stable(2, rebalance_timeout_ms=2 * RETENTION_MS, **fields)
        classic.commit(one, 1)
        classic.join(one, rebalance_timeout_ms=2 * RETENTION_MS, **fields)
        for _ in range(RETENTION_MS // 1_000_000 + 2):
            classic.after(1_000_000)
            assert classic.beat(two, 1) == "REBALANCE_IN_PROGRESS"
        assert classic.state == "PreparingRebalance"
        assert offset(classic) == 7

    def test_in_an_empty_group_the_time_counts_from_when_it_became_empty(self, classic: Any) -> None:
        (one,) = classic.stable(1, session_timeout_ms=1_800_000)
        classic.commit(one, 1)
        for _ in range(5):
            classic.after(1_000_000)
            classic.beat(one, 1)
        classic.leave(one)
        classic.after(RETENTION_MS - 1)
        assert offset(classic) == 7
        classic.after(CHECK_MS + 1)
        assert offset(classic) == -1
        assert listed(classic) == [], "an empty group without offsets goes"
        assert classic.scene.coordinator.hard_state()["classic_groups"] == {}


def other_subscription() -> bytes:
    from fencepost.coordinator.protocol import consumer_protocol

    return consumer_protocol.write_subscription(consumer_protocol.ConsumerProtocolSubscription(topics=("y",)))


class TestAdministration:
    def test_states_are_listed(self, classic: Any) -> None:
        classic.enter()
        assert listed(classic) == [("consumer", "PreparingRebalance", "classic")]
        classic.after(3_000)
        assert listed(classic) == [("consumer", "CompletingRebalance", "classic")]
        classic.assign()
        assert listed(classic, states_filter=("stable",), types_filter=("classic",)) == [
            ("consumer", "Stable", "classic")
        ]
        assert listed(classic, types_filter=("consumer",)) == []

    def test_a_stable_group_is_described_with_what_members_said_and_got(self, classic: Any) -> None:
        one, two = classic.stable(2)
        (group,) = classic.process(DescribeGroupsRequest(group_ids=("g",))).reply.groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        assert [(m.member_id, m.assignment) for m in group.members] == [
            (one, one.encode()),
            (two, two.encode()),
        ]
        assert all(member.metadata for member in group.members)

    def test_a_rebalancing_group_is_described_with_what_members_got_before(self, classic: Any) -> None:
        one, two = classic.stable(2)
        classic.join(one)
        (group,) = classic.process(DescribeGroupsRequest(group_ids=("g",))).reply.groups
        assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
        assert [(member.metadata, member.assignment) for member in group.members] == [
            (b"", one.encode()),
            (b"", two.encode()),
        ]

    def test_other_groups_are_described_as_missing(self, classic: Any) -> None:
        classic.scene.join("A", group_id="modern")
        groups = classic.process(DescribeGroupsRequest(group_ids=("modern", "none"))).reply.groups
        assert [(group.group_state, group.error_code.name) for group in groups] == [
            ("Dead", "GROUP_ID_NOT_FOUND")
        ] * 2

    def test_only_an_empty_group_is_deleted_with_its_offsets(self, classic: Any) -> None:
        assert delete(classic) == "GROUP_ID_NOT_FOUND"
        (one,) = classic.stable(1)
        classic.commit(one, 1)
        assert delete(classic) == "NON_EMPTY_GROUP"
        classic.leave(one)
        assert delete(classic) == "NONE"
        assert (listed(classic), offset(classic)) == ([], -1)
        assert classic.beat(one, 1) == "UNKNOWN_MEMBER_ID"

    def test_offsets_of_topics_that_nobody_reads_are_deleted(self, classic: Any) -> None:
        (one,) = classic.stable(1)
        classic.commit(one, 1)
        request = OffsetDeleteRequest(group_id="g", partitions=(TopicPartition("x", 0),))
        (code,) = classic.process(request).reply.errors.values()
        assert code.name == "GROUP_SUBSCRIBED_TO_TOPIC"
        classic.leave(one)
        (code,) = classic.process(request).reply.errors.values()
        assert (code.name, offset(classic)) == ("NONE", -1)

    def test_consumers_that_cannot_be_read_may_read_any(self, classic: Any) -> None:
        (one,) = classic.stable(1, protocols={"range": b"\xff"})
        classic.commit(one, 1)
        request = OffsetDeleteRequest(group_id="g", partitions=(TopicPartition("x", 0),))
        (code,) = classic.process(request).reply.errors.values()
        assert (code.name, offset(classic)) == ("GROUP_SUBSCRIBED_TO_TOPIC", 7)

    def test_those_of_members_other_than_consumers_are_not_until_all_are_gone(self, classic: Any) -> None:
        (one,) = classic.stable(1, protocol_type="connect")
        classic.commit(one, 1)
        request = OffsetDeleteRequest(group_id="g", partitions=(TopicPartition("x", 0),))
        assert classic.process(request).reply.error_code.name == "NON_EMPTY_GROUP"
        classic.leave(one)
        assert classic.process(request).reply.error_code.name == "NONE"
        assert offset(classic) == -1


class TestOtherKinds:
    def test_an_empty_group_gives_way_to_a_consumer_group(self, classic: Any) -> None:
        (one,) = classic.stable(1)
        classic.commit(one, 1)
        classic.leave(one)
        assert classic.scene.join("A").member_epoch == 2
        assert classic.scene.written()[0] == "-2"
        assert (dict(classic.scene.coordinator.classic.groups), offset(classic)) == ({}, 7)
        classic.scene.reload()

    def test_an_empty_consumer_group_gives_way_to_a_classic_one(self, classic: Any) -> None:
        classic.scene.join("A")
        classic.scene.beat("A", -1)
        assert classic.error(classic.join("stranger")) == "UNKNOWN_MEMBER_ID"
        assert "g" in classic.scene.coordinator.groups
        assert classic.error(classic.join()) == "MEMBER_ID_REQUIRED"
        assert dict(classic.scene.coordinator.groups) == {}
        classic.scene.reload()
        assert classic.state == "Empty"
