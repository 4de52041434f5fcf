"""Following a topic, but for Spark: the folder, where the connector comes from, what people see, mistakes."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from rich.console import Console

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.entry import main
from fencepost.simulation.cli.live import WindowLines, table_of
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.live import source
from fencepost.simulation.live.folder import Counts, Following, LiveFolder
from fencepost.simulation.live.follow import Followed, Snapshot, Until, reason_of
from fencepost.simulation.live.reader import TopicPart, TopicReader
from fencepost.simulation.live.source import Connector, find_connector
from fencepost.simulation.live.windows import Window
from fencepost.simulation.trace.parquet import record_batch
from fencepost.simulation.trace.schema import Row

TRACES = Following("127.0.0.1:9092", "traces", "id")


def table(*rows: tuple[str, int]) -> pa.Table:
    made = [Row(seq, seq, "w", "g", "", "heartbeat", "", "", -1, -1, (), "", "") for _, seq in rows]
    return pa.Table.from_batches([record_batch(made, [run_id for run_id, _ in rows])])


# -- the folder ----------------------------------------------------------------------------------------------


def test_a_batch_that_is_written_again_replaces_what_it_left(tmp_path: Path) -> None:
    with LiveFolder(tmp_path / "out", TRACES) as folder:
        folder.write(0, table(("b", 1), ("a", 2), ("a", 1)), {"no trace": 2})
        folder.write(1, table(("c", 1)), {"no trace": 1, "other": 1})
        folder.write(1, table(("c", 1)), {"no trace": 1, "other": 1})
        folder.write(2, table(), {})
        assert folder.counts() == Counts(4, {"no trace": 3, "other": 1})
        assert [file.name for file in folder.files] == ["batch-00000000.parquet", "batch-00000001.parquet"]
        rows = pq.read_table(folder.files[0], columns=["run_id", "seq"]).to_pylist()
        assert rows == [{"run_id": "a", "seq": 1}, {"run_id": "a", "seq": 2}, {"run_id": "b", "seq": 1}]
    with LiveFolder(tmp_path / "out", TRACES) as folder:
        assert folder.counts().rows == 4


def test_how_far_it_came_is_what_spark_has_committed(tmp_path: Path) -> None:
    with LiveFolder(tmp_path, TRACES) as folder:
        assert folder.offsets() == {}
        for kind in ("offsets", "commits"):
            (folder.checkpoint / kind).mkdir(parents=True)
        for number, end in ((9, 5), (10, 6), (11, 7)):
            line = json.dumps({"traces": {"0": end, "1": 0}})
            (folder.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
        for name in ("9", "10", ".10.crc"):
            (folder.checkpoint / "commits" / name).touch()
        assert folder.offsets() == {0: 6, 1: 0}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Following("127.0.0.1:9092", "others", "id"), "is of topic traces, at 127.0.0.1:9092"),
        (
            Following("127.0.0.1:9092", "traces", "new"),
            "is of another topic of the name traces",
        ),
    ],
)
def test_a_folder_is_of_one_topic(tmp_path: Path, other: Following, told: str) -> None:
    LiveFolder(tmp_path, TRACES).close()
    with pytest.raises(FencepostError, match=f"--out .*: {told}.*: expected a new folder"):
        LiveFolder(tmp_path, other)
    LiveFolder(tmp_path, Following("localhost:9092", "traces", "id")).close()


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    with LiveFolder(tmp_path, TRACES), pytest.raises(FencepostError, match="another process follows"):
        LiveFolder(tmp_path, TRACES)
    (tmp_path / "following.json").write_text("{")
    with pytest.raises(FencepostError, match=r"following\.json: can't be read"):
        LiveFolder(tmp_path, TRACES)
    (tmp_path / "following.json").unlink()
    (tmp_path / "traces" / "mine.parquet").touch()
    with pytest.raises(FencepostError, match="holds other traces"):
        LiveFolder(tmp_path, TRACES)
    (tmp_path / "file").touch()
    with pytest.raises(FencepostError, match="cannot be written"):
        LiveFolder(tmp_path / "file", TRACES)


# -- readers -------------------------------------------------------------------------------------------------


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}


@pytest.fixture
def maven(tmp_path: Path, environ: dict[str, str]) -> Callable[[str], None]:
    """Puts a Maven on PATH which has these versions of the connector."""

    def install(versions: str) -> None:
        program = tmp_path / "bin" / "mvn"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            '#!/bin/sh\nfor word in "$@"; do case $word in\n'
            "*.pom|*.xml) pom=$word;; -DoutputDirectory=*) lib=${word#*=};; esac; done\n"
            f'for version in {versions}; do if grep -q "<version>$version<" "$pom"; then\n'
            'mkdir "$lib"; touch "$lib/connector-$version.jar" "$lib/scala-library-2.jar"; exit; fi; done\n'
            "echo cannot resolve; exit 1\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    return install


@pytest.mark.processes
@pytest.mark.parametrize(("has", "taken"), [("4.3.0 4.2.0", "4.3.0"), ("4.2.0", "4.2.0")])
def test_the_connector_is_fetched_once(
    maven: Callable[[str], None], environ: dict[str, str], has: str, taken: str
) -> None:
    maven(has)
    found = find_connector("4.3.0", environ)
    assert found is not None
    assert (found.version, [jar.name for jar in found.jars]) == (taken, [f"connector-{taken}.jar"])
    maven("")
    assert find_connector("4.3.0", environ) == found


@pytest.mark.processes
def test_the_log_says_what_is_fetched_and_why_it_is_not_there(
    maven: Callable[[str], None], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[tuple[str, str, str]]:
        with structlog.testing.capture_logs() as events:
            assert find_connector("4.3.0", environ) is None
        return [(each["event"], each.get("version", ""), each.get("why", "")) for each in events]

    maven("")
    assert said() == [
        ("connector_fetching", "4.3.0", ""),
        ("connector_missing", "4.3.0", "Maven did not find it"),
        ("connector_fetching", "4.2.0", ""),
        ("connector_missing", "4.2.0", "Maven did not find it"),
    ]
    monkeypatch.setattr("fencepost.simulation.live.source.FETCH_SECONDS", 0.0)
    assert said() == [
        ("connector_fetching", "4.3.0", ""),
        ("connector_missing", "4.3.0", "Maven took too long"),
    ]
    environ["PATH"] = ""
    assert said() == [("connector_missing", "", "there is no Maven to fetch it with")]


@pytest.mark.processes
def test_without_a_connector_there_is_a_source_of_ours(
    maven: Callable[[str], None], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    maven("")
    assert find_connector("4.3.0", environ) is None
    environ["PATH"] = ""
    assert find_connector("4.3.0", environ) is None
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr(source, "find_connector", lambda version: None)
    assert source.choose_reader("t").name == "Python, without jars"
    connector = Connector("4.3.0", (Path("a.jar"), Path("b.jar")))
    monkeypatch.setattr(source, "find_connector", lambda version: connector)
    chosen = source.choose_reader("t")
    assert (chosen.name, chosen.settings) == ("Spark's connector 4.3.0", {"spark.jars": "a.jar,b.jar"})
    internal = source.choose_reader("__consumer_offsets")
    assert internal.name == "Python, without jars", "Spark's connector leaves internal topics out"
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", object())
    assert source.choose_reader("t").name == "Python, without jars"


class Bounded(TopicReader):
    """A reader of a topic whose partitions end there."""

    def __init__(self, **ends: int) -> None:
        super().__init__("127.0.0.1:9092", "t", 100)
        self.ends = {int(number.removeprefix("p")): end for number, end in ends.items()}

    def bounds(self, *, first: bool) -> dict[int, int]:
        return dict.fromkeys(self.ends, 0) if first else self.ends


def test_offsets_have_the_form_of_sparks_connector() -> None:
    reader = Bounded(p0=5, p1=0)
    assert reader.initialOffset() == {"t": {"0": 0, "1": 0}}
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"t": {"0": 5, "1": 0}}
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)


def test_a_long_topic_is_read_in_parts_and_each_record_once() -> None:
    reader = Bounded(p0=1_000, p1=10, p2=0)
    read: dict[int, list[int]] = {0: [], 1: [], 2: []}
    at, batches = reader.initialOffset(), 0
    while (upto := reader.latestOffset(at, ReadMaxRows(100))) != at:
        parts = [part for part in reader.partitions(at, upto) if isinstance(part, TopicPart)]
        assert 0 < sum(part.end - part.start for part in parts) <= 102
        for part in parts:
            read[part.partition] += range(part.start, part.end)
        at, batches = upto, batches + 1
    assert read == {0: [*range(1_000)], 1: [*range(10)], 2: []}
    assert batches >= 10


def test_what_comes_later_is_not_there_now_and_new_partitions_begin_at_0() -> None:
    reader = Bounded(p0=5)
    reader.prepareForTriggerAvailableNow()
    reader.ends = {0: 9, 1: 4}
    assert reader.latestOffset({"t": {"0": 0}}, ReadMaxRows(100)) == {"t": {"0": 5}}
    later = Bounded(p0=5, p1=4)
    upto = later.latestOffset({"t": {"0": 5}}, ReadMaxRows(100))
    (part,) = later.partitions({"t": {"0": 5}}, upto)
    assert isinstance(part, TopicPart)
    assert (part.partition, part.start, part.end) == (1, 0, 4)


# -- what people see -----------------------------------------------------------------------------------------


def window(start: str, group: str = "g", **counts: int) -> Window:
    zero = dict.fromkeys(("heartbeats", "epochs", "settled", "removed", "commits", "violations"), 0)
    return Window(start=f"2026-01-01T{start}.000Z", seconds=10, group=group, rows=9, **{**zero, **counts})


def snapshot(*windows: Window, **tables: list[dict[str, object]]) -> Snapshot:
    return Snapshot(rows=1_234, skipped={"no trace": 2}, windows=list(windows), tables=dict(tables))


def test_lines_tell_each_window_once_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    lines = WindowLines(Terminal())
    first, second = window("10:00:00", heartbeats=5), window("10:00:10", settled=1_000)
    lines.tell(snapshot(first))
    assert capsys.readouterr().out == ""
    lines.tell(snapshot(first, second, window("10:00:00", "other")))
    lines.tell(snapshot(first, second, window("10:00:00", "other")))
    assert capsys.readouterr().out == "10:00:00 g: 5 heartbeats\n"
    lines.end()
    assert capsys.readouterr().out == "10:00:10 g: 1,000 settled\n10:00:00 other: nothing\n"


def test_a_terminal_shows_windows_and_findings() -> None:
    shown = io.StringIO()
    cell = {"scenario": "steady", "parameters": "{}"}
    taken = snapshot(
        *(window(f"10:00:{second:02}", heartbeats=second) for second in range(40)),
        window("10:01:00", violations=3),
        rebalances=[{**cell, "count": 2, "median": 1.0, "max": 2.5}],
        downtime=[{**cell, "count": 2, "cause": "all", "median": 0.5, "max": 0.75}],
        two_owners=[
            {**cell, "sac_window": None, "count": 1},
            {**cell, "sac_window": "forgotten", "count": 9},
        ],
        violations=[{**cell, "invariant": "one owner", "count": 3}],
    )
    Console(file=shown, width=120).print(table_of(taken))
    text = shown.getvalue()
    assert "1,234 rows, 2 skipped (no trace)" in text
    assert "10:00:39" in text
    assert "10:00:20" not in text
    assert "steady: 2 rebalances, median 1.00 s, longest 2.50 s" in text
    assert "steady: 2 partitions changed hands, median 0.50 s without an owner, longest 0.75 s" in text
    assert "steady: 1 times two owners" in text
    assert "9 times" not in text
    assert "steady: 3 of one owner violated" in text


def test_what_a_log_does_not_tell_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    cell = {"scenario": "workers", "parameters": "{}"}
    of_log = msgspec.structs.replace(window("10:00:00", epochs=2), heartbeats=None, violations=None)
    taken = snapshot(
        of_log,
        rebalances=[{**cell, "count": 7, "median": None, "max": None}],
        downtime=[{**cell, "count": 34, "cause": "all", "median": None, "max": None}],
    )
    Console(file=shown, width=120).print(table_of(taken))
    (line,) = (each for each in shown.getvalue().splitlines() if "10:00:00" in each)
    assert line.split() == ["10:00:00", "g", "–", "2", "·", "·", "·", "–"]  # noqa: RUF001
    assert "workers: 7 rebalances, times not known from this log" in shown.getvalue()
    assert "workers: 34 partitions changed hands, times not known from this log" in shown.getvalue()
    lines = WindowLines(Terminal())
    lines.tell(taken)
    lines.end()
    assert capsys.readouterr().out == "10:00:00 g: 2 epochs\n"


def followed_as_told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """In place of following: two snapshots, a Ctrl-C, and what comes afterwards. Answers the options."""
    given: list[dict[str, Any]] = []

    def follow(kafka: str, topic: str, out: Path, **options: Any) -> Followed:
        given.append({"kafka": kafka, "topic": topic, "out": out, **options})
        windows = [window("10:00:00", heartbeats=5), window("10:00:10", epochs=1)]
        options["tell"](snapshot(windows[0]))
        assert not options["stop"].is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert options["stop"].wait(10)
        options["tell"](snapshot(*windows))
        with options["progress"].step("analysing", 1):
            sys.stdout.write("analysing\n")
        tables = {
            "two_owners": [
                {"scenario": "steady", "parameters": "{}", "sac_window": None, "count": 1, "seconds": 2.0}
            ]
        }
        return Followed(
            kafka=kafka,
            topic=topic,
            out=str(out),
            reader="none",
            rows=7,
            skipped={"no trace": 2},
            late=3,
            windows=windows,
            tables=tables,
        )

    monkeypatch.setattr("fencepost.simulation.live.follow.follow", follow)
    return given


def test_ctrl_c_ends_following_and_then_come_the_tables(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = followed_as_told(monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    assert main(["analyze", "--kafka", "127.0.0.1:9092", "--topic", "t", "--until-idle", "3"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    shown = capfd.readouterr()
    assert shown.err.count("stopping: ") == 1
    printed = shown.out.splitlines()
    assert printed[:3] == ["10:00:00 g: 5 heartbeats", "10:00:10 g: 1 epochs", "analysing"]
    assert printed[-3:] == [
        "t at 127.0.0.1:9092: 7 rows, 2 skipped (no trace)",
        "3 rows came too late for their window; they are in the tables",
        f"Rows:   {Path('out/live/t')}",
    ]
    assert any(line.startswith("steady") for line in printed)
    (options,) = given
    assert (options["window_s"], options["until"]) == (10.0, Until(idle_s=3.0))


def test_json_is_one_document_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed_as_told(monkeypatch)
    words = ["--kafka", "127.0.0.1:9092", "--topic", "t", "--available-now", "--out", "here", "--json"]
    assert main(["analyze", *words]) == 0
    document = json.loads(capsys.readouterr().out.removeprefix("analysing\n"))
    assert document["windows"][0]["heartbeats"] == 5
    assert (document["rows"], document["skipped"], document["out"]) == (7, {"no trace": 2}, "here")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("the disk is gone", "the disk is gone"),
        ("", "ValueError"),
        (
            "Job aborted: Traceback (most recent call last):\n  File x\n"
            "a.b.EnvironmentLacks: no broker answers\n\n\tat org.x.Y(Z.java:1)\nCaused by: X: no",
            "no broker answers",
        ),
        ("Traceback (most recent call last):\n  File x\nOSError: no room\n", "no room"),
        ("org.apache.X: offsets out of range\n\tat org.x.Y(Z.java:1)", "org.apache.X: offsets out of range"),
    ],
)
def test_what_ends_a_query_is_one_line(said: str, reason: str) -> None:
    assert reason_of(ValueError(said)) == reason


# -- mistakes ------------------------------------------------------------------------------------------------


def test_without_java_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fencepost import EmbeddedKafka

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr(source, "find_connector", lambda version: None)
    with EmbeddedKafka(topics={"traces": 1}) as kafka:
        words = ["--kafka", kafka.bootstrap_servers, "--topic", "traces", "--out", str(tmp_path / "out")]
        assert main(["analyze", *words]) == 3
        told = [line for line in capsys.readouterr().err.splitlines() if "kafka_reader" not in line]
        assert len(told) == 1
        assert "is not a Java installation" in told[0]
        assert main(["analyze", *words[:2], "--topic", "missing"]) == 2
        assert "has no topic 'missing': create it, or name another" in capsys.readouterr().err
