"""What the coordinator of a streams group may do: real steps, and the same with one thing wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.epoch_groups import MemberContact
from fencepost.coordinator.protocol import consumer, offsets, streams
from fencepost.coordinator.protocol import streams_records as r
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.streams.coordination import StreamsCoordination
from tests.unit.simulation.judged_steps import Judged, Tamper, changed, only, recorded, replying, without

TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("orders",), (), (streams.TopicInfo("store"),)),))
TASKS = 4
ALL = streams.Tasks({"0": tuple(range(TASKS))})
ORDERS = TopicPartition("orders", 0)


class Scene(Judged):
    """A streams group. Each member is a process of its own."""

    settings: ClassVar[dict[str, Any]] = {"group_streams_assignment_interval_ms": 0}

    def __init__(self, script: str = "", *, names: str = "orders store", **settings: Any) -> None:
        self.epochs: dict[str, int] = {}
        topics = [Topic(topic_id=name, name=name, partitions=TASKS) for name in names.split()]
        super().__init__(StreamsCoordination(), image=TopicsImage.of(topics), script=script, **settings)

    @property
    def group(self) -> Any:
        return self.live.streams.groups["g"]

    @property
    def soft(self) -> Any:
        return self.live.streams.soft.groups["g"]

    def tasks(self, member: str) -> streams.Tasks:
        return self.group.members[member].assigned

    def join(self, member: str, *words: str) -> None:
        self.beat(member, "e=0", *words)

    def leave(self, member: str, *words: str) -> None:
        self.beat(member, "e=-1", *words)

    def beat(self, member: str, *words: str) -> None:
        """A heartbeat, that lists what the member `has`, what was `kept`, or `none`."""
        said = dict(word.split("=") for word in words if "=" in word)
        at = int(said.get("e", self.epochs.get(member, 0)))
        more: dict[str, Any] = {"shutdown_application": "shutdown" in words}
        owned = None
        if "has" in words:
            owned = self.tasks(member)
        elif "kept" in words:
            owned = self.kept
        if at == 0 or "none" in words:
            owned = streams.NO_TASKS
        if at == 0:
            more |= {"topology": TOPOLOGY, "process_id": f"process-{member}", "rebalance_timeout_ms": 60_000}
        if owned is not None:
            more |= {"active_tasks": owned.active, "standby_tasks": owned.standby}
            more |= {"warmup_tasks": owned.warmup}
        if "map" in said:
            more["endpoint_information_epoch"] = int(said["map"])
        if "endpoint" in words:
            more["user_endpoint"] = streams.Endpoint(member, 80)
        if "described" in words:
            more |= {"rack_id": "r", "client_id": "c", "client_tags": {"zone": "z"}}
        request = streams.StreamsGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=at, **more
        )
        self.epochs[member] = self.step(request).member_epoch

    def keep(self, member: str) -> None:
        self.kept = self.tasks(member)

    def keep_active(self, member: str) -> None:
        self.kept = streams.Tasks(self.tasks(member).active)

    def has_kept(self, member: str) -> None:
        assert self.tasks(member) == self.kept

    def has_all(self, member: str) -> None:
        assert self.tasks(member) == ALL

    def has_standbys(self) -> None:
        assert all(self.tasks(member).standby for member in self.group.members)

    def members(self, *members: str) -> None:
        assert set(self.group.members) == set(members)

    def refused(self, member: str, epoch: str = "") -> None:
        """The log refuses the records of a heartbeat, which counts as a sign of life, unless it leaves."""
        request = streams.StreamsGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=int(epoch or self.epochs[member])
        )
        if not epoch:
            self.live.handle(request, self.now_ms)
        reply = streams.StreamsGroupHeartbeatResponse(error_code=E.COORDINATOR_NOT_AVAILABLE)
        self.show(request, Outcome(reply=reply))

    def stranger(self) -> None:
        """A heartbeat to another group, which would have to be refused in this one."""
        self.step(streams.StreamsGroupHeartbeatRequest(group_id="another", member_id="x", member_epoch=3))

    def commit(self, member: str, epoch: str = "3") -> None:
        request = offsets.OffsetCommitRequest(
            group_id="g",
            member_id=member,
            member_epoch=int(epoch),
            offsets={ORDERS: offsets.OffsetAndMetadata(offset=7)},
            topic_ids={"orders": "orders"},
        )
        self.step(request)

    def fetch(self, epoch: str = "3") -> None:
        request = offsets.OffsetFetchRequest(
            group_id="g", member_id="a", member_epoch=int(epoch), partitions=(ORDERS,)
        )
        self.step(request)

    def describe(self) -> None:
        self.step(streams.StreamsGroupDescribeRequest(group_ids=("g", "none", "")))

    def asks(self, epoch: str) -> None:
        """The process of `a` sends a request."""
        request = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=int(epoch))
        self.judge.on_member_request("a", request, self.now_ms * 1_000)

    def hears(self, epoch: str, tasks: str = "", code: str = "NONE") -> None:
        """The process of `a` receives a response."""
        request = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=int(epoch))
        told = {"all": dict(ALL.active), "none": {}}.get(tasks)
        response = consumer.ConsumerGroupHeartbeatResponse(error_code=E[code], assignment=told)
        self.judge.on_member_response("a", request, response, self.now_ms * 1_000)

    # -- damage

    def epoch_is_raised(self) -> None:
        """For nothing, in a heartbeat."""
        configs = {"num.standby.replicas": "0"}
        record = self.group.metadata_record(self.group.group_epoch + 1, self.group.metadata_hash, 0, configs)
        self.tamper = changed(records=(record,))
        self.beat("a", "has")

    def contacts_are_old(self) -> None:
        for contact in self.soft.contacts.values():
            contact.last_ms = 0

    def contact_leaks(self) -> None:
        self.soft.contacts["gone"] = MemberContact(1)

    def timers_are_lost(self) -> None:
        self.live.streams.soft.timers.clear()

    def endpoints(self, news: str) -> None:
        """The map of endpoints has changed, which no record holds."""
        self.soft.endpoint_epoch += int(news)

    def journal_breaks(self) -> None:
        self.journal.append((Record(r.StreamsGroupMetadataKey("g"), None),))


def nothing_happens(outcome: Outcome) -> Outcome:
    return changed(records=(), effects=())(outcome)


def given(tasks: streams.Tasks, **fields: Any) -> Tamper:
    """The member is given these tasks."""
    epochs = {one: dict.fromkeys(numbers, 2) for one, numbers in tasks.active.items()}
    return current(assigned=tasks, assignment_epochs=epochs, **fields)


def current(**fields: Any) -> Tamper:
    return recorded(r.StreamsGroupCurrentMemberAssignmentValue, **fields)


def target(tasks: streams.Tasks) -> Tamper:
    """Each target that is written is this one."""
    return recorded(r.StreamsGroupTargetAssignmentMemberValue, tasks=tasks)


def without_standbys(outcome: Outcome) -> Outcome:
    kind = r.StreamsGroupTargetAssignmentMemberValue
    records = tuple(
        Record(each.key, kind(streams.Tasks(each.value.tasks.active)))
        if isinstance(each.value, kind)
        else each
        for each in outcome.records
    )
    return changed(records=records)(outcome)


def commits(code: E) -> Tamper:
    return lambda _: Outcome(reply=offsets.OffsetCommitResponse(errors={ORDERS: code}))


def described(index: int = 0, **fields: Any) -> Tamper:
    """One of three descriptions differs in this."""

    def tamper(outcome: Any) -> Outcome:
        groups = list(outcome.reply.groups)
        groups[index] = changed(**fields)(groups[index])
        return replying(groups=tuple(groups))(outcome)

    return tamper


def member(**fields: Any) -> Tamper:
    """The only member is described like this."""

    def tamper(outcome: Any) -> Outcome:
        (known,) = outcome.reply.groups[0].members
        return described(members=(changed(**fields)(known),))(outcome)

    return tamper


def part(**fields: Any) -> Tamper:
    """The only subtopology is described like this, and is right otherwise."""
    right = {"source_topics": ("orders",), "state_changelog_topics": (streams.TopicInfo("store", TASKS),)}
    return described(subtopologies=(streams.DescribedSubtopology(subtopology_id="0", **{**right, **fields}),))


def in_another_order(outcome: Any) -> Outcome:
    return replying(groups=outcome.reply.groups[::-1])(outcome)


STATUS = (streams.Status(streams.StatusCode.SHUTDOWN_APPLICATION, ""),)
OTHER_OFFSET = offsets.OffsetFetchResponse(
    group_id="g", offsets={ORDERS: offsets.OffsetAndMetadata(offset=8)}
)
NO_TARGET = without(r.StreamsGroupTargetAssignmentMemberKey, r.StreamsGroupTargetAssignmentMetadataKey)

TWO = "join a; join b; wait 3"
"""Two members have joined, and know nothing of their tasks."""
FORMED = TWO + "; beat a has; beat b has; beat a has; beat b has"
ROUTED = "join a endpoint; join b endpoint; wait 3; beat a none; beat b none; beat a has"
ALONE = "join a; wait 3"
HAS_ALL = ALONE + "; beat a none; beat a has"
REVOKES = ALONE + "; beat a none; join b; beat a has; keep a; join c; join d; beat a kept"

STEPS: list[tuple[str, Tamper | None, str]] = [
    # The last column has an invariant as often as it is reported.
    # Replies.
    (FORMED + "; beat a", replying(member_epoch=9), "streams-replies"),
    (FORMED + "; beat a", replying(tasks=streams.NO_TASKS), "streams-replies"),
    (FORMED + "; beat a", replying(status=STATUS), "streams-replies"),
    (FORMED + "; beat a", replying(error_code=E.FENCED_MEMBER_EPOCH), "streams-answers"),
    (FORMED + "; beat a", replying(error_code=E.UNKNOWN_MEMBER_ID), "streams-answers"),
    (FORMED + "; join c", only(error_code=E.GROUP_MAX_SIZE_REACHED), "streams-answers"),
    (FORMED + "; beat a shutdown; beat b; beat b", replying(status=()), "streams-replies"),
    (ALONE + "; beat a none", replying(tasks=None), "streams-replies"),
    (ROUTED + "; beat a has", replying(partitions_by_endpoint=None), "streams-endpoints"),
    (ROUTED + "; beat a has", replying(partitions_by_endpoint=()), "streams-endpoints"),
    (ROUTED + "; beat a has", replying(endpoint_information_epoch=0), "streams-endpoints"),
    # Descriptions. Internal topics have the number that was declared, none, or the one that they have now.
    (HAS_ALL + "; describe", part(state_changelog_topics=(streams.TopicInfo("store", 0),)), ""),
    *(
        (HAS_ALL + "; describe", tamper, "streams-described")
        for tamper in (
            replying(groups=()), in_another_order,
            described(group_state="NotReady"), described(group_epoch=9), described(assignment_epoch=9),
            described(topology_epoch=9), described(members=()), described(subtopologies=()),
            described(error_code=E.GROUP_ID_NOT_FOUND), described(1, error_code=E.NONE),
            described(2, error_code=E.GROUP_ID_NOT_FOUND),
            described(1, subtopologies=(streams.DescribedSubtopology(subtopology_id="0"),)),
            member(member_epoch=9), member(process_id="q"), member(client_id="another"),
            member(assignment=streams.NO_TASKS), member(target_assignment=streams.Tasks({"0": (0,)})),
            part(source_topics=()), part(repartition_sink_topics=("orders",)),
            part(state_changelog_topics=()), part(state_changelog_topics=(streams.TopicInfo("store", 3),)),
        )
    ),
    # Epochs.
    (FORMED + "; epoch_is_raised", None, "streams-epochs streams-delays streams-replies"),
    (FORMED + "; join c", recorded(r.StreamsGroupMetadataValue, epoch=3), "streams-epochs " * 2),
    # A commit or heartbeat whose response was lost comes with the epoch from which the member moved.
    (FORMED + "; join c; beat a has", current(previous_member_epoch=0), "streams-epochs"),
    # A revocation that follows another raises the epoch by one.
    (REVOKES, current(member_epoch=2), "streams-epochs streams-replies"),
    (REVOKES, current(member_epoch=4), "streams-epochs streams-replies"),
    # Targets.
    (TWO, target(streams.Tasks({"0": (0, 1, 2)})), "streams-target " * 3),
    (TWO, target(streams.Tasks({"0": (9,)})), "streams-target"),
    (TWO, target(streams.Tasks({}, {"0": (0,)})), "streams-target streams-standby"),
    (FORMED + "; join c", NO_TARGET, "streams-delays streams-reconciles streams-replies"),
    ("join a; timers_are_lost; beat a none", None, "streams-delays"),
    ("join a; later 6; beat a none", None, "streams-delays " * 2),
    ("join a; leave a none; later 60; end", None, ""),
    # Tasks.
    (TWO + "; beat a none; beat b none", given(streams.Tasks({"0": (0, 1)})),
     "streams-one-owner streams-replies" + " streams-reconciles" * 2),
    (ALONE + "; beat a none", given(streams.NO_TASKS), "streams-reconciles streams-replies"),
    # Sessions.
    (FORMED + "; later 40; beat a has; beat b has; contacts_are_old; wait 10", None, "streams-sessions " * 2),
    (FORMED + "; later 50; beat a has", None, "streams-sessions"),
    (FORMED + "; beat a has map=0; wait 30; refused a; endpoints 3; beat b has map=3; wait 20;"
     "beat b has map=3; members a b", None, ""),
    (FORMED + "; wait 30; beat b has; refused a -1; wait 20; members b", None, ""),
    # What is kept.
    (FORMED + "; contact_leaks; end", None, "streams-bookkeeping"),
    (FORMED + "; journal_breaks; end", None, "journal-replay"),
    *(
        (
            "join a described; join b described",
            recorded(r.StreamsGroupMemberMetadataValue, **{field: other}),
            "streams-bookkeeping",
        )
        for field, other in {
            "process_id": "other", "rack_id": "other", "client_id": "other", "client_tags": {},
            "topology_epoch": 7,
        }.items()
    ),
    # Commits and fetches.
    (FORMED + "; commit a; commit a", commits(E.STALE_MEMBER_EPOCH), "streams-commits"),
    (FORMED + "; commit a 9; commit a 9", commits(E.NONE), "streams-commits"),
    (FORMED + "; commit c; commit c", commits(E.NONE), "streams-commits"),
    (FORMED + "; commit a", commits(E.COORDINATOR_NOT_AVAILABLE), ""),
    (FORMED + "; commit a; fetch; fetch 2; fetch", lambda _: Outcome(reply=OTHER_OFFSET), "streams-commits"),
    # A member that missed its tasks joins again.
    (ALONE + "; hears 0 none; beat a none; hears 2", None, "streams-reconciles"),
    (ALONE + "; hears 0 none; beat a none; hears 1 all; hears 2", None, ""),
    (ALONE + "; hears 0 none; beat a none; hears 2 - FENCED_MEMBER_EPOCH", None, ""),
    (ALONE + "; hears 0 none; beat a none; hears 1 all; hears 2 - FENCED_MEMBER_EPOCH", None, ""),
    # One that joins or leaves ignores an earlier response.
    ("join a; asks 1; asks -1; hears 1", None, ""),
    ("join a; asks 1; asks 0; hears 1", None, ""),
    ("join a; asks 1; asks 1; hears 1", None, "streams-reconciles"),
    # A whole life.
    (FORMED + "; join c" + "; beat a has; beat b has; beat c has" * 3 + "; leave a; wait 30; beat b has;"
     "beat a none e=7; wait 20; end; members b; stranger", None, ""),
]  # fmt: skip

STANDING = [
    (FORMED + "; end; has_standbys", None, ""),
    (TWO, without_standbys, "streams-standby " * TASKS),
    # A standby task becomes active after its release, which this heartbeat has confirmed.
    (FORMED + "; leave b; beat a has; keep_active a; beat a kept; has_kept a; beat a kept; has_all a", None,
     ""),
    (FORMED + "; leave b; beat a has; keep_active a; beat a kept",
     given(ALL, state=StreamsGroupMemberState.STABLE.code), "streams-reconciles " * 2 + "streams-replies"),
]  # fmt: skip
TABLES: list[tuple[dict[str, Any], list[tuple[str, Tamper | None, str]]]] = [
    ({}, STEPS),
    ({"group_streams_num_standby_replicas": 1}, STANDING),
    ({"names": "orders"}, [("join a; beat a none", nothing_happens, "streams-topics")]),
]


@pytest.mark.parametrize(
    ("settings", "script", "tamper", "broken"),
    [(settings, *row) for settings, rows in TABLES for row in rows],
)
def test_a_step(settings: dict[str, Any], script: str, tamper: Tamper | None, broken: str) -> None:
    scene = Scene(**settings)
    scene.play_wrongly(script, tamper)
    assert sorted(scene.found) == sorted(broken.split())
    if tamper is not None:
        assert Scene(**settings).play(script) == set()


def test_nothing_is_late_while_the_log_refuses_records() -> None:
    """And not at once when it takes them again: a removal is tried again half a second later."""
    scene = Scene(FORMED)
    begun, ended, late = [scene.now_ms + ms for ms in (40_000, 50_000, 53_000)]
    scene.judge.on_fault("append-failure", "begin", "", begun * 1_000)
    scene.judge._late(scene.group, ended)
    scene.judge.on_fault("append-failure", "end", "", ended * 1_000)
    scene.judge._late(scene.group, ended + 1_000)
    assert scene.found == []
    scene.judge._late(scene.group, late)
    assert scene.broken == {"streams-sessions"}


@pytest.mark.parametrize(("release", "epochs"), [("4.3", [1, 2]), ("4.4", [1, 1])])
def test_a_member_that_joins_again_is_news_only_until_4_4(release: str, epochs: list[int]) -> None:
    scene, told = Scene(TWO, release_version=ReleaseVersion(release)), []
    for _ in epochs:
        assert scene.play("join a endpoint map=-1") == set()
        told.append(scene.soft.endpoint_epoch)
    assert told == epochs
