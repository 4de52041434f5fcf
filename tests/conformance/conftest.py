"""A broker in a thread of its own, for clients that block or bring their own loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import aiokafka
import msgspec
import pytest
import rstream
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from rstream.recovery import BackOffRecoveryStrategy

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.server.broker import Broker
from fencepost.member import KIP848Consumer
from fencepost.simulation.clusters.artifacts import Installation
from fencepost.simulation.clusters.classes import options
from fencepost.simulation.clusters.cluster import Cluster
from fencepost.simulation.clusters.settings import KAFKA_VERSION
from fencepost.simulation.embedded import AsyncEmbeddedRabbitStream, EmbeddedRabbitStream

FAST = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_assignment_interval_ms=0,
    group_streams_min_session_timeout_ms=100,
    group_streams_min_heartbeat_interval_ms=50,
    group_streams_heartbeat_interval_ms=100,
    group_streams_assignment_interval_ms=0,
    group_streams_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=100,
)
"""Kafka's own profile for quick tests, but for the length of sessions."""

SESSION_MS = 20_000
"""A client that a busy machine leaves without the processor for seconds is no dead one: it would lose its
partitions, and read again what it had not committed."""


class ServedBroker:
    """A broker that serves from another thread."""

    def __init__(self, topics: dict[str, int], **settings: Any) -> None:
        session_ms = settings.pop("session_ms", SESSION_MS)
        config = msgspec.structs.replace(
            FAST,
            group_consumer_session_timeout_ms=session_ms,
            group_streams_session_timeout_ms=session_ms,
        )
        self.broker = Broker(topics, config=config, **settings)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.broker:
            self._started.set()
            await self._end.wait()

    def __enter__(self) -> ServedBroker:
        self._thread.start()
        assert self._started.wait(10), "the broker did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the broker did not stop"

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers

    def look(self, question: Callable[[Broker], Any]) -> Any:
        """Ask the broker something in its own thread."""

        async def ask() -> Any:
            return question(self.broker)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(10)


@pytest.fixture
def session_ms() -> int:
    """Of groups at the served broker; a test that waits for a session's end gives a shorter one."""
    return SESSION_MS


@pytest.fixture
def served(session_ms: int) -> Iterator[ServedBroker]:
    """A broker with the topic "orders" of twelve partitions and the empty topic "single" of one."""
    with ServedBroker({"orders": 12, "single": 1}, session_ms=session_ms) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster(kafka_installation: Installation) -> Iterator[Cluster]:
    """One node of real Kafka, for all tests of this process that ask for it."""
    node = Cluster(properties={"group.consumer.session.timeout.ms": str(SESSION_MS)})
    asyncio.run(node.start())
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="module")
def three(kafka_installation: Installation) -> Iterator[Cluster]:
    """Three nodes of real Kafka in the fast profile, with sessions of two seconds."""
    cluster = Cluster(nodes=3)
    asyncio.run(cluster.start())
    try:
        yield cluster
    finally:
        cluster.stop()


class World:
    """A broker of either make, as a consumer's tests see it: names of their own, and a judge beside."""

    def __init__(self, broker: ServedBroker | Cluster) -> None:
        self.broker = broker
        self.is_real = isinstance(broker, Cluster)
        self.servers = broker.bootstrap_servers
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, partitions: int = 4, prefix: str = "topic") -> str:
        """A new topic, once the group's coordinator can be trusted to have heard of it."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
        if self.is_real:
            while len(self._admin.list_topics(name, 20).topics[name].partitions) < partitions:
                time.sleep(0.01)
            time.sleep(0.1)  # the coordinator's own image comes after the broker's
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)

    async def produce(self, topic: str, values: Iterable[Any], partition: int | None = None) -> None:
        """Each value as text, to one partition or in turn to all; acknowledged when this returns."""
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers) as producer:
            count = len(await producer.partitions_for(topic))
            sent = [
                await producer.send(
                    topic,
                    str(value).encode(),
                    partition=number % count if partition is None else partition,
                )
                for number, value in enumerate(values)
            ]
            await asyncio.gather(*sent)

    def consumer(self, *topics: str, **settings: Any) -> KIP848Consumer:
        """A consumer of this world's group that starts at the beginning."""
        settings = {"group_id": self.group, "auto_offset_reset": "earliest", **settings}
        return KIP848Consumer(*topics, bootstrap_servers=self.servers, **settings)

    async def described(self) -> dict[str, set[tuple[str, int]]]:
        """What the group's members own, by member id, as librdkafka's admin client is told."""

        def ask() -> dict[str, set[tuple[str, int]]]:
            group = self._admin.describe_consumer_groups([self.group])[self.group].result(20)
            return {
                member.member_id: {(one.topic, one.partition) for one in member.assignment.topic_partitions}
                for member in group.members
            }

        return await asyncio.to_thread(ask)


@pytest.fixture(params=["fencepost", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The same tests against our broker and against Kafka's."""
    if request.param == "kafka":
        yield World(request.getfixturevalue("cluster"))
    else:
        with ServedBroker({}) as broker:
            yield World(broker)


@pytest.fixture
def ours() -> Iterator[World]:
    """Our broker alone."""
    with ServedBroker({}) as broker:
        yield World(broker)


@pytest.fixture
def real(cluster: Cluster) -> World:
    """Kafka's broker alone."""
    return World(cluster)


JAVA_SECONDS = 60
"""How long a Java program may take to say what it is waited for."""

_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx192m", "-Xlog:disable")
_COMPILING = ("-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-proc:none", "--release", "17")
_SILENT = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fencepost</groupId>
  <artifactId>judge</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
RABBIT_CLIENT_VERSION = "1.1.0"


@pytest.fixture(scope="session")
def java_words(kafka_installation: Installation) -> Callable[..., list[str]]:
    """Gives the words that run a class of Kafka's, or of the jars and folders that are named after it."""

    def words(main: str, *more: pathlib.Path, kafka: Installation = kafka_installation) -> list[str]:
        # Kafka's jars come first, as when their classes were kept: else those are of no use.
        class_path = os.pathsep.join(map(str, (*kafka.jars, *more)))
        kept = options(kafka.classes)
        return [str(kafka.java), *_QUICK, *kept, _SILENT, "-cp", class_path, main]

    return words


class JavaProcess:
    """A Java process that is told what to do on standard input, and the lines that it says."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def wait(self, condition: Callable[[str], object]) -> str:
        """The next line for which the condition holds."""
        while True:
            try:
                line = self._lines.get(timeout=JAVA_SECONDS)
            except queue.Empty:
                pytest.fail(f"it only said {self.said[-20:]}")
            self.said.append(line)
            if condition(line):
                return line

    def tell(self, line: str) -> None:
        """A line for its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End its input, on which it closes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait(lambda one: one == "CLOSED")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._listener.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class JavaPrograms:
    """Programs of the folder java/, compiled when they are started first, for all of pytest's workers."""

    def __init__(self, folder: pathlib.Path, java_words: Callable[..., list[str]]) -> None:
        self._folder = folder
        self._java_words = java_words

    def command(self, name: str, *jars: pathlib.Path, **kafka: Installation) -> list[str]:
        """The words that run a program, with these jars besides Kafka's; `kafka` may be another one."""
        compiler = shutil.which("javac")
        if compiler is None:
            pytest.skip("javac is not installed")
        source = pathlib.Path(__file__).with_name("java") / f"{name}.java"
        made = self._folder / f"{name}.class"
        command = self._java_words(name, *jars, self._folder, **kafka)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists() or made.stat().st_mtime <= source.stat().st_mtime:
                words = [compiler, *_COMPILING, *command[-3:-1], "-d", self._folder, source]
                subprocess.run(words, check=True, timeout=120)
        return command


@pytest.fixture(scope="session")
def java_programs(
    tmp_path_factory: pytest.TempPathFactory, java_words: Callable[..., list[str]]
) -> JavaPrograms:
    folder = tmp_path_factory.getbasetemp().parent / "java-programs"
    folder.mkdir(exist_ok=True)
    return JavaPrograms(folder, java_words)


@pytest.fixture
def java_process() -> Iterator[Callable[[list[str]], JavaProcess]]:
    """Starts Java processes, and ends them after the test."""
    started: list[JavaProcess] = []

    def start(command: list[str]) -> JavaProcess:
        started.append(JavaProcess(command))
        return started[-1]

    yield start
    for one in started:
        one.end()


def jars_of(cache: pathlib.Path, group: str, artifact: str, version: str, *only: str) -> list[pathlib.Path]:
    """An artifact with what it needs, or of that what Maven is told to take; fetched once into the cache."""
    folder = cache / artifact / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (jars := sorted(folder.glob("*.jar"))):
            maven = shutil.which("mvn")
            if maven is None:
                pytest.skip(f"{artifact} is not in the cache, and Maven is not installed")
            pom = _POM.format(group=group, artifact=artifact, version=version)
            (folder / "pom.xml").write_text(pom, encoding="utf-8")
            words = [maven, "--quiet", "--batch-mode", "--file", str(folder / "pom.xml")]
            words += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'fetched'}", *only]
            try:
                subprocess.run(words, check=True, timeout=240, capture_output=True)
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"Maven does not fetch {artifact}: {error}")
            for jar in sorted((folder / "fetched").glob("*.jar")):
                jar.rename(folder / jar.name)
            jars = sorted(folder.glob("*.jar"))
    return jars


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


RABBIT_SECONDS = 60
"""How long a client may take for anything."""


async def closed(client: Any, *pools: Any) -> None:
    """Close a client, and what rstream leaves open of connections that broke."""
    connections = [each._conn for pool in pools for clients in pool._clients.values() for each in clients]
    await client.close()
    for connection in connections:
        if connection is not None:
            connection._writer.close()


class RabbitPlace:
    """A node of either make, with clients that are closed in the end, all at once."""

    def __init__(self, host: str, port: int, ours: AsyncEmbeddedRabbitStream | None = None) -> None:
        self.ours = ours
        self._closings: list[Callable[[], Awaitable[None]]] = []
        self.settings: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": "guest",
            "password": "guest",
            "recovery_strategy": BackOffRecoveryStrategy(False),
        }

    @staticmethod
    async def until(condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(RABBIT_SECONDS):
            while not condition():  # noqa: ASYNC110  # clients tell nobody
                await asyncio.sleep(0.01)

    def name(self) -> str:
        return f"s-{uuid.uuid4().hex[:8]}"

    async def producer(self, **settings: Any) -> rstream.Producer:
        producer = rstream.Producer(**{**self.settings, **settings})
        await producer.start()
        self._closings.append(lambda: closed(producer, producer._pool))
        return producer

    async def stream(self) -> str:
        """A new stream."""
        name = self.name()
        await (await self.producer()).create_stream(name)
        return name

    async def super_stream(self, partitions: int) -> str:
        """A new super stream."""
        name = self.name()
        made = rstream.SuperStreamConsumer(**self.settings, super_stream=name)
        await made.create_super_stream(name, partitions)
        await made.close()
        return name

    def consumer(self, **settings: Any) -> rstream.Consumer:
        consumer = rstream.Consumer(**{**self.settings, **settings})
        self._closings.append(lambda: closed(consumer, consumer._pool))
        return consumer

    def super_consumer(self, super_stream: str, **settings: Any) -> rstream.SuperStreamConsumer:
        consumer = rstream.SuperStreamConsumer(**self.settings, super_stream=super_stream, **settings)
        self._closings.append(lambda: closed(consumer, consumer._pool, consumer._consumer._pool))
        return consumer

    async def aclose(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(close() for close in self._closings))

    async def read(self, stream: str, count: int, **subscription: Any) -> list[tuple[int, bytes]]:
        """What a consumer of its own reads first, with offsets."""
        got: list[tuple[int, bytes]] = []
        consumer = self.consumer()
        await consumer.subscribe(
            stream, lambda message, context: got.append((context.offset, bytes(message))), **subscription
        )
        await self.until(lambda: len(got) >= count)
        return got


@pytest.fixture(scope="session")
def real_rabbitmq() -> tuple[str, int]:
    """Where a RabbitMQ is."""
    there = os.environ.get("FENCEPOST_TESTS_RABBITMQ", "127.0.0.1:5552")
    host, _, port = there.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        pytest.skip(f"no RabbitMQ at {there}: .ci/rabbitmq start, or docker compose up --wait rabbitmq")
    return host, int(port)


@pytest.fixture(params=["fencepost", "rabbitmq"])
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
