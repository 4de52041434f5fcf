"""Heartbeats of streams groups, and a transport that speaks them for a consumer's machine."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.streams import (
    Endpoint,
    Status,
    StatusCode,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Tasks,
)
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.transport import Disconnected
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.streams.application.streams_transport import StreamsTransport
from fencepost.member.streams.heartbeats import STREAMS_MEMBER, StreamsHeartbeats

KAFKAS_PREDECESSORS = {
    "JOINING": "UNSUBSCRIBED FENCED STALE",
    "RECONCILING": "JOINING STABLE ACKNOWLEDGING RECONCILING",
    "ACKNOWLEDGING": "RECONCILING",
    "STABLE": "JOINING ACKNOWLEDGING RECONCILING",
    "FENCED": "JOINING STABLE RECONCILING ACKNOWLEDGING PREPARE_LEAVING LEAVING",
    "PREPARE_LEAVING": "JOINING STABLE RECONCILING ACKNOWLEDGING UNSUBSCRIBED",
    "LEAVING": "PREPARE_LEAVING",
    "STALE": "LEAVING",
    "UNSUBSCRIBED": "PREPARE_LEAVING LEAVING FENCED",
    "FATAL": "JOINING STABLE RECONCILING ACKNOWLEDGING PREPARE_LEAVING LEAVING UNSUBSCRIBED",
}


def test_the_member_moves_as_kafkas_streams_member_does() -> None:
    found: dict[str, set[str]] = {}
    for arrow in STREAMS_MEMBER.transitions:
        found.setdefault(arrow.target, set()).add(arrow.source)
    assert found == {state: set(sources.split()) for state, sources in KAFKAS_PREDECESSORS.items()}


def heartbeat(epoch: int, owned: Any = None) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        topic_partitions=owned,
        rebalance_timeout_ms=300_000 if epoch == 0 else -1,
        client_id="c",
    )


def test_a_join_has_the_topology_and_the_process() -> None:
    request = StreamsHeartbeats(["a", "b"], "process").request(heartbeat(0, {}))
    assert request.topology is not None
    assert [(s.subtopology_id, s.source_topics) for s in request.topology.subtopologies] == [
        ("0", ("a",)),
        ("1", ("b",)),
    ]
    assert (request.process_id, request.rebalance_timeout_ms) == ("process", 300_000)
    assert request.owned == Tasks()
    assert request.user_endpoint is None
    endpoint = Endpoint("host", 80)
    assert StreamsHeartbeats([], "p", endpoint=endpoint).request(heartbeat(0, {})).user_endpoint == endpoint


def test_later_heartbeats_say_only_what_is_owned_if_that() -> None:
    heartbeats = StreamsHeartbeats(["a", "b"], "process")
    assert heartbeats.request(heartbeat(3)) == StreamsGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=3, client_id="c"
    )
    assert heartbeats.request(heartbeat(3, {"1": (0, 2)})).owned == Tasks(active={"1": (0, 2)})


def test_standby_tasks_that_the_group_gives_or_takes_are_confirmed() -> None:
    """The group waits for it: a heartbeat that lists no tasks confirms nothing, and the member is removed."""
    heartbeats = StreamsHeartbeats(["a"], "process")
    heartbeats.request(heartbeat(0, {}))
    active = {"0": (0, 1)}
    heartbeats.response(StreamsGroupHeartbeatResponse(tasks=Tasks(active)))
    assert heartbeats.request(heartbeat(3, active)).owned == Tasks(active)
    heartbeats.response(StreamsGroupHeartbeatResponse())
    for standby in ({"0": (2,)}, {}):
        heartbeats.response(StreamsGroupHeartbeatResponse(tasks=Tasks(active, standby)))
        for _ in range(2):  # the answer to the first one is lost
            assert heartbeats.request(heartbeat(4)).owned == Tasks(active)
        heartbeats.response(StreamsGroupHeartbeatResponse())
        assert heartbeats.request(heartbeat(4)).owned is None


@pytest.mark.parametrize("epoch", [0, 3, -1])
def test_a_request_for_shutdown_rides_on_every_heartbeat(epoch: int) -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    assert not heartbeats.request(heartbeat(epoch)).shutdown_application
    heartbeats.asks_for_shutdown = True
    assert heartbeats.request(heartbeat(epoch)).shutdown_application


def test_statuses_stay_until_others_come() -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    for code in StatusCode:
        heartbeats.response(StreamsGroupHeartbeatResponse(status=(Status(code, "why"),)))
        heartbeats.response(StreamsGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
        assert heartbeats.shutdown_requested is (code is StatusCode.SHUTDOWN_APPLICATION)
        ready = (StatusCode.STALE_TOPOLOGY, StatusCode.SHUTDOWN_APPLICATION)
        assert heartbeats.group_is_ready is (code in ready)
    heartbeats.response(StreamsGroupHeartbeatResponse(status=()))
    assert heartbeats.group_is_ready


def test_the_epoch_of_the_endpoints_that_it_knows_goes_back() -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    heartbeats.response(StreamsGroupHeartbeatResponse(endpoint_information_epoch=4))
    heartbeats.response(StreamsGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert heartbeats.request(heartbeat(3)).endpoint_information_epoch == 4


def answered(heartbeats: StreamsHeartbeats, epoch: int, tasks: Tasks | None = None) -> ErrorCode:
    """What the member makes of a response with that epoch."""
    return heartbeats.response(StreamsGroupHeartbeatResponse(member_epoch=epoch, tasks=tasks)).error_code


@pytest.mark.parametrize(
    ("error", "epoch", "joins_again"),
    [
        (Disconnected("cut"), 3, True),
        (Disconnected("cut"), 4, True),
        (ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not written in time"), 3, False),
        (ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not written in time"), 4, True),
    ],
)
def test_a_member_that_may_have_missed_tasks_joins_again(
    error: Exception, epoch: int, joins_again: bool
) -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    heartbeats.request(heartbeat(3))
    heartbeats.failed(error)
    heartbeats.request(heartbeat(3))
    expected = ErrorCode.FENCED_MEMBER_EPOCH if joins_again else ErrorCode.NONE
    assert answered(heartbeats, epoch) is expected
    heartbeats.request(heartbeat(0, {}))
    assert answered(heartbeats, 5, Tasks({"0": (1,)})) is ErrorCode.NONE
    heartbeats.request(heartbeat(5))
    assert answered(heartbeats, 6) is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_lost_join_or_leave_asks_for_no_other_one(epoch: int) -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    for _ in range(2):
        heartbeats.request(heartbeat(epoch, {}))
        heartbeats.failed(Disconnected("cut"))
    assert answered(heartbeats, epoch or 1) is ErrorCode.NONE


def test_tasks_that_come_after_all_are_taken() -> None:
    heartbeats = StreamsHeartbeats(["a"], "process")
    heartbeats.request(heartbeat(3))
    heartbeats.failed(Disconnected("cut"))
    heartbeats.request(heartbeat(3))
    assert answered(heartbeats, 4, Tasks({"0": (1,)})) is ErrorCode.NONE
    heartbeats.request(heartbeat(4))
    assert answered(heartbeats, 4) is ErrorCode.NONE


class Scripted:
    """A coordinator's side: a group whose one member gets a task as soon as it has joined."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.shutdown = False
        self.broken = False

    def _now(self, value: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if self.broken:
            future.set_exception(Disconnected("cut"))
        else:
            future.set_result(value)
        return future

    def send(self, request: Any, timeout_ms: int) -> asyncio.Future[Any]:
        self.requests.append(request)
        match request:
            case StreamsGroupHeartbeatRequest():
                joins = request.member_epoch == 0
                status = (Status(StatusCode.SHUTDOWN_APPLICATION, "asked"),) if self.shutdown else ()
                return self._now(
                    StreamsGroupHeartbeatResponse(
                        member_id=request.member_id,
                        member_epoch=-1 if request.member_epoch < 0 else 2,
                        heartbeat_interval_ms=1,
                        status=status,
                        tasks=Tasks(active={"1": (0,)}) if joins else None,
                    )
                )
            case OffsetFetchRequest():
                assert request.partitions is not None
                offsets = {each: OffsetAndMetadata(offset=7) for each in request.partitions}
                return self._now(OffsetFetchResponse(group_id="g", offsets=offsets))
            case OffsetCommitRequest():
                return self._now(OffsetCommitResponse(errors=dict.fromkeys(request.offsets, ErrorCode.NONE)))
        raise AssertionError(request)

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        return self._now(None)

    def close(self) -> None: ...


async def test_a_consumers_driver_is_a_streams_member_over_it() -> None:
    scripted, told = Scripted(), asyncio.Event()
    heartbeats = StreamsHeartbeats(["a", "b"], "process")
    driver = ConsumerDriver(
        "g",
        "m",
        StreamsTransport(scripted, heartbeats, told.set),  # type: ignore[arg-type]
        LoopClock(),
        config=ConsumerConfig(enable_auto_commit=False),
        rng=random.Random(1),
    )
    woken = asyncio.Event()
    driver.on_change = woken.set
    driver.subscribe(["a", "b"])
    driver.poll_begin()
    while not driver.fetchable():
        await woken.wait()
        woken.clear()
    assert driver.fetchable() == {TopicPartition("b", 0): 7}
    assert driver.state is S.STABLE
    await driver.commit({TopicPartition("b", 0): OffsetAndMetadata(offset=8)})
    commit = next(each for each in scripted.requests if isinstance(each, OffsetCommitRequest))
    assert (commit.topic_ids, commit.member_epoch, commit.api_version) == ({}, 2, 9)
    assert not told.is_set()
    scripted.shutdown = True
    await told.wait()
    heartbeats.asks_for_shutdown = True
    await driver.close()
    assert scripted.requests[-1].member_epoch == -1
    assert scripted.requests[-1].shutdown_application


async def test_a_lost_answer_is_lost_for_the_machine_too() -> None:
    scripted = Scripted()
    scripted.broken = True
    transport = StreamsTransport(scripted, StreamsHeartbeats(["a"], "p"), lambda: None)  # type: ignore[arg-type]
    reply = transport.send(heartbeat(3), 1_000)
    assert isinstance(reply, asyncio.Future)
    with pytest.raises(Disconnected):
        await reply
