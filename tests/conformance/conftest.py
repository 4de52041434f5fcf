"""Brokers of either make, programs in Java, and what speaks to them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from fencepost import EmbeddedRabbitStream
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION
from fencepost.simulation.lab.proxy.proxy import Address
from tests.conformance.brokers import SESSION_MS, ServedBroker, World
from tests.conformance.java_programs import JavaProcess, JavaPrograms, jars_of, java_command
from tests.conformance.proxied import Site, site_before
from tests.conformance.rabbit_place import RabbitPlace
from tests.conformance.shared_node import shared_node

RABBIT_CLIENT_VERSION = "1.1.0"


@pytest.fixture
def session_ms() -> int:
    """Of groups at the served broker; a test that waits for a session's end gives a shorter one."""
    return SESSION_MS


@pytest.fixture
def served(session_ms: int) -> Iterator[ServedBroker]:
    """A broker with the topic "orders" of twelve partitions and the empty topic "single" of one."""
    with ServedBroker({"orders": 12, "single": 1}, session_ms=session_ms) as broker:
        yield broker


def new_node(name: str | None = None) -> RealCluster:
    """One node of real Kafka, whose sessions are as long as our broker's in these tests."""
    return RealCluster(name=name, properties={"group.consumer.session.timeout.ms": str(SESSION_MS)})


@pytest.fixture(scope="session")
def cluster(
    kafka_installation: Installation, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str
) -> Iterator[RealCluster]:
    """One node of real Kafka, for all tests of all processes that ask for it. Nobody may stop it."""
    with shared_node(testrun_uid, tmp_path_factory.getbasetemp().parent, new_node) as node:
        yield node


@pytest.fixture(scope="module")
def three(kafka_installation: Installation) -> Iterator[RealCluster]:
    """Three nodes of real Kafka in the fast profile, with sessions of two seconds."""
    cluster = RealCluster(nodes=3)
    asyncio.run(cluster.start())
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.processes)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The same tests against our broker and against Kafka's."""
    if request.param == "kafka":
        yield World(request.getfixturevalue("cluster"))
    else:
        with ServedBroker({}) as broker:
            yield World(broker)


@pytest.fixture
def ours(session_ms: int) -> Iterator[World]:
    """Our broker alone."""
    with ServedBroker({}, session_ms=session_ms) as broker:
        yield World(broker)


@pytest.fixture
def real(cluster: RealCluster) -> World:
    """Kafka's broker alone."""
    return World(cluster)


@pytest.fixture(scope="module")
def _mortal_node(kafka_installation: Installation) -> Iterator[RealCluster]:
    node = new_node()
    asyncio.run(node.start())
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def mortal(_mortal_node: RealCluster) -> World:
    """A Kafka that no other test file uses, to be stopped and started."""
    return World(_mortal_node)


@pytest.fixture(scope="session")
def java_words(kafka_installation: Installation) -> Callable[..., list[str]]:
    """Gives the words that run a class of Kafka's, or of the jars and folders that are named after it."""

    def words(main: str, *more: pathlib.Path, kafka: Installation = kafka_installation) -> list[str]:
        return java_command(kafka, main, *more)

    return words


@pytest.fixture(scope="session")
def java_programs(
    tmp_path_factory: pytest.TempPathFactory, java_words: Callable[..., list[str]]
) -> JavaPrograms:
    folder = tmp_path_factory.getbasetemp().parent / "java-programs"
    folder.mkdir(exist_ok=True)
    return JavaPrograms(folder, java_words)


@pytest.fixture
def java_process(processes: None) -> Iterator[Callable[[list[str]], JavaProcess]]:
    """Starts Java processes, and ends them after the test."""
    started: list[JavaProcess] = []

    def start(command: list[str]) -> JavaProcess:
        started.append(JavaProcess(command))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def streams_jars(kafka_installation: Installation) -> list[pathlib.Path]:
    """What Kafka Streams takes beyond the broker's jars."""
    only = "-DincludeArtifactIds=kafka-streams,rocksdbjni"
    cache = kafka_installation.formatted.parent
    return jars_of(cache, "org.apache.kafka", "kafka-streams", KAFKA_VERSION, only)


@pytest.fixture(scope="session")
def rabbit_jars(kafka_installation: Installation) -> list[pathlib.Path]:
    """RabbitMQ's client of streams; it logs through the broker's jars."""
    only = ("-DincludeScope=runtime", "-DexcludeGroupIds=org.slf4j")
    cache = kafka_installation.formatted.parent
    return jars_of(cache, "com.rabbitmq", "stream-client", RABBIT_CLIENT_VERSION, *only)


@pytest.fixture
def streams_application(
    java_programs: JavaPrograms,
    streams_jars: list[pathlib.Path],
    java_process: Callable[[list[str]], JavaProcess],
    tmp_path: pathlib.Path,
) -> Callable[..., JavaProcess]:
    """Starts instances of java/StreamsApplication, each with a state folder of its own.

    Arguments: bootstrap servers, application id, group protocol, topology, input and output topic, then
    settings of Kafka Streams as name=value.
    """
    count = 0

    def start(*arguments: str) -> JavaProcess:
        nonlocal count
        count += 1
        command = java_programs.command("StreamsApplication", *streams_jars)
        return java_process([*command, *arguments, f"state.dir={tmp_path / str(count)}"])

    return start


@pytest.fixture(scope="session")
def real_rabbitmq(processes: None) -> tuple[str, int]:
    """Where a RabbitMQ is."""
    there = os.environ.get("FENCEPOST_TESTS_RABBITMQ", "127.0.0.1:5552")
    host, _, port = there.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        how = ".ci/rabbitmq start, or docker compose up --wait rabbitmq"
        pytest.skip(os.environ.get("FENCEPOST_TESTS_WITHOUT_RABBITMQ", f"no RabbitMQ at {there}: {how}"))
    return host, int(port)


@pytest.fixture(params=["fencepost", pytest.param("rabbitmq", marks=pytest.mark.processes)])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[RabbitPlace]:
    """The same tests at our node and at RabbitMQ's."""
    if request.param == "fencepost":
        async with (
            EmbeddedRabbitStream() as rabbit,
            contextlib.aclosing(RabbitPlace(rabbit.host, rabbit.port, rabbit)) as ours,
        ):
            yield ours
        return
    host, port = request.getfixturevalue("real_rabbitmq")
    async with contextlib.aclosing(RabbitPlace(host, port)) as theirs:
        yield theirs


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.processes)])
def upstreams(request: pytest.FixtureRequest) -> Iterator[dict[int, Address]]:
    """One broker of either make."""
    if request.param == "kafka":
        nodes = request.getfixturevalue("cluster").state.nodes
        yield {node.node_id: (node.clients.host, node.clients.port) for node in nodes}
    else:
        with ServedBroker({}) as broker:
            host, port = broker.bootstrap_servers.split(":")
            yield {1: (host, int(port))}


@pytest.fixture
async def site(upstreams: dict[int, Address]) -> AsyncIterator[Site]:
    """A proxy before the broker."""
    async with site_before(upstreams) as site:
        yield site


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[pathlib.Path], pathlib.Path]:
    """Build a folder's Go program, once for all of pytest's workers."""

    def built(sources: pathlib.Path) -> pathlib.Path:
        go = shutil.which("go")
        if go is None:
            pytest.skip("Go is not installed")
        folder = tmp_path_factory.getbasetemp().parent / "go-programs"
        folder.mkdir(exist_ok=True)
        content = b"".join((sources / name).read_bytes() for name in ("main.go", "go.mod"))
        binary = folder / f"{sources.name}-{hashlib.sha256(content).hexdigest()[:12]}"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not binary.exists():
                command = [go, "build", "-mod=readonly", "-o", str(binary), "."]
                environment = os.environ | {"GOTOOLCHAIN": "local"}
                try:
                    subprocess.run(
                        command, cwd=sources, env=environment, check=True, timeout=400, capture_output=True
                    )
                except (subprocess.SubprocessError, OSError) as error:
                    pytest.skip(f"{sources.name} can't be built here: {error}")
        return binary

    return built
