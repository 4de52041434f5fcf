"""The machine of a single active consumer, one input at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.member.sac.actions import (
    Action,
    AnswerUpdate,
    Connect,
    Disconnect,
    Hold,
    RunSacCallback,
    SacCallback,
    SacMoved,
    SendSubscribe,
)
from fencepost.member.sac.machine import SacConfig, SacMember
from fencepost.member.sac.offsets import FIRST, NONE, OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SAC_MEMBER, SacMemberState

S = SacMemberState


def told(actions: tuple[Action, ...]) -> list[Action]:
    """What is to be done, without what is only told."""
    return [action for action in actions if not isinstance(action, SacMoved)]


def waiting() -> SacMember:
    member = SacMember(SacConfig(), random.Random(1))
    assert told(member.start(0)) == [Connect(1)]
    assert told(member.connected(1, 1)) == [SendSubscribe(1)]
    member.subscribed(1, 2)
    assert member.state is S.WAITING
    return member


def active(offset: OffsetSpecification = FIRST) -> SacMember:
    member = waiting()
    assert told(member.consumer_update(1, 7, True, 10)) == [RunSacCallback(SacCallback.ACTIVATED)]
    assert member.state is S.ACTIVATING
    assert told(member.callback_finished(offset, 20)) == [AnswerUpdate(7, offset)]
    assert member.state is S.ACTIVE
    return member


def test_the_answer_to_a_step_down_comes_when_the_application_has_let_go() -> None:
    member = active()
    assert told(member.consumer_update(1, 8, False, 30)) == [
        Hold(),
        RunSacCallback(SacCallback.STEPPING_DOWN),
    ]
    assert member.delivered(1, 0, 10) is None
    assert told(member.callback_finished(None, 40)) == [AnswerUpdate(8, NONE)]
    assert member.state is S.WAITING


def test_nothing_is_delivered_before_the_offset_is_chosen() -> None:
    member = waiting()
    assert member.delivered(1, 0, 10) is None
    member.consumer_update(1, 7, True, 10)
    assert member.delivered(1, 0, 10) is None
    member.callback_finished(OffsetSpecification.at(4), 20)
    assert member.delivered(1, 0, 10) == 4


def test_what_a_chunk_has_before_the_offset_is_not_delivered() -> None:
    """Nodes send whole chunks: the rest of one may be done already."""
    member = active(OffsetSpecification.at(14))
    assert member.delivered(1, 0, 10) is None
    assert member.delivered(1, 10, 20) == 14
    assert member.delivered(1, 20, 21) == 20


def test_messages_that_it_has_are_not_delivered_twice() -> None:
    member = active()
    assert member.delivered(1, 0, 10) == 0
    assert member.delivered(1, 5, 12) == 10
    assert member.delivered(1, 5, 12) is None
    assert member.delivered(2, 12, 14) is None


def test_updates_that_say_what_is_so_are_answered_at_once() -> None:
    member = active()
    assert told(member.consumer_update(1, 8, True, 30)) == [AnswerUpdate(8, FIRST)]
    member.delivered(1, 0, 10)
    assert told(member.consumer_update(1, 9, True, 30)) == [AnswerUpdate(9, OffsetSpecification.at(10))]
    member.consumer_update(1, 10, False, 30)
    member.callback_finished(None, 30)
    assert told(member.consumer_update(1, 11, False, 30)) == [Hold(), AnswerUpdate(11, NONE)]


def test_updates_wait_for_the_one_before_and_keep_their_order() -> None:
    member = active()
    member.consumer_update(1, 8, False, 30)
    assert told(member.consumer_update(1, 9, True, 31)) == []
    assert told(member.consumer_update(1, 10, False, 32)) == [Hold()]
    assert told(member.callback_finished(None, 40)) == [
        AnswerUpdate(8, NONE),
        RunSacCallback(SacCallback.ACTIVATED),
    ]
    assert told(member.callback_finished(FIRST, 50)) == [
        AnswerUpdate(9, FIRST),
        RunSacCallback(SacCallback.STEPPING_DOWN),
    ]
    assert told(member.callback_finished(None, 60)) == [AnswerUpdate(10, NONE)]


def test_an_update_may_come_before_the_answer_to_the_subscription() -> None:
    member = SacMember(SacConfig(), random.Random(1))
    member.start(0)
    member.connected(1, 1)
    assert told(member.consumer_update(1, 7, True, 2)) == []
    assert told(member.subscribed(1, 3)) == [RunSacCallback(SacCallback.ACTIVATED)]


def test_an_active_consumer_that_loses_its_connection_is_told_and_comes_back() -> None:
    member = active()
    assert told(member.disconnected(1, 30)) == [Hold(), Disconnect(), RunSacCallback(SacCallback.LOST)]
    assert member.state is S.LOST
    member.callback_finished(None, 40)
    assert member.state is S.BACKING_OFF
    due = member.deadline_ms
    assert due is not None
    assert 40 + 400 <= due <= 40 + 600
    assert told(member.deadline_reached(due)) == [Connect(2)]
    assert told(member.disconnected(1, due)) == []
    assert told(member.consumer_update(1, 9, True, due)) == []


def test_a_loss_while_the_application_chooses_is_told_behind() -> None:
    member = waiting()
    member.consumer_update(1, 7, True, 10)
    assert told(member.disconnected(1, 11)) == [Hold(), Disconnect()]
    assert told(member.callback_finished(FIRST, 12)) == [RunSacCallback(SacCallback.LOST)]


def test_an_activation_that_fails_gives_the_connection_up() -> None:
    member = waiting()
    member.consumer_update(1, 7, True, 10)
    assert told(member.callback_finished(None, 12)) == [
        Hold(),
        Disconnect(),
        RunSacCallback(SacCallback.LOST),
    ]


def test_backoffs_grow_and_a_subscription_ends_them() -> None:
    member = SacMember(SacConfig(), random.Random(1))
    member.start(0)
    waits = []
    for number in range(1, 9):
        member.disconnected(number, 0)
        due = member.deadline_ms
        assert due is not None
        waits.append(due)
        member.deadline_reached(due)
    assert waits[0] <= 600
    assert max(waits) <= 10_000
    assert waits[-1] >= 8_000
    member.connected(9, 0)
    member.subscribed(9, 0)
    member.disconnected(9, 0)
    assert (member.deadline_ms or 0) <= 600


@pytest.mark.parametrize("connected", [False, True])
def test_a_server_that_does_not_answer_is_given_up(connected: bool) -> None:
    member = SacMember(SacConfig(), random.Random(1))
    member.start(0)
    if connected:
        member.connected(1, 0)
    assert told(member.deadline_reached(29_999)) == []
    assert told(member.deadline_reached(30_000)) == [Hold(), Disconnect()]
    assert member.state is S.BACKING_OFF


def test_a_refused_subscription_is_the_end() -> None:
    member = SacMember(SacConfig(), random.Random(1))
    member.start(0)
    member.connected(1, 0)
    assert told(member.refused(1, 1)) == [Disconnect()]
    assert member.state is S.FAILED
    assert told(member.close(2)) == []
    with pytest.raises(ValueError, match="starts once"):
        member.start(3)


def test_an_active_consumer_steps_down_before_it_closes() -> None:
    member = active()
    assert told(member.close(30)) == [Hold(), RunSacCallback(SacCallback.STEPPING_DOWN)]
    assert told(member.close(31)) == []
    assert told(member.callback_finished(None, 40)) == [Disconnect()]
    assert member.state is S.CLOSED


def test_closing_while_the_application_chooses_steps_down_behind() -> None:
    member = waiting()
    member.consumer_update(1, 7, True, 10)
    assert told(member.close(11)) == []
    assert told(member.callback_finished(FIRST, 12)) == [Hold(), RunSacCallback(SacCallback.STEPPING_DOWN)]
    member.callback_finished(None, 13)
    assert member.state is S.CLOSED


def test_an_offset_is_not_negative() -> None:
    assert OffsetSpecification.at(3) == (OffsetKind.OFFSET, 3)
    with pytest.raises(ValueError, match="at least 0"):
        OffsetSpecification.at(-1)


INPUTS = ("connected", "subscribed", "refused", "disconnected", "on", "off", "told", "failed", "late", "time")


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(st.sampled_from((*INPUTS, "close")), max_size=40))
def test_any_sequence_keeps_the_promises(inputs: list[str]) -> None:  # noqa: C901, PLR0912
    """Callbacks never overlap, every update of a connection that stays is answered once and in order."""
    member = SacMember(SacConfig(), random.Random(1))
    running: SacCallback | None = None
    asked: list[int] = []
    correlation_id, now_ms = 0, 0
    actions = member.start(0)
    for each in (*inputs, "end"):
        for action in actions:
            match action:
                case RunSacCallback():
                    assert running is None
                    running = action.kind
                case AnswerUpdate():
                    assert asked.pop(0) == action.correlation_id
                case Connect() | Disconnect():
                    asked.clear()
                case SacMoved():
                    assert SAC_MEMBER.allows(action.source, action.target)
        now_ms += 10
        number = member.connection
        match each:
            case "connected":
                actions = member.connected(number, now_ms)
            case "subscribed":
                actions = member.subscribed(number, now_ms)
            case "refused":
                actions = member.refused(number, now_ms)
            case "disconnected":
                actions = member.disconnected(number, now_ms)
            case "late":
                actions = member.disconnected(number - 1, now_ms)
            case "on" | "off":
                correlation_id += 1
                if member.state in (S.SUBSCRIBING, S.WAITING, S.ACTIVATING, S.ACTIVE, S.STEPPING_DOWN):
                    asked.append(correlation_id)
                actions = member.consumer_update(number, correlation_id, each == "on", now_ms)
            case "told" | "failed" if running is not None:
                running = None
                actions = member.callback_finished(FIRST if each == "told" else None, now_ms)
            case "time":
                now_ms = max(now_ms, member.deadline_ms or 0)
                actions = member.deadline_reached(now_ms)
            case "close":
                actions = member.close(now_ms)
            case _:
                actions = ()
        if member.state in (S.WAITING, S.ACTIVE) and running is None:
            left = len(asked) - sum(isinstance(action, AnswerUpdate) for action in actions)
            under_way = any(isinstance(action, RunSacCallback) for action in actions)
            assert left == 0 or under_way or any(isinstance(a, Disconnect) for a in actions)
