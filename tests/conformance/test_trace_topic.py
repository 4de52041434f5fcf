"""Traces in a Kafka topic: a cluster that traces itself, a simulated run, and places that are none."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import aiokafka
import pytest

from fencepost import EmbeddedKafka, KIP848Consumer
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.brokers.security import ClientSecurity
from fencepost.simulation.cli.entry import main
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.trace.documents import TracedRow, decode
from fencepost.simulation.trace.schema import Row
from fencepost.simulation.trace.topic import TopicWriter, TraceTopic
from tests.unit.simulation.kept_rows import KeptRows

pytestmark = pytest.mark.real

DEADLINE_S = 60
USERS = {"alice": "open,sesame=1"}


async def read(servers: str, topic: str, count: int) -> list[TracedRow]:
    """The documents of a topic: at least so many, and whatever is there by then."""
    found: list[TracedRow] = []
    async with (
        aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(DEADLINE_S),
    ):
        partitions = consumer.assignment()
        while True:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    row = decode(record.value)
                    assert isinstance(row, TracedRow), row
                    assert record.key == row.run_id.encode()
                    found.append(row)
            ends = await consumer.end_offsets(partitions)
            at_end = [await consumer.position(each) >= ends[each] for each in partitions]
            if len(found) >= count and all(at_end):
                return found


async def test_a_cluster_that_traces_itself_leaves_out_who_reads_the_trace() -> None:
    async with EmbeddedKafka(topics={"orders": 4, "traces": 2}, trace_topic="traces") as kafka:
        servers = kafka.bootstrap_servers
        async with (
            KIP848Consumer("orders", bootstrap_servers=servers, group_id="workers"),
            KIP848Consumer("traces", bootstrap_servers=servers, group_id="readers"),
            aiokafka.AIOKafkaConsumer(
                "traces", bootstrap_servers=servers, group_id="classic-readers", auto_offset_reset="earliest"
            ) as classic,
        ):
            await kafka.group("workers").wait_stable(members=1)
            await kafka.group("readers").wait_stable(members=1)
            async with asyncio.timeout(DEADLINE_S):
                await classic.getone()
            await classic.commit()
        rows = await read(servers, "traces", 20)
        seen = [row for row in kafka.events() if row.group == "workers"]
    by_run: dict[str, list[Row]] = {}
    for each in rows:
        by_run.setdefault(each.run_id, []).append(each.row)
    groups = [run_id.partition("/")[2] for run_id in by_run]
    assert "readers" not in groups
    (workers,) = (rows for run_id, rows in by_run.items() if run_id.endswith("/workers"))
    assert [row.seq for row in workers] == list(range(1, len(workers) + 1))
    assert workers[0].kind == "run.start"
    said = [row[4:] for row in workers if row.kind not in ("run.start", "topic", "coordinator")]
    assert said == [row[4:] for row in seen][: len(said)]
    assert {"heartbeat", "group.epoch", "member.state"} <= {row.kind for row in workers}
    for run_id, rows_of_run in by_run.items():
        if run_id.endswith("classic-readers"):  # what it was before it said what it reads
            assert not {row.kind for row in rows_of_run} & {"member.state", "callback.end", "commit"}


def test_a_simulated_run_is_written_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    kept = KeptRows()
    run(load("steady", duration="1m"), 1, trace=kept)
    with EmbeddedKafka(topics={"traces": 1}) as kafka:
        place = f"{kafka.bootstrap_servers}/traces"
        assert main(["simulate", "steady", "--duration", "1m", "--trace-topic", place]) == 0
        rows = asyncio.run(read(kafka.bootstrap_servers, "traces", len(kept)))
    assert [each.row for each in rows] == kept
    assert {each.run_id.partition("@")[0] for each in rows} == {"steady-1"}


def test_a_run_is_written_where_clients_have_to_log_in(
    pem: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "client.properties"
    login = "sasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\nsasl.password={}\n"
    trust = f"security.protocol=SASL_SSL\nssl.ca.location={pem[0]}\n"
    with EmbeddedKafka(topics={"traces": 1}, users=USERS, tls=pem) as kafka:
        words = ["simulate", "steady", "--duration", "1m", "--json"]
        words += ["--trace-topic", f"{kafka.bootstrap_servers}/traces"]

        def told(code: int, text: str | None) -> str:
            if text is not None:
                config.write_text(text)
            assert main([*words, *([] if text is None else ["--trace-config", str(config)])]) == code
            said = capsys.readouterr()
            assert "sesame" not in said.out + said.err
            return said.err

        assert told(0, trust + login.format(USERS["alice"])) == ""
        written = len(kafka.records("traces"))
        assert "refuses the login: " in told(2, trust + login.format("guess"))
        assert "TLS: self-signed certificate" in told(3, trust.splitlines()[0] + "\n" + login.format("guess"))
        assert "broker that speaks SSL, and to clients without" in told(3, trust.replace("SASL_", ""))
        assert "is that a Kafka broker that speaks PLAINTEXT?" in told(3, None)
        assert len(kafka.records("traces")) == written > 100


async def test_a_cluster_with_tls_and_users_traces_itself(pem: tuple[Path, Path]) -> None:
    settings = ClientSecurity(
        tls=True, trusted=pem[0].read_text(), mechanism="PLAIN", username="alice", password=USERS["alice"]
    ).aiokafka()
    topics = {"orders": 4, "traces": 1}
    async with EmbeddedKafka(topics=topics, users=USERS, tls=pem, trace_topic="traces") as kafka:
        settings["bootstrap_servers"] = kafka.bootstrap_servers
        reader = aiokafka.AIOKafkaConsumer("traces", auto_offset_reset="earliest", **settings)
        async with reader, KIP848Consumer("orders", group_id="workers", **settings):
            record = await asyncio.wait_for(reader.getone(), DEADLINE_S)
        assert isinstance(decode(record.value), TracedRow)


def test_a_cluster_that_asks_clients_for_certificates(pem: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pem[0])
    context.load_cert_chain(*pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    with EmbeddedKafka(topics={"traces": 1}, tls=context, trace_topic="traces") as kafka:
        assert kafka.records("traces") == []
    context.verify_mode = ssl.CERT_REQUIRED
    with pytest.raises(
        FencepostError, match=r"trace_topic='traces': tls demands a certificate .*=ssl\.CERT_OPTIONAL"
    ):
        EmbeddedKafka(topics={"traces": 1}, tls=context, trace_topic="traces")
    with EmbeddedKafka(topics={"traces": 1}) as other:
        place = f"{other.bootstrap_servers}/traces"
        with EmbeddedKafka(tls=context, trace_topic=place) as kafka:
            assert kafka.check() == []


@pytest.mark.parametrize("place", ["traces", "127.0.0.1:9092", "/traces", "127.0.0.1:9092/", "here/traces"])
def test_a_place_that_is_none(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "steady", "--duration", "1m", "--trace-topic", place]) == 2
    error = capsys.readouterr().err
    assert "expected HOST:PORT" in error
    assert error.count("\n") == 1


def test_a_broker_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        place = f"127.0.0.1:{silent.getsockname()[1]}/traces"
        assert main(["simulate", "steady", "--duration", "1m", "--trace-topic", place]) == 3
        assert f"--trace-topic {place}: no Kafka broker answers" in capsys.readouterr().err
        with pytest.raises(EnvironmentLacks, match="no Kafka broker answers"):
            EmbeddedKafka(trace_topic=place).start()


def test_a_topic_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka() as kafka:
        place = f"{kafka.bootstrap_servers}/traces"
        assert main(["simulate", "steady", "--duration", "1m", "--trace-topic", place]) == 2
    assert "has no topic 'traces': create it" in capsys.readouterr().err
    with pytest.raises(FencepostError, match="has no topic 'traces'"):
        EmbeddedKafka(trace_topic="traces").start()


def test_what_is_no_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen()
        port = silent.getsockname()[1]

        def hang_up() -> None:
            silent.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert main(["simulate", "--trace-topic", f"127.0.0.1:{port}/traces"]) == 3
        thread.join()
    assert "no Kafka broker answers" in capsys.readouterr().err


def test_rows_that_a_broker_does_not_take_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.simulation.trace.topic.FLUSH_SECONDS", 1.0)
    monkeypatch.setattr("fencepost.simulation.trace.topic.MOST_WAITING", 5)
    row = Row(1, 1, "embedded", "g", "", "heartbeat", "", "", -1, -1, (), "", "")
    with EmbeddedKafka(topics={"traces": 1}) as kafka:
        place = TraceTopic(kafka.bootstrap_servers, "traces")
        kafka.delay("INIT_PRODUCER_ID", 2 * DEADLINE_S)
        hasty, patient = TopicWriter(place, patient=False), TopicWriter(place, patient=True)
        for _ in range(20):
            hasty.send("run", [row])
        assert hasty.dropped == 15
        with pytest.raises(EnvironmentLacks, match="20 rows were not written: the broker took none"):
            hasty.close()
        for _ in range(5):
            patient.send("run", [row])
        with pytest.raises(EnvironmentLacks, match="5 rows were not written: the broker took none"):
            patient.send("run", [row])
        with pytest.raises(EnvironmentLacks, match="5 rows were not written"):
            patient.close()


def test_rows_wait_for_a_broker_that_is_slow() -> None:
    row = Row(1, 1, "embedded", "g", "", "heartbeat", "", "", -1, -1, (), "", "")
    with EmbeddedKafka(topics={"traces": 1}) as kafka:
        kafka.delay("PRODUCE", 0.2, times=2)
        writer = TopicWriter(TraceTopic(kafka.bootstrap_servers, "traces"), patient=False)
        for number in range(2_500):
            writer.send("run", [row._replace(seq=number)], began_ms=1_000)
        writer.close()
        records = kafka.records("traces")
    assert writer.sent == 2_500
    assert [decode(record.value) for record in records[-1:]] == [TracedRow("run", row._replace(seq=2_499))]
    assert len(records) == 2_500
