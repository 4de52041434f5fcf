"""The checkers of classic groups are shown bad histories by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse
from fencepost.coordinator.protocol.records import GroupMetadataMember, GroupMetadataValue
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.member.classic.assignors.sticky import write_previous
from fencepost.member.classic.states import ClassicMemberEvent
from fencepost.member.classic.states import ClassicMemberState as S
from fencepost.simulation.checkers.classic import (
    KnownClassic,
    check_answer,
    check_assignment,
    check_stickiness,
)
from fencepost.simulation.checkers.classic_members import ClassicMembers, ClassicSender
from fencepost.simulation.checkers.liveness import Liveness, unsettled_classic
from fencepost.simulation.kernel.observers import WorldView
from tests.unit.simulation.member_worlds import world_of_members

E = ErrorCode


def said(topics=("t",), owned=None):
    return consumer_protocol.write_subscription(
        consumer_protocol.ConsumerProtocolSubscription(topics=topics, owned=owned or {})
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


def commit(member_id, generation):
    return OffsetCommitRequest(group_id="g", member_id=member_id, member_epoch=generation, offsets={})


@pytest.mark.parametrize(
    ("request_", "state", "right"),
    [
        (beat(), "Stable", E.NONE),
        (beat("x"), "Stable", E.UNKNOWN_MEMBER_ID),
        (beat("a", 2), "Stable", E.ILLEGAL_GENERATION),
        (beat("b", instance="other"), "Stable", E.UNKNOWN_MEMBER_ID),
        (beat("a", instance="i"), "Stable", E.FENCED_INSTANCE_ID),
        (beat("b", instance="i"), "Stable", E.NONE),
        (beat(), "PreparingRebalance", E.REBALANCE_IN_PROGRESS),
        (
            classic.SyncGroupRequest(group_id="g", generation=3, member_id="a"),
            "PreparingRebalance",
            E.REBALANCE_IN_PROGRESS,
        ),
        (
            classic.SyncGroupRequest(group_id="g", generation=2, member_id="a"),
            "CompletingRebalance",
            E.ILLEGAL_GENERATION,
        ),
        (OffsetCommitRequest(group_id="g", member_id="a", member_epoch=3, offsets={}), "Stable", E.NONE),
        (
            OffsetCommitRequest(group_id="g", member_id="a", member_epoch=2, offsets={}),
            "Stable",
            E.ILLEGAL_GENERATION,
        ),
        (
            OffsetCommitRequest(group_id="g", member_id="a", member_epoch=3, offsets={}),
            "CompletingRebalance",
            E.REBALANCE_IN_PROGRESS,
        ),
        (OffsetCommitRequest(group_id="g", member_id="", member_epoch=-1, offsets={}), "Empty", E.NONE),
    ],
)
def test_each_request_has_one_right_answer(request_, state, right):
    known = KnownClassic(group(ClassicGroupState(state)))
    assert list(check_answer(request_, right, known)) == []
    for wrong in {E.NONE, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID} - {right}:
        assert len(list(check_answer(request_, wrong, known))) == 1


def test_other_errors_are_no_business_of_generations():
    known = KnownClassic(group())
    assert list(check_answer(beat(), E.COORDINATOR_NOT_AVAILABLE, known)) == []


def record(*members):
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="x",
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


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((said(), given(t=(1,))), None),
        ((said(), given(t=(0,))), "a was given it"),
        ((said(owned={"t": (0,)}), given()), "b has it"),
        ((said(), given(other=(0,))), "not in its subscription"),
    ],
)
def test_a_partition_is_given_to_one_who_wants_it_when_nobody_has_it(second, message):
    found = [text for _, text in check_assignment("g", record(("a", said(), given(t=(0,))), ("b", *second)))]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]


def claims(generation: int, *numbers: int) -> bytes:
    return consumer_protocol.write_subscription(
        consumer_protocol.ConsumerProtocolSubscription(
            topics=("t",), user_data=write_previous({"t": numbers}), generation=generation
        )
    )


@pytest.mark.parametrize(
    ("second", "first_keeps", "broken"),
    [
        (claims(4, 2, 3), (0, 1), []),
        (claims(4, 2, 3), (0, 2), ["classic-assignment", "classic-assignment"]),
        (claims(3, 0, 1), (0, 1), []),
        (claims(3, 0, 1), (2, 3), ["classic-assignment"]),
        (claims(4, 0, 1), (2, 3), []),
    ],
)
def test_a_sticky_leader_leaves_partitions_with_members_of_the_newest_generation(second, first_keeps, broken):
    rest = tuple(number for number in range(4) if number not in first_keeps)
    value = record(("a", claims(4, 0, 1), given(t=first_keeps)), ("b", second, given(t=rest)))
    assert names(check_stickiness("g", msgspec.structs.replace(value, protocol="sticky"))) == broken
    assert names(check_stickiness("g", value)) == []


def test_what_a_client_leaves_out_of_its_subscription_is_not_judged():
    cut = bytes.fromhex("0001 00000001 0001 74 00000000")  # version 1, which ends behind its user data
    assert list(check_assignment("g", record(("a", cut, given(t=(0,)))))) == []


def join(name="range", owned=None):
    return classic.JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=(classic.JoinGroupProtocol(name, said(owned=owned)),),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )


def sender(state=S.UNJOINED, *owned):
    made = ClassicSender("m", 3_000)
    made.moved(state, 0)
    made.callback("assigned", "begin", [TopicPartition("t", number) for number in owned])
    return made


def names(findings):
    return [name for name, _ in findings]


def test_an_eager_member_joins_with_nothing():
    assert names(sender().sends(join(), 0)) == []
    assert names(sender(S.UNJOINED, 0).sends(join(), 0)) == ["classic-joins"]
    assert names(sender(S.UNJOINED, 0).sends(join(owned={"t": (0,)}), 0)) == ["classic-joins"]


def test_a_cooperative_member_says_what_it_keeps():
    assert names(sender(S.UNJOINED, 0).sends(join("cooperative-sticky", {"t": (0,)}), 0)) == []
    assert names(sender(S.UNJOINED, 0).sends(join("cooperative-sticky"), 0)) == ["classic-joins"]
    kept = sender(S.UNJOINED, 0)
    kept.callback("revoked", "end", [TopicPartition("t", 0)])
    assert names(kept.sends(join("cooperative-sticky", {"t": (0,)}), 0)) == ["classic-joins"]


def test_rounds_have_one_request_at_a_time_in_its_state():
    member = sender()
    assert names(member.sends(join(), 0)) == []
    assert names(member.sends(join(), 0)) == ["one-in-flight"]
    assert names(sender(S.STABLE).sends(join(), 0)) == ["one-in-flight"]


def in_generation(generation: int) -> ClassicSender:
    member = sender()
    asked = join()
    assert names(member.sends(asked, 0)) == []
    member.receives(asked, classic.JoinGroupResponse(generation=generation, member_id="a"), 0)
    member.moved(S.COMPLETING_REBALANCE, 0)
    return member


def test_requests_carry_the_generation_that_was_answered_and_heartbeats_go_on():
    member = in_generation(3)
    assert names(member.sends(sync(2), 0)) == ["epoch-as-answered"]
    first = beat()
    assert names(member.sends(first, 3_000_000)) == []
    member.receives(first, classic.HeartbeatResponse(), 3_000_000)
    assert names(member.sends(beat(), 9_000_000)) == ["heartbeats-go-on"]


def test_a_member_joins_under_its_id_until_the_coordinator_does_not_know_it():
    def rejoins(code: ErrorCode, member_id: str) -> list[str]:
        member = in_generation(3)
        asked = beat()
        assert names(member.sends(asked, 0)) == []
        member.receives(asked, classic.HeartbeatResponse(error_code=code), 0)
        member.moved(S.FENCED, 0)
        member.moved(S.UNJOINED, 0)
        return names(member.sends(msgspec.structs.replace(join(), member_id=member_id), 0))

    assert rejoins(E.ILLEGAL_GENERATION, "a") == []
    assert rejoins(E.ILLEGAL_GENERATION, "") == ["classic-joins"]
    assert rejoins(E.UNKNOWN_MEMBER_ID, "") == []
    assert rejoins(E.UNKNOWN_MEMBER_ID, "a") == ["classic-joins"]


def test_a_new_member_joins_under_the_id_that_it_was_given():
    member = sender()
    asked = join()
    assert names(member.sends(asked, 0)) == []
    required = classic.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id="a")
    member.receives(asked, required, 0)
    member.moved(S.UNJOINED, 0)
    again = join()
    assert names(member.sends(again, 0)) == ["classic-joins"]
    member.receives(again, required, 0)
    member.moved(S.STALE, 0)
    member.moved(S.UNJOINED, 0)
    assert names(member.sends(join(), 0)) == []


def happened(member: ClassicSender, what: str) -> None:
    asked = beat()
    if what in ("rebalance", "nothing"):
        assert names(member.sends(asked, 0)) == []
        code = E.REBALANCE_IN_PROGRESS if what == "rebalance" else E.NONE
        member.receives(asked, classic.HeartbeatResponse(error_code=code), 0)
    elif what == "revoked":
        member.callback("revoked", "end", [])


@pytest.mark.parametrize("what", ["nothing", "rebalance", "revoked", "subscribed", "long ago"])
def test_a_member_joins_again_for_a_reason(what):
    member = in_generation(3)
    happened(member, "revoked" if what == "long ago" else what)
    asked = msgspec.structs.replace(join(), member_id="a")
    if what == "long ago":
        member.moved(S.UNJOINED, 0)
        member.rejoins()
        assert names(member.sends(asked, 0)) == []
        member.receives(asked, classic.JoinGroupResponse(generation=4, member_id="a"), 0)
        member.moved(S.COMPLETING_REBALANCE, 0)
    if what == "subscribed":
        protocol = classic.JoinGroupProtocol("range", said(topics=("t", "u")))
        asked = msgspec.structs.replace(asked, protocols=(protocol,))
    member.moved(S.STABLE, 0)
    member.moved(S.UNJOINED, 0)
    member.rejoins()
    assert names(member.sends(asked, 0)) == (["classic-joins"] if what in ("nothing", "long ago") else [])


@pytest.mark.parametrize("changes", [False, True])
def test_a_member_may_join_again_after_topics_have_changed(changes):
    checker, found = ClassicMembers(), []
    checker.attach(world_of_members(), lambda invariant, message, rule="": found.append(invariant))
    checker.on_member_state("m", ClassicMemberEvent.SUBSCRIBED, S.UNSUBSCRIBED, S.UNJOINED, 0)
    first = join()
    checker.on_member_request("m", first, 0)
    checker.on_member_response("m", first, classic.JoinGroupResponse(generation=1, member_id="a"), 0)
    if changes:
        checker.on_topic("t", "grown", 4, 0)
    checker.on_member_state("m", ClassicMemberEvent.REJOIN, S.STABLE, S.UNJOINED, 0)
    checker.on_member_request("m", msgspec.structs.replace(join(), member_id="a"), 0)
    assert found == ([] if changes else ["classic-joins"])


def test_an_answer_that_comes_while_the_coordinator_is_looked_for_starts_no_clock():
    member = in_generation(3)
    asked = beat()
    assert names(member.sends(asked, 3_000_000)) == []
    assert names(member.search(30_000_000, 3_000_500)) == []
    member.receives(asked, classic.HeartbeatResponse(), 3_001_000)
    assert names(member.sends(beat(), 30_000_000)) == []
    member.moved(S.FENCED, 9_000_000)
    assert names(member.sends(beat(), 9_000_000)) == ["one-in-flight", "epoch-as-answered"]


def test_a_member_that_sends_no_heartbeat_at_all_is_flagged():
    member = in_generation(3)
    assert names(member.sends(sync(3), 1_000_000)) == []
    assert names(member.silent(3_850_000)) == []
    assert names(member.silent(3_851_000)) == ["heartbeats-go-on"]


def test_a_group_has_not_settled_while_nobody_runs_for_its_members():
    found = list(unsettled_classic(group(), {}, TopicsImage(), {}))
    assert [name for name, _ in found] == ["gone-members", "gone-members"]
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
    world = SimpleNamespace(group_id="g", members={}, topics=topic_of(size), settling_ms=0)
    checker = Liveness(lambda host: False)
    checker.attach(cast("WorldView", world), lambda invariant, message, rule="": found.append(invariant))
    checker.on_faults_end(0)
    back = classic.JoinGroupResponse(generation=generation, skip_assignment=True)
    join = classic.JoinGroupRequest(
        group_id="g", protocol_type="consumer", protocols=(), session_timeout_ms=1, rebalance_timeout_ms=1
    )
    checker.on_coordinator_step("b", join, Outcome(effects=(ParkedResponse(token=1, response=back),)), 1)
    world.active = SimpleNamespace(image=topic_of(6), classic=SimpleNamespace(groups={"g": made}))
    checker.on_end(2)
    assert ("progress" in found) == broken


def topic_of(partitions):
    return TopicsImage.of([Topic(topic_id="T" * 22, name="t", partitions=partitions)])
