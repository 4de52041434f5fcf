"""The pages: offline, complete, and safe whatever a trace says."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.report.model import Curve, ReportInput, TracedRun, duration
from fencepost.simulation.report.page import write_page
from fencepost.simulation.report.render import (
    check_writable,
    render_campaign_report,
    render_run_report,
    run_facts,
)
from fencepost.simulation.report.timeline import clock_cuts, encode_run, partitions_text, thin
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.kept_rows import KeptRows

HOSTILE = "</script><img src=//evil.example/x onerror=alert(1)>\x1b[31m\u202e\u2028"
SHOWN = HOSTILE.encode("unicode_escape").decode()

_LOADS = frozenset({"src", "srcset", "href", "action", "data", "poster", "background", "ping", "formaction"})


class Page(HTMLParser):
    """What a page refers to, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.scripts: dict[str, str] = {}
        self.policy = ""
        self._script: str | None = None
        self._plain = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.references += [(tag, name) for name in given if name in _LOADS]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        self._script = given.get("id") or "code" if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.scripts[name])).decode()


@pytest.fixture(scope="module")
def traced() -> tuple[RunResult, list[Row]]:
    rows = KeptRows()
    return run(load("rolling-deploy"), 3, trace=rows), rows


def report_input(**changes: Any) -> ReportInput:
    labels = {"scenario": "deploy", "parameters": '{"members": "3"}'}
    quantiles = {"count": 5, "median": 1.5, "p90": 2.0, "p99": 3.0, "max": 4.0}
    tables = {
        "runs": [labels | {"runs": 10, "failed": 1, "violations": 2, "traced": 4}],
        "rebalances": [labels | quantiles | {"formed_median": 1.0, "epochs_mean": 1.2, "unfinished": 0}],
        "longest_rebalances": [
            labels
            | {"run_id": "r", "begin_s": 1.0, "seconds": 4.0, "cause": "join", "epochs": 1, "heartbeats": 9}
        ],
        "downtime": [labels | quantiles | {"cause": "all", "run_seconds_mean": 7.0}],
        "initial_assignment": [labels | quantiles],
        "two_owners": [labels | {"sac_window": None, "count": 0, "seconds": 0.0}],
        "residency": [
            labels | {"state": "STABLE", "visits": 3, "seconds": 9.0, "share": 1.0, "mean": 3.0, "max": 4.0}
        ],
        "heartbeats": [labels | {"rebalances": 5, "mean": 3.5, "median": 3.0, "max": 9}],
        "fencings": [],
        "commits_refused": [],
        "violations": [labels | {"invariant": HOSTILE, "count": 2, "runs": 1, "example": "r"}],
    }
    curve = Curve("deploy, members=3", 5, tuple(point / 10 for point in range(101)))
    given = {
        "title": "Campaign: deploy",
        "source": "/some/where",
        "tables": {name: filled(name, rows) for name, rows in tables.items()},
        "rebalance_curves": (curve,),
        "traced_runs": 4,
        "failures": [{"run_id": "deploy-000009", "error": "Traceback\n  …\nValueError: " + HOSTILE}],
        "runs": (TracedRun(run_id="r", title=HOSTILE, rows=[hostile_row()]),),
    }
    return ReportInput(**{**given, **changes})


def filled(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with all columns that the analyses declare."""
    return [{column.name: None for column in TABLES[name].columns} | row for row in rows]


def hostile_row() -> Row:
    return Row(1, 5, "simulated", "g", HOSTILE, "host", "", "", -1, -1, (), "", HOSTILE)


def assert_offline(page: Page) -> None:
    assert page.references == []
    assert set(page.tags) & {"link", "img", "iframe", "object", "embed", "base", "video", "audio"} == set()
    assert page.policy.startswith("default-src 'none';")
    assert "http" not in page.policy


def test_the_page_of_a_run_is_offline_and_whole(traced: tuple[RunResult, list[Row]], tmp_path: Path) -> None:
    result, rows = traced
    path = tmp_path / "run.html"
    command = "fencepost simulate rolling-deploy --seed 3"
    render_run_report(result, rows, path, command=command, facts=run_facts(result))
    page = Page(path.read_text())
    assert_offline(page)
    packed = json.loads(page.unpacked("run-0"))
    assert packed["command"] == "fencepost simulate rolling-deploy --seed 3"
    assert ["digest", result.digest[:12]] in packed["facts"]
    assert len(packed["columns"]["t"]) == len(rows)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.html"]


def test_a_broken_run_says_so(traced: tuple[RunResult, list[Row]], tmp_path: Path) -> None:
    broken = msgspec.structs.replace(
        traced[0],
        converged=False,
        violations=[Violation(invariant="one owner", seq=1, t_us=0, message="two of them")],
    )
    render_run_report(broken, traced[1], tmp_path / "run.html", facts=run_facts(broken))
    text = (tmp_path / "run.html").read_text()
    assert 'class="verdict bad">1 violation; the group did not settle<' in text


def test_the_page_of_a_campaign_is_offline_and_escapes_everything(tmp_path: Path) -> None:
    path = tmp_path / "campaign.html"
    render_campaign_report(report_input(), path)
    text = path.read_text()
    page = Page(text)
    assert_offline(page)
    assert "evil.example" in text
    assert HOSTILE not in text
    assert not {"\x1b", "\u202e", "\u2028"} & set(text)
    assert "deploy, members=3" in text
    assert "2 violations in 10 runs, 1 failed" in text
    assert "4 of 10 runs" in text
    assert page.unpacked("plotly").startswith("/**\n* plotly.js")
    assert json.loads(page.scripts["figure-0"])["data"][0]["name"] == "members=3"
    packed = json.loads(page.unpacked("run-0"))
    assert packed["title"] == SHOWN
    assert SHOWN in packed["strings"]


def test_a_campaign_without_traces_has_a_page_without_charts(tmp_path: Path) -> None:
    whole = report_input()
    tables = {name: [] for name in whole.tables} | {"runs": whole.tables["runs"]}
    render_campaign_report(
        report_input(tables=tables, rebalance_curves=(), runs=(), traced_runs=0), tmp_path / "page.html"
    )
    page = Page((tmp_path / "page.html").read_text())
    assert_offline(page)
    assert set(page.scripts) == {"code"}


def test_figures_that_no_run_has_are_left_out(tmp_path: Path) -> None:
    """A Streams application has no rebalances of consumer groups: the page claims no zero of them."""
    whole = report_input()
    render_campaign_report(whole, tmp_path / "whole.html")
    tables = {name: [] for name in whole.tables} | {"runs": whole.tables["runs"]}
    render_campaign_report(report_input(tables=tables, rebalance_curves=(), runs=()), tmp_path / "few.html")
    words = (
        "Green means",
        "rebalances analysed",
        "partition downtime of the worst scenario",
        "heartbeats per rebalance",
    )
    assert [each in (tmp_path / "whole.html").read_text() for each in words] == [True] * 4
    assert [each in (tmp_path / "few.html").read_text() for each in words] == [True] + [False] * 3


def test_a_log_that_nothing_checked_has_no_zero_of_violations(tmp_path: Path) -> None:
    whole = report_input()
    runs = [{**row, "violating": None, "violations": None} for row in whole.tables["runs"]]
    downtime = [{**row, "median": None, "p99": None} for row in whole.tables["downtime"]]
    tables = {**whole.tables, "runs": runs, "downtime": downtime, "violations": [], "two_owners": []}
    render_campaign_report(report_input(tables=tables, runs=(), failures=()), tmp_path / "log.html")
    text = (tmp_path / "log.html").read_text()
    assert "from a log, which cannot be judged" in text
    assert "0 violations" not in text
    assert "time with two owners" not in text


def test_rows_are_packed_and_come_back() -> None:
    held = (*(TopicPartition("orders", n) for n in (0, 1, 2, 5)), TopicPartition("returns", 7))
    rows = [
        Row(4, 1_000, "simulated", "g", "m", "heartbeat", "", "", 3, 4, held, "", "full"),
        Row(9, 1_500, "simulated", "g", "m", "heartbeat", "", "", 3, 4, (), "FENCED_MEMBER_EPOCH", "full"),
    ]
    packed = encode_run(TracedRun(run_id="r", title="t", rows=[tuple(row) for row in rows]))  # type: ignore[misc]
    columns = packed["columns"]
    assert (columns["seq"], columns["t"]) == ([4, 5], [1_000, 500])
    assert [packed["sets"][number] for number in columns["partitions"]] == ["orders:0-2,5 returns:7", ""]
    assert [packed["strings"][number] for number in columns["error"]] == ["", "FENCED_MEMBER_EPOCH"]
    assert {packed["strings"][number] for number in columns["detail"]} == {"full"}


def test_names_of_actors_in_the_rows_go_along() -> None:
    row = Row(4, 1_000, "embedded", "g", "awCBCfcdTk", "heartbeat", "", "", 3, 4, (), "", "full")
    names = {"awCBCfcdTk": "billing awCBCfcd", "elsewhere": "payments elsewher"}
    assert encode_run(TracedRun(run_id="r", title="t", rows=[row], names=names))["names"] == {
        "awCBCfcdTk": "billing awCBCfcd"
    }


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "t:3"), ((2, 1), "t:1-2"), ((9, 1, 3, 2), "t:1-3,9")]
)
def test_partitions_are_written_as_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert partitions_text(TopicPartition("t", number) for number in numbers) == text


def test_long_runs_lose_what_says_least_first() -> None:
    def row(seq: int, kind: str, error: str = "", detail: str = "") -> Row:
        return Row(seq, seq, "simulated", "g", "m", kind, "", "", -1, -1, (), error, detail)

    rows = [
        row(1, "heartbeat", detail="keepalive"),
        row(2, "heartbeat", "FENCED_MEMBER_EPOCH", "keepalive"),
        row(3, "records"),
        row(4, "commit"),
        row(5, "commit", "STALE_MEMBER_EPOCH"),
        row(6, "violation"),
    ]
    assert thin(rows, 6) == (rows, [])
    assert [r.seq for r in thin(rows, 5)[0]] == [2, 3, 4, 5, 6]
    kept, left_out = thin(rows, 3)
    assert [r.seq for r in kept] == [2, 5, 6]
    assert left_out == ["1 steady heartbeats", "1 processed records", "1 accepted commits"]
    kept, left_out = thin(rows, 2)
    assert [r.seq for r in kept] == [2, 6]
    assert left_out[-1] == "the last 1 events except violations"


def test_no_more_is_left_out_than_must_be_and_that_evenly() -> None:
    rows = [
        Row(n, n, "simulated", "g", "m", "heartbeat", "", "", -1, -1, (), "", "keepalive") for n in range(100)
    ]
    kept, left_out = thin(rows, 75)
    assert left_out == ["25 steady heartbeats"]
    assert [row.seq for row in kept][:6] == [0, 1, 2, 4, 5, 6]
    assert len(kept) == 75


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 ms"),
        (0.0421, "42 ms"),
        (1.234, "1.23 s"),
        (59.94, "59.9 s"),
        (119.9, "119.9 s"),
        (250.0, "4 min 10 s"),
        (7_199, "119 min 59 s"),
        (7_200, "2 h 0 min"),
        (29_150, "8 h 5 min"),
        (4_000_000, "1,111 h 6 min"),
    ],
)
def test_durations_are_readable(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_page_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        write_page(tmp_path / "page.html", "one")
        write_page(tmp_path / "page.html", "two")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").read_text() == "two"
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o640
    (tmp_path / "folder").mkdir()
    with pytest.raises(FencepostError, match="cannot be written"):
        write_page(tmp_path / "folder", "three")
    write_page(tmp_path / "page.html", "\udc80")
    assert (tmp_path / "page.html").read_text() == "\\udc80"
    monkeypatch.setattr(Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(tmp_path / "page.html", "four")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "page.html"]


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "new.html") == tmp_path / "new.html"
    with pytest.raises(FencepostError, match="is a directory"):
        check_writable(tmp_path)
    with pytest.raises(FencepostError, match="does not exist"):
        check_writable(tmp_path / "no" / "where.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(FencepostError, match="does not exist"):
        check_writable(tmp_path / "file" / "x.html")


def test_the_jumps_of_a_clock_are_cut_and_other_quiet_times_are_not() -> None:
    def at(seconds: float, actor: str = "", kind: str = "heartbeat", detail: str = "") -> Row:
        return Row(1, round(seconds * 1e6), "embedded", "g", actor, kind, "", "", -1, -1, (), "", detail)

    rows = [at(0), at(5), at(6, "clock.advance", "fault", "60 s"), at(6.5), at(51), at(66), at(90)]
    assert clock_cuts(rows) == [(6_500_000, 51_000_000), (51_000_000, 66_000_000)]
    assert clock_cuts([at(0), at(90)]) == []
