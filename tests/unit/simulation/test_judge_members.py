"""Histories of members: callbacks, requests, records and moves, good ones and bad ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge.members import Callbacks, Transitions
from fencepost.simulation.judge.requests import Requests, Sender
from tests.unit.simulation.member_worlds import CODES, FAILURES, History, names, rows, world_of_members

X = "XXXXXXXXXXXXXXXXXXXXXX"
P0, P1, P2 = (TopicPartition("x", number) for number in range(3))


def partitions(numbers):
    return [TopicPartition("x", int(number)) for number in numbers]


MOVES = """
follows the table: 0 move subscribed UNSUBSCRIBED JOINING; 0 move target_received JOINING RECONCILING ->
takes no arrow: 0 move subscribed UNSUBSCRIBED STABLE -> transitions
was elsewhere: 0 move target_received STABLE RECONCILING -> transitions
"""
CALLBACKS = """
in balance: 0 call assigned begin+end 0 1; 0 call revoked begin+end 0; 0 call assigned begin+end 0;
    0 call lost begin+end 0 1; 0 host stopped ->
assigned twice: 0 call assigned begin+end 0 1 | 0 call assigned begin+end 0 -> callbacks-balanced
revoked without owning: 0 call assigned begin+end 0 1 | 0 call revoked begin+end 2 -> callbacks-balanced
lost too little: 0 call assigned begin+end 0 1 | 0 call lost begin+end 0 -> callbacks-balanced
lost too much: 0 call assigned begin+end 0 1 | 0 call lost begin+end 0 1 2 -> callbacks-balanced
acknowledged inside one: 0 call assigned begin 0 | 0 move pass_finished RECONCILING ACKNOWLEDGING
    -> callbacks-balanced
acknowledged after one: 0 call assigned begin+end 0; 0 move pass_finished RECONCILING ACKNOWLEDGING ->
acknowledged without an assigned one: 0 call assigned begin+end 0; 0 call revoked begin+end 0 |
    0 move pass_finished RECONCILING ACKNOWLEDGING -> callbacks-balanced
acknowledged after one that raised: 0 call assigned begin+end 0; 0 call revoked begin+raised 0;
    0 move pass_finished RECONCILING ACKNOWLEDGING ->
acknowledged in another membership: 0 call assigned begin+end 0; 0 call revoked begin+end 0;
    0 move released FENCED JOINING; 0 move pass_finished RECONCILING ACKNOWLEDGING ->
revoked again after it raised: 0 call assigned begin+end 0; 0 call revoked begin+raised 0;
    0 call revoked begin+end 0 ->
lost although it raised: 0 call assigned begin+end 0; 0 call lost begin+raised 0 | 0 call lost begin 0
    -> callbacks-balanced
joins with partitions: 0 call assigned begin+end 0 | 0 move released FENCED JOINING -> callbacks-balanced
joins in a callback: 0 call assigned begin+end 0; 0 call lost begin 0; 0 move released FENCED JOINING ->
lets go of partitions in silence: 0 call assigned begin+end 0 | 0 move released PREPARE_LEAVING LEAVING
    -> callbacks-balanced
overlapping: 0 call assigned begin 0 | 0 call assigned begin 1 -> callbacks-balanced
ended without a begin: 0 call assigned end 0 -> callbacks-balanced
gone with partitions: 0 call assigned begin+end 0 | 0 host stopped -> callbacks-balanced
gone with partitions late: 0 move close STABLE PREPARE_LEAVING; 0 call assigned begin+end 0;
    29 host stopped ->
records before an assignment: 0 delivered -> records-while-owned
records in an assignment: 0 call assigned begin 0 | 0 delivered -> records-while-owned
records after an assignment: 0 call assigned begin+end 0; 0 delivered ->
records after another assignment: 0 call assigned begin+end 0; 0 call revoked begin+end 0;
    0 call assigned begin+end 0; 0 delivered ->
records in a revocation: 0 call assigned begin+end 0; 0 call revoked begin 0 | 0 delivered
    -> records-while-owned
"""


class Balanced(History):
    """The callbacks of one process."""

    def delivered(self, at_us: int) -> None:
        self.judge.on_records_delivered("m", P0, 0, 1, at_us)


@pytest.mark.parametrize(
    ("judge", "script", "broken"),
    [
        pytest.param(judge, *row.values, id=row.id)
        for judge, table in {Transitions: MOVES, Callbacks: CALLBACKS}.items()
        for row in rows(table)
    ],
)
def test_moves_and_callbacks(judge, script, broken):
    assert Balanced(judge()).play(script) == broken


# -- requests ----------------------------------------------------------------------------------------------


def response(text: str) -> Any:
    """What `3/5000+01` says: epoch 3, 5 s between heartbeats, 0 and 1 are assigned; or a failure's name."""
    if text in FAILURES:
        return FAILURES[text]
    if text in CODES:
        return ConsumerGroupHeartbeatResponse(error_code=CODES[text])
    told, plus, given = text.partition("+")
    epoch, _, interval = told.partition("/")
    assigned = {X: tuple(map(int, given))} if given else {}
    return ConsumerGroupHeartbeatResponse(
        member_epoch=int(epoch),
        heartbeat_interval_ms=int(interval or 1),
        assignment=assigned if plus else None,
    )


def request(epoch: int, *words: str) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat; it lists partitions (`owned:01`) or says everything (`full`), as a join does."""
    fields: dict[str, Any] = {}
    if epoch == 0 or "full" in words:
        fields = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ("x",), "topic_partitions": {}}
    for key, _, value in (word.partition(":") for word in words):
        if key == "owned":
            fields["topic_partitions"] = {X: tuple(map(int, value))} if value else {}
        elif key == "names":
            fields["subscribed_topic_names"] = tuple(value)
        elif key == "static":
            fields["instance_id"] = "i"
        elif key == "incomplete":
            fields = {"rebalance_timeout_ms": -1, "subscribed_topic_names": ("x",), "topic_partitions": {}}
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **fields)


JOINED = """0 move JOINING; 0 beat 0 =3; 0 move RECONCILING; 0 call assigned begin 0 1; 1 beat 3 =3;
    1 call assigned end 0 1; 1 move ACKNOWLEDGING; 2 beat 3 owned:01; 2 move STABLE; 2 answer 3"""
"""A member of epoch 3, which owns 0 and 1."""
REFUSED = "0 move JOINING; 0 beat 0 static =late; 1 beat 0 static =UNRELEASED_INSTANCE_ID"
"""A static member whose first join got no response and whose second one was refused."""


class Sent(History):
    """The heartbeats of one member; times are in ms."""

    unit_us = 1_000

    def __init__(self) -> None:
        self.found, self.sender = [], Sender("m", {X: "x"}, world_of_members())

    def move(self, at_us: int, state: str) -> None:  # type: ignore[override]
        self.found += names(self.sender.on_member_state("", "", state, at_us))

    def call(self, at_us: int, kind: str, phases: str, *numbers: str) -> None:
        for phase in phases.split("+"):
            self.sender.on_callback(kind, phase, partitions(numbers), at_us)

    def beat(self, at_us: int, epoch: str, *words: str) -> None:  # type: ignore[override]
        """A heartbeat; a word `=3` is the response to it."""
        self.last = request(int(epoch), *words)
        self.found += names(self.sender.sends(self.last, at_us))
        for word in words:
            if word[0] == "=":
                self.answer(at_us, word[1:])

    def answer(self, at_us: int, text: str) -> None:  # type: ignore[override]
        """The last heartbeat is answered."""
        self.sender.receives(self.last, response(text), at_us)

    def again(self, at_us: int) -> None:
        """The last heartbeat is sent once more."""
        self.found += names(self.sender.sends(self.last, at_us))

    def keep(self, _: int) -> None:
        self.kept = self.last

    def older(self, at_us: int, text: str) -> None:
        """The heartbeat that was kept is answered."""
        self.sender.receives(self.kept, response(text), at_us)

    def commit(self, _: int, epoch: str) -> None:  # type: ignore[override]
        commit = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=int(epoch), offsets={})
        self.found += names(self.sender.commits(commit))

    def search(self, at_us: int) -> None:
        """It looks for its coordinator, for half a minute at most."""
        self.found += names(self.sender.on_member_search(at_us))

    def silent(self, at_us: int) -> None:
        self.found += names(self.sender.silent(at_us))

    def forgets(self, _: int) -> None:
        """It knows no interval, so that no heartbeat is early."""
        self.sender.early_us = 0


BEATS_ALONE = """
gives up its instance: 0 move JOINING; 0 beat 0 static =UNRELEASED_INSTANCE_ID; 0 move FATAL ->
joins with less than everything: 0 move JOINING; 0 beat 0 incomplete -> request-fields
joins without a subscription: 0 move JOINING; 0 beat 0 names: -> request-fields
has nothing to acknowledge: 0 move JOINING; 0 beat 0 =3+; 0 move STABLE; 1 beat 3 owned: -> request-fields
is silent after its join: 0 move JOINING; 0 beat 0 =1/5000 | 7000 beat 1 -> heartbeats-go-on
"""
BEATS_REFUSED = """
frees its instance: 2 beat -2 static; 3 beat -2 static; 4 beat 0 static; 4 move FATAL ->
gives up for itself: 2 move FATAL -> frees-own-instance
asks again: 2 beat 0 static -> frees-own-instance
leaves for good: 2 beat -1 static -> one-in-flight
"""
BEATS = """
sends two: 3 beat 3; 4 again -> one-in-flight
does not wait to leave: 3 beat 3; 3 move PREPARE_LEAVING; 3 call revoked begin+end 0 1; 3 move LEAVING;
    4 beat -1 ->
sends one when fenced: 3 move FENCED; 3 beat 3 -> one-in-flight epoch-as-answered
sends one when stale: 3 move STALE; 3 beat 3 -> one-in-flight epoch-as-answered
sends one after a fatal error: 3 move FATAL; 3 beat 3 -> one-in-flight epoch-as-answered
sends one without a subscription: 3 move UNSUBSCRIBED; 3 beat 3 -> one-in-flight epoch-as-answered
leaves for a while without an instance: 3 move LEAVING; 3 beat -2 -> request-fields
leaves for a while: 3 move LEAVING; 3 beat -2 static ->
says too little after a loss: 3 beat 3 =late; 4 beat 3 -> request-fields
says too little after an error: 3 beat 3 =NOT_COORDINATOR; 4 beat 3 -> request-fields
says everything after a loss: 3 beat 3 =late; 4 beat 3 full owned:01 =3; 5 beat 3 ->
lists less than it owns: 3 beat 3 owned:0 -> owned-honest
lists more than it owns: 3 beat 3 owned:012 -> owned-honest
lists nothing: 3 beat 3 owned: -> owned-honest
lists the same again: 3 beat 3 owned:01 -> request-fields
lists what it was assigned again: 3 beat 3 =3+01; 4 beat 3 owned:01 -> request-fields
lists what differs from its assignment: 3 beat 3 =3+0; 4 beat 3 owned:01 -> reconciles-on
acknowledges each target: 3 move ACKNOWLEDGING; 3 beat 3 owned:01; 3 move RECONCILING; 3 move ACKNOWLEDGING;
    4 answer 3; 4 beat 3 owned:01 ->
lists all after a callback raised: 3 call revoked begin+raised 1; 3 beat 3 owned:01 ->
acknowledges at once: 3 move ACKNOWLEDGING; 90 beat 3 ->
acknowledges late: 3 move ACKNOWLEDGING; 110 beat 3 -> heartbeats-go-on
acknowledges after one in flight: 3 beat 3 =3/5000; 3 forgets; 3.5 beat 3; 4 move ACKNOWLEDGING;
    3000 answer 3/5000; 3090 beat 3 ->
acknowledges after a failure: 3 beat 3 =3/5000; 3 forgets; 3.5 beat 3 =late; 4 move ACKNOWLEDGING;
    900 beat 3 full owned:01 ->
acknowledges after a search: 3 beat 3 =3/5000; 3 forgets; 4 move ACKNOWLEDGING; 5 search; 900 beat 3 ->
acknowledges no more: 3 beat 3 =3/5000; 3 forgets; 4 move ACKNOWLEDGING; 4 move RECONCILING; 900 beat 3 ->
owns until a revoked callback ends: 3 call revoked begin 1; 3 beat 3 owned:01 =3 ->
lists what it has let go: 3 call revoked begin 1; 3 beat 3 owned:01 =3; 3 call revoked end 1 |
    4 beat 3 owned:01 -> owned-honest
lists what is being assigned or not: 3 call assigned begin 2; 3 beat 3 owned:01 =3; 4 beat 3 owned:012 =3 ->
joins with partitions: 3 move JOINING; 3 beat 0 -> owned-honest
sends an epoch it was not told: 3 beat 2 -> epoch-as-answered
commits at an epoch it was not told: 3 commit 2 -> epoch-as-answered
joins while an answer is late: 3 beat 3; 3 keep; 3 move FENCED; 3 call lost begin+end 0 1; 3 move JOINING;
    4 older 3; 5 beat 0 =7; 6 beat 7 ->
is not silent: 3 beat 3 =3/5000; 3 keep; 5000 beat 3; 5000 older 3/5000 ->
hears from a commit that it must search: 3 beat 3 =3/5000; 5000 beat 3; 5000.5 search; 5001 answer 3/5000;
    30000 beat 3; 30001 answer 3/5000 | 40000 beat 3 -> heartbeats-go-on
searches once and never again: 3 beat 3 =3/5000; 1000 search; 40000 silent | 60000 silent -> heartbeats-go-on
does nothing after a failure: 3 beat 3 =late; 1503 silent | 1600 silent -> heartbeats-go-on
sends nothing new too early: 3 beat 3 =3/5000; 2000 beat 3 -> heartbeats-go-on
sends news at any time: 3 beat 3 =3/5000; 3 call revoked begin+raised 1; 1100 beat 3 owned:01 ->
says its topics twice: 3 beat 3 names:xy =3/5000; 6000 beat 3 names:xy -> request-fields
"""


@pytest.mark.parametrize(
    ("before", "script", "broken"),
    [
        pytest.param(before, *row.values, id=row.id)
        for before, table in {"": BEATS_ALONE, REFUSED: BEATS_REFUSED, JOINED: BEATS}.items()
        for row in rows(table)
    ],
)
def test_a_member_sends_heartbeats(before, script, broken):
    history = Sent()
    assert history.play(before) == []
    assert history.play(script) == broken


class Requested(History):
    """A process whose requests are judged, with the rest of its world."""

    hooks = "on_member_request", "on_member_response"

    def __init__(self, **application: Any) -> None:
        super().__init__(Requests(), topics=TopicsImage())
        settings = msgspec.structs.replace(self.world.scenario.application, **application)
        self.world.scenario = msgspec.structs.replace(self.world.scenario, application=settings)
        self.play("0 move subscribed UNSUBSCRIBED JOINING")

    def joins(self, at_us: int, assignor: str = "") -> None:
        it = msgspec.structs.replace(request(0), server_assignor=assignor or None)
        self.send(at_us, it, "join")
        self.judge.on_member_response("m", it, response("1/5000"), at_us)

    def offsets(self, at_us: int, numbers: str = "", producer_id: str = "-1") -> None:
        """A commit of a process without a membership."""
        values = {one: OffsetAndMetadata(offset=1) for one in partitions(numbers)}
        who = {"member_id": "m", "member_epoch": -1, "producer_id": int(producer_id)}
        self.send(at_us, OffsetCommitRequest(group_id="g", offsets=values, **who))


FAILED = "0 call assigned begin+end 0; 0 move fatal_error JOINING FATAL"


@pytest.mark.parametrize(
    ("commit", "script", "broken"),
    [
        ("auto", "0 joins", []),
        ("auto", "0 joins range", ["request-fields"]),  # its settings have none
        ("auto", "0 joins; 7 beat 1", ["heartbeats-go-on"]),
        ("auto", "0 joins; 3 host freeze; 7 beat 1", []),
        ("auto", "0 joins; 3 search; 7 beat 1", []),  # the answer to a commit said that it moved
        ("auto", "0 offsets 0", []),
        ("auto", "0 move fenced JOINING FENCED; 1 offsets 0", ["commit-while-owned"]),
        ("manual", "0 move fatal_error JOINING FATAL; 1 offsets 0", ["commit-while-owned"]),
        ("manual", "0 move joined JOINING JOINING; 1 offsets", ["commit-while-owned"]),
        ("transaction", f"{FAILED}; 1 call lost begin 0; 2 offsets 0 7", []),  # its producer retries
        ("transaction", f"{FAILED}; 1 call lost begin 0; 2 offsets 0", ["commit-while-owned"]),
        ("transaction", f"{FAILED}; 1 call lost begin 0; 2 offsets 01 7", ["commit-while-owned"]),
        ("transaction", f"{FAILED}; 1 call lost begin+end 0; 2 offsets 0 7", ["commit-while-owned"]),
    ],
)
def test_requests_of_a_process(commit, script, broken):
    assert Requested(commit=commit).play(script) == broken


@pytest.mark.parametrize(("event", "flagged"), [("released", True), ("fenced", False)])
def test_a_member_that_has_left_reports_that_it_owns_nothing(event, flagged):
    history = History(Requests(), topics=TopicsImage())
    history.world.members["m"].driver = SimpleNamespace(assignment=(P0,), is_calling_back=False)
    found = history.play(f"0 move {event} PREPARE_LEAVING UNSUBSCRIBED")
    assert found == (["owned-honest"] if flagged else [])
