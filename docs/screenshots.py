"""Makes the pictures of the docs: pages of real runs in headless Chromium, WebP files in docs/images.

`make docs` runs it where playwright and Chromium are: python docs/screenshots.py
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from fencepost.simulation.cli.runs import RunOutputs
from fencepost.simulation.cli.simulate import simulate

FOLDER = Path(__file__).parent / "images"
QUALITY = 70
RUN = "#run=rolling-deploy-3&t=2500-9000&event=43"


def tutorial(folder: Path) -> Path:
    """Run the test of docs/tutorial.md that fails, and return the page with its timeline."""
    text = (FOLDER.parent / "tutorial.md").read_text(encoding="utf-8")
    files = re.findall(r"^```\w+\n(# ([\w.]+)\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for written, name in reversed(files):  # the first version of a file, which fails, is written last
        (folder / name).write_text(written, encoding="utf-8")
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "--kafka-trace", "test_fence.py"]
    subprocess.run([sys.executable, *words], cwd=folder, check=False)
    (page,) = (folder / "kafka-trace").glob("*.html")
    return page


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Serve a Kafka with three members of a group, and return the address of its page."""
    words = ["serve", "--port", "0", "--topics", "orders:6", "--quick", "--control", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "fencepost.simulation", *words], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    servers, url = (server.stdout.readline().split()[-1] for _ in range(2))
    over = threading.Event()
    members = [threading.Thread(target=member, args=(servers, f"billing-{n}", over)) for n in (1, 2, 3)]
    for each in members:
        each.start()
    try:
        yield f"{url}/"
    finally:
        over.set()
        for each in members:
            each.join()
        server.terminate()
        server.wait()


def member(servers: str, client_id: str, over: threading.Event) -> None:
    """Read and write some orders until it is over."""
    common = {"bootstrap.servers": servers, "client.id": client_id}
    consumer = Consumer({**common, "group.id": "billing", "group.protocol": "consumer"})
    producer = Producer(common)
    consumer.subscribe(["orders"])
    while not over.is_set():
        producer.produce("orders", client_id)
        producer.poll(0)
        consumer.poll(0.02)
        over.wait(0.02)
    producer.flush()
    consumer.close()


def fence(page: Any) -> None:
    """Let the group run for a while, fence a member, and let it return."""
    page.wait_for_timeout(12_000)
    page.locator("[data-part=members] button", has_text="fence").first.click()
    page.wait_for_timeout(9_000)


def picture(
    browser: Any,
    url: str,
    name: str,
    *,
    act: Callable[[Any], None] = lambda page: None,
    dark: bool = False,
    top: str = "",
    height: int = 1000,
) -> None:
    """Take one and write it."""
    context = browser.new_context(
        viewport={"width": 1280, "height": height}, color_scheme="dark" if dark else "light"
    )
    opened = context.new_page()
    opened.goto(url)
    opened.wait_for_selector("html[data-ready]", state="attached")
    opened.wait_for_selector("html[data-drawn]", state="attached")
    act(opened)
    if top:
        opened.locator(top).evaluate("each => each.scrollIntoView()")
    else:
        opened.evaluate("window.scrollTo(0, 0)")
    opened.wait_for_timeout(500)
    session = context.new_cdp_session(opened)
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{name}.webp"
    target.write_bytes(base64.b64decode(shot["data"]))
    sys.stderr.write(f"{target}: {target.stat().st_size / 1e3:.0f} kB\n")
    context.close()


def main() -> None:
    """Make all of them; the heat map needs the report of a campaign that has run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaign", type=Path, help="a campaign's report, for the picture of the heat map")
    parser.add_argument("--only-tutorial", action="store_true", help="the tutorial's picture, and no other")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs Chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "run.html"
        if not given.only_tutorial:
            simulate("rolling-deploy", seed=3, mutant="target-told-early", outputs=RunOutputs(report=page))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            if not given.only_tutorial:
                picture(browser, page.as_uri() + RUN, "report-run")
                with served() as url:
                    picture(browser, url, "live-page", act=fence, height=1100)
            picture(browser, tutorial(Path(folder)).as_uri(), "tutorial-timeline", height=790)
            if given.campaign:
                report = given.campaign.absolute().as_uri()
                picture(browser, report, "report-campaign", dark=True, top="#heatmap")
            browser.close()


if __name__ == "__main__":
    main()
