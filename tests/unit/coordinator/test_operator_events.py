"""What a shell that plays with time tells a coordinator: members are heard, or gone, and groups rebalance."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    MemberFenced,
    MemberHeard,
    RebalanceRequested,
    SessionEnded,
)
from tests.hosting import HostedScene, steps_due
from tests.unit.coordinator.classic.conftest import ClassicScene
from tests.unit.coordinator.conftest import Scene
from tests.unit.coordinator.streams_groups.conftest import StreamsScene


class Members(NamedTuple):
    """A group of two members, whatever its kind."""

    scene: HostedScene
    group: Any
    one: str
    two: str
    session_ms: int

    def tell(self, event: type[Any], **names: str) -> Any:
        return self.scene.process(event(**{"group_id": self.group.group_id, **names}))


def joined(scene: Any, topic: str) -> Members:
    scene.topics(**{topic: 4})
    scene.join("one")
    scene.join("two")
    return Members(scene, scene.group, "one", "two", 45_000)


def of_consumers() -> Members:
    return joined(Scene(), "x")


def of_streams() -> Members:
    return joined(StreamsScene(), "in")


def of_classic_members() -> Members:
    classic = ClassicScene(Scene())
    one, two = classic.stable(2)
    return Members(classic.scene, classic.group, one, two, 10_000)


@pytest.fixture(params=[of_consumers, of_streams, of_classic_members])
def members(request: pytest.FixtureRequest) -> Members:
    found: Members = request.param()
    return found


def test_who_is_heard_lives_on_and_others_do_not(members: Members) -> None:
    members.scene.now_ms += members.session_ms - 1
    assert members.tell(MemberHeard, member_id=members.one) is NOTHING
    members.scene.after(1)
    assert list(members.group.members) == [members.one]
    steps_due(members.scene.runtime, members.scene.now_ms + members.session_ms - 1)
    assert not members.group.members


def test_a_session_that_is_ended_takes_the_member_with_it(members: Members) -> None:
    outcome = members.tell(SessionEnded, member_id=members.one)
    fenced = [effect for effect in outcome.effects if isinstance(effect, MemberFenced)]
    assert fenced == [MemberFenced(group_id=members.group.group_id, member_id=members.one, reason="session")]
    assert list(members.group.members) == [members.two]
    assert members.tell(SessionEnded, member_id=members.one) is NOTHING


def test_what_is_not_there_is_left_alone(members: Members) -> None:
    for event in (MemberHeard, SessionEnded):
        assert members.tell(event, member_id="nobody") is NOTHING
        assert members.tell(event, group_id="none", member_id=members.one) is NOTHING
    assert members.tell(RebalanceRequested, group_id="none") is NOTHING


@pytest.mark.parametrize("kind", [of_consumers, of_streams])
def test_a_rebalance_that_is_asked_for_raises_the_epoch_and_moves_nothing(kind: Any) -> None:
    members = kind()
    members.scene.settle("one", "two")
    held = [member.assigned for member in members.group.members.values()]
    members.tell(RebalanceRequested)
    assert members.group.group_epoch == 4
    reply = members.scene.beat("one", 3)
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.NONE, 4)
    assert [member.assigned for member in members.group.members.values()] == held
    for member_id in ("one", "two"):
        members.tell(SessionEnded, member_id=member_id)
    assert members.tell(RebalanceRequested) is NOTHING


def test_a_classic_group_joins_anew() -> None:
    classic = ClassicScene(Scene())
    (one,) = classic.stable(1)
    classic.process(RebalanceRequested(group_id="g"))
    assert classic.beat(one, 1) == "REBALANCE_IN_PROGRESS"
