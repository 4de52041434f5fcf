"""The live page of the control port in a browser: what people see, click and type."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions

from fencepost import EmbeddedKafka
from fencepost.simulation.control.documents import shown
from fencepost.simulation.control.operations import operations
from fencepost.simulation.control.serving import TOKEN_VARIABLE, ControlAddress, controlled
from fencepost.simulation.report import palette
from fencepost.simulation.report.model import TracedRun
from fencepost.simulation.report.page import part as part_of_pages
from fencepost.simulation.report.timeline import encode_run
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.schema import Row
from tests.browsing import PATIENCE_MS, chromium, expect, expect_text, needs_chromium

pytestmark = needs_chromium


@contextlib.contextmanager
def control_of(kafka: EmbeddedKafka) -> Iterator[str]:
    url: Future[str] = Future()
    over: Future[asyncio.Event] = Future()

    async def serve() -> None:
        async with controlled(kafka.endpoint, ControlAddress("127.0.0.1", 0)) as address:
            stop = asyncio.Event()
            over.set_result(stop)
            url.set_result(address)
            await stop.wait()

    async def end() -> None:
        over.result().set()

    serving = kafka.thread.submit(serve())
    try:
        yield url.result()
    finally:
        kafka.thread.submit(end()).result()
        serving.result()


@contextlib.contextmanager
def a_member(kafka: EmbeddedKafka, name: str, group: str = "billing") -> Iterator[Consumer]:
    """A consumer of a group that is polled all the time."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": name,
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            consumer.poll(0.05)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield consumer
    finally:
        over.set()
        polling.join()
        consumer.close()


SCENARIOS = ("swarm", "slow-callbacks-and-poll-timeouts")


@pytest.fixture(scope="module")
def traces() -> dict[str, list[Row]]:
    """The rows of some runs, made while no other event loop runs."""
    found: dict[str, list[Row]] = {}
    for name in SCENARIOS:
        rows: list[Row] = []
        run(load_any(name, duration="3m"), 5, trace=SimpleNamespace(write=rows.extend))
        found[name] = [Row._make(row) for row in rows]
    return found


@pytest.fixture(scope="module")
def browser(processes: None, traces: dict[str, list[Row]]) -> Iterator[Any]:
    assert traces
    with chromium() as found:
        yield found


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser context. Any message in the console of its pages, and any error in them, fails the test."""
    said: list[str] = []
    made = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    made.set_default_timeout(PATIENCE_MS)
    made.on("console", lambda message: said.append(message.text))
    made.on("weberror", lambda error: said.append(str(error.error)))
    yield made
    made.close()
    assert said == []


@contextlib.contextmanager
def opened(context: Any, url: str) -> Iterator[Any]:
    """The page; it is closed before the server, which it would miss."""
    page = context.new_page()
    try:
        page.goto(url + "/")
        page.wait_for_selector("html[data-ready]", state="attached")
        yield page
    finally:
        page.close()


def part(page: Any, name: str) -> Any:
    return page.locator(f"[data-part={name}]")


def test_a_member_joins_is_fenced_by_a_button_and_returns(context: Any, kafka: EmbeddedKafka) -> None:
    with control_of(kafka) as url, opened(context, url) as page:
        expect_text(part(page, "state"), "live")
        expect_text(part(page, "groups"), "No group yet")
        with a_member(kafka, "client-1"), a_member(kafka, "client-2"):
            kafka.group("billing").wait_stable(2)
            expect_text(part(page, "groups"), "Stable")
            members = part(page, "members").get_by_role("row")
            line = members.filter(has_text="client-1")
            expect_text(line, "consumer")
            expect_text(line, "orders:")
            expect_text(part(page, "legend"), "stable")
            before = next(each for each in kafka.group("billing").members() if each.client_id == "client-1")
            seen = kafka.last_event

            expect_text(line, before.member_id)
            line.get_by_role("button", name="fence").click()
            expect_text(part(page, "told"), "done")
            expect_text(part(page, "legend"), "removed by the coordinator")
            kafka.group("billing").wait_stable(2)
            expect_text(line, "orders:")
            after = next(each for each in kafka.group("billing").members() if each.client_id == "client-1")
            assert after.epoch > before.epoch
            removed = [row.detail for row in kafka.events(seen) if row.kind == "member.removed"]
            assert removed == ["fenced"]
            expect_text(line, str(after.epoch))
            expect_text(part(page, "rebalances"), "leave")
            expect_text(part(page, "requests"), "ConsumerGroupHeartbeat")


LANES = """lanes => lanes.map((lane) => [
  lane.name, lane.section, lane.states, lane.views, lane.downs, lane.shared, lane.steps,
  lane.callbacks.map(({ from, until, sort }) => [from, until, sort]),
  lane.epochs.map(({ t, epoch }) => [t, epoch]),
  lane.owned.map(({ partition, from, until, late, owner }) => [partition, from, until, late, owner.name]),
])"""


@pytest.mark.parametrize("at_once", [1, 50])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_grows_has_the_lanes_of_a_whole_run(
    browser: Any, traces: dict[str, list[Row]], scenario: str, at_once: int
) -> None:
    rows = traces[scenario]
    page = browser.new_page()
    scripts = ("words.js", "lane.js", "run-data.js", "live-run.js")
    page.add_script_tag(content="\n".join([palette.script(), *map(part_of_pages, scripts)]))
    packed = encode_run(TracedRun(run_id="r", title="r", rows=rows))
    whole = page.evaluate(f"run => ({LANES})(new Run(run).lanes)", packed)
    grow = f"""([rows, step, end]) => {{
      const run = new LiveRun("g", new Map());
      for (let at = 0; at < rows.length; at += step) run.add(rows.slice(at, at + step));
      run.endAt(end, 1);
      run.close();
      return ({LANES})(run.lanes);
    }}"""
    grown = page.evaluate(grow, [[shown(row) for row in rows], at_once, rows[-1].t_us])
    page.close()
    assert len(whole) > 15
    assert {name for name, *_ in grown} == {name for name, *_ in whole}
    found = {lane[0]: lane for lane in grown}
    for lane in whole:
        assert found[lane[0]] == lane


def test_all_operations_can_be_called_by_keyboard_alone(context: Any, kafka: EmbeddedKafka) -> None:
    with control_of(kafka) as url, opened(context, url) as page:
        offered = {each.get_attribute("value") for each in part(page, "operation").locator("option").all()}
        names = {each.name for each in operations() if not each.place.path}
        assert names - offered == {"events", "timeline"}, "a stream and a page"
        assert {"group_fence", "fault_remove", "clock_advance", "open_scope", "close_scope"} <= offered

        part(page, "operation").focus()
        page.keyboard.type("create topic")
        expect_text(part(page, "summary"), "Create a topic")
        page.keyboard.press("Tab")
        page.keyboard.type("refunds")
        page.keyboard.press("Tab")
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        expect_text(part(page, "told"), "create topic refunds, 3: done")
        assert kafka.topics() == {"orders": 4, "refunds": 3}

        fault = kafka.add_fault("delay", "OffsetCommit", seconds=1, group="billing", times=None)
        expect_text(part(page, "faults"), "delay")
        part(page, "faults").get_by_role("button", name="remove").press("Enter")
        expect_text(part(page, "faults"), "No fault is in force")
        assert fault.state.is_over


def test_records_are_read_some_at_a_time(context: Any, kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", *map(str, range(120)), key="k", partition=1)
    with control_of(kafka) as url, opened(context, url) as page:
        part(page, "partition").select_option("1")
        records = part(page, "records")
        expect_text(records, "119")
        assert records.get_by_role("row").count() == 51
        part(page, "older").click()
        expect_text(records.get_by_role("row").nth(1), "20")
        assert [each.offset for each in kafka.records("orders", 1, since=100, most=3)] == [100, 101, 102]
        assert kafka.records("orders", 1, since=500) == kafka.records("orders", 1, most=0) == []


def test_added_partitions_and_times_that_no_date_has_are_shown(context: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("a", 2, config={"message.timestamp.after.max.ms": 2**63 - 1})
    for timestamp_ms in (0, 8_640_000_000_000_000, 8_640_000_000_000_001, 2**62):
        kafka.produce("a", "x", partition=1, timestamp_ms=timestamp_ms)
    with control_of(kafka) as url, opened(context, url) as page:
        partitions = part(page, "partition").locator("option")
        expect_text(part(page, "topic"), "a")
        part(page, "topic").select_option("a")
        expect(partitions).to_have_count(2, timeout=PATIENCE_MS)
        part(page, "partition").select_option("1")
        records = part(page, "records")
        for shown_time in (
            *("1970-01-01 00:00:00.000", "+275760-09-13 00:00:00.000", "8640000000000001 ms"),
            "4611686018427388000 ms",
        ):
            expect_text(records, shown_time)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        admin.create_partitions([NewPartitions("a", 5)])["a"].result(60)
        expect(partitions).to_have_count(5, timeout=PATIENCE_MS)
        assert part(page, "partition").input_value() == "1", "the choice stays"
        kafka.delete_topic("a")
        kafka.create_topic("a", 1)
        expect(partitions).to_have_count(1, timeout=PATIENCE_MS)


RUN = "document.getElementById('live').page.run"
HELD = """() => {
  const { page } = document.getElementById("live"), { api } = page, get = api.get.bind(api);
  api.get = async (path) => {
    const found = await get(path);
    if (path.startsWith("events")) await new Promise((go) => { window.go = go; });
    return found;
  };
  page.begin();
}"""
GROUPS_OF_RUN = f"() => [...new Set({RUN}.columns.group)].map((n) => {RUN}.strings[n])"


def test_the_page_keeps_the_events_of_one_group_and_each_once(context: Any, kafka: EmbeddedKafka) -> None:
    with control_of(kafka) as url, opened(context, url) as page:
        expect_text(part(page, "state"), "live")
        with a_member(kafka, "client-1"), a_member(kafka, "client-2", "shipping"):
            for group in ("shipping", "billing"):
                kafka.group(group).wait_stable(1)
                part(page, "groups").get_by_role("button", name=group).click()
                expect_text(part(page, "members-title"), f"Members of {group}")
                assert {*page.evaluate(GROUPS_OF_RUN)} <= {"", group}
            # Another try with a token: the events are read again, and more come until they are there.
            page.evaluate(HELD)
            page.wait_for_function("() => !!window.go")
            kafka.group("billing").rebalance()
            kafka.group("shipping").rebalance()
            requested = next(row.seq for row in kafka.events() if row.actor == "rebalance")
            page.evaluate("window.go()")
            page.wait_for_function(f"seq => {RUN}.seq.includes(seq)", arg=requested)
            kafka.group("billing").wait_stable(1)
        expect_text(part(page, "members"), "No member")
        expected = [row.seq for row in kafka.events(group_id="billing", steady=False)]
        assert {row.group for row in kafka.events(group_id="billing")} == {"", "billing"}
        page.wait_for_function(f"seq => {RUN}.seq.at(-1) >= seq", arg=expected[-1])
        seen = page.evaluate(f"() => {RUN}.seq")
        assert sorted({*seen}) == sorted(seen)
        missing = {*expected} - {*seen}
        ticks = {row.seq for row in kafka.events() if row.kind in {"heartbeat", "commit"}}
        assert missing <= ticks
        assert {*page.evaluate(GROUPS_OF_RUN)} <= {"", "billing"}


def test_the_page_asks_for_the_token_and_fits_a_phone(
    context: Any, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "geheimnißvoll")
    name = "client-with-a-name-that-is-long"
    with control_of(kafka) as url, a_member(kafka, name), opened(context, url) as page:
        expect(part(page, "body")).to_be_hidden()
        part(page, "token").fill("geheimnißvoll")
        part(page, "token").press("Enter")
        expect_text(part(page, "members"), "client-with-a-name")
        page.reload()
        expect_text(part(page, "state"), "live")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (400, 1280):
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        with opened(context, url) as other:
            assert other.evaluate("sessionStorage.length") == 0, "another tab does not have it"
