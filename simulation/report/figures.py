"""The charts of a campaign's page, as plotly figures in JSON. Colours come from the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost.simulation.report.model import Curve, Table

SHORTEST_S = 0.001
"""Durations are drawn on a logarithmic axis; shorter ones are drawn as this."""

_COLOURS = (
    "#2459d6",
    "#d9480f",
    "#1a9c6b",
    "#8f4fd1",
    "#c2255c",
    "#0b8fac",
    "#a67c00",
    "#5c677d",
    "#e8590c",
    "#2f9e44",
)
_DASHES = ("solid", "dash", "dot", "dashdot")

_STATE_COLOURS = {
    "UNSUBSCRIBED": "idle",
    "JOINING": "joining",
    "RECONCILING": "moving",
    "ACKNOWLEDGING": "telling",
    "STABLE": "good",
    "FENCED": "bad",
    "STALE": "stale",
    "FATAL": "fatal",
    "PREPARE_LEAVING": "leaving",
    "LEAVING": "going",
}
"""Names of the page's colours, by member state."""


class Chart(msgspec.Struct, frozen=True):
    """One chart with its words."""

    title: str
    note: str
    json: str


def duration_chart(title: str, note: str, curves: Sequence[Curve]) -> Chart:
    """For each distribution the share of values that are at most so long."""
    import plotly.graph_objects as go

    figure = go.Figure()
    shares = [point / 100 for point in range(101)]
    for number, curve in enumerate(curves):
        figure.add_trace(
            go.Scatter(
                x=[max(value, SHORTEST_S) for value in curve.seconds],
                y=shares if len(curve.seconds) == len(shares) else None,
                name=curve.label,
                mode="lines",
                line={
                    "color": _COLOURS[number % len(_COLOURS)],
                    "dash": _DASHES[number // len(_COLOURS) % len(_DASHES)],
                    "width": 2,
                    "shape": "hv",
                },
                hovertemplate="%{y:.0%} within %{x:.3g} s<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_layout(
        xaxis={"type": "log", "title": _title("seconds"), "dtick": 1},
        yaxis={"title": _title("share"), "tickformat": ".0%", "range": [0, 1.02]},
        **_layout(),
    )
    return _chart(title, note, figure)


def residency_chart(title: str, note: str, rows: Table) -> Chart:
    """For each label the share of time that members were in these states, as one bar."""
    import plotly.graph_objects as go

    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = go.Figure()
    for state in _ordered_states(rows):
        shares = {row["label"]: row["share"] for row in rows if row["state"] == state}
        figure.add_trace(
            go.Bar(
                y=labels,
                x=[shares.get(label, 0) for label in labels],
                name=state,
                orientation="h",
                meta={"state": _STATE_COLOURS.get(state, "idle")},
                hovertemplate="%{x:.2%} " + state + "<extra>%{y}</extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        xaxis={"tickformat": ".2~%", "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
        **_layout(),
    )
    return _chart(title, note, figure)


def _ordered_states(rows: Table) -> list[str]:
    """States by their time over all scenarios, the longest first."""
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row["state"]] = seconds.get(row["state"], 0.0) + row["seconds"]
    return sorted(seconds, key=lambda state: -seconds[state])


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12}}


def _layout() -> dict[str, Any]:
    return {
        "template": None,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44},
        "legend": {"orientation": "h", "y": -0.22, "font": {"size": 11.5}},
        "showlegend": True,
    }


def _chart(title: str, note: str, figure: Any) -> Chart:
    return Chart(title, note, figure.to_json(validate=False))
