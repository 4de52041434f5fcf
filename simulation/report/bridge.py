"""The page that shows two protocols side by side. It needs no library of the extras, and no network."""

from __future__ import annotations

import html
import string
from collections.abc import Sequence
from pathlib import Path

from fencepost.simulation.report.page import POLICY, part, style, version, write_page
from fencepost.simulation.report.render import check_writable


def render_bridge(
    title: str, facts: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], path: str | Path
) -> None:
    """Write the page; the first of the rows is the head of the table.

    :raises FencepostError: if the file cannot be written.
    """
    head, *body = rows
    page = string.Template(part("bridge.html")).substitute(
        policy=POLICY,
        title=html.escape(title),
        style=style(),
        facts="".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in facts),
        head=_cells("th", head),
        rows="\n".join(f"<tr>{_cells('td', row)}</tr>" for row in body),
        version=html.escape(version()),
    )
    write_page(check_writable(Path(path)), page)


def _cells(kind: str, cells: Sequence[str]) -> str:
    return "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells)
