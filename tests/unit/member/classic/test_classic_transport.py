"""Requests of the classic protocol as real bytes, and what a driver makes of refusals."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import read_header
from fencepost.coordinator.codec.groups import LeaveGroupReply
from fencepost.coordinator.codec.registry import codec_of
from fencepost.coordinator.protocol import classic, cluster, consumer
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.errors import FatalMemberError
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.kafka.connections import COORDINATION, ROUNDS
from fencepost.member.kafka.transport import KafkaTransport

NODE = cluster.Node(node_id=4, host="there", port=9092)
JOIN = classic.JoinGroupRequest(
    group_id="g",
    member_id="m",
    protocol_type="consumer",
    protocols=(classic.JoinGroupProtocol(name="range", metadata=b"said"),),
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
)
JOINED = classic.JoinGroupResponse(
    generation=3,
    protocol_type="consumer",
    protocol_name="range",
    leader="m",
    member_id="m",
    members=(classic.JoinGroupMember(member_id="m", metadata=b"said"),),
)
SYNC = classic.SyncGroupRequest(
    group_id="g", generation=3, member_id="m", protocol_name="range", assignments={"m": b"given"}
)
SYNCED = classic.SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=b"given")
BEAT = classic.HeartbeatRequest(group_id="g", generation=3, member_id="m")
BEATEN = classic.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
LEAVE = consumer.LeaveGroupRequest(group_id="g", member_id="m")
LEFT = consumer.LeaveGroupResponse(member_id="m", error_code=ErrorCode.UNKNOWN_MEMBER_ID)


class Broker:
    """Stands for the client's connections: answers from the server's half of the codec."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Any]] = []
        found = cluster.FoundCoordinator(key="g", node=NODE)
        self.answers: dict[int, Any] = {10: cluster.FindCoordinatorResponse(coordinators=(found,))}

    async def ask(self, node_id: int, call: Any, timeout_ms: int, *, group: int = 0) -> bytes:
        prepared = call.prepare({key: (0, 99) for key in (3, 10, 11, 12, 13, 14)})
        frame = prepared.build_request_header(7, "client").encode() + prepared.encode()
        header = read_header(frame)
        server = codec_of(header.api_key, header.api_version)
        context = RequestContext(header.api_version, header.client_id, "/127.0.0.1")
        self.asked.append((group, server.decode(frame, server.body_of(frame, header), context)))
        return b"".join(server.encode(7, self.answers[header.api_key]))[4:]

    def any_node(self) -> int:
        return 1

    async def knows(self, *_: Any) -> bool:
        return True


@pytest.fixture
async def broker() -> Broker:
    return Broker()


@pytest.fixture
async def transport(broker):
    made = KafkaTransport(broker, None, 1_000)  # type: ignore[arg-type]
    await made.find_coordinator("g")
    broker.asked.clear()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("key", "request_", "reply", "answer", "group"),
    [
        (11, JOIN, JOINED, JOINED, ROUNDS),
        (14, SYNC, SYNCED, SYNCED, ROUNDS),
        (12, BEAT, BEATEN, BEATEN, COORDINATION),
        (13, LEAVE, LeaveGroupReply(members=(LEFT,)), LEFT, COORDINATION),
        (
            13,
            LEAVE,
            LeaveGroupReply(error_code=ErrorCode.NOT_COORDINATOR),
            consumer.LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR),
            COORDINATION,
        ),
    ],
)
async def test_answers_come_back_and_who_may_wait_blocks_nobody(
    transport, broker, key, request_, reply, answer, group
) -> None:
    broker.answers[key] = reply
    assert await transport.send(request_, 1_000) == answer
    assert [each[0] for each in broker.asked] == [group]


async def test_topics_that_do_not_exist_have_no_size(transport, broker) -> None:
    sized = tuple(
        cluster.PartitionMetadata(partition=number, leader_id=4, leader_epoch=0) for number in (0, 1)
    )
    broker.answers[3] = cluster.MetadataResponse(
        cluster_id="c",
        controller_id=4,
        brokers=(NODE,),
        topics=(
            cluster.TopicMetadata(name="t", topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partitions=sized),
            cluster.TopicMetadata(
                name="u", topic_id=None, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=()
            ),
        ),
    )
    assert await transport.partition_counts(("t", "u")) == {"t": 2}
    assert broker.asked[-1][0] == COORDINATION  # not where a fetch may wait


class Refusing:
    """A transport that answers each request as told, or with an error."""

    def __init__(self, **errors: ErrorCode) -> None:
        self.errors = errors

    def _future(self, name: str, value: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if name in self.errors:
            future.set_exception(ProtocolError(self.errors[name], "no"))
        else:
            future.set_result(value)
        return future

    def send(self, request: Any, timeout_ms: int) -> asyncio.Future[Any]:
        replies = {
            "JoinGroupRequest": JOINED,
            "SyncGroupRequest": classic.SyncGroupResponse(),
            "HeartbeatRequest": BEATEN,
        }
        name = type(request).__name__
        return self._future(name, replies.get(name, LEFT))

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        return self._future("find", None)

    def partition_counts(self, topics: Any) -> asyncio.Future[Any]:
        return self._future("counts", {})

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("refused", ["find", "JoinGroupRequest", "SyncGroupRequest", "HeartbeatRequest"])
async def test_what_the_transport_refuses_the_application_hears(refused: str) -> None:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    transport: Any = Refusing(**{refused: code})
    driver = ClassicDriver("g", transport, LoopClock(), assignors=(RangeAssignor(),), rng=random.Random(1))
    transport.errors.setdefault("LeaveGroupRequest", code)
    driver.subscribe(("t",))
    driver.poll_begin()
    await asyncio.sleep(10)
    assert driver.state is ClassicMemberState.FATAL
    with pytest.raises(FatalMemberError, match="GROUP_AUTHORIZATION_FAILED"):
        driver.poll_begin()
    await driver.close()
