"""Makes the pages: values in, one HTML file out, written whole or not at all."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import string
import tempfile
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.report import tables
from fencepost.simulation.report.model import ReportInput, RunOutcome, Table, TracedRun
from fencepost.simulation.report.timeline import encode_run
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from fencepost.simulation.report.figures import Chart

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""What the page allows itself: nothing from anywhere. The browser enforces it."""

_SCRIPTS = ("run-data.js", "timeline.js", "interaction.js", "page.js")


def check_writable(path: Path) -> Path:
    """`path`, if a report can be written there.

    :raises FencepostError: if it cannot.
    """
    folder = path.parent
    if path.is_dir():
        raise FencepostError(f"{path}: is a directory, expected the name of a file for the report")
    if not folder.is_dir():
        raise FencepostError(f"{path}: the directory {folder} does not exist")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise FencepostError(f"{path}: cannot be written")
    return path


def render_run_report(
    result: RunOutcome, rows: Sequence[Row], path: str | Path, *, command: str = ""
) -> None:
    """Write the page of one run: its timeline, violations and rebalances. Needs no library of the extras.

    :raises FencepostError: if the file cannot be written.
    """
    run = TracedRun(
        run_id=f"{result.scenario}-{result.seed}",
        title=f"{result.scenario}, seed {result.seed}",
        command=command,
        facts=_run_facts(result),
        rows=rows,
    )
    count = len(result.violations)
    fine = count == 0 and result.converged
    verdict = "No invariant was violated" if count == 0 else f"{count:,} violation{'s' if count > 1 else ''}"
    if not result.converged:
        verdict += ", but the group did not settle" if count == 0 else "; the group did not settle"
    render_timeline(run, path, verdict=verdict, fine=fine)


def render_timeline(run: TracedRun, path: str | Path, *, verdict: str, fine: bool) -> None:
    """Write the page of one trace, with a verdict that is `fine` or is not. Needs no library of the extras.

    :raises FencepostError: if the file cannot be written.
    """
    page = string.Template(part("single.html")).substitute(
        policy=POLICY,
        title=html.escape(run.title),
        style=part("style.css"),
        verdict=html.escape(verdict),
        verdict_class="ok" if fine else "bad",
        run_section=part("run.html"),
        version=version(),
        data=_packed(_run_json(run)),
        script=_script(),
    )
    write_page(check_writable(Path(path)), page)


def render_campaign_report(data: ReportInput, path: str | Path) -> None:
    """Write the page of a campaign, or of analysed traces.

    :raises FencepostError: if the file cannot be written.
    :raises EnvironmentLacks: if jinja2 or plotly is missing.
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs

        charts = _charts(data)
    except ImportError as error:
        raise EnvironmentLacks(
            f"the report needs {error.name}, which is missing: pip install 'fencepost[spark]'"
        ) from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    markup = environment.filters["safe"]
    page = environment.from_string(part("report.html.j2")).render(
        policy=markup(POLICY),
        title=data.title,
        subtitle=_subtitle(data),
        verdict=_verdict(data),
        cards=_cards(data),
        scenarios=tables.scenario_grid(data),
        sampled=_sampled(data),
        urgent=[made for made in (tables.violation_grid(data), tables.failure_grid(data)) if made.rows],
        charts=[
            {"title": chart.title, "note": chart.note, "json": markup(_inert(chart.json))} for chart in charts
        ],
        runs=[
            {"id": f"run-{number}", "title": run.title, "why": run.why, "data": _packed(_run_json(run))}
            for number, run in enumerate(data.runs)
        ],
        run_section=markup(part("run.html")),
        tables=tables.detail_grids(data),
        style=markup(part("style.css")),
        script=markup(_script()),
        plotly=_packed(get_plotlyjs()) if charts else "",
        version=version(),
    )
    write_page(check_writable(Path(path)), page)


def _charts(data: ReportInput) -> list[Chart]:
    from fencepost.simulation.report.figures import duration_chart, residency_chart

    charts = []
    if data.rebalance_curves:
        charts.append(
            duration_chart(
                "How long rebalances took",
                "The share of rebalances that were over within so many seconds: further left is better.",
                data.rebalance_curves,
            )
        )
    if data.downtime_curves:
        charts.append(
            duration_chart(
                "How long partitions were down",
                "The share of handovers in which the partition had a new owner within so many seconds.",
                data.downtime_curves,
            )
        )
    labelled = [dict(row, label=tables.label(row)) for row in data.tables["residency"]]
    if unsettled := [row for row in labelled if row["state"] != "STABLE"]:
        charts.append(
            residency_chart(
                "Where members were when they were not stable",
                "The share of all members' time in each state but STABLE: shorter is better.",
                unsettled,
            )
        )
    return charts


def _run_facts(result: RunOutcome) -> tuple[tuple[str, str], ...]:
    return (
        ("scenario", result.scenario),
        ("seed", str(result.seed)),
        ("members", f"{result.members:,}"),
        ("partitions", f"{result.partitions:,}"),
        ("virtual time", tables.duration(result.virtual_seconds)),
        ("computed in", tables.duration(result.wall_seconds)),
        ("events", f"{result.events:,}"),
        ("heartbeats", f"{result.heartbeats:,}"),
        ("rebalances", f"{result.rebalances:,}"),
        ("settled", "yes" if result.converged else "no"),
        ("digest", result.digest[:12]),
    )


def _subtitle(data: ReportInput) -> str:
    took = "" if data.wall_seconds is None else f", computed in {tables.duration(data.wall_seconds)}"
    return f"From {data.source}{took}"


def _verdict(data: ReportInput) -> dict[str, object]:
    rows = data.tables["runs"]
    runs, failed, violations = (sum(row[name] for row in rows) for name in ("runs", "failed", "violations"))
    words = [
        f"{violations:,} violation{'' if violations == 1 else 's'} in {runs:,} run{'' if runs == 1 else 's'}"
    ]
    if failed:
        words.append(f"{failed:,} failed")
    if unconverged := sum(row.get("unconverged") or 0 for row in rows):
        words.append(f"{unconverged:,} did not settle")
    return {"text": ", ".join(words), "fine": not (failed or violations or unconverged)}


def _cards(data: ReportInput) -> list[dict[str, str]]:
    rows = data.tables["runs"]
    moved = data.tables["rebalances"]
    down = [row for row in data.tables["downtime"] if row["cause"] == "all"]
    return [
        {"title": "runs", "value": tables.whole(sum(row["runs"] for row in rows))},
        {"title": "rebalances analysed", "value": tables.whole(sum(row["count"] for row in moved))},
        {"title": "median rebalance, slowest scenario", "value": tables.duration(_worst(moved, "median"))},
        {
            "title": "99 % of rebalances within, slowest scenario",
            "value": tables.duration(_worst(moved, "p99")),
        },
        {
            "title": "median partition downtime, worst scenario",
            "value": tables.duration(_worst(down, "median")),
        },
        {
            "title": "time with two owners",
            "value": tables.duration(sum(row["seconds"] for row in data.tables["two_owners"])),
        },
    ]


def _worst(rows: Table, column: str) -> float | None:
    return max((row[column] for row in rows if row[column] is not None), default=None)


def _sampled(data: ReportInput) -> str:
    runs = sum(row["runs"] for row in data.tables["runs"])
    if data.traced_runs == runs:
        return ""
    return f"Durations are those of the {data.traced_runs:,} of {runs:,} runs whose traces were kept."


def _run_json(run: TracedRun) -> str:
    return json.dumps(encode_run(run), separators=(",", ":"), ensure_ascii=False)


def _packed(text: str) -> str:
    """Compressed, and safe inside a page: the page's script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")


def _inert(text: str) -> str:
    """JSON that cannot end the script element around it."""
    return text.replace("<", "\\u003c")


def _script() -> str:
    return "(() => {\n" + "\n".join(part(name) for name in _SCRIPTS) + "\n})();"


def part(name: str) -> str:
    """A file of the pages, as text."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def version() -> str:
    """Which fencepost makes the page."""
    try:
        return metadata.version("fencepost")
    except metadata.PackageNotFoundError:
        return "from its sources"


def write_page(path: Path, page: str) -> None:
    """Write a page, whole or not at all.

    :raises FencepostError: if it cannot be written.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(page)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise FencepostError(f"{path}: cannot be written: {error.strerror or error}") from error
