"""The trace of an embedded Kafka as pages: a timeline of each group."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from fencepost.simulation.report.model import TracedRun, duration
from fencepost.simulation.report.render import render_timelines, timelines_document
from fencepost.simulation.trace.schema import Row, RowKind

LONGEST_NAME = 150
SUBTITLE = "An embedded Kafka in a failed test"


def write_timelines(
    rows: Sequence[Row],
    folder: Path,
    name: str,
    verdict: str,
    names: Mapping[str, str],
    *,
    taken: MutableMapping[str, str],
    whole: str = "",
    subtitle: str = SUBTITLE,
) -> list[Path]:
    """Write a page for each group in the trace, or one page if it has no groups, and return their paths.

    Rows without a group are on all pages. `names` are the names of members by their ids. `taken` are the
    titles of existing pages by file, which are not overwritten. `whole` is the full text of the failure: the
    page folds it.

    :raises FencepostError: if they can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = list(dict.fromkeys(row.group for row in rows if row.group))
    written = []
    for group in groups or [""]:
        chosen = [row for row in rows if row.group in ("", group)]
        title = f"{name}, group {group}" if group else name
        path = folder / _file_name(name if len(groups) < 2 else f"{name}-{group}", title, taken)
        run = TracedRun(run_id=path.stem, title=title, facts=_facts(chosen, group), rows=chosen, names=names)
        render_timelines(
            [run], path, title=title, verdict=verdict, fine=False, subtitle=subtitle, whole=whole
        )
        written.append(path)
    return written


def timelines_page(rows: Sequence[Row], group_id: str | None, names: Mapping[str, str]) -> str:
    """Return a page with the timeline of one group, or of each group in the rows."""
    groups = list(dict.fromkeys(row.group for row in rows if row.group)) if group_id is None else [group_id]
    runs = []
    for group in groups or [""]:
        chosen = [row for row in rows if row.group in ("", group)]
        title = f"Group {group}" if group else "No group"
        runs.append(
            TracedRun(run_id=title, title=title, facts=_facts(chosen, group), rows=chosen, names=names)
        )
    count = sum(row.kind == RowKind.VIOLATION for row in rows)
    verdict = f"{count:,} violation{'' if count == 1 else 's'}" if count else "No invariant was violated"
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} groups"
    return timelines_document(
        runs, title=title, verdict=verdict, fine=not count, subtitle="An embedded Kafka"
    )


def _facts(rows: Sequence[Row], group: str) -> tuple[tuple[str, str], ...]:
    def count(kind: RowKind) -> str:
        return f"{sum(row.kind == kind for row in rows):,}"

    return (
        ("group", group or "none"),
        ("time", duration(rows[-1].t_us / 1e6 if rows else 0.0)),
        ("heartbeats", count(RowKind.HEARTBEAT)),
        ("group epochs", count(RowKind.GROUP_EPOCH)),
        ("violations", count(RowKind.VIOLATION)),
    )


def _file_name(text: str, title: str, taken: MutableMapping[str, str]) -> str:
    """Return a valid file name that no other page has: different texts may give the same name, as A and a
    do."""
    stem = re.sub(r"[^\w.-]+", "-", text).strip("-.")[-LONGEST_NAME:] or "trace"
    name, number = stem, 1
    while taken.setdefault(name.casefold(), title) != title:
        number += 1
        name = f"{stem}-{number}"
    return f"{name}.html"
