"""A member under a script: the test plays coordinator, application and clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import (
    FetchOffsets,
    FindLogOffsets,
    FindOffsetsByDuration,
    LeaveFinished,
    RaiseToApplication,
    ResolveTopicNames,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
    WakeApplication,
)
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.consumer.actions import (
    Action,
    ConsumerMoved,
    SendHeartbeat,
)
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import CONSUMER_MEMBER

A = TypeVar("A")

FOO, BAR = "foo-id", "bar-id"
NAMES = {FOO: "foo", BAR: "bar"}
INTERVAL_MS = 5_000


class Rig:
    """One member, the actions it has put out and not got an answer to, and everything it ever put out."""

    def __init__(self, **config: Any) -> None:
        self.now = 1_000_000
        self.config = ConsumerConfig(**{"enable_auto_commit": False, **config})
        self.member = ConsumerMember("group", "member", self.config, random.Random(7))
        self.log: list[Action] = []
        self.open: list[Action] = []
        self.moves: list[ConsumerMoved] = []
        self.errors: list[RaiseToApplication] = []
        self._fetchable: set[TopicPartition] = set()
        self.auto_names = True
        self.auto_offsets = True
        self.auto_coordinator = True

    # -- feeding -------------------------------------------------------------------------------------------

    def take(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        before, self._fetchable = self._fetchable, {*self.fetchable()}
        assert self._fetchable <= before or WakeApplication() in actions, "the application is not woken"
        for action in actions:
            self.log.append(action)
            if isinstance(action, ConsumerMoved):
                assert CONSUMER_MEMBER.check(action.source, action.event, action.target)
                self.moves.append(action)
            elif isinstance(action, RaiseToApplication):
                self.errors.append(action)
            elif hasattr(action, "token"):
                self.open.append(action)
        self._answer_the_simple_ones()
        return actions

    def _answer_the_simple_ones(self) -> None:
        for action in list(self.open):
            if isinstance(action, SendFindCoordinator) and self.auto_coordinator:
                self.open.remove(action)
                self.take(self.member.coordinator_found(action.token, self.now))
            elif isinstance(action, ResolveTopicNames) and self.auto_names:
                self.names(action, NAMES)
            elif isinstance(action, FetchOffsets) and self.auto_offsets:
                self.fetched(action, dict.fromkeys(action.request.partitions or (), 0))

    def pending(self, kind: type[A]) -> list[A]:
        return [action for action in self.open if isinstance(action, kind)]

    def one(self, kind: type[A]) -> A:
        found = self.pending(kind)
        assert len(found) == 1, f"expected one {kind.__name__}, got {found}"
        return found[0]

    def _ended(self, action: Any) -> int:
        self.open.remove(action)
        return int(action.token)

    def advance(self, ms: int) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + ms
        while (deadline := self.member.deadline_ms) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.take(self.member.deadline_reached(self.now))
        self.now = end

    # -- the application -----------------------------------------------------------------------------------

    def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        self.take(self.member.subscribe(topics, pattern, self.now))

    def poll(self, consumed: Mapping[TopicPartition, int] | None = None) -> None:
        self.poll_begin()
        self.poll_end(consumed)

    def poll_begin(self) -> None:
        self.take(self.member.poll_begin(self.now))

    def poll_end(self, consumed: Mapping[TopicPartition, int] | None = None) -> None:
        self.take(self.member.poll_end(consumed or {}, self.now))

    def unsubscribe(self) -> None:
        self.take(self.member.unsubscribe(self.now))

    def close(self, option: CloseOption = CloseOption.DEFAULT, timeout_ms: int = 30_000) -> None:
        self.take(self.member.close(self.now, option, timeout_ms))

    def callback(self, error: Exception | None = None) -> RunCallback:
        action = self.one(RunCallback)
        self.take(self.member.callback_finished(self._ended(action), error, self.now))
        return action

    # -- the cluster ---------------------------------------------------------------------------------------

    def heartbeat(self) -> consumer.ConsumerGroupHeartbeatRequest:
        """The heartbeat in flight."""
        return self.one(SendHeartbeat).request

    def answer(
        self,
        epoch: int | None = None,
        assignment: Partitions | None = None,
        *,
        error: ErrorCode = ErrorCode.NONE,
        action: SendHeartbeat | None = None,
        interval_ms: int = INTERVAL_MS,
    ) -> consumer.ConsumerGroupHeartbeatRequest:
        """Answer the heartbeat in flight; without an epoch it stays as it is."""
        action = action or self.one(SendHeartbeat)
        response = consumer.ConsumerGroupHeartbeatResponse(
            error_code=error,
            member_id="member",
            member_epoch=self.member.member_epoch if epoch is None else epoch,
            heartbeat_interval_ms=0 if error else interval_ms,
            assignment=assignment,
        )
        self.take(self.member.heartbeat_answered(self._ended(action), response, self.now))
        return action.request

    def fail(
        self, kind: type[Any] = SendHeartbeat, failure: RequestFailure = RequestFailure.DISCONNECTED
    ) -> None:
        self.take(self.member.request_failed(self._ended(self.one(kind)), failure, self.now))

    def names(self, action: ResolveTopicNames, names: Mapping[str, str]) -> None:
        known = {topic_id: names[topic_id] for topic_id in action.topic_ids if topic_id in names}
        self.take(self.member.topic_names_found(self._ended(action), known, self.now))

    def fetched(
        self,
        action: FetchOffsets,
        offsets: Mapping[TopicPartition, int],
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        found = {partition: OffsetAndMetadata(offset=offset) for partition, offset in offsets.items()}
        response = OffsetFetchResponse(group_id="group", error_code=error, offsets=found)
        self.take(self.member.offsets_fetched(self._ended(action), response, self.now))

    def log_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        kind: type[FindLogOffsets] | type[FindOffsetsByDuration] = FindLogOffsets,
    ) -> None:
        token = self._ended(self.one(kind))
        self.take(self.member.log_offsets_found(token, offsets, self.now))

    def committed(self, error: ErrorCode = ErrorCode.NONE) -> SendCommit:
        action = self.one(SendCommit)
        response = OffsetCommitResponse(errors=dict.fromkeys(action.request.offsets, error))
        self.take(self.member.commit_answered(self._ended(action), response, self.now))
        return action

    # -- shortcuts -----------------------------------------------------------------------------------------

    def join(self, *topics: str, pattern: str | None = None) -> None:
        """Up to the join in flight, the application in poll."""
        self.subscribe(*(topics or (() if pattern else ("foo",))), pattern=pattern)
        self.poll_begin()

    def stable(self, assignment: Partitions, epoch: int = 2) -> None:
        """Up to STABLE with this assignment, the application in poll, no heartbeat in flight."""
        self.join("foo", "bar")
        self.answer(epoch, assignment)
        if assignment:
            self.callback()
            self.answer(epoch)
        assert self.state == "STABLE"
        assert not self.open

    @property
    def state(self) -> str:
        return str(self.member.state)

    def fetchable(self) -> dict[TopicPartition, int]:
        return dict(self.member.positions.fetchable())

    def steps(self, since: int) -> list[str]:
        """The moves from a number on, in words."""
        return [f"{move.event} -> {move.target}" for move in self.moves[since:]]

    def leaves_finished(self) -> int:
        """How often it was said that the member has left."""
        return sum(isinstance(action, LeaveFinished) for action in self.log)


@pytest.fixture
def rig() -> Callable[..., Rig]:
    """Makes a member under a script; arguments are `ConsumerConfig` fields."""
    return Rig
