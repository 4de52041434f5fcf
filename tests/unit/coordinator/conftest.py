"""A coordinator under test, spoken to in terms of topic names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Event, Outcome, ResolveRegularExpressions
from tests.hosting import HostedScene

Held = Mapping[str, tuple[int, ...]]
GROUP = "g"


def topic_id(name: str) -> str:
    return f"id-of-{name}"


def by_id(partitions: Held) -> dict[str, tuple[int, ...]]:
    return {topic_id(name): tuple(numbers) for name, numbers in partitions.items()}


def by_name(partitions: Held) -> dict[str, tuple[int, ...]]:
    return {key.removeprefix("id-of-"): numbers for key, numbers in partitions.items()}


class Scene(HostedScene):
    """One coordinator of consumer groups."""

    def __init__(self, assignors: Mapping[str, Assignor] | None = None, **config: Any) -> None:
        config.setdefault("group_consumer_assignment_interval_ms", 0)
        super().__init__(assignors, **config)
        self.effects: list[ResolveRegularExpressions] = []

    @property
    def group(self) -> ConsumerGroup:
        return self.coordinator.groups[GROUP]

    def member(self, member_id: str) -> ConsumerGroupMember:
        return self.group.members[member_id]

    def process(self, event: Event) -> Outcome:
        outcome = super().process(event)
        self._collect(outcome)
        return outcome

    def _collect(self, outcome: Outcome) -> None:
        self.effects += [e for e in outcome.effects if isinstance(e, ResolveRegularExpressions)]

    def after(self, by_ms: int) -> list[Outcome]:
        outcomes = super().after(by_ms)
        for outcome in outcomes:
            self._collect(outcome)
        return outcomes

    def resolve(self) -> list[Outcome]:
        """The background work on regular expressions is done."""
        effects, self.effects = self.effects, []
        return [self.process(resolve(effect, self.image)) for effect in effects]

    def beat(
        self, member_id: str, epoch: int, owned: Held | None = None, **fields: Any
    ) -> consumer.ConsumerGroupHeartbeatResponse:
        """A heartbeat; without more fields a keepalive."""
        request = consumer.ConsumerGroupHeartbeatRequest(
            **{"group_id": GROUP, **fields},
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=None if owned is None else by_id(owned),
        )
        reply = self.process(request).reply
        assert isinstance(reply, consumer.ConsumerGroupHeartbeatResponse)
        return reply

    def join(
        self, member_id: str, topics: Iterable[str] | None = ("x",), **fields: Any
    ) -> consumer.ConsumerGroupHeartbeatResponse:
        names = None if topics is None else tuple(topics)
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names, **fields}
        return self.beat(member_id, 0, {}, **fields)

    def error(self, member_id: str, epoch: int, owned: Held | None = None, **fields: Any) -> ErrorCode:
        """The code that a heartbeat fails with; the state must not change."""
        before = self.coordinator.hard_state()
        reply = self.beat(member_id, epoch, owned, **fields)
        assert self.coordinator.hard_state() == before
        assert not self.last.records
        assert reply.error_message
        return reply.error_code

    def settle(self, *member_ids: str) -> None:
        """Members do what they are told, over as many heartbeats as it takes."""
        for _ in range(6):
            for member_id in member_ids:
                member = self.member(member_id)
                self.beat(member_id, member.member_epoch, by_name(member.assigned))

    def holds(self, member_id: str) -> tuple[int, str, Held, Held]:
        """Epoch, state, assigned, and what it has yet to let go."""
        member = self.member(member_id)
        return (
            member.member_epoch,
            member.state.value,
            by_name(member.assigned),
            by_name(member.pending_revocation),
        )

    def epochs(self) -> tuple[int, int]:
        """Group epoch and assignment epoch."""
        return self.group.group_epoch, self.group.assignment_epoch

    def target(self, member_id: str) -> Held:
        return by_name(self.group.targets.get(member_id, {}))

    def commit(self, member_id: str, epoch: int, *partitions: tuple[str, int], **fields: Any) -> list[str]:
        """The names of the codes that a commit of offset 7 gets."""
        wanted = [TopicPartition(*each) for each in partitions or [("x", 0)]]
        offset = offsets.OffsetAndMetadata(offset=7)
        request = offsets.OffsetCommitRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            offsets=dict.fromkeys(wanted, offset),
            **fields,
        )
        reply = self.process(request).reply
        assert isinstance(reply, offsets.OffsetCommitResponse)
        return [code.name for code in reply.errors.values()]


@pytest.fixture
def scene() -> Scene:
    """One topic `x` with four partitions, and targets computed without delay."""
    made = Scene()
    made.topics(x=4)
    return made


@pytest.fixture
def scenes() -> type[Scene]:
    """Makes scenes with a configuration of their own."""
    return Scene
