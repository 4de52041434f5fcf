"""Defects that other clients had, each as the shortest history that would show it here.

Names are issues of Apache Kafka (KAFKA-n) and commits of franz-go. Those that simulated runs show are listed
as mutants in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.actions import (
    FetchOffsets,
    ResolveTopicNames,
    SendFindCoordinator,
)
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO, FOO_0 = "foo-id", TopicPartition("foo", 0)


def test_kafka_19335_a_late_answer_to_a_leave_does_not_become_the_epoch(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.unsubscribe()
    leave = r.one(SendHeartbeat)
    r.subscribe("foo")
    join = next(action for action in r.pending(SendHeartbeat) if action is not leave)
    r.answer(-1, action=leave)
    assert r.member.member_epoch == 0
    r.answer(-1, action=join)
    assert r.member.member_epoch == 0
    r.advance(1_000)
    assert r.answer(3, {}).member_epoch == 0
    assert r.member.member_epoch == 3


def test_kafka_19357_leaving_ends_if_the_lookup_is_not_allowed(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    r.unsubscribe()
    lookup = r.one(SendFindCoordinator)
    r.take(r.member.coordinator_refused(lookup.token, ErrorCode.GROUP_AUTHORIZATION_FAILED, r.now))
    assert r.leaves_finished() == 1


def test_kafka_19781_no_position_is_asked_for_a_partition_on_its_way_out(rig: MakeRig) -> None:
    r = rig()
    r.auto_offsets = False
    r.join("foo")
    r.answer(2, {FOO: (0, 1)})
    r.callback()
    r.answer(2)
    r.advance(5_000)
    r.answer(2, {FOO: (0,)})
    r.fail(FetchOffsets)
    r.advance(1_000)
    assert r.one(FetchOffsets).request.partitions == (FOO_0,)


def test_franz_go_8e7cfc60_a_join_lists_nothing_even_where_ids_were_unresolved(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.names(r.one(ResolveTopicNames), {})
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.heartbeat().topic_partitions == {}
