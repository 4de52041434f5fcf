"""The pages in a browser: what people see, click and type. Headless Chromium, driven by playwright."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.report import palette
from fencepost.simulation.report.model import Curve, ReportInput, TracedRun
from fencepost.simulation.report.page import part
from fencepost.simulation.report.render import (
    render_campaign_report,
    render_run_report,
    render_timelines,
    run_facts,
)
from fencepost.simulation.report.timeline import encode_run
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.schema import Row
from tests.browsing import PATIENCE_MS, chromium, expect, expect_text, needs_chromium
from tests.unit.simulation.kept_rows import KeptRows

WIDTH = 1300

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser(processes: None, pages: Path) -> Iterator[Any]:
    """A browser, once all pages are made: where playwright is at work no other event loop runs."""
    assert pages.is_dir()
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Opens a page; what its console says, and any error in it, fails the test."""
    said: list[str] = []
    context = browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)

    def open_page(path: Path, fragment: str = "") -> Any:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    context.close()
    assert said == []


def a_row(seq: int, t_ms: int, actor: str, kind: str, **more: Any) -> Row:
    given = {"state_from": "", "state_to": "", "member_epoch": -1, "group_epoch": -1, "partitions": ()}
    given |= {"error": "", "detail": ""} | more
    return Row(seq=seq, t_us=t_ms * 1000, world="simulated", group="g", actor=actor, kind=kind, **given)


def small_run() -> list[Row]:
    """Two members; the second gets a partition too early. A violation in the middle of ten seconds."""
    held = (TopicPartition("orders", 0),)
    return [
        a_row(1, 0, "", "run.start", detail="small 1 2"),
        a_row(2, 0, "member-1", "member.state", state_to="JOINING"),
        a_row(3, 500, "b1", "group.epoch", state_to="Reconciling", group_epoch=2, detail="join"),
        a_row(4, 1000, "member-1", "member.state", state_from="JOINING", state_to="STABLE", member_epoch=2),
        a_row(5, 1000, "member-1", "callback.end", partitions=held, detail="assigned"),
        a_row(6, 1200, "b1", "group.state", state_to="Stable", group_epoch=2),
        *(a_row(10 + n, 2000 + 100 * n, "member-1", "heartbeat", member_epoch=2) for n in range(20)),
        a_row(40, 4500, "member-2", "member.state", state_to="STABLE", member_epoch=3),
        a_row(41, 4600, "member-2", "callback.end", partitions=held, detail="assigned"),
        a_row(42, 5000, "", "violation", error="one-claimant", detail="two of them own orders-0"),
        a_row(43, 7000, "member-1", "callback.begin", partitions=held, detail="lost"),
        a_row(44, 7100, "member-1", "callback.end", partitions=held, detail="lost"),
        a_row(45, 10_000, "", "run.end"),
    ]


def jumped_clock() -> list[Row]:
    """A test that lets an hour pass after two seconds, and fails two seconds later."""
    rows = [
        a_row(1, 0, "m", "member.state", state_to="JOINING"),
        a_row(2, 1000, "m", "member.state", state_from="JOINING", state_to="STABLE", member_epoch=2),
        a_row(3, 2000, "clock.advance", "fault", state_to="begin", detail="3600 s"),
        a_row(4, 3_602_000, "m", "heartbeat", member_epoch=2),
        a_row(5, 3_604_000, "", "test", state_to="failed", error="AssertionError", detail="no"),
    ]
    return [row._replace(world="embedded") for row in rows]


WORLDS = {
    "streams-failures": ("running", "rebalancing", "exception in a thread"),
    "sac-node-failures": ("active", "waiting", "stepping down", "hosts", "down"),
    "rolling-deploy": ("stable", "reconciling", "fault begins", "message lost"),
}
"""Scenarios, and some of what their legends say."""

FENCED = ("lossy-network", "slow-callbacks-and-poll-timeouts")
"""Scenarios in which seed 5 has members that are fenced before their `assigned` callback ends."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pages that are looked at."""
    folder = tmp_path_factory.mktemp("pages")
    traced = TracedRun(run_id="small-1", title="small, seed 1", rows=small_run(), command="fencepost …")
    render_timelines([traced], folder / "small.html", title=traced.title, verdict="1 violation", fine=False)
    render_timelines(
        [TracedRun(run_id="clock", title="clock", rows=jumped_clock())],
        folder / "clock.html",
        title="clock",
        verdict="The test failed",
        fine=False,
        whole="E  first line\nE  second line",
    )
    for scenario in WORLDS:
        rows = KeptRows()
        result = run(load_any(scenario), 3, trace=rows)
        render_run_report(result, rows, folder / f"{scenario}.html", facts=run_facts(result))
    for scenario in FENCED:
        rows = KeptRows()
        result = run(load_any(scenario), 5, trace=rows)
        assert result.violations == []
        render_run_report(result, rows, folder / f"{scenario}-5.html", facts=run_facts(result))
    render_campaign_report(campaign(), folder / "campaign.html")
    return folder


@pytest.fixture
def small(pages: Path) -> Path:
    return pages / "small.html"


def middle_of_the_time(page: Any) -> tuple[float, float]:
    """Where the violation is: half way through the time, on the lane of faults."""
    box = page.locator("canvas.lanes").bounding_box()
    labels = 184
    return labels + (box["width"] - labels - 10) * 0.5 / 1.002, 28 + 3 + 8


def test_an_event_is_found_clicked_linked_and_reached_again(opened: Any, small: Path) -> None:
    page = opened(small)
    detail, count = page.locator("[data-part=detail]"), page.locator("[data-part=events-count]")
    assert page.locator("h1").inner_text() == "small, seed 1"
    assert "violation" in page.locator("[data-part=legend]").inner_text()
    assert "two owners" in page.locator("[data-part=legend]").inner_text()
    x, y = middle_of_the_time(page)
    page.locator("canvas.lanes").click(position={"x": x, "y": y})
    expect_text(detail, "two of them own orders-0")
    page.wait_for_url("**event=42*")
    link = detail.get_by_role("link").get_attribute("href")

    page.mouse.wheel(0, -400)
    page.wait_for_url("**t=*")
    expect_text(count, re.compile(r"^([1-9]|[12]\d)$"))
    page.locator("canvas.lanes").press("0")
    expect_text(count, "32")
    page.locator("canvas.lanes").press("Escape")
    page.locator("[data-part=next]").click()
    expect_text(detail, "two of them own orders-0")

    again = opened(small, link)
    expect_text(again.locator("[data-part=detail]"), "two of them own orders-0")
    expect_text(again.locator("tr[aria-current]"), "one-claimant")


def test_filters_leave_what_was_asked_for(opened: Any, small: Path) -> None:
    page = opened(small)
    matches, listed = page.locator("[data-part=matches]"), page.locator("[data-part=events]")
    expect_text(matches, "32 events")
    page.get_by_label("find").fill("LOST member-1")
    expect_text(matches, "2 of 32")
    page.get_by_label("find").press("Enter")
    expect_text(page.locator("[data-part=detail]"), "callback.begin")
    page.get_by_label("find").fill("")
    page.locator("summary", has_text="kinds").click()
    page.get_by_label("heartbeat").uncheck()
    expect_text(matches, "12 of 32")
    page.wait_for_url("**without=heartbeat*")
    page.get_by_label("lanes", exact=True).fill("member-2")
    expect(listed).not_to_contain_text("member-1", timeout=PATIENCE_MS)
    expect_text(listed, "member-2")


def test_keys_walk_through_lanes_and_events(opened: Any, small: Path) -> None:
    page = opened(small)
    canvas, detail = page.locator("canvas.lanes"), page.locator("[data-part=detail]")
    canvas.focus()
    for _ in range(4):
        canvas.press("ArrowDown")
    for _ in range(2):
        canvas.press("n")
    expect_text(detail, "member.state · member-1")
    expect_text(detail, "JOINING → STABLE")
    canvas.press("p")
    expect_text(detail, "event 2)")
    canvas.press("v")
    expect_text(detail, "violation")


def test_the_page_is_dark_where_asked_and_fits_a_narrow_window(opened: Any, small: Path) -> None:
    page = opened(small)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    switch = page.locator("[data-theme-switch]")
    page.emulate_media(color_scheme="dark")
    # The page hears of it with one of the next frames.
    expect_text(switch, "light")
    assert page.evaluate(ground) != light
    switch.click()
    expect_text(switch, "dark")
    assert page.evaluate(ground) == light


def test_words_do_not_break_on_a_narrow_page(opened: Any, pages: Path) -> None:
    """Each cell is as wide as its longest word: a table scrolls before a word breaks."""
    page = opened(pages / "campaign.html")
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_function("innerWidth === 400")
    for link in page.locator("#all-runs button.link, .columns button.link").all():
        assert link.bounding_box()["height"] < 50, link.inner_text()


def lanes_of(browser: Any, rows: list[Row]) -> list[tuple[str, list[str]]]:
    """The lanes that the page's script reads from a run, each with the sorts of its marks."""
    page = browser.new_page()
    scripts = (part(name) for name in ("words.js", "lane.js", "run-data.js"))
    page.add_script_tag(content="\n".join([palette.script(), *scripts]))
    read = "run => new Run(run).lanes.map(lane => [lane.name, lane.marks.map(mark => mark.sort)])"
    packed = encode_run(TracedRun(run_id="r", title="r", rows=rows))
    lanes = [(name, marks) for name, marks in page.evaluate(read, packed)]
    page.close()
    return lanes


def test_members_are_in_the_order_in_which_they_joined(browser: Any) -> None:
    rows = [
        a_row(1, 0, "z", "member.state", state_to="JOINING"),
        a_row(2, 1, "a", "member.state", state_to="JOINING"),
        a_row(3, 2, "z", "member.removed", detail="fenced"),
        a_row(4, 3, "a", "member.removed", detail="left"),
    ]
    lanes = lanes_of(browser, rows)
    assert [lane for lane in lanes if lane[0] in ("a", "z")] == [("z", ["removed"]), ("a", ["left"])]


def test_an_exception_that_shuts_the_application_down_is_marked_for_all_lanes(browser: Any) -> None:
    rows = [
        a_row(1, 0, "app-1", "client.state", state_to="RUNNING"),
        a_row(2, 1, "app-1-thread-1", "thread.state", state_to="RUNNING"),
        a_row(3, 2, "app-1-thread-1", "thread.failed", detail="REPLACE_THREAD poll"),
        a_row(4, 3, "app-1-thread-1", "thread.failed", detail="SHUTDOWN_APPLICATION poll"),
    ]
    lanes = dict(lanes_of(browser, rows))
    assert lanes["app-1-thread-1"] == ["failed", "shutdown"]
    assert lanes["faults"] == ["shutdown"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["small", "clock", "campaign", "sac-node-failures", "streams-failures"])
def test_pages_fit_windows_of_every_width(name: str, scheme: str, opened: Any, pages: Path) -> None:
    page = opened(pages / f"{name}.html")
    page.emulate_media(color_scheme=scheme)
    for width in (400, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        # Charts follow the window with one of the next frames.
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")


def test_a_clock_s_jump_is_cut_out_and_times_go_on_behind_it(opened: Any, pages: Path) -> None:
    page = opened(pages / "clock.html")
    legend = page.locator("[data-part=legend]")
    for words in ("call of the test", "the test failed"):
        expect_text(legend, words)
    events = page.locator("[data-part=events]")
    expect_text(events, "1:00:04.000")
    expect_text(events, "clock.advance")
    page.locator("summary", has_text="The whole exception").click()
    assert page.locator("pre.whole").inner_text() == "E  first line\nE  second line"


@pytest.mark.parametrize("scenario", WORLDS)
def test_runs_of_all_worlds_are_drawn(scenario: str, opened: Any, pages: Path) -> None:
    page = opened(pages / f"{scenario}.html")
    legend = page.locator("[data-part=legend]").inner_text()
    assert [words for words in WORLDS[scenario] if words not in legend] == []
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.evaluate(COLOURS_DRAWN) > 10


COLOURS_DRAWN = """() => {
  const canvas = document.querySelector("canvas.lanes"), found = new Set();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (const pixel of new Uint32Array(data.buffer)) found.add(pixel);
  return found.size;
}"""


def table_rows(name: str, **values: list[Any]) -> list[dict[str, Any]]:
    """KeptRows of a table as the analyses declare it; columns without values are empty."""
    empty = {column.name: None for column in TABLES[name].columns}
    return [empty | dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


@pytest.mark.parametrize("scenario", FENCED)
def test_a_member_that_is_given_partitions_while_it_is_fenced_is_no_second_owner(
    scenario: str, opened: Any, pages: Path
) -> None:
    legend = opened(pages / f"{scenario}-5.html").locator("[data-part=legend]").inner_text()
    assert "stable" in legend
    assert "two owners" not in legend


def campaign() -> ReportInput:
    cells: dict[str, list[Any]] = {
        "scenario": ["deploy"] * 4,
        "parameters": [
            f'{{"members": "{members}", "zone": "{zone}"}}'
            for members in (1, 12)
            for zone in ("east", "west")
        ],
    }
    medians = [1.0, 2.0, 3.0, 40.0]
    spread = {
        name: [times * value for value in medians]
        for times, name in enumerate(("median", "p90", "p99", "max"), 1)
    }
    spread |= {"count": [5] * 4}
    runs = {"runs": [10] * 4, "failed": [0] * 4, "traced": [10] * 4, "unconverged": [0] * 4}
    tables: dict[str, Any] = {name: [] for name in TABLES}
    tables["runs"] = table_rows("runs", **cells, **runs, violations=[0, 0, 0, 2])
    tables["rebalances"] = table_rows("rebalances", **cells, **spread)
    tables["downtime"] = table_rows(
        "downtime", **cells, **spread, cause=["all"] * 4, run_seconds_mean=[10 * value for value in medians]
    )
    tables["two_owners"] = table_rows("two_owners", **cells, count=[0] * 4, seconds=[0.0] * 4)
    listed = [
        {
            "run_id": f"deploy-{number:06d}",
            "label": f"deploy, members={members}, zone={zone}",
            "rebalances": 3,
            "heartbeats": 1000,
            "outcome": "fine" if number else "2 violations",
            "fine": bool(number),
            "show": f"fencepost analyze out --run deploy-{number:06d} --report F.html",
            "again": f"fencepost simulate deploy --seed {number}",
        }
        for number, (members, zone) in enumerate((m, z) for m in (12, 1) for z in ("west", "east"))
    ]
    curve = Curve("deploy, members=1, zone=east", 5, tuple(point / 10 for point in range(101)))
    return ReportInput(
        title="Campaign: deploy",
        source="out",
        tables=tables,
        rebalance_curves=(curve,),
        traced_runs=40,
        runs=tuple(
            TracedRun(run_id=f"deploy-{number:06d}", title=f"run {number}", rows=small_run())
            for number in range(2)
        ),
        all_runs=listed,
    )


@pytest.mark.processes
def test_a_campaign_has_its_heat_map_charts_and_runs(opened: Any, pages: Path) -> None:
    page = opened(pages / "campaign.html")
    heat = page.locator("table.heat")
    assert heat.locator("caption").inner_text() == "all partitions down, per run, by members and zone"
    page.locator("#heatmap").get_by_label("show").select_option("rebalance_median")
    lines = [" ".join(line.split()) for line in heat.locator("tbody tr").all_inner_texts()]
    assert lines == [
        "1 1.00 s of 5 rebalances 2.00 s of 5 rebalances",
        "12 3.00 s of 5 rebalances 40.00 s of 5 rebalances ▲",
    ]
    page.locator("#heatmap").get_by_label("show").select_option("downtime_run")
    expect_text(heat.locator("caption"), "all partitions down, per run")
    expect_text(heat, "6 min 40 s")
    page.locator("#heatmap").get_by_label("across").select_option("members")
    expect_text(heat.locator("caption"), "by zone and members")
    heat.get_by_role("button").first.click()
    expect_text(page.locator("#heatmap [data-part=cell]"), "members=1, zone=east")
    expect_text(page.locator("#all-runs [data-part=found]"), "1 of 4")
    heat.get_by_role("button").last.click()
    expect_text(page.locator("#heatmap [data-part=cell]"), "violations: 2")
    expect_text(page.locator("#all-runs [data-part=found]"), "1 of 4")
    page.locator("#all-runs").get_by_role("button", name="deploy-000000").click()
    expect_text(page.locator("[data-part=how]"), "fencepost analyze out --run deploy-000000")
    assert page.locator(".js-plotly-plot").count() >= 1
    page.locator("[data-part=chooser]").select_option("deploy-000001")
    page.wait_for_url("**run=deploy-000001*")
    expect_text(page.locator("#run-title"), "run 1")
