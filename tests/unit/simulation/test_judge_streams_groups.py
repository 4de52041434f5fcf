"""What the coordinator of a streams group may do: real steps, and the same with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.epoch_groups import MemberContact
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import consumer, offsets, streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached, Event, Outcome, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.streams.coordination import StreamsCoordination
from fencepost.simulation.streams.targets import ExpectedTopics, TargetInput, targets

Tamper: TypeAlias = Callable[[Outcome], Outcome]
TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("orders",), (), (streams.TopicInfo("store"),)),))
TASKS = 4
A, B, C = "a", "b", "c"


def topics(*names: str) -> TopicsImage:
    return TopicsImage.of(Topic(topic_id=name, name=name, partitions=TASKS) for name in names)


def same(outcome: Outcome) -> Outcome:
    return outcome


def nothing_happens(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, records=(), effects=())


def replied(**changes: Any) -> Tamper:
    """The same outcome, but the reply differs in this."""

    def tamper(outcome: Outcome) -> Outcome:
        assert isinstance(outcome.reply, streams.StreamsGroupHeartbeatResponse)
        return msgspec.structs.replace(outcome, reply=msgspec.structs.replace(outcome.reply, **changes))

    return tamper


def recorded(kind: type[Any], change: Callable[[Any], Any]) -> Tamper:
    """The same outcome, but records of that kind hold something else."""

    def tamper(outcome: Outcome) -> Outcome:
        assert any(isinstance(record.value, kind) for record in outcome.records)
        records = tuple(
            Record(record.key, change(record.value)) if isinstance(record.value, kind) else record
            for record in outcome.records
        )
        return msgspec.structs.replace(outcome, records=records)

    return tamper


def given(tasks: streams.Tasks) -> Tamper:
    """The member is given these tasks."""
    epochs = {one: dict.fromkeys(numbers, 2) for one, numbers in tasks.active.items()}
    return recorded(
        StreamsGroupCurrentMemberAssignmentValue,
        lambda value: msgspec.structs.replace(value, assigned=tasks, assignment_epochs=epochs),
    )


def aimed(tasks: streams.Tasks) -> Tamper:
    """Each target that is written is this one."""
    return recorded(
        StreamsGroupTargetAssignmentMemberValue, lambda value: msgspec.structs.replace(value, tasks=tasks)
    )


class Scene:
    """A coordinator whose every step is judged. Each member is a process of its own."""

    def __init__(
        self, standbys: int = 0, names: Sequence[str] = ("orders", "store"), release: str = "4.3"
    ) -> None:
        self.config = GroupCoordinatorConfig(
            group_streams_num_standby_replicas=standbys,
            group_streams_assignment_interval_ms=0,
            release_version=ReleaseVersion(release),
        )
        self.live = GroupCoordinator(self.config)
        self.journal = MemoryJournal()
        self.now_ms = 0
        self.found: list[str] = []
        self.epochs: dict[str, int] = {}
        self.judge = StreamsCoordination()
        world: Any = SimpleNamespace(
            cluster=SimpleNamespace(
                brokers={"one": SimpleNamespace(coordinator=self.live)},
                active=self.live,
                journal=self.journal,
            ),
            config=self.config,
            loop=SimpleNamespace(now_us=0),
            scenario=SimpleNamespace(group=SimpleNamespace(id="g", protocol="streams")),
        )
        self.judge.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.step(TopicsChanged(image=topics(*names)))

    def step(self, event: Event, tamper: Tamper = same) -> Outcome:
        outcome = tamper(self.live.handle(event, self.now_ms))
        if outcome.records:
            self.journal.append(outcome.records)
            self.live.apply_batch(outcome.records)
        self.judge.on_coordinator_step("one", event, outcome, self.now_ms * 1_000)
        return outcome

    def beat(
        self,
        member: str,
        owned: streams.Tasks | None = None,
        tamper: Tamper = same,
        epoch: int | None = None,
        **more: Any,
    ) -> list[str]:
        """Return what is reported of one heartbeat; a member without an epoch joins."""
        reported = len(self.found)
        at = self.epochs.get(member, 0) if epoch is None else epoch
        joins = at == 0
        has = streams.NO_TASKS if joins else owned
        request = streams.StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=at,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=TOPOLOGY if joins else None,
            process_id=f"process-{member}" if joins else None,
            active_tasks=None if has is None else has.active,
            standby_tasks=None if has is None else has.standby,
            warmup_tasks=None if has is None else has.warmup,
            **more,
        )
        reply = self.step(request, tamper).reply
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        self.epochs[member] = reply.member_epoch
        return self.found[reported:]

    def wait(self, seconds: float, tamper: Tamper = same) -> list[str]:
        """Return what is reported while time passes."""
        reported = len(self.found)
        self.now_ms += round(seconds * 1_000)
        while (due := self.live.next_deadline()) is not None and due <= self.now_ms:
            self.step(DeadlineReached(due), tamper)
            tamper = same
        return self.found[reported:]

    def tasks(self, member: str) -> streams.Tasks:
        return self.live.streams.groups["g"].members[member].assigned

    def formed(self) -> Scene:
        """Two members have joined, and have their tasks."""
        for member in (A, B):
            self.beat(member)
        self.wait(3)
        for _ in range(2):
            for member in (A, B):
                self.beat(member, self.tasks(member))
        assert self.found == []
        assert sum(len(self.tasks(one).active["0"]) for one in (A, B)) == TASKS
        return self


@pytest.fixture
def scene() -> Scene:
    return Scene().formed()


def test_a_life_without_fault_is_in_order(scene: Scene) -> None:
    scene.beat(C)
    for _ in range(3):
        for member in (A, B, C):
            scene.beat(member, scene.tasks(member))
    scene.beat(A, epoch=-1)
    scene.wait(30)
    scene.beat(B, scene.tasks(B))
    scene.beat(A, streams.NO_TASKS, epoch=7)
    scene.wait(20)
    scene.judge.on_end(scene.now_ms * 1_000)
    assert scene.found == []
    assert set(scene.live.streams.groups["g"].members) == {B}


def test_standby_tasks_are_in_order() -> None:
    scene = Scene(standbys=1).formed()
    scene.judge.on_end(scene.now_ms * 1_000)
    assert scene.found == []
    assert all(scene.tasks(one).standby for one in (A, B))


@pytest.mark.parametrize(
    ("tamper", "invariant"),
    [
        (replied(member_epoch=9), "streams-replies"),
        (replied(tasks=streams.NO_TASKS), "streams-replies"),
        (replied(status=(streams.Status(streams.StatusCode.SHUTDOWN_APPLICATION, ""),)), "streams-replies"),
        (replied(error_code=ErrorCode.FENCED_MEMBER_EPOCH), "streams-answers"),
        (replied(error_code=ErrorCode.UNKNOWN_MEMBER_ID), "streams-answers"),
    ],
)
def test_a_wrong_reply_is_found(scene: Scene, tamper: Tamper, invariant: str) -> None:
    assert scene.beat(A, tamper=tamper) == [invariant]


def test_a_reply_that_omits_the_tasks_is_found() -> None:
    scene = Scene()
    scene.beat(A)
    scene.wait(3)
    assert scene.beat(A, streams.NO_TASKS, replied(tasks=None)) == ["streams-replies"]


def test_a_join_that_is_refused_is_found(scene: Scene) -> None:
    tamper = replied(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert set(scene.beat(C, tamper=lambda outcome: tamper(nothing_happens(outcome)))) == {"streams-answers"}


def test_a_shutdown_that_is_not_passed_on_is_found(scene: Scene) -> None:
    assert scene.beat(A, shutdown_application=True) == []
    assert scene.beat(B) == []
    assert scene.beat(B, tamper=replied(status=())) == ["streams-replies"]


def test_topics_that_are_not_created_are_found() -> None:
    scene = Scene(names=("orders",))
    assert scene.beat(A) == []
    assert scene.beat(A, streams.NO_TASKS, nothing_happens) == ["streams-topics"]


def test_an_epoch_that_is_raised_for_nothing_is_found(scene: Scene) -> None:
    group = scene.live.streams.groups["g"]

    def raised(outcome: Outcome) -> Outcome:
        record = group.metadata_record(group.group_epoch + 1, group.metadata_hash, 0, {})
        assert isinstance(record.value, StreamsGroupMetadataValue)
        configs = {"num.standby.replicas": "0"}
        value = msgspec.structs.replace(record.value, last_assignment_configs=configs)
        return msgspec.structs.replace(outcome, records=(Record(record.key, value),))

    assert "streams-epochs" in scene.beat(A, scene.tasks(A), raised)


def test_a_member_that_changes_no_epoch_is_found(scene: Scene) -> None:
    tamper = recorded(
        StreamsGroupMetadataValue, lambda value: msgspec.structs.replace(value, epoch=value.epoch - 1)
    )
    assert "streams-epochs" in scene.beat(C, tamper=tamper)


@pytest.mark.parametrize(
    ("tasks", "invariants"),
    [
        (streams.Tasks({"0": (0, 1, 2)}), {"streams-target"}),
        (streams.Tasks({"0": (9,)}), {"streams-target"}),
        (streams.Tasks({}, {"0": (0,)}), {"streams-target", "streams-standby", "streams-sticky"}),
    ],
)
def test_a_wrong_target_is_found(tasks: streams.Tasks, invariants: set[str]) -> None:
    scene = Scene()
    for member in (A, B):
        scene.beat(member)
    assert set(scene.wait(3, aimed(tasks))) & invariants == invariants - {"streams-sticky"}


def computed(
    before: dict[str, streams.Tasks], after: dict[str, streams.Tasks], standbys: int = 0
) -> list[str]:
    """What is reported of a new target of members that were there before."""
    members = {one: StreamsGroupMember(member_id=one, process_id=one) for one in after}
    expected = ExpectedTopics({"0": TASKS}, frozenset({"0"}), frozenset(), None)
    given = TargetInput(members, before, members, after, expected, standbys)
    return [invariant for invariant, _ in targets(given)]


def test_a_target_that_stays_is_in_order() -> None:
    both = {A: streams.Tasks({"0": (0, 1)}, {"0": (2, 3)}), B: streams.Tasks({"0": (2, 3)}, {"0": (0, 1)})}
    assert computed(both, both, standbys=1) == []


def test_tasks_that_move_for_nothing_are_found() -> None:
    before = {A: streams.Tasks({"0": (0, 1)}), B: streams.Tasks({"0": (2, 3)})}
    assert set(computed(before, {A: before[B], B: before[A]})) == {"streams-sticky"}


def test_standby_tasks_that_move_for_nothing_are_found() -> None:
    active = {A: {"0": (0, 1)}, B: {"0": (2,)}, C: {"0": (3,)}}
    standby = {A: {"0": (2,)}, B: {"0": (0, 3)}, C: {"0": (1,)}}
    moved = {A: {"0": (3,)}, B: {"0": (0,)}, C: {"0": (1, 2)}}
    before = {one: streams.Tasks(tasks, standby[one]) for one, tasks in active.items()}
    after = {one: streams.Tasks(tasks, moved[one]) for one, tasks in active.items()}
    assert computed(before, after, standbys=1) == ["streams-sticky"]


def test_a_standby_task_may_move_to_a_process_that_has_less_to_do() -> None:
    active = {A: {"0": (0, 1)}, B: {"0": (2,)}, C: {"0": (3,)}}
    before = {
        A: streams.Tasks(active[A], {"0": (2, 3)}),
        B: streams.Tasks(active[B], {"0": (0, 1)}),
        C: streams.Tasks(active[C]),
    }
    after = {A: streams.Tasks(active[A], {"0": (3,)}), B: before[B], C: streams.Tasks(active[C], {"0": (2,)})}
    assert computed(before, after, standbys=1) == []


def test_a_target_that_is_put_off_for_nothing_is_found(scene: Scene) -> None:
    assert "streams-delays" in scene.beat(C, tamper=without_target)


def without_target(outcome: Outcome) -> Outcome:
    records = tuple(each for each in outcome.records if "TargetAssignment" not in type(each.key).__name__)
    return msgspec.structs.replace(outcome, records=records)


def test_a_process_that_stands_by_for_itself_is_found() -> None:
    both = {A: streams.Tasks({"0": (0, 1)}, {"0": (0, 1)}), B: streams.Tasks({"0": (2, 3)}, {"0": (2, 3)})}
    assert set(computed(both, both, standbys=1)) == {"streams-standby"}


def test_a_standby_task_that_is_left_out_is_found() -> None:
    scene = Scene(standbys=1)
    for member in (A, B):
        scene.beat(member)
    tamper = recorded(
        StreamsGroupTargetAssignmentMemberValue,
        lambda value: msgspec.structs.replace(value, tasks=streams.Tasks(value.tasks.active)),
    )
    assert set(scene.wait(3, tamper)) == {"streams-standby"}


def test_a_task_of_two_members_is_found() -> None:
    scene = Scene()
    for member in (A, B):
        scene.beat(member)
    scene.wait(3)
    scene.beat(A, streams.NO_TASKS)
    found = scene.beat(B, streams.NO_TASKS, given(scene.tasks(A)))
    assert {"streams-one-owner", "streams-reconciles"} <= set(found)


def test_a_member_that_is_given_nothing_is_found() -> None:
    scene = Scene()
    scene.beat(A)
    scene.wait(3)
    assert "streams-reconciles" in scene.beat(A, streams.NO_TASKS, given(streams.NO_TASKS))


def test_a_member_that_is_removed_too_soon_is_found(scene: Scene) -> None:
    scene.now_ms += 40_000
    scene.beat(A, scene.tasks(A))
    scene.beat(B, scene.tasks(B))
    for member in (A, B):
        scene.live.streams.soft.groups["g"].contacts[member].last_ms = 0
    assert set(scene.wait(10)) == {"streams-sessions"}


def test_a_member_that_is_removed_too_late_is_found(scene: Scene) -> None:
    scene.now_ms += 50_000
    assert "streams-sessions" in scene.beat(A, scene.tasks(A))


def test_a_first_target_that_does_not_wait_is_found() -> None:
    scene = Scene()
    scene.beat(A)
    scene.live.streams.soft.timers.clear()
    assert "streams-delays" in scene.beat(A, streams.NO_TASKS)


def test_a_first_target_that_does_not_come_is_found() -> None:
    scene = Scene()
    scene.beat(A)
    scene.now_ms += 6_000
    assert set(scene.beat(A, streams.NO_TASKS)) == {"streams-delays"}


def test_nothing_is_due_to_a_group_whose_first_members_have_left() -> None:
    scene = Scene()
    scene.beat(A)
    assert scene.beat(A, streams.NO_TASKS, epoch=-1) == []
    scene.now_ms += 60_000
    scene.judge.on_end(scene.now_ms * 1_000)
    assert scene.found == []


def test_what_is_kept_of_gone_members_is_found(scene: Scene) -> None:
    scene.live.streams.soft.groups["g"].contacts["gone"] = MemberContact(1)
    scene.judge.on_end(scene.now_ms * 1_000)
    assert scene.found == ["streams-bookkeeping"]


def test_a_standby_task_becomes_active_only_after_its_release() -> None:
    """The member has confirmed that release in the same heartbeat: the task follows in the next one."""

    def released() -> tuple[Scene, streams.Tasks]:
        scene = Scene(standbys=1).formed()
        scene.beat(B, epoch=-1)
        has = scene.tasks(A)
        assert scene.beat(A, has) == []
        return scene, msgspec.structs.replace(has, standby={})

    def at_once(value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsGroupCurrentMemberAssignmentValue:
        everything = streams.Tasks({"0": tuple(range(TASKS))})
        epochs = {"0": dict.fromkeys(range(TASKS), value.member_epoch)}
        return msgspec.structs.replace(
            value, assigned=everything, assignment_epochs=epochs, state=StreamsGroupMemberState.STABLE.code
        )

    scene, kept = released()
    assert scene.beat(A, kept) == []
    assert scene.tasks(A) == kept
    assert scene.beat(A, kept) == []
    assert scene.tasks(A) == streams.Tasks({"0": tuple(range(TASKS))})
    scene, kept = released()
    tamper = recorded(StreamsGroupCurrentMemberAssignmentValue, at_once)
    assert "streams-reconciles" in scene.beat(A, kept, tamper)


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_a_member_that_missed_its_tasks_joins_again(received: bool, joins: bool) -> None:
    scene = Scene()
    scene.beat(A)
    scene.wait(3)
    receives(scene, epoch=0, tasks={})
    scene.beat(A, streams.NO_TASKS)
    if received:
        receives(scene, epoch=1, tasks={"0": (0, 1, 2, 3)})
    receives(scene, epoch=2, tasks=None, error=ErrorCode.FENCED_MEMBER_EPOCH if joins else ErrorCode.NONE)
    assert scene.found == ([] if received or joins else ["streams-reconciles"])


@pytest.mark.parametrize(("last", "found"), [(-1, []), (0, []), (1, ["streams-reconciles"])])
def test_a_member_that_joins_or_leaves_ignores_an_earlier_response(last: int, found: list[str]) -> None:
    scene = Scene()
    scene.beat(A)
    for epoch in (1, last):
        request = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id=A, member_epoch=epoch)
        scene.judge.on_member_request("a", request, scene.now_ms * 1_000)
    receives(scene, epoch=1, tasks=None)
    assert scene.found == found


def receives(
    scene: Scene, *, epoch: int, tasks: dict[str, tuple[int, ...]] | None, error: ErrorCode = ErrorCode.NONE
) -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id=A, member_epoch=epoch)
    response = consumer.ConsumerGroupHeartbeatResponse(error_code=error, assignment=tasks)
    scene.judge.on_member_response("a", request, response, scene.now_ms * 1_000)


def commit(member: str, epoch: int, partition: int = 0) -> offsets.OffsetCommitRequest:
    return offsets.OffsetCommitRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        offsets={TopicPartition("orders", partition): offsets.OffsetAndMetadata(offset=7)},
        topic_ids={"orders": "orders"},
    )


@pytest.mark.parametrize(
    ("member", "epoch", "code"),
    [
        (A, 3, ErrorCode.STALE_MEMBER_EPOCH),
        (A, 9, ErrorCode.NONE),
        (C, 3, ErrorCode.NONE),
    ],
)
def test_a_commit_that_is_answered_wrongly_is_found(
    scene: Scene, member: str, epoch: int, code: ErrorCode
) -> None:
    right = commit(member, epoch)
    scene.step(right)
    assert scene.found == []
    errors = dict.fromkeys(right.offsets, code)
    scene.step(right, lambda outcome: Outcome(reply=offsets.OffsetCommitResponse(errors=errors)))
    assert scene.found == ["streams-commits"]


def test_a_fetch_that_gives_something_else_is_found(scene: Scene) -> None:
    scene.step(commit(A, 3))
    partition = TopicPartition("orders", 0)
    fetch = offsets.OffsetFetchRequest(group_id="g", member_id=A, member_epoch=3, partitions=(partition,))
    scene.step(fetch)
    scene.step(msgspec.structs.replace(fetch, member_epoch=2))
    assert scene.found == []
    other = offsets.OffsetFetchResponse(
        group_id="g", offsets={partition: offsets.OffsetAndMetadata(offset=8)}
    )
    scene.step(fetch, lambda outcome: Outcome(reply=other))
    assert scene.found == ["streams-commits"]


def test_the_map_of_endpoints_is_judged() -> None:
    scene = Scene()
    for member in (A, B):
        scene.beat(member, user_endpoint=streams.Endpoint(member, 80))
    scene.wait(3)
    for member in (A, B):
        scene.beat(member, streams.NO_TASKS)
    assert scene.beat(A, scene.tasks(A)) == []
    assert scene.beat(A, scene.tasks(A), replied(partitions_by_endpoint=None)) == ["streams-endpoints"]
    assert scene.beat(A, scene.tasks(A), replied(partitions_by_endpoint=())) == ["streams-endpoints"]
    assert scene.beat(A, scene.tasks(A), replied(endpoint_information_epoch=0)) == ["streams-endpoints"]


def test_a_journal_that_can_not_be_read_is_found(scene: Scene) -> None:
    scene.journal.append((Record(scene.live.streams.groups["g"].metadata_record(9, 9, 9, {}).key, None),))
    scene.judge.on_end(scene.now_ms * 1_000)
    assert scene.found == ["journal-replay"]


def test_a_heartbeat_whose_records_are_not_written_is_in_order(scene: Scene) -> None:
    """It counts as a sign of life, and its endpoint may have changed the map, which no record holds."""
    scene.beat(A, scene.tasks(A), endpoint_information_epoch=0)
    scene.wait(30)
    refused = streams.StreamsGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    request = streams.StreamsGroupHeartbeatRequest(group_id="g", member_id=A, member_epoch=scene.epochs[A])
    outcome = scene.live.handle(request, scene.now_ms)
    assert outcome.records == ()
    failed = msgspec.structs.replace(outcome, reply=refused)
    scene.judge.on_coordinator_step("one", request, failed, scene.now_ms * 1_000)
    scene.live.streams.soft.groups["g"].endpoint_epoch += 3
    scene.beat(B, scene.tasks(B), endpoint_information_epoch=3)
    scene.wait(20)
    scene.beat(B, scene.tasks(B), endpoint_information_epoch=3)
    assert scene.found == []
    assert set(scene.live.streams.groups["g"].members) == {A, B}


def test_nothing_is_late_while_the_log_refuses_records(scene: Scene) -> None:
    """And not at once when it takes them again: a removal is tried again half a second later."""
    begun, ended, late = [scene.now_ms + ms for ms in (40_000, 50_000, 53_000)]
    scene.judge.on_fault("append-failure", "begin", "", begun * 1_000)
    group = scene.live.streams.groups["g"]
    scene.judge._late(group, ended)
    scene.judge.on_fault("append-failure", "end", "", ended * 1_000)
    scene.judge._late(group, ended + 1_000)
    assert scene.found == []
    scene.judge._late(group, late)
    assert set(scene.found) == {"streams-sessions"}


def test_a_commit_that_the_log_refuses_is_in_order(scene: Scene) -> None:
    request = offsets.OffsetCommitRequest(
        group_id="g",
        member_id=A,
        member_epoch=scene.epochs[A],
        offsets={TopicPartition("orders", 0): offsets.OffsetAndMetadata(offset=1)},
    )
    errors = dict.fromkeys(request.offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    outcome = Outcome(reply=offsets.OffsetCommitResponse(errors=errors))
    scene.judge.on_coordinator_step("one", request, outcome, scene.now_ms * 1_000)
    assert scene.found == []


def test_another_group_is_none_of_its_business(scene: Scene) -> None:
    """A heartbeat to it would otherwise have to be refused as one of a stranger."""
    request = streams.StreamsGroupHeartbeatRequest(group_id="another", member_id="x", member_epoch=3)
    scene.step(request)
    assert scene.found == []


def test_a_description_is_judged(scene: Scene) -> None:
    request = streams.StreamsGroupDescribeRequest(group_ids=("g",))
    scene.step(request)
    assert scene.found == []
    scene.step(request, lambda outcome: msgspec.structs.replace(outcome, reply=NOTHING_DESCRIBED))
    assert scene.found == ["streams-described"]


NOTHING_DESCRIBED = streams.StreamsGroupDescribeResponse(groups=())


@pytest.mark.parametrize(("release", "epochs"), [("4.3", [1, 2]), ("4.4", [1, 1])])
def test_a_member_that_joins_again_is_news_only_until_4_4(release: str, epochs: list[int]) -> None:
    scene = Scene(release=release)
    where = {"user_endpoint": streams.Endpoint("a", 1), "endpoint_information_epoch": -1}
    told = []
    for member in (A, B):
        scene.beat(member)
    scene.wait(3)
    for _ in range(2):
        scene.beat(A, epoch=0, **where)
        told.append(scene.live.streams.soft.groups["g"].endpoint_epoch)
    assert scene.found == []
    assert told == epochs


@pytest.mark.parametrize("field", ["process_id", "rack_id", "client_id", "client_tags", "topology_epoch"])
def test_what_a_member_says_of_itself_is_stored(field: str) -> None:
    scene = Scene()
    said = {"rack_id": "r", "client_id": "c", "client_tags": {"zone": "z"}}
    assert scene.beat(A, **said) == []
    other = {"client_tags": {}, "topology_epoch": 7}.get(field, "other")
    tamper = recorded(
        StreamsGroupMemberMetadataValue, lambda value: msgspec.structs.replace(value, **{field: other})
    )
    assert "streams-bookkeeping" in scene.beat(B, tamper=tamper, **said)


def test_of_several_standby_tasks_only_the_first_has_to_stay() -> None:
    """Kafka 4.3 does not look at a second member that stood by (KAFKA-20899)."""
    names = [A, B, C, "d"]

    def standing_by(*steps: int) -> dict[str, streams.Tasks]:
        found: dict[str, list[int]] = {name: [] for name in names}
        for task in range(TASKS):
            for step in steps:
                found[names[(task + step) % len(names)]].append(task)
        return {
            name: streams.Tasks({"0": (n,)}, {"0": tuple(sorted(found[name]))})
            for n, name in enumerate(names)
        }

    assert computed(standing_by(1, 2), standing_by(1, 3), standbys=2) == []
    assert computed(standing_by(1), standing_by(3), standbys=1) == ["streams-sticky"]


def test_a_leave_that_is_not_written_is_no_sign_of_life(scene: Scene) -> None:
    scene.wait(30)
    scene.beat(B, scene.tasks(B))
    leave = streams.StreamsGroupHeartbeatRequest(group_id="g", member_id=A, member_epoch=-1)
    refused = streams.StreamsGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    scene.judge.on_coordinator_step("one", leave, Outcome(reply=refused), scene.now_ms * 1_000)
    scene.wait(20)
    assert set(scene.live.streams.groups["g"].members) == {B}
    assert scene.found == []


def test_a_member_keeps_the_epoch_from_which_it_moved(scene: Scene) -> None:
    """A commit or heartbeat whose response was lost comes with that one."""
    scene.beat(C)
    before = scene.epochs[A]
    forgotten = recorded(
        StreamsGroupCurrentMemberAssignmentValue,
        lambda value: msgspec.structs.replace(value, previous_member_epoch=0),
    )
    assert "streams-epochs" in scene.beat(A, scene.tasks(A), tamper=forgotten)
    assert scene.epochs[A] > before


@pytest.mark.parametrize("raised", [0, 1, 2])
def test_a_revocation_that_follows_another_raises_the_epoch_by_one(raised: int) -> None:
    scene = Scene()
    scene.beat(A)
    scene.wait(3)
    scene.beat(A, streams.NO_TASKS)
    scene.beat(B)
    assert scene.beat(A, scene.tasks(A)) == []
    kept, before = scene.tasks(A), scene.epochs[A]
    for another in (C, "d"):
        scene.beat(another)
    changed = recorded(
        StreamsGroupCurrentMemberAssignmentValue,
        lambda value: msgspec.structs.replace(value, member_epoch=before + raised),
    )
    found = scene.beat(A, kept, changed)
    assert scene.live.streams.groups["g"].members[A].pending_revocation
    assert ("streams-epochs" in found) is (raised != 1)
