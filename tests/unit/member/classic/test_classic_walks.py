"""A classic member in any order of things: only arrows of its table, no spinning, and every close ends."""

from __future__ import annotations

import random
from typing import Any

from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.consumer import LeaveGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import (
    CallbackKind,
    CommitFinished,
    FetchOffsets,
    FindLogOffsets,
    FindOffsetsByDuration,
    LeaveFinished,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.classic.actions import ClassicMoved, CountPartitions, SendGroupRequest
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.machine import ClassicMember
from fencepost.member.classic.states import CLASSIC_MEMBER

CODES = (
    *[ErrorCode.NONE] * 12,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
RESETS = ("earliest", "latest", "by_duration:PT1H", "none")
FATAL = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED)


class Sticky(RangeAssignor):
    name = "range"
    cooperative = True


class Walk:
    """One member; whatever it has asked is answered in any order, in any way, or not at all."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0
        self.reset = rng.choice(RESETS)
        assignor = Sticky() if rng.random() < 0.5 else RangeAssignor()
        config = ClassicConfig(
            enable_auto_commit=rng.random() < 0.5,
            auto_offset_reset=self.reset,
            max_poll_interval_ms=8_000,
            group_instance_id="static" if rng.random() < 0.3 else None,
            metadata_max_age_ms=5_000,
        )
        self.member = ClassicMember("g", config, random.Random(seed), (assignor,))
        self.open: list[Any] = []
        self.commits: set[int] = set()
        self.left = 0
        self.owned: set[TopicPartition] = set()
        self.generation = 0
        self.moves: set[tuple[Any, Any, Any]] = set()
        self.fatal_codes = rng.random() < 0.3

    def do(self, actions: Any) -> None:
        for action in actions:
            match action:
                case ClassicMoved():
                    self.moves.add((action.source, action.event, action.target))
                case CommitFinished():
                    self.commits.discard(action.commit_id)
                case LeaveFinished():
                    self.left += 1
                case RunCallback():
                    assert not any(isinstance(each, RunCallback) for each in self.open), "they overlap"
                    if action.kind is CallbackKind.ASSIGNED:
                        assert not self.owned & set(action.partitions), "assigned twice"
                        self.owned |= set(action.partitions)
                    else:
                        assert set(action.partitions) <= self.owned, "not its own"
                    self.open.append(action)
                case _ if hasattr(action, "token"):
                    self.open.append(action)

    def code(self) -> ErrorCode:
        if self.fatal_codes and self.rng.random() < 0.1:
            return self.rng.choice(FATAL)
        return self.rng.choice(CODES)

    def answer(self, action: Any) -> None:
        member, now, code = self.member, self.now, self.code()
        if not isinstance(action, RunCallback) and self.rng.random() < 0.15:
            self.do(member.request_failed(action.token, self.rng.choice(list(RequestFailure)), now))
            return
        match action:
            case RunCallback():
                if action.kind is not CallbackKind.ASSIGNED:
                    self.owned -= set(action.partitions)
                error = KeyError("x") if self.rng.random() < 0.1 else None
                self.do(member.callback_finished(action.token, error, now))
            case SendFindCoordinator() if code in FATAL:
                self.do(member.coordinator_refused(action.token, code, now))
            case SendFindCoordinator():
                self.do(member.coordinator_found(action.token, now))
            case FetchOffsets():
                committed = [each for each in action.request.partitions or () if self.rng.random() < 0.5]
                offsets = dict.fromkeys(committed, OffsetAndMetadata(offset=5))
                response = OffsetFetchResponse(group_id="g", offsets=offsets)
                self.do(member.offsets_fetched(action.token, response, now))
            case FindLogOffsets() | FindOffsetsByDuration():
                self.check_question(action)
                found = [each for each in action.partitions if self.rng.random() < 0.8]
                self.do(member.log_offsets_found(action.token, dict.fromkeys(found, 0), now))
            case SendCommit():
                errors = dict.fromkeys(action.request.offsets, code)
                self.do(member.commit_answered(action.token, OffsetCommitResponse(errors=errors), now))
            case CountPartitions():
                counts = {"t": self.rng.randint(1, 4)}
                self.do(member.partitions_counted(action.token, counts, now))
            case SendGroupRequest():
                self.do(member.group_answered(action.token, self.response(action.request, code), now))

    def check_question(self, action: FindLogOffsets | FindOffsetsByDuration) -> None:
        """The logs are asked what the policy says."""
        if isinstance(action, FindOffsetsByDuration):
            assert (self.reset, action.duration_ms) == ("by_duration:PT1H", 3_600_000)
        else:
            assert self.reset == ("earliest" if action.earliest else "latest")

    def response(self, request: Any, code: ErrorCode) -> Any:
        match request:
            case classic.JoinGroupRequest() if not request.member_id and request.instance_id is None:
                return classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
            case classic.JoinGroupRequest() if code:
                return classic.JoinGroupResponse(error_code=code)
            case classic.JoinGroupRequest():
                self.generation += 1
                leader = self.rng.choice(["m", "other"])
                me = classic.JoinGroupMember(
                    member_id="m",
                    metadata=consumer_protocol.write_subscription(
                        consumer_protocol.ConsumerProtocolSubscription(topics=("t",))
                    ),
                )
                return classic.JoinGroupResponse(
                    generation=self.generation,
                    protocol_name="range",
                    leader=leader,
                    member_id="m",
                    members=(me,) if leader == "m" else (),
                )
            case classic.SyncGroupRequest():
                numbers = tuple(number for number in range(4) if self.rng.random() < 0.5)
                data = consumer_protocol.write_assignment(
                    consumer_protocol.ConsumerProtocolAssignment(partitions={"t": numbers} if numbers else {})
                )
                return classic.SyncGroupResponse(error_code=code, assignment=data)
            case classic.HeartbeatRequest():
                return classic.HeartbeatResponse(error_code=code)
        return LeaveGroupResponse(error_code=code)

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        for _ in range(800):
            due = self.member.deadline_ms
            if due is None or due > until:
                self.now = until
                return
            self.now = max(self.now, due)
            self.do(self.member.deadline_reached(self.now))
        raise AssertionError(f"it spins in {self.member.state}")

    def step(self) -> None:
        member, rng = self.member, self.rng
        choice = rng.random()
        if self.open and choice < 0.55:
            at = rng.randrange(len(self.open))
            if not isinstance(self.open[at], RunCallback) or rng.random() < 0.5:
                self.answer(self.open.pop(at))
        elif choice < 0.75:
            self.do(member.poll_begin(self.now))
            if rng.random() < 0.8:
                consumed = {partition: at + 1 for partition, at in member.positions.fetchable().items()}
                self.do(member.poll_end(consumed, self.now))
        elif choice < 0.9:
            self.pass_time(rng.choice([1, 100, 1_000, 3_000, 9_000]))
        elif choice < 0.93:
            commit_id, actions = member.commit(None, self.now)
            self.commits.add(commit_id)
            self.do(actions)
        elif choice < 0.94:
            self.do(member.rejoin(self.now))
        elif choice < 0.95:
            for partition in list(member.positions.fetchable()):
                self.do(member.offset_out_of_range(partition, self.now))
        elif choice < 0.98:
            self.do(member.subscribe(rng.choice([("t",), ("t", "u"), ()]), None, self.now))
        else:
            self.do(member.subscribe(("t",), None, self.now))

    def close(self) -> None:
        """Less and less is answered, but callbacks end."""
        self.do(self.member.close(self.now, self.rng.choice(list(CloseOption)), 5_000))
        while self.open:
            self.pass_time(self.rng.choice([0, 0, 0, 3_000]))
            action = self.open.pop(self.rng.randrange(len(self.open)))
            if isinstance(action, RunCallback) or self.rng.random() < 0.5:
                self.answer(action)
        before = self.left
        self.pass_time(5_000)
        assert self.left > before or before, "the close never ends"
        self.pass_time(100_000)
        assert not self.commits, "a commit never ends"
        assert self.member.deadline_ms is None


def test_any_walk_keeps_to_the_table_and_every_arrow_is_taken() -> None:
    taken: set[tuple[Any, Any, Any]] = set()
    for seed in range(800):
        walk = Walk(seed)
        walk.do(walk.member.subscribe(("t",), None, 0))
        for _ in range(walk.rng.randrange(250)):
            walk.step()
        walk.close()
        taken |= walk.moves
    assert {tuple(arrow) for arrow in CLASSIC_MEMBER.transitions} - taken == set()
