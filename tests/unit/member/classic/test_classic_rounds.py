"""How a classic member joins, leads, gives up and is fenced."""

from __future__ import annotations

import uuid

import pytest

from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
)
from fencepost.member.base.actions import (
    CommitFinished,
    RaiseToApplication,
    WakeApplication,
)
from fencepost.member.base.errors import RequestFailure
from fencepost.member.classic.actions import CountPartitions
from fencepost.member.classic.assignors.assignment_info import AssignmentInfo, write_assignment_info
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.classic.assignors.streams_metadata import AssignorError
from fencepost.member.classic.assignors.subscription_info import read_subscription_info
from fencepost.member.classic.states import ClassicMemberState as S

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_a_member_gets_its_id_first_and_joins_with_it(new_rig) -> None:
    rig = new_rig(client_id="client", client_rack="rack")
    first = rig.subscribe()
    assert (first.client_id, read_subscription(first.protocols[0].metadata).rack_id) == ("client", "rack")
    assert (first.member_id, first.session_timeout_ms, first.rebalance_timeout_ms) == ("", 45_000, 300_000)
    rig.answer(classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"))
    assert rig.take(classic.JoinGroupRequest).member_id == "m"
    rig.joined()
    sync = rig.take(classic.SyncGroupRequest)
    assert (sync.generation, sync.member_id, sync.assignments) == (1, "m", {})
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "cooperative")
    rig.synced(0, 2)
    assert rig.member.owned_partitions() == (T0, T2)
    assert rig.calls == [("assigned", [0, 2])]
    assert rig.member.positions.fetchable() == {T0: 5, T2: 5}
    assert rig.member.is_settled


def test_it_joins_in_a_poll_only(new_rig) -> None:
    rig = new_rig()
    rig.do(rig.member.subscribe(("t",), None, rig.now))
    assert rig.member.state is S.UNSUBSCRIBED
    rig.stable(0)
    rig.poll(p0=6)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.member.state is S.UNJOINED
    rig.pass_time(3_000)
    assert rig.take(classic.HeartbeatRequest), "it keeps its session meanwhile"
    rig.answer(classic.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    rig.poll()
    rig.take(classic.JoinGroupRequest)
    rig.pass_time(60_000)
    assert rig.sent == [], "while it waits the coordinator waits with it"


def test_a_round_that_was_wanted_before_its_join_is_that_one(new_rig) -> None:
    rig = new_rig()
    rig.assignor.again_ms = 5_000
    rig.stable(0)
    rig.assignor.again_ms = None
    rig.poll(p0=6)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.do(rig.member.rejoin(rig.now))
    rig.poll()
    rig.take(classic.JoinGroupRequest)
    rig.pass_time(5_000)
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert rig.sent == []
    assert rig.member.is_settled


def test_a_leader_assigns_to_everyone_strangers_included(new_rig) -> None:
    rig = new_rig(RangeAssignor())
    rig.subscribe()
    metadata = write_subscription(ConsumerProtocolSubscription(topics=("t", "u")))
    members = (
        classic.JoinGroupMember(member_id="m", metadata=metadata),
        classic.JoinGroupMember(member_id="stranger", metadata=b"\x00"),
        classic.JoinGroupMember(member_id="a", metadata=metadata),
    )
    rig.answer(
        classic.JoinGroupResponse(
            generation=4, protocol_name="range", leader="m", member_id="m", members=members
        )
    )
    assert rig.take(CountPartitions).topics == ("t", "u")
    rig.poll()
    rig.do(rig.member.partitions_counted(rig.token, {"t": 3}, rig.now))
    given = rig.take(classic.SyncGroupRequest).assignments
    assert {name: dict(read_assignment(data).partitions) for name, data in given.items()} == {
        "m": {"t": (2,)},
        "a": {"t": (0, 1)},
        "stranger": {},
    }


def test_a_leader_that_is_told_to_skip_assigns_nothing_and_looks_for_new_partitions(new_rig) -> None:
    """KIP-814: otherwise nobody would notice that a topic of a static group has grown."""
    rig = new_rig(metadata_max_age_ms=1_000)
    rig.subscribe()
    me = classic.JoinGroupMember(
        member_id="m", metadata=write_subscription(ConsumerProtocolSubscription(topics=("t",)))
    )
    rig.answer(
        classic.JoinGroupResponse(
            generation=2,
            protocol_name="cooperative",
            leader="m",
            member_id="m",
            members=(me,),
            skip_assignment=True,
        )
    )
    assert rig.take(classic.SyncGroupRequest).assignments == {}
    rig.synced(0)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 1}, rig.now))
    rig.pass_time(1_000)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 2}, rig.now))
    assert rig.take(classic.JoinGroupRequest)


def looking_leader(new_rig):
    """One that has assigned the partition that there was, and asks how many there are now."""
    rig = new_rig(metadata_max_age_ms=1_000)
    rig.subscribe()
    rig.joined(leads=True)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 1}, rig.now))
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    rig.pass_time(1_000)
    rig.take(CountPartitions)
    return rig


def test_a_leader_looks_for_new_partitions(new_rig) -> None:
    rig = looking_leader(new_rig)
    rig.do(rig.member.request_failed(rig.token, RequestFailure.TIMED_OUT, rig.now))
    assert rig.sent == []
    rig.pass_time(200)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 1}, rig.now))
    assert (rig.member.state, rig.sent) == (S.STABLE, [])
    rig.pass_time(1_000)
    rig.take(CountPartitions)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 2}, rig.now))
    assert rig.take(classic.JoinGroupRequest)


def test_a_leader_s_first_look_is_compared_with_what_it_has_assigned(new_rig) -> None:
    rig = looking_leader(new_rig)
    rig.do(rig.member.partitions_counted(rig.token, {"t": 2}, rig.now))
    assert rig.take(classic.JoinGroupRequest)


@pytest.mark.parametrize(
    ("settings", "timeout_ms"),
    [
        ({}, 305_000),
        ({"max_poll_interval_ms": 60_000}, 65_000),
        ({"max_poll_interval_ms": 60_000, "request_timeout_ms": 70_000}, 70_000),
    ],
)
def test_a_join_may_take_as_long_as_the_slowest_poll_and_a_little_more(
    new_rig, settings: dict[str, int], timeout_ms: int
) -> None:
    rig = new_rig(**settings)
    rig.do(rig.member.subscribe(("t",), None, rig.now))
    rig.poll()
    (join,) = rig.sent
    assert join.timeout_ms == timeout_ms


def test_an_eager_member_gives_everything_up_before_it_joins_again(new_rig) -> None:
    rig = new_rig(RangeAssignor())
    rig.stable(0, 1)
    rig.poll(p0=6)
    rig.poll()
    rig.held = []
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (rig.calls[1:], rig.sent) == ([("revoked", [0, 1])], [])
    held, rig.held = rig.held, None
    rig.do(rig.member.callback_finished(held[0].token, None, rig.now))
    join = rig.take(classic.JoinGroupRequest)
    assert read_subscription(join.protocols[0].metadata).owned == {}
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(1)
    assert rig.calls[2:] == [("assigned", [1])]
    assert rig.member.positions.fetchable() == {T1: 5}


def test_a_cooperative_member_keeps_what_it_may_keep(new_rig) -> None:
    rig = new_rig()
    rig.stable(0, 1)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    join = rig.take(classic.JoinGroupRequest)
    said = read_subscription(join.protocols[0].metadata)
    assert (dict(said.owned), said.generation) == ({"t": (0, 1)}, 1)
    rig.poll(p0=6)
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert rig.calls == [("assigned", [0, 1])], "what the application has is its own until it polls"
    assert not rig.member.is_settled
    rig.poll()
    assert rig.calls == [("assigned", [0, 1]), ("revoked", [1]), ("assigned", [])]
    assert rig.member.positions.position(T1) is None
    again = read_subscription(rig.take(classic.JoinGroupRequest).protocols[0].metadata)
    assert (dict(again.owned), again.generation) == ({"t": (0,)}, 2), "who lost something joins once more"
    rig.joined(3)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert rig.calls[3:] == [("assigned", [])]
    assert rig.member.is_settled


def test_what_was_processed_is_committed_before_it_is_given_up(new_rig) -> None:
    rig = new_rig(RangeAssignor(), enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.poll()
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    commit = rig.take(object)
    assert (commit.member_id, commit.member_epoch, commit.offsets[T0].offset) == ("m", 1, 9)
    assert rig.calls == [("assigned", [0])]
    assert T0 not in rig.member.positions.fetchable()  # what came now would be in no commit (KAFKA-14196)
    rig.do(rig.member.commit_answered(rig.token, OffsetCommitResponse(errors={T0: ErrorCode.NONE}), rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    rig.take(classic.JoinGroupRequest)


def test_a_topic_that_is_subscribed_again_before_its_commit_is_over_is_read_on(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.poll()
    rig.do(rig.member.subscribe(("u",), None, rig.now))
    rig.take(object)
    assert rig.member.positions.fetchable() == {}
    rig.do(rig.member.subscribe(("t", "u"), None, rig.now))
    rig.other.clear()
    rig.do(rig.member.commit_answered(rig.token, OffsetCommitResponse(errors={T0: ErrorCode.NONE}), rig.now))
    assert rig.other == [WakeApplication()]
    rig.take(classic.JoinGroupRequest)
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert ("revoked", [0]) not in rig.calls
    assert rig.member.positions.fetchable() == {T0: 9}


def test_what_an_assignment_takes_away_is_committed_first(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0, 1)
    rig.do(rig.member.rejoin(rig.now))
    rig.take(classic.JoinGroupRequest)
    rig.poll(p1=9)
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    rig.poll()
    assert rig.take(object).offsets.keys() == {T1}
    assert (rig.calls, {*rig.member.positions.fetchable()}) == ([("assigned", [0, 1])], {T0})


def test_a_member_that_is_fenced_while_it_commits_joins_again(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.poll()
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.take(object).offsets.keys() == {T0}
    rig.beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.calls[1:] == [("lost", [0])]
    rig.take(classic.JoinGroupRequest)


def test_between_two_generations_commits_wait(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.take(classic.JoinGroupRequest)
    join = rig.token
    commit_id, actions = rig.member.commit({T0: OffsetAndMetadata(offset=7)}, rig.now)
    rig.do(actions)
    assert rig.take(object).member_epoch == 1
    refused = OffsetCommitResponse(errors={T0: ErrorCode.REBALANCE_IN_PROGRESS})
    rig.do(rig.member.commit_answered(rig.token, refused, rig.now))
    rig.token = join
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.pass_time(1_000)
    assert rig.sent == []
    rig.synced(0)
    assert rig.take(object).member_epoch == 2
    rig.do(rig.member.commit_answered(rig.token, OffsetCommitResponse(errors={T0: ErrorCode.NONE}), rig.now))
    assert CommitFinished(commit_id, ErrorCode.NONE) in rig.other


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_fenced_member_loses_everything_and_joins_again(new_rig, code: ErrorCode) -> None:
    rig = new_rig()
    rig.stable(0, 1)
    rig.beat(code)
    assert rig.calls[1:] == [("lost", [0, 1])]
    assert rig.member.owned_partitions() == ()
    join = rig.take(classic.JoinGroupRequest)
    assert join.member_id == ("" if code is ErrorCode.UNKNOWN_MEMBER_ID else "m")
    assert read_subscription(join.protocols[0].metadata).generation == -1
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(1)
    assert rig.member.positions.fetchable() == {T1: 5}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("at", ["join", "sync"])
def test_it_may_be_fenced_in_a_round(new_rig, at: str, code: ErrorCode) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.pass_time(3_000)
    rig.take(classic.HeartbeatRequest)
    beat = rig.token
    rig.do(rig.member.rejoin(rig.now))
    rig.take(classic.JoinGroupRequest)
    if at == "join":
        rig.answer(classic.JoinGroupResponse(error_code=code))
    else:
        rig.joined(2)
        rig.take(classic.SyncGroupRequest)
        rig.answer(classic.SyncGroupResponse(error_code=code))
    rig.token = beat
    rig.answer(classic.HeartbeatResponse(error_code=code))
    assert rig.calls[1:] == [("lost", [0])]
    rig.take(classic.JoinGroupRequest)


def test_a_callback_that_runs_is_awaited_before_everything_is_lost(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    rig.held = []
    rig.synced(0)
    assert not rig.member.is_settled
    rig.beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.calls == [("assigned", [0])]
    rig.do(rig.member.callback_finished(rig.held.pop().token, None, rig.now))
    assert rig.calls[1:] == [("lost", [0])]
    assert rig.sent == []
    rig.do(rig.member.callback_finished(rig.held.pop().token, None, rig.now))
    rig.take(classic.JoinGroupRequest)


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
def test_what_no_retry_mends_is_the_end(new_rig, code: ErrorCode) -> None:
    rig = new_rig(group_instance_id="static")
    rig.subscribe()
    rig.answer(classic.JoinGroupResponse(error_code=code))
    assert rig.member.state is S.FATAL
    (error,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert (error.fatal, error.error.code) == (True, code)  # type: ignore[attr-defined]
    rig.pass_time(100_000)
    assert rig.sent == []


def test_a_static_member_is_fenced_for_good_by_its_successor(new_rig) -> None:
    rig = new_rig(group_instance_id="static")
    assert rig.subscribe().instance_id == "static"
    rig.joined()
    assert rig.take(classic.SyncGroupRequest).instance_id == "static"
    rig.synced(0)
    rig.beat(ErrorCode.FENCED_INSTANCE_ID)
    assert rig.member.state is S.FATAL
    assert rig.calls[1:] == [("lost", [0])]


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_join_is_tried_again_after_a_while(new_rig, code: ErrorCode) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.answer(classic.JoinGroupResponse(error_code=code))
    assert rig.sent == []
    rig.pass_time(150)
    rig.take(classic.JoinGroupRequest)
    rig.do(rig.member.request_failed(rig.token, RequestFailure.DISCONNECTED, rig.now))
    assert not rig.member.is_connected
    rig.pass_time(400)
    rig.take(classic.JoinGroupRequest)
    rig.joined()
    assert rig.member.is_connected


def test_a_join_that_waits_for_others_is_no_lost_connection(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.take(classic.JoinGroupRequest).member_id == "m"
    rig.do(rig.member.request_failed(rig.token, RequestFailure.TIMED_OUT, rig.now))
    assert rig.member.is_connected
    rig.pass_time(150)
    assert rig.take(classic.JoinGroupRequest).member_id == "m"
    rig.do(rig.member.request_failed(rig.token, RequestFailure.DISCONNECTED, rig.now))
    assert not rig.member.is_connected


def test_a_round_that_begins_anew_is_joined_at_once(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    rig.answer(classic.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert rig.take(classic.JoinGroupRequest).member_id == "m"
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.do(rig.member.request_failed(rig.token, RequestFailure.TIMED_OUT, rig.now))
    rig.pass_time(500)
    rig.take(classic.JoinGroupRequest)


def test_heartbeats_are_repeated_at_once_when_the_coordinator_moves(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.beat(ErrorCode.NOT_COORDINATOR)
    rig.take(classic.HeartbeatRequest)
    rig.do(rig.member.request_failed(rig.token, RequestFailure.DISCONNECTED, rig.now))
    rig.pass_time(150)
    rig.take(classic.HeartbeatRequest)
    rig.answer(classic.HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert rig.member.state is S.STABLE
    rig.beat()
    rig.beat(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert rig.member.state is S.FATAL


@pytest.mark.parametrize("failure", [RequestFailure.DISCONNECTED, RequestFailure.TIMED_OUT])
def test_a_heartbeat_without_an_answer_makes_it_look_for_the_coordinator(
    new_rig, failure: RequestFailure
) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.pass_time(3_000)
    rig.take(classic.HeartbeatRequest)
    lookups = rig.lookups
    rig.do(rig.member.request_failed(rig.token, failure, rig.now))
    assert (rig.member.is_connected, rig.lookups) == (False, lookups + 1)
    rig.take(classic.HeartbeatRequest)
    rig.answer(classic.HeartbeatResponse())
    assert (rig.member.is_connected, rig.lookups) == (True, lookups + 1)


def test_who_is_told_of_a_shutdown_says_so_in_one_more_round(new_rig) -> None:
    """The answer to another member's SyncGroup may come too late: this one must know it in the next round."""
    info = AssignmentInfo(error_code=AssignorError.SHUTDOWN_REQUESTED)
    told = write_assignment(ConsumerProtocolAssignment(partitions={}, user_data=write_assignment_info(info)))
    rig = new_rig(StreamsAssignor(uuid.UUID(int=1), (("t",),)))
    rig.subscribe()
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    assert rig.member.is_rebalancing
    rig.answer(classic.SyncGroupResponse(assignment=told))
    (protocol,) = rig.take(classic.JoinGroupRequest).protocols
    said = read_subscription_info(read_subscription(protocol.metadata).user_data)
    assert said.error_code == AssignorError.SHUTDOWN_REQUESTED
    assert rig.member.is_rebalancing
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.answer(classic.SyncGroupResponse(assignment=told))
    assert (rig.sent, rig.member.state, rig.member.is_rebalancing) == ([], S.STABLE, False)


def test_who_is_fenced_is_on_the_way_into_the_next_round(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    assert not rig.member.is_rebalancing
    rig.held = []
    rig.beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert (rig.member.state, rig.member.is_rebalancing) == (S.FENCED, True)
