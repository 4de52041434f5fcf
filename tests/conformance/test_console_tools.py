"""Kafka's own console tools on our endpoint: what they say, and what they do. Needs Maven the first time."""

from __future__ import annotations

import base64
import fcntl
import json
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fencepost import EmbeddedKafka
from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION
from tests.conformance.java_programs import JavaProcess, JavaPrograms

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECONDS = 100
TOOLS = "org.apache.kafka.tools"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def tools_jar(kafka_installation: Installation) -> pathlib.Path:
    """The jar with Kafka's tools, fetched once into the cache."""
    folder = kafka_installation.formatted.parent / "kafka-tools"
    folder.mkdir(exist_ok=True)
    jar = folder / f"kafka-tools-{KAFKA_VERSION}.jar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            fetch(folder / "fetched")
            (folder / "fetched" / jar.name).rename(jar)
    return jar


def fetch(folder: pathlib.Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Maven, which fetches Kafka's tools, is not installed")
    words = [maven, "--quiet", "--batch-mode", "dependency:copy"]
    words += [f"-Dartifact=org.apache.kafka:kafka-tools:{KAFKA_VERSION}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    if done.returncode:
        pytest.skip(f"Maven does not fetch Kafka's tools: {done.stdout[-200:]}")


@pytest.fixture(scope="module")
def run(java_programs: JavaPrograms, tools_jar: pathlib.Path) -> Iterator[Run]:
    """Runs a tool. All run in one JVM, whose start takes longer than most of them."""
    java = JavaProcess(java_programs.command("Tools", tools_jar))

    def run(main: str, *words: str) -> subprocess.CompletedProcess[str]:
        java.tell("\t".join((main, *words)))
        _, status, *said = java.wait(lambda line: line.startswith("DONE ")).split()
        printed, errors = (base64.b64decode(each[1:]).decode() for each in said)
        return subprocess.CompletedProcess(words, int(status), printed, errors)

    yield run
    java.end()


@pytest.fixture
def tool(served, run):
    """Runs a tool on the broker, and answers what it printed."""

    def on_broker(main: str, *words: str, servers: str | None = "--bootstrap-server") -> str:
        done = run(main, *([servers, served.bootstrap_servers] if servers else ()), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return on_broker


def test_topics_are_created_described_altered_and_deleted(tool):
    main = f"{TOOLS}.TopicCommand"
    assert "Created topic made." in tool(
        main, "--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=5000"
    )
    assert tool(main, "--list").split() == ["made", "orders", "single"]
    tool(main, "--alter", "--topic", "made", "--partitions", "4")
    said = tool(main, "--describe", "--topic", "made")
    assert re.search(
        r"Topic: made\s+TopicId: \S{22}\s+PartitionCount: 4\s+ReplicationFactor: 1"
        r"\s+Configs: retention.ms=5000",
        said,
    )
    assert re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", said) == ["0", "1", "2", "3"]
    tool(main, "--delete", "--topic", "made")
    assert tool(main, "--list").split() == ["orders", "single"]


def test_a_consumer_group_is_described_reset_and_deleted(tool, served):
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for number in range(24):
        producer.produce("orders", b"%d" % number, partition=number % 12)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap_servers,
            "group.id": "readers",
            "group.protocol": "consumer",
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    deadline = time.monotonic() + SECONDS
    while len(consumer.assignment()) < 12:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("orders", 3, 1)], asynchronous=False)
    main = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    rows = [line.split() for line in tool(main, "--describe", "--group", "readers").splitlines() if line]
    assert rows[0][:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    (third,) = (row for row in rows[1:] if row[2] == "3")
    assert third[:6] == ["readers", "orders", "3", "1", "2", "1"]
    assert third[-1] == "reader"
    assert len(rows) == 13
    said = tool(main, "--describe", "--group", "readers", "--state")
    assert re.search(r"readers\s+127\.0\.0\.1:\d+\s+\(1\)\s+uniform\s+Stable\s+1", said)
    assert "reader" in tool(main, "--describe", "--group", "readers", "--members", "--verbose")
    assert re.search(r"readers\s+Consumer\s+Stable", tool(main, "--list", "--state", "--type"))
    consumer.close()
    tool(main, "--reset-offsets", "--group", "readers", "--topic", "orders", "--to-latest", "--execute")
    assert re.search(r"readers\s+orders\s+3\s+2\s+2\s+0", tool(main, "--describe", "--group", "readers"))
    assert "successful" in tool(main, "--delete", "--group", "readers")
    assert tool(main, "--list").split() == []


@pytest.mark.long
def test_settings_of_a_group_and_a_topic_are_altered(tool):
    main = "kafka.admin.ConfigCommand"
    for kind, name, setting in (
        ("groups", "readers", "consumer.session.timeout.ms=30000"),
        ("topics", "orders", "max.message.bytes=2000"),
    ):
        where = ("--entity-type", kind, "--entity-name", name)
        tool(main, "--alter", "--add-config", setting, *where)
        assert setting in tool(main, "--describe", *where)
        tool(main, "--alter", "--delete-config", setting.split("=")[0], *where)
        assert setting not in tool(main, "--describe", *where)


@pytest.mark.long
def test_records_are_produced_in_transactions_of_kafkas_producer_and_read(tool, served):
    """The producer of Kafka 4 takes a new epoch with each transaction (KIP-890)."""
    servers = f"bootstrap.servers={served.bootstrap_servers}"
    said = tool(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "single", "--num-records", "500", "--record-size", "100", "--throughput", "1000"),
        *("--command-property", servers, "--transactional-id", "t", "--transaction-duration-ms", "50"),
        servers=None,
    )
    assert "500 records sent" in said
    offsets = tool(f"{TOOLS}.GetOffsetShell", "--topic", "single")
    end = int(re.search(r"single:0:(\d+)", offsets)[1])  # type: ignore[index]
    assert end > 502, "there is a marker for each transaction"
    said = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", "single", "--from-beginning", "--isolation-level", "read_committed"),
        *("--max-messages", "500", "--timeout-ms", "20000"),
    )
    assert len(said.splitlines()) == 500


@pytest.mark.long
def test_transactions_are_listed_and_described(tool, served):
    producer = Producer(
        {"bootstrap.servers": served.bootstrap_servers, "transactional.id": "mine", "log_level": 0}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("single", b"x")
    assert producer.flush(SECONDS) == 0
    main = f"{TOOLS}.TransactionsCommand"
    (row,) = re.findall(r"^mine\s+\d+\s+(\d+)\s+(\w+)", tool(main, "list"), re.MULTILINE)
    said = tool(main, "describe", "--transactional-id", "mine")
    assert re.search(r"mine\s+" + row[0] + r"\s+0\s+Ongoing\s+60000\s+\S+\s+\d+\s+single-0", said)
    said = tool(main, "describe-producers", "--topic", "single", "--partition", "0")
    assert re.search(row[0] + r"\s+0\s+-1\s+0\s+\d+\s+0", said)
    producer.commit_transaction(SECONDS)


def test_records_are_deleted(tool, served, tmp_path):
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for _ in range(10):
        producer.produce("single", b"x")
    assert producer.flush(SECONDS) == 0
    file = tmp_path / "offsets.json"
    file.write_text(
        json.dumps({"partitions": [{"topic": "single", "partition": 0, "offset": 4}], "version": 1})
    )
    said = tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert "low_watermark: 4" in said
    assert "single:0:4" in tool(f"{TOOLS}.GetOffsetShell", "--topic", "single", "--time", "earliest")


def size_of_single(broker: Broker) -> int:
    cluster = broker.cluster
    return cluster.log(cluster.image.by_name["single"], 0).size


def test_sizes_of_logs_are_told_in_bytes(tool, served):
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for _ in range(10):
        producer.produce("single", b"x" * 100)
    assert producer.flush(SECONDS) == 0
    said = tool(f"{TOOLS}.LogDirsCommand", "--describe")
    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    (folder,) = broker["logDirs"]
    assert (broker["broker"], folder["logDir"], folder["error"]) == (1, "/in-memory", None)
    told = {one.pop("partition"): one for one in folder["partitions"]}
    assert told.keys() == {"single-0", *(f"orders-{number}" for number in range(12))}
    size = told.pop("single-0")["size"]
    assert size == served.look(size_of_single) > 1000
    assert all(one == {"size": 0, "offsetLag": 0, "isFuture": False} for one in told.values())


@pytest.mark.parametrize("mechanism", [pytest.param("PLAIN", marks=pytest.mark.long), "SCRAM-SHA-512"])
def test_a_java_client_logs_in_with_the_right_password_only(run, tmp_path, mechanism):
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    file = tmp_path / "client.properties"
    with EmbeddedKafka(topics={"orders": 1}, users={"alice": "open,sesame=1"}) as kafka:
        for password, code in (("open,sesame=1", 0), ("guess", 1)):
            file.write_text(
                f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
                f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
                f'username="alice" password="{password}";\n'
            )
            where = ("--bootstrap-server", kafka.bootstrap_servers, "--command-config", str(file))
            done = run(f"{TOOLS}.TopicCommand", "--list", *where)
            said = done.stdout + done.stderr
            assert done.returncode == code, said
            assert ("orders" if code == 0 else "Authentication failed") in said


def test_the_console_consumer_formats_committed_offsets(tool, served):
    settings = {"bootstrap.servers": served.bootstrap_servers, "group.id": "printed", "log_level": 0}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("orders", 3, 7)], asynchronous=False)
    consumer.close()
    # The tool's own group would add records to other partitions, which the formatter passes over.
    partition = offsets_partition("printed", served.broker.config.offsets_topic_num_partitions)
    words = ["--topic", "__consumer_offsets", "--partition", str(partition), "--offset", "earliest"]
    words += ["--max-messages", "1"]
    words += ["--formatter", f"{TOOLS}.consumer.OffsetsMessageFormatter"]
    (line,) = tool(f"{TOOLS}.consumer.ConsoleConsumer", *words).splitlines()
    told = json.loads(line)
    assert told["key"]["data"] == {"group": "printed", "topic": "orders", "partition": 3}
    assert told["value"]["data"]["offset"] == 7
