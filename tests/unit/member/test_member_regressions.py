"""Defects that other clients had, each as the shortest history that would show it here.

Names are issues of Apache Kafka (KAFKA-n), pull requests of librdkafka, and commits or pull requests of
franz-go.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import (
    FetchOffsets,
    LeaveFinished,
    ResolveTopicNames,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.base.backoff import Backoff
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO, BAR = "foo-id", "bar-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def count(r: Any, kind: type) -> int:
    return sum(isinstance(action, kind) for action in r.log)


# -- Apache Kafka ----------------------------------------------------------------------------------------


def test_kafka_18641_auto_commit_does_not_cover_records_of_the_poll_that_goes_on(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True, auto_commit_interval_ms=1)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    r.advance(10)
    assert r.pending(SendCommit) == []
    r.poll_begin()
    assert r.committed().request.offsets[FOO_0].offset == 5


@pytest.mark.parametrize("loss", ["revoked", "fenced", "unsubscribed", "timed out"])
def test_kafka_20332_nothing_is_fetchable_between_the_decision_and_the_callback(
    rig: MakeRig, loss: str
) -> None:
    r = rig(max_poll_interval_ms=60_000)
    r.stable({FOO: (0,)})
    if loss == "timed out":
        r.poll_end()
        r.advance(5_000)
        r.answer()
        r.now += 60_000
        r.take(r.member.deadline_reached(r.now))
    elif loss == "unsubscribed":
        r.unsubscribe()
    else:
        r.advance(5_000)
        r.answer(2, {}, error=ErrorCode.NONE if loss == "revoked" else ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.pending(RunCallback)
    assert r.fetchable() == {}


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


def test_kafka_19242_a_commit_carries_the_epoch_of_the_moment_it_is_sent(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    for offset in (1, 2):
        r.take(r.member.commit({FOO_0: OffsetAndMetadata(offset=offset)}, r.now)[1])
    r.advance(5_000)
    r.answer(7)
    assert r.committed().request.member_epoch == 2
    assert r.committed().request.member_epoch == 7


@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_kafka_19300_leaving_ends_without_a_coordinator(rig: MakeRig, how: str) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    r.take(getattr(r.member, how)(r.now))
    for _ in range(100):
        if r.pending(SendFindCoordinator):
            r.fail(SendFindCoordinator)
        r.advance(1_000)
    assert count(r, LeaveFinished) == 1


def test_kafka_19357_leaving_ends_if_the_lookup_is_not_allowed(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    r.unsubscribe()
    lookup = r.one(SendFindCoordinator)
    r.take(r.member.coordinator_refused(lookup.token, ErrorCode.GROUP_AUTHORIZATION_FAILED, r.now))
    assert count(r, LeaveFinished) == 1


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


def test_kafka_19813_no_wait_is_longer_than_its_setting() -> None:
    backoff = Backoff(100, 1_000, random.Random(3))
    waits = [backoff.next_ms() for _ in range(2_000)]
    assert 80 <= waits[0] <= 120
    assert all(800 <= wait <= 1_000 for wait in waits[4:])


def test_kafka_20428_a_target_is_not_applied_after_unsubscribe(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(5_000)
    r.answer(2, {FOO: (1,)})
    r.unsubscribe()
    r.poll_begin()
    assert r.callback().partitions == (FOO_0,)
    assert count(r, RunCallback) == 2
    assert r.heartbeat().member_epoch == -1


def test_kafka_20145_one_acknowledgement_for_one_change(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    for _ in range(200):
        for action in r.pending(ResolveTopicNames):
            r.names(action, {})
        r.poll()
        r.poll_begin()
        if r.pending(SendHeartbeat):
            r.answer(2)
        r.advance(50)
    sent = [action.request for action in r.log if isinstance(action, SendHeartbeat)]
    assert sum(request.topic_partitions is not None for request in sent[1:]) == 1
    assert len(sent) <= 5


@pytest.mark.parametrize(
    "kind", [SendHeartbeat, FetchOffsets, SendFindCoordinator, ResolveTopicNames, SendCommit]
)
def test_kafka_20253_no_retry_spins(rig: MakeRig, kind: type) -> None:
    r = rig(enable_auto_commit=True)
    r.auto_offsets = r.auto_names = False
    r.auto_coordinator = kind is not SendFindCoordinator
    r.join("foo")
    if kind in (FetchOffsets, ResolveTopicNames, SendCommit):
        r.answer(2, {FOO: (0,)})
    if kind in (FetchOffsets, SendCommit):
        r.names(r.one(ResolveTopicNames), {FOO: "foo"})
        r.callback()
    if kind is SendCommit:
        r.take(r.member.commit({FOO_0: OffsetAndMetadata(offset=1)}, r.now)[1])
    before = count(r, kind)
    end = r.now + 10_000
    while r.now < end:
        if r.pending(kind):
            r.fail(kind)
        else:
            r.advance(1)
    assert count(r, kind) - before <= 16


# -- librdkafka ------------------------------------------------------------------------------------------


def test_librdkafka_5488_the_join_after_a_poll_time_out_says_everything(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(1_000)
    r.answer(-1)
    r.callback()
    r.poll_begin()
    request = r.heartbeat()
    assert (request.member_epoch, request.topic_partitions) == (0, {})
    assert request.rebalance_timeout_ms == 1_000
    assert request.subscribed_topic_names == ("bar", "foo")


def test_librdkafka_4672_an_answer_from_before_the_leave_does_not_bring_its_epoch_back(
    rig: MakeRig,
) -> None:
    r = rig(max_poll_interval_ms=6_000)
    r.stable({})
    r.poll_end()
    r.advance(6_000)
    keepalive, leave = r.pending(SendHeartbeat)
    r.poll_begin()
    assert r.state == "JOINING"
    r.answer(-1, action=leave)
    r.answer(8, {FOO: (0,)}, action=keepalive)
    assert r.state == "JOINING"
    assert r.heartbeat().member_epoch == 0


# -- franz-go --------------------------------------------------------------------------------------------


def test_franz_go_eca3a457_a_lost_assignment_is_asked_for_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.fail()
    r.advance(1_000)
    request = r.answer(3, {FOO: (0, 1)})
    assert request.rebalance_timeout_ms != -1
    assert request.subscribed_topic_names is not None
    assert request.topic_partitions == {FOO: (0,)}
    assert r.one(RunCallback).partitions == (FOO_1,)


def test_franz_go_d5ceeb73_an_owned_list_is_current_or_absent(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.advance(5_000)
    r.answer(2, {FOO: (0,)})
    r.callback()
    for failing in (True, False, True):
        r.advance(5_000)
        if failing:
            r.fail()
            r.advance(1_000)
        assert r.answer().topic_partitions in (None, {FOO: (0,)})


def test_franz_go_6536e4f3_one_reconciliation_at_a_time(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    for assignment in ({FOO: (0,)}, {FOO: (1,)}, {BAR: (0,)}):
        r.advance(5_000)
        r.answer(2, assignment)
        assert len(r.pending(RunCallback)) == 1


def test_franz_go_2f945862_the_member_id_stays(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.take(r.member.commit({FOO_0: OffsetAndMetadata(offset=1)}, r.now)[1])
    r.committed(ErrorCode.STALE_MEMBER_EPOCH)
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
        r.advance(5_000)
        r.answer(error=code)
        r.callback()
        assert r.heartbeat().member_id == "member"
        r.answer(4, {FOO: (0,)})
        r.callback()
        r.answer(4)


def test_franz_go_8e7cfc60_a_join_lists_nothing_even_where_ids_were_unresolved(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.names(r.one(ResolveTopicNames), {})
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.heartbeat().topic_partitions == {}


def test_franz_go_9b92299f_a_topic_that_metadata_learns_late_is_consumed(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.names(r.one(ResolveTopicNames), {})
    r.answer(2)
    r.advance(3_000)
    r.names(r.one(ResolveTopicNames), {FOO: "foo"})
    r.callback()
    assert list(r.fetchable()) == [FOO_0]


def test_franz_go_8038d16d_an_error_of_a_fetch_does_not_fence(rig: MakeRig) -> None:
    r = rig()
    r.auto_offsets = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.callback()
    r.answer(2)
    r.fetched(r.one(FetchOffsets), {}, error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.state == "STABLE"
    r.advance(1_000)
    r.fetched(r.one(FetchOffsets), {FOO_0: 3})
    assert r.fetchable() == {FOO_0: 3}, "what is acknowledged is consumed"
