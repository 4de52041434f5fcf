"""A coordinator whose every step is judged, as a script, and what a test changes of a step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.leaving import removal_records
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    Event,
    MemberFenced,
    Outcome,
    RebalanceRequested,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.coordination import Coordination
from tests.unit.simulation.member_worlds import Scripted

IMAGE = TopicsImage.of([Topic(topic_id="X" * 22, name="x", partitions=2)], version=1)
Tamper: TypeAlias = Callable[[Any], Any]
"""Makes another outcome of an outcome."""


def same(outcome: Any) -> Any:
    return outcome


def changed(**fields: Any) -> Tamper:
    return lambda outcome: msgspec.structs.replace(outcome, **fields)


def replying(**fields: Any) -> Tamper:
    """The reply differs in this."""
    return lambda outcome: changed(reply=msgspec.structs.replace(outcome.reply, **fields))(outcome)


def only(**fields: Any) -> Tamper:
    """Nothing is written, nothing follows, and the reply differs in this."""
    return lambda outcome: Outcome(reply=msgspec.structs.replace(outcome.reply, **fields))


def recorded(kind: Any = object, **fields: Any) -> Tamper:
    """Values of that kind that have such fields are others."""

    def other(record: Record) -> Record:
        fits = isinstance(record.value, kind) and all(hasattr(record.value, name) for name in fields)
        return Record(record.key, changed(**fields)(record.value)) if fits else record

    def tamper(outcome: Any) -> Any:
        records = tuple(map(other, outcome.records))
        assert records != outcome.records
        return changed(records=records)(outcome)

    return tamper


def without(*kinds: type) -> Tamper:
    """No record has a key of these kinds."""
    return lambda outcome: changed(
        records=tuple(each for each in outcome.records if type(each.key) not in kinds)
    )(outcome)


class Judged(Scripted):
    """A coordinator of `x` with two partitions, unless there is another image, and judges of its steps."""

    settings: ClassVar[dict[str, Any]] = {}
    step_ms = 0
    """Time that passes before each step, in ms."""

    def __init__(self, *judges: Any, image: TopicsImage = IMAGE, script: str = "", **settings: Any) -> None:
        self.live = GroupCoordinator(GroupCoordinatorConfig(**{**self.settings, **settings}))
        self.journal: Any = MemoryJournal()
        self.found: list[str] = []
        self.now_ms = 0
        self.tamper: Tamper = same
        host = SimpleNamespace(coordinator=self.live)
        self.world: Any = SimpleNamespace(
            active=self.live,
            cluster=SimpleNamespace(active=self.live, brokers={"b": host}, journal=self.journal),
            config=self.live.config,
            coordinators={"b": host},
            group_id="g",
            journal=self.journal,
            journal_fails=False,
            log_ends={},
            loop=SimpleNamespace(now_us=0),
            scenario=SimpleNamespace(group=SimpleNamespace(id="g", protocol="streams")),
        )
        self.prepare()
        self.judge, self.judges = judges[0], judges
        for judge in judges:
            judge.attach(self.world, lambda invariant, message, rule="": self.report(invariant, message))
        self.step(TopicsChanged(image=image))
        assert self.play(script) == set()

    def prepare(self) -> None:
        """Complete the world, before its judges look at it."""

    def report(self, invariant: str, message: str) -> None:
        self.found.append(invariant)

    @property
    def broken(self) -> set[str]:
        """The invariants that are reported."""
        return set(self.found)

    def play(self, script: str) -> set[str]:
        """Return the invariants that are reported."""
        super().play(script)
        return self.broken

    def act(self, verb: str, *words: str) -> None:
        """A word `=CODE` is the right answer."""
        answer = getattr(self, verb)(*[word for word in words if word[0] != "="])
        answer = getattr(answer, "error_code", answer)
        assert all(answer is ErrorCode[word[1:]] for word in words if word[0] == "="), (verb, words, answer)

    def play_wrongly(self, script: str, tamper: Tamper | None) -> set[str]:
        """Return what is reported of a script whose last step goes wrong; without a change nothing is."""
        before, _, last = script.rpartition(";")
        assert self.play(before) == set()
        self.tamper = tamper or same
        return self.play(last)

    def step(self, event: Any, tamper: Tamper = same) -> Any:
        """Return the answer to one event, whose outcome may be another one."""
        self.now_ms += self.step_ms
        outcome = self.tamper(tamper(self.live.handle(event, self.now_ms)))
        self.take(event, outcome)
        return outcome.reply

    def take(self, event: Any, outcome: Any) -> None:
        if outcome.records:
            self.journal.append(outcome.records)
            self.live.apply_batch(outcome.records)
        self.show(event, outcome)

    def show(self, event: Any, outcome: Any) -> set[str]:
        """Show this outcome to the judges only; the coordinator does not see it."""
        for judge in self.judges:
            judge.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)
        return self.broken

    # -- steps that scripts of all kinds have

    def at(self, seconds: str) -> None:
        self.now_ms = round(float(seconds) * 1_000)

    def later(self, seconds: str) -> None:
        """Time passes, and no timer runs out."""
        self.now_ms += round(float(seconds) * 1_000)

    def time(self) -> None:
        """Timers that are due run out."""
        self.step(DeadlineReached())

    def wait(self, seconds: str) -> None:
        """Time passes. Only the first of its steps goes wrong."""
        self.later(seconds)
        while (due := self.live.next_deadline()) is not None and due <= self.now_ms:
            self.step(DeadlineReached(due))
            self.tamper = same

    def end(self) -> None:
        for judge in self.judges:
            judge.on_end(self.now_ms * 1_000)


REBALANCE_MS = 60_000


def beat(member_id: str, epoch: int = 2, owned: str | None = None, **fields: Any) -> Event:
    """A heartbeat to `g`, that lists partitions of `x` (`01`)."""
    if epoch == 0:
        full = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": ("x",)}
        fields, owned = {**full, **fields}, owned or ""
    partitions = {"X" * 22: tuple(map(int, owned))} if owned else {}
    fields = {"group_id": "g", "api_version": 1, **fields}
    return ConsumerGroupHeartbeatRequest(
        member_id=member_id,
        member_epoch=epoch,
        topic_partitions=None if owned is None else partitions,
        **fields,
    )


class ConsumerScene(Judged):
    """A consumer group that computes targets at once."""

    settings: ClassVar[dict[str, Any]] = {"group_consumer_assignment_interval_ms": 0}

    def __init__(self, script: str = "", **settings: Any) -> None:
        super().__init__(Coordination(), script=script, **settings)

    @property
    def group(self) -> Any:
        return self.live.groups["g"]

    def join(self, member_id: str, instance_id: str | None = None, **fields: Any) -> None:
        self.step(beat(member_id, 0, instance_id=instance_id, **fields))

    def beat(self, member_id: str, *words: str, **fields: Any) -> Any:
        """A heartbeat; words are `e=` and `i=` for epoch and instance, and partitions (`01`, or `none`)."""
        said = dict(word.split("=") for word in words if "=" in word)
        lists = ["" if word == "none" else word for word in words if "=" not in word]
        epoch = int(said["e"]) if "e" in said else self.group.members[member_id].member_epoch
        return self.step(beat(member_id, epoch, *lists, instance_id=said.get("i"), **fields))

    def rebalance(self) -> None:
        self.step(RebalanceRequested(group_id="g"))

    def gone(self, member_id: str) -> None:
        assert member_id not in self.group.members

    def load(self, seconds: str) -> None:
        """The coordinator is loaded anew."""
        self.judge.on_coordinator_state("b", "active", round(float(seconds) * 1_000_000))

    def removed(self, member_id: str, event: Event | None = None, *effects: Any) -> None:
        """A member is removed, whatever the event is."""
        release = self.live.config.release_version
        records = removal_records(self.group, (self.group.members[member_id],), IMAGE, release)
        self.take(event or DeadlineReached(), Outcome(records=records, effects=effects))

    def expires(self, member_id: str, reason: str) -> None:
        fenced = MemberFenced(group_id="g", member_id=member_id, reason=reason)
        self.removed(member_id, None, fenced)
