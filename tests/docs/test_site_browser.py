"""The site in a browser, at the width of a phone, a laptop and a wide screen; in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import PATIENCE_MS, chromium, needs_chromium

SITE = Path(__file__).parents[2] / "build" / "site"
WIDTHS = (400, 1280, 1920)
PAGES = ("index.html", "tutorial.html", "guides/simulate-a-rollout.html", "api/tests.html")

pytestmark = [
    pytest.mark.long,
    *needs_chromium,
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="needs build/site: run make site"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and prints no line for each."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site behind HTTP: the search loads its index in a worker, which no browser does from a disk."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(processes: None, address: str) -> Iterator[Any]:
    assert address
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page. What its console says, an error in it or a missing file fails the test."""
    said: list[str] = []
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    opened.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("response", lambda got: said.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    yield opened
    context.close()
    assert said == []


def wait_until_it_fits(page: Any) -> None:
    """Wait until the page is no wider than the window: panels slide."""
    root = "document.documentElement"
    page.wait_for_function(f"{root}.scrollWidth <= {root}.clientWidth")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_says_nothing(page: Any, address: str, name: str) -> None:
    page.goto(address + name)
    assert page.locator("h1").first.inner_text().strip("¶ ")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        wait_until_it_fits(page)


@pytest.mark.parametrize("width", WIDTHS[:2])
def test_the_search_finds_a_page(page: Any, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address + "index.html")
    if not page.locator("input.md-search__input").is_visible():
        page.locator("label.md-header__button[for=__search]").click()
    typed = page.locator("input.md-search__input")
    typed.focus()
    ready = "document.querySelector('.md-search-result__meta').textContent.trim() !== 'Initializing search'"
    page.wait_for_function(ready)  # until then the page ignores what is typed
    typed.press_sequentially("move_coordinator")  # the page looks at keys
    found = page.locator("a.md-search-result__link[href*=embedded], a.md-search-result__link[href*='api/']")
    found.first.wait_for(state="attached")  # some results are folded
    wait_until_it_fits(page)
