"""Scenarios in real time: members as processes, real records, on our own endpoint and on Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

from fencepost import EmbeddedKafka, KIP848Consumer
from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.simulation.lab.chaos import confluent, run_kinds
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.admin import Admin, TopicTaken
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.chaos.run import run_real
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.settings import NEWEST_KAFKA
from fencepost.simulation.lab.fidelity.compare import play
from fencepost.simulation.pipeline.analyze import analyze
from fencepost.simulation.scenarios.load import loads
from fencepost.simulation.trace.parquet import whole_trace
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.analyses.compared_views import compare_views, table_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECOND = 1_000_000

SCENARIO = """
duration = "40s"
quiet = "16s"
[group]
members = 3
rebalance_timeout = "20s"
start = "0s..2s"
[application]
poll = "500ms"
callback = "300ms"
restart = "500ms..1s"
[[topics]]
name = "orders"
partitions = 6
records_per_second = 40
[[steps]]
kind = "rolling-restart"
at = "4s"
over = "8s"
[[faults]]
kind = "member-crash"
at = "14s"
lasts = "1s"
[[faults]]
kind = "member-freeze"
at = "16s"
lasts = "1s"
"""
TOPICS = """
[[steps]]
kind = "grow-topic"
at = "6s"
name = "orders"
partitions = 9
[[steps]]
kind = "create-topic"
at = "8s"
name = "refunds"
partitions = 2
records_per_second = 10
"""
NETWORK = """
[[faults]]
kind = "lost-response"
every = "3s"
[[faults]]
kind = "connection-loss"
every = "4s"
[[faults]]
kind = "loss"
at = "10s"
lasts = "3s"
probability = 0.1
"""
CLASSIC = """
[group]
members = 3
protocol = "classic"
partition_assignment_strategy = "cooperative-sticky"
session_timeout = "6s"
heartbeat_interval = "500ms"
"""
STREAMS = """
protocol = "streams"
duration = "40s"
[group]
id = "orders-service"
[[topics]]
name = "orders"
"""
ALONE = """
duration = "20s"
quiet = "4s"
[group]
members = 1
start = "0s..1s"
[application]
poll = "500ms"
restart = "500ms..1s"
[[topics]]
name = "orders"
partitions = 2
records_per_second = 20
[[steps]]
kind = "rolling-restart"
at = "8s"
over = "2s"
"""
BROKER = """
[[faults]]
kind = "broker-pause"
at = "18s"
lasts = "1s"
"""


ON_KAFKA = ("rebalance", "handover", "owning", "move", "stay", "transition")
"""Views that have rows for every run with a coordinator's log: plain Python finds the same rows."""


class Rows(list[Row]):
    """Keeps a trace."""

    def write(self, rows, /):
        self.extend(Row(*row) for row in rows)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(row.kind for row in self)


def callbacks(rows: list[Row]) -> list[int]:
    """How long each took, in microseconds."""
    begun: dict[str, int] = {}
    lasted = []
    for row in rows:
        if row.kind == "callback.begin":
            begun[row.actor] = row.t_us
        elif row.kind == "callback.end" and row.actor in begun:
            lasted.append(row.t_us - begun.pop(row.actor))
    return lasted


def children() -> set[int]:
    """Processes of this one's that are members or their template."""
    return {
        pid for pid, parent, command in processes() if "chaos.template" in command and parent == os.getpid()
    }


def descendants() -> list[int]:
    """The template of this process's members, and these."""
    return [*(templates := children()), *(pid for pid, parent, _ in processes() if parent in templates)]


def processes() -> Iterator[tuple[int, int, str]]:
    """Number, parent and command line of each; not every Linux has `ps`, and others have no /proc."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-ww", "-A", "-o", "pid=,ppid=,args="]  # -ww: whatever COLUMNS says
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            pid, parent, args = line.split(None, 2)
            yield int(pid), int(parent), args
        return
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone
            parent = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            yield int(each.name), int(parent), (each / "cmdline").read_text(errors="replace")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert children() == set()


@pytest.fixture
def session_ms() -> int:
    """Members die here; the others are to notice, and none is to be taken for dead on a busy machine."""
    return 5_000


@pytest.fixture
def endpoint(ours) -> str:
    """Our own coordinator behind an address, as another's cluster, that has answered once."""
    AdminClient({"bootstrap.servers": ours.servers, "log_level": 0}).list_topics(timeout=60)
    return ours.servers


async def test_a_coordinator_that_does_not_respond_in_time_is_asked_again(monkeypatch):
    monkeypatch.setattr("fencepost.simulation.lab.chaos.admin._ANSWER_S", 0.2)
    async with EmbeddedKafka() as kafka:
        admin = Admin(kafka.bootstrap_servers)
        fault = kafka.add_fault("silent", "ConsumerGroupDescribe", times=1)
        assert (await admin.group("orders-service", "consumer")).members == ()
        assert fault.state.is_over
        await admin.close()


async def left_on(servers: str) -> dict[str, object]:
    """The topics there but for the brokers' own, and the runs' group, if they are there."""
    admin = Admin(servers)
    topics = [name for name in await admin.topics() if name != OFFSETS_TOPIC]
    has_group = await admin.group_exists("orders-service")
    await admin.close()
    found: dict[str, object] = {"topics": topics} if topics else {}
    return found | {"group": "orders-service"} if has_group else found


class Both(Rows):
    """Keeps a trace that is written, too."""

    def __init__(self, trace):
        self._trace = trace

    def write(self, rows, /):
        super().write(rows)
        self._trace.write(rows)


@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")  # of Spark's libraries, about each other
@pytest.mark.long
@pytest.mark.parametrize("client", ["fencepost", "confluent"])
async def test_a_group_survives_on_a_cluster_of_others(endpoint, client, tmp_path: Path):
    with whole_trace(tmp_path / "run.parquet", "steps-1-real") as trace:
        rows = Both(trace)
        scenario = loads(SCENARIO + NETWORK + BROKER)
        result = await run_real(scenario, 1, endpoint, client=client, duration_us=20 * SECOND, trace=rows)
    assert result.violations == []
    assert result.records_lost == 0
    assert result.converged
    assert result.records_sent > 300
    assert result.heartbeats > 100
    assert {one.kind for one in result.skipped} == {"broker-pause"}
    assert result.rebalances > 2
    assert {row.world for row in rows} == {"real"}
    assert rows.kinds["records"] > 20
    assert rows.kinds["host"] > 10
    assert (rows[0].kind, rows[-1].kind) == ("run.start", "run.end")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    lasted = callbacks(rows)
    assert len(lasted) > 5
    assert sum(us > 0.9 * 300_000 / result.speed for us in lasted) > 0.8 * len(lasted)
    assert await left_on(endpoint) == {}

    if client == "confluent":
        return
    wanted = ("runs", "downtime", "residency")
    tables = await asyncio.to_thread(analyze, tmp_path, only=wanted)
    (run,) = tables["runs"]
    assert (run["runs"], run["violating"], run["traced"]) == (1, 0, 1)
    assert tables["downtime"]
    assert '"world": "real"' in run["parameters"]
    assert {row["state"] for row in tables["residency"]} >= {"JOINING", "STABLE"}


def losing(group: str) -> str:
    """A scenario for an application that skips records: each is waited for five seconds, and more."""
    return SCENARIO.replace("[group]\nmembers = 3\n", group).replace("20s", "5s")


def assert_lost(result: ChaosResult) -> None:
    assert result.records_lost > 0
    assert "at-least-once" in {violation.invariant for violation in result.violations}


@pytest.mark.processes
@pytest.mark.parametrize("group", ["[group]\nmembers = 3\n", CLASSIC], ids=["consumer", "classic"])
async def test_a_record_that_is_skipped_is_missed(endpoint, group):
    assert_lost(await run_real(loads(losing(group)), 1, endpoint, duration_us=12 * SECOND, flaw="skip"))


@pytest.mark.processes
async def test_records_that_are_processed_twice_are_counted(endpoint):
    result = await run_real(loads(SCENARIO), 1, endpoint, duration_us=12 * SECOND, flaw="twice")
    assert result.records_duplicated >= result.records_sent > 300


MIGRATION = """
[[steps]]
kind = "rolling-restart"
at = "4s"
over = "8s"
protocol = "consumer"
[[steps]]
kind = "rolling-restart"
at = "15s"
over = "8s"
protocol = "classic"
"""


@pytest.fixture(scope="module")
def node(kafka_installation) -> Iterator[RealCluster]:
    """One node, on which nothing of a run is left for the next one."""
    cluster = RealCluster(nodes=1)
    asyncio.run(cluster.start())
    yield cluster
    cluster.stop()


@pytest.mark.long
async def test_a_run_on_kafka_has_the_coordinators_side_as_well(node):
    rows = Rows()
    scenario = loads(SCENARIO + TOPICS + NETWORK + BROKER)
    result = await run_real(scenario, 2, node, duration_us=30 * SECOND, trace=rows)
    assert result.violations == []
    assert result.records_lost == 0
    assert result.converged
    assert result.skipped == []
    assert result.rebalances > 2
    kinds = rows.kinds
    assert kinds["group.epoch"] > 3
    assert kinds["group.target"] > 3
    assert kinds["member.removed"] > 1
    assert kinds["group.state"] > 3
    assert [row.detail for row in rows if row.kind == "topic"] == ["created 6", "grown 9", "created 2"]
    removed = {row.detail for row in rows if row.kind == "member.removed"}
    assert removed <= {"left", "session", "rebalance"}
    assert "left" in removed
    found = compare_views(table_of(rows))
    assert min(found[view] for view in (*ON_KAFKA, "recovery")) > 0


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_of_the_classic_protocol_are_seen_as_others_are(node, strategy):
    rows = Rows()
    text = SCENARIO.replace("[group]\nmembers = 3\n", CLASSIC.replace("cooperative-sticky", strategy))
    result = await run_real(loads(text, name="classic"), 3, node, duration_us=40 * SECOND, trace=rows)
    assert result.violations == []
    assert (result.records_lost, result.converged) == (0, True)
    assert result.rebalances >= 4
    asked = Counter(row.detail.split(" ")[0] for row in rows if row.kind == "heartbeat")
    assert {"join", "full", "keepalive", "leave"} <= asked.keys()
    epochs = [row.group_epoch for row in rows if row.kind == "group.epoch"]
    assert epochs == sorted(epochs)  # the log may have a generation twice, and none after a later one
    states = {(row.state_from, row.state_to) for row in rows if row.kind == "group.state"}
    assert ("Stable", "PreparingRebalance") in states
    assert ("PreparingRebalance", "Stable") in states
    moved = {row.state_to for row in rows if row.kind == "member.state"}
    assert {"PREPARING_REBALANCE", "COMPLETING_REBALANCE", "STABLE"} <= moved
    found = compare_views(table_of(rows))
    assert min(found[view] for view in ON_KAFKA) > 0
    assert rows.kinds["callback.begin"] >= 6
    assert rows.kinds["commit"] >= 6
    assert rows.kinds["records"] >= 20


async def test_a_group_migrates_there_and_back_beside_one_that_loses_records(node):
    rows = Rows()
    begin = SCENARIO[: SCENARIO.index("[[steps]]")]
    text = begin.replace("[group]\nmembers = 3\n", CLASSIC) + MIGRATION
    beside = losing('[group]\nmembers = 3\nid = "payments-service"\n').replace('"orders"', '"payments"')
    async with asyncio.TaskGroup() as both:
        servers = node.bootstrap_servers
        lossy = both.create_task(run_real(loads(beside), 1, servers, duration_us=12 * SECOND, flaw="skip"))
        result = await run_real(loads(text, name="migration"), 3, node, duration_us=40 * SECOND, trace=rows)
    assert_lost(lossy.result())
    assert result.violations == []
    assert (result.records_lost, result.converged) == (0, True)
    machines = {row.state_to for row in rows if row.kind == "member.state"}
    assert {"COMPLETING_REBALANCE", "RECONCILING"} <= machines
    targets = [row for row in rows if row.kind in ("group.target", "assignment")]
    assert {row.kind for row in targets} == {"group.target", "assignment"}


@pytest.mark.long
async def test_the_rules_of_a_newer_kafka_hold_on_both_sides(newest_kafka_installation, tmp_path: Path):
    async with RealCluster(kafka=NEWEST_KAFKA) as cluster:
        played = await play(loads(ALONE), [1], cluster, duration_us=8 * SECOND, out=tmp_path)
    assert played.config.release_version is ReleaseVersion.V4_4
    (result,) = played.results
    assert (result.violations, result.records_lost, result.converged) == ([], 0, True)
    rows = pq.read_table(tmp_path / "traces/real-1.parquet").to_pylist()
    told = [(row["kind"], row["group_epoch"]) for row in rows if row["kind"].startswith("group.")]
    # What the last member's end leads to is one step there, as it is in a coordinator by these rules.
    assert [told[at + 1 :][:2] for at, each in enumerate(told) if each == ("group.epoch", 3)] == [
        [("group.target", 3), ("group.state", 3)]
    ]


def groups_of(admin: AdminClient) -> dict[str, int]:
    """How many members each group has."""
    names = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
    described = admin.describe_consumer_groups(names) if names else {}
    return {name: len(group.result(30).members) for name, group in described.items()}


@pytest.mark.processes
@pytest.mark.parametrize("session_ms", [45_000])
async def test_a_run_that_is_cancelled_leaves_nothing(endpoint, session_ms):
    run = asyncio.ensure_future(run_real(loads(SCENARIO), 1, endpoint, duration_us=120 * SECOND))
    admin = AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    while (await asyncio.to_thread(groups_of, admin)).get("orders-service") != 3:
        ended, _ = await asyncio.wait({run}, timeout=0.05)
        assert not ended, f"it ended before it could be cancelled: {run.exception() or run.result()}"
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert children() == set()
    assert await left_on(endpoint) == {}
    assert await asyncio.to_thread(groups_of, admin) == {}


@pytest.mark.parametrize("topics", [(), ("pay.ments", "orders-2")])
def test_librdkafka_takes_the_expressions_of_a_run(topics):
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    consumer.subscribe(confluent.subscribed(topics, "orders|refunds-.*"))
    consumer.close()


async def test_a_consumer_of_librdkafka_that_can_not_go_on_ends(endpoint):
    terms = m.Terms(
        client="confluent",
        name="member-1",
        process=1,
        seed=1,
        began_us=1,
        bootstrap_servers=endpoint,
        group_id="static",
        instance_id="one",
        assignor=None,
        topics=("orders",),
        pattern=None,
        max_poll_interval_ms=10_000,
        request_timeout_ms=10_000,
        commit="auto",
        auto_commit_interval_ms=1_000,
        gather_ms=10,
        max_poll_records=10,
        callback=("constant", 0, 0),
        processing=("constant", 0, 0),
    )
    settings = {"bootstrap.servers": endpoint, "group.id": "static", "group.instance.id": "one"}
    holder = Consumer({**settings, "group.protocol": "consumer", "log_level": 0})
    holder.subscribe(["orders"])
    while not holder.memberid() or "static" not in groups_of(AdminClient({"bootstrap.servers": endpoint})):
        await asyncio.to_thread(holder.poll, 0.1)
    here, there = socket.socketpair()
    with here, there:
        running = asyncio.ensure_future(asyncio.to_thread(confluent.main, terms, there))
        await asyncio.wait({running}, timeout=20)
        here.send(m.frame(m.Stop(forever=False)))  # to one that goes on
        await running
        told = list(m.Frames(m.Event).feed(here.recv(1 << 16)))
    await asyncio.to_thread(holder.close)
    assert [type(event) for event in told] == [m.Up, m.Stopped]
    assert told[-1].error == "_FATAL"


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes outlive their template")
@pytest.mark.parametrize("template", [False, True], ids=["member", "template"])
async def test_a_process_that_somebody_else_ends_ends_the_run(endpoint, template):
    run = asyncio.ensure_future(run_real(loads(SCENARIO), 1, endpoint, duration_us=60 * SECOND))
    while len(found := descendants()) < 2:
        ended, _ = await asyncio.wait({run}, timeout=0.05)
        assert not ended, f"it ended before anything could be killed: {run.exception() or run.result()}"
    os.kill(found[0 if template else 1], signal.SIGKILL)
    with pytest.raises(EnvironmentLacks, match=r"member-\d: its process was ended by SIGKILL"):
        async with asyncio.timeout(30):
            await run


@pytest.mark.parametrize("scenario", [SCENARIO, STREAMS], ids=["consumer", "streams"])
async def test_a_group_of_others_is_left_alone_whatever_its_protocol(endpoint, scenario):
    admin = AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    await asyncio.to_thread(admin.create_topics([NewTopic("theirs", 1)])["theirs"].result, 30)
    settings = {"bootstrap.servers": endpoint, "group.id": "orders-service", "log_level": 0}
    committing = Consumer(settings)
    committing.commit(offsets=[TopicPartition("theirs", 0, 7)], asynchronous=False)
    committing.close()
    with pytest.raises(EnvironmentLacks, match="the cluster has a group orders-service already"):
        await run_real(loads(scenario), 1, endpoint, duration_us=12 * SECOND)
    theirs = await asyncio.to_thread(Consumer(settings).committed, [TopicPartition("theirs", 0)], 30)
    assert [each.offset for each in theirs] == [7]


@pytest.mark.processes
async def test_of_two_runs_at_once_one_is_refused_and_leaves_the_other_alone(endpoint):
    runs = [run_real(loads(SCENARIO), seed, endpoint, duration_us=12 * SECOND) for seed in (1, 2)]
    found = await asyncio.gather(*runs, return_exceptions=True)
    refused = [each for each in found if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [TopicTaken]
    assert "the cluster has a topic orders already" in str(refused[0])
    (result,) = (each for each in found if not isinstance(each, BaseException))
    assert result.violations == []
    assert result.records_lost == 0


@pytest.mark.processes
async def test_two_runs_at_once_in_one_group_notice_each_other(endpoint):
    scenarios = [SCENARIO, SCENARIO.replace('"orders"', '"payments"')]
    runs = [run_real(loads(each), 1, endpoint, duration_us=12 * SECOND) for each in scenarios]
    found = await asyncio.gather(*runs, return_exceptions=True)
    for other, each in zip(("payments", "orders"), found, strict=True):
        assert isinstance(each, EnvironmentLacks), each
        assert f", which reads {other}: choose another group.id for the scenario" in str(each)
    assert await left_on(endpoint) == {}


@pytest.mark.processes
async def test_a_member_of_somebody_else_is_told_and_left_alone(endpoint):
    run = asyncio.create_task(run_real(loads(SCENARIO), 1, endpoint, duration_us=12 * SECOND))
    theirs = KIP848Consumer(
        "orders", bootstrap_servers=endpoint, group_id="orders-service", client_id="billing"
    )
    async with asyncio.timeout(60):
        while "group" not in await left_on(endpoint):
            assert not run.done()
        async with theirs:
            with pytest.raises(EnvironmentLacks) as raised:
                await run
            assert "client billing at " in str(raised.value)
            admin = Admin(endpoint)
            (member,) = (await admin.group("orders-service", "consumer")).members
            await admin.close()
    assert member.client_id == "billing"


async def test_topics_of_others_that_members_would_read_are_told(endpoint):
    admin = AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    await asyncio.to_thread(
        admin.create_topics([NewTopic("orders-of-others", 1)])["orders-of-others"].result, 30
    )
    scenario = loads(SCENARIO + "[[steps]]\nkind = 'subscribe'\nat = '5s'\npattern = 'orders.*'\n")
    with pytest.raises(EnvironmentLacks, match=r"a topic orders-of-others, .* the pattern 'orders\.\*'"):
        await run_real(scenario, 1, endpoint, duration_us=12 * SECOND)


@pytest.mark.processes
async def test_a_comparison_judges_no_log_that_a_cluster_does_not_show(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(run_kinds, "OFFSETS_TOPIC", "shown-by-others")
    played = await play(loads(SCENARIO), [1], endpoint, duration_us=12 * SECOND, out=tmp_path)
    (result,) = played.results
    assert [one.kind for one in result.skipped] == ["coordinator's log"]
    assert result.violations == []
    assert played.latencies.steady


@pytest.mark.processes
@pytest.mark.parametrize(
    ("api", "code", "left", "reason"),
    [
        (
            "DeleteTopics",
            "TOPIC_AUTHORIZATION_FAILED",
            {"topics": ["orders"]},
            "the topic orders can't be deleted: TOPIC_AUTHORIZATION_FAILED",
        ),
        (
            "DeleteGroups",
            "GROUP_AUTHORIZATION_FAILED",
            {"group": "orders-service"},
            "the group orders-service can't be deleted: GROUP_AUTHORIZATION_FAILED",
        ),
    ],
)
async def test_what_the_cluster_does_not_delete_is_told_and_the_rest_goes(api, code, left, reason):
    settings = {"group.consumer.session.timeout.ms": 2_000, "group.consumer.min.session.timeout.ms": 1_000}
    async with EmbeddedKafka(config=settings) as kafka:
        kafka.fail_next(api, code)
        with capture_logs() as logs:
            result = await run_real(loads(SCENARIO), 1, kafka.bootstrap_servers, duration_us=12 * SECOND)
        assert await left_on(kafka.bootstrap_servers) == left
    assert result.violations == []
    (line,) = (line for line in logs if line["event"] == "left_on_the_cluster")
    assert {key: line[key] for key in ("topics", "group") if key in line} == left
    assert line["reason"] == reason
