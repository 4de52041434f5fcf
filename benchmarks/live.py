"""How smoothly the live page of `fencepost serve --control` moves: headless Chromium, by playwright.

A group of many members and partitions heartbeats once a second, each member by a connection of its own. A
frame's time is that between two frames: 16.7 ms is as fast as a screen shows.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from report import frames, told  # noqa: E402

from tests.unit.simulation.wire_member import WireMember  # noqa: E402

SETTINGS = {
    "group.consumer.max.size": 1000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.session.timeout.ms": 30_000,
}


@contextlib.contextmanager
def served(members: int, partitions: int) -> Iterator[str]:
    words = ["serve", "--quick", "--port", "0", "--control", "0", "--topics", f"orders:{partitions}"]
    words += [word for name, value in SETTINGS.items() for word in ("--config", f"{name}={value}")]
    server = subprocess.Popen(
        [sys.executable, "-m", "fencepost.simulation", *words], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address, url = (server.stdout.readline().split()[-1] for _ in range(2))
    over = threading.Event()
    beating = threading.Thread(target=beat, args=(address, members, over))
    beating.start()
    try:
        yield f"{url}/"
    finally:
        over.set()
        beating.join()
        server.terminate()
        server.wait()


def beat(address: str, members: int, over: threading.Event) -> None:
    group = [WireMember(address, "billing", f"member-{number:03}") for number in range(members)]
    for each in group:
        each.join("orders")
    while not over.is_set():
        for each in group:
            each.confirm()
            if over.wait(0.7 / members):
                return


def measure(browser: Any, url: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("html[data-ready]", state="attached")
    print(f"the page is complete after {time.perf_counter() - began:.2f} s")
    page.locator("canvas.overview").evaluate("each => each.scrollIntoView()")
    page.wait_for_timeout(2000)
    moved("steady group", page, lambda: page.wait_for_timeout(6000))

    def rebalance() -> None:
        for _ in range(5):
            page.evaluate("fetch('groups/billing/rebalance', {method: 'POST'}).then(() => null)")
            page.wait_for_timeout(1200)

    moved("rebalancing group", page, rebalance)
    page.locator("canvas.lanes").focus()
    for key in ("PageDown", "Enter", "ArrowUp", "Enter"):  # unfolds partitions, then members
        page.keyboard.press(key)
    moved("lanes unfolded, rebalancing", page, rebalance)


def moved(name: str, page: Any, act: Callable[[], Any]) -> None:
    """Print the times of frames, and the share of time in which the page had nothing to do."""
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.start")
    told(f"frame, {name}", frames(page, act))
    found = profiler.send("Profiler.stop")["profile"]
    idle = {each["id"] for each in found["nodes"] if each["callFrame"]["functionName"] == "(idle)"}
    spent = list(zip(found["samples"], found["timeDeltas"], strict=True))
    share = sum(us for node, us in spent if node in idle) / sum(us for _, us in spent)
    print(f"{'':<28} idle {share:.0%} of the time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2000)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs Chromium")
    with served(given.members, given.partitions) as url, sync_playwright() as playwright:
        time.sleep(5)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        measure(browser, url)
        browser.close()


if __name__ == "__main__":
    main()
