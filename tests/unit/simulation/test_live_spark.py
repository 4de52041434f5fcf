"""Topics followed by Spark for real: each row once, whatever happens; and the group log as a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.record_writing import BatchWriter
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE
from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.brokers.client_config import client_security
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.live import follow as following
from fencepost.simulation.live.follow import Followed, Snapshot, Until, follow
from fencepost.simulation.live.group_log import GroupLog, LogRecord
from fencepost.simulation.live.records import GROUP_LOG
from fencepost.simulation.pipeline import analyze as analyzing
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.trace.schema import LOG_WORLD, Row
from fencepost.simulation.trace.topic import TopicTrace, TraceTopic

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("spark"),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]

DEADLINE_S = 300
LOGIN = {"alice": "open,sesame=1"}
VECTORS = Path(__file__).parents[2] / "vectors" / "group_records.jsonl"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"traces": 2}) as running:
        yield running


@pytest.fixture
def guarded(pem: tuple[Path, Path]) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"traces": 2}, users=LOGIN, tls=pem) as running:
        yield running


@pytest.fixture
def config(pem: tuple[Path, Path], tmp_path: Path) -> Path:
    """A file with which clients get into it, but for the password."""
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\n"
        f"ssl.ca.location={pem[0]}\n"
    )
    return file


@pytest.fixture
def two_tables() -> None:
    """Asked for by a test that wants some."""


@pytest.fixture(autouse=True)
def _without_analyses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables have tests of their own, and take their time."""
    wanted = ("rebalances", "runs") if "two_tables" in request.fixturenames else ()
    monkeypatch.setattr(following, "HEADLINES", wanted[:1])
    monkeypatch.setattr(analyzing, "ANALYSES", {name: ANALYSES[name] for name in wanted})
    if not wanted:
        monkeypatch.setattr(following, "analyze", lambda *_, **__: {})


class Written:
    """Writes simulated runs into the topic, and knows what was written."""

    def __init__(self, kafka: EmbeddedKafka, security: ClientSecurity = OPEN) -> None:
        self.rows: list[tuple[str, Row]] = []
        self._place = TraceTopic(kafka.bootstrap_servers, "traces", security)

    def run(self, seed: int) -> None:
        run_id = f"steady-{seed}"
        kept: list[Row] = []
        with TopicTrace(self._place, run_id) as trace:

            class Both:
                def write(self, rows: Sequence[Row], /) -> None:
                    trace.write(rows)
                    kept.extend(rows)

            run(load("steady", duration="1m"), seed, trace=Both())
        self.rows += [(run_id, row) for row in kept]


@pytest.fixture
def written(kafka: EmbeddedKafka) -> Written:
    return Written(kafka)


def rows_in(out: Path) -> list[tuple[str, Row]]:
    """What is in the folder, in the order of runs and rows."""
    found = []
    for file in sorted((out / "traces").glob("[!.]*.parquet")):  # others are of whoever was killed
        for values in pq.read_table(file).to_pylist():
            parts = tuple((each["topic"], each["partition"]) for each in values["partitions"])
            row = {name: values[name] for name in Row._fields} | {"partitions": parts}
            found.append((values["run_id"], Row(**row)))
    return sorted(found)


def follow_all(kafka: EmbeddedKafka, out: Path, **options: Any) -> Followed:
    topic = options.pop("topic", "traces")
    return follow(kafka.bootstrap_servers, topic, out, until=Until(available_now=True), **options)


def killed_on_the_way(kafka: EmbeddedKafka, config: Path, out: Path) -> None:
    """Follow in another process, which is killed once it has written something."""
    words = ["analyze", "--kafka", kafka.bootstrap_servers, "--topic", "traces", "--out", str(out)]
    words += ["--kafka-config", str(config)]
    maven = out.with_name("bin") / "mvn"  # it may take as long as it likes: here is one that fails at once
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\nexit 1\n")
    maven.chmod(0o755)
    path = f"{maven.parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "fencepost.simulation", *words],
        env={
            **os.environ,
            PASSWORD_VARIABLE: LOGIN["alice"],
            "PATH": path,
            "TMPDIR": str(out.parent),  # of what it leaves when it is killed
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            until = time.monotonic() + DEADLINE_S
            while not list(out.glob("traces/[!.]*.parquet")):
                assert process.poll() is None, process.stdout and process.stdout.read()
                assert time.monotonic() < until
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_each_row_is_there_once_though_following_was_killed(
    guarded: EmbeddedKafka, config: Path, tmp_path: Path
) -> None:
    security = client_security(config, "--kafka-config", {PASSWORD_VARIABLE: LOGIN["alice"]})
    out, written = tmp_path / "out", Written(guarded, security)
    written.run(1)
    killed_on_the_way(guarded, config, out)
    # The rows are written, and nobody knows: they are written again.
    assert rows_in(out) == sorted(written.rows)
    written.run(2)
    guarded.produce("traces", "nonsense", '{"v": 2, "run": 7}', key="steady-1")
    last = follow_all(guarded, out, security=security)
    secret = LOGIN["alice"].encode()
    assert not [file for file in out.rglob("*") if file.is_file() and secret in file.read_bytes()]
    assert rows_in(out) == sorted(written.rows)
    skipped = {"no document of a trace": 1, "schema version 2, known is 1": 1}
    assert (last.rows, last.skipped, last.late) == (len(written.rows), skipped, 0)
    assert last.reader == "Python, without jars"
    assert sum(window.rows for window in last.windows) == len(written.rows)
    kinds = Counter(row.kind for _, row in written.rows)
    assert sum(window.heartbeats or 0 for window in last.windows) == kinds["heartbeat"]
    assert sum(window.epochs for window in last.windows) == kinds["group.epoch"]


@pytest.mark.long
@pytest.mark.usefixtures("two_tables")
def test_a_topic_is_followed_until_nothing_comes(
    kafka: EmbeddedKafka, written: Written, tmp_path: Path
) -> None:
    seen: list[Snapshot] = []
    written.run(1)

    def tell(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        if snapshot.tables and len({run_id for run_id, _ in written.rows}) == 1:
            written.run(2)

    out, report = tmp_path / "out", tmp_path / "report.html"
    found = follow(
        kafka.bootstrap_servers, "traces", out, until=Until(idle_s=3), window_s=60, tell=tell, report=report
    )
    assert rows_in(out) == sorted(written.rows)
    assert found.rows == len(written.rows) == seen[-1].rows
    assert seen[-1].windows == found.windows
    assert {window.seconds for window in found.windows} == {60}
    (runs,) = found.tables["runs"]
    assert (runs["scenario"], runs["traced"]) == ("steady", 2)
    (rebalances,) = found.tables["rebalances"]
    assert rebalances["count"] == 0, "its group has formed, and nothing disturbs it"
    assert rebalances["formed_median"] > 0
    assert "steady" in report.read_text()


def log_records(kafka: EmbeddedKafka, records: Sequence[LogRecord]) -> None:
    """Writes records where a real broker has its log of groups."""
    writer = BatchWriter(1 << 20)
    for moment, key, value in records:
        assert writer.add(moment, key, value, ())

    async def append() -> None:
        cluster = kafka.endpoint.brokers.cluster
        cluster.show_offsets_topic()
        cluster.log(cluster.find(GROUP_LOG, None), 1).append_own(writer.batch())

    kafka.thread.submit(append()).result()


def test_a_python_worker_that_cannot_start_is_named_and_the_next_try_goes_on(
    kafka: EmbeddedKafka,
    written: Written,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written.run(1)
    python, dies = tmp_path / "python", tmp_path / "dies"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *$(cat {dies})*) kill -9 $$;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    monkeypatch.setattr(following, "_STARTS", 1)
    for words in ("pyspark", "pyspark.daemon"):  # any worker, or the process that starts those of tasks
        dies.write_text(words)
        with pytest.raises(EnvironmentLacks) as raised:
            follow_all(kafka, tmp_path / "out")
        assert "following it failed: Spark could not start a Python worker (" in str(raised.value), words
        assert f"run it again with the same --out {tmp_path / 'out'} to continue" in str(raised.value)
    dies.write_text("no worker")
    follow_all(kafka, tmp_path / "out")
    assert rows_in(tmp_path / "out") == sorted(written.rows)


@pytest.mark.long
def test_the_group_log_becomes_a_trace(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    groups: dict[str, list[LogRecord]] = {}
    records = []
    for number, line in enumerate(VECTORS.read_text().splitlines()):
        each = json.loads(line)
        value = None if each["value"] is None else bytes.fromhex(each["value"])
        owner = each["kafka"]["key"].get("groupId") or each["kafka"]["key"].get("group", "")
        # Some have the same time, also where one batch ends and the next one begins.
        records.append(LogRecord(1_000_000 + number // 2 * 100, bytes.fromhex(each["key"]), value))
        groups.setdefault(owner, []).append(records[-1])
    whole = {owner: GroupLog(owner, lambda topic_id: topic_id).take(each) for owner, each in groups.items()}
    log_records(kafka, records[:20])
    rest = [records[20:]]
    stop = threading.Event()

    def go_on(snapshot: Snapshot) -> None:
        """What is known of a group when a batch ends is known when the next one begins."""
        if snapshot.rows and rest:
            log_records(kafka, rest.pop())
        if snapshot.rows == sum(map(len, whole.values())):
            stop.set()

    found = follow(kafka.bootstrap_servers, GROUP_LOG, tmp_path / "out", stop=stop, tell=go_on)
    assert rest == []
    told = rows_in(tmp_path / "out")
    for group in ("group-a", "classic", "streams"):
        assert [row for run_id, row in told if run_id == f"{LOG_WORLD}/{group}"] == whole[group], group
        assert whole[group]
    assert found.skipped == {"no record of a group that is known here": 2}
