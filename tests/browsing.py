"""Headless Chromium for tests of pages, driven by playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PLAYWRIGHT = pytest.importorskip("playwright.sync_api", reason="needs playwright")
PATIENCE_MS = 40_000

needs_chromium = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium to look at the page"),
]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser; while playwright is at work, no other event loop runs in this thread."""
    with PLAYWRIGHT.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            timeout=2 * PATIENCE_MS,
        )
        yield found
        found.close()


def expect(locator: Any) -> Any:
    """Playwright's assertions about a locator."""
    return PLAYWRIGHT.expect(locator)


def expect_text(locator: Any, text: Any) -> None:
    """Wait until it has this text."""
    expect(locator).to_contain_text(text, timeout=PATIENCE_MS)
