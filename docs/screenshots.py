"""Makes the pictures of docs/report.md: pages of real runs in headless Chromium, WebP files in docs/images.

Run it where playwright and Chromium are: python docs/screenshots.py
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from fencepost.simulation.cli.simulate import simulate

FOLDER = Path(__file__).parent / "images"
QUALITY = 70
RUN = "#run=rolling-deploy-3&t=2500-9000&event=43"


def picture(
    browser: Any, page: Path, name: str, fragment: str = "", *, dark: bool = False, top: str = ""
) -> None:
    """Take one and write it."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 1000}, color_scheme="dark" if dark else "light"
    )
    opened = context.new_page()
    opened.goto(page.as_uri() + fragment)
    opened.wait_for_selector("html[data-ready]", state="attached")
    opened.wait_for_selector("html[data-drawn]", state="attached")
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
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs Chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "run.html"
        simulate("rolling-deploy", seed=3, mutant="target-told-early", report=page)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            picture(browser, page, "report-run", RUN)
            if given.campaign:
                picture(browser, given.campaign.absolute(), "report-campaign", dark=True, top="#heatmap")
            browser.close()


if __name__ == "__main__":
    main()
