"""The machine of a classic member: the test plays coordinator, application and clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.assignors.range_ import RangeAssignor
from fencepost.member.classic.actions import ClassicMoved, CountPartitions, SendGroupRequest
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.machine import ClassicMember
from fencepost.member.classic.states import CLASSIC_MEMBER
from fencepost.member.classic.states import ClassicMemberState as S
from fencepost.member.consumer.actions import (
    CommitFinished,
    FetchOffsets,
    FindCoordinator,
    LeaveFinished,
    RaiseToApplication,
    RunCallback,
    SendCommit,
)
from fencepost.member.consumer.errors import Failure
from fencepost.member.consumer.leave import CloseOption

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


class Cooperative(RangeAssignor):
    """Keeps what it has; its user data tell one join from another."""

    name = "cooperative"
    cooperative = True

    def __init__(self) -> None:
        self.joins = 0
        self.taken: list[Assignment] = []
        self.again_ms: int | None = None

    def user_data(self) -> bytes | None:
        self.joins += 1
        return bytes([self.joins])

    def on_assignment(self, assignment: Assignment) -> int | None:
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

    def do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case ClassicMoved():
                    self.moves.append(action)
                case FindCoordinator():
                    self.do(self.member.coordinator_found(action.token, self.now))
                case FetchOffsets():
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
        while (due := self.member.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            before = self.member.next_deadline()
            self.do(self.member.deadline_reached(self.now))
            assert self.member.next_deadline() != before or before is None or before > self.now, "it spins"
        self.now = until

    # -- whole scenes ------------------------------------------------------------------------------------

    def subscribe(self) -> JoinGroupRequest:
        self.do(self.member.subscribe(("t",), None, self.now))
        self.poll()
        return self.take(JoinGroupRequest)

    def joined(self, generation: int = 1, *, leads: bool = False, member_id: str = "m") -> None:
        me = JoinGroupMember(member_id=member_id, metadata=write_subscription(Subscription(topics=("t",))))
        self.answer(
            JoinGroupResponse(
                generation=generation,
                protocol_type="consumer",
                protocol_name=self.assignor.name,
                leader=member_id if leads else "other",
                member_id=member_id,
                members=(me,) if leads else (),
            )
        )

    def synced(self, *numbers: int) -> None:
        given = Assignment(partitions={"t": numbers} if numbers else {})
        self.answer(SyncGroupResponse(assignment=write_assignment(given)))

    def stable(self, *numbers: int) -> None:
        """In generation 1 with these partitions."""
        self.subscribe()
        self.joined()
        self.take(SyncGroupRequest)
        self.synced(*numbers)
        assert self.member.state is S.STABLE

    def beat(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """The next heartbeat, and its answer."""
        self.pass_time(3_000)
        self.take(HeartbeatRequest)
        self.answer(HeartbeatResponse(error_code=code))


def test_a_member_gets_its_id_first_and_joins_with_it() -> None:
    rig = Rig()
    first = rig.subscribe()
    assert (first.member_id, first.session_timeout_ms, first.rebalance_timeout_ms) == ("", 45_000, 300_000)
    rig.answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"))
    assert rig.take(JoinGroupRequest).member_id == "m"
    rig.joined()
    sync = rig.take(SyncGroupRequest)
    assert (sync.generation, sync.member_id, sync.assignments) == (1, "m", {})
    rig.synced(0, 2)
    assert rig.member.owned == (T0, T2)
    assert rig.calls == [("assigned", [0, 2])]
    assert rig.member.positions.fetchable() == {T0: 5, T2: 5}
    assert rig.member.is_settled


def test_it_joins_in_a_poll_only() -> None:
    rig = Rig()
    rig.do(rig.member.subscribe(("t",), None, rig.now))
    assert rig.member.state is S.UNSUBSCRIBED
    rig.stable(0)
    rig.poll(p0=6)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.member.state is S.UNJOINED
    rig.pass_time(3_000)
    assert rig.take(HeartbeatRequest), "it keeps its session meanwhile"
    rig.answer(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    rig.poll()
    rig.take(JoinGroupRequest)
    rig.pass_time(60_000)
    assert rig.sent == [], "while it waits the coordinator waits with it"


def test_a_leader_assigns_to_everyone_strangers_included() -> None:
    rig = Rig(RangeAssignor())
    rig.subscribe()
    metadata = write_subscription(Subscription(topics=("t", "u")))
    members = (
        JoinGroupMember(member_id="m", metadata=metadata),
        JoinGroupMember(member_id="stranger", metadata=b"\x00"),
        JoinGroupMember(member_id="a", metadata=metadata),
    )
    rig.answer(
        JoinGroupResponse(generation=4, protocol_name="range", leader="m", member_id="m", members=members)
    )
    assert rig.take(CountPartitions).topics == ("t", "u")
    rig.do(rig.member.partitions_counted(rig.token, {"t": 3}, rig.now))
    given = rig.take(SyncGroupRequest).assignments
    assert {name: dict(read_assignment(data).partitions) for name, data in given.items()} == {
        "m": {"t": (2,)},
        "a": {"t": (0, 1)},
        "stranger": {},
    }


def test_a_leader_that_is_told_to_skip_assigns_nothing() -> None:
    rig = Rig()
    rig.subscribe()
    me = JoinGroupMember(member_id="m", metadata=write_subscription(Subscription(topics=("t",))))
    rig.answer(
        JoinGroupResponse(
            generation=2,
            protocol_name="cooperative",
            leader="m",
            member_id="m",
            members=(me,),
            skip_assignment=True,
        )
    )
    assert rig.take(SyncGroupRequest).assignments == {}


def test_a_leader_looks_for_new_partitions() -> None:
    rig = Rig(metadata_max_age_ms=1_000)
    rig.subscribe()
    rig.joined(leads=True)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 1}, rig.now))
    rig.take(SyncGroupRequest)
    rig.synced(0)
    rig.pass_time(1_000)
    rig.take(CountPartitions)
    rig.do(rig.member.request_failed(rig.token, Failure.TIMED_OUT, rig.now))
    rig.pass_time(200)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 1}, rig.now))
    assert rig.member.state is S.STABLE
    rig.pass_time(1_000)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 2}, rig.now))
    assert rig.take(JoinGroupRequest)


def test_an_eager_member_gives_everything_up_before_it_joins_again() -> None:
    rig = Rig(RangeAssignor())
    rig.stable(0, 1)
    rig.poll(p0=6)
    rig.poll()
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.calls[1:] == [("revoked", [0, 1])]
    join = rig.take(JoinGroupRequest)
    assert read_subscription(join.protocols[0].metadata).owned == {}
    rig.joined(2)
    rig.take(SyncGroupRequest)
    rig.synced(1)
    assert rig.calls[2:] == [("assigned", [1])]


def test_a_cooperative_member_keeps_what_it_may_keep() -> None:
    rig = Rig()
    rig.stable(0, 1)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    join = rig.take(JoinGroupRequest)
    said = read_subscription(join.protocols[0].metadata)
    assert (dict(said.owned), said.generation) == ({"t": (0, 1)}, 1)
    rig.joined(2)
    rig.take(SyncGroupRequest)
    rig.synced(0)
    assert rig.calls == [("assigned", [0, 1]), ("revoked", [1]), ("assigned", [])]
    again = read_subscription(rig.take(JoinGroupRequest).protocols[0].metadata)
    assert (dict(again.owned), again.generation) == ({"t": (0,)}, 2), "who lost something joins once more"
    rig.joined(3)
    rig.take(SyncGroupRequest)
    rig.synced(0)
    assert rig.calls[3:] == [("assigned", [])]
    assert rig.member.is_settled


def test_what_was_processed_is_committed_before_it_is_given_up() -> None:
    rig = Rig(RangeAssignor(), enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.poll()
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    commit = rig.take(object)
    assert (commit.member_id, commit.member_epoch, commit.offsets[T0].offset) == ("m", 1, 9)
    assert rig.calls == [("assigned", [0])]
    rig.do(rig.member.commit_answered(rig.token, OffsetCommitResponse(errors={T0: ErrorCode.NONE}), rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    rig.take(JoinGroupRequest)


def test_between_two_generations_commits_wait() -> None:
    rig = Rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.take(JoinGroupRequest)
    join = rig.token
    commit_id, actions = rig.member.commit({T0: OffsetAndMetadata(offset=7)}, rig.now)
    rig.do(actions)
    assert rig.take(object).member_epoch == 1
    refused = OffsetCommitResponse(errors={T0: ErrorCode.REBALANCE_IN_PROGRESS})
    rig.do(rig.member.commit_answered(rig.token, refused, rig.now))
    rig.token = join
    rig.joined(2)
    rig.take(SyncGroupRequest)
    rig.pass_time(1_000)
    assert rig.sent == []
    rig.synced(0)
    assert rig.take(object).member_epoch == 2
    rig.do(rig.member.commit_answered(rig.token, OffsetCommitResponse(errors={T0: ErrorCode.NONE}), rig.now))
    assert CommitFinished(commit_id, ErrorCode.NONE) in rig.other


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_fenced_member_loses_everything_and_joins_again(code: ErrorCode) -> None:
    rig = Rig()
    rig.stable(0, 1)
    rig.beat(code)
    assert rig.calls[1:] == [("lost", [0, 1])]
    assert rig.member.owned == ()
    join = rig.take(JoinGroupRequest)
    assert join.member_id == ("" if code is ErrorCode.UNKNOWN_MEMBER_ID else "m")
    assert read_subscription(join.protocols[0].metadata).generation == -1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("at", ["join", "sync"])
def test_it_may_be_fenced_in_a_round(at: str, code: ErrorCode) -> None:
    rig = Rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.take(JoinGroupRequest)
    if at == "join":
        rig.answer(JoinGroupResponse(error_code=code))
    else:
        rig.joined(2)
        rig.take(SyncGroupRequest)
        rig.answer(SyncGroupResponse(error_code=code))
    assert rig.calls[1:] == [("lost", [0])]
    rig.take(JoinGroupRequest)


def test_a_callback_that_runs_is_awaited_before_everything_is_lost() -> None:
    rig = Rig()
    rig.subscribe()
    rig.joined()
    rig.take(SyncGroupRequest)
    rig.held = []
    rig.synced(0)
    rig.beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.calls == [("assigned", [0])]
    rig.do(rig.member.callback_finished(rig.held.pop().token, None, rig.now))
    assert rig.calls[1:] == [("lost", [0])]
    assert rig.sent == []
    rig.do(rig.member.callback_finished(rig.held.pop().token, None, rig.now))
    rig.take(JoinGroupRequest)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_what_no_retry_mends_is_the_end(code: ErrorCode) -> None:
    rig = Rig(group_instance_id="static")
    rig.subscribe()
    rig.answer(JoinGroupResponse(error_code=code))
    assert rig.member.state is S.FATAL
    (error,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert (error.fatal, error.error.code) == (True, code)  # type: ignore[attr-defined]
    rig.pass_time(100_000)
    assert rig.sent == []


def test_a_static_member_is_fenced_for_good_by_its_successor() -> None:
    rig = Rig(group_instance_id="static")
    assert rig.subscribe().instance_id == "static"
    rig.joined()
    assert rig.take(SyncGroupRequest).instance_id == "static"
    rig.synced(0)
    rig.beat(ErrorCode.FENCED_INSTANCE_ID)
    assert rig.member.state is S.FATAL
    assert rig.calls[1:] == [("lost", [0])]


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_join_is_tried_again_after_a_while(code: ErrorCode) -> None:
    rig = Rig()
    rig.subscribe()
    rig.answer(JoinGroupResponse(error_code=code))
    assert rig.sent == []
    rig.pass_time(150)
    rig.take(JoinGroupRequest)
    rig.do(rig.member.request_failed(rig.token, Failure.DISCONNECTED, rig.now))
    assert not rig.member.is_connected
    rig.pass_time(400)
    rig.take(JoinGroupRequest)
    rig.joined()
    assert rig.member.is_connected


def test_a_round_that_begins_anew_is_joined_at_once() -> None:
    rig = Rig()
    rig.subscribe()
    rig.joined()
    rig.take(SyncGroupRequest)
    rig.answer(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert rig.take(JoinGroupRequest).member_id == "m"
    rig.joined(2)
    rig.take(SyncGroupRequest)
    rig.do(rig.member.request_failed(rig.token, Failure.TIMED_OUT, rig.now))
    rig.pass_time(500)
    rig.take(JoinGroupRequest)


def test_heartbeats_are_repeated_at_once_when_the_coordinator_moves() -> None:
    rig = Rig()
    rig.stable(0)
    rig.beat(ErrorCode.NOT_COORDINATOR)
    rig.take(HeartbeatRequest)
    rig.do(rig.member.request_failed(rig.token, Failure.DISCONNECTED, rig.now))
    rig.pass_time(150)
    rig.take(HeartbeatRequest)
    rig.answer(HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert rig.member.state is S.STABLE
    rig.beat()
    rig.beat(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert rig.member.state is S.FATAL


def test_an_application_that_does_not_poll_makes_room_for_others() -> None:
    rig = Rig(max_poll_interval_ms=2_000)
    rig.stable(0)
    rig.poll(p0=6)
    rig.pass_time(2_000)
    assert rig.member.state is S.STALE
    leave = rig.take(LeaveGroupRequest)
    assert (leave.member_id, leave.instance_id) == ("m", None)
    assert rig.calls[1:] == [("lost", [0])]
    rig.answer(LeaveGroupResponse())
    rig.pass_time(10_000)
    assert rig.sent == []
    rig.poll()
    assert rig.take(JoinGroupRequest).member_id == ""


def test_closing_revokes_leaves_and_ends() -> None:
    rig = Rig()
    rig.stable(0)
    rig.do(rig.member.close(rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    rig.take(LeaveGroupRequest)
    rig.do(rig.member.request_failed(rig.token, Failure.DISCONNECTED, rig.now))
    rig.pass_time(150)
    rig.take(LeaveGroupRequest)
    assert LeaveFinished() not in rig.other
    rig.answer(LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert rig.other[-1] == LeaveFinished()
    with pytest.raises(ValueError, match="closed"):
        rig.member.subscribe(("t",), None, rig.now)


@pytest.mark.parametrize(
    ("instance", "option", "leaves"),
    [
        (None, CloseOption.DEFAULT, True),
        (None, CloseOption.LEAVE_GROUP, True),
        (None, CloseOption.REMAIN_IN_GROUP, False),
        ("static", CloseOption.DEFAULT, False),
        ("static", CloseOption.LEAVE_GROUP, True),
        ("static", CloseOption.REMAIN_IN_GROUP, False),
    ],
)
def test_who_leaves_the_group_on_close(instance: str | None, option: CloseOption, leaves: bool) -> None:
    rig = Rig(group_instance_id=instance)
    rig.stable(0)
    rig.do(rig.member.close(rig.now, option))
    assert [type(each.request) for each in rig.sent] == ([LeaveGroupRequest] if leaves else [])


def test_closing_commits_what_was_handed_over_and_takes_no_longer_than_it_may() -> None:
    rig = Rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.do(rig.member.close(rig.now, timeout_ms=1_000))
    assert rig.take(object).offsets[T0].offset == 9
    rig.held = []
    rig.pass_time(500)
    assert rig.calls[1:] == [("revoked", [0])], "half of the time is for the rest"
    rig.pass_time(500)
    rig.take(LeaveGroupRequest)
    assert rig.other[-1] == LeaveFinished()


def test_closing_in_the_middle_of_a_join_tells_whoever_has_its_id() -> None:
    rig = Rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.take(JoinGroupRequest)
    rig.do(rig.member.close(rig.now))
    assert rig.take(LeaveGroupRequest).member_id == "m"
    rig.answer(LeaveGroupResponse())
    assert rig.other[-1] == LeaveFinished()
    before_any_join = Rig()
    before_any_join.do(before_any_join.member.close(before_any_join.now))
    assert before_any_join.other == [LeaveFinished()]


def test_unsubscribing_leaves_and_one_can_come_back() -> None:
    rig = Rig()
    rig.stable(0)
    rig.do(rig.member.subscribe((), None, rig.now))
    rig.take(LeaveGroupRequest)
    rig.answer(LeaveGroupResponse())
    assert rig.member.state is S.UNSUBSCRIBED
    assert rig.subscribe().member_id == ""
    with pytest.raises(ValueError, match="names only"):
        rig.member.subscribe((), "^t", rig.now)


def test_a_new_subscription_is_told_at_once_and_drops_what_is_not_in_it() -> None:
    rig = Rig()
    rig.stable(0)
    rig.do(rig.member.subscribe(("u",), None, rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    assert read_subscription(rig.take(JoinGroupRequest).protocols[0].metadata).topics == ("u",)


def test_the_assignor_may_want_another_round_later() -> None:
    rig = Rig()
    rig.assignor.again_ms = 5_000
    rig.stable(0)
    assert [each.partitions for each in rig.assignor.taken] == [{"t": (0,)}]
    rig.pass_time(2_999)
    assert rig.sent == []
    rig.pass_time(1)
    rig.take(HeartbeatRequest)
    rig.answer(HeartbeatResponse())
    rig.assignor.again_ms = None
    rig.pass_time(2_000)
    rig.take(JoinGroupRequest)


def test_the_application_may_want_another_round_also_while_one_runs() -> None:
    rig = Rig()
    rig.stable(0)
    rig.do(rig.member.rejoin(rig.now))
    rig.take(JoinGroupRequest)
    rig.do(rig.member.rejoin(rig.now))
    rig.joined(2)
    rig.take(SyncGroupRequest)
    rig.synced(0)
    rig.take(JoinGroupRequest)
    rig.joined(3)
    rig.take(SyncGroupRequest)
    rig.synced(0)
    assert rig.member.is_settled


def test_an_assignment_that_can_not_be_read_is_the_end_with_a_word() -> None:
    rig = Rig()
    rig.subscribe()
    rig.joined()
    rig.take(SyncGroupRequest)
    rig.answer(SyncGroupResponse(assignment=b"\x00\x01\xff"))
    (error,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert "assignment cannot be read" in str(error.error)


def test_a_protocol_that_was_not_offered_is_the_end() -> None:
    rig = Rig()
    rig.subscribe()
    rig.answer(JoinGroupResponse(generation=1, protocol_name="sticky", leader="x", member_id="m"))
    assert rig.member.state is S.FATAL


def test_a_callback_that_raises_is_told_and_has_happened() -> None:
    rig = Rig()
    rig.subscribe()
    rig.joined()
    rig.take(SyncGroupRequest)
    rig.held = []
    rig.synced(0)
    rig.do(rig.member.callback_finished(rig.held.pop().token, KeyError("x"), rig.now))
    (raised,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert "on_partitions_assigned raised" in str(raised.error)
    assert rig.member.owned == (T0,)
    assert rig.member.positions.fetchable() == {T0: 5}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"session_timeout_ms": 0}, "session_timeout_ms: expected at least 1 ms, got 0"),
        ({"heartbeat_interval_ms": 45_000}, "less than session_timeout_ms, 45000"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms"),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, int], text: str) -> None:
    with pytest.raises(FencepostError, match=text):
        ClassicConfig(**setting)


def test_the_table_has_no_arrow_out_of_fatal_and_every_state_of_kafkas_client() -> None:
    assert CLASSIC_MEMBER.terminal == (S.FATAL,)
    assert {"UNJOINED", "PREPARING_REBALANCE", "COMPLETING_REBALANCE", "STABLE"} <= set(S)
