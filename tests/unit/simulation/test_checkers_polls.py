"""Hand-made histories of polls, leaves and retries, good ones and bad ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest, SyncGroupResponse
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.member.classic.states import ClassicMemberEvent, ClassicMemberState
from fencepost.simulation.checkers.polls import PollConsequences
from fencepost.simulation.checkers.records import Records
from fencepost.simulation.checkers.retries import Retries
from fencepost.simulation.kafka.requests import OffsetsSince
from tests.unit.simulation.member_worlds import world_of_members

SECOND = 1_000_000
P0, P1 = (TopicPartition("x", number) for number in range(2))
STEADY = DeadlineReached()
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def attached(checker: Any, **fields: Any) -> Any:
    """A checker with what it has found; `m` has started."""
    checker.found = []
    checker.attach(
        world_of_members(**fields), lambda invariant, message, rule="": checker.found.append(invariant)
    )
    checker.on_member_host("m", "start", 0)
    return checker


def heartbeat(epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **fields)


def answered(checker: Any, request: Any, response: Any, at_s: float) -> None:
    at_us = round(at_s * SECOND)
    checker.takes_request("m", request, at_us)
    checker.takes_response("m", request, response, at_us)


def moves(checker: Any, event: str, source: str, target: str, at_s: float) -> None:
    checker.on_member_state("m", event, source, target, round(at_s * SECOND))


# -- the time between polls --------------------------------------------------------------------------------


@pytest.fixture
def polls() -> Any:
    """A member that is STABLE, owns P0 and P1, and may be out of poll for 40 s; in a poll since 2 s."""
    records = attached(Records())
    checker = attached(PollConsequences(records))
    checker.records = records
    moves(checker, "subscribed", "UNSUBSCRIBED", "JOINING", 0)
    checker.takes_request("m", heartbeat(0, rebalance_timeout_ms=40_000), 0)
    moves(checker, "target received", "JOINING", "RECONCILING", 0)
    checker.on_callback("m", "assigned", "begin", (P0, P1), SECOND)
    checker.on_callback("m", "assigned", "end", (P0, P1), SECOND)
    moves(checker, "acknowledged", "ACKNOWLEDGING", "STABLE", 1)
    checker.on_poll("m", "begin", 2 * SECOND)
    return checker


@pytest.mark.parametrize(("at_s", "broken"), [(42, ["poll-timeouts"]), (43, []), (44, [])])
def test_a_member_leaves_for_want_of_polls_not_before_its_time(polls, at_s, broken):
    polls.on_poll("m", "end", 3 * SECOND)
    moves(polls, "poll timed out", "STABLE", "PREPARE_LEAVING", at_s)
    assert polls.found == broken


def test_a_member_whose_application_polls_does_not_leave_for_want_of_polls(polls):
    moves(polls, "poll timed out", "STABLE", "PREPARE_LEAVING", 60)
    assert polls.found == ["poll-timeouts"]


@pytest.mark.parametrize("excused", [False, True], ids=["busy", "frozen"])
def test_a_member_that_stays_without_polls_is_flagged(polls, excused):
    polls.on_poll("m", "end", 3 * SECOND)
    if excused:
        polls.on_member_host("m", "freeze", 4 * SECOND)
    polls.takes_request("m", heartbeat(1), 43 * SECOND)
    assert polls.found == []
    polls.on_poll("m", "begin", 44 * SECOND)
    assert polls.found == ([] if excused else ["poll-timeouts"])


# -- automatic commits -------------------------------------------------------------------------------------


def batch(polls: Any, first: int, at_s: float) -> None:
    """A poll that ends with ten records of P0, which are processed, and the begin of the next poll."""
    at_us = round(at_s * SECOND)
    polls.on_poll("m", "end", at_us)
    polls.records.on_records_delivered("m", P0, first, first + 10, at_us)
    polls.records.on_records_processed("m", P0, first, first + 10, at_us + 1_000)
    polls.on_poll("m", "begin", at_us + 2_000)


def commit(polls: Any, offset: int, response: Any, at_s: float) -> None:
    request = OffsetCommitRequest(group_id="g", offsets={P0: OffsetAndMetadata(offset=offset)})
    polls.takes_request("m", request, round(at_s * SECOND))
    polls.on_commit("m", request, response, round(at_s * SECOND))


OK = OffsetCommitResponse(errors={P0: ErrorCode.NONE})


def test_what_is_processed_is_committed_an_interval_later(polls):
    batch(polls, 0, 3)
    batch(polls, 10, 7)
    commit(polls, 10, OK, 8.1)
    batch(polls, 20, 12)
    assert polls.found == []
    for number, at_s in enumerate((17, 18, 23)):
        batch(polls, 30 + 10 * number, at_s)
    assert polls.found == []
    batch(polls, 60, 24)
    assert polls.found == ["commits-go-on"]


def test_commits_go_on_after_one_that_failed(polls):
    batch(polls, 0, 3)
    commit(polls, 10, RequestTimedOut("late"), 8.1)
    batch(polls, 10, 12)
    assert polls.found == []
    for number, at_s in enumerate((14, 15, 20, 21)):
        batch(polls, 20 + 10 * number, at_s)
    assert polls.found == ["commits-go-on"]


@pytest.mark.parametrize(("at_s", "broken"), [(12.8, ["commits-go-on"]), (12.9, [])])
def test_commits_are_an_interval_apart(polls, at_s, broken):
    commit(polls, 10, OK, 8.1)
    commit(polls, 20, OK, at_s)
    batch(polls, 20, 14)
    assert polls.found == broken


def test_a_commit_that_failed_is_made_again_before_the_interval_is_over(polls):
    commit(polls, 10, RequestTimedOut("late"), 8.1)
    commit(polls, 10, OK, 9)
    batch(polls, 10, 14)
    assert polls.found == []


def test_a_commit_that_is_tried_again_or_waited_for_the_coordinator_begins_no_interval(polls):
    commit(polls, 10, RequestTimedOut("late"), 8.1)
    commit(polls, 10, OK, 12)
    commit(polls, 20, OK, 12.5)
    batch(polls, 20, 14)
    assert polls.found == []
    polls.on_member_search("m", 15 * SECOND)
    commit(polls, 30, OK, 20)
    commit(polls, 40, OK, 20.5)
    batch(polls, 40, 22)
    assert polls.found == []


def test_a_process_that_stood_still_may_commit_early(polls):
    commit(polls, 10, OK, 8.1)
    polls.on_member_host("m", "freeze", 9 * SECOND)
    polls.on_member_host("m", "thaw", 10 * SECOND)
    commit(polls, 20, OK, 11)
    batch(polls, 20, 12)
    assert polls.found == []


def test_the_first_commit_comes_an_interval_after_an_assignment(polls):
    polls.on_callback("m", "assigned", "begin", (P1,), 4 * SECOND)
    polls.on_callback("m", "assigned", "end", (P1,), 4 * SECOND)
    commit(polls, 10, OK, 8)
    batch(polls, 10, 8.5)
    assert polls.found == ["commits-go-on"]


def test_a_commit_for_a_release_waits_for_no_interval_and_begins_none(polls):
    commit(polls, 10, OK, 8.1)
    commit(polls, 20, OK, 10)
    polls.on_callback("m", "revoked", "begin", (P1,), 10 * SECOND)
    batch(polls, 20, 11)
    commit(polls, 30, OK, 13.2)
    batch(polls, 30, 14)
    assert polls.found == []


def test_who_looks_for_the_coordinator_commits_nothing(polls):
    batch(polls, 0, 3)
    polls.on_member_search("m", 4 * SECOND)
    batch(polls, 10, 20)
    batch(polls, 20, 21)
    assert polls.found == []


# -- what is owned is read, and what is wanted is taken ------------------------------------------------------


def look(polls: Any, at_s: int) -> None:
    polls.on_coordinator_step("b", STEADY, Outcome(), at_s * SECOND)


@pytest.mark.parametrize("grows", [False, True])
def test_records_that_are_there_reach_an_application_that_polls(polls, grows):
    ends = polls.world.log_ends
    ends.update({P0: 5, P1: 5})
    polls.on_member_host("m", "thaw", 3 * SECOND)
    for at_s in (35, 66):
        look(polls, at_s)
        ends[P0] += 5
        ends[P1] += 5 * grows
    polls.records.on_records_delivered("m", P0, 5, 10, 80 * SECOND)
    look(polls, 97)
    assert polls.found == (["partitions-read"] if grows else [])


def test_a_frozen_application_is_handed_nothing(polls):
    polls.world.members["m"].status = "frozen"
    polls.on_member_host("m", "thaw", 3 * SECOND)
    for at_s in (35, 66, 97):
        look(polls, at_s)
        polls.world.log_ends[P0] = at_s
    assert polls.found == []


@pytest.mark.parametrize("calls_back", [False, True])
def test_a_member_goes_on_towards_its_target(polls, calls_back):
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    if calls_back:
        polls.on_callback("m", "revoked", "begin", (P1,), 3 * SECOND)
    look(polls, 33)
    assert polls.found == []
    look(polls, 64)
    assert polls.found == ([] if calls_back else ["reconciles-on"])


@pytest.mark.parametrize("joins", [False, True])
def test_a_cooperative_member_that_revoked_joins_again(polls, joins):
    moves(polls, ClassicMemberEvent.SYNCED, "COMPLETING_REBALANCE", ClassicMemberState.STABLE, 3)
    polls.on_callback("m", "revoked", "begin", (P1,), 3 * SECOND)
    polls.on_callback("m", "revoked", "end", (P1,), 3 * SECOND)
    if joins:
        moves(polls, ClassicMemberEvent.REJOIN, "STABLE", ClassicMemberState.UNJOINED, 4)
        request = JoinGroupRequest(
            group_id="g",
            member_id="m",
            protocol_type="consumer",
            protocols=(),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=40_000,
        )
        polls.takes_request("m", request, 4 * SECOND)
    look(polls, 33)
    assert polls.found == []
    look(polls, 64)
    assert polls.found == ([] if joins else ["reconciles-on"])


def test_a_member_that_is_to_join_again_sends_a_join(polls):
    moves(polls, ClassicMemberEvent.REJOIN, "STABLE", ClassicMemberState.UNJOINED, 3)
    look(polls, 64)
    assert polls.found == ["reconciles-on"]


def test_a_poll_that_raises_an_earlier_error_takes_no_step(polls):
    polls.on_poll("m", "end", 3 * SECOND)
    polls.on_callback("m", "revoked", "raised", (P1,), 3 * SECOND)
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    polls.on_poll("m", "begin", 40 * SECOND)
    polls.on_poll("m", "failed", 40 * SECOND)
    polls.on_poll("m", "begin", 41 * SECOND)
    polls.on_poll("m", "end", 41 * SECOND)
    assert polls.found == []
    polls.on_poll("m", "begin", 72 * SECOND)
    polls.on_poll("m", "end", 72 * SECOND)
    assert polls.found == ["reconciles-on"]


def test_a_member_waits_for_a_lost_request_until_it_times_out(polls):
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    polls.on_loss("m", "broker-1", "request", heartbeat(1), 20 * SECOND)
    look(polls, 79)
    assert polls.found == []
    look(polls, 110)
    assert polls.found == ["reconciles-on"]


@pytest.mark.parametrize(("phase", "broken"), [("end", ["errors-raised"]), ("failed", [])])
def test_that_a_callback_raised_is_raised_by_a_poll(polls, phase, broken):
    polls.on_callback("m", "revoked", "begin", (P1,), 3 * SECOND)
    polls.on_callback("m", "revoked", "raised", (P1,), 4 * SECOND)
    polls.on_poll("m", "end", 4 * SECOND)
    polls.on_poll("m", "begin", 5 * SECOND)
    assert polls.found == []
    polls.on_poll("m", phase, 6 * SECOND)
    assert polls.found == broken


MOVES: list[tuple[str, str, str]] = [
    ("target received", "STABLE", "RECONCILING"),
    (ClassicMemberEvent.SYNCED, "COMPLETING_REBALANCE", ClassicMemberState.STABLE),
    ("leave built", "LEAVING", "STALE"),
    ("fenced", "STABLE", "FENCED"),
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move[2])
@pytest.mark.parametrize(("at_s", "broken"), [(3, []), (3.001, ["reconciles-on"])])
def test_a_callback_that_nothing_delays_begins_at_once(polls, move, at_s, broken):
    event, source, target = move
    moves(polls, event, source, target, 3)
    polls.on_callback("m", "lost", "begin", (P1,), round(at_s * SECOND))
    assert polls.found == broken


def test_another_target_while_a_member_waits_for_names_starts_no_callback(polls):
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    polls.on_member_lookup("m", ("names", "x"), 3 * SECOND)
    moves(polls, "target received", "RECONCILING", "RECONCILING", 4)
    polls.on_callback("m", "assigned", "begin", (), 5 * SECOND)
    assert polls.found == []


@pytest.mark.parametrize("why", ["commits", "asks for names", "searches", "stands still", "is out of poll"])
def test_a_callback_may_have_to_wait(polls, why):
    if why == "is out of poll":
        polls.on_poll("m", "end", 3 * SECOND)
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    if why == "commits":
        commit(polls, 10, OK, 3)
    elif why == "asks for names":
        polls.on_member_lookup("m", ("names", "x"), 3 * SECOND)
    elif why == "searches":
        polls.on_member_search("m", 3 * SECOND)
    elif why == "stands still":
        polls.on_member_host("m", "freeze", 3 * SECOND)
    polls.on_callback("m", "assigned", "begin", (), 4 * SECOND)
    assert polls.found == []


@pytest.mark.parametrize("between", ["nothing", "a poll fails", "another membership"])
def test_a_callback_that_raised_is_called_again_by_the_next_poll(polls, between):
    moves(polls, "target received", "STABLE", "RECONCILING", 3)
    polls.on_callback("m", "revoked", "begin", (P1,), 3 * SECOND)
    polls.on_callback("m", "revoked", "raised", (P1,), 3 * SECOND)
    if between == "a poll fails":
        polls.on_poll("m", "failed", 3 * SECOND)
    elif between == "another membership":
        moves(polls, "fenced", "RECONCILING", "FENCED", 3)
        moves(polls, "released", "FENCED", "JOINING", 3)
        moves(polls, "target received", "JOINING", "RECONCILING", 4)
    polls.on_callback("m", "revoked", "begin", (P1,), 4 * SECOND)
    assert polls.found == (["errors-raised"] if between == "nothing" else [])


@pytest.mark.parametrize("reported", [{}, {P0: 10}, {P0: 12}])
def test_a_member_reports_what_its_application_was_handed(polls, reported):
    offsets = {each: OffsetAndMetadata(offset=offset) for each, offset in reported.items()}
    polls.world.members["m"].driver = SimpleNamespace(delivered=lambda: offsets)
    polls.records.on_records_delivered("m", P0, 0, 10, 3 * SECOND)
    look(polls, 40)
    assert polls.found == ([] if reported == {P0: 10} else ["owned-honest"])


def test_a_driver_in_another_process_reports_nothing(polls):
    polls.world.members["m"].driver = SimpleNamespace(assignment=(P0,))
    polls.records.on_records_delivered("m", P0, 0, 10, 3 * SECOND)
    look(polls, 40)
    assert polls.found == []


def test_a_poll_that_goes_on_after_a_callback_raised_is_flagged(polls):
    polls.on_callback("m", "assigned", "begin", (), 3 * SECOND)
    polls.on_callback("m", "assigned", "raised", (), 3 * SECOND)
    look(polls, 40)
    assert polls.found == ["errors-raised"]


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.FENCED_MEMBER_EPOCH, REFUSED]
)
def test_an_application_is_spared_errors_that_its_member_mends(polls, code):
    answered(polls, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=code), 3)
    polls.on_poll("m", "failed", 4 * SECOND)
    assert polls.found == ([] if code is REFUSED else ["errors-raised"])


def test_a_poll_does_not_fail_twice_for_one_reason(polls):
    answered(polls, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=REFUSED), 3)
    polls.on_poll("m", "failed", 4 * SECOND)
    polls.on_poll("m", "begin", 5 * SECOND)
    polls.on_poll("m", "end", 6 * SECOND)
    polls.on_poll("m", "begin", 7 * SECOND)
    polls.on_poll("m", "failed", 7 * SECOND)
    assert polls.found == ["errors-raised"]


@pytest.mark.parametrize("code", [ErrorCode.STALE_MEMBER_EPOCH, REFUSED])
def test_a_refused_fetch_of_offsets_may_fail_a_poll(polls, code):
    fetch = OffsetFetchRequest(group_id="g", member_id="m", partitions=(P0,))
    reply = OffsetFetchResponse(group_id="g", error_code=code)
    polls.on_coordinator_step("b", fetch, Outcome(reply=reply), 3 * SECOND)
    polls.on_poll("m", "failed", 4 * SECOND)
    assert polls.found == ([] if code is REFUSED else ["errors-raised"])


@pytest.mark.parametrize("target", ["STABLE", ClassicMemberState.STABLE])
@pytest.mark.parametrize("kind", ["assigned", "lost"])
def test_a_callback_that_ended_for_its_member_may_have_raised(polls, kind, target):
    moves(polls, ClassicMemberEvent.SYNCED, "COMPLETING_REBALANCE", target, 3)
    polls.on_callback("m", kind, "begin", (P1,), 3 * SECOND)
    polls.on_callback("m", kind, "end", (P1,), 3 * SECOND)
    polls.on_poll("m", "failed", 4 * SECOND)
    may = kind == "lost" or target is ClassicMemberState.STABLE
    assert polls.found == ([] if may else ["errors-raised"])


@pytest.mark.parametrize(("at_s", "broken"), [(68, []), (69, ["commits-end"])])
def test_an_application_does_not_wait_for_a_commit_for_ever(polls, at_s, broken):
    polls.on_poll("m", "end", 3 * SECOND)
    polls.records.on_records_processed("m", P0, 0, 5, 3 * SECOND)
    look(polls, at_s)
    assert polls.found == broken


def test_the_time_for_a_commit_begins_anew_when_a_process_goes_on(polls):
    polls.on_poll("m", "end", 3 * SECOND)
    polls.records.on_records_processed("m", P0, 0, 5, 3 * SECOND)
    polls.on_member_host("m", "freeze", 4 * SECOND)
    polls.on_member_host("m", "thaw", 60 * SECOND)
    look(polls, 120)
    assert polls.found == []
    look(polls, 150)
    assert polls.found == ["commits-end"]


# -- retries -------------------------------------------------------------------------------------------------


LOADING = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.mark.parametrize(("every_ms", "broken"), [(10, ["retries-back-off"]), (200, [])])
def test_retries_take_their_time(every_ms, broken):
    retries = attached(Retries())
    for attempt in range(6):
        answered(retries, heartbeat(0), LOADING, attempt * every_ms / 1000)
    assert retries.found == broken


def test_an_answer_ends_a_row_of_failures():
    retries = attached(Retries())
    for attempt in range(12):
        response = ConsumerGroupHeartbeatResponse(member_epoch=1) if attempt == 5 else LOADING
        answered(retries, heartbeat(0), response, attempt / 1000)
        if attempt < 11:
            assert retries.found == []
    assert retries.found == ["retries-back-off"]


@pytest.mark.parametrize("searches", [False, True])
def test_who_asked_the_wrong_broker_looks_for_the_right_one(searches):
    retries = attached(Retries())
    answered(retries, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR), 1)
    if searches:
        retries.on_member_search("m", SECOND)
    retries.takes_request("m", heartbeat(3), SECOND)
    assert retries.found == ([] if searches else ["searches-anew"])


@pytest.mark.parametrize("epoch", [3, 0])
@pytest.mark.parametrize("searches", [False, True])
def test_a_member_whose_heartbeat_got_no_response_looks_for_the_coordinator(searches, epoch):
    retries = attached(Retries())
    answered(retries, heartbeat(epoch), RequestTimedOut("late"), 1)
    if searches:
        retries.on_member_search("m", SECOND)
    retries.takes_request("m", heartbeat(epoch), 2 * SECOND)
    assert retries.found == ([] if searches else ["searches-anew"])


@pytest.mark.parametrize(
    ("moved", "error", "broken"),
    [
        (False, Disconnected("cut"), ["searches-anew"]),
        (True, Disconnected("cut"), []),
        (False, RequestTimedOut("late"), []),
    ],
)
def test_a_commit_whose_connection_broke_is_a_reason_to_search_while_it_is_awaited(moved, error, broken):
    retries = attached(Retries())
    request = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=3, offsets={})
    retries.takes_request("m", request, SECOND)
    if moved:
        moves(retries, "fenced", "STABLE", "FENCED", 2)
    retries.on_commit("m", request, error, 3 * SECOND)
    retries.takes_request("m", heartbeat(3), 4 * SECOND)
    assert retries.found == broken


def test_a_leave_without_a_response_needs_no_search():
    retries = attached(Retries())
    answered(retries, heartbeat(-1), RequestTimedOut("late"), 1)
    retries.takes_request("m", heartbeat(0), 2 * SECOND)
    assert retries.found == []


NOT_HERE = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)


def test_a_refusal_of_a_request_from_before_the_last_search_means_nothing():
    retries = attached(Retries())
    old, new = heartbeat(3), heartbeat(4)
    retries.takes_request("m", old, SECOND)
    retries.on_member_search("m", 2 * SECOND)
    retries.takes_request("m", new, 3 * SECOND)
    retries.takes_response("m", old, NOT_HERE, 4 * SECOND)
    retries.takes_request("m", heartbeat(5), 5 * SECOND)
    assert retries.found == []
    retries.takes_response("m", new, NOT_HERE, 6 * SECOND)
    retries.takes_request("m", heartbeat(6), 7 * SECOND)
    assert retries.found == ["searches-anew"]


@pytest.mark.parametrize(("gives_up", "broken"), [(True, []), (False, ["searches-anew"])])
def test_a_refusal_of_a_round_that_was_given_up_means_nothing(gives_up, broken):
    retries = attached(Retries())
    request = SyncGroupRequest(group_id="g", member_id="m", generation=3)
    retries.takes_request("m", request, SECOND)
    if gives_up:
        moves(retries, "sync refused", "COMPLETING_REBALANCE", "UNJOINED", 2)
    retries.takes_response("m", request, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR), 3 * SECOND)
    retries.takes_request("m", heartbeat(3), 4 * SECOND)
    assert retries.found == broken


# -- where reading begins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "broken"), [(7, []), (9, []), (0, True), (5, True)])
def test_a_new_owner_begins_at_an_offset_that_is_committed(first, broken):
    records = attached(Records())
    for offset, at_s in ((5, 1), (7, 2)):
        written(records, offset, at_s)
    records.on_callback("m", "assigned", "begin", (P0,), 3 * SECOND)
    written(records, 9, 4)
    records.on_records_delivered("m", P0, first, first + 1, 5 * SECOND)
    assert ("starts-at-committed" in records.found) == bool(broken)


def written(records: Any, offset: int, at_s: int) -> None:
    record = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(offset, -1, "", 0))
    records.on_coordinator_step("b", STEADY, Outcome(records=(record,)), at_s * SECOND)


@pytest.mark.parametrize(("apart_s", "broken"), [(0.04, ["retries-back-off"]), (0.06, [])])
def test_the_same_metadata_is_not_asked_for_again_and_again(apart_s, broken):
    retries = attached(Retries())
    for number in range(6):
        retries.on_member_lookup("m", ("sizes", "x"), round(number * apart_s * SECOND))
    assert retries.found == broken


def test_different_metadata_may_be_asked_for_at_once():
    retries = attached(Retries())
    for number in range(9):
        retries.on_member_lookup("m", ("sizes", f"x{number}"), SECOND)
    assert retries.found == []


def test_a_search_for_offsets_by_time_is_the_same_at_any_time():
    retries = attached(Retries())
    for number in range(6):
        retries.on_member_lookup("m", OffsetsSince((P0,), since_us=number), round(number * 0.04 * SECOND))
    assert retries.found == ["retries-back-off"]
