"""Classic groups under test: members are called by short names, and requests that wait by their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Event, Outcome, ParkedResponse

GROUP = "g"
DELAY_MS = 3_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscribing(*topics: str) -> bytes:
    return write_subscription(ConsumerProtocolSubscription(topics=topics))


class ClassicScene:
    """A coordinator with a journal, and the answers to requests by token."""

    def __init__(self, scene: Any) -> None:
        self.scene = scene
        self.answers: dict[int, Any] = {}
        self.asked: list[int] = []

    @property
    def group(self) -> ClassicGroup:
        return self.scene.coordinator.classic.groups[GROUP]

    @property
    def state(self) -> str:
        return str(self.group.state)

    def process(self, event: Event) -> Outcome:
        outcome: Outcome = self.scene.process(event)
        self._collect(outcome)
        return outcome

    def _collect(self, outcome: Outcome) -> None:
        for effect in outcome.effects:
            if isinstance(effect, ParkedResponse):
                assert effect.token in self.asked, "only what was asked is answered"
                assert effect.token not in self.answers, "nothing is answered twice"
                self.answers[effect.token] = effect.response

    def after(self, by_ms: int) -> list[Outcome]:
        """Time passes, and each thing happens when it is due."""
        end_ms = self.scene.now_ms + by_ms
        outcomes: list[Outcome] = []
        while True:
            due_ms = self.scene.coordinator.next_deadline()
            next_ms = end_ms if due_ms is None else max(self.scene.now_ms, min(due_ms, end_ms))
            happened = self.scene.after(next_ms - self.scene.now_ms)
            for outcome in happened:
                self._collect(outcome)
            outcomes += happened
            if next_ms == end_ms:
                return outcomes

    def _ask(self, request: Any) -> int:
        self.asked.append(request.token)
        outcome = self.process(request)
        if outcome.reply is not None:
            assert request.token not in self.answers
            self.answers[request.token] = outcome.reply
        return int(request.token)

    def waiting(self) -> list[int]:
        """Tokens without an answer."""
        return [token for token in self.asked if token not in self.answers]

    def join(
        self,
        member_id: str = "",
        *,
        protocols: Mapping[str, bytes] | Sequence[str] = ("range",),
        protocol_type: str = "consumer",
        **fields: Any,
    ) -> int:
        """A JoinGroup request; the id that it may lead to is `client_id`-N."""
        token = len(self.asked) + 1
        offered = protocols if isinstance(protocols, Mapping) else dict.fromkeys(protocols, subscribing("x"))
        defaults = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, "client_id": "c"}
        request = JoinGroupRequest(
            **{"group_id": GROUP, **defaults, **fields},
            member_id=member_id,
            protocol_type=protocol_type,
            protocols=tuple(JoinGroupProtocol(name, data) for name, data in offered.items()),
            new_member_suffix=str(token),
            token=token,
        )
        return self._ask(request)

    def enter(self, **fields: Any) -> tuple[str, int]:
        """A dynamic member gets its id, and joins with it: the id, and the token that waits."""
        member_id = self.joined(self.join(**fields)).member_id
        return member_id, self.join(member_id, **fields)

    def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, **fields: Any
    ) -> int:
        token = len(self.asked) + 1
        request = SyncGroupRequest(
            group_id=GROUP,
            generation=generation,
            member_id=member_id,
            assignments=dict(assignments or {}),
            token=token,
            **fields,
        )
        return self._ask(request)

    def joined(self, token: int) -> JoinGroupResponse:
        response = self.answers[token]
        assert isinstance(response, JoinGroupResponse)
        return response

    def synced(self, token: int) -> SyncGroupResponse:
        response = self.answers[token]
        assert isinstance(response, SyncGroupResponse)
        return response

    def error(self, token: int) -> str:
        """The name of the code that the request was answered with."""
        return str(self.answers[token].error_code.name)

    def beat(self, member_id: str, generation: int, **fields: Any) -> str:
        request = HeartbeatRequest(
            **{"group_id": GROUP, **fields}, member_id=member_id, generation=generation
        )
        reply = self.process(request).reply
        assert isinstance(reply, HeartbeatResponse)
        return reply.error_code.name

    def leave(self, *members: str | tuple[str, str | None]) -> list[str]:
        """Members, or pairs of member id and instance id."""
        pairs = [(each, None) if isinstance(each, str) else each for each in members]
        requests = tuple(
            consumer.LeaveGroupRequest(group_id=GROUP, member_id=member_id, instance_id=instance_id)
            for member_id, instance_id in pairs
        )
        reply = self.process(consumer.LeaveGroupBatchRequest(group_id=GROUP, members=requests)).reply
        assert isinstance(reply, consumer.LeaveGroupBatchResponse)
        return [member.error_code.name for member in reply.members]

    def commit(self, member_id: str, generation: int, **fields: Any) -> str:
        request = offsets.OffsetCommitRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=generation,
            offsets={TopicPartition("x", 0): offsets.OffsetAndMetadata(offset=7)},
            **fields,
        )
        reply = self.process(request).reply
        assert isinstance(reply, offsets.OffsetCommitResponse)
        (code,) = reply.errors.values()
        return code.name

    def stable(self, members: int, **fields: Any) -> list[str]:
        """A Stable group of so many dynamic members in its first generation; the first one leads."""
        entered = [self.enter(**fields) for _ in range(members)]
        while self.state == "PreparingRebalance":
            self.after(DELAY_MS)
        self.assign()
        assert self.state == "Stable"
        return [member_id for member_id, _ in entered]

    def assign(self) -> dict[str, int]:
        """All members sync, the leader last; the tokens by member."""
        group = self.group
        leader = group.leader
        assert leader is not None
        tokens = {m: self.sync(m, group.generation) for m in group.members if m != leader}
        assignments = {member_id: member_id.encode() for member_id in group.members}
        tokens[leader] = self.sync(leader, group.generation, assignments)
        return tokens


@pytest.fixture
def classic(scenes: Callable[..., Any]) -> ClassicScene:
    """A coordinator with Kafka's defaults and one topic `x`."""
    scene = scenes()
    scene.topics(x=4)
    return ClassicScene(scene)


@pytest.fixture
def classics(scenes: Callable[..., Any]) -> Callable[..., ClassicScene]:
    """Makes scenes with a configuration of their own."""

    def make(**config: Any) -> ClassicScene:
        scene = scenes(**config)
        scene.topics(x=4)
        return ClassicScene(scene)

    return make
