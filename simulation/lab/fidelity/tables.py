"""The tables of a comparison for people: both distributions, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fencepost.simulation.report.model import NONE, TableCell, TableGrid, TableHeading, duration

if TYPE_CHECKING:
    from fencepost.simulation.lab.fidelity.compare import Distribution, FidelityComparison
    from fencepost.simulation.lab.fidelity.verdicts import Judged

DISTRIBUTION_HEADINGS: Final = ("", "world", "a run", "median", "90 %", "99 %", "longest")
VERDICT_HEADINGS: Final = ("", "", "simulated over real", "95 % interval", "tolerance", "verdict")
NAMES: Final = 2
"""The columns in front that hold names, not numbers."""

_STYLES: Final = {"within": "", "differs": "bad"}


def distribution_rows(result: FidelityComparison) -> list[list[str]]:
    """Return two rows for each figure: its distribution in simulated runs and in real ones."""
    pairs = {
        "rebalances": (result.simulated.rebalances, result.real.rebalances),
        "partition downtime": (result.simulated.downtime, result.real.downtime),
        "heartbeat round trip": (result.simulated.heartbeat, result.real.heartbeat),
    }
    return [
        [name if world == "simulated" else "", world, *_cells(side, per=runs)]
        for name, sides in pairs.items()
        for world, side, runs in zip(
            ("simulated", "real"), sides, (result.simulated.runs, result.real.runs), strict=True
        )
    ]


def verdict_row(each: Judged) -> list[str]:
    """Return the row of one figure: its ratio with interval, the tolerance and the verdict."""
    interval = NONE
    if each.ratio_low is not None and each.ratio_high is not None:
        interval = f"{each.ratio_low:.2f} to {each.ratio_high:.2f}"
    return [
        each.figure,
        "90 %" if each.quantile == "p90" else each.quantile,
        NONE if each.ratio is None else f"{each.ratio:.2f}",
        interval,
        f"{each.tolerance:.0%}",
        str(each.verdict),
    ]


def comparison_grids(result: FidelityComparison) -> tuple[TableGrid, TableGrid]:
    """Return both tables as a report shows them."""
    verdicts = [verdict_row(each) for each in result.judged]
    styles = [_STYLES.get(row[-1], "quiet") for row in verdicts]
    place = "one broker" if result.nodes == 1 else f"{result.nodes} brokers"
    return (
        TableGrid(
            "Simulated against real",
            "Each figure of the simulated runs divided by that of the real runs. It differs if the whole"
            " interval is outside the tolerance.",
            _headings(VERDICT_HEADINGS),
            [
                [*_line(row[:-1]), TableCell(row[-1], style)]
                for row, style in zip(verdicts, styles, strict=True)
            ],
        ),
        TableGrid(
            "Both distributions",
            f"{result.real.runs} real runs on {place} ({result.cluster}), and {result.simulated.runs}"
            " simulated runs of the same plans.",
            _headings(DISTRIBUTION_HEADINGS),
            [_line(row) for row in distribution_rows(result)],
        ),
    )


def _headings(titles: Sequence[str]) -> list[TableHeading]:
    last = len(titles) - (titles[-1] == "verdict")
    return [TableHeading(each, number=NAMES <= place < last) for place, each in enumerate(titles)]


def _line(row: Sequence[str]) -> list[TableCell]:
    return [TableCell(cell, "number" if place >= NAMES else "") for place, cell in enumerate(row)]


def _cells(side: Distribution, *, per: int) -> list[str]:
    return [f"{side.count / per:,.1f}", *map(duration, (side.median, side.p90, side.p99, side.max))]
