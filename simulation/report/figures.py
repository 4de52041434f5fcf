"""The charts of a campaign's page, as plotly figures in JSON. Colours are names in the page's palette."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fencepost.simulation.report.model import (
    SCENARIO,
    Curve,
    ReportInput,
    Table,
    grid_of,
    label,
    natural,
    parameters_text,
)
from fencepost.simulation.report.palette import SERIES, about, pattern

SHORTEST_S = 0.001
"""The shortest duration on a logarithmic axis, in seconds; shorter ones are drawn as this."""

CURVES_MAX = 6
"""The limit on curves in a chart; more distributions are drawn as one line each."""

_TICKS_MAX = 9
"""The limit on ticks: more would touch each other on a narrow page."""

_DASHES = ("solid", "dash", "dot", "dashdot")
_QUANTILES = (
    ("median", "median", "circle", 11),
    ("p90", "90 %", "diamond", 9),
    ("p99", "99 %", "triangle-right", 10),
    ("max", "longest", "line-ns-open", 11),
)
_SHAPES = {"plain": "", "rising": "/", "falling": "\\", "dots": ".", "upright": "|", "crossed": "x"}
_LONG = 34
"""The limit on characters of a name in a narrow chart; longer ones leave too little room."""
_KEYS_IN_LINE = 3
"""Number of keys of a legend that fit on one line of a narrow chart."""
_ROW = 30
"""Height in pixels of a line, in charts with a line for each scenario."""


class Chart(msgspec.Struct, frozen=True):
    """One chart with its texts. `height` is in pixels, 0 for the usual one; a wide chart takes a whole
    row."""

    title: str
    note: str
    json: str
    height: int = 0
    wide: bool = False


def charts_of(data: ReportInput) -> list[Chart]:
    """Return all charts that have anything to draw."""
    charts: list[Chart | None] = [
        *_across(data),
        _durations(
            "How long rebalances took",
            "The share of rebalances that ended within this many seconds: further left is better.",
            data.rebalance_curves,
            data.tables.get("rebalances", ()),
        ),
        _durations(
            "How long partitions were down",
            "The share of handovers in which the partition had a new owner within this many seconds.",
            data.downtime_curves,
            [row for row in data.tables.get("downtime", ()) if row["cause"] == "all"],
        ),
        *(_quantiles(title, note, data.tables.get(name, ())) for name, title, note in _MORE),
        _residency(data),
    ]
    return [chart for chart in charts if chart is not None]


_MORE = (
    (
        "escalations",
        "How long an application took to shut down",
        "From the exception whose handler chose the shutdown until a client that it shuts down was in ERROR.",
    ),
    (
        "sac_gaps",
        "How long a stream had no active consumer",
        "From the moment when a consumer stepped down, or was lost, until the next one was active.",
    ),
)


_RANGE = "From the median to the longest, with the number of values."


def _durations(title: str, note: str, curves: Sequence[Curve], rows: Table) -> Chart | None:
    if len(curves) > CURVES_MAX:
        return _quantiles(title, f"{_RANGE} Further left is better.", rows)
    return duration_chart(title, note, curves) if curves else None


def duration_chart(title: str, note: str, curves: Sequence[Curve]) -> Chart:
    """Return a chart that shows, for each distribution, the share of values up to each duration."""
    import plotly.graph_objects as go

    figure = go.Figure()
    shares = [point / 100 for point in range(101)]
    same = len({curve.label.partition(", ")[0] for curve in curves}) == 1
    for number, curve in enumerate(sorted(curves, key=lambda curve: natural(curve.label))):
        figure.add_trace(
            go.Scatter(
                x=[max(value, SHORTEST_S) for value in curve.seconds],
                y=shares if len(curve.seconds) == len(shares) else None,
                name=_shown((same and _short(curve.label.partition(", ")[2])) or curve.label),
                mode="lines",
                line={"dash": _DASHES[number % len(_DASHES)], "width": 2.25, "shape": "hv"},
                meta={"colour": f"series-{number % len(SERIES)}"},
                hovertemplate="%{y:.0%} within %{x:.3g} s<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_layout(
        xaxis=_logarithmic([max(value, SHORTEST_S) for curve in curves for value in curve.seconds]),
        yaxis={"title": _title("share of all"), "tickformat": ".0%", "range": [0, 1.02]},
        **_layout(),
    )
    return _chart(title, note, figure)


def _quantiles(title: str, note: str, rows: Table) -> Chart | None:
    """A range for each scenario and its parameters, from its median to its longest, in seconds.

    Nothing joins the ranges: they are of different things.
    """
    shown = [row for row in rows if row.get("median") is not None]
    if not shown:
        return None
    import plotly.graph_objects as go

    named = _named(shown)
    names = [f"{name} ({row['count']:,})" if row.get("count") else name for name, row in named.items()]
    shown = list(named.values())
    figure = go.Figure()
    ends = [(max(row["median"], SHORTEST_S), max(row["max"], SHORTEST_S)) for row in shown]
    figure.add_trace(
        go.Scatter(
            x=[value for low, high in ends for value in (low, high, None)],
            y=[value for name in names for value in (name, name, None)],
            mode="lines",
            line={"width": 3},
            meta={"colour": "beat"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    for number, (column, words, symbol, size) in enumerate(_QUANTILES):
        figure.add_trace(
            go.Scatter(
                x=[max(row[column], SHORTEST_S) for row in shown],
                y=names,
                name=words,
                mode="markers",
                marker={"symbol": symbol, "size": size, "line": {"width": 2 if column == "max" else 0}},
                meta={"colour": f"series-{number}"},
                hovertemplate=f"%{{x:.3g}} s<extra>{words}</extra>",
            )
        )
    figure.update_layout(
        xaxis=_logarithmic([value for ends_of_one in ends for value in ends_of_one]),
        yaxis=_names_axis(names),
        **_layout(),
    )
    return _chart(title, note, figure, names, _QUANTILES)


def _across(data: ReportInput) -> list[Chart | None]:
    """Return charts of rebalances and downtime by the parameter, each as a range, if there is exactly one
    parameter."""
    grid = grid_of(data.tables)
    if len(grid.axes) != 1 or SCENARIO in grid.axes:
        return []
    axis = next(iter(grid.axes))
    downtime = [row for row in data.tables.get("downtime", ()) if row["cause"] == "all"]
    return [
        _quantiles(f"How long rebalances took, by {axis}", _RANGE, data.tables.get("rebalances", ())),
        _quantiles(f"How long partitions were down, by {axis}", _RANGE, downtime),
    ]


def _residency(data: ReportInput) -> Chart | None:
    rows = data.tables.get("residency", ())
    names = {label(row): name for name, row in _named(rows).items()}
    unsettled = [dict(row, label=names[label(row)]) for row in rows if row["state"] not in _CALM]
    if not unsettled:
        return None
    unsettled.sort(key=lambda row: natural(row["label"]))
    return residency_chart(
        "Where members were when they were not stable",
        "The share of all members' time in each state except stable ones: shorter is better.",
        unsettled,
    )


_CALM = frozenset({"STABLE", "RUNNING", "ACTIVE", "WAITING"})


def residency_chart(title: str, note: str, rows: Table) -> Chart:
    """Return a chart with one bar for each label: the share of time that members were in these states."""
    import plotly.graph_objects as go

    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = go.Figure()
    states = _ordered_states(rows)
    for state in states:
        shares = {row["label"]: row["share"] for row in rows if row["state"] == state}
        figure.add_trace(
            go.Bar(
                y=labels,
                x=[shares.get(label, 0) for label in labels],
                name=_plain(state),
                orientation="h",
                marker={"pattern": _pattern(state)},
                meta={"colour": f"state-{about(state)}"},
                hovertemplate="%{x:.2%} " + _plain(state) + "<extra>%{y}</extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        xaxis={"tickformat": ".2~%", "rangemode": "tozero", "title": _title("share of time")},
        yaxis=_names_axis(labels),
        **_layout(),
    )
    return _chart(title, note, figure, labels, states)


def _pattern(state: str) -> dict[str, Any]:
    shape = _SHAPES[pattern(state)]
    return {"shape": shape, "size": 7, "solidity": 0.2, "fillmode": "overlay", "fgopacity": 0.35}


def _named(rows: Table) -> dict[str, Mapping[str, Any]]:
    """Return rows by name, in order; names leave out the scenario if it is the same in all rows."""
    same = len({row["scenario"] for row in rows}) == 1
    named = {}
    for row in rows:
        name = (same and _short(parameters_text(row["parameters"]))) or label(row)
        named[_shown(", ".join([name, *(row[more] for more in _MORE_OF_A_NAME if row.get(more))]))] = row
    return {name: named[name] for name in sorted(named, key=natural)}


def _short(parameters: str) -> str:
    """Return the parameters without the sections in most keys."""
    return re.sub(r"\b(?:config\.)?group\.", "", parameters)


def _plain(state: str) -> str:
    """Return a state such as `PREPARE_LEAVING` as `prepare leaving`."""
    return _shown(state.replace("_", " ").lower())


def _shown(text: str) -> str:
    """Return text for a chart. Plotly reads markup: in a stranger's name, `<a href>` would be a link."""
    return html.escape(text, quote=False)


_MORE_OF_A_NAME = ("answer", "as_seen_by")
"""Columns that distinguish rows of one cell in some tables."""


def _ordered_states(rows: Table) -> list[str]:
    """Return the states by their time over all scenarios, the longest first."""
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row["state"]] = seconds.get(row["state"], 0.0) + row["seconds"]
    return sorted(seconds, key=lambda state: -seconds[state])


def _logarithmic(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis of durations. Each tick has its value and its unit."""
    low, high = min(values) / 1.3, max(values) * 1.3
    ticks = [tick for tick in _DURATIONS if low <= tick <= high]
    if len(ticks) > _TICKS_MAX:
        ticks = [tick for tick in ticks if tick in _ROUND]
    if len(ticks) < 2:
        ticks = [low * 1.3, high / 1.3]
    return {
        "type": "log",
        "title": _title("duration, logarithmic"),
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [_tick(tick) for tick in ticks],
        "tickangle": 0,
    }


_ROUND = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0)
_DURATIONS = tuple(
    sorted(
        {n * unit for unit in (0.001, 0.01, 0.1, 1.0) for n in (1, 2, 5)}
        | {10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 7200.0, 18_000.0, 36_000.0}
    )
)
"""Familiar durations, for ticks."""


def _tick(seconds: float) -> str:
    """Format a tick: `20 ms`, `5 s`, `2 min`."""
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"


def _names_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis that shows all names, each horizontally."""
    return {
        "autorange": "reversed",
        "type": "category",
        "tickmode": "array",
        "tickvals": list(names),
        "ticktext": list(names),
        "tickangle": 0,
    }


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12.5}}


def _layout() -> dict[str, Any]:
    return {
        "template": None,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44},
        "legend": {
            "orientation": "h",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0,
            "font": {"size": 12.5},
        },
        "showlegend": True,
    }


def _chart(
    title: str, note: str, figure: Any, lines: Sequence[str] = (), keys: Sequence[object] = ()
) -> Chart:
    """Return a chart. With a line for each name, its height depends on their number, and it is wide if they
    are long."""
    height = 104 + 22 * math.ceil(len(keys) / _KEYS_IN_LINE) + _ROW * len(lines) if lines else 0
    wide = max(map(len, lines), default=0) > _LONG
    return Chart(title, note, figure.to_json(validate=False), height, wide)
