"""Clients whose requests are all that is known: a real coordinator's answers, and who keeps to them."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.checkers.clients import Clients

X = "XXXXXXXXXXXXXXXXXXXXXX"
E = ErrorCode
LOG = "app-store-changelog"
STORE = streams.TopicInfo(name=LOG)
TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("x",), state_changelog_topics=(STORE,)),))
CONFIG = GroupCoordinatorConfig(group_streams_initial_rebalance_delay_ms=0)


def image(*names):
    return TopicsImage.of([Topic(topic_id=name[0].upper() * 22, name=name, partitions=4) for name in names])


class Scene:
    """A coordinator whose clients are judged: what is reported of them is in `found`."""

    def __init__(self):
        self.live = GroupCoordinator(CONFIG)
        self.found = []
        self.messages = []
        self.now_ms = 0
        self.log_ends = {}
        self.checker = Clients()
        world = SimpleNamespace(
            coordinators={"b": SimpleNamespace(coordinator=self.live)}, log_ends=self.log_ends
        )
        self.checker.attach(world, self.report)
        self.topics("x", LOG)

    def report(self, invariant, message, rule=""):
        self.found.append(invariant)
        self.messages.append(message)

    def topics(self, *names):
        self.step(TopicsChanged(image=image(*names)))

    def step(self, event, told=None):
        """One event; `told` is the epoch that is answered instead of the right one."""
        self.now_ms += 2_000
        outcome = self.live.handle(event, self.now_ms)
        for record in outcome.records:
            self.live.apply(record)
        if told is not None:
            reply = msgspec.structs.replace(outcome.reply, member_epoch=told)  # type: ignore[type-var]
            outcome = msgspec.structs.replace(outcome, reply=reply)
        self.checker.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply


class Consumer:
    """A member of a consumer group that does what a test says."""

    group_id = "g"

    def __init__(self, scene, member_id):
        self.scene, self.member_id = scene, member_id

    @property
    def stored(self):
        return self.scene.live.groups["g"].members[self.member_id]

    @property
    def target(self):
        return self.scene.live.groups["g"].targets[self.member_id]

    def heartbeat(self, epoch=None, owned=None, told=None, **fields):
        """At its stored epoch, unless the test has another; nothing listed, or `owned`."""
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.stored.member_epoch if epoch is None else epoch,
            topic_partitions=owned,
            **fields,
        )
        reply = self.scene.step(request, told)
        assert reply.error_code is E.NONE, reply.error_message
        return reply

    def join(self, told=None):
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("x",)}
        return self.heartbeat(0, {}, told, **fields)

    def confirm(self):
        """It owns what it was given."""
        self.heartbeat(owned=self.stored.assigned)

    def commit(self, epoch=None, **fields):
        """For a partition that it owns."""
        ((_, (number, *_)),) = self.stored.assigned.items()
        return commit(self, number, epoch, **fields)


class Thread:
    """A member of a streams group that does what a test says: a process of its own."""

    group_id = "app"

    def __init__(self, scene, member_id):
        self.scene, self.member_id = scene, member_id

    @property
    def stored(self):
        return self.scene.live.streams.groups["app"].members[self.member_id]

    @property
    def target(self):
        return self.scene.live.streams.groups["app"].targets[self.member_id]

    def heartbeat(self, epoch=None, owned=None, told=None, **fields):
        """At its stored epoch, unless the test has another; nothing listed, or `owned`."""
        if owned is not None:
            fields |= {"active_tasks": owned.active, "standby_tasks": owned.standby, "warmup_tasks": {}}
        request = streams.StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id=self.member_id,
            member_epoch=self.stored.member_epoch if epoch is None else epoch,
            **fields,
        )
        reply = self.scene.step(request, told)
        assert reply.error_code is E.NONE, reply.error_message
        return reply

    def join(self, told=None):
        fields = {"rebalance_timeout_ms": 60_000, "topology": TOPOLOGY, "process_id": self.member_id}
        return self.heartbeat(0, streams.NO_TASKS, told, **fields)

    def confirm(self):
        """It owns what it was given."""
        self.heartbeat(owned=self.stored.assigned)

    def commit(self, epoch=None, **fields):
        """For the partition of an active task that it owns."""
        return commit(self, self.stored.assigned.active["0"][0], epoch, **fields)


def commit(member, number, epoch, **fields):
    """One offset at the member's stored epoch, unless the test has another."""
    request = OffsetCommitRequest(
        group_id=member.group_id,
        member_id=member.member_id,
        member_epoch=member.stored.member_epoch if epoch is None else epoch,
        offsets={TopicPartition("x", number): OffsetAndMetadata(offset=1)},
        **fields,
    )
    (code,) = member.scene.step(request).errors.values()
    return code


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture(params=[Consumer, Thread])
def pair(request, scene):
    """Two members: the first has everything and has said so, the second has just joined."""
    one, two = (request.param(scene, name) for name in ("one", "two"))
    one.join()
    one.confirm()
    two.join()
    assert scene.found == []
    return one, two


def test_members_that_keep_to_their_answers(scene, pair):
    one, two = pair
    before = one.stored
    one.heartbeat(owned=before.assigned)
    assert one.stored.state.startswith("UNREVOKED")
    one.heartbeat(owned=before.assigned)  # it has not let go yet
    one.confirm()
    one.heartbeat()
    two.heartbeat()
    two.confirm()
    assert one.stored.state == two.stored.state == "STABLE"
    assert one.stored.assigned != before.assigned
    assert two.stored.assigned
    assert scene.found == []


def test_a_member_whose_answer_was_lost(scene, pair):
    """It comes again with the epoch before, and with all that it owned then: a part of what it has now."""
    one, two = pair
    one.heartbeat(owned=one.stored.assigned)
    one.confirm()
    lost = two.heartbeat()
    assert lost.member_epoch == two.stored.member_epoch
    two.heartbeat(two.stored.previous_member_epoch, two.stored.assigned)
    assert scene.found == []


def test_a_member_that_joins_again(scene, pair):
    one, _ = pair
    one.join()
    one.heartbeat()
    one.confirm()
    assert scene.found == []


def test_an_epoch_that_nobody_was_told_is_found(scene, pair):
    one, _ = pair
    told = one.stored.member_epoch
    one.confirm()
    one.heartbeat(told=99)  # and it moves on, without knowing
    one.heartbeat(owned=one.stored.assigned, told=99)
    assert one.stored.member_epoch != told
    assert scene.found == []
    one.heartbeat()
    assert scene.found == ["epoch-as-answered"]
    assert f"sent epoch {one.stored.member_epoch}, it received [{told}, 99]" in scene.messages[0]


def test_a_member_that_says_it_owns_another_one_s_is_found(scene, pair):
    one, two = pair
    two.heartbeat(owned=one.stored.assigned)
    assert scene.found == ["owned-honest"]


def test_a_member_that_still_lists_what_it_has_let_go_of_is_found(scene, pair):
    one, _ = pair
    before = one.stored.assigned
    one.heartbeat(owned=before)
    one.confirm()
    assert one.stored.assigned != before
    assert scene.found == []
    one.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


def test_a_member_that_lists_what_it_is_about_to_be_told_of_is_found(scene, pair):
    one, two = pair
    one.heartbeat(owned=one.stored.assigned)
    one.confirm()
    assert two.stored.assigned != two.target
    two.heartbeat(owned=two.target)
    assert two.stored.assigned == two.target
    assert scene.found == ["owned-honest"]


def test_a_member_that_left_owns_nothing(scene, pair):
    one, _ = pair
    before = one.stored.assigned
    one.heartbeat(-1)
    assert [member_id for _, member_id in scene.checker._clients] == ["two"]
    one.join()
    assert scene.found == []
    one.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


def test_who_was_not_looked_at_before_is_believed(scene, pair):
    one, two = pair
    scene.checker._clients.clear()
    two.heartbeat(owned=one.stored.assigned)
    assert scene.found == []


def test_who_was_not_looked_at_before_may_have_what_the_coordinator_says(scene, pair):
    one, two = pair
    before = one.stored.assigned
    one.heartbeat(owned=before)
    assert one.stored.pending_revocation
    scene.checker._clients.clear()
    for each in (one, two):
        each.heartbeat()
    one.heartbeat(owned=before)
    assert scene.found == []
    two.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


def test_a_refused_heartbeat_says_nothing(scene, pair):
    one, two = pair
    with pytest.raises(AssertionError, match="epoch"):
        two.heartbeat(98, one.stored.assigned)
    assert scene.found == []


def test_partitions_of_a_topic_that_is_gone_are_nobody_s(scene):
    one = Consumer(scene, "one")
    one.join()
    one.confirm()
    before = one.stored.assigned
    scene.topics()
    one.heartbeat(owned={})
    assert one.stored.assigned == one.stored.pending_revocation == {}
    one.heartbeat(owned=before)
    assert scene.found == []


@pytest.fixture(params=[Consumer, Thread])
def slow(request, scene):
    """It was given everything when it joined, and half of it was taken away before it had done that."""
    made, other = (request.param(scene, name) for name in ("one", "two"))
    made.join()
    before = made.stored.assigned
    other.join()
    made.heartbeat(owned=type(before)())
    assert made.stored.state == "STABLE", "what it did not list counts as released"
    assert made.stored.assigned != before
    return made, before


def test_a_member_may_still_do_what_it_was_told_before(scene, slow):
    member, before = slow
    member.heartbeat()
    member.heartbeat(owned=before)
    member.heartbeat(owned=before)  # after an error it says everything again
    member.confirm()
    member.confirm()
    assert scene.found == []


def test_a_member_does_what_it_was_told_once(scene, slow):
    member, before = slow
    member.heartbeat(owned=before)
    member.confirm()
    assert scene.found == []
    member.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


def test_a_member_that_joins_again_was_told_nothing_yet(scene, slow):
    member, before = slow
    member.join()
    member.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


# -- tasks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def thread(scene):
    """The only member, which owns all four tasks as active ones."""
    made = Thread(scene, "one")
    made.join()
    made.confirm()
    assert made.stored.assigned == streams.Tasks(active={"0": (0, 1, 2, 3)})
    return made


@pytest.mark.parametrize(
    ("owned", "message"),
    [
        (streams.Tasks(active={"0": (0, 1)}), None),
        (streams.NO_TASKS, None),
        (streams.Tasks(active={"0": (1, 2, 3)}, standby={"0": (0,)}), "{standby 0: 0}"),
        (streams.Tasks(standby={"0": (2, 3)}), "{standby 0: 2 3}"),
    ],
)
def test_a_task_in_another_role_is_another_one(scene, thread, owned, message):
    thread.heartbeat(owned=owned)
    assert scene.found == ([] if message is None else ["owned-honest"])
    assert [text.partition(" listed ")[2].removesuffix(" without owning it") for text in scene.messages] == (
        [message] if message else []
    )


def test_a_standby_task_is_owned_once_it_was_given(scene):
    scene.live.set_group_config("app", GroupConfig(streams_num_standby_replicas=1))
    one, two = Thread(scene, "one"), Thread(scene, "two")
    for each in (one, two):
        each.join()
    for each in (one, one, two, one):
        each.confirm()
    assert one.stored.assigned.active
    assert one.stored.assigned.standby
    assert scene.found == []
    swapped = streams.Tasks(active=one.stored.assigned.standby, standby=one.stored.assigned.active)
    one.heartbeat(owned=swapped)
    assert scene.found == ["owned-honest"]


def test_tasks_whose_topics_are_gone_are_listed_until_they_are_let_go_of(scene, thread):
    before = thread.stored.assigned
    scene.topics(LOG)
    thread.heartbeat()
    assert thread.stored.pending_revocation == before
    thread.heartbeat(owned=before)
    thread.confirm()
    assert scene.found == []
    thread.heartbeat(owned=before)
    assert scene.found == ["owned-honest"]


# -- commits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "found"), [(7, []), (8, ["commit-within-processed"])])
def test_nobody_commits_beyond_the_log(scene, offset, found):
    scene.log_ends[TopicPartition("x", 0)] = 7
    offsets = {TopicPartition("x", 0): OffsetAndMetadata(offset=offset)}
    scene.step(OffsetCommitRequest(group_id="g", offsets=offsets))
    assert scene.found == found
    assert all(
        message.startswith("a client that is not a member of g committed x-0") for message in scene.messages
    )


@pytest.mark.parametrize("producer", [-1, 7])
def test_a_commit_at_an_epoch_that_nobody_was_told_is_found(scene, pair, producer):
    one, _ = pair
    told = one.stored.member_epoch
    one.confirm()
    one.heartbeat(owned=one.stored.assigned, told=99)
    assert one.stored.member_epoch != told
    assert one.commit(told, producer_id=producer) is E.NONE
    assert scene.found == []
    assert one.commit(producer_id=producer) is E.NONE
    assert scene.found == ["epoch-as-answered"]
    assert f"one of {one.group_id} commits at epoch {one.stored.member_epoch}" in scene.messages[0]
    assert scene.messages[0].endswith(f"it received [{told}, 99]")


def test_a_commit_that_is_refused_says_nothing(scene, pair):
    one, _ = pair
    assert one.commit(98) is E.STALE_MEMBER_EPOCH
    assert scene.found == []


def test_an_epoch_from_before_anybody_looked_is_believed(scene, pair):
    """Its answer may be the one that was lost, and what it read may be older still."""
    one, _ = pair
    before = one.stored.member_epoch
    one.heartbeat(owned=one.stored.assigned)
    scene.checker._clients.clear()
    one.confirm()
    assert one.stored.member_epoch > before
    assert one.commit(before) is E.NONE
    one.heartbeat(before, owned=one.stored.assigned)
    assert scene.found == []


def test_an_epoch_from_long_ago_is_believed(scene, pair):
    """Who commits what it read long ago may do so at the epoch of then, if it has the partition still."""
    one, two = pair
    first = one.stored.member_epoch
    for _ in range(6):
        for change in (lambda: two.heartbeat(-1), two.join):
            change()
            for _ in range(3):
                one.confirm()
    assert len(scene.checker._clients[one.group_id, "one"].epochs) == 8
    assert first not in scene.checker._clients[one.group_id, "one"].epochs
    assert one.commit(first) is E.NONE
    assert scene.found == []
