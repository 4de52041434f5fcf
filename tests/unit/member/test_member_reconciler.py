"""The parts that take an assignment up, each by itself: of KIP-848 and of the classic protocol."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitResponse
from fencepost.member.base.actions import ASSIGNED, LOST, REVOKED, Outbox, RunCallback
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

    def __init__(self, *, auto_commit: bool = False, cooperative: bool = True) -> None:
        self.config = config = ClassicConfig(enable_auto_commit=auto_commit)
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

    def processed(self, partition: TopicPartition) -> None:
        """Records of the partition were handed over, and the application came back."""
        self.positions.seek(partition, 0)
        self.positions.deliver({partition: 7})
        self.positions.process()

    def commit_is_answered(self) -> None:
        sent = self.commits.request(3, 0)
        assert sent is not None
        errors = dict.fromkeys(sent.request.offsets, ErrorCode.NONE)
        self.commits.answered(sent.token, OffsetCommitResponse(errors=errors), 0)

    # -- of the reconciler -----------------------------------------------------------------------------

    def target(self, *numbers: int) -> None:
        self.reconciler.assignment.replace_target({FOO: numbers} if numbers else {})

    def callback_ends(self, *, raised: bool = False) -> tuple[tuple[TopicPartition, ...], PassResult]:
        callback = self.callbacks.ended(self.callbacks.running.token)
        gone = self.reconciler.callback_ended(callback, raised=raised)
        return gone, self.reconciler.go_on(callback, raised=raised)

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


def test_a_pass_commits_first_what_was_processed() -> None:
    parts = Parts(auto_commit=True).owning(0)
    parts.polls.begin()
    parts.processed(F0)
    parts.target()
    assert parts.reconciler.begin(0) is GOES_ON
    assert parts.called() == []
    assert [{p: o.offset for p, o in each.offsets.items()} for each in parts.commits.queue] == [{F0: 7}]
    parts.commit_is_answered()
    assert parts.reconciler.committed() is GOES_ON
    assert parts.called() == [(REVOKED, (F0,))]
    assert parts.reconciler.committed() is NOTHING
    assert parts.callback_ends() == ((F0,), GOES_ON)
    assert parts.called() == [(ASSIGNED, ())]
    assert parts.callback_ends() == ((), FINISHED)


def test_what_a_newer_target_leaves_out_is_not_assigned_any_more() -> None:
    parts = Parts().owning(0)
    parts.polls.begin()
    parts.target(1)
    parts.reconciler.begin(0)
    assert parts.called() == [(REVOKED, (F0,))]
    parts.target()
    assert parts.callback_ends() == ((F0,), GOES_ON)
    assert parts.called() == [(ASSIGNED, ())]
    assert parts.callback_ends() == ((), FINISHED)
    assert parts.reconciler.owned_names() == ()


@pytest.mark.parametrize("kind", [ASSIGNED, REVOKED])
def test_a_callback_that_raised_is_tried_again_with_the_next_poll(kind: Any) -> None:
    parts = Parts() if kind is ASSIGNED else Parts().owning(0)
    parts.polls.begin()
    parts.target(*([0] if kind is ASSIGNED else []))
    parts.reconciler.begin(0)
    assert parts.called() == [(kind, (F0,))]
    assert parts.callback_ends(raised=True) == ((), NOTHING)
    assert parts.reconciler.owned_names() == (F0,)
    assert parts.reconciler.begin(0) is NOTHING
    parts.polls.begin()
    assert parts.reconciler.begin(0) is GOES_ON
    assert parts.called() == [(kind, (F0,))]


def test_a_topic_without_a_name_waits_for_the_lookup_and_is_left_out_after_it() -> None:
    parts = Parts()
    parts.reconciler.assignment.replace_target({FOO: (0,), "bar-id": (0,)})
    assert parts.reconciler.begin(0) is NOTHING
    sent = parts.reconciler.names.request(("bar-id",), 0)
    assert sent is not None
    parts.reconciler.names.answered(sent.token, {}, 0)
    assert parts.reconciler.begin(0) is GOES_ON
    assert parts.called() == [(ASSIGNED, (F0,))]


def test_a_release_gives_everything_up_even_if_the_callback_raises() -> None:
    parts = Parts().owning(0, 1)
    parts.callbacks.release = LOST
    parts.reconciler.begin_release()
    assert parts.called() == [(LOST, (F0, F1))]
    assert parts.callback_ends(raised=True) == ((F0, F1), NOTHING)
    assert parts.reconciler.owned_names() == ()


def test_a_release_of_nothing_calls_nobody() -> None:
    parts = Parts()
    parts.callbacks.release = LOST
    parts.reconciler.begin_release()
    assert (parts.called(), parts.callbacks.release) == ([], None)


# -- the classic protocol --------------------------------------------------------------------------------


def taken(parts: Parts, *numbers: int, generation: int = 1) -> bool:
    """Take an assignment up as far as that goes; whether anything happened."""
    parts.ownership.take(ConsumerProtocolAssignment(partitions={"foo": numbers}), None)
    assert parts.ownership.target is not None
    return parts.ownership.reconcile(parts.ownership.target, generation, 0)


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


def test_nothing_is_prepared_out_of_poll() -> None:
    parts = with_partitions(0)
    parts.polls.end(0)
    assert not parts.ownership.prepare(("foo",), 1, 0)


def test_what_an_assignment_takes_away_is_committed_and_revoked_and_the_member_joins_again() -> None:
    parts = with_partitions(0, auto_commit=True)
    ownership = parts.ownership
    parts.processed(F0)
    assert taken(parts, 1)
    assert (ownership.stage, ownership.rejoin_wanted) == (ReleaseStage.COMMIT, True)
    assert ownership.target is not None
    assert not ownership.reconcile(ownership.target, 1, 0)
    parts.commit_is_answered()
    ownership.committed()
    assert ownership.reconcile(ownership.target, 1, 0)
    assert parts.called() == [(REVOKED, (F0,))]
    assert ends(parts) == (F0,)
    assert ownership.reconcile(ownership.target, 1, 0)
    assert parts.called() == [(ASSIGNED, (F1,))]
    assert (ownership.owned, ownership.target) == ((F1,), None)


def test_the_request_to_join_ends_what_was_wanted_before() -> None:
    ownership = Parts().ownership
    ownership.rejoin_wanted, ownership.rejoin_at_ms = True, 5
    ownership.join_sent()
    assert (ownership.rejoin_wanted, ownership.rejoin_at_ms) == (False, None)
