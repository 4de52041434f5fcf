"""Requests that cost a server much: others have their turns, and limits are named in the log."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import structlog
from aiokafka import AIOKafkaProducer
from kio.index import load_request_schema

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import Allowance, entity_reader
from fencepost.coordinator.codec.registry import SPOKEN, ApiKey
from fencepost.coordinator.config import NewTopicConfig
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.server.admin_apis import MAX_PARTITIONS_PER_REQUEST
from fencepost.coordinator.server.brokers import Broker, Brokers
from fencepost.coordinator.server.cluster import MAX_CLUSTER_PARTITIONS
from fencepost.coordinator.server.config_apis import MAX_DESCRIBED_RESOURCES
from fencepost.coordinator.server.connection import KafkaServerConnection
from fencepost.coordinator.server.new_topics import MAX_PARTITIONS
from fencepost.coordinator.server.offset_apis import MAX_QUESTIONS_PER_GROUP
from tests.batches import batch
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested
from tests.waiting import until

pytestmark = pytest.mark.real

CALLS_PER_TURN = 1_500_000
"""The most Python calls in one turn of the loop: about a third of a second."""
posix = pytest.mark.skipif(os.name != "posix", reason="needs signals and limits of file descriptors")
FENCEPOST = Path(sys.executable).with_name("fencepost")


def _benchmark() -> ModuleType:
    """The benchmark that makes the inputs."""
    path = Path(__file__).parents[4] / "benchmarks" / "hostile.py"
    spec = importlib.util.spec_from_file_location("hostile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hostile = _benchmark()
LISTS = [
    pytest.param(
        int(api.api_key), api.max_version, path, id=f"{ApiKey(api.api_key).name}-{path[-1].name}-{nth}"
    )
    for api in SPOKEN
    for nth, path in enumerate(hostile.lists(load_request_schema(api.api_key, api.max_version)))
]


@pytest.mark.parametrize(("key", "version", "path"), LISTS)
def test_each_list_of_each_request_is_counted(key: int, version: int, path: Any) -> None:
    schema = load_request_schema(key, version)
    body = hostile.body(schema, path, 50, str)
    entity_reader(schema, Allowance("LIMIT", 5_000))(body, 0)
    with pytest.raises(MalformedFrame, match="LIMIT"):
        entity_reader(schema, Allowance("LIMIT", 49))(body, 0)


class Turns:
    """Counts Python calls in each turn of the running loop, and turns."""

    def __init__(self) -> None:
        self.longest = 0
        self.turns = 0
        self._calls = 0
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._calls += 1

    def _turn(self) -> None:
        self.longest = max(self.longest, self._calls)
        self._calls = 0
        self.turns += 1
        self._handle = self._loop.call_soon(self._turn)

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._turn()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.longest = max(self.longest, self._calls)
            assert self._handle is not None
            self._handle.cancel()


WORST = [
    r"DESCRIBE_GROUPS groups, different",
    r"CONSUMER_GROUP_DESCRIBE group_ids, different",
    r"FIND_COORDINATOR coordinator_keys, different",
    r"DESCRIBE_TRANSACTIONS transactional_ids, different",
    r"OFFSET_FETCH groups, one group",
    r"DESCRIBE_CONFIGS resources, one topic",
    r"INCREMENTAL_ALTER_CONFIGS resources, different",
    r"DELETE_GROUPS groups_names, different",
    r"METADATA topics, different",
    r"API_VERSIONS tags of the header",
]


@pytest.fixture(scope="module")
def inputs() -> list[Any]:
    return list(hostile.of_schemas(1_000_000, re.compile("|".join(WORST)).match))


@pytest.mark.parametrize(
    "worst", [*(pytest.param(each, marks=pytest.mark.long) for each in WORST[:1]), *WORST[1:]]
)
@pytest.mark.timeout(120)
async def test_no_turn_of_the_loop_is_long_and_no_response_is(worst, inputs):
    found = [each for each in inputs if re.match(worst, each.name)]
    assert found
    async with Broker({"t": 1, "u": 50}) as broker:
        for each in found:
            wire = await Wire.to(broker)
            turns = Turns()
            with turns.counted():
                wire.writer.write(each.frame)
                try:
                    received = len(await wire.frame())
                except (asyncio.IncompleteReadError, ConnectionError):
                    received = 0
            assert turns.longest < CALLS_PER_TURN, each.name
            assert received < 8_000_000, each.name


async def test_a_request_with_too_many_elements_closes_the_connection_with_a_line(broker):
    wire = await Wire.to(broker)
    with structlog.testing.capture_logs() as logs:
        wire.send(15, 5, groups=("",) * 60_000, include_authorized_operations=False)
        assert await wire.ended()
    (line,) = logs
    assert line["event"] == "connection_closed"
    assert "MAX_REQUEST_ELEMENTS" in line["reason"]


async def test_one_turn_of_the_loop_takes_some_of_the_requests_that_came_at_once(broker, monkeypatch):
    taken, in_a_turn = 0, []
    take, work = KafkaServerConnection._take, KafkaServerConnection._work

    def counted_take(self: KafkaServerConnection, frame: bytes) -> None:
        nonlocal taken
        taken += 1
        take(self, frame)

    def counted_work(self: KafkaServerConnection) -> None:
        nonlocal taken
        taken = 0
        work(self)
        in_a_turn.append(taken)

    monkeypatch.setattr(KafkaServerConnection, "_take", counted_take)
    monkeypatch.setattr(KafkaServerConnection, "_work", counted_work)
    greedy = await Wire.to(broker)
    greedy.writer.write(struct.pack(">ihhih", 10, 18, 0, 1, -1) * 5_000)
    for _ in range(5_000):
        await greedy.frame()
    assert sum(in_a_turn) == 5_000
    assert max(in_a_turn) <= 64


@pytest.mark.parametrize(
    ("key", "version", "fields", "answers"),
    [
        (15, 5, {"groups": ("g", "h", "g"), "include_authorized_operations": False}, "groups"),
        (69, 0, {"group_ids": ("g", "h", "g"), "include_authorized_operations": False}, "groups"),
        (89, 0, {"group_ids": ("g", "h", "g"), "include_authorized_operations": False}, "groups"),
        (10, 4, {"coordinator_keys": ("g", "h", "g")}, "coordinators"),
        (65, 0, {"transactional_ids": ("g", "h", "g")}, "transaction_states"),
    ],
)
async def test_a_name_that_is_repeated_is_answered_once(wire, key, version, fields, answers):
    response = await wire.ask(key, version, **fields)
    assert len(getattr(response, answers)) == 2


def config_resource(kind: int, name: str) -> Any:
    return nested(
        32, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None
    )


async def test_a_resource_that_is_repeated_is_described_once(wire):
    response = await wire.ask(32, 4, resources=(config_resource(2, "orders"),) * 3)
    assert len(response.results) == 1


async def test_too_many_resources_are_refused_with_the_limit(wire):
    resources = tuple(config_resource(32, f"{number}") for number in range(MAX_DESCRIBED_RESOURCES + 1))
    first = (await wire.ask(32, 4, resources=resources)).results[0]
    assert first.error_code == ErrorCode.INVALID_REQUEST
    assert "MAX_DESCRIBED_RESOURCES" in first.error_message


async def test_a_group_whose_offsets_are_asked_for_twice_is_answered_once(wire):
    def group(name: str, *partitions: int) -> Any:
        topic = nested(9, 8, "OffsetFetchRequestTopics", name="orders", partition_indexes=partitions)
        return nested(9, 8, "OffsetFetchRequestGroup", group_id=name, topics=(topic, topic))

    response = await wire.ask(9, 8, groups=(group("g", 0, 0), group("g", 0, 0), group("g", 0)))
    assert [each.group_id for each in response.groups] == ["g", "g"]
    assert [[len(topic.partitions) for topic in each.topics] for each in response.groups] == [[1], [1]]

    many = tuple(group("h", *range(number)) for number in range(1, MAX_QUESTIONS_PER_GROUP + 2))
    assert len((await wire.ask(9, 8, groups=many[1:])).groups) == MAX_QUESTIONS_PER_GROUP
    (refused,) = (await wire.ask(9, 8, groups=many)).groups
    assert (refused.group_id, refused.error_code, refused.topics) == ("h", ErrorCode.INVALID_REQUEST, ())


def grown(wire: Wire, **counts: int) -> Any:
    topics = tuple(
        nested(37, 3, "CreatePartitionsTopic", name=name, count=count, assignments=None)
        for name, count in counts.items()
    )
    return wire.ask(37, 3, topics=topics, timeout=milliseconds(1_000), validate_only=False)


async def test_a_request_creates_at_most_as_many_partitions_as_with_kafka():
    async with Broker({"a": 1, "b": 1}) as broker:
        wire = await Wire.to(broker)
        half = MAX_PARTITIONS_PER_REQUEST // 2
        response = await grown(wire, a=half + 1, b=half + 2)
        assert {each.error_code for each in response.results} == {ErrorCode.POLICY_VIOLATION}
        assert {topic.partitions for topic in broker.cluster.image.by_name.values()} == {1}
        response = await grown(wire, a=half + 1, b=half + 1)
        assert {each.error_code for each in response.results} == {0}


async def test_clients_create_no_more_partitions_than_a_cluster_may_have():
    async with Broker(
        {"a": MAX_PARTITIONS, "b": 1}, new_topics=NewTopicConfig(auto_create_topics_enable=True)
    ) as broker:
        assert MAX_PARTITIONS >= MAX_CLUSTER_PARTITIONS
        wire = await Wire.to(broker)
        (result,) = (await grown(wire, b=2)).results
        assert result.error_code == ErrorCode.POLICY_VIOLATION
        assert "MAX_CLUSTER_PARTITIONS" in result.error_message
        one = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        topic = nested(19, 7, "CreatableTopic", name="c", **one)
        created = await wire.ask(19, 7, topics=(topic,), timeout=milliseconds(1_000), validate_only=False)
        assert created.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        assert set(broker.cluster.image.by_name) == {"a", "b"}


@contextmanager
def served(*, files: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`fencepost serve` in a process of its own, with its port."""

    command = [str(FENCEPOST), "serve", "--port", "0", "--topics", "t:1"]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.kill()


@pytest.mark.long
async def test_a_light_client_is_served_between_the_requests_of_many_heavy_ones(broker):
    light = await Wire.to(broker, "light")
    wires = [await Wire.to(broker) for _ in range(20)]
    for wire in wires:
        for _ in range(3):
            wire.send(10, 4, coordinator_keys=tuple(f"{number:07}" for number in range(15_000)))
    waits = [asyncio.create_task(wire.frame()) for wire in wires]
    served = 0
    while not all(each.done() for each in waits):
        await light.ask(18, 3, client_software_name="light", client_software_version="1")
        served += 1
    assert served > 2


async def test_requests_of_one_connection_do_not_all_come_before_those_of_another(broker):
    greedy, light = await Wire.to(broker, "greedy"), await Wire.to(broker, "light")
    config = config_resource(4, "1")
    for _ in range(200):
        greedy.send(32, 4, resources=(config,))
    before = 0

    async def count() -> None:
        nonlocal before
        for _ in range(200):
            await greedy.frame()
            before += 1

    counting = asyncio.create_task(count())
    await until(lambda: before > 0)
    await light.ask(18, 3, client_software_name="light", client_software_version="1")
    assert before < 200
    await counting


async def test_what_clients_leave_unfinished_has_a_limit_and_others_are_served():
    limit = 1 << 20
    async with Broker({"orders": 1}, queued_max_request_bytes=limit) as broker:
        stalled = [await Wire.to(broker) for _ in range(20)]
        for wire in stalled:
            wire.writer.write(struct.pack(">i", 100 << 20) + bytes(2 << 20))
        await until(lambda: broker._buffers.requests > limit)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for _ in range(5):
                await producer.send_and_wait("orders", bytes(100_000))
        assert broker._buffers.requests < 4 * limit
        for wire in stalled:
            await wire.close()
        await until(lambda: broker._buffers.requests == 0)


async def test_what_needs_no_response_counts_though_the_producer_has_gone(broker):
    records = batch(b"x")
    one = struct.pack(">hhi", -1, 0, 1_000) + struct.pack(">ih", 1, 6) + b"orders"
    one += struct.pack(">iii", 1, 0, len(records)) + records
    wire = await Wire.to(broker)
    frame = struct.pack(">hhih", 0, 3, 1, 1) + b"x" + one
    wire.writer.write((struct.pack(">i", len(frame)) + frame) * 500)
    wire.writer.close()
    log = broker.cluster.log(broker.cluster.image.by_name["orders"], 0)
    await until(lambda: not broker.connections and log.high_watermark == 500)


async def test_a_server_that_closes_does_none_of_the_work_that_waits():
    handled = 0

    def counting(_: int, table):
        def list_groups(services, request, asked):
            nonlocal handled
            handled += 1
            return table[ApiKey.LIST_GROUPS](services, request, asked)

        return {**table, ApiKey.LIST_GROUPS: list_groups}

    async with Brokers({"orders": 1}, ports=(0, 0), intercept=counting) as broker:
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for port in broker.ports * 5]
        frame = struct.pack(">hhih", 16, 0, 1, 1) + b"x"
        for writer in writers:
            writer.write((struct.pack(">i", len(frame)) + frame) * 2_000)
        await until(lambda: handled > 0 and broker._turns.is_crowded)
        before = handled
        await broker.close()
        assert handled == before
        for writer in writers:
            writer.close()


@pytest.mark.processes
@posix
def test_a_client_is_served_though_connections_have_used_up_the_file_descriptors():
    with served(files=128) as (_, port), ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(400)]
        for key, version in ((3, 5), (9, 8), (60, 0)):
            body = {3: struct.pack(">ib", 0, 0), 9: b"\x00\x01\x00\x00", 60: b"\x00\x00\x00"}[key]
            header = struct.pack(">hhih", key, version, 1, 1) + b"x"
            clients[0].sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            head = clients[0].recv(4, socket.MSG_WAITALL)
            assert len(head) == 4, f"API {key} is not answered"
            clients[0].recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)


@pytest.mark.processes
@posix
def test_sigterm_is_heeded_while_very_much_is_asked_for(inputs):
    with served() as (process, port), ExitStack() as stack:
        for each in inputs * 4:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            client.sendall(each.frame)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
