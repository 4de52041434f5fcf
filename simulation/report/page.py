"""The building blocks of all pages: their parts as text, packed data, and writing to a file."""

from __future__ import annotations

import base64
import errno
import gzip
import html
import json
import secrets
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.reading import visible
from fencepost.simulation.report import palette
from fencepost.simulation.report.model import TracedRun
from fencepost.simulation.report.timeline import encode_run

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The content security policy of the page: nothing is loaded from anywhere. The browser enforces it."""

TIMELINE_SCRIPTS = (
    "words.js",
    "theme.js",
    "lane.js",
    "run-data.js",
    "painter.js",
    "frame.js",
    "timeline.js",
    "interaction.js",
    "details.js",
    "filters.js",
    "address.js",
    "run-section.js",
    "runs.js",
)
CAMPAIGN_SCRIPTS = ("heatmap.js", "charts.js", "all-runs.js")
LIVE_SCRIPTS = (
    "live-run.js",
    "live-api.js",
    "live-tables.js",
    "live-operations.js",
    "live-records.js",
    "live.js",
)


def part(name: str) -> str:
    """Return a file of the pages as text."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def style(*parts: str) -> str:
    """Return the style: the colours, the shared parts, and these parts."""
    return palette.style() + "".join(part(name) for name in ("style.css", *parts))


def script(*more: str) -> str:
    """Return the script: the timeline, these parts, and last the part that starts all of them."""
    parts = "\n".join(part(name) for name in (*TIMELINE_SCRIPTS, *more, "start.js"))
    return f"(() => {{\n{palette.script()}{parts}\n}})();"


def embedded_runs(runs: Sequence[TracedRun]) -> str:
    """Return the runs as elements of the page: packed, and found by their names."""
    return "\n".join(
        f'<script type="application/gzip" id="run-{number}" data-run-id="{html.escape(run.run_id)}"'
        f' data-title="{html.escape(run.title)}" data-why="{html.escape(run.why)}">'
        f"{packed(compact(encode_run(run)))}</script>"
        for number, run in enumerate(runs)
    )


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def packed(text: str) -> str:
    """Return a text compressed and safe inside a page: the page's script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")


def inert(text: str) -> str:
    """Return JSON that cannot end the script element around it."""
    return text.replace("<", "\\u003c")


def version() -> str:
    """Return the version of fencepost that makes the page."""
    try:
        return metadata.version("fencepost")
    except metadata.PackageNotFoundError:
        return "from its sources"


def write_page(path: Path, page: str) -> None:
    """Write a page, whole or not at all. Texts of strangers can't change the direction of others.

    :raises FencepostError: if it cannot be written.
    :raises EnvironmentLacks: if there is no room for it.
    """
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        try:
            unfinished.write_text(visible(page), encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        kind = EnvironmentLacks if full else FencepostError
        raise kind(f"{path}: cannot be written: {error.strerror or error}") from error
