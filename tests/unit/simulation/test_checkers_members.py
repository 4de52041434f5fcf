"""Hand-made histories of members: callbacks, requests, records and moves, good ones and bad ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.member.base.transport import RequestTimedOut
from fencepost.simulation.checkers.members import CallbackBalance, MachineMoves
from fencepost.simulation.checkers.records import ProcessedProgress, ProcessedRecords, Records
from fencepost.simulation.checkers.requests import Requests, Sender
from fencepost.simulation.kernel.observers import WorldView
from tests.unit.simulation.member_worlds import world_of_members

X = "XXXXXXXXXXXXXXXXXXXXXX"
P0, P1, P2 = (TopicPartition("x", number) for number in range(3))


def names(findings):
    return [name for name, _ in findings]


# -- transitions -------------------------------------------------------------------------------------------


def test_arrows_of_the_table_are_fine():
    machine = MachineMoves()
    assert not names(machine.move("m", "subscribed", "UNSUBSCRIBED", "JOINING"))
    assert not names(machine.move("m", "target received", "JOINING", "RECONCILING"))


def test_arrows_outside_of_the_table_are_flagged():
    assert names(MachineMoves().move("m", "subscribed", "UNSUBSCRIBED", "STABLE")) == ["transitions"]


def test_moves_that_do_not_follow_each_other_are_flagged():
    machine = MachineMoves()
    assert names(machine.move("m", "target received", "STABLE", "RECONCILING")) == ["transitions"]


# -- callbacks ---------------------------------------------------------------------------------------------


def run(watch, kind, *partitions):
    chosen = frozenset(partitions)
    return names(watch.begin(kind, chosen)) + names(watch.end(kind, chosen))


def test_balanced_callbacks_are_fine():
    watch = CallbackBalance("m")
    assert not run(watch, "assigned", P0, P1)
    assert not run(watch, "revoked", P0)
    assert not run(watch, "assigned", P0)
    assert not run(watch, "lost", P0, P1)
    assert not names(watch.emptied("stopped"))


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [("assigned", [P0]), ("revoked", [P2]), ("lost", [P0]), ("lost", [P0, P1, P2])],
    ids=["assigned-twice", "revoked-unowned", "lost-too-little", "lost-too-much"],
)
def test_unbalanced_callbacks_are_flagged(kind, partitions):
    watch = CallbackBalance("m")
    assert not run(watch, "assigned", P0, P1)
    assert run(watch, kind, *partitions) == ["callbacks-balanced"]


def test_an_acknowledgement_inside_a_callback_is_flagged():
    watch = CallbackBalance("m")
    assert not names(watch.begin("assigned", frozenset({P0})))
    assert names(watch.acknowledges()) == ["callbacks-balanced"]
    assert not names(watch.end("assigned", frozenset({P0})))
    assert not names(watch.acknowledges())


def test_overlapping_callbacks_are_flagged():
    watch = CallbackBalance("m")
    assert not names(watch.begin("assigned", frozenset({P0})))
    assert names(watch.begin("assigned", frozenset({P1}))) == ["callbacks-balanced"]


def test_an_end_without_its_begin_is_flagged():
    assert names(CallbackBalance("m").end("assigned", frozenset({P0}))) == ["callbacks-balanced"]


def test_a_member_that_goes_with_partitions_is_flagged():
    watch = CallbackBalance("m")
    assert not run(watch, "assigned", P0)
    assert names(watch.emptied("stopped")) == ["callbacks-balanced"]


def test_records_come_between_assigned_end_and_revoked_begin():
    watch = CallbackBalance("m")
    assert not watch.delivers(P0)
    list(watch.begin("assigned", frozenset({P0})))
    assert not watch.delivers(P0)
    list(watch.end("assigned", frozenset({P0})))
    assert watch.delivers(P0)
    list(watch.begin("revoked", frozenset({P0})))
    assert not watch.delivers(P0)


# -- requests ----------------------------------------------------------------------------------------------


def heartbeat(epoch, owned=None, *, full=False, **fields):
    if full or epoch == 0:
        fields = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ("x",), **fields}
        owned = owned or {}
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=epoch, topic_partitions=owned, **fields
    )


def answer(epoch, interval_ms=1):
    return ConsumerGroupHeartbeatResponse(member_epoch=epoch, heartbeat_interval_ms=interval_ms)


def with_assignment(epoch, assignment):
    return ConsumerGroupHeartbeatResponse(member_epoch=epoch, heartbeat_interval_ms=1, assignment=assignment)


def exchange(sender, request, response, at_us=0):
    found = names(sender.sends(request, at_us))
    sender.receives(request, response, at_us)
    return found


@pytest.fixture
def sender():
    """Joined: epoch 3, owns P0 and P1."""
    it = Sender("m", {X: "x"})
    it.moved("JOINING", 0)
    assert not exchange(it, heartbeat(0), answer(3))
    it.moved("RECONCILING", 0)
    it.callback("assigned", "begin", [P0, P1])
    assert not exchange(it, heartbeat(3), answer(3), 1_000)
    it.callback("assigned", "end", [P0, P1])
    it.moved("ACKNOWLEDGING", 0)
    acknowledgement = heartbeat(3, {X: (0, 1)})
    assert not names(it.sends(acknowledgement, 2_000))
    it.moved("STABLE", 2_000)
    it.receives(acknowledgement, answer(3), 2_000)
    return it


REFUSED = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNRELEASED_INSTANCE_ID)


def static(epoch):
    return heartbeat(epoch, instance_id="i")


@pytest.fixture
def refused():
    """A static member whose first join got no response and whose second one was refused."""
    it = Sender("m", {X: "x"})
    it.moved("JOINING", 0)
    assert not exchange(it, static(0), RequestTimedOut("late"))
    assert not exchange(it, static(0), REFUSED, 1_000)
    return it


def test_a_member_that_frees_its_own_instance_id_is_fine(refused):
    assert not names(refused.sends(static(-2), 2_000))
    assert not names(refused.sends(static(-2), 3_000)), "the response to the first leave was lost"
    assert not names(refused.sends(static(0), 4_000))
    assert not names(refused.gave_up())


def test_a_member_that_gives_up_for_its_own_instance_id_is_flagged(refused):
    assert names(refused.gave_up()) == ["frees-own-instance"]


def test_a_member_that_asks_again_for_its_own_instance_id_is_flagged(refused):
    assert names(refused.sends(static(0), 2_000)) == ["frees-own-instance"]


def test_a_member_that_never_may_have_joined_may_give_up():
    it = Sender("m", {X: "x"})
    it.moved("JOINING", 0)
    assert not exchange(it, static(0), REFUSED)
    assert not names(it.gave_up())


def test_a_leave_for_good_while_joining_is_flagged(refused):
    assert names(refused.sends(static(-1), 2_000)) == ["one-in-flight"]


def test_a_heartbeat_in_flight_excludes_another(sender):
    keepalive = heartbeat(3)
    assert not names(sender.sends(keepalive, 3_000))
    assert names(sender.sends(keepalive, 4_000)) == ["one-in-flight"]


def test_a_leave_does_not_wait(sender):
    assert not names(sender.sends(heartbeat(3), 3_000))
    sender.moved("PREPARE_LEAVING", 0)
    sender.callback("revoked", "begin", [P0, P1])
    sender.callback("revoked", "end", [P0, P1])
    sender.moved("LEAVING", 0)
    assert not names(sender.sends(heartbeat(-1), 4_000))


@pytest.mark.parametrize("state", ["FENCED", "STALE", "FATAL", "UNSUBSCRIBED"])
def test_a_heartbeat_out_of_the_group_is_flagged(sender, state):
    sender.moved(state, 0)
    assert "one-in-flight" in names(sender.sends(heartbeat(3), 3_000))


def test_an_incomplete_join_is_flagged():
    sender = Sender("m", {})
    sender.moved("JOINING", 0)
    assert names(sender.sends(heartbeat(0, rebalance_timeout_ms=-1), 0)) == ["request-fields"]


@pytest.mark.parametrize(("assignor", "broken"), [(None, []), ("range", ["request-fields"])])
def test_a_join_asks_for_the_assignor_of_its_settings(assignor, broken):
    found: list[str] = []
    checker = Requests()
    checker.attach(
        cast(WorldView, world_of_members()), lambda invariant, message, rule="": found.append(invariant)
    )
    checker.on_member_state("m", "subscribed", "UNSUBSCRIBED", "JOINING", 0)
    checker.on_member_request("m", heartbeat(0, server_assignor=assignor), 0)
    assert found == broken


def test_a_static_leave_without_its_instance_is_flagged(sender):
    sender.moved("LEAVING", 0)
    assert names(sender.sends(heartbeat(-2), 3_000)) == ["request-fields"]
    assert not names(sender.sends(heartbeat(-2, instance_id="i"), 3_000))


@pytest.mark.parametrize(
    "failure",
    [RequestTimedOut("late"), ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)],
    ids=["lost", "error"],
)
def test_less_than_everything_after_a_failure_is_flagged(sender, failure):
    assert not exchange(sender, heartbeat(3), failure, 3_000)
    assert names(sender.sends(heartbeat(3), 4_000)) == ["request-fields"]


def test_everything_after_a_failure_is_fine(sender):
    assert not exchange(sender, heartbeat(3), RequestTimedOut("late"), 3_000)
    assert not exchange(sender, heartbeat(3, {X: (0, 1)}, full=True), answer(3), 4_000)
    assert not names(sender.sends(heartbeat(3), 5_000))


@pytest.mark.parametrize("owned", [{X: (0,)}, {X: (0, 1, 2)}, {}], ids=["less", "more", "nothing"])
def test_a_dishonest_list_is_flagged(sender, owned):
    assert names(sender.sends(heartbeat(3, owned), 3_000)) == ["owned-honest"]


def test_a_list_that_the_coordinator_has_is_not_sent_again(sender):
    assert names(sender.sends(heartbeat(3, {X: (0, 1)}), 3_000)) == ["request-fields"]


def test_a_member_that_joined_with_nothing_and_gets_nothing_has_nothing_to_acknowledge():
    it = Sender("m", {X: "x"})
    it.moved("JOINING", 0)
    assert not exchange(it, heartbeat(0, {}), with_assignment(3, {}))
    it.moved("STABLE", 0)
    assert names(it.sends(heartbeat(3, {}), 1_000)) == ["request-fields"]


@pytest.mark.parametrize("assigned", [{X: (0, 1)}, {X: (0,)}], ids=["as listed", "less"])
def test_a_list_is_sent_again_if_the_assignment_differed(sender, assigned):
    assert not exchange(sender, heartbeat(3), with_assignment(3, assigned), 3_000)
    again = names(sender.sends(heartbeat(3, {X: (0, 1)}), 4_000))
    assert again.count("request-fields") == (assigned == {X: (0, 1)})


def test_each_target_that_was_worked_off_is_acknowledged(sender):
    sender.moved("ACKNOWLEDGING", 3_000)
    assert not names(sender.sends(heartbeat(3, {X: (0, 1)}), 3_000))
    sender.moved("RECONCILING", 3_000)
    sender.moved("ACKNOWLEDGING", 3_000)
    sender.receives(sender.in_flight, answer(3), 4_000)
    assert not names(sender.sends(heartbeat(3, {X: (0, 1)}), 4_000))


def test_a_list_is_sent_again_after_a_callback(sender):
    sender.callback("revoked", "begin", [P1])
    sender.callback("revoked", "raised", [P1])
    assert not names(sender.sends(heartbeat(3, {X: (0, 1)}), 3_000))


@pytest.mark.parametrize(("at_us", "broken"), [(90_000, []), (110_000, ["heartbeats-go-on"])])
def test_an_assignment_is_acknowledged_at_once(sender, at_us, broken):
    sender.moved("ACKNOWLEDGING", 3_000)
    assert names(sender.sends(heartbeat(3), at_us)) == broken


@pytest.mark.parametrize("how", ["in flight", "failed", "searches", "moves on"])
def test_an_acknowledgement_waits_for_what_comes_before_it(sender, how):
    at_us, fields = 900_000, {}
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    sender.early_us = 0
    if how in ("in flight", "failed"):
        assert not names(sender.sends(heartbeat(3), 3_500))
    if how == "failed":
        sender.receives(sender.in_flight, RequestTimedOut("late"), 3_500)
        fields = {"owned": {X: (0, 1)}, "full": True}
    sender.moved("ACKNOWLEDGING", 4_000)
    if how == "searches":
        assert not names(sender.search(30_000_000, 5_000))
    elif how == "moves on":
        sender.moved("RECONCILING", 4_000)
    elif how == "in flight":
        sender.receives(sender.in_flight, answer(3, 5000), 3_000_000)
        at_us = 3_090_000
    assert not names(sender.sends(heartbeat(3, **fields), at_us))


@pytest.mark.parametrize(("event", "flagged"), [("released", True), ("fenced", False)])
def test_a_member_that_has_left_reports_that_it_owns_nothing(event, flagged):
    found: list[str] = []
    world = world_of_members()
    world.members["m"].driver = SimpleNamespace(assignment=(P0,), is_calling_back=False)
    checker = Requests()
    checker.attach(cast(WorldView, world), lambda invariant, message, rule="": found.append(invariant))
    checker.on_member_state("m", event, "PREPARE_LEAVING", "UNSUBSCRIBED", 0)
    assert found == (["owned-honest"] if flagged else [])


def test_partitions_are_owned_until_the_revoked_callback_ends(sender):
    sender.callback("revoked", "begin", [P1])
    assert not exchange(sender, heartbeat(3, {X: (0, 1)}), answer(3), 3_000)
    sender.callback("revoked", "end", [P1])
    assert names(sender.sends(heartbeat(3, {X: (0, 1)}), 4_000)) == ["owned-honest"]


def test_partitions_that_are_being_assigned_may_be_listed_or_not(sender):
    sender.callback("assigned", "begin", [P2])
    assert not exchange(sender, heartbeat(3, {X: (0, 1)}), answer(3), 3_000)
    assert not exchange(sender, heartbeat(3, {X: (0, 1, 2)}), answer(3), 4_000)


def test_a_join_with_partitions_is_flagged(sender):
    sender.moved("JOINING", 0)
    assert names(sender.sends(heartbeat(0), 3_000)) == ["owned-honest"]


def test_an_epoch_that_was_not_told_is_flagged(sender):
    assert names(sender.sends(heartbeat(2), 3_000)) == ["epoch-as-answered"]
    commit = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=2, offsets={})
    assert names(sender.commits(commit)) == ["epoch-as-answered"]


def test_an_answer_to_an_older_join_is_not_the_newest_epoch(sender):
    old = heartbeat(3)
    assert not names(sender.sends(old, 3_000))
    sender.moved("FENCED", 0)
    sender.callback("lost", "begin", [P0, P1])
    sender.callback("lost", "end", [P0, P1])
    sender.moved("JOINING", 0)
    sender.receives(old, answer(3), 4_000)
    assert not exchange(sender, heartbeat(0), answer(7), 5_000)
    assert not names(sender.sends(heartbeat(7), 6_000))


def test_silence_is_flagged(sender):
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    assert not names(sender.sends(heartbeat(3), 5_000_000))
    sender.receives(heartbeat(3), answer(3, 5000), 5_000_000)
    late = Sender("m", {})
    late.moved("JOINING", 0)
    assert not exchange(late, heartbeat(0), answer(1, 5000), 0)
    assert names(late.sends(heartbeat(1), 7_000_000)) == ["heartbeats-go-on"]


@pytest.mark.parametrize("searches", [False, True])
def test_who_looks_for_the_coordinator_may_be_silent(searches):
    """An answer to another request may say that the coordinator moved, long after heartbeats worked."""
    found: list[str] = []
    checker = Requests()
    checker.attach(
        cast(WorldView, world_of_members()), lambda invariant, message, rule="": found.append(invariant)
    )
    checker.on_member_state("m", "subscribe", "UNSUBSCRIBED", "JOINING", 0)
    joined = heartbeat(0)
    checker.on_member_request("m", joined, 0)
    checker.on_member_response("m", joined, answer(1, 5000), 0)
    if searches:
        checker.on_member_search("m", 3_000_000)
    checker.on_member_request("m", heartbeat(1), 7_000_000)
    assert found == ([] if searches else ["heartbeats-go-on"])


def test_an_answer_that_comes_while_the_coordinator_is_looked_for_starts_no_clock(sender):
    """A commit was answered meanwhile: that the coordinator moved."""
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    asked = heartbeat(3)
    assert not names(sender.sends(asked, 5_000_000))
    assert not names(sender.search(30_000_000, 5_000_500))
    sender.receives(asked, answer(3, 5000), 5_001_000)
    found = heartbeat(3)
    assert not names(sender.sends(found, 30_000_000))
    sender.receives(found, answer(3, 5000), 30_001_000)
    assert names(sender.sends(heartbeat(3), 40_000_000)) == ["heartbeats-go-on"]


def test_a_coordinator_that_is_looked_for_once_and_never_again_is_flagged(sender):
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    assert not names(sender.search(30_000_000, 1_000_000))
    assert not names(sender.silent(40_000_000))
    assert names(sender.silent(60_000_000)) == ["heartbeats-go-on"]


def test_a_failure_that_nothing_follows_is_flagged(sender):
    assert not exchange(sender, heartbeat(3), RequestTimedOut("late"), 3_000)
    assert not names(sender.silent(1_503_000))
    assert names(sender.silent(1_600_000)) == ["heartbeats-go-on"]


def test_a_heartbeat_with_nothing_new_before_its_time_is_flagged(sender):
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    assert names(sender.sends(heartbeat(3), 2_000_000)) == ["heartbeats-go-on"]


def test_a_heartbeat_with_news_comes_at_any_time(sender):
    assert not exchange(sender, heartbeat(3), answer(3, 5000), 3_000)
    sender.callback("revoked", "begin", [P1])
    sender.callback("revoked", "raised", [P1])
    assert not names(sender.sends(heartbeat(3, {X: (0, 1)}), 1_100_000))


def test_a_join_without_a_subscription_is_flagged():
    sender = Sender("m", {})
    sender.moved("JOINING", 0)
    nothing = heartbeat(0, subscribed_topic_names=(), subscribed_topic_regex=None)
    assert names(sender.sends(nothing, 0)) == ["request-fields"]


def test_names_that_the_coordinator_has_already_are_flagged(sender):
    news = heartbeat(3, subscribed_topic_names=("x", "y"))
    assert not exchange(sender, news, answer(3, 5000), 3_000)
    again = heartbeat(3, subscribed_topic_names=("x", "y"))
    assert names(sender.sends(again, 6_000_000)) == ["request-fields"]


def test_a_commit_of_its_own_out_of_the_group_is_flagged():
    found: list[str] = []
    checker = Requests()
    checker.attach(
        cast(WorldView, world_of_members()), lambda invariant, message, rule="": found.append(invariant)
    )
    offsets = {P0: OffsetAndMetadata(offset=1)}
    commit = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=-1, offsets=offsets)
    checker.on_member_state("m", "subscribed", "UNSUBSCRIBED", "JOINING", 0)
    checker.on_member_request("m", commit, 0)
    assert found == []
    checker.on_member_state("m", "fenced", "JOINING", "FENCED", 1)
    checker.on_member_request("m", commit, 1)
    assert found == ["commit-while-owned"]


@pytest.mark.parametrize(("state", "offset"), [("FATAL", 1), ("JOINING", None)])
def test_a_manual_commit_after_a_fatal_error_or_without_offsets_is_flagged(state, offset):
    found: list[str] = []
    checker = Requests()
    world = world_of_members()
    world.scenario = SimpleNamespace(application=SimpleNamespace(commit="manual"))
    checker.attach(cast(WorldView, world), lambda invariant, message, rule="": found.append(invariant))
    offsets = {} if offset is None else {P0: OffsetAndMetadata(offset=offset)}
    checker.on_member_state("m", "subscribed", "UNSUBSCRIBED", "JOINING", 0)
    checker.on_member_state("m", "", "JOINING", state, 1)
    commit = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=-1, offsets=offsets)
    checker.on_member_request("m", commit, 1)
    assert found == ["commit-while-owned"]


# -- records and commits -----------------------------------------------------------------------------------


def test_gapless_processing_over_several_owners_is_fine():
    progress = ProcessedProgress()
    assert not names(progress.processed("a", P0, 0, 10))
    assert not names(progress.processed("b", P0, 5, 20))
    assert not names(progress.processed("a", P0, 20, 21))


def test_a_gap_between_two_owners_is_flagged():
    progress = ProcessedProgress()
    assert not names(progress.processed("a", P0, 0, 10))
    found = list(progress.processed("b", P0, 11, 20))
    assert names(found) == ["at-least-once"]
    assert "[10, 11)" in found[0][1]


def test_a_gap_within_one_ownership_is_flagged():
    application = ProcessedRecords("a")
    assert not names(application.delivered(P0, 5, 10))
    assert names(application.delivered(P0, 11, 12)) == ["at-least-once"]
    application.assigned([P0])
    assert not names(application.delivered(P0, 3, 4))


def test_commits_cover_what_was_processed_and_no_more():
    application = ProcessedRecords("a")
    application.processed[P0] = 10
    assert not names(application.commits({P0: 10}, {P0}, {}))
    assert names(application.commits({P0: 11}, {P0}, {})) == ["commit-within-processed"]
    assert not names(application.commits({P1: 5}, {P1}, {P1: 5}))
    assert names(application.commits({P1: 6}, {P1}, {P1: 5})) == ["commit-within-processed"]


def test_a_commit_of_a_partition_that_was_let_go_is_flagged():
    application = ProcessedRecords("a")
    application.processed[P0] = 10
    assert names(application.commits({P0: 10}, set(), {})) == ["commit-while-owned"]


def test_a_release_without_a_commit_is_flagged():
    application = ProcessedRecords("a")
    application.processed[P0] = 10
    assert names(application.released([P0, P1])) == ["commit-before-release"]
    list(application.commits({P0: 10}, {P0}, {}))
    assert not names(application.released([P0, P1]))


def test_what_was_handed_over_before_its_topic_was_deleted_is_no_progress_of_the_next():
    checker, found = Records(), []
    checker.report = lambda invariant, message, rule="": found.append(invariant)  # type: ignore[method-assign]
    checker.on_callback("a", "assigned", "begin", (P0,), 0)
    checker.on_records_delivered("a", P0, 0, 10, 0)
    checker.on_records_processed("a", P0, 0, 10, 1)
    checker.on_records_delivered("a", P0, 10, 20, 2)
    checker.on_topic(P0.topic, "deleted", 0, 3)
    checker.on_topic(P0.topic, "created", 2, 4)
    checker.on_records_processed("a", P0, 10, 20, 5)
    assert found == []
    assert not checker.is_processing("a")
    checker.on_records_processed("b", P0, 5, 6, 6)
    assert found == ["at-least-once"]
