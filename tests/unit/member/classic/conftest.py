"""A classic member under a script: the test plays coordinator, application and clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import (
    FetchOffsets,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.classic.actions import ClassicMoved, CountPartitions, SendGroupRequest
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.machine import ClassicMember
from fencepost.member.classic.states import ClassicMemberState as S


class Cooperative(RangeAssignor):
    """Keeps what it has; its user data tell one join from another."""

    name = "cooperative"
    cooperative = True

    def __init__(self) -> None:
        self.joins = 0
        self.taken: list[consumer_protocol.ConsumerProtocolAssignment] = []
        self.again_ms: int | None = None

    def user_data(self) -> bytes | None:
        self.joins += 1
        return bytes([self.joins])

    def on_assignment(self, assignment: consumer_protocol.ConsumerProtocolAssignment) -> int | None:
        self.taken.append(assignment)
        return self.again_ms


class Rig:
    """One member; what it sends is kept until the test answers it, callbacks end at once unless held."""

    def __init__(self, assignor: Any = None, **config: Any) -> None:
        self.now = 1_000_000
        self.assignor = assignor or Cooperative()
        settings = ClassicConfig(**{"enable_auto_commit": False, "auto_offset_reset": "earliest", **config})
        self.member = ClassicMember("g", settings, random.Random(7), (self.assignor,))
        self.sent: list[Any] = []
        self.calls: list[tuple[str, list[int]]] = []
        self.held: list[RunCallback] | None = None
        self.other: list[Any] = []
        self.moves: list[ClassicMoved] = []
        self.lookups = 0

    def do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case ClassicMoved():
                    self.moves.append(action)
                case SendFindCoordinator():
                    self.lookups += 1
                    self.do(self.member.coordinator_found(action.token, self.now))
                case FetchOffsets():
                    assert action.request.member_epoch == -1
                    offsets = dict.fromkeys(action.request.partitions or (), OffsetAndMetadata(offset=5))
                    answer = OffsetFetchResponse(group_id="g", offsets=offsets)
                    self.do(self.member.offsets_fetched(action.token, answer, self.now))
                case RunCallback():
                    self.calls.append((str(action.kind), [each.partition for each in action.partitions]))
                    if self.held is not None:
                        self.held.append(action)
                    else:
                        self.do(self.member.callback_finished(action.token, None, self.now))
                case SendGroupRequest() | CountPartitions() | SendCommit():
                    self.sent.append(action)
                case _:
                    self.other.append(action)

    def poll(self, **consumed: int) -> None:
        self.do(self.member.poll_begin(self.now))
        offsets = {TopicPartition("t", int(name[1:])): offset for name, offset in consumed.items()}
        if offsets:
            self.do(self.member.poll_end(offsets, self.now))

    def take(self, kind: type) -> Any:
        """The only request under way, which has to be of this kind."""
        (action,) = self.sent
        self.sent.clear()
        request = action if kind is CountPartitions else action.request
        assert isinstance(request, kind), request
        self.token = action.token
        return request

    def answer(self, response: Any) -> None:
        self.do(self.member.group_answered(self.token, response, self.now))

    def pass_time(self, ms: int) -> None:
        """To each deadline on the way."""
        until = self.now + ms
        while (due := self.member.deadline_ms) is not None and due <= until:
            self.now = max(self.now, due)
            before = self.member.deadline_ms
            self.do(self.member.deadline_reached(self.now))
            assert self.member.deadline_ms != before or before is None or before > self.now, "it spins"
        self.now = until

    # -- whole scenes ------------------------------------------------------------------------------------

    def subscribe(self) -> classic.JoinGroupRequest:
        self.do(self.member.subscribe(("t",), None, self.now))
        self.poll()
        return self.take(classic.JoinGroupRequest)

    def joined(self, generation: int = 1, *, leads: bool = False, member_id: str = "m") -> None:
        me = classic.JoinGroupMember(
            member_id=member_id,
            metadata=consumer_protocol.write_subscription(
                consumer_protocol.ConsumerProtocolSubscription(topics=("t",))
            ),
        )
        self.answer(
            classic.JoinGroupResponse(
                generation=generation,
                protocol_type="consumer",
                protocol_name=self.assignor.name,
                leader=member_id if leads else "other",
                member_id=member_id,
                members=(me,) if leads else (),
            )
        )

    def synced(self, *numbers: int) -> None:
        given = consumer_protocol.ConsumerProtocolAssignment(partitions={"t": numbers} if numbers else {})
        self.answer(classic.SyncGroupResponse(assignment=consumer_protocol.write_assignment(given)))

    def stable(self, *numbers: int) -> None:
        """In generation 1 with these partitions."""
        self.subscribe()
        self.joined()
        self.take(classic.SyncGroupRequest)
        self.synced(*numbers)
        assert self.member.state is S.STABLE

    def beat(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """The next heartbeat, and its answer."""
        self.pass_time(3_000)
        self.take(classic.HeartbeatRequest)
        self.answer(classic.HeartbeatResponse(error_code=code))


@pytest.fixture
def new_rig() -> type[Rig]:
    """Makes members."""
    return Rig
