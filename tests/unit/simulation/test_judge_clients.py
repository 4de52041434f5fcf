"""Clients whose requests are all that is known: a real coordinator's answers, and who keeps to them."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.clients import Clients
from tests.unit.simulation.judged_steps import Judged, replying, same

LOG = "app-store-changelog"
STORE = streams.TopicInfo(name=LOG)
TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("x",), state_changelog_topics=(STORE,)),))


class Member:
    """A member that does what a script says: one of a consumer group."""

    group_id = "g"
    nothing: Any = MappingProxyType({})

    @property
    def join_fields(self) -> Any:
        return {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("x",)}

    def __init__(self, scene: Scene, member_id: str) -> None:
        self.scene, self.member_id = scene, member_id
        self.kept: Any = None

    @property
    def group(self) -> Any:
        return self.scene.live.groups["g"]

    @property
    def stored(self) -> Any:
        return self.group.members[self.member_id]

    def request(self, epoch: int, owned: Any, **fields: Any) -> Any:
        return ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=epoch, topic_partitions=owned, **fields
        )

    @property
    def partition(self) -> int:
        """One that it owns."""
        ((_, (number, *_)),) = self.stored.assigned.items()
        return number

    def owned(self, what: str | None) -> Any:
        """What a word of a script stands for."""
        other = "two" if self.member_id == "one" else "one"
        known = {
            None: lambda: None,
            "nothing": lambda: self.nothing,
            "mine": lambda: self.stored.assigned,
            "kept": lambda: self.kept.assigned,
            "its": lambda: self.scene.members[other].stored.assigned,
            "its-kept": lambda: self.scene.members[other].kept.assigned,
            "target": lambda: self.group.targets[self.member_id],
        }
        return known[what]()

    def epoch(self, word: str | None) -> int:
        """At its stored epoch, unless the script has another."""
        if word is None:
            return self.stored.member_epoch
        of = {"kept": "member_epoch", "previous": "previous_member_epoch"}.get(word)
        return int(word) if of is None else getattr(self.kept if word == "kept" else self.stored, of)

    # -- steps ----------------------------------------------------------------------------------------------

    def keep(self) -> None:
        self.kept = self.stored

    def is_(self, state: str) -> None:
        assert self.stored.state.startswith(state)

    def beat(
        self, owned: str | None = None, e: str | None = None, told: str | None = None, code: str = "NONE"
    ) -> None:
        """`told` is the epoch that is answered instead of the right one."""
        request = self.request(self.epoch(e), self.owned(owned))
        reply = self.scene.step(request, replying(member_epoch=int(told)) if told else same)
        assert reply.error_code is ErrorCode[code], reply.error_message

    def join(self) -> None:
        self.scene.step(self.request(0, self.nothing, **self.join_fields))

    def confirm(self) -> None:
        """It owns what it was given."""
        self.beat("mine")

    def leave(self) -> None:
        self.beat(e="-1")

    def commit(self, e: str | None = None, producer: str = "-1", code: str = "NONE") -> None:
        request = OffsetCommitRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch(e),
            offsets={TopicPartition("x", self.partition): OffsetAndMetadata(offset=1)},
            producer_id=int(producer),
        )
        assert set(self.scene.step(request).errors.values()) == {ErrorCode[code]}


class Thread(Member):
    """A member of a streams group: a process of its own."""

    group_id = "app"
    nothing = streams.NO_TASKS

    @property
    def join_fields(self) -> Any:
        return {"rebalance_timeout_ms": 60_000, "topology": TOPOLOGY, "process_id": self.member_id}

    @property
    def group(self) -> Any:
        return self.scene.live.streams.groups["app"]

    @property
    def partition(self) -> int:
        return self.stored.assigned.active["0"][0]

    def request(self, epoch: int, owned: Any, **fields: Any) -> Any:
        if owned is not None:
            fields |= {"active_tasks": owned.active, "standby_tasks": owned.standby, "warmup_tasks": {}}
        return streams.StreamsGroupHeartbeatRequest(
            group_id="app", member_id=self.member_id, member_epoch=epoch, **fields
        )


class Scene(Judged):
    """A coordinator whose clients are judged. Steps are such as `one beat owned=mine`."""

    settings: ClassVar[dict[str, Any]] = {"group_streams_initial_rebalance_delay_ms": 0}
    step_ms = 2_000

    def __init__(self, kind: type[Member] = Member, script: str = "") -> None:
        self.messages: list[str] = []
        self.members = {name: kind(self, name) for name in ("one", "two")}
        super().__init__(Clients(), image=image("x", LOG))
        assert self.play(script) == set()

    def report(self, invariant: str, message: str) -> None:
        super().report(invariant, message)
        self.messages.append(message)

    def act(self, name: str, *words: str) -> None:
        verb, *said = words
        actor: Any = self.members.get(name, self)
        plain = [word for word in said if "=" not in word]
        getattr(actor, verb)(*plain, **dict(word.split("=") for word in said if "=" in word))

    def topics(self, *names: str) -> None:
        self.step(TopicsChanged(image=image(*names)))

    def forget(self) -> None:
        """The judge has seen nothing yet."""
        self.judge._clients.clear()


def image(*names: str) -> TopicsImage:
    return TopicsImage.of([Topic(topic_id=name[0].upper() * 22, name=name, partitions=4) for name in names])


PAIR = "one join; one confirm; two join"
"""The first one has everything and has said so, the second has just joined."""
SLOW = "one join; one keep; two join; one beat nothing; one is_ STABLE"
"""It was given everything when it joined, and half of it was taken away before it had done that."""
LETS_GO = "one keep; one beat kept; one confirm"


@pytest.mark.parametrize("kind", [Member, Thread])
@pytest.mark.parametrize(
    ("before", "script", "broken"),
    [
        # All is right: two keep to their answers; a response is lost; one joins again, or says nothing.
        (
            PAIR,
            "one keep; one beat kept; one is_ UNREVOKED; one beat kept; one confirm; one beat; two beat;"
            "two confirm; one is_ STABLE; two is_ STABLE",
            [],
        ),
        (PAIR, "one beat mine; one confirm; two beat; two beat mine e=previous", []),
        (PAIR, "one join; one beat; one confirm", []),
        (PAIR, "two beat its e=98 code=FENCED_MEMBER_EPOCH", []),
        (PAIR, "one commit e=98 code=STALE_MEMBER_EPOCH", []),
        # Epochs that the member was not told.
        (PAIR, "one confirm; one beat told=99; one beat mine told=99 | one beat", ["epoch-as-answered"]),
        (
            PAIR,
            "one keep; one confirm; one beat mine told=99; one commit e=kept | one commit",
            ["epoch-as-answered"],
        ),
        (
            PAIR,
            "one keep; one confirm; one beat mine told=99; one commit e=kept producer=7 |"
            "one commit producer=7",
            ["epoch-as-answered"],
        ),
        # Partitions that it does not own: another one's, released ones, ones that it is about to be given.
        (PAIR, "two beat its", ["owned-honest"]),
        (PAIR, f"{LETS_GO} | one beat kept", ["owned-honest"]),
        (PAIR, "one beat mine; one confirm; two beat target", ["owned-honest"]),
        (PAIR, "one keep; one leave; one join | one beat kept", ["owned-honest"]),
        # Who was not looked at before is believed, and may have what the coordinator says.
        (PAIR, "- forget; two beat its", []),
        (
            PAIR,
            "one keep; one beat kept; - forget; one beat; two beat; one beat kept | two beat its-kept",
            ["owned-honest"],
        ),
        (
            PAIR,
            "one keep; one beat mine; - forget; one confirm; one commit e=kept; one beat mine e=kept",
            [],
        ),
        # A member may still do what it was told before, once.
        (SLOW, "one beat; one beat kept; one beat kept; one confirm; one confirm", []),
        (SLOW, "one beat kept; one confirm | one beat kept", ["owned-honest"]),
        (SLOW, "one join; one beat kept", ["owned-honest"]),
    ],
)
def test_members_and_their_answers(kind: type[Member], before: str, script: str, broken: list[str]) -> None:
    scene = Scene(kind, before)
    scene.play(script)
    assert scene.found == broken


@pytest.mark.parametrize("kind", [Member, Thread])
def test_a_finding_names_the_epochs(kind: type[Member]) -> None:
    scene = Scene(kind, PAIR + "; one keep; one confirm; one beat mine told=99")
    member = scene.members["one"]
    told, now = member.kept.member_epoch, member.stored.member_epoch
    scene.play("one commit; one beat")
    assert f"one of {member.group_id} commits at epoch {now}" in scene.messages[0]
    assert scene.messages[0].endswith(f"it received [{told}, 99]")
    assert f"sent epoch {now}, it received [{told}, 99]" in scene.messages[1]


@pytest.mark.parametrize("kind", [Member, Thread])
def test_a_member_that_left_is_forgotten(kind: type[Member]) -> None:
    scene = Scene(kind, PAIR + "; one leave")
    assert [member_id for _, member_id in scene.judge._clients] == ["two"]


@pytest.mark.parametrize("kind", [Member, Thread])
def test_an_epoch_from_long_ago_is_believed(kind: type[Member]) -> None:
    """Who commits what it read long ago may do so at the epoch of then, if it has the partition still."""
    scene = Scene(kind, PAIR + "; one keep")
    again = "; one confirm; one confirm; one confirm"
    scene.play(f"two leave{again}; two join{again};" * 6)
    member = scene.members["one"]
    known = scene.judge._clients[member.group_id, "one"].epochs
    assert len(known) == 8
    assert member.kept.member_epoch not in known
    assert scene.play("one commit e=kept") == set()


def test_partitions_of_a_topic_that_is_gone_are_nobody_s() -> None:
    scene = Scene(Member, "one join; one confirm; one keep; - topics; one beat nothing")
    stored = scene.members["one"].stored
    assert stored.assigned == stored.pending_revocation == {}
    assert scene.play("one beat kept") == set()


def test_tasks_whose_topics_are_gone_are_listed_until_they_are_let_go_of() -> None:
    scene = Scene(Thread, f"one join; one confirm; one keep; - topics {LOG}; one beat")
    assert scene.members["one"].stored.pending_revocation == scene.members["one"].kept.assigned
    scene.play("one beat kept; one confirm | one beat kept")
    assert scene.found == ["owned-honest"]


@pytest.mark.parametrize(
    ("owned", "message"),
    [
        (streams.Tasks(active={"0": (0, 1)}), None),
        (streams.NO_TASKS, None),
        (streams.Tasks(active={"0": (1, 2, 3)}, standby={"0": (0,)}), "{standby 0: 0}"),
        (streams.Tasks(standby={"0": (2, 3)}), "{standby 0: 2 3}"),
    ],
)
def test_a_task_in_another_role_is_another_one(owned: streams.Tasks, message: str | None) -> None:
    scene = Scene(Thread, "one join; one confirm; one keep")
    member = scene.members["one"]
    assert member.kept.assigned == streams.Tasks(active={"0": (0, 1, 2, 3)})
    member.kept = SimpleNamespace(assigned=owned)
    scene.play("one beat kept")
    assert scene.found == (["owned-honest"] if message else [])
    assert [text.partition(" listed ")[2].removesuffix(" without owning it") for text in scene.messages] == (
        [message] if message else []
    )


def test_a_standby_task_is_owned_once_it_was_given() -> None:
    scene = Scene(Thread)
    scene.live.set_group_config("app", GroupConfig(streams_num_standby_replicas=1))
    scene.play("one join; two join; one confirm; one confirm; two confirm; one confirm")
    member = scene.members["one"]
    tasks = member.stored.assigned
    assert tasks.active
    assert tasks.standby
    assert scene.found == []
    member.kept = SimpleNamespace(assigned=streams.Tasks(active=tasks.standby, standby=tasks.active))
    scene.play("one beat kept")
    assert scene.found == ["owned-honest"]


@pytest.mark.parametrize(("offset", "found"), [(7, []), (8, ["commit-within-processed"])])
def test_nobody_commits_beyond_the_log(offset: int, found: list[str]) -> None:
    scene = Scene()
    scene.world.log_ends[TopicPartition("x", 0)] = 7
    offsets = {TopicPartition("x", 0): OffsetAndMetadata(offset=offset)}
    scene.step(OffsetCommitRequest(group_id="g", offsets=offsets))
    assert scene.found == found
    told = "a client that is not a member of g committed x-0"
    assert all(message.startswith(told) for message in scene.messages)
