"""Faults of a proxy alone: requests that it can't read, its own routes over HTTP, and bad input."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
import structlog
from confluent_kafka import Producer
from structlog.testing import capture_logs

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.framing import RequestHeader
from fencepost.coordinator.codec.registry import ApiKey, api_name, codec_of
from fencepost.coordinator.protocol import classic, logs
from fencepost.coordinator.protocol.cluster import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.server.new_topics import new_topic_id
from fencepost.coordinator.server.services import ThrottledReply
from fencepost.simulation.brokers.security import ClientSecurity
from fencepost.simulation.control.app import ControlApp
from fencepost.simulation.embedded.fault_controls import Fault
from fencepost.simulation.lab.proxy.exchange import ObservedTopicNames
from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy
from fencepost.simulation.lab.proxy.stand_in import response_frame
from tests.unit.simulation.wire_member import WireMember

pytestmark = pytest.mark.real

FIND = FindCoordinatorRequest(keys=("g",))
SHARE_FETCH = 78


@pytest.fixture
def proxy(kafka: EmbeddedKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka.bootstrap_servers) as running:
        yield running


@pytest.fixture
def wire(proxy: KafkaProxy) -> WireMember:
    return WireMember(proxy.bootstrap_servers, "g", "m")


def test_responses_keep_the_order_of_their_requests_and_none_reaches_the_broker(
    kafka: EmbeddedKafka, proxy: KafkaProxy, wire: WireMember
) -> None:
    wanted = logs.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topics = (logs.OfTopic(name="orders", partitions=(wanted,)),)
    waiting = logs.FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=1_000, topics=topics)
    proxy.add_fault("error", "FindCoordinator", error="COORDINATOR_NOT_AVAILABLE", every=2, times=2)
    proxy.add_fault("delay", "FindCoordinator", seconds=0.1, every=3)
    before = kafka.endpoint.faults.requests[ApiKey.FIND_COORDINATOR]
    asked = [(ApiKey.FETCH, 12, waiting), *[(ApiKey.FIND_COORDINATOR, 4, FIND)] * 5]
    wire.socket.sendall(
        b"".join(
            request_frame(key, version, number, "m", each)
            for number, (key, version, each) in enumerate(asked)
        )
    )
    told = [read_response(key, version, wire.frame()) for key, version, _ in asked]
    assert [number for number, _ in told] == list(range(6))
    errors = [reply.coordinators[0].error_code.name for _, reply in told[1:]]
    good, bad = "NONE", "COORDINATOR_NOT_AVAILABLE"
    assert errors == [good, bad, good, bad, good]
    assert kafka.endpoint.faults.requests[ApiKey.FIND_COORDINATOR] == before + 3


def test_requests_behind_a_lost_one_are_lost_too(
    kafka: EmbeddedKafka, proxy: KafkaProxy, wire: WireMember
) -> None:
    proxy.add_fault("lose_request", "FindCoordinator")
    before = kafka.endpoint.faults.requests[ApiKey.FIND_COORDINATOR]
    hello = request_frame(ApiKey.API_VERSIONS, 3, 1, "m", ApiVersionsRequest())
    find = request_frame(ApiKey.FIND_COORDINATOR, 4, 2, "m", FIND)
    wire.socket.sendall(hello + find + find)
    assert read_response(ApiKey.API_VERSIONS, 3, wire.frame())[0] == 1, "what came before is answered"
    with pytest.raises(EOFError):
        wire.frame()
    assert kafka.endpoint.faults.requests[ApiKey.FIND_COORDINATOR] == before


def test_every_client_can_read_that_a_version_is_unsupported(proxy: KafkaProxy, wire: WireMember) -> None:
    proxy.fail_next("ApiVersions", "UNSUPPORTED_VERSION")
    wire.socket.sendall(request_frame(ApiKey.API_VERSIONS, 4, 7, "m", ApiVersionsRequest()))
    number, reply = read_response(ApiKey.API_VERSIONS, 0, wire.frame())
    assert (number, reply.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)


def test_metadata_fails_with_the_addresses_of_the_proxy(proxy: KafkaProxy, wire: WireMember) -> None:
    proxy.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    asked = MetadataRequest(topics=None)
    wire.socket.sendall(request_frame(ApiKey.METADATA, 12, 1, "m", asked))
    _, reply = read_response(ApiKey.METADATA, 12, wire.frame())
    assert [(each.name, each.error_code.name) for each in reply.topics] == [
        ("orders", "LEADER_NOT_AVAILABLE")
    ]
    assert [f"{each.host}:{each.port}" for each in reply.brokers] == [proxy.bootstrap_servers]
    wire.socket.sendall(request_frame(ApiKey.METADATA, 12, 2, "m", asked))
    _, after = read_response(ApiKey.METADATA, 12, wire.frame())
    assert (after.cluster_id, after.brokers) == (reply.cluster_id, reply.brokers)


def test_what_is_not_read_can_be_lost(proxy: KafkaProxy, wire: WireMember) -> None:
    assert api_name(SHARE_FETCH) == "ShareFetch"
    fault = proxy.lose_next_response("share-fetch")
    (added,) = proxy.faults()
    assert (fault, added.description) == (None, "lose_next_response('ShareFetch')")
    failing = proxy.add_fault("error", error="UNKNOWN_SERVER_ERROR", times=None)
    lost = proxy.add_fault("lose_request", "OffsetCommit", version=99, client_id="m")
    body = struct.pack(">hhih", ApiKey.OFFSET_COMMIT, 99, 5, 1) + b"m\0"
    wire.socket.sendall(struct.pack(">i", len(body)) + body)
    with pytest.raises(EOFError):
        wire.frame()
    assert (lost.state.is_over, failing.state.matched) == (True, 0)


UNREAD = "{}: the proxy passes {} on unread"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"api": "ShareFetch", "error": "NOT_COORDINATOR"},
            UNREAD.format("error='NOT_COORDINATOR'", "ShareFetch"),
        ),
        (
            {"api": "ShareFetch", "action": "silent", "topic": "orders"},
            UNREAD.format("topic='orders'", "ShareFetch"),
        ),
        (
            {"api": "Produce", "version": 99, "error": "NOT_COORDINATOR"},
            UNREAD.format("error='NOT_COORDINATOR'", "Produce version 99"),
        ),
        (
            {"api": "Fetch", "version": 99, "action": "corrupt"},
            UNREAD.format("action='corrupt'", "Fetch version 99"),
        ),
        (
            {"api": "Heartbeat", "error": "NOT_COORDINATOR", "topic": "t"},
            "no request of Heartbeat names a topic",
        ),
        ({"api": "OffsetComit", "action": "silent"}, "did you mean OffsetCommit"),
        ({"action": "silent", "broker": 7}, "broker 7: the proxy has 1"),
    ],
)
def test_what_no_request_can_meet_is_refused(
    proxy: KafkaProxy, arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(FencepostError, match=told):
        proxy.add_fault(**{"action": "error", **arguments})  # type: ignore[arg-type]
    assert proxy.faults() == []


def test_what_a_proxy_can_not_stand_before(kafka: EmbeddedKafka) -> None:
    for host in ("0.0.0.0", "0", "0x0", "::"):
        with pytest.raises(FencepostError, match=f"host {host}: clients connect to it, expected an address"):
            KafkaProxy(kafka.bootstrap_servers, host=host).start()
    for wrong in ({"port": -1}, {"port": "19092"}, {"port": 65_536}, {"host": ""}):
        with pytest.raises(FencepostError, match=f"{next(iter(wrong))}=.*: expected "):
            KafkaProxy("localhost:9092", **wrong)
    with pytest.raises(FencepostError, match="expected one HOST:PORT"):
        KafkaProxy("localhost:9092", advertise="a:1,b:2")
    with pytest.raises(FencepostError, match="can't read TLS: expected"):
        KafkaProxy("localhost:9092", security=ClientSecurity(tls=True))
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(EnvironmentLacks, match=rf"broker 1: port {port} on 127\.0\.0\.1 is taken: stop"):
        KafkaProxy(kafka.bootstrap_servers, port=port).start()
    with pytest.raises(EnvironmentLacks, match="bootstrap servers: no Kafka broker answers at "):
        KafkaProxy("127.0.0.1:1").start()
    with (
        EmbeddedKafka(brokers=2) as two,
        pytest.raises(FencepostError, match="last of 2 ports is beyond 65535"),
    ):
        KafkaProxy(two.bootstrap_servers, port=65535).start()


def test_an_address_of_a_mapped_port_is_advertised(kafka: EmbeddedKafka) -> None:
    with KafkaProxy(kafka.bootstrap_servers, host="0", advertise="kafka.example:29092") as proxy:
        assert proxy.bootstrap_servers == "kafka.example:29092"
        wire = WireMember(f"127.0.0.1:{proxy.endpoint._ports[1]}", "g", "m")
        with wire.socket:
            for number in range(2):
                asked = MetadataRequest(topics=None)
                wire.socket.sendall(request_frame(ApiKey.METADATA, 12, number, "m", asked))
                _, told = read_response(ApiKey.METADATA, 12, wire.frame())
                assert [(each.host, each.port) for each in told.brokers] == [("kafka.example", 29092)]
                proxy.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
            proxy.remove_faults()


def test_a_met_request_is_counted_and_not_logged(proxy: KafkaProxy, wire: WireMember) -> None:
    structlog.configure(cache_logger_on_first_use=False)
    try:
        with capture_logs() as logged:
            fault = proxy.add_fault("delay", "FindCoordinator", seconds=0.001, times=3)
            for number in range(3):
                wire.socket.sendall(request_frame(ApiKey.FIND_COORDINATOR, 4, number, "m", FIND))
                wire.frame()
            assert fault.state.met == 3
    finally:
        structlog.reset_defaults()
    assert [each["state"] for each in logged if each["event"] == "proxy_fault"] == ["begin", "end"]


async def test_the_same_routes_over_http(kafka: EmbeddedKafka, proxy: KafkaProxy) -> None:
    member = WireMember(proxy.bootstrap_servers, "g", "m")
    member.join("orders")
    transport = httpx.ASGITransport(ControlApp(proxy))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9644") as http:
        body = {
            "action": "error",
            "api": "ConsumerGroupHeartbeat",
            "error": "FENCED_MEMBER_EPOCH",
            "member": "m",
        }
        added = (await http.post("/add_fault", json=body)).json()
        assert member.heartbeat().error_code is ErrorCode.FENCED_MEMBER_EPOCH
        met = (await http.post(f"/faults/{added['fault']}/wait_met")).json()
        assert (met["met"], met["is_over"]) == (1, True)
        assert (await http.get("/faults")).json() == [met]
        assert (await http.get("/bootstrap_servers")).json() == proxy.bootstrap_servers
        assert (await http.get("/health")).json()["bootstrap_servers"] == proxy.bootstrap_servers
        document = (await http.get("/openapi.json")).json()
        assert document["info"]["title"] == "Control of fencepost proxy"
        names = {path.rpartition("/")[2] for path in document["paths"]}
        offered = {"add_fault", "fail_next", "lose_next_response", "delay", "disconnect", "faults", "unmet"}
        assert names == offered | {
            "remove_faults",
            "bootstrap_servers",
            "health",
            "state",
            "remove",
            "wait_met",
        }
        for path in ("/", "/metrics", "/scopes", "/topics", "/scopes/a-1/faults"):
            assert (await http.get(path)).status_code == 404
        refused = await http.post("/fail_next", json={"api": "ShareFetch", "error": "NOT_COORDINATOR"})
        assert (refused.status_code, "passes ShareFetch on unread" in refused.json()["error"]) == (409, True)


async def test_a_test_that_awaits(kafka: EmbeddedKafka) -> None:
    async with KafkaProxy(kafka.bootstrap_servers) as proxy:
        fault = proxy.add_fault("silent", "Fetch")
        assert isinstance(fault, Fault)
        with pytest.raises(TimeoutError, match="fault 1 has met 0 of 1 requests"):
            await fault.met(timeout=0)


def test_a_login_passes_the_proxy() -> None:
    users = {"alice": "secret"}
    with EmbeddedKafka(topics=["orders"], users=users) as kafka:
        security = ClientSecurity(mechanism="SCRAM-SHA-256", username="alice", password="secret")
        with KafkaProxy(kafka.bootstrap_servers, security=security) as proxy:
            settings = {
                "bootstrap.servers": proxy.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "secret",
            }
            proxy.fail_next("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED")
            fault = proxy.add_fault("error", "Produce", error="NOT_ENOUGH_REPLICAS", topic="orders")
            producer = Producer({**settings, "log_level": 0})
            producer.produce("orders", b"x")
            assert producer.flush(60) == 0
            assert (proxy.unmet(), fault.state.met) == ([], 1)
            assert [each.value for each in kafka.records("orders")] == [b"x"]


def test_requests_that_came_with_a_throttled_one_wait(proxy: KafkaProxy, wire: WireMember) -> None:
    hello = request_frame(ApiKey.API_VERSIONS, 3, 1, "m", ApiVersionsRequest())
    produce = request_frame(ApiKey.PRODUCE, 9, 2, "m", logs.ProduceRequest(acks=0, topics=()))
    proxy.add_fault("throttle", "Produce", seconds=0.3)
    began = time.monotonic()
    wire.socket.sendall(produce + hello)
    wire.frame()
    assert time.monotonic() - began > 0.2


def test_what_waits_for_a_client_ends_with_it(proxy: KafkaProxy, wire: WireMember) -> None:
    def tasks() -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return proxy.thread.submit(count()).result()

    fault = proxy.add_fault("delay", "FindCoordinator", seconds=600)
    wire.socket.sendall(request_frame(ApiKey.FIND_COORDINATOR, 4, 1, "m", FIND))
    fault.wait_met()
    assert tasks() > 1
    wire.socket.close()
    deadline = time.monotonic() + 60
    while tasks() > 1:  # the one that counts
        assert time.monotonic() < deadline


def test_a_producer_that_wants_no_response_is_left(
    kafka: EmbeddedKafka, proxy: KafkaProxy, wire: WireMember
) -> None:
    proxy.add_fault("throttle", "Produce", seconds=0.01)
    proxy.lose_next_response("Produce")
    wire.socket.sendall(request_frame(ApiKey.PRODUCE, 9, 1, "m", logs.ProduceRequest(acks=0, topics=())))
    with pytest.raises(EOFError):
        wire.frame()


def test_a_broker_that_joins_later_is_reported_once() -> None:
    with (
        capture_logs() as logged,
        EmbeddedKafka(topics=["orders"]) as kafka,
        KafkaProxy(kafka.bootstrap_servers) as proxy,
    ):
        added = kafka.add_broker()
        wire = WireMember(proxy.bootstrap_servers, "g", "m")
        for number in range(2):
            asked = MetadataRequest(topics=())
            wire.socket.sendall(request_frame(ApiKey.METADATA, 12, number, "m", asked))
            _, told = read_response(ApiKey.METADATA, 12, wire.frame())
            assert [each.node_id for each in told.brokers] == [1, added]
        wire.socket.close()
    assert [each["node"] for each in logged if each["event"] == "proxy_unknown_broker"] == [added]


def test_refused_members_and_closed_connections_are_not_remembered(proxy: KafkaProxy) -> None:
    faults = proxy.endpoint.faults
    member = WireMember(proxy.bootstrap_servers, "g", "m")
    member.client_id = "c"
    for number in range(20):
        request = classic.HeartbeatRequest(group_id="g", member_id=f"m{number}", generation=1)
        assert member.ask(ApiKey.HEARTBEAT, request, 3).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (proxy.faults(), faults._members) == ([], {}), "the call waits for the loop"
    member.join("orders", instance_id="i")
    assert proxy.faults() == []
    (known,) = faults._members.values()
    assert list(known) == ["m"]
    with pytest.raises(FencepostError, match=r"member='i': .*; use client_id"):
        proxy.lose_next_response("Fetch", "i")
    proxy.delay("Fetch", 0.001, "c")
    member.close()
    deadline = time.monotonic() + 60
    while faults._members:
        assert time.monotonic() < deadline


def test_a_request_that_is_not_read_is_reported_once(proxy: KafkaProxy, wire: WireMember) -> None:
    proxy.add_fault("delay", "OffsetCommit", seconds=0.001, times=None)
    body = struct.pack(">hhih", ApiKey.OFFSET_COMMIT, 8, 5, 1) + b"m\0"
    with capture_logs() as logged:
        wire.socket.sendall((struct.pack(">i", len(body)) + body) * 5)
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.frame()
    assert [each["event"] for each in logged].count("proxy_request_unread") == 1


def test_a_throttle_does_not_shorten_that_of_the_broker() -> None:
    header = RequestHeader(ApiKey.LIST_GROUPS, 1, 1, "m", 0)
    frame = struct.pack(">iihi", 1, 5_000, 0, 0)
    assert response_frame(header, ThrottledReply(frame, 10)) == frame
    assert response_frame(header, ThrottledReply(frame, 6_000)) == frame.replace(
        struct.pack(">i", 5_000), struct.pack(">i", 6_000)
    )


def test_no_name_of_a_topic_is_lost() -> None:
    names = ObservedTopicNames()
    ids = [new_topic_id() for _ in range(200)]
    codec = codec_of(ApiKey.METADATA, 12)
    assert codec is not None
    for number, topic_id in enumerate(ids):
        told = MetadataResponse(
            cluster_id="c",
            controller_id=1,
            brokers=(),
            topics=(TopicMetadata(name=f"t{number}", topic_id=topic_id),),
        )
        names.hear(12, b"".join(codec.encode(1, told))[4:])
        assert len(names._unread) < 64
    assert [names.name_of(each) for each in ids] == [f"t{number}" for number in range(200)]


def test_names_of_topics_are_known_from_the_start(kafka: EmbeddedKafka, proxy: KafkaProxy) -> None:
    assert list(proxy.endpoint._surroundings.topic_names.known().values()) == ["orders"]


def test_responses_that_wait_for_an_earlier_one_stop_the_reading(proxy: KafkaProxy, wire: WireMember) -> None:
    first = proxy.add_fault("delay", "FindCoordinator", seconds=600)
    proxy.add_fault("error", "DescribeGroups", error="NOT_COORDINATOR", times=None)
    wire.socket.sendall(request_frame(ApiKey.FIND_COORDINATOR, 4, 1, "m", FIND))
    first.wait_met()
    asked = classic.DescribeGroupsRequest(group_ids=tuple("x" * 1_000 for _ in range(20)))
    frame = request_frame(ApiKey.DESCRIBE_GROUPS, 0, 2, "m", asked)
    wire.socket.settimeout(2)
    with pytest.raises(TimeoutError):
        wire.socket.sendall(frame * 4_000)
    (connection,) = proxy.endpoint._connections
    assert connection._waiting_size < 10 << 20
    assert len(connection._in_flight) < 1_100


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_proxy_that_waits_for_its_broker(number: signal.Signals) -> None:
    options = ["--host", "0", "--advertise", "127.0.0.1:29092", "--port", "0", "--control", "0"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "fencepost.simulation", "proxy", address, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            with silent.accept()[0]:
                process.send_signal(number)
                assert process.wait(10) == 0, "a broker's time to respond is longer"
            assert process.stderr is not None
            (line,) = process.stderr.read().decode().splitlines()
    assert "open_to_everybody" in line
