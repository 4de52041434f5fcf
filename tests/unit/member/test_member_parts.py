"""The parts of a member's machine, each by itself: from polls to heartbeats."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.base import actions
from fencepost.member.base.application import Polls, RebalanceCallbacks
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption, Closing, Leave
from fencepost.member.base.lookups import CoordinatorLookup, ResolvedTopicNames
from fencepost.member.classic.ownership import ClassicCallback
from fencepost.member.consumer.assignment import Subscription
from fencepost.member.consumer.heartbeats import Heartbeats, HeartbeatView, HeldInstance

CONFIG = ConsumerConfig(max_poll_interval_ms=1_000, request_timeout_ms=500)


def backoff() -> Backoff:
    return Backoff(100, 1_000, random.Random(7))


# -- actions, polls, callbacks ---------------------------------------------------------------------------


def test_the_outbox_hands_out_a_step_once_and_wakes_last() -> None:
    out = actions.Outbox()
    out.raise_to_application(ValueError("why"))
    out.put(None)
    out.put(actions.CommitFinished(1, ErrorCode.NONE))
    first, second, third = out.take()
    assert isinstance(first, actions.RaiseToApplication)
    assert (second, third) == (actions.CommitFinished(1, ErrorCode.NONE), actions.WakeApplication())
    assert out.take() == ()


def test_the_poll_timer_runs_out_of_poll_only() -> None:
    polls = Polls(CONFIG)
    assert not polls.expired(10_000)
    polls.begin()
    assert polls.in_poll
    assert not polls.expired(10_000)
    polls.end(10_000)
    assert not polls.in_poll
    assert [polls.expired(now_ms) for now_ms in (10_999, 11_000)] == [False, True]


def test_the_next_poll_ends_the_wait_for_it() -> None:
    polls = Polls(CONFIG)
    polls.waits_for_next = True
    polls.end(0)
    assert polls.waits_for_next
    polls.begin()
    assert not polls.waits_for_next


def test_a_callback_ends_once_and_under_its_own_token() -> None:
    callbacks = RebalanceCallbacks()
    assert callbacks.ended(3) is None
    callbacks.running = callback = ClassicCallback(3, actions.REVOKED, (), releases=False)
    assert callbacks.ended(2) is None
    assert callbacks.ended(3) is callback
    assert callbacks.ended(3) is None


def test_a_release_is_taken_once() -> None:
    callbacks = RebalanceCallbacks()
    callbacks.release = actions.LOST
    assert [callbacks.take_release(), callbacks.take_release()] == [actions.LOST, None]


# -- closing and the leave -------------------------------------------------------------------------------


def test_a_leave_has_the_time_of_a_request_or_what_is_left_for_closing() -> None:
    closing = Closing(CONFIG)
    assert (closing.limit_ms(1_000), closing.commit_limit_ms(1_000)) == (1_500, 1_250)
    closing.begin(CloseOption.LEAVE_GROUP, 1_100)
    assert (closing.closed, closing.option) == (True, CloseOption.LEAVE_GROUP)
    assert (closing.limit_ms(1_000), closing.commit_limit_ms(1_000)) == (1_100, 1_050)


@pytest.fixture
def leave() -> Leave[str, tuple[int, str]]:
    return Leave(backoff(), itertools.count(1), lambda token, request: (token, request))


def test_a_leave_is_sent_once_until_it_is_cancelled(leave: Leave[str, tuple[int, str]]) -> None:
    leave.begin("bye", 0, 500)
    assert [leave.request(0), leave.request(0)] == [(1, "bye"), None]
    leave.cancel()
    assert (leave.pending, leave.retry_ms(), leave.expires_ms()) == (None, None, None)


def test_a_leave_that_may_not_have_arrived_is_sent_again(leave: Leave[str, tuple[int, str]]) -> None:
    leave.begin("bye", 0, 500)
    leave.request(0)
    assert leave.failed(1, 10)
    retry_ms = leave.retry_ms()
    assert retry_ms is not None
    assert leave.request(retry_ms - 1) is None
    assert leave.request(retry_ms) == (2, "bye")
    assert leave.expires_ms() == 500


# -- lookups ---------------------------------------------------------------------------------------------


def test_the_first_lookup_after_a_coordinator_that_answered_does_not_wait() -> None:
    lookup = CoordinatorLookup(backoff(), itertools.count(1))
    sent = lookup.request(0)
    assert sent is not None
    assert lookup.found(sent.token)
    lookup.answered()
    lookup.lost(50)
    assert lookup.retry_ms() == 50
    sent = lookup.request(50)
    assert sent is not None
    assert lookup.found(sent.token)
    lookup.lost(60)
    retry_ms = lookup.retry_ms()
    assert retry_ms is not None
    assert retry_ms > 60


@pytest.mark.parametrize(
    ("code", "known"),
    [
        (ErrorCode.NONE, True),
        (ErrorCode.NOT_COORDINATOR, False),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, False),
        (ErrorCode.STALE_MEMBER_EPOCH, True),
    ],
)
def test_only_an_error_about_the_coordinator_itself_loses_it(code: ErrorCode, known: bool) -> None:
    lookup = CoordinatorLookup(backoff(), itertools.count(1))
    sent = lookup.request(0)
    assert sent is not None
    lookup.found(sent.token)
    lookup.note(code, 10)
    assert lookup.known is known


def test_names_that_are_missing_are_asked_for_again_and_new_ones_do_not_wait() -> None:
    names = ResolvedTopicNames(backoff(), itertools.count(1))
    sent = names.request(("a", "b"), 0)
    assert sent is not None
    assert names.answered(sent.token, {"a": "orders"}, 0)
    assert names.unknown(("a", "b")) == ("b",)
    assert names.request(("b",), 1) is None
    assert names.request(("b", "c"), 1) is not None


# -- heartbeats ------------------------------------------------------------------------------------------


def view(**fields: Any) -> HeartbeatView:
    usual = HeartbeatView(
        epoch=3,
        joining=False,
        reconciling=False,
        subscription=Subscription(("foo",)),
        local_epoch=0,
        owned={"foo-id": (0,)},
    )
    return usual._replace(**fields)


def heartbeats(**config: Any) -> Heartbeats:
    made = Heartbeats("g", "m", ConsumerConfig(**config), backoff(), itertools.count(1))
    made.begin_join(0)
    return made


def test_a_heartbeat_says_what_is_new_and_repeats_one_value_after_that() -> None:
    beats = heartbeats()
    join = beats.build(view(epoch=0, joining=True, owned={}))
    assert join.request.subscribed_topic_names == ("foo",)
    assert beats.answered(join.token)
    beats.succeeded(ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3), 0)
    acknowledgement = beats.build(view())
    assert acknowledgement.request.topic_partitions == {"foo-id": (0,)}
    assert acknowledgement.request.subscribed_topic_names is None
    assert beats.build(view()) is beats.build(view())


def test_the_heartbeat_after_a_failure_is_full_and_waits_for_the_back_off() -> None:
    beats = heartbeats()
    beats.build(view())
    beats.failed(1_000)
    assert beats.due_ms(1_000, acknowledges=True) >= 1_080
    assert beats.build(view()).request.subscribed_topic_names == ("foo",)


def test_an_acknowledgement_does_not_wait_for_the_interval() -> None:
    beats = heartbeats()
    beats.succeeded(ConsumerGroupHeartbeatResponse(member_epoch=3, heartbeat_interval_ms=3_000), 0)
    assert beats.due_ms(10, acknowledges=False) == 3_000
    assert beats.due_ms(10, acknowledges=True) == 10


@pytest.mark.parametrize(
    ("instance_id", "option", "epoch"),
    [
        (None, CloseOption.DEFAULT, -1),
        (None, CloseOption.LEAVE_GROUP, -1),
        (None, CloseOption.REMAIN_IN_GROUP, None),
        ("i", CloseOption.DEFAULT, -2),
        ("i", CloseOption.LEAVE_GROUP, -1),
        ("i", CloseOption.REMAIN_IN_GROUP, -2),
    ],
)
def test_the_epoch_of_a_leave(instance_id: str | None, option: CloseOption, epoch: int | None) -> None:
    beats = heartbeats(group_instance_id=instance_id)
    assert beats.leave_request(option) is None, "it has sent no join"
    beats.build(view(epoch=0, joining=True))
    request = beats.leave_request(option)
    assert (None if request is None else request.member_epoch) == epoch


def test_the_newest_of_the_holders_of_an_instance_id_comes_last() -> None:
    instance = HeldInstance("m", ConsumerConfig(group_instance_id="i", instance_holders=("m", "before")))
    instance.may_be_held()
    assert instance.holders == ("before", "m")
    instance.may_be_held()
    instance.not_held_by_newest()
    assert instance.holders == ("before",)


def test_a_join_that_succeeds_ends_the_count_of_refusals() -> None:
    config = ConsumerConfig(group_instance_id="i", unreleased_instance_id_retries=1)
    instance = HeldInstance("m", config)
    assert [instance.count_refusal() for _ in range(2)] == [True, False]
    instance.joined()
    assert instance.count_refusal()
    assert instance.holders == ("m",)
