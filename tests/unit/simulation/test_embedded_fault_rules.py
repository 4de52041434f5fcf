"""Faults of any requests: what selects them, how often they act, what they do, and their counts."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.batches import checked_batch
from fencepost.coordinator.codec.client import request_frame
from fencepost.coordinator.codec.offsets import OffsetFetchCall, OffsetFetchGroup
from fencepost.coordinator.codec.record_writing import BatchWriter
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.codec.schema import response_schema
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest, MetadataRequest, TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from tests.unit.simulation.faulty_places import EMBEDDED, PLACES, faulty
from tests.unit.simulation.wire_member import WireMember
from tests.waiting import until

pytestmark = pytest.mark.real

HEARTBEAT = "ConsumerGroupHeartbeat"
FIND = FindCoordinatorRequest(keys=("g",))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kafka(place: str) -> Iterator[EmbeddedKafka]:
    with faulty(place, topics={"orders": 4}) as running:
        yield running


def fetch(member: WireMember, partition: int = 0) -> logs.FetchResponse:
    wanted = logs.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1_000)
    topics = (logs.OfTopic(name="orders", partitions=(wanted,)),)
    request = logs.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1_000, topics=topics)
    reply: logs.FetchResponse = member.ask(ApiKey.FETCH, request, 12)
    return reply


def errors(member: WireMember, times: int) -> list[str]:
    return [member.heartbeat().error_code.name for _ in range(times)]


def test_every_third_request_twice(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("error", HEARTBEAT, error="COORDINATOR_NOT_AVAILABLE", every=3, times=2)
    good, bad = "NONE", "COORDINATOR_NOT_AVAILABLE"
    assert errors(member, 8) == [good, good, bad, good, good, bad, good, good]
    assert (fault.state.matched, fault.state.met, fault.state.is_over) == (6, 2, True)
    assert kafka.unmet() == []


def test_a_probability_is_drawn_from_a_seed(kafka: EmbeddedKafka, member: WireMember) -> None:
    drawn = []
    for seed in (1, 1, 2):
        fault = kafka.add_fault(
            "error", HEARTBEAT, error="COORDINATOR_NOT_AVAILABLE", probability=0.5, seed=seed, times=None
        )
        drawn.append(errors(member, 12))
        assert fault.remove().met == 12 - drawn[-1].count("NONE")
    assert drawn[0] == drawn[1] != drawn[2]
    assert {*drawn[0]} == {"NONE", "COORDINATOR_NOT_AVAILABLE"}


@pytest.mark.parametrize(
    ("selectors", "is_meant"),
    [
        ({"group": "g"}, True),
        ({"group": "other"}, False),
        ({"client_id": "m"}, True),
        ({"client_id": "other"}, False),
        ({"member": "m"}, True),
        ({"version": 1}, True),
        ({"version": 0}, False),
        ({"broker": 1}, True),
        ({"topic": "orders"}, False),
        ({"group": "g", "client_id": "other"}, False),
        ({}, True),
    ],
)
def test_all_selectors_must_match(
    kafka: EmbeddedKafka, member: WireMember, selectors: dict[str, Any], is_meant: bool
) -> None:
    fault = kafka.add_fault("error", HEARTBEAT, error="COORDINATOR_NOT_AVAILABLE", **selectors)
    assert (member.heartbeat().error_code is not ErrorCode.NONE) == is_meant
    assert fault.state.matched == is_meant


def test_partitions_are_selected(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("error", "Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1)
    kafka.add_fault("error", "Metadata", error="LEADER_NOT_AVAILABLE", topic="other")
    asked = MetadataRequest(topics=(TopicReference(name="orders"),))
    assert fetch(member, 0).topics[0].partitions[0].error_code is ErrorCode.NONE
    assert fetch(member, 1).topics[0].partitions[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert member.ask(ApiKey.METADATA, asked, 12).topics[0].error_code is ErrorCode.NONE
    assert fault.state.matched == 1


def test_faults_that_differ_are_described_differently(kafka: EmbeddedKafka) -> None:
    every: dict[str, Any] = {"every": 2, "probability": 0.5, "seed": 3, "times": None}
    for arguments in ({}, {"at_top": True}, every):
        kafka.add_fault("error", "Fetch", error="NOT_COORDINATOR", **arguments)
    told = "add_fault('error', 'Fetch', 'NOT_COORDINATOR'"
    assert [each.description for each in kafka.faults()] == [
        f"{told})",
        f"{told}, at_top=True)",
        f"{told}, times=None, every=2, probability=0.5, seed=3)",
    ]


def session_fetch(
    member: WireMember, session: tuple[int, int], named: tuple[int, ...] = (), forgotten: tuple[int, ...] = ()
) -> logs.FetchResponse:
    wanted = tuple(
        logs.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1_000) for each in named
    )
    request = logs.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        session_id=session[0],
        session_epoch=session[1],
        topics=(logs.OfTopic(name="orders", partitions=wanted),) if named else (),
        forgotten=(logs.OfTopic(name="orders", partitions=forgotten),) if forgotten else (),
    )
    reply: logs.FetchResponse = member.ask(ApiKey.FETCH, request, 12)
    return reply


def test_the_partitions_of_a_fetch_are_those_of_its_session(kafka: EmbeddedKafka, member: WireMember) -> None:
    session = session_fetch(member, (0, 0), (0, 1, 2)).session_id
    fault = kafka.add_fault("delay", "Fetch", seconds=0.001, topic="orders", partition=1, times=None)
    session_fetch(member, (session, 1))
    session_fetch(member, (session, 2), (2,))
    assert fault.state.matched == 2, "partition 1 stays, though the last request has named another"
    session_fetch(member, (session, 3), (), (1,))
    session_fetch(member, (session, 4), (3,))
    assert fault.state.matched == 2, "it was forgotten"
    failing = kafka.add_fault("error", "Fetch", error="UNKNOWN_SERVER_ERROR", topic="orders", partition=3)
    failed = session_fetch(member, (session, 5))
    assert sorted(one.partition for topic in failed.topics for one in topic.partitions) == [0, 2, 3]
    assert failing.state.is_over
    session_fetch(member, (0, 0), (0, 1))
    assert fault.state.matched == 3
    session_fetch(member, (0, -1), (0,))
    assert fault.state.matched == 3, "a full request replaces what was before"


def test_fetched_offsets_are_of_a_topic(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("error", "OffsetFetch", error="NOT_COORDINATOR", topic="orders", times=None)
    for name, matched in (("others", 0), ("orders", 1)):
        group = OffsetFetchGroup(group_id="g", topics=(logs.OfTopic(name=name, partitions=(0,)),))
        call = OffsetFetchCall(groups=(group,), require_stable=False, api_version=8)
        member.ask(ApiKey.OFFSET_FETCH, call, 8)
        assert fault.state.matched == matched


def test_without_an_api_all_requests_are_meant(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("lose_request", times=2)
    for ask in (member.heartbeat, lambda: member.ask(ApiKey.FIND_COORDINATOR, FIND)):
        with pytest.raises(EOFError):
            ask()
        member.connect()
    assert fault.state.is_over
    assert member.heartbeat().error_code is ErrorCode.NONE


def test_an_error_at_the_top(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.add_fault("error", "Fetch", error="UNKNOWN_SERVER_ERROR", at_top=True)
    kafka.add_fault("error", "Fetch", error="UNKNOWN_SERVER_ERROR")
    reply = fetch(member)
    assert (reply.error_code, reply.topics) == (ErrorCode.UNKNOWN_SERVER_ERROR, ())
    reply = fetch(member)
    assert reply.error_code is ErrorCode.NONE
    assert reply.topics[0].partitions[0].error_code is ErrorCode.UNKNOWN_SERVER_ERROR


@EMBEDDED
@pytest.mark.parametrize("begins", ["before the other joins", "with what it gave away"])
def test_a_client_that_goes_on_to_fetch_a_partition_of_another_member_stays_the_same(
    kafka: EmbeddedKafka, begins: str
) -> None:
    """So does librdkafka, if a partition is taken away while it looks up where to begin."""
    one, two = (WireMember(kafka.bootstrap_servers, "g", name) for name in ("one", "two"))
    reading = [WireMember(kafka.bootstrap_servers, "g", "reads") for _ in "12"]
    for each in (one, two, *reading):
        each.client_id = "same"
    one.join("orders")
    if begins == "before the other joins":
        session_fetch(reading[0], (0, -1), (0, 1, 2, 3))
    two.join("orders")
    one.heartbeat()
    one.confirm()
    two.heartbeat()
    (kept,), (given,) = one.assignment.values(), two.assignment.values()
    assert sorted((*kept, *given)) == [0, 1, 2, 3]
    if begins == "with what it gave away":
        session_fetch(reading[0], (0, -1), given)
        session_fetch(reading[0], (0, -1), (0, 1, 2, 3))
    session_fetch(reading[1], (0, -1), given)
    for connection, who in zip(reading, ("one", "two"), strict=True):
        fault = kafka.add_fault("delay", "Metadata", seconds=0.001, member=who, times=1)
        connection.ask(ApiKey.METADATA, MetadataRequest(topics=(TopicReference(name="orders"),)), 12)
        assert fault.state.is_over, who


def test_a_lost_request_was_not_carried_out(kafka: EmbeddedKafka) -> None:
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    kafka.add_fault("lose_request", HEARTBEAT)
    with pytest.raises(EOFError):
        one.join("orders")
    assert kafka.group("g").members() == []


def test_a_client_is_disconnected_everywhere(kafka: EmbeddedKafka, member: WireMember) -> None:
    second = WireMember(kafka.bootstrap_servers, "g", "m")
    second.ask(ApiKey.FIND_COORDINATOR, FIND)
    other = WireMember(kafka.bootstrap_servers, "g", "other")
    other.ask(ApiKey.FIND_COORDINATOR, FIND)
    kafka.add_fault("disconnect", HEARTBEAT)
    for each in (member.heartbeat, lambda: second.ask(ApiKey.FIND_COORDINATOR, FIND)):
        with pytest.raises(EOFError):
            each()
    assert other.ask(ApiKey.FIND_COORDINATOR, FIND).coordinators[0].error_code is ErrorCode.NONE


def test_a_silent_broker_keeps_the_connection_and_says_nothing(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    kafka.produce("orders", "x")
    fault = kafka.add_fault("silent", "Fetch", times=None)
    member.socket.settimeout(0.2)
    with pytest.raises(socket.timeout):
        fetch(member)
    frame = request_frame(ApiKey.FIND_COORDINATOR, 4, 99, "m", FIND)
    member.socket.sendall(frame)
    with pytest.raises(socket.timeout):
        member.socket.recv(1)
    assert fault.state.met == 1
    member.connect()
    assert member.heartbeat().error_code is ErrorCode.NONE


def test_a_throttled_client_is_told_and_is_not_read_from(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.add_fault("throttle", HEARTBEAT, seconds=0.3)
    request = request_frame(ApiKey.FIND_COORDINATOR, 4, 99, "m", FIND)
    member.heartbeat()
    began = time.monotonic()
    member.socket.sendall(request)
    assert member.socket.recv(4096)[4:8] == (99).to_bytes(4, "big")
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize(
    "api",
    [
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.METADATA,
        ApiKey.FETCH,
        ApiKey.PRODUCE,
        ApiKey.API_VERSIONS,
    ],
)
def test_where_responses_say_that_a_client_is_throttled(api: ApiKey) -> None:
    from fencepost.coordinator.codec.registry import REGISTRY, codec_of
    from fencepost.coordinator.protocol.cluster import ApiVersion, ApiVersionsResponse, MetadataResponse
    from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse

    topic = logs.OfTopic(name="t", topic_id="B" * 22, partitions=(logs.AppendedPartition(partition=0),))
    empty = {
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatResponse(),
        ApiKey.METADATA: MetadataResponse(topics=(), brokers=(), cluster_id="c", controller_id=1),
        ApiKey.FETCH: logs.FetchResponse(),
        ApiKey.PRODUCE: logs.ProduceResponse(topics=(topic,)),
        ApiKey.API_VERSIONS: ApiVersionsResponse(api_versions=(ApiVersion(18, 0, 4),)),
    }
    for version in range(REGISTRY[api].min_version, REGISTRY[api].max_version + 1):
        codec = codec_of(api, version)
        assert codec is not None
        frame = codec.encode_throttled(7, empty[api], 1_234)[0]
        assert len(frame) == sum(map(len, codec.encode(7, empty[api])))
        names = [
            each for each in response_schema(api, version).__dataclass_fields__ if each == "throttle_time"
        ]
        assert ((1_234).to_bytes(4, "big") in frame) == bool(names)


def test_records_are_damaged_on_their_way_only(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.produce("orders", "x", partition=0)
    kafka.add_fault("corrupt", "Fetch")

    def batch() -> bytes:
        (found,) = fetch(member).topics[0].partitions[0].batches
        return bytes(found)

    with pytest.raises(ProtocolError, match="checksum"):
        checked_batch(batch(), 10_000)
    checked_batch(batch(), 10_000)
    assert [each.value for each in kafka.records("orders")] == [b"x"]


def test_a_response_without_records_is_no_corrupt_one(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("corrupt")
    member.heartbeat()
    fetch(member)
    assert (fault.state.matched, fault.state.met) == (0, 0)
    kafka.produce("orders", "x", partition=0)
    ((batch,),) = (each.batches for each in fetch(member).topics[0].partitions)
    with pytest.raises(ProtocolError, match="checksum"):
        checked_batch(bytes(batch), 10_000)
    assert (fault.state.matched, fault.state.met, fault.state.is_over) == (1, 1, True)


def produced(value: bytes) -> bytes:
    """A request that wants no response."""
    writer = BatchWriter(1_000)
    writer.add(1, None, value, ())
    data = logs.OfTopic(name="orders", partitions=(logs.ProducedPartition(0, writer.batch()),))
    return request_frame(ApiKey.PRODUCE, 9, 98, "m", logs.ProduceRequest(acks=0, topics=(data,)))


def test_a_producer_that_wants_no_response_is_throttled(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("throttle", "Produce", seconds=0.3)
    began = time.monotonic()
    member.socket.sendall(produced(b"x"))
    assert member.ask(ApiKey.FIND_COORDINATOR, FIND).coordinators[0].error_code is ErrorCode.NONE
    assert time.monotonic() - began > 0.2
    assert [each.value for each in kafka.records("orders")] == [b"x"]
    assert fault.state.met == 1


@EMBEDDED
async def test_a_throttled_producer_that_disconnects_loses_no_record(kafka: EmbeddedKafka) -> None:
    fault = kafka.add_fault("throttle", "Produce", seconds=0.05, times=2)
    values = [b"%d" % number for number in range(5)]
    with socket.create_connection(("127.0.0.1", kafka.endpoint.brokers.ports[0])) as sending:
        sending.sendall(b"".join(map(produced, values)))
    await until(lambda: [each.value for each in kafka.records("orders")] == values)
    assert fault.state.is_over


@EMBEDDED
def test_a_scope_disconnects_none_of_another(kafka: EmbeddedKafka) -> None:
    def is_connected(member: WireMember) -> bool:
        try:
            member.ask(ApiKey.FIND_COORDINATOR, FIND)
        except EOFError:
            member.connect()
            return False
        return True

    with kafka.scope(topics=["in"]) as one, kafka.scope(topics=["in"]) as other:
        first, second = (WireMember(kafka.bootstrap_servers, each.name("g"), "m") for each in (one, other))
        first.join(one.name("in"))
        second.join(other.name("in"))
        one.disconnect("m")
        assert (is_connected(first), is_connected(second)) == (False, True)
        one.add_fault("disconnect", HEARTBEAT)
        with pytest.raises(EOFError):
            first.heartbeat()
        assert is_connected(second)
        with pytest.raises(FencepostError, match="no connection of a member or client 'm' is open"):
            one.disconnect("m")


@EMBEDDED
def test_the_end_of_a_scope_removes_the_rule_of_a_fence(kafka: EmbeddedKafka) -> None:
    with kafka.scope(topics=["in"]) as scope:
        WireMember(kafka.bootstrap_servers, scope.name("g"), "m").join(scope.name("in"))
        scope.group(scope.name("g")).fence("m")
        assert len(kafka.endpoint.faults.of_scope("")) == 1
    assert kafka.endpoint.faults.of_scope("") == []


def test_a_test_waits_until_a_fault_has_met_its_requests(kafka: EmbeddedKafka, member: WireMember) -> None:
    fault = kafka.add_fault("delay", HEARTBEAT, seconds=0, times=2)
    beating = threading.Thread(target=lambda: [member.heartbeat() for _ in range(2)])
    beating.start()
    assert fault.wait_met(2, timeout=60).is_over
    beating.join()
    assert kafka.fault(fault.number).state == kafka.faults()[0]


async def test_a_test_that_awaits_does_so_too() -> None:
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        fault = kafka.add_fault("error", HEARTBEAT, error="NOT_COORDINATOR")
        waiting = asyncio.create_task(fault.met())
        await asyncio.to_thread(WireMember(kafka.bootstrap_servers, "g", "m").join, "orders")
        assert (await waiting).met == 1


def test_a_wait_in_vain(kafka: EmbeddedKafka) -> None:
    fault = kafka.add_fault("silent", "Fetch", topic="orders")
    with pytest.raises(TimeoutError, match="fault 1 has met 0 of 1 requests after 0 s, of 0 that"):
        fault.wait_met(timeout=0)
    fault.remove()
    with pytest.raises(FencepostError, match="fault 1 was removed: it has met 0 of 1 requests"):
        fault.wait_met()
    with pytest.raises(FencepostError, match="fault 1 has ended already"):
        fault.remove()
    kafka.add_fault("silent", "Fetch")
    assert kafka.remove_faults() == 1


@EMBEDDED
@pytest.mark.parametrize(
    ("do", "told"),
    [
        (lambda kafka: kafka.add_fault("eror"), "action 'eror' is unknown; did you mean error?"),
        (lambda kafka: kafka.add_fault("error", "Fetch"), "action 'error' needs an error, such as"),
        (lambda kafka: kafka.add_fault("silent", error="NOT_COORDINATOR"), "action 'silent' takes no error"),
        (lambda kafka: kafka.add_fault("delay"), "action 'delay' needs seconds"),
        (lambda kafka: kafka.add_fault("silent", seconds=1), "action 'silent' takes no seconds"),
        (lambda kafka: kafka.add_fault("silent", at_top=True), "action 'silent' takes no at_top"),
        (
            lambda kafka: kafka.add_fault("throttle", seconds=1e300),
            "seconds=1e+300: expected 2147483 at mo",
        ),
        (lambda kafka: kafka.add_fault("corrupt", "Produce"), "add_fault('corrupt', 'Produce'): only Fetch"),
        (lambda kafka: kafka.add_fault("silent", probability=0), "probability=0: expected a number above 0"),
        (lambda kafka: kafka.add_fault("silent", partition=1), "partition=1: needs the topic"),
        (
            lambda kafka: kafka.add_fault("silent", "ApiVersions", group="g"),
            "group='g': no request of ApiVersions names a group",
        ),
        (
            lambda kafka: kafka.add_fault("silent", "Heartbeat", topic="orders"),
            "topic='orders': no request of Heartbeat names a topic",
        ),
        (
            lambda kafka: kafka.add_fault("silent", "Fetch", version=3),
            "version=3: Fetch is spoken in versions 4 to 18",
        ),
        (lambda kafka: kafka.add_fault("silent", broker=2), "there is no broker 2"),
        (lambda kafka: kafka.add_fault("silent", times=0), "times=0: expected a whole number, 1 or more"),
        (
            lambda kafka: kafka.add_fault("silent", times=2).wait_met(3),
            "times=3: expected a whole",
        ),
        (lambda kafka: kafka.fault(9), "there is no fault 9; there are none"),
        (lambda kafka: kafka.delete_topic("__consumer_offsets"), "there is no topic '__consumer_offsets'"),
        (lambda kafka: kafka.delete_records("orders", 0, 5), "offset 5 is not within 0 to 0"),
    ],
)
def test_what_cannot_be_done(kafka: EmbeddedKafka, do: Callable[[EmbeddedKafka], object], told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        do(kafka)
    assert str(wrong.value).startswith(told)
    assert kafka.topics() == {"orders": 4}
