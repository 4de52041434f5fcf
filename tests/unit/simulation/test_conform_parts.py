"""The parts of a comparison: schedules, symbols, what is compared, and making small what fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.codec.cluster import BrokerVersions
from fencepost.coordinator.codec.offsets import OffsetFetchCall, OffsetFetchGroup
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import classic, cluster, consumer, consumer_protocol
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.protocol.records import ConsumerGroupMetadataKey, Record
from fencepost.simulation.lab.conform.broker import ReferenceBroker, neighbour
from fencepost.simulation.lab.conform.deviations import DEVIATIONS, deviation_of
from fencepost.simulation.lab.conform.equality import comparable, differing
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformGroupView
from fencepost.simulation.lab.conform.exercised import NAMES, exercised
from fencepost.simulation.lab.conform.generate import ScheduleTable, generate
from fencepost.simulation.lab.conform.generate_tables import CLASSIC, CONSUMER, STREAMS
from fencepost.simulation.lab.conform.lockstep import Lockstep
from fencepost.simulation.lab.conform.resolve import UNKNOWN_TOPIC_ID, ResolveContext
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    ClassicBeat,
    ClassicJoinStep,
    ClassicSyncStep,
    CommitStep,
    CreateTopicStep,
    Describe,
    Epoch,
    Fetch,
    Owned,
    Remove,
    Removed,
    Schedule,
    Step,
    Wait,
    schedules_of,
)
from fencepost.simulation.lab.conform.scripts import scripted
from fencepost.simulation.lab.conform.steps import scripts_of, steps
from fencepost.simulation.lab.conform.suite import shrink
from fencepost.simulation.lab.conform.targets import broken_rules

UNREVOKED = ConsumerGroupMemberState.UNREVOKED_PARTITIONS
DOCS = Path(__file__).parents[3] / "docs"


class TestSchedules:
    @pytest.mark.parametrize("table", [CONSUMER, CLASSIC, STREAMS], ids=lambda table: table.kind)
    def test_a_seed_is_one_schedule_and_survives_json(self, table: ScheduleTable) -> None:
        for seed in range(20):
            schedule = generate(table, f"t-{seed}", first_ms=500, interval_ms=1_000)
            assert schedule == generate(table, f"t-{seed}", first_ms=500, interval_ms=1_000)
            assert schedule != generate(table, f"u-{seed}", first_ms=500, interval_ms=1_000)
            assert schedules_of(msgspec.json.encode(schedule), "it") == [schedule]

    def test_defaults_are_left_out(self) -> None:
        assert msgspec.json.encode(Beat(member="A")) == b'{"type":"beat","member":"A"}'

    def test_a_document_of_something_else_is_refused(self) -> None:
        with pytest.raises(FencepostError, match=r"file\.json holds no schedules"):
            schedules_of(b'{"steps": 1}', "file.json")

    def test_only_steps_that_change_topics_need_their_own(self) -> None:
        still = Schedule(name="s", topics={"x": 1}, steps=(Describe(), Wait(ms=1)))
        assert not still.changes_topics
        assert msgspec.structs.replace(
            still, steps=(CreateTopicStep(topic="y", partitions=1),)
        ).changes_topics

    def test_short_sessions_are_waited_for_only_where_a_broker_allows_them(self) -> None:
        quick = GroupCoordinatorConfig(
            group_consumer_min_session_timeout_ms=100, group_min_session_timeout_ms=100
        )
        names = {schedule.name for schedule in scripted(quick)}
        assert names - {s.name for s in scripted(GroupCoordinatorConfig())} == {
            "a session ends",
            "commits keep nobody alive",
            "a static member does not return",
            "a static member returns in time",
            "an expression matches nothing until sessions end",
            "classic: a session ends",
            "classic: a session of an id that was given out ends",
            "migration: the last session of the newer protocol ends",
        }

    def test_a_group_is_filled_only_where_that_is_quick(self) -> None:
        small = GroupCoordinatorConfig(group_consumer_max_size=4)
        (full,) = (schedule for schedule in scripted(small) if schedule.name == "a full group")
        assert sum(isinstance(s, Beat) and s.epoch == 0 for s in full.steps) > 4


class TestScripts:
    def test_words_are_steps(self) -> None:
        text = "A@i1,B joins x,y lost; A beat partial ahead regex=[xy]; C classic_sync 7 gives=C:x:0+1"
        join, other, beat, sync = steps(text)
        assert (join, other) == tuple(
            Beat(
                member=member,
                instance=instance,
                epoch=0,
                owned=Owned.EMPTY,
                names=("x", "y"),
                rebalance_timeout_ms=60_000,
                assignor="range",
                lost=True,
            )
            for member, instance in (("A", "i1"), ("B", None))
        )
        assert beat == Beat(member="A", owned=Owned.PARTIAL, epoch=Epoch.AHEAD, regex="[xy]")
        assert sync == ClassicSyncStep(member="C", generation=7, gives={"C": {"x": (0, 1)}})
        assert steps("remove members=A,B@i1,@i2") == [
            Remove(members=(Removed(member="A"), Removed(member="B", instance="i1"), Removed(instance="i2")))
        ]

    def test_a_script_may_begin_with_another(self) -> None:
        found = scripts_of("# *one\nwait 1\n# two\n*one; commit topics=x:0/y:1+2\n")
        assert found["two"] == [Wait(ms=1), CommitStep(topics={"x": (0,), "y": (1, 2)})]


class TestSymbols:
    """What a member was told decides what its symbols mean."""

    @pytest.fixture
    def situation(self) -> ResolveContext:
        situation = ResolveContext("g", "p-")
        situation.topic_ids["x"] = "X"
        for epoch, assigned in ((2, {"X": (0, 1, 2)}), (3, {"X": (0, 1)}), (5, None)):
            answer = consumer.ConsumerGroupHeartbeatResponse(
                member_id="A", member_epoch=epoch, assignment=assigned
            )
            situation.hear(Beat(member="A"), answer)
        situation.hear(
            Beat(member="B"),
            consumer.ConsumerGroupHeartbeatResponse(member_id="b-id", member_epoch=1, assignment={"X": (2,)}),
        )
        return situation

    @pytest.mark.parametrize(
        ("epoch", "expected"),
        [(Epoch.LAST, 5), (Epoch.PREVIOUS, 3), (Epoch.OLDER, 2), (Epoch.AHEAD, 6), (0, 0), (-2, -2)],
    )
    def test_epochs(self, situation: ResolveContext, epoch: Epoch | int, expected: int) -> None:
        assert situation.call(Beat(member="A", epoch=epoch)).message.member_epoch == expected

    def test_a_member_that_was_told_nothing_is_new(self, situation: ResolveContext) -> None:
        for epoch, expected in ((Epoch.LAST, 0), (Epoch.OLDER, 0), (Epoch.AHEAD, 1)):
            assert situation.call(Beat(member="Z", epoch=epoch)).message.member_epoch == expected

    @pytest.mark.parametrize(
        ("owned", "expected"),
        [
            (Owned.NULL, None),
            (Owned.EMPTY, {}),
            (Owned.ASSIGNED, {"X": (0, 1)}),
            (Owned.PARTIAL, {"X": (1,)}),
            (Owned.BEFORE, {"X": (0, 1, 2)}),
            (Owned.FOREIGN, {"X": (0, 1, 2)}),
            (Owned.UNKNOWN, {"X": (0, 1), UNKNOWN_TOPIC_ID: (0,)}),
        ],
    )
    def test_owned(self, situation: ResolveContext, owned: Owned, expected: Any) -> None:
        assert situation.call(Beat(member="A", owned=owned)).message.topic_partitions == expected

    def test_an_id_that_a_coordinator_made_is_kept(self, situation: ResolveContext) -> None:
        assert situation.call(Beat(member="B")).message.member_id == "b-id"
        assert situation.call(Beat(member="B", member_id="")).message.member_id == ""
        assert situation.call(CommitStep(member="B", topics={"x": (0,)})).message.member_id == "b-id"
        removed = situation.call(Remove(members=(Removed(member="B"),))).message
        assert removed.members[0].member_id == "b-id"

    def test_a_lost_answer_teaches_nothing(self, situation: ResolveContext) -> None:
        answer = consumer.ConsumerGroupHeartbeatResponse(member_id="A", member_epoch=9)
        situation.hear(Beat(member="A", lost=True), answer)
        assert situation.call(Beat(member="A")).message.member_epoch == 5

    def test_an_error_teaches_nothing_and_a_leave_forgets(self, situation: ResolveContext) -> None:
        fenced = consumer.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        situation.hear(Beat(member="A"), fenced)
        assert situation.call(Beat(member="A")).message.member_epoch == 5
        left = consumer.ConsumerGroupHeartbeatResponse(member_id="A", member_epoch=-1)
        situation.hear(Beat(member="A", epoch=-1), left)
        request = situation.call(Beat(member="A", owned=Owned.ASSIGNED)).message
        assert (request.member_epoch, request.topic_partitions) == (0, {})

    def test_topics_and_expressions_get_the_prefix(self, situation: ResolveContext) -> None:
        request = situation.call(Beat(member="A", names=("x",), regex="x|y")).message
        assert request.subscribed_topic_names == ("p-x",)
        assert re.fullmatch(request.subscribed_topic_regex, "p-y")
        assert not re.fullmatch(request.subscribed_topic_regex, "y")
        assert situation.call(Beat(member="A", regex="")).message.subscribed_topic_regex == ""
        assert situation.call(Beat(member="A", regex="x", version=0)).message.subscribed_topic_regex is None

    def test_topics_go_by_id_from_version_10_on(self, situation: ResolveContext) -> None:
        topics = {"x": (0,), "gone": (1,)}
        by_id = situation.call(Fetch(topics=topics, version=10)).message.groups[0].topics
        assert [(topic.name, topic.topic_id) for topic in by_id] == [(None, "X"), (None, UNKNOWN_TOPIC_ID)]
        by_name = situation.call(Fetch(topics=topics, version=9)).message.groups[0].topics
        assert [(topic.name, topic.topic_id) for topic in by_name] == [("p-x", None), ("p-gone", None)]

    def test_all_groups_are_taken_away_in_the_end(self, situation: ResolveContext) -> None:
        situation.call(Describe(group="other"))
        situation.call(Beat(member="A", group=" "))
        assert [call.group_id for call in situation.farewell(())] == ["g", "g-other"]
        leave, *_ = situation.farewell((consumer.LeaveGroupRequest(group_id="g", member_id="A"),))
        assert leave.message.members[0].member_id == "A"


class TestClassicSymbols:
    def told(self, *answers: classic.JoinGroupResponse) -> ResolveContext:
        situation = ResolveContext("g", "p-")
        for answer in answers:
            situation.call(ClassicJoinStep(member="A"))
            situation.hear(ClassicJoinStep(member="A"), answer)
        return situation

    def test_a_member_that_was_told_nothing_has_neither_id_nor_generation(self) -> None:
        request = self.told().call(ClassicBeat(member="A")).message
        assert (request.member_id, request.generation) == ("", -1)

    def test_it_takes_the_id_and_the_generation_that_it_is_told(self) -> None:
        given = classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="A-1")
        joined = classic.JoinGroupResponse(member_id="A-1", generation=4, protocol_name="range")
        assert self.told(given).call(ClassicJoinStep(member="A")).message.member_id == "A-1"
        situation = self.told(given, joined)
        request = situation.call(ClassicSyncStep(member="A", gives={"A": {"x": (0,)}, "B": {}})).message
        assert (request.generation, request.protocol_name) == (4, "range")
        assert {
            member_id: dict(consumer_protocol.read_assignment(data).partitions)
            for member_id, data in request.assignments.items()
        } == {"A-1": {"p-x": (0,)}}
        ahead = situation.call(ClassicBeat(member="A", generation=Epoch.AHEAD)).message
        assert ahead.generation == 5

    def test_a_member_that_is_unknown_starts_over(self) -> None:
        situation = self.told(classic.JoinGroupResponse(member_id="A-1", generation=4))
        unknown = classic.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        situation.hear(ClassicBeat(member="A", instance="nobody's"), unknown)
        assert situation.call(ClassicBeat(member="A")).message.member_id == "A-1"
        situation.hear(ClassicBeat(member="A"), unknown)
        assert situation.call(ClassicBeat(member="A")).message.member_id == ""


class TestComparing:
    def described(self, *members: str, epoch: int = 2, message: str = "") -> Any:
        def member(name: str) -> consumer.DescribedMember:
            return consumer.DescribedMember(
                member_id=name,
                instance_id=None,
                rack_id=None,
                member_epoch=epoch,
                client_id="c",
                client_host="/h",
                subscribed_topic_names=("x",),
                subscribed_topic_regex="",
                assignment=(),
                target_assignment=(),
            )

        group = consumer.DescribedGroup(
            group_id="g", error_message=message, members=tuple(map(member, members))
        )
        return comparable(consumer.ConsumerGroupDescribeResponse(groups=(group,)), "g")

    def test_order_and_texts_are_free(self) -> None:
        assert differing(self.described("A", "B"), self.described("B", "A", message="text")) == []

    def test_a_difference_names_its_field_and_both_values(self) -> None:
        lines = differing(self.described("A"), self.described("A", epoch=3))
        assert lines == ["groups[0].members[0].member_epoch: Kafka 2, fencepost 3"]

    def test_another_number_of_members_is_a_difference(self) -> None:
        (line,) = differing(self.described("A"), self.described("A", "B"))
        assert line.startswith("groups[0].members: Kafka [")

    def test_other_groups_of_the_cluster_do_not_count(self) -> None:
        row = consumer.ListedGroup(group_id="g", protocol_type="", group_state="", group_type="")
        alone = consumer.ListGroupsResponse(groups=(row,))
        other = msgspec.structs.replace(row, group_id="h")
        both = consumer.ListGroupsResponse(groups=(other, row))
        assert differing(comparable(alone, "g"), comparable(both, "g")) == []

    def test_an_assignment_of_nothing_is_not_no_assignment(self) -> None:
        none, empty = (
            comparable(consumer.ConsumerGroupHeartbeatResponse(assignment=assignment), "g")
            for assignment in (None, {})
        )
        assert differing(none, empty) == ["assignment: Kafka null, fencepost {}"]

    def test_topics_of_an_assignment_of_the_classic_protocol_have_no_order(self) -> None:
        def synced(*topics: str) -> Any:
            partitions = dict.fromkeys(topics, (0,))
            data = consumer_protocol.write_assignment(
                consumer_protocol.ConsumerProtocolAssignment(partitions=partitions)
            )
            return comparable(classic.SyncGroupResponse(assignment=data), "g")

        assert differing(synced("x", "y"), synced("y", "x")) == []
        assert differing(synced("x"), synced("y")) != []
        other = comparable(classic.SyncGroupResponse(assignment=b"\x00"), "g")
        assert differing(other, synced()) != []


class TestTargets:
    SPEC = GroupSpec(
        subscriptions={"A": ("X",), "B": ("X",)}, partitions={"X": 4}, targets={"A": {"X": (0, 1, 2, 3)}}
    )
    HALVES: ClassVar = {"A": {"X": (0, 1)}, "B": {"X": (2, 3)}}

    def rules(self, theirs: Any, assignor: str = "uniform") -> list[str]:
        return broken_rules(assignor, self.SPEC, self.HALVES, theirs)

    def test_equals_are_equal(self) -> None:
        assert self.rules({"A": {"X": (2, 3)}, "B": {"X": (0, 1)}}) == []

    def test_range_has_no_equals(self) -> None:
        assert self.rules({"A": {"X": (2, 3)}, "B": {"X": (0, 1)}}, "range") == ["assignor.range.equal"]
        assert self.rules({**self.HALVES, "C": {}}, "range") == []

    def test_sizes_count(self) -> None:
        assert self.rules({"A": {"X": (0,)}, "B": {"X": (1, 2, 3)}}) == ["assignor.uniform.sizes"]

    def test_moves_count(self) -> None:
        ours = {"A": {"X": (2,)}, "B": {"X": (0, 1, 3)}}
        theirs = {"A": {"X": (0, 1, 2)}, "B": {"X": (3,)}}
        assert broken_rules("uniform", self.SPEC, ours, theirs) == ["assignor.uniform.moves"]

    @pytest.mark.parametrize(
        "theirs",
        [
            pytest.param({"A": {"X": (0, 1)}, "B": {"X": (1, 2)}}, id="twice"),
            pytest.param({"A": {"X": (0, 1)}, "C": {"X": (2, 3)}}, id="no subscriber"),
        ],
    )
    def test_a_target_gives_each_partition_to_one_subscriber(self, theirs: Any) -> None:
        assert self.rules(theirs) == ["assignor.uniform.valid"]

    def test_an_unknown_assignor_is_not_judged(self) -> None:
        assert self.rules({}, "sticky") == []


class TestProbe:
    def test_groups_are_placed_by_javas_hash(self) -> None:
        # "polygenelubricants".hashCode() is int's minimum, which has no absolute value.
        assert offsets_partition("polygenelubricants", 50) == 0
        assert offsets_partition("hello", 50) == 99162322 % 50
        assert offsets_partition("fencepost", 1) == 0

    def test_a_neighbour_is_in_the_same_place_and_no_other_group(self) -> None:
        names = {neighbour("g", 50) for _ in range(3)}
        assert len(names | {"g"}) == 4
        assert {offsets_partition(name, 50) for name in names} == {offsets_partition("g", 50)}


class TestShrinking:
    async def shrunk(self, items: str, *needed: str, tries: int = 200) -> str:
        async def fails(part: tuple[str, ...]) -> bool:
            return all(any(letter == want for letter in part) for want in needed)

        return "".join(await shrink(items, fails, tries=tries))

    async def test_what_does_not_matter_goes(self) -> None:
        assert await self.shrunk("abcdefghijklmnop", "c", "k") == "ck"
        assert await self.shrunk("abcdefgh", "h") == "h"

    async def test_order_is_kept_and_what_matters_stays(self) -> None:
        assert await self.shrunk("abc", "c", "b", "a") == "abc"

    async def test_it_gives_up_after_so_many_tries(self) -> None:
        assert len(await self.shrunk("abcdefghijklmnop", "k", tries=1)) == 8


def exchanged(**given: Any) -> ConformExchange:
    """Return a request to a group that does not exist, unless it says otherwise."""
    nothing: dict[str, Any] = {"answer": None, "ours": None, "records": (), "version": 1, "group_id": "g"}
    groups = {"before": ConformGroupView(), "after": ConformGroupView()}
    return ConformExchange(**{**nothing, **groups, "config": GroupCoordinatorConfig(), **given})


class TestRules:
    def test_names_are_grouped_by_what_they_are_about(self) -> None:
        assert len(NAMES) > 100
        assert all(re.fullmatch(r"[a-z_]+(\.[\w+-]+)+", name) for name in NAMES)
        assert all(NAMES.values())

    def test_a_request_has_the_names_of_its_surface(self) -> None:
        member = ConsumerGroupMember(
            member_id="A", member_epoch=5, previous_member_epoch=4, assigned={"X": (0,)}
        )
        behind = msgspec.structs.replace(member, member_epoch=4, state=UNREVOKED)
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="A", member_epoch=4, topic_partitions={}
        )
        reply = consumer.ConsumerGroupHeartbeatResponse(member_id="A", member_epoch=5, assignment={"X": (0,)})
        exchange = exchanged(
            step=Beat(member="A", rack="r"),
            request=request,
            answer=reply,
            ours=reply,
            before=ConformGroupView(kind="consumer", state="Reconciling", members={"A": behind}),
            after=ConformGroupView(kind="consumer", state="Stable", members={"A": member}),
            records=(Record(ConsumerGroupMetadataKey("g"), None),),
        )
        assert exercised(exchange) == [
            "group.consumer.Reconciling.Stable",
            "beat.consumer.NONE",
            "beat.epoch.current.accepted",
            "beat.owned.less.accepted",
            "beat.member.UNREVOKED.STABLE+",
            "beat.reply.assignment",
            "deletes.ConsumerGroupMetadata",
            "sets.beat.rack",
        ]
        assert {*exercised(exchange)} <= NAMES.keys()

    @pytest.mark.parametrize(
        ("member_id", "epoch", "name"),
        [(None, 0, "fetch-without-member-id"), (None, -1, None), ("A", 0, None)],
    )
    def test_a_fetch_that_a_broker_fails_on_is_a_known_deviation(
        self, member_id: str | None, epoch: int, name: str | None
    ) -> None:
        group = OffsetFetchGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
        request = OffsetFetchCall(groups=(group,), require_stable=False, api_version=9)
        exchange = exchanged(step=Fetch(), request=request)
        line = 'groups[0].error_code: Kafka "UNKNOWN_SERVER_ERROR", fencepost "UNKNOWN_MEMBER_ID"'
        found = deviation_of(exchange, [line], ends_schedule=False)
        assert (None if found is None else found.name) == name

    def test_deviations_are_in_the_docs(self) -> None:
        text = (DOCS / "deviations.md").read_text(encoding="utf-8")
        for deviation in DEVIATIONS:
            row = f"| {deviation.name} | {deviation.kafka} | {deviation.fencepost} | {deviation.why} |"
            assert row in text, f"docs/deviations.md lacks {row}"


def test_every_kind_of_step_is_generated_or_scripted() -> None:
    schedules = [generate(CONSUMER, f"k-{seed}", interval_ms=1_000) for seed in range(100)]
    schedules += scripted(GroupCoordinatorConfig(group_consumer_min_session_timeout_ms=100))
    kinds = {type(step) for schedule in schedules for step in schedule.steps}
    assert kinds == set(Step.__args__)  # type: ignore[attr-defined]


class Waits:
    """A broker whose groups have no coordinator, and will have none."""

    asked = 0

    async def ask(self, api_key: int, version: int, message: object) -> cluster.FindCoordinatorResponse:
        self.asked += 1
        found = cluster.FoundCoordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return cluster.FindCoordinatorResponse(coordinators=(found,))


async def test_a_cluster_that_never_has_a_coordinator_is_told_once() -> None:
    admin: Any = Waits()
    judge = ReferenceBroker(
        admin,
        GroupCoordinatorConfig(),
        BrokerVersions(error_code=ErrorCode.NONE, api_versions={}, features={}),
    )
    schedule = Schedule(name="s", topics={}, steps=(Describe(),))
    lockstep = Lockstep(judge, schedule, group_id="g", prefix="p", topic_ids={})
    with pytest.raises(
        EnvironmentLacks, match="no coordinator for groups: COORDINATOR_NOT_AVAILABLE for 30 s"
    ):
        await lockstep.run()
    asked = admin.asked
    await lockstep.close()
    assert admin.asked == asked > 100
