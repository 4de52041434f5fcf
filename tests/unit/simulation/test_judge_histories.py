"""Histories of a real coordinator that Kafka allows are not reported; the same ones, tampered with, are.

What is right here was asked of Kafka 4.3.1 itself.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from fencepost.coordinator.protocol import classic, consumer, offsets
from fencepost.coordinator.protocol import consumer_protocol as embedded
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Outcome, RegularExpressionsResolved
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.simulation.judge.classic_records import ObservedClassicGroups
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.judge.coordination import Coordination
from fencepost.simulation.kernel.observers import RecordsObserved
from tests.unit.simulation.judged_steps import Judged, Tamper, beat, only, replying

X0, X1, X9, GONE = (TopicPartition(*each) for each in (("x", 0), ("x", 1), ("x", 9), ("gone", 0)))
SUBSCRIPTION = embedded.write_subscription(embedded.ConsumerProtocolSubscription(topics=("x",)))
EMPTY = r.GroupMetadataValue(protocol_type="", generation=0)


class Scene(Judged):
    """A group of either protocol, and time that passes."""

    settings: ClassVar[dict[str, Any]] = {"group_initial_rebalance_delay_ms": 0}
    step_ms = 2_000

    def __init__(self, script: str = "") -> None:
        super().__init__(Coordination(), ClassicRounds(), script=script)

    def beat(self, member_id: str, epoch: str, owned: str | None = None, **fields: Any) -> Any:
        return self.step(beat(member_id, int(epoch), owned, api_version=-1, **fields))

    def expression(self, text: str) -> E:
        return self.beat("A", "0", subscribed_topic_names=(), subscribed_topic_regex=text).error_code

    def resolve(self, text: str) -> None:
        resolved = {"topics": {text: ("x",)}, "image_version": self.live.image.version}
        self.step(RegularExpressionsResolved(group_id="g", **resolved))

    def join(self, member_id: str = "", group_id: str = "g", protocols: str = "range") -> E | None:
        """A member of the classic protocol; with none of protocols if they are `-`."""
        request = classic.JoinGroupRequest(
            group_id=group_id,
            protocol_type="consumer",
            protocols=() if protocols == "-" else (classic.JoinGroupProtocol(protocols, SUBSCRIPTION),),
            member_id="" if member_id == "-" else member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            client_id="c",
            new_member_suffix="1",
        )
        reply = self.step(request)
        return None if reply is None else reply.error_code

    def refused(self) -> E | None:
        """One joins that offers no protocol."""
        return self.join(protocols="-")

    def sync(self) -> Any:
        data = embedded.ConsumerProtocolAssignment(partitions={"x": (0, 1)})
        given = {"c-1": embedded.write_assignment(data)}
        request = classic.SyncGroupRequest(group_id="g", generation=1, member_id="c-1", assignments=given)
        return self.step(request)

    def leave(self, member_id: str) -> None:
        self.step(consumer.LeaveGroupRequest(group_id="g", member_id=member_id))

    def delete(self) -> None:
        self.step(consumer.DeleteGroupsRequest(group_id="g"))

    def commit(self, member_id: str = "", epoch: str = "-1", version: str = "9", producer: str = "-1") -> E:
        return self.commits((X0,), member_id, epoch, version, producer)[0]

    def commits(
        self, partitions: tuple[TopicPartition, ...], member_id: str, epoch: str, version: str = "9",
        producer: str = "-1",
    ) -> list[E]:  # fmt: skip
        request = offsets.OffsetCommitRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=int(epoch),
            offsets={each: offsets.OffsetAndMetadata(offset=7) for each in partitions},
            api_version=int(version),
            producer_id=int(producer),
        )
        return list(self.step(request).errors.values())

    def staged(self) -> E:
        return self.commit(producer="1")

    def aborted(self) -> None:
        self.step(TransactionEnded(group_id="g", producer_id=1, commit=False))

    def times_out(self, member_id: str) -> None:
        self.time()
        assert member_id not in self.live.groups["g"].members

    def paused(self, broker: str) -> None:
        self.judge.on_fault("broker-pause", "begin", broker, self.now_ms * 1_000)

    def members(self, *members: str) -> None:
        assert set(self.live.groups["g"].members) == set(members)

    def stored(self, generation: str) -> None:
        assert self.live.classic.stored["g"].generation == int(generation)


def answering(*codes: E) -> Tamper:
    """Answers a commit with these codes instead, and writes nothing."""
    return lambda outcome: only(errors=dict(zip(outcome.reply.errors, codes, strict=True)))(outcome)


NO_GROUP, OFFSETS, STAGED = "", "commit =NONE", "staged =NONE"
CONSUMER, CLASSIC = "beat A 0 =NONE; leave A", "join =MEMBER_ID_REQUIRED"
NOT_THERE = E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("before", "version", "right"),
    [
        (NO_GROUP, 3, E.ILLEGAL_GENERATION),
        (NO_GROUP, 8, E.ILLEGAL_GENERATION),
        (NO_GROUP, 9, E.GROUP_ID_NOT_FOUND),
        (STAGED, 9, E.UNKNOWN_MEMBER_ID),
        *((each, number, E.UNKNOWN_MEMBER_ID) for each in (OFFSETS, CONSUMER, CLASSIC) for number in (8, 9)),
    ],
)
def test_a_commit_by_nobody_s_member_has_one_right_answer(before: str, version: int, right: E) -> None:
    scene = Scene(f"{before}; commit A 3 {version} ={right.name}")
    for wrong in {E.NONE, E.ILLEGAL_GENERATION, E.GROUP_ID_NOT_FOUND, E.UNKNOWN_MEMBER_ID} - {right}:
        scene.tamper = answering(wrong)
        scene.play(f"commit A 3 {version}")
        unwritten = ["commit-recorded"] if wrong is E.NONE else []
        assert sorted(scene.found) == ["commit-fenced", *unwritten], wrong
        scene.found.clear()


@pytest.mark.parametrize("before", [OFFSETS, CONSUMER, CLASSIC])
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (None, []),
        ([NOT_THERE] * 3, ["commit-fenced"]),  # x-0 is there
        ([E.UNKNOWN_MEMBER_ID] * 3, ["commit-recorded"] * 2),  # x-9 and gone-0 are not
    ],
)
def test_partitions_that_are_not_there_are_refused_for_themselves(
    before: str, wrong: list[E] | None, found: list[str]
) -> None:
    scene = Scene(before)
    right = [E.UNKNOWN_MEMBER_ID, NOT_THERE, NOT_THERE]
    scene.tamper = answering(*(wrong or right)) if wrong else scene.tamper
    assert scene.commits((X0, X9, GONE), "A", "3") == (wrong or right)
    assert scene.found == found


def test_partitions_that_are_refused_for_themselves_do_not_make_an_epoch_stale() -> None:
    scene = Scene()
    old = scene.beat("A", "0").member_epoch
    assert scene.beat("B", "0").member_epoch > old
    assert scene.beat("A", old, "01").member_epoch == old, "it is to give up one of two partitions first"
    (kept,) = scene.live.groups["g"].members["A"].assigned["X" * 22]
    assert scene.beat("A", old, str(kept)).member_epoch > old
    good = offsets.OffsetAndMetadata(offset=7)
    too_long = offsets.OffsetAndMetadata(offset=7, metadata="m" * 5_000)
    request = offsets.OffsetCommitRequest(
        group_id="g",
        member_id="A",
        member_epoch=old,
        offsets={(X0, X1)[kept]: good, GONE: good, (X0, X1)[1 - kept]: too_long},
    )
    right = [E.NONE, NOT_THERE, E.OFFSET_METADATA_TOO_LARGE]
    assert list(scene.step(request).errors.values()) == right
    assert scene.found == []
    scene.step(request, answering(E.STALE_MEMBER_EPOCH, *right[1:]))
    assert scene.found == ["commit-fenced"]


def refused_by(
    code: E = E.INCONSISTENT_GROUP_PROTOCOL, *more: r.Record, value: Any = EMPTY, group_id: str = "g",
    instead: bool = False,
) -> Tamper:  # fmt: skip
    """Answers a JoinGroup with this code, and writes this group; `more` records before it, or `instead`."""

    def tamper(outcome: Any) -> Outcome:
        own = () if instead else outcome.records[:-1]
        made = r.Record(r.GroupMetadataKey(group_id), value)
        return Outcome(records=(*more, *own, made), reply=replying(error_code=code)(outcome).reply)

    return tamper


REFUSED = "refused =INCONSISTENT_GROUP_PROTOCOL"
OFFSET_ENDS = r.Record(r.OffsetCommitKey("g", "x", 0), None)
MEMBER_ENDS = tuple(
    r.Record(key, None)
    for key in (
        r.ConsumerGroupCurrentMemberAssignmentKey("g", "A"),
        r.ConsumerGroupTargetAssignmentMemberKey("g", "A"),
        r.ConsumerGroupTargetAssignmentMetadataKey("g"),
        r.ConsumerGroupMemberMetadataKey("g", "A"),
        r.ConsumerGroupMetadataKey("g"),
    )
)


@pytest.mark.parametrize(
    ("before", "tamper"),
    [
        (NO_GROUP, refused_by(E.UNKNOWN_MEMBER_ID)),
        (NO_GROUP, refused_by(value=msgspec.structs.replace(EMPTY, generation=1))),
        (NO_GROUP, refused_by(group_id="other")),
        (NO_GROUP, refused_by(value=None)),
        (OFFSETS, refused_by(E.INCONSISTENT_GROUP_PROTOCOL, OFFSET_ENDS)),
        (CONSUMER, refused_by(E.INCONSISTENT_GROUP_PROTOCOL, OFFSET_ENDS)),
        (CLASSIC, refused_by(instead=True)),
        # It does not end a group that has members.
        ("beat A 0 =NONE", refused_by(E.INCONSISTENT_GROUP_PROTOCOL, *MEMBER_ENDS)),
    ],
)
def test_a_refused_member_writes_nothing_else(before: str, tamper: Tamper) -> None:
    assert "failed-changes-nothing" in Scene().play_wrongly(f"{before}; refused", tamper)


LATE = {"revocation-bounded", "gone-members"}
"""Reported of a timer that runs out without an effect."""
GENERATION = "join =MEMBER_ID_REQUIRED; join c-1; time; sync =NONE; stored 1"
OWED = "beat A 0; beat B 0; beat A 2"


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        # A group stays that a refused member has made: the next one is no longer the first.
        *((f"{each}; {REFUSED}; stored 0; {CLASSIC}", set()) for each in (NO_GROUP, OFFSETS, CONSUMER)),
        # A classic group that replaces an emptied consumer group begins anew.
        (GENERATION + f"; beat A 0 =NONE; members A c-1; leave c-1; leave A; {CLASSIC}; stored 0", set()),
        # A group without members takes commits of clients that are no members.
        *((f"{each}; commit =NONE", set()) for each in (OFFSETS, CONSUMER, CLASSIC)),
        # A group stays without its last offset.
        *((f"{STAGED}; aborted; commit A 3 {number} =UNKNOWN_MEMBER_ID", set()) for number in (8, 9)),
        # Timers of a broker that stood still are late.
        (OWED + "; later 60; times_out A", LATE),
        (OWED + "; paused c; later 60; times_out A", LATE),
        (OWED + "; paused b; later 60; times_out A", set()),
    ],
)  # fmt: skip
def test_a_history(script: str, broken: set[str]) -> None:
    assert Scene().play_wrongly(script, None) == broken


def test_an_expression_that_is_not_resolved_yet_leaves_the_digest_of_the_one_before() -> None:
    scene = Scene("expression x.* =NONE; resolve x.*")
    group = scene.live.groups["g"]
    epoch, digest = group.group_epoch, group.metadata_hash
    assert digest
    assert scene.play("expression y.* =NONE") == set()
    assert (group.group_epoch, group.metadata_hash, group.assignment_epoch) == (epoch, digest, epoch)
    assert group.resolved == {}


# Generations


def generation(number: int) -> r.Record:
    return r.Record(r.GroupMetadataKey("g"), msgspec.structs.replace(EMPTY, generation=number))


CLASSIC_ENDS = r.Record(r.GroupMetadataKey("g"), None)
UPGRADED = r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(epoch=3, metadata_hash=0))
EMPTY_ENDS = r.Record(r.ConsumerGroupMetadataKey("g"), None)


@pytest.mark.parametrize(
    ("records", "falls"),
    [
        ((generation(2),), True),
        ((generation(4),), False),
        ((CLASSIC_ENDS, generation(0)), False),
        # It becomes a consumer group, and a classic one again.
        ((CLASSIC_ENDS, UPGRADED, EMPTY_ENDS, generation(0)), False),
    ],
)
def test_a_recorded_generation_falls_only_if_the_group_ends(records: Any, falls: bool) -> None:
    judge, found = ObservedClassicGroups(), list[str]()
    judge.attach(None, lambda invariant, message, rule="": found.append(invariant))
    for each in (generation(3), *records):
        observed = RecordsObserved(group_id="g", cause="")
        judge.on_coordinator_step("b", observed, Outcome(records=(each,)), 0)
    assert found == (["classic-generations"] if falls else [])
