"""Classic groups against second accounts of them: real steps, and the same with one thing wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.migration import downgrade
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetDeleteRequest
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    MemberFenced,
    Outcome,
    ParkedResponse,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import GroupMetadataKey, Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.mutants.registry import MUTANTS
from tests.growth import lines
from tests.unit.simulation.judged_steps import Judged, Tamper, changed, recorded, replying, same

E = ErrorCode
FOUR = TopicsImage.of([Topic(topic_id="X", name="x", partitions=4)], version=1)
PARTITIONS = tuple(TopicPartition("x", number) for number in (0, 9))


def given(number: int) -> bytes:
    return write_assignment(ConsumerProtocolAssignment(partitions={"x": (number,)}))


class Scene(Judged):
    """A coordinator with a judge that sees its steps, or others in their place."""

    def __init__(self, script: str = "", **settings: Any) -> None:
        self.tokens = 0
        super().__init__(ClassicRounds(), image=FOUR, script=script, **settings)

    def prepare(self) -> None:
        self.now_ms = 1_000
        self.world.journal = SimpleNamespace(failing=False)

    def loaded(self) -> None:
        self.judge.on_coordinator_state("b", "active", self.now_ms * 1_000)

    def step(self, event: Any, tamper: Tamper = same, after_ms: int = 10) -> Any:
        """The judge is shown another outcome than the coordinator's, if it is tampered with."""
        if isinstance(event, TopicsChanged):
            self.loaded()
        self.now_ms += after_ms
        outcome = self.live.handle(event, self.now_ms)
        shown = self.tamper(outcome)
        if self.world.journal.failing and outcome.records:
            shown = outcome = self.live.not_written(event, outcome, E.NOT_LEADER_OR_FOLLOWER, self.now_ms)
        else:
            self.live.apply_batch(outcome.records)
        self.show(event, shown)
        return outcome.reply

    # -- the steps of scripts

    def time(self) -> None:
        """Let the time come at which the next timer runs out."""
        due = self.live.next_deadline()
        assert due is not None
        self.step(DeadlineReached(due), after_ms=due - self.now_ms)

    def new(self, number: str, *settings: str) -> Any:
        return self.join("", *settings, f"number={number}")

    def static(self, number: str) -> Any:
        return self.join("", f"number={number}", "instance_id=i")

    def join(self, member_id: str, *settings: str) -> Outcome:
        self.tokens += 1
        fields: dict[str, Any] = dict(each.split("=") for each in settings)
        said = write_subscription(ConsumerProtocolSubscription(topics=("x",)))
        names = fields.get("protocols", "range").split(",")
        request = classic.JoinGroupRequest(
            group_id="g",
            protocol_type="consumer",
            protocols=tuple(classic.JoinGroupProtocol(name, said) for name in names),
            member_id=member_id,
            instance_id=fields.get("instance_id"),
            session_timeout_ms=int(fields.get("session_ms", 10_000)),
            rebalance_timeout_ms=6_000,
            client_id="c",
            new_member_suffix=fields.get("number", "1"),
            token=self.tokens,
        )
        return self.step(request)

    def both(self, number: str, *settings: str) -> None:
        """A dynamic member joins, and joins again with its id."""
        self.new(number, *settings)
        self.join(f"c-{number}", *settings)

    def gather(self, *numbers: str) -> None:
        """Let dynamic members join an empty group, and their first round end."""
        for number in numbers:
            self.both(number)
        while self.live.classic.groups["g"].state == "PreparingRebalance":
            self.time()

    def sync(self, member_id: str, generation: str = "1", *shares: str) -> Outcome:
        self.tokens += 1
        data = {}
        for member, _, number in (each.partition(":") for each in shares):
            data[member] = given(int(number))
        request = classic.SyncGroupRequest(
            group_id="g",
            generation=int(generation),
            member_id=member_id,
            assignments=data,
            token=self.tokens,
        )
        return self.step(request)

    def beat(self, member_id: str, generation: str = "1", instance_id: str | None = None) -> Outcome:
        request = classic.HeartbeatRequest(
            group_id="g", generation=int(generation), member_id=member_id, instance_id=instance_id
        )
        return self.step(request)

    def leave(self, *members: str) -> Outcome:
        each = tuple(consumer.LeaveGroupRequest(group_id="g", member_id=member_id) for member_id in members)
        return self.step(consumer.LeaveGroupBatchRequest(group_id="g", members=each))

    def commit(self, member_id: str, generation: str = "1", offset: str = "") -> E | None:
        values = {PARTITIONS[0]: OffsetAndMetadata(offset=int(offset))} if offset else {}
        request = OffsetCommitRequest(
            group_id="g", member_id=member_id, member_epoch=int(generation), offsets=values
        )
        return self.step(request).errors.get(PARTITIONS[0])

    def ended(self, member_id: str) -> None:
        self.step(SessionEnded(group_id="g", member_id=member_id))

    def generation(self, number: str) -> None:
        self.live.classic.groups["g"].generation = int(number)

    def other(self, group_id: str = "h") -> Outcome:
        """A member joins another group."""
        self.tokens += 1
        offered = (classic.JoinGroupProtocol("range", b""),)
        fields: Any = {"protocol_type": "consumer", "protocols": offered, "session_timeout_ms": 10_000}
        fields["rebalance_timeout_ms"] = 6_000
        return self.step(classic.JoinGroupRequest(group_id=group_id, token=self.tokens, **fields))

    def appears(self) -> None:
        """There is a group that no client made."""
        self.live.classic._groups["i"] = ClassicGroup("i", self.now_ms)

    def unstored(self) -> None:
        """The record of the group is lost."""
        self.live.classic._stored.pop("g")

    def lapse(self) -> None:
        """The next timer is consumed without an effect."""
        due = self.live.next_deadline()
        assert due is not None
        self.now_ms = due
        self.live.classic.timers.pop_due(due)
        self.show(DeadlineReached(due), NOTHING)

    def foreign(self) -> None:
        """When the next timer is due, one of another kind of groups runs, and can't write its records."""
        due = self.live.next_deadline()
        assert due is not None
        self.now_ms = due
        self.show(DeadlineReached(due), Outcome())

    def leak(self) -> None:
        self.live.classic.timers.set(GroupTimerKey(GroupTimerKind.SESSION, "g", "leaked"), 10**12)

    def no_instances(self) -> None:
        self.live.classic.groups["g"].static_members.clear()

    def reassigned(self) -> None:
        self.live.classic.groups["g"].members["c-1"].assignment = b""

    def delete(self) -> Outcome:
        return self.step(consumer.DeleteGroupsRequest(group_id="g"))

    def forget(self) -> Outcome:
        """Delete offsets."""
        return self.step(OffsetDeleteRequest(group_id="g", partitions=PARTITIONS))

    def modern(self, epoch: str = "0") -> Outcome:
        """A member of the newer protocol comes or goes."""
        return self.step(modern(int(epoch)))

    def refuse(self) -> None:
        """The journal takes no records, or takes them again."""
        self.world.journal.failing = not self.world.journal.failing

    def pause(self) -> None:
        self.judge.on_fault("broker-pause", "begin", "b", self.now_ms * 1_000)

    def load(self) -> None:
        """The coordinator is loaded anew."""
        again = GroupCoordinator(self.live.config)
        stored = [Record(GroupMetadataKey(name), value) for name, value in self.live.classic.stored.items()]
        again.replay(stored, self.now_ms)
        self.live = self.world.active = again
        self.world.coordinators["b"] = SimpleNamespace(coordinator=again)
        self.loaded()


def modern(epoch: int) -> consumer.ConsumerGroupHeartbeatRequest:
    return consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="new",
        member_epoch=epoch,
        rebalance_timeout_ms=6_000 if epoch == 0 else -1,
        subscribed_topic_names=("x",) if epoch == 0 else None,
        topic_partitions={} if epoch == 0 else None,
    )


PAIR = "gather 1 2; sync c-2; sync c-1 1 c-1:0 c-2:1"
"""`c-1`, its leader, and `c-2`, each with a partition."""


def answering(**fields: Any) -> Tamper:
    """The responses to those who wait have other fields."""

    def tamper(outcome: Any) -> Any:
        effects = tuple(
            msgspec.structs.replace(each, response=msgspec.structs.replace(each.response, **fields))  # type: ignore[type-var]
            if isinstance(each, ParkedResponse)
            else each
            for each in outcome.effects
        )
        return msgspec.structs.replace(outcome, effects=effects)

    return tamper


def joined(generation: int, member_id: str, **fields: Any) -> classic.JoinGroupResponse:
    return classic.JoinGroupResponse(generation=generation, member_id=member_id, **fields)


def all_left(outcome: Outcome) -> Outcome:
    members = tuple(msgspec.structs.replace(each, error_code=E.NONE) for each in outcome.reply.members)
    return replying(members=members)(outcome)


def one_stays(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, effects=outcome.effects[1:])


VOTES = "both 1 protocols=range,sticky; both 2 protocols=sticky,range; both 3 protocols=sticky,range"
GATHERED = "both 1; both 2; time; time"
"""The second one came in the first one's delay."""
STATIC = "static 1; time; sync i-1 1 i-1:0"
REJOINS = STATIC + "; static 2; static 3"
DELAY = "both 1; later 0.99; both 2; time"
GONE = dict.fromkeys(PARTITIONS, E.NONE)
NO_ANSWER = changed(effects=())

STEPS = [
    (PAIR + "; both 3; join c-1", changed(reply=joined(2, "c-1", leader="c-1")), "classic-rounds"),
    (PAIR + "; join c-1; join c-2", NO_ANSWER, "classic-rounds"),
    (DELAY, lambda _: Outcome(effects=tuple(map(told, (1, 2), ("c-1", "c-2")))), "classic-rounds"),
    (GATHERED, answering(leader="c-2"), "classic-joined"),
    (GATHERED, answering(members=()), "classic-joined"),
    (GATHERED, answering(generation=2), "classic-generations"),
    (GATHERED, answering(protocol_name="sticky"), "classic-joined"),
    (VOTES + "; time; time", answering(protocol_name="range"), "classic-joined"),
    (REJOINS, replying(skip_assignment=False), "classic-joined"),
    (
        PAIR + "; new 3 protocols=sticky =INCONSISTENT_GROUP_PROTOCOL",
        replying(error_code=E.UNKNOWN_MEMBER_ID),
        "classic-answers",
    ),
    (PAIR + "; leave c-1 nobody", all_left, "classic-answers"),
    ("new 1 session_ms=1 =INVALID_SESSION_TIMEOUT", replying(error_code=E.NONE), "classic-answers"),
    ("join stranger =UNKNOWN_MEMBER_ID", replying(error_code=E.NONE), "classic-answers"),
    ("gather 1 2; sync c-2; sync c-1 1 c-1:0 c-2:1", answering(assignment=given(3)), "classic-synced"),
    (PAIR + "; sync c-2", replying(assignment=b""), "classic-synced"),
    ("gather 1 2; sync c-2; leave c-1", NO_ANSWER, "classic-synced"),
    ("gather 1 2; sync c-2; time", one_stays, "classic-members"),
    ("gather 1 2; sync c-1 1 c-1:0 c-2:1", changed(records=()), "classic-record"),
    *(
        ("gather 1 2; sync c-1 1 c-1:0 c-2:1", recorded(**other), "classic-record")
        for other in ({"generation": 2}, {"leader": "c-2"}, {"protocol": "roundrobin"}, {"members": ()})
    ),
    (PAIR + "; forget", replying(errors=GONE), "admin-changes"),
    (
        PAIR + "; leave c-1 c-2; delete",
        replying(error_code=E.NON_EMPTY_GROUP),
        "admin-changes",
    ),
    (PAIR + "; modern; beat c-1", replying(error_code=E.NONE), "classic-answers"),
    (PAIR + "; modern; beat c-1", replying(error_code=E.UNKNOWN_MEMBER_ID), "classic-answers"),
    (
        PAIR + "; modern; beat c-1; join c-1; sync c-1 2",
        changed(reply=classic.SyncGroupResponse(assignment=given(3))),
        "classic-synced",
    ),
]


def told(token: int, member_id: str) -> ParkedResponse:
    return ParkedResponse(token=token, response=joined(1, member_id))


@pytest.mark.parametrize(("script", "tamper", "broken"), STEPS)
def test_a_step_that_goes_wrong(script: str, tamper: Tamper, broken: str) -> None:
    settings = {"group_initial_rebalance_delay_ms": 2_000} if script is DELAY else {}
    assert Scene(**settings).play(script) == set()
    assert Scene(**settings).play_wrongly(script, tamper) == set(broken.split())


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        (
            "beat c-1; beat c-2 0; beat c-3; both 3; beat c-1; join c-1; join c-2; sync c-3 2;"
            "sync c-1 2 c-1:0 c-2:1 c-3:2; sync c-2 2; commit c-1; leave c-1 nobody; join c-2; time;"
            "sync c-2 3 c-2:0; time; time",
            "",
        ),
        ("load; beat c-1; join c-2 protocols=range,sticky", ""),
        ("join c-1; later 6; beat c-2", "classic-rounds"),
        ("join c-1; pause; later 6; beat c-2", ""),
        ("later 10; commit c-9", "classic-members"),
        ("delete =NON_EMPTY_GROUP", ""),
        ("generation 5; time", "classic-generations"),
        ("generation 5; other", "classic-generations"),
        ("join c-1; generation 5; other", "classic-generations"),
        ("join c-1; generation 5; end", "classic-generations"),
        ("appears; other", "classic-generations"),
        ("leak; join c-1", "timers-armed"),
        ("lapse", "classic-members"),
        ("join c-1; lapse", "classic-rounds classic-members"),
        ("foreign; time", ""),
        ("join c-1; join c-2; sync c-1 2 c-1:0 c-2:0", "classic-assignment"),
        ("end", ""),
        ("join c-1; end", ""),  # in the middle of a round a group is not on record
        ("reassigned; end", "classic-record"),
        ("unstored; end", "classic-record"),
        ("refuse; leave c-1 c-2; time; time; refuse; end", ""),  # it is empty, and its record is older
        ("modern; beat c-1; join c-1; sync c-1 2; new 3 protocols=sticky; modern -1; join c-1; join c-2", ""),
    ],
)
def test_the_life_of_a_pair(script: str, broken: str) -> None:
    assert Scene(PAIR).play(script) == set(broken.split())


@pytest.mark.parametrize(
    "script", ["static 1; forget", "new 1; leave; ended c-1; time", "both 1; both 2; ended c-1; time"]
)
def test_requests_that_change_little(script: str) -> None:
    assert Scene().play(script) == set()


def test_what_cannot_be_written_did_not_happen() -> None:
    scene = Scene("refuse; new 1; refuse; gather 1 2; sync c-2")
    assert scene.play("refuse; sync c-1 1 c-1:0 c-2:1; refuse; join c-1; join c-2") == set()
    assert scene.live.classic.groups["g"].generation == 2


def test_a_full_group_takes_nobody() -> None:
    scene = Scene(PAIR + "; new 3 =GROUP_MAX_SIZE_REACHED", group_max_size=2)
    scene.tamper = replying(error_code=E.MEMBER_ID_REQUIRED, member_id="c-4")
    assert scene.play("new 4") == {"classic-answers"}


def test_an_instance_id_that_is_not_kept() -> None:
    assert Scene(STATIC).play("no_instances; both 2") == {"static-bijection"}


def test_a_round_that_gathers_again_at_the_same_time() -> None:
    scene = Scene("new 1; new 2; join c-1; later -0.01; join c-2; time", group_initial_rebalance_delay_ms=0)
    assert scene.live.classic.groups["g"].state == "PreparingRebalance"
    assert scene.play("time; sync c-2; sync c-1 1 c-1:0 c-2:1; beat c-2") == set()


@pytest.mark.parametrize("has_the_time", [True, False])
def test_members_are_noted_as_turned_away_only_where_their_hosts_are_seen(has_the_time: bool) -> None:
    scene = Scene(PAIR + "; join c-1")
    scene.world.hosts_by_member, scene.judge.has_the_time = {"c-1": "one"}, has_the_time
    scene.judge.on_coordinator_state("b", "resign", scene.now_ms * 1_000)
    assert scene.judge._turned_away == ({"one"} if has_the_time else set())


@pytest.mark.parametrize(("step", "lines_per_group"), [("new 2", 0), ("time", 3)])
def test_a_step_costs_little_more_with_many_groups(step: str, lines_per_group: int) -> None:
    def cost(groups: int) -> int:
        scene = Scene("both 1; " + "; ".join(f"other g{number}" for number in range(groups)))
        scene.judge.has_the_time = False
        return lines(lambda: scene.play(step))

    cost(2)
    few, many = cost(10), cost(110)
    assert many <= few + 100 * lines_per_group + 50, f"10: {few} lines, 110: {many}"


def test_a_timer_that_nobody_had_set() -> None:
    ghost = MemberFenced(group_id="g", member_id="c-2", reason="session")
    assert Scene(PAIR).show(DeadlineReached(), Outcome(effects=(ghost,))) == {"classic-members"}


@pytest.mark.parametrize("step", ["commit c-1 1 7", "beat c-1"])
def test_a_session_that_a_member_does_not_renew(step: str) -> None:
    scene = Scene(f"{PAIR}; {step}")

    def not_renewed(outcome: Outcome) -> Outcome:
        key = GroupTimerKey(GroupTimerKind.SESSION, "g", "c-1")
        scene.live.classic.timers.set(key, scene.now_ms + 5_000)
        return outcome

    scene.tamper = not_renewed
    assert scene.play(step) == {"timers-armed"}


# -- classic-migrates ---------------------------------------------------------------------------------------


def test_a_group_that_could_go_over_and_does_not() -> None:
    refused = Outcome(reply=consumer.ConsumerGroupHeartbeatResponse(error_code=E.GROUP_ID_NOT_FOUND))
    scene = Scene(PAIR)
    scene.tamper = replying(error_code=E.GROUP_ID_NOT_FOUND)
    scene.play("modern")
    assert scene.show(modern(0), refused) == set()  # it did, whatever the reply was
    assert Scene(PAIR).show(modern(0), refused) == {"classic-migrates"}


def test_a_batch_of_a_consumer_group_is_taken_in_without_a_copy_of_its_members() -> None:
    scene = Scene(PAIR + "; modern; beat c-1")
    known = scene.judge._migration._known["g"]
    scene.play("join c-1; sync c-1 2; beat c-2")
    assert scene.judge._migration._known["g"] is known
    group = scene.live.groups["g"]
    assert (known.members, known.targets) == (group.members, group.targets)
    assert (known.epoch, known.assignment_epoch) == (group.group_epoch, group.assignment_epoch)


def test_a_group_that_stays_behind_without_a_member_of_the_newer_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(PAIR + "; modern")
    assert scene.live.groups["g"].members.keys() == {"c-1", "c-2", "new"}
    monkeypatch.setattr(downgrade, "may_downgrade", lambda *_, **__: False)
    assert scene.play("modern -1") == {"classic-migrates"}


def test_a_classic_member_of_a_consumer_group_that_keeps_an_expression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(PAIR + "; modern; beat c-1")
    with MUTANTS["expression-outlives-its-protocol"].apply():
        group = scene.live.groups["g"]
        kept = msgspec.structs.replace(group.members["c-1"], subscribed_topic_regex="x.*")
        monkeypatch.setitem(group._members, "c-1", kept)
        assert "classic-migrates" in scene.play("join c-1")


# -- answers ------------------------------------------------------------------------------------------------

RIGHT_ANSWERS = f"""
{PAIR}; beat c-1 =NONE
{PAIR}; beat c-1 0 =ILLEGAL_GENERATION
{PAIR}; beat c-3 =UNKNOWN_MEMBER_ID
{PAIR}; join c-1; beat c-2 =REBALANCE_IN_PROGRESS
{PAIR}; sync c-2 0 =ILLEGAL_GENERATION
{PAIR}; sync c-3 =UNKNOWN_MEMBER_ID
{PAIR}; join c-1; sync c-2 =REBALANCE_IN_PROGRESS
{STATIC}; beat i-1 1 i =NONE
{STATIC}; beat i-1 1 j =UNKNOWN_MEMBER_ID
{STATIC}; beat i-0 1 i =FENCED_INSTANCE_ID
{PAIR}; commit c-1 1 7 =NONE
{PAIR}; commit c-1 0 7 =ILLEGAL_GENERATION
{PAIR}; commit c-3 1 7 =UNKNOWN_MEMBER_ID
{PAIR}; join c-1; commit c-2 1 7 =NONE
gather 1 2; commit c-1 1 7 =REBALANCE_IN_PROGRESS
{PAIR}; leave c-1 c-2; commit nobody -1 7 =NONE
"""


@pytest.mark.parametrize("script", RIGHT_ANSWERS.split("\n")[1:-1])
def test_each_request_has_one_right_answer(script: str) -> None:
    assert Scene().play(script) == set()
    broken = "commit-fenced" if "commit" in script else "classic-answers"
    codes = E.NONE, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID
    for wrong in codes:
        if wrong.name != script.rpartition("=")[2]:
            fields: Any = {"errors": {PARTITIONS[0]: wrong}} if "commit" in script else {"error_code": wrong}
            assert Scene().play_wrongly(script.rpartition("=")[0], replying(**fields)) == {broken}


def test_a_commit_that_the_log_refuses_breaks_no_rule() -> None:
    tamper = replying(errors={PARTITIONS[0]: E.COORDINATOR_NOT_AVAILABLE})
    assert Scene().play_wrongly(PAIR + "; commit c-1 1 7", tamper) == set()
