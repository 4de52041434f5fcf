"""The judges of classic groups are shown bad histories by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse
from fencepost.coordinator.protocol.records import GroupMetadataMember, GroupMetadataValue
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.member.classic.assignors.sticky import write_previous
from fencepost.member.classic.states import ClassicMemberState as S
from fencepost.simulation.judge.classic_members import ClassicMembers
from fencepost.simulation.judge.classic_records import (
    check_assignment,
    check_stickiness,
)
from fencepost.simulation.judge.liveness import Liveness, unsettled_classic
from tests.unit.simulation.member_worlds import History, names, rows

E = ErrorCode


def said(topics="t", **fields):
    return consumer_protocol.write_subscription(
        consumer_protocol.ConsumerProtocolSubscription(topics=tuple(topics), **fields)
    )


def given(**topics):
    return consumer_protocol.write_assignment(consumer_protocol.ConsumerProtocolAssignment(partitions=topics))


def group(state=ClassicGroupState.STABLE, generation=3):
    made = ClassicGroup("g", 0)
    for name, instance in (("a", None), ("b", "i")):
        protocols = (classic.JoinGroupProtocol("range", said()),)
        made.add(
            ClassicGroupMember(
                name,
                instance_id=instance,
                client_id=name,
                client_host="",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                protocols=protocols,
            ),
            "consumer",
        )
    made.state, made.generation, made.protocol = state, generation, "range"
    return made


def beat(member_id="a", generation=3, instance=None):
    return classic.HeartbeatRequest(
        group_id="g", generation=generation, member_id=member_id, instance_id=instance
    )


def sync(generation):
    return classic.SyncGroupRequest(group_id="g", generation=generation, member_id="a")


def record(*members, protocol="x"):
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol=protocol,
        leader="a",
        current_state_timestamp_ms=0,
        members=tuple(
            GroupMetadataMember(
                member_id=name,
                instance_id=None,
                client_id="",
                client_host="",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                subscription=subscription,
                assignment=assignment,
            )
            for name, subscription, assignment in members
        ),
    )


CUT = bytes.fromhex("0001 00000001 0001 74 00000000")
"""Of version 1, and it ends behind its user data: what a client leaves out is not judged."""


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((said(), given(t=(1,))), None),
        ((said(), given(t=(0,))), "a was given it"),
        ((said(owned={"t": (0,)}), given()), "b has it"),
        ((said(), given(other=(0,))), "not in its subscription"),
        ((CUT, given(t=(1,))), None),
    ],
)
def test_a_partition_is_given_to_one_who_wants_it_when_nobody_has_it(second, message):
    found = [text for _, text in check_assignment("g", record(("a", said(), given(t=(0,))), ("b", *second)))]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]


def claims(generation, *numbers):
    return said(user_data=write_previous({"t": numbers}), generation=generation)


@pytest.mark.parametrize(
    ("second", "first_keeps", "broken"),
    [
        (claims(4, 2, 3), (0, 1), 0),
        (claims(4, 2, 3), (0, 2), 2),
        (claims(3, 0, 1), (0, 1), 0),
        (claims(3, 0, 1), (2, 3), 1),
        (claims(4, 0, 1), (2, 3), 0),
    ],
)
def test_a_sticky_leader_leaves_partitions_with_members_of_the_newest_generation(second, first_keeps, broken):
    rest = tuple(number for number in range(4) if number not in first_keeps)
    members = ("a", claims(4, 0, 1), given(t=first_keeps)), ("b", second, given(t=rest))
    found = names(check_stickiness("g", record(*members, protocol="sticky")))
    assert found == ["classic-assignment"] * broken
    assert names(check_stickiness("g", record(*members))) == []


# -- members


def join(*words):
    """Words change its protocol, topics, id, and what it owns."""
    fields = {"name": "range", "topics": "t", **dict(word.split(":") for word in words)}
    owned = {"t": (int(fields["owned"]),)} if "owned" in fields else {}
    return classic.JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=(classic.JoinGroupProtocol(fields["name"], said(fields["topics"], owned=owned)),),
        member_id=fields.get("id", ""),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )


class Sent(History):
    """The requests of one member, which sends a heartbeat every 3 s. A word `=…` is the response."""

    hooks = "on_member_request", "on_member_response"

    def __init__(self) -> None:
        super().__init__(ClassicMembers())
        self.world.members["m"].driver = SimpleNamespace(heartbeat_interval_ms=3_000)
        self.play("0 move UNJOINED")

    def move(self, at_us: int, *states: str, event: str = "moved") -> None:  # type: ignore[override]
        for state in states:
            self.tell("on_member_state", event, "", S(state), at_us)

    def call(self, at_us: int, kind: str, phase: str, *numbers: str) -> None:
        chosen = [TopicPartition("t", int(number)) for number in numbers]
        self.tell("on_callback", kind, phase, chosen, at_us)

    def ask(self, at_us: int, request: Any, words: tuple[str, ...]) -> None:
        self.send(at_us, request)
        for word in words:
            if word[0] == "=":
                self.answer(at_us, word[1:])

    def answer(self, at_us: int, text: str) -> None:  # type: ignore[override]
        response: Any
        if text.isdigit():
            response = classic.JoinGroupResponse(generation=int(text), member_id="a")
        elif text == "required":
            response = classic.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id="a")
        else:
            response = classic.HeartbeatResponse(error_code=ErrorCode[text])
        self.tell("on_member_response", self.sent[""], response, at_us)

    def join(self, at_us: int, *words: str) -> None:
        self.ask(at_us, join(*(word for word in words if word[0] != "=")), words)

    def beat(self, at_us: int, *words: str) -> None:  # type: ignore[override]
        self.ask(at_us, beat(), words)

    def sync(self, at_us: int, generation: str) -> None:
        self.ask(at_us, sync(int(generation)), ())

    def rejoin(self, at_us: int, *words: str) -> None:
        """It joins again by itself."""
        self.move(at_us, "UNJOINED", event="rejoin")
        self.join(at_us, "id:a", *words)

    def silent(self, at_us: int) -> None:
        self.judge.on_end(at_us)


IN_GENERATION = "0 join =3; 0 move COMPLETING_REBALANCE"
JOINS = """
eager: 0 join ->
eager, and owns: 0 call assigned begin 0; 0 join -> classic-joins
eager, and says that it owns: 0 call assigned begin 0; 0 join owned:0 -> classic-joins
cooperative: 0 call assigned begin 0; 0 join name:cooperative-sticky owned:0 ->
cooperative, and hides what it owns: 0 call assigned begin 0; 0 join name:cooperative-sticky -> classic-joins
cooperative, and says what it revoked: 0 call assigned begin 0; 0 call revoked end 0;
    0 join name:cooperative-sticky owned:0 -> classic-joins
two at a time: 0 join | 0 join -> one-in-flight
in another state: 0 move STABLE; 0 join -> one-in-flight
without the id that it was given: 0 join =required; 0 move UNJOINED | 0 join -> classic-joins
without an id after it was stale: 0 join =required; 0 move STALE UNJOINED; 0 join ->
"""
REQUESTS = """
of another generation: 0 sync 2 -> epoch-as-answered
too late: 0 sync 3; 3 beat =NONE | 9 beat -> heartbeats-go-on
under its id: 0 beat =ILLEGAL_GENERATION; 0 move FENCED UNJOINED; 0 join id:a ->
under no id: 0 beat =ILLEGAL_GENERATION; 0 move FENCED UNJOINED; 0 join -> classic-joins
under no id when it is not known: 0 beat =UNKNOWN_MEMBER_ID; 0 move FENCED UNJOINED; 0 join ->
under its id when it is not known: 0 beat =UNKNOWN_MEMBER_ID; 0 move FENCED UNJOINED; 0 join id:a
    -> classic-joins
again for nothing: 0 beat =NONE; 0 move STABLE UNJOINED; 0 rejoin -> classic-joins
again for others: 0 beat =REBALANCE_IN_PROGRESS; 0 move STABLE UNJOINED; 0 rejoin ->
again after it revoked: 0 call revoked end; 0 move STABLE UNJOINED; 0 rejoin ->
again with other topics: 0 move STABLE UNJOINED; 0 rejoin topics:tu ->
again for what it revoked long ago: 0 call revoked end; 0 move UNJOINED; 0 rejoin =4;
    0 move COMPLETING_REBALANCE STABLE UNJOINED | 0 rejoin -> classic-joins
answered during a search: 3 beat; 3.0005 search; 3.001 answer NONE; 30 beat | 9 move FENCED; 9 beat
    -> one-in-flight epoch-as-answered
no heartbeat at all: 1 sync 3; 3.85 silent | 3.851 silent -> heartbeats-go-on
"""


@pytest.mark.parametrize(
    ("before", "script", "broken"),
    [
        pytest.param(before, *row.values, id=row.id)
        for before, table in {"": JOINS, IN_GENERATION: REQUESTS}.items()
        for row in rows(table)
    ],
)
def test_a_member_sends_requests(before, script, broken):
    history = Sent()
    assert history.play(before) == []
    assert history.play(script) == broken


@pytest.mark.parametrize("changes", [False, True])
def test_a_member_may_join_again_after_topics_have_changed(changes):
    history = History(ClassicMembers())
    history.hooks = "on_member_request", "on_member_response"
    history.play("0 move subscribed UNSUBSCRIBED ~UNJOINED")
    history.send(0, join(), "join")
    response = classic.JoinGroupResponse(generation=1, member_id="a")
    history.tell("on_member_response", history.sent["join"], response, 0)
    if changes:
        history.judge.on_topic("t", "grown", 4, 0)
    history.play("0 move rejoin ~STABLE ~UNJOINED")
    history.send(0, join("id:a"))
    assert history.found == ([] if changes else ["classic-joins"])


# -- the end of a run


def test_a_group_has_not_settled_while_nobody_runs_for_its_members():
    assert names(unsettled_classic(group(), {}, TopicsImage(), {})) == ["gone-members", "gone-members"]
    moving = list(unsettled_classic(group(ClassicGroupState.PREPARING_REBALANCE), {}, TopicsImage(), {}))
    assert moving[0][0] == "progress"


@pytest.mark.parametrize(
    ("size", "generation", "broken"),
    [(6, 3, False), (5, 3, True), (6, 2, True)],
    ids=["grown-while-away", "grown-after-it", "assigned-since"],
)
def test_partitions_may_be_nobody_s_that_came_while_a_static_leader_was_away(size, generation, broken):
    made, found = group(), []
    made.members["a"].assignment, made.members["b"].assignment = given(t=(0, 1)), given(t=(2, 3))
    made.compute_subscribed_topics()
    world: Any = SimpleNamespace(group_id="g", members={}, topics=topic_of(size), settling_ms=0)
    judge = Liveness(lambda host: False)
    judge.attach(world, lambda invariant, message, rule="": found.append(invariant))
    judge.on_faults_end(0)
    back = classic.JoinGroupResponse(generation=generation, skip_assignment=True)
    judge.on_coordinator_step("b", join(), Outcome(effects=(ParkedResponse(token=1, response=back),)), 1)
    world.active = SimpleNamespace(image=topic_of(6), classic=SimpleNamespace(groups={"g": made}))
    judge.on_end(2)
    assert ("progress" in found) == broken


def topic_of(partitions):
    return TopicsImage.of([Topic(topic_id="T" * 22, name="t", partitions=partitions)])
