"""Compares scenarios on real brokers with their simulation, and keeps the verdicts in fidelity.json.

    python docs/results/fidelity.py [NAME …]

NAME is one of `COMPARISONS`; without, all of them: each takes some minutes. `make docs` writes the table of
docs/fidelity.md from fidelity.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

KEPT: Final = Path(__file__).with_suffix(".json")
_FIGURES: Final = [
    (figure, quantile)
    for figure in ("rebalances", "downtime", "heartbeats")
    for quantile in ("median", "p90")
]
_SEEDS: Final = "2"


class Comparison(NamedTuple):
    """One row of the table, and the arguments of `fencepost compare` that measure it."""

    group: str
    profile: str
    nodes: int
    arguments: Sequence[str]
    duration: str = "90s"


_CLASSIC: Final = ("churn", "--set", "group.protocol=classic")
_STREAMS: Final = ("streams-single-threads",)
COMPARISONS: Final = {
    "consumer": Comparison("consumer, 6 members", "fast", 1, ("churn",)),
    "consumer-12": Comparison("consumer, 12 members", "fast", 1, ("churn", "--members", "12")),
    "consumer-stock": Comparison("consumer, 6 members", "stock", 1, ("churn",), "150s"),
    "consumer-nodes": Comparison("consumer, 6 members", "fast", 3, ("churn",)),
    "consumer-stock-nodes": Comparison("consumer, 6 members", "stock", 3, ("churn",), "150s"),
    "classic": Comparison("classic, 6 members", "fast", 1, _CLASSIC),
    "classic-stock": Comparison("classic, 6 members", "stock", 1, _CLASSIC, "150s"),
    "classic-nodes": Comparison("classic, 6 members", "fast", 3, _CLASSIC),
    "classic-stock-nodes": Comparison("classic, 6 members", "stock", 3, _CLASSIC, "150s"),
    "streams": Comparison("streams, 4 clients", "fast", 1, _STREAMS),
    "streams-stock": Comparison("streams, 4 clients", "stock", 1, _STREAMS, "240s"),
    "streams-nodes": Comparison("streams, 4 clients", "fast", 3, _STREAMS),
    "streams-stock-nodes": Comparison("streams, 4 clients", "stock", 3, _STREAMS, "240s"),
}


def main(names: Sequence[str]) -> None:
    """Measure these, one after the other, and keep each as soon as it is there."""
    for name in names or COMPARISONS:
        if name not in COMPARISONS:
            sys.exit(f"{name}: no comparison of this name: expected one of {', '.join(COMPARISONS)}")
        before = os.getloadavg()[0]
        result = measured(COMPARISONS[name])
        keep(name, result, f"{before:.0f} to {os.getloadavg()[0]:.0f}")


def measured(comparison: Comparison) -> Mapping[str, Any]:
    """Run the comparison, and return what it prints as JSON."""
    with TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fencepost", "compare", *comparison.arguments]
        command += ["--profile", comparison.profile, "--nodes", str(comparison.nodes)]
        command += ["--duration", comparison.duration, "--seeds", _SEEDS, "--fit", "--json", "--out", out]
        # It ends with 4 if a figure differs, and with 1 if an invariant was violated: both are results.
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    document: Mapping[str, Any] = json.loads(printed)
    return document


def keep(name: str, result: Mapping[str, Any], load: str) -> None:
    """Write a result next to those of other comparisons."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    judged = {(each["figure"], each["quantile"]): each for each in result["judged"]}
    figures = {
        " ".join(key): {
            "real": _rounded(judged[key]["real"], 4),
            "simulated": _rounded(judged[key]["simulated"], 4),
            "ratio": [_rounded(judged[key][at], 2) for at in ("ratio", "ratio_low", "ratio_high")],
            "verdict": judged[key]["verdict"],
        }
        for key in _FIGURES
    }
    kept[name] = {
        "load": load,
        "lost": result["records_lost"],
        "violations": result["real"]["violations"] + result["simulated"]["violations"],
        "figures": figures,
    }
    ordered = {each: kept[each] for each in COMPARISONS if each in kept}
    KEPT.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def table() -> Iterator[str]:
    """Yield the lines of the table: a row for each comparison that was measured."""
    named = [f"{figure}, {'90 %' if quantile == 'p90' else quantile}" for figure, quantile in _FIGURES]
    yield "| " + " | ".join(["group", "profile", "nodes", "load", *named]) + " |"
    yield "|---|---|--:|--:|" + "---|" * len(named)
    for name, row in json.loads(KEPT.read_text(encoding="utf-8")).items():
        group, profile, nodes, *_ = COMPARISONS[name]
        cells = [_cell(row["figures"][" ".join(key)]) for key in _FIGURES]
        yield "| " + " | ".join([group, profile, str(nodes), row["load"], *cells]) + " |"


def _cell(figure: Mapping[str, Any]) -> str:
    """Return the ratio, its interval and the verdict; nothing if there was nothing to compare."""
    ratio, low, high = figure["ratio"]
    if ratio is None:
        return ""
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{ratio:.2f}{interval} {figure['verdict']}"


if __name__ == "__main__":
    main(sys.argv[1:])
