"""When heartbeats go out, and what is in them (KIP-848, Heartbeat; Kafka's client for the details)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import (
    ResolveTopicNames,
    RunCallback,
    SendFindCoordinator,
)
from fencepost.member.base.errors import RequestFailure
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO, BAR = "foo-id", "bar-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def is_keepalive(request: Any) -> bool:
    return (
        request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == -1
    )


def is_full(request: Any) -> bool:
    return (
        request.rebalance_timeout_ms != -1
        and request.subscribed_topic_names is not None
        and request.topic_partitions is not None
    )


# -- the join --------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_first_poll(rig: MakeRig) -> None:
    r = rig()
    r.subscribe("foo")
    r.advance(60_000)
    assert r.log == []
    assert r.state == "UNSUBSCRIBED"


def test_nothing_is_sent_without_a_subscription(rig: MakeRig) -> None:
    r = rig()
    r.poll()
    r.advance(60_000)
    assert r.log == []


def test_the_join_says_everything(rig: MakeRig) -> None:
    r = rig(
        group_instance_id="host-1",
        client_rack="rack",
        group_remote_assignor="uniform",
        client_id="client",
        max_poll_interval_ms=7,
    )
    r.subscribe("foo", "bar", "foo", pattern="b.*")
    r.poll_begin()
    request = r.heartbeat()
    assert (request.group_id, request.member_id, request.member_epoch) == ("group", "member", 0)
    assert request.instance_id == "host-1"
    assert request.rack_id == "rack"
    assert request.rebalance_timeout_ms == 7
    assert request.subscribed_topic_names == ("bar", "foo")
    assert request.subscribed_topic_regex == "b.*"
    assert request.server_assignor == "uniform"
    assert request.client_id == "client"
    assert request.topic_partitions == {}


def test_a_join_with_a_pattern_alone_has_an_empty_list_of_names(rig: MakeRig) -> None:
    r = rig()
    r.join(pattern="foo.*")
    assert r.heartbeat().subscribed_topic_names == ()
    assert r.heartbeat().subscribed_topic_regex == "foo.*"


def test_the_rack_is_sent_with_the_join_only(rig: MakeRig) -> None:
    r = rig(client_rack="rack")
    r.stable({})
    r.advance(5_000)
    r.fail()
    r.advance(1_000)
    assert is_full(r.heartbeat())
    assert r.heartbeat().rack_id is None


# -- the interval ----------------------------------------------------------------------------------------


def test_a_stable_member_repeats_one_value_at_the_interval(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(4_999)
    assert r.open == []
    r.advance(1)
    first = r.one(SendHeartbeat)
    assert is_keepalive(first.request)
    assert r.member.deadline_ms is None
    r.advance(300)
    r.answer()
    r.advance(4_999)
    assert r.open == []
    r.advance(1)
    assert r.one(SendHeartbeat) is first


def test_the_newest_epoch_is_used(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)}, epoch=2)
    r.advance(5_000)
    r.answer(9)
    r.advance(5_000)
    assert r.heartbeat().member_epoch == 9


def test_an_interval_of_zero_is_not_believed(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.advance(5_000)
    r.answer(interval_ms=0)
    assert r.open == []
    assert r.member.deadline_ms == r.now + 5_000


def test_heartbeats_go_on_during_callbacks_and_say_nothing(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0, 1)})
    for _ in range(3):
        assert r.pending(RunCallback)
        r.advance(5_000)
        assert is_keepalive(r.answer())


def test_heartbeats_go_on_while_names_are_unknown(rig: MakeRig) -> None:
    r = rig()
    r.auto_names = False
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    assert r.pending(ResolveTopicNames)
    r.advance(5_000)
    assert is_keepalive(r.heartbeat())
    assert r.state == "RECONCILING"


def test_heartbeats_stop_while_fenced(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    r.advance(60_000)
    assert r.pending(SendHeartbeat) == []


# -- what changed is sent --------------------------------------------------------------------------------


def test_a_changed_subscription_is_sent_at_once_and_alone(rig: MakeRig) -> None:
    r = rig(group_remote_assignor="uniform")
    r.stable({FOO: (0,)})
    r.subscribe("foo")
    request = r.heartbeat()
    assert request.subscribed_topic_names == ("foo",)
    assert (request.rebalance_timeout_ms, request.server_assignor) == (-1, None)
    assert request.topic_partitions is None
    r.answer()
    assert r.open == []
    r.advance(5_000)
    assert is_keepalive(r.heartbeat())


def test_the_same_subscription_again_sends_nothing(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.subscribe("bar", "foo", "bar")
    assert r.open == []


def test_a_change_waits_for_the_heartbeat_in_flight(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.subscribe("foo")
    assert is_keepalive(r.answer())
    assert r.heartbeat().subscribed_topic_names == ("foo",)


def test_the_owned_list_is_sent_once_after_each_pass(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0, 1)})
    r.callback()
    assert r.heartbeat().topic_partitions == {FOO: (0, 1)}
    r.answer(2)
    r.advance(5_000)
    assert r.answer(2, {FOO: (0,)}).topic_partitions is None
    r.callback()
    r.callback()
    assert r.heartbeat().topic_partitions == {FOO: (0,)}
    r.answer(3)
    r.advance(5_000)
    assert r.heartbeat().topic_partitions is None


def test_a_join_that_gets_nothing_needs_no_acknowledgement(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {})
    assert r.state == "STABLE"
    r.advance(5_000)
    assert is_keepalive(r.heartbeat())


def test_an_acknowledgement_waits_for_the_heartbeat_in_flight(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.callback()
    assert r.state == "ACKNOWLEDGING"
    assert is_keepalive(r.answer())
    assert r.heartbeat().topic_partitions == {FOO: (0,)}
    assert r.state == "STABLE"


# -- regular expressions ---------------------------------------------------------------------------------


def test_a_new_pattern_is_sent_once(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.subscribe("foo", "bar", pattern="x.*")
    request = r.heartbeat()
    assert request.subscribed_topic_regex == "x.*"
    assert request.subscribed_topic_names is None
    r.answer()
    r.advance(5_000)
    assert is_keepalive(r.answer())
    r.subscribe("foo", pattern="x.*")
    assert (r.heartbeat().subscribed_topic_names, r.heartbeat().subscribed_topic_regex) == (("foo",), None)


def test_a_removed_pattern_is_sent_as_an_empty_one(rig: MakeRig) -> None:
    r = rig()
    r.join("foo", pattern="x.*")
    r.answer(2, {})
    r.subscribe("foo")
    assert r.heartbeat().subscribed_topic_regex == ""
    r.answer()
    r.advance(5_000)
    assert is_keepalive(r.heartbeat())


def test_a_removed_pattern_is_sent_again_until_it_arrived(rig: MakeRig) -> None:
    r = rig()
    r.join("foo", pattern="x.*")
    r.answer(2, {})
    r.subscribe("foo")
    for _ in range(3):
        assert r.heartbeat().subscribed_topic_regex == ""
        r.fail()
        r.advance(1_000)
    r.answer()
    r.advance(5_000)
    r.fail()
    r.advance(1_000)
    assert is_full(r.heartbeat())
    assert r.heartbeat().subscribed_topic_regex is None


def test_a_pattern_removed_while_fenced_is_removed_by_the_join(rig: MakeRig) -> None:
    r = rig()
    r.join("foo", pattern="x.*")
    r.answer(2, {FOO: (0,)})
    r.callback()
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    r.subscribe("foo")
    r.callback()
    assert r.heartbeat().member_epoch == 0
    assert r.heartbeat().subscribed_topic_regex == ""


# -- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", list(RequestFailure))
def test_after_a_failure_the_next_heartbeat_is_full_and_lists_what_is_owned(
    rig: MakeRig, failure: RequestFailure
) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.advance(5_000)
    r.fail(failure=failure)
    assert r.pending(SendHeartbeat) == []
    r.advance(120)
    request = r.heartbeat()
    assert is_full(request)
    assert request.member_epoch == 2
    assert request.topic_partitions == {FOO: (0, 1)}


def test_a_full_heartbeat_during_a_pass_lists_what_is_still_owned(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0, 1)})
    r.advance(5_000)
    r.answer(2, {FOO: (0,), BAR: (0,)})
    r.advance(5_000)
    r.fail()
    r.advance(120)
    assert r.answer().topic_partitions == {FOO: (0, 1), BAR: (0,)}, "on_revoked has not ended"
    r.callback()
    r.advance(5_000)
    r.fail()
    r.advance(120)
    assert r.answer().topic_partitions == {FOO: (0,), BAR: (0,)}, "on_assigned may have begun to use it"
    r.callback()
    assert r.heartbeat().topic_partitions == {FOO: (0,), BAR: (0,)}


def test_back_off_doubles_up_to_its_limit_and_starts_again_after_a_success(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.advance(5_000)
    waits = []
    for _ in range(7):
        r.answer(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        began = r.now
        while not r.pending(SendHeartbeat):
            r.advance(1)
        waits.append(r.now - began)
    for wait, term in zip(waits, [100, 200, 400, 800, 1_000, 1_000, 1_000], strict=True):
        assert 0.8 * term <= wait <= min(1_000, 1.2 * term)
    r.answer()
    r.advance(5_000)
    r.fail()
    r.advance(120)
    assert r.pending(SendHeartbeat)


def test_a_disconnect_makes_the_coordinator_unknown(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    assert r.pending(SendFindCoordinator)
    r.advance(60_000)
    assert r.pending(SendHeartbeat) == []
    r.auto_coordinator = True
    r.take(())
    assert is_full(r.heartbeat())


def test_a_coordinator_that_answers_a_steady_heartbeat_has_responded(rig: MakeRig) -> None:
    """When it moves, the first lookup is sent at once, whatever request has shown that it moved."""
    r = rig()
    r.stable({FOO: (0,)})
    _, actions = r.member.commit({FOO_0: OffsetAndMetadata(offset=1)}, r.now)
    r.take(actions)
    r.committed(ErrorCode.NOT_COORDINATOR)
    r.advance(5_000)
    assert is_keepalive(r.answer())
    r.auto_coordinator = False
    r.committed(ErrorCode.NOT_COORDINATOR)
    assert r.pending(SendFindCoordinator)


def test_a_lookup_that_fails_is_tried_again_after_the_back_off(rig: MakeRig) -> None:
    r = rig()
    r.auto_coordinator = False
    r.subscribe("foo")
    r.poll_begin()
    for _ in range(4):
        r.fail(SendFindCoordinator)
        assert r.open == []
        r.advance(1_000)
        assert r.pending(SendFindCoordinator)


def test_a_lookup_that_is_refused_for_good_is_fatal(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.take(r.member.commit({FOO_0: OffsetAndMetadata(offset=1)}, r.now)[1])
    r.committed(ErrorCode.NOT_COORDINATOR)
    action = r.one(SendFindCoordinator)
    r.take(r.member.coordinator_refused(action.token, ErrorCode.GROUP_AUTHORIZATION_FAILED, r.now))
    assert r.errors[-1].fatal
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.state == "FATAL", "an earlier heartbeat is ignored"


def test_a_lookup_that_is_refused_for_now_is_tried_again(rig: MakeRig) -> None:
    r = rig()
    r.auto_coordinator = False
    r.subscribe("foo")
    r.poll_begin()
    action = r.one(SendFindCoordinator)
    r.open.clear()
    r.take(r.member.coordinator_refused(action.token, ErrorCode.COORDINATOR_NOT_AVAILABLE, r.now))
    assert r.open == []
    r.advance(120)
    assert r.pending(SendFindCoordinator)
    assert r.state == "JOINING"
