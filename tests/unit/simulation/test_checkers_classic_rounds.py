"""Classic groups against a second account of them: real steps, and the same with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.migration import downgrade
from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    MemberFenced,
    Outcome,
    ParkedResponse,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import GroupMetadataKey, Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from fencepost.simulation.checkers.classic_rounds import ClassicRounds
from fencepost.simulation.mutants.registry import MUTANTS

E = ErrorCode
SAID = consumer_protocol.write_subscription(consumer_protocol.ConsumerProtocolSubscription(topics=("x",)))
Tamper = Callable[[Outcome], Outcome]


def same(outcome: Outcome) -> Outcome:
    return outcome


def given(*numbers: int) -> bytes:
    return consumer_protocol.write_assignment(
        consumer_protocol.ConsumerProtocolAssignment(partitions={"x": numbers} if numbers else {})
    )


class Scene:
    """A coordinator with a checker that sees its steps, or others in their place."""

    def __init__(self, **settings: Any) -> None:
        self.config = GroupCoordinatorConfig(**settings)
        self.live = GroupCoordinator(self.config)
        self.found: list[str] = []
        self.now_ms = 1_000
        self.tokens = 0
        self.world = SimpleNamespace(
            config=self.config,
            coordinators={"b": SimpleNamespace(coordinator=self.live)},
            journal=SimpleNamespace(failing=False),
        )
        self.checker = ClassicRounds()
        self.checker.attach(self.world, lambda invariant, message, rule="": self.found.append(invariant))
        self.checker.on_coordinator_state("b", "active", self.now_ms * 1_000)
        image = TopicsImage.of([Topic(topic_id="X", name="x", partitions=4)], version=1)
        self.step(TopicsChanged(image=image))

    def step(self, event: Any, tamper: Tamper = same, after_ms: int = 10) -> Outcome:
        """One event. The checker is shown another outcome than the coordinator's, if it is tampered with."""
        self.now_ms += after_ms
        outcome = self.live.handle(event, self.now_ms)
        if self.world.journal.failing and outcome.records:
            outcome = self.live.not_written(event, outcome, E.NOT_LEADER_OR_FOLLOWER, self.now_ms)
        else:
            self.live.apply_batch(outcome.records)
        self.checker.on_coordinator_step("b", event, tamper(outcome), self.now_ms * 1_000)
        return outcome

    def time(self, tamper: Tamper = same) -> Outcome:
        """Let the time come at which the next timer runs out."""
        due = self.live.next_deadline()
        assert due is not None
        return self.step(DeadlineReached(due), tamper, after_ms=due - self.now_ms)

    def join(
        self,
        member_id: str = "",
        tamper: Tamper = same,
        *,
        number: int = 1,
        protocols: tuple[str, ...] = ("range",),
        after_ms: int = 10,
        **fields: Any,
    ) -> Outcome:
        self.tokens += 1
        request = classic.JoinGroupRequest(
            group_id="g",
            protocol_type="consumer",
            protocols=tuple(classic.JoinGroupProtocol(name, SAID) for name in protocols),
            member_id=member_id,
            session_timeout_ms=fields.pop("session_ms", 10_000),
            rebalance_timeout_ms=fields.pop("rebalance_ms", 6_000),
            client_id="c",
            new_member_suffix=str(number),
            token=self.tokens,
            **fields,
        )
        return self.step(request, tamper, after_ms)

    def sync(self, member_id: str, tamper: Tamper = same, generation: int = 1, **given_to: bytes) -> Outcome:
        self.tokens += 1
        return self.step(
            classic.SyncGroupRequest(
                group_id="g",
                generation=generation,
                member_id=member_id,
                assignments={name.replace("_", "-"): data for name, data in given_to.items()},
                token=self.tokens,
            ),
            tamper,
        )

    def beat(self, member_id: str, generation: int = 1, tamper: Tamper = same) -> Outcome:
        request = classic.HeartbeatRequest(group_id="g", generation=generation, member_id=member_id)
        return self.step(request, tamper)

    def leave(self, *members: str, tamper: Tamper = same) -> Outcome:
        each = tuple(LeaveGroupRequest(group_id="g", member_id=member_id) for member_id in members)
        return self.step(LeaveGroupBatchRequest(group_id="g", members=each), tamper)

    def gather(self, *numbers: int, **fields: Any) -> None:
        """Let dynamic members join an empty group, and their first round end."""
        for number in numbers:
            self.join(number=number, **fields)
            self.join(f"c-{number}", number=number, **fields)
        while self.live.classic.groups["g"].state == "PreparingRebalance":
            self.time()

    def stable(self) -> None:
        """A group of `c-1`, its leader, and `c-2`, each with a partition."""
        self.gather(1, 2)
        self.sync("c-2")
        self.sync("c-1", c_1=given(0), c_2=given(1))
        assert self.live.classic.groups["g"].state == "Stable"
        assert self.found == []


def without_answers(outcome: Outcome) -> Outcome:
    """Nobody who waits is answered."""
    return msgspec.structs.replace(outcome, effects=())


def without_records(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, records=())


def replying(**fields: Any) -> Tamper:
    def tamper(outcome: Outcome) -> Outcome:
        reply: Any = outcome.reply
        return msgspec.structs.replace(outcome, reply=msgspec.structs.replace(reply, **fields))

    return tamper


def answering(**fields: Any) -> Tamper:
    """The responses to those who wait have other fields."""

    def tamper(outcome: Outcome) -> Outcome:
        effects = tuple(
            msgspec.structs.replace(each, response=msgspec.structs.replace(each.response, **fields))
            if isinstance(each, ParkedResponse)
            else each
            for each in outcome.effects
        )
        return msgspec.structs.replace(outcome, effects=effects)

    return tamper


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def pair() -> Scene:
    made = Scene()
    made.stable()
    return made


# -- all is right ------------------------------------------------------------------------------------------


def test_a_life_in_which_all_is_right(pair: Scene) -> None:
    pair.beat("c-1")
    pair.beat("c-2", generation=0)
    pair.beat("c-3")
    pair.join(number=3)
    pair.join("c-3", number=3)
    pair.beat("c-1")
    pair.join("c-1")
    pair.join("c-2", number=2)
    pair.sync("c-3", generation=2)
    pair.sync("c-1", generation=2, c_1=given(0), c_2=given(1), c_3=given(2))
    pair.sync("c-2", generation=2)
    commit = OffsetCommitRequest(group_id="g", member_id="c-1", member_epoch=2, offsets={})
    pair.step(commit)
    pair.leave("c-1", "nobody")
    pair.join("c-2", number=2)
    pair.time()  # c-3 does not join
    pair.sync("c-2", generation=3, c_2=given(0, 1))
    for _ in range(3):
        if pair.live.classic.groups["g"].members:
            pair.time()
    group = pair.live.classic.groups["g"]
    assert (group.state, group.generation) == ("Empty", 4)
    assert pair.found == []


def test_a_load_begins_sessions_anew(pair: Scene) -> None:
    again = GroupCoordinator(pair.config)
    again.replay(_journal(pair), pair.now_ms)
    pair.live = again
    pair.world.coordinators["b"] = SimpleNamespace(coordinator=again)
    pair.checker.on_coordinator_state("b", "active", pair.now_ms * 1_000)
    pair.beat("c-1")
    pair.join("c-2", number=2, protocols=("range", "sticky"))
    assert pair.found == []


def _journal(scene: Scene) -> list[Record]:
    return [Record(GroupMetadataKey(name), value) for name, value in scene.live.classic.stored.items()]


def test_what_cannot_be_written_did_not_happen(scene: Scene) -> None:
    scene.world.journal.failing = True
    scene.join()
    scene.world.journal.failing = False
    scene.gather(1, 2)
    scene.sync("c-2")
    scene.world.journal.failing = True
    scene.sync("c-1", c_1=given(0), c_2=given(1))
    scene.world.journal.failing = False
    scene.join("c-1")
    scene.join("c-2", number=2)
    assert scene.live.classic.groups["g"].generation == 2
    assert scene.found == []


# -- classic-rounds -----------------------------------------------------------------------------------------


def test_a_round_that_ends_before_all_have_joined(pair: Scene) -> None:
    def too_soon(outcome: Outcome) -> Outcome:
        told = classic.JoinGroupResponse(generation=2, member_id="c-1", leader="c-1")
        return msgspec.structs.replace(outcome, reply=told)

    pair.join(number=3)
    pair.join("c-3", number=3)
    pair.join("c-1", too_soon)
    assert pair.found == ["classic-rounds"]


def test_a_round_that_does_not_end_when_all_have_joined(pair: Scene) -> None:
    pair.join("c-1")  # the leader joins again: so do all
    pair.join("c-2", without_answers, number=2)
    assert set(pair.found) == {"classic-rounds"}


def test_a_round_that_does_not_end_in_time(pair: Scene) -> None:
    pair.join("c-1")
    pair.now_ms += 6_000
    pair.beat("c-2")
    assert pair.found == ["classic-rounds"]


def test_a_broker_that_stood_still_is_excused(pair: Scene) -> None:
    pair.join("c-1")
    pair.checker.on_fault("broker-pause", "begin", "b", pair.now_ms * 1_000)
    pair.now_ms += 6_000
    pair.beat("c-2")
    assert pair.found == []


def test_a_timer_that_nobody_had_set(pair: Scene) -> None:
    ghost = MemberFenced(group_id="g", member_id="c-2", reason="session")
    pair.checker.on_coordinator_step("b", DeadlineReached(), Outcome(effects=(ghost,)), pair.now_ms * 1_000)
    assert pair.found == ["classic-members"]


def test_first_members_gather_for_as_long_as_more_come() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=2_000)
    scene.join(number=1)
    scene.join("c-1", number=1)
    scene.join(number=2, after_ms=1_000)
    scene.join("c-2", number=2)
    scene.time(lambda outcome: Outcome(effects=(_told(1, "c-1"), _told(2, "c-2"))))
    assert set(scene.found) == {"classic-rounds"}


def _told(token: int, member_id: str) -> ParkedResponse:
    return ParkedResponse(token=token, response=classic.JoinGroupResponse(generation=1, member_id=member_id))


# -- classic-joined -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{"leader": "c-2"}, {"members": ()}, {"generation": 2}, {"protocol_name": "sticky"}]
)
def test_those_who_joined_are_told_the_same(scene: Scene, fields: dict[str, Any]) -> None:
    for number in (1, 2):
        scene.join(number=number)
        scene.join(f"c-{number}", number=number)
    scene.time()  # the second one came in the first one's delay
    scene.time(answering(**fields))
    assert "classic-joined" in scene.found


def test_the_protocol_is_one_that_most_like_best(scene: Scene) -> None:
    for number, names in ((1, ("range", "sticky")), (2, ("sticky", "range")), (3, ("sticky", "range"))):
        scene.join(number=number, protocols=names)
        scene.join(f"c-{number}", number=number, protocols=names)
    scene.time()
    scene.time(answering(protocol_name="range"))
    assert "classic-joined" in scene.found


def test_a_leader_that_came_back_leaves_the_assignment_alone(scene: Scene) -> None:
    scene.join(number=1, instance_id="i")
    scene.time()
    scene.sync("i-1", i_1=given(0))
    scene.join(number=2, instance_id="i")
    assert scene.found == []
    scene.join("", replying(skip_assignment=False), number=3, instance_id="i")
    assert scene.found == ["classic-joined"]


# -- classic-answers ----------------------------------------------------------------------------------------


def test_a_member_joins_with_a_protocol_that_all_share(pair: Scene) -> None:
    assert pair.join(number=3, protocols=("sticky",)).reply.error_code is E.INCONSISTENT_GROUP_PROTOCOL
    assert pair.found == []
    pair.join("", replying(error_code=E.UNKNOWN_MEMBER_ID), number=4, protocols=("sticky",))
    assert pair.found == ["classic-answers"]


def test_each_of_those_who_leave_is_told_the_truth(pair: Scene) -> None:
    def all_left(outcome: Outcome) -> Outcome:
        reply: Any = outcome.reply
        members = tuple(msgspec.structs.replace(each, error_code=E.NONE) for each in reply.members)
        return msgspec.structs.replace(outcome, reply=msgspec.structs.replace(reply, members=members))

    pair.leave("c-1", "nobody", tamper=all_left)
    assert pair.found == ["classic-answers"]


def test_a_heartbeat_of_a_member_that_is_to_join(pair: Scene) -> None:
    pair.join("c-1")
    pair.beat("c-2", tamper=replying(error_code=E.NONE))
    assert pair.found == ["classic-answers"]


def test_a_session_timeout_that_the_broker_does_not_allow(scene: Scene) -> None:
    assert scene.join(session_ms=1).reply.error_code is E.INVALID_SESSION_TIMEOUT
    assert scene.join("stranger").reply.error_code is E.UNKNOWN_MEMBER_ID
    assert scene.found == []
    scene.join("", replying(error_code=E.NONE), session_ms=1)
    assert scene.found == ["classic-answers"]


def test_a_full_group_takes_nobody() -> None:
    scene = Scene(group_max_size=2)
    scene.stable()
    assert scene.join(number=3).reply.error_code is E.GROUP_MAX_SIZE_REACHED
    assert scene.found == []
    scene.join("", replying(error_code=E.MEMBER_ID_REQUIRED, member_id="c-4"), number=4)
    assert scene.found == ["classic-answers"]


# -- classic-synced -----------------------------------------------------------------------------------------


def test_a_member_gets_what_the_leader_sent_for_it(scene: Scene) -> None:
    scene.gather(1, 2)
    scene.sync("c-2")
    scene.sync("c-1", answering(assignment=given(3)), c_1=given(0), c_2=given(1))
    assert scene.found == ["classic-synced"]


def test_a_member_that_asks_later_gets_the_same(pair: Scene) -> None:
    pair.sync("c-2")
    assert pair.found == []
    pair.sync("c-2", replying(assignment=b""))
    assert pair.found == ["classic-synced"]


def test_those_who_wait_are_told_that_a_round_broke_off(scene: Scene) -> None:
    scene.gather(1, 2)
    scene.sync("c-2")
    scene.leave("c-1", tamper=without_answers)
    assert scene.found == ["classic-synced"]


# -- classic-members ----------------------------------------------------------------------------------------


def test_members_that_do_not_sync_are_removed(scene: Scene) -> None:
    scene.gather(1, 2)
    scene.sync("c-2")
    scene.time(lambda outcome: msgspec.structs.replace(outcome, effects=outcome.effects[1:]))
    assert scene.found == ["classic-members"]


def test_a_member_that_is_not_heard_is_removed(pair: Scene) -> None:
    pair.now_ms += 10_000
    pair.step(OffsetCommitRequest(group_id="g", member_id="c-9", member_epoch=1, offsets={}))
    assert "classic-members" in pair.found


# -- classic-record, timers-armed and admin-changes ----------------------------------------------------------


def test_an_assignment_that_is_not_written(scene: Scene) -> None:
    scene.gather(1, 2)
    scene.sync("c-1", without_records, c_1=given(0), c_2=given(1))
    assert scene.found == ["classic-record"]


@pytest.mark.parametrize("commits", [False, True])
def test_a_session_that_a_member_does_not_renew(pair: Scene, commits: bool) -> None:
    def not_renewed(outcome: Outcome) -> Outcome:
        key = GroupTimerKey(GroupTimerKind.SESSION, "g", "c-1")
        pair.live.classic.timers.set(key, pair.now_ms + 5_000)
        return outcome

    offsets = {TopicPartition("x", 0): OffsetAndMetadata(offset=1)}
    commit = OffsetCommitRequest(group_id="g", member_id="c-1", member_epoch=1, offsets=offsets)
    beat = classic.HeartbeatRequest(group_id="g", generation=1, member_id="c-1")
    pair.step(commit)
    pair.step(beat)
    assert pair.found == []
    pair.step(commit if commits else beat, not_renewed)
    assert pair.found == ["timers-armed"]


def test_offsets_of_a_subscribed_topic_stay(pair: Scene) -> None:
    request = OffsetDeleteRequest(group_id="g", partitions=(TopicPartition("x", 0), TopicPartition("x", 9)))
    pair.step(request)
    assert pair.found == []
    pair.step(request, replying(errors={TopicPartition("x", 0): E.NONE, TopicPartition("x", 9): E.NONE}))
    assert pair.found == ["admin-changes"]


def test_only_an_empty_group_is_deleted(pair: Scene) -> None:
    request = DeleteGroupsRequest(group_id="g")
    refused = pair.step(request)
    assert isinstance(refused.reply, DeleteGroupsResponse)
    assert refused.reply.error_code is E.NON_EMPTY_GROUP
    pair.leave("c-1", "c-2")
    assert pair.found == []
    pair.step(request, lambda _: refused)
    assert pair.found == ["admin-changes"]


# -- classic-migrates ---------------------------------------------------------------------------------------


REFUSED = Outcome(reply=ConsumerGroupHeartbeatResponse(error_code=E.GROUP_ID_NOT_FOUND))


def consumer(member_id: str = "new", epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=6_000 if epoch == 0 else -1,
        subscribed_topic_names=("x",) if epoch == 0 else None,
        topic_partitions={} if epoch == 0 else None,
        **fields,
    )


def test_a_group_goes_over_and_back(pair: Scene) -> None:
    pair.step(consumer())
    assert pair.live.groups["g"].members.keys() == {"c-1", "c-2", "new"}
    pair.beat("c-1")
    pair.join("c-1")
    pair.sync("c-1", generation=2)
    pair.join(number=3, protocols=("sticky",))
    pair.step(consumer(epoch=-1))
    assert pair.live.classic.groups["g"].state == "PreparingRebalance"
    pair.join("c-1")
    pair.join("c-2", number=2)
    assert pair.found == []


def test_a_group_that_could_go_over_and_does_not(pair: Scene) -> None:
    before = pair.live.classic.groups["g"]
    pair.step(consumer(), replying(error_code=E.GROUP_ID_NOT_FOUND))
    assert before.members.keys() == {"c-1", "c-2"}
    pair.checker.on_coordinator_step("b", consumer(), REFUSED, pair.now_ms * 1_000)
    assert pair.found == []  # it did, whatever the reply was
    other = Scene()
    other.stable()
    other.checker.on_coordinator_step("b", consumer(), REFUSED, other.now_ms * 1_000)
    assert other.found == ["classic-migrates"]


def test_a_group_that_stays_behind_without_a_member_of_the_newer_protocol(
    pair: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.step(consumer())
    monkeypatch.setattr(downgrade, "may_downgrade", lambda *_, **__: False)
    pair.step(consumer(epoch=-1))
    assert pair.found == ["classic-migrates"]


def test_a_classic_member_of_a_consumer_group_that_keeps_an_expression(
    pair: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.step(consumer())
    pair.beat("c-1")
    with MUTANTS["expression-outlives-its-protocol"].apply():
        group = pair.live.groups["g"]
        kept = msgspec.structs.replace(group.members["c-1"], subscribed_topic_regex="x.*")
        monkeypatch.setitem(group._members, "c-1", kept)
        pair.join("c-1")
    assert "classic-migrates" in pair.found


@pytest.mark.parametrize("code", [E.NONE, E.UNKNOWN_MEMBER_ID])
def test_a_classic_member_of_a_consumer_group_is_told_to_join_again(pair: Scene, code: ErrorCode) -> None:
    pair.step(consumer())
    pair.beat("c-1", tamper=replying(error_code=code))
    assert pair.found == ["classic-answers"]


def test_a_classic_member_of_a_consumer_group_gets_what_is_assigned_to_it(pair: Scene) -> None:
    pair.step(consumer())
    pair.beat("c-1")
    pair.join("c-1")
    generation = pair.live.groups["g"].members["c-1"].member_epoch
    pair.sync(
        "c-1", lambda _: Outcome(reply=classic.SyncGroupResponse(assignment=given(3))), generation=generation
    )
    assert pair.found == ["classic-synced"]
