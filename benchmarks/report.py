"""How fast the page of a long run opens and moves, and how big it is: headless Chromium, by playwright.

Simulates a run of about 100,000 events, writes its page, opens it some times, and then zooms and pans it.
Times count from the navigation. A frame's time is that between two frames while the wheel turns
or the pointer drags: 16.7 ms is as fast as a screen shows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fencepost.simulation.report.render import render_run_report
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.schema import Row

FRAMES = """() => new Promise((resolve) => {
  const times = [];
  let last = performance.now();
  const next = (now) => {
    times.push(now - last);
    last = now;
    if (window.stopFrames) resolve(times);
    else requestAnimationFrame(next);
  };
  window.stopFrames = false;
  requestAnimationFrame(next);
})"""


class Rows:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: Sequence[Row], /) -> None:
        self.rows.extend(rows)


def made_page(path: Path, duration: str) -> int:
    rows = Rows()
    scenario = load_any("swarm", members=60, partitions=600, duration=duration)
    result = run(scenario, 1, trace=rows)
    began = time.perf_counter()
    render_run_report(result, rows.rows, path, command="fencepost simulate swarm")
    print(f"{len(rows.rows):,} rows in the trace; its page is written in {time.perf_counter() - began:.1f} s")
    return len(rows.rows)


def told(name: str, values: Sequence[float], unit: str = "ms") -> None:
    ordered = sorted(values)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    middle, most = statistics.median(ordered), ordered[-1]
    print(f"{name:<28} median {middle:7.1f} {unit}   95 % {p95:7.1f} {unit}   most {most:7.1f} {unit}")


def frames(page: Any, moves: Any) -> list[float]:
    page.evaluate(f"() => {{ window.frames_ = ({FRAMES})(); }}")
    moves()
    found: list[float] = page.evaluate("() => { window.stopFrames = true; return window.frames_; }")
    return found[2:]


def measure(path: Path, times: int) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        drawn, ready = [], []
        for _ in range(times):
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            drawn.append(float(page.evaluate("document.documentElement.dataset.drawn")))
            ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
            if len(drawn) < times:
                page.close()
        told("first drawn timeline", drawn)
        told("page complete", ready)
        box = page.locator("canvas.lanes").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6

        def wheel(step: int) -> None:
            page.mouse.move(x, y)
            for _ in range(40):
                page.mouse.wheel(0, step)
                page.wait_for_timeout(10)

        def drag() -> None:
            page.mouse.move(x, y)
            page.mouse.down()
            for step in range(60):
                page.mouse.move(x - 5 * step, y)
                page.wait_for_timeout(5)
            page.mouse.up()

        told("frame, zooming in", frames(page, lambda: wheel(-60)))
        told("frame, dragging (zoomed in)", frames(page, drag))
        told("frame, zooming out", frames(page, lambda: wheel(60)))
        page.keyboard.press("0")
        page.mouse.move(x, y)
        for _ in range(4):
            page.mouse.wheel(0, -60)
        told("frame, dragging (most of it)", frames(page, drag))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", default="60m", help="of the simulated run")
    parser.add_argument("--times", type=int, default=5, help="how often the page is opened")
    parser.add_argument("--keep", type=Path, help="keep the page under this name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (given.keep or Path(folder) / "report.html").absolute()
        made_page(path, given.duration)
        print(f"the page has {path.stat().st_size / 1e6:.2f} MB")
        measure(path, given.times)


if __name__ == "__main__":
    main()
