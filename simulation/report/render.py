"""Renders the pages: it turns values into one HTML file, written whole or not at all."""

from __future__ import annotations

import functools
import html
import os
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.reading import visible
from fencepost.simulation.analyses.catalogue import has_mutant
from fencepost.simulation.report.model import (
    ReportInput,
    Table,
    TracedRun,
    as_json,
    detail_grids,
    duration,
    failure_grid,
    grid_of,
    label,
    natural,
    scenario_grid,
    violation_grid,
    whole,
)
from fencepost.simulation.report.page import (
    CAMPAIGN_SCRIPTS,
    LIVE_SCRIPTS,
    POLICY,
    compact,
    embedded_runs,
    inert,
    packed,
    part,
    script,
    style,
    version,
    write_page,
)
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from fencepost.simulation.run import RunResult


def check_writable(path: Path) -> Path:
    """Return `path` after checking that a report can be written there.

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
    result: RunResult,
    rows: Sequence[Row],
    path: str | Path,
    *,
    command: str = "",
    facts: Sequence[tuple[str, str]],
) -> None:
    """Write the page of one run: its timeline, violations and rebalances. Needs no library of the extras.

    `facts` are shown at the top; `run_facts` returns those of a simulated run.

    :raises FencepostError: if the file cannot be written.
    """
    run = TracedRun(
        run_id=f"{result.scenario}-{result.seed}",
        title=f"{kind_of_run(rows)} of {result.scenario}, seed {result.seed}",
        command=command,
        facts=tuple(facts),
        rows=rows,
    )
    count = len(result.violations)
    fine = count == 0 and result.converged
    verdict = "No invariant was violated" if count == 0 else f"{count:,} violation{'s' if count > 1 else ''}"
    if not result.converged:
        verdict += ", but the group did not settle" if count == 0 else "; the group did not settle"
    render_timelines([run], path, title=run.title, verdict=verdict, fine=fine)


def render_timelines(
    runs: Sequence[TracedRun],
    path: str | Path,
    *,
    title: str,
    verdict: str,
    fine: bool,
    subtitle: str = "",
    whole: str = "",
) -> None:
    """Write the page of some traces, see `timelines_document`.

    :raises FencepostError: if the file cannot be written.
    """
    page = timelines_document(runs, title=title, verdict=verdict, fine=fine, subtitle=subtitle, whole=whole)
    write_page(check_writable(Path(path)), page)


def timelines_document(
    runs: Sequence[TracedRun], *, title: str, verdict: str, fine: bool, subtitle: str = "", whole: str = ""
) -> str:
    """Return the page of some traces, with a verdict, which is `fine` or not. Needs no library of the extras.

    `whole` is a long text for the verdict, such as a traceback: the page folds it.
    """
    page = string.Template(part("single.html")).substitute(
        policy=POLICY,
        title=html.escape(title),
        subtitle=f'<p class="quiet">{html.escape(subtitle)}</p>' if subtitle else "",
        whole=_folded(whole),
        style=style("timeline.css"),
        verdict=html.escape(verdict),
        verdict_class="ok" if fine else "bad",
        run_section=part("run.html"),
        version=html.escape(version()),
        runs=embedded_runs(runs),
        script=script(),
    )
    return visible(page)


@functools.cache
def live_document(*, has_token: bool) -> str:
    """Return the page of a server that runs; it asks for the token if the server has one."""
    return string.Template(part("live.html")).substitute(
        token=' data-token="needed"' if has_token else "",
        style=style("timeline.css", "live.css"),
        run_section=part("run.html"),
        version=html.escape(version()),
        script=script(*LIVE_SCRIPTS),
    )


def _folded(text: str) -> str:
    """Return HTML that folds a text with its own line breaks."""
    if not text:
        return ""
    return (
        "<details><summary>The whole exception</summary>"
        f'<pre class="whole" tabindex="0">{html.escape(text)}</pre></details>'
    )


def kind_of_run(rows: Sequence[Row]) -> str:
    """Return the kind of run that made these rows, for titles."""
    return KIND_OF_RUN.get(Row._make(rows[0]).world, "Run") if rows else "Run"


KIND_OF_RUN = {"simulated": "Simulated run", "real": "Run on real brokers", "embedded": "Embedded Kafka"}
"""The kind of run, by the world of its rows."""


def render_campaign_report(data: ReportInput, path: str | Path) -> None:
    """Write the page of a campaign, or of analysed traces.

    :raises FencepostError: if the file cannot be written.
    :raises EnvironmentLacks: if jinja2 or plotly is missing.
    """
    data = msgspec.structs.replace(data, tables=_in_order(data.tables))
    try:
        import jinja2
        from plotly.offline import get_plotlyjs

        from fencepost.simulation.report.figures import charts_of

        charts = charts_of(data)
    except ImportError as error:
        raise EnvironmentLacks(
            f"the report needs {error.name}, which is missing: pip install 'fencepost[spark]'"
        ) from error
    grid = grid_of(data.tables)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    markup = environment.filters["safe"]
    page = environment.from_string(part("report.html.j2")).render(
        policy=markup(POLICY),
        title=data.title,
        subtitle=_subtitle(data),
        verdict=_verdict(data),
        cards=_cards(data),
        answers=data.answer,
        scenarios=scenario_grid(data),
        sampled=_sampled(data),
        urgent=[made for made in (violation_grid(data), failure_grid(data)) if made.rows],
        heatmap=markup(inert(compact(as_json(grid)))) if len(grid.axes) > 1 else "",
        charts=[
            {
                "title": chart.title,
                "note": chart.note,
                "height": chart.height,
                "wide": chart.wide,
                "json": markup(inert(chart.json)),
            }
            for chart in charts
        ],
        runs=markup(embedded_runs(data.runs)),
        run_section=markup(part("run.html")),
        all_runs=packed(compact({"columns": _columns(data.all_runs)})) if data.all_runs else "",
        not_listed=_not_listed(data),
        tables=detail_grids(data),
        style=markup(style("timeline.css", "campaign.css")),
        script=markup(script(*CAMPAIGN_SCRIPTS)),
        plotly=packed(get_plotlyjs()) if charts else "",
        version=version(),
    )
    write_page(check_writable(Path(path)), page)


def run_facts(result: RunResult) -> tuple[tuple[str, str], ...]:
    """Return the facts at the top of a simulated run's page."""
    return (
        ("scenario", result.scenario),
        ("seed", str(result.seed)),
        ("members", f"{result.members:,}"),
        ("partitions", f"{result.partitions:,}"),
        ("virtual time", duration(result.virtual_seconds)),
        ("computed in", duration(result.wall_seconds)),
        ("events", f"{result.events:,}"),
        ("heartbeats", f"{result.heartbeats:,}"),
        ("rebalances", f"{result.rebalances:,}"),
        ("settled", "yes" if result.converged else "no"),
        ("digest", result.digest[:12]),
    )


def _subtitle(data: ReportInput) -> str:
    took = "" if data.wall_seconds is None else f", computed in {duration(data.wall_seconds)}"
    return f"From {data.source}{took}"


def _verdict(data: ReportInput) -> dict[str, object]:
    rows = data.tables["runs"]
    sound = [row for row in rows if not has_mutant(row)]
    judged = [row for row in sound if row["violations"] is not None]
    runs, violations = (sum(row[name] for row in judged) for name in ("runs", "violations"))
    failed = sum(row["failed"] for row in sound)
    words = [f"{_counted(violations, 'violation')} in {_counted(runs, 'run')}"] if judged else []
    if unjudged := sum(row["runs"] for row in sound if row["violations"] is None):
        words.append(f"{_counted(unjudged, 'run')} from a log, which cannot be judged")
    if failed:
        words.append(f"{failed:,} failed")
    if unconverged := sum(row.get("unconverged") or 0 for row in sound):
        words.append(f"{unconverged:,} did not settle")
    if len(sound) < len(rows):
        found = data.tables["mutants"]
        killed = {row["mutant"] for row in found if row["killed"]}
        words.append(f"{len(killed):,} of {len({row['mutant'] for row in found}):,} mutants killed")
    fine = bool(judged) and not (failed or violations or unconverged)
    return {"text": ", ".join(words), "fine": fine, "about": _ABOUT if judged else ""}


_ABOUT = (
    "Each run played a scenario in virtual time: a group lived through crashes, lost messages and deploys"
    " that its seed drew, and judges inspected it after every event. Green means that every run ended, no"
    " judge found a broken rule, and every group settled at the end."
)


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _cards(data: ReportInput) -> list[dict[str, str]]:
    """Return the figures at the top, except those that no run has, such as rebalances of consumer groups."""
    rows = data.tables["runs"]
    moved = data.tables["rebalances"]
    down = [row for row in data.tables["downtime"] if row["cause"] == "all"]
    cards = [("runs", whole(sum(row["runs"] for row in rows)))]
    if count := sum(row["count"] for row in moved):
        cards += [
            ("rebalances analysed", whole(count)),
            ("median rebalance of the slowest scenario", duration(_worst(moved, "median"))),
            ("99 % of rebalances are shorter, in the slowest scenario", duration(_worst(moved, "p99"))),
        ]
    if down:
        cards.append(("median partition downtime of the worst scenario", duration(_worst(down, "median"))))
    if data.tables["two_owners"]:
        twice = sum(row["seconds"] for row in data.tables["two_owners"] if row["sac_window"] is None)
        cards.append(("time in which a partition had two owners without a known reason", duration(twice)))
    return [{"title": title, "value": value} for title, value in cards]


def _worst(rows: Table, column: str) -> float | None:
    """Return the largest value; None if a row has none although it counts something: it may be larger."""
    values = [row[column] for row in rows if row["count"]]
    return None if None in values else max(values, default=None)


def _sampled(data: ReportInput) -> str:
    runs = sum(row["runs"] for row in data.tables["runs"])
    if data.traced_runs == runs:
        return ""
    return f"Durations are those of the {data.traced_runs:,} of {runs:,} runs whose traces were kept."


def _in_order(found: Mapping[str, Table]) -> dict[str, Table]:
    """Return tables with their cells in natural order; tables of single runs keep their order."""
    return {
        name: rows if rows and "run_id" in rows[0] else sorted(rows, key=lambda row: natural(label(row)))
        for name, rows in found.items()
    }


def _columns(rows: Table) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _not_listed(data: ReportInput) -> str:
    more = sum(row["runs"] for row in data.tables["runs"]) - len(data.all_runs)
    return f"{more:,} more runs are not listed: those above failed, or came first." if more > 0 else ""
