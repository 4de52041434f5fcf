"""The parts that take an assignment up, each by itself: of KIP-848 and of the classic protocol."""

from __future__ import annotations

import itertools
import random
from typing import Any

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.actions import ASSIGNED, REVOKED, Outbox, RunCallback
from fencepost.member.base.application import Polls, RebalanceCallbacks
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commits
from fencepost.member.base.positions import Positions
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.ownership import ClassicOwnership, ReleaseStage
from fencepost.member.consumer.reconciliation import PassResult, Reconciler

FOO = "foo-id"
F0, F1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
NOTHING, GOES_ON, FINISHED = PassResult


class Parts:
    """The parts around a reconciler, or around an ownership."""

    def __init__(self, *, cooperative: bool = True) -> None:
        self.config = config = ClassicConfig(enable_auto_commit=False)
        self.tokens = tokens = itertools.count(1)
        backoff = Backoff(100, 1_000, random.Random(7))
        self.out = Outbox()
        self.polls = Polls(config)
        self.callbacks = RebalanceCallbacks()
        self.positions = Positions("g", "m", config, backoff, tokens)
        self.commits = Commits("g", "m", config, backoff, tokens)
        around: Any = self
        self.reconciler = Reconciler(around, backoff)
        self.reconciler.names.known = {FOO: "foo"}
        self.ownership = ClassicOwnership(around, cooperative=cooperative)

    def called(self) -> list[tuple[Any, tuple[TopicPartition, ...]]]:
        return [(each.kind, each.partitions) for each in self.out.take() if isinstance(each, RunCallback)]

    # -- of the reconciler -----------------------------------------------------------------------------

    def target(self, *numbers: int) -> None:
        self.reconciler.assignment.replace_target({FOO: numbers} if numbers else {})

    def callback_ends(self) -> tuple[tuple[TopicPartition, ...], PassResult]:
        callback = self.callbacks.ended(self.callbacks.running.token)
        gone = self.reconciler.callback_ended(callback, raised=False)
        return gone, self.reconciler.go_on(callback, raised=False)

    def owning(self, *numbers: int) -> Parts:
        self.target(*numbers)
        assert self.reconciler.begin(0) is GOES_ON
        assert self.callback_ends() == ((), FINISHED)
        self.out.take()
        return self


def test_a_pass_assigns_and_is_finished_when_the_callback_has_ended() -> None:
    parts = Parts()
    parts.target(0, 1)
    assert parts.reconciler.begin(0) is GOES_ON
    assert parts.called() == [(ASSIGNED, (F0, F1))]
    assert parts.reconciler.begin(0) is NOTHING, "one pass at a time"
    assert parts.callback_ends() == ((), FINISHED)
    assert parts.reconciler.owned_names() == (F0, F1)
    assert parts.reconciler.assignment.reconciled
    assert parts.reconciler.begin(0) is NOTHING


def test_a_pass_that_takes_away_waits_for_a_poll_and_revokes_before_it_assigns() -> None:
    parts = Parts().owning(0)
    parts.target(1)
    assert parts.reconciler.begin(0) is NOTHING
    parts.polls.begin()
    assert parts.reconciler.begin(0) is GOES_ON
    assert parts.called() == [(REVOKED, (F0,))]
    assert parts.callback_ends() == ((F0,), GOES_ON)
    assert parts.called() == [(ASSIGNED, (F1,))]
    assert parts.callback_ends() == ((), FINISHED)
    assert parts.reconciler.topic_ids() == {"foo": FOO}


# -- the classic protocol --------------------------------------------------------------------------------


def taken(parts: Parts, *numbers: int) -> bool:
    """Take an assignment up as far as that goes; whether anything happened."""
    parts.ownership.take(ConsumerProtocolAssignment(partitions={"foo": numbers}), None)
    assert parts.ownership.target is not None
    return parts.ownership.reconcile(parts.ownership.target, 1, 0)


def ends(parts: Parts) -> tuple[TopicPartition, ...]:
    return parts.ownership.callback_ended(parts.callbacks.ended(parts.callbacks.running.token))


def with_partitions(*numbers: int, **more: bool) -> Parts:
    parts = Parts(**more)
    assert taken(parts, *numbers)
    assert ends(parts) == ()
    parts.out.take()
    parts.polls.begin()
    return parts


def test_an_eager_member_gives_everything_up_before_it_joins() -> None:
    parts = with_partitions(0, 1, cooperative=False)
    ownership = parts.ownership
    assert ownership.prepare(("foo",), 1, 0)
    assert ownership.prepare(("foo",), 1, 0)
    assert parts.called() == [(REVOKED, (F0, F1))]
    assert ends(parts) == (F0, F1)
    assert (ownership.owned, ownership.stage) == ((), ReleaseStage.READY)
    assert not ownership.prepare(("foo",), 1, 0)


def test_a_cooperative_member_keeps_what_it_subscribes_to() -> None:
    parts = with_partitions(0, 1)
    while parts.ownership.prepare(("foo",), 1, 0):
        pass
    assert (parts.called(), parts.ownership.owned) == ([], (F0, F1))
    parts.ownership.freeze()
    while parts.ownership.prepare(("bar",), 1, 0):
        pass
    assert parts.called() == [(REVOKED, (F0, F1))]
