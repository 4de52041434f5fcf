"""Runs the campaigns of this folder, and writes their tables into its pages.

    python docs/results/renew.py [NAME …]

NAME is that of a campaign's file here, such as `assignors`; without, all of them. Runs and traces go to
out/results, where what is finished is not run again.

A page says where a table belongs: `<!-- table: CAMPAIGN TABLE COLUMN … -->`, up to `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.analyses.declaration import Column, Unit
from fencepost.simulation.pipeline.campaign import carry_out
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.spec import CampaignSpec, is_campaign_file, read_campaign

HERE: Final = Path(__file__).parent
OUT: Final = HERE.parents[1] / "out" / "results"
MASTER: Final = "local[2]"

_MARK: Final = re.compile(r"<!-- table: (\S+) (\S+) (.*?) -->\n.*?<!-- end -->", re.DOTALL)
_FORMATS: Final = {
    Unit.COUNT: "{:,.0f}",
    Unit.NUMBER: "{:,.1f}",
    Unit.SECONDS: "{:,.1f} s",
    Unit.BYTES: "{:,.0f} B",
    Unit.RATIO: "{:.2f}",
    Unit.SHARE: "{:.1%}",
}

Rows = list[dict[str, Any]]


def main(names: Sequence[str]) -> None:
    """Renew the pages on which these campaigns have tables."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.md"))}
    for file in sorted(path for path in HERE.glob("*.toml") if is_campaign_file(str(path))):
        if not names or file.stem in names:
            tables = tables_of(file, wanted(file.stem, pages.values()))
            for path, text in pages.items():
                pages[path] = renewed(text, file.stem, tables)
                if pages[path] != text:
                    path.write_text(pages[path], encoding="utf-8")


def wanted(campaign: str, pages: Iterable[str]) -> set[str]:
    """The tables of a campaign that the pages show."""
    return {mark[2] for text in pages for mark in _MARK.finditer(text) if mark[1] == campaign}


def tables_of(file: Path, names: set[str]) -> dict[str, Rows]:
    """Run what is missing of a campaign, and analyse all of it."""
    spec = read_campaign(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    out, progress = OUT / file.stem, progress_for(lines=True)
    result = carry_out(spec, master=MASTER, out_dir=out, resume=True, progress=progress)
    return {name: ordered(result.tables[name], spec) for name in names}


def ordered(rows: Rows, spec: CampaignSpec) -> Rows:
    """Rows in the order of the campaign's cells."""
    places = {
        (cell.name, json.dumps(cell.parameters, sort_keys=True)): place
        for place, cell in enumerate(spec.cells)
    }
    return sorted(rows, key=lambda row: places[row["scenario"], row["parameters"]])


def renewed(text: str, campaign: str, tables: dict[str, Rows]) -> str:
    """The page with the tables of this campaign in their places."""

    def table(mark: re.Match[str]) -> str:
        if mark[1] != campaign:
            return mark[0]
        columns = {column.name: column for column in ANALYSES[mark[2]].columns}
        lines = markdown(tables[mark[2]], [columns[name] for name in mark[3].split()])
        return "\n".join([f"<!-- table: {mark[1]} {mark[2]} {mark[3]} -->", "", *lines, "", "<!-- end -->"])

    return _MARK.sub(table, text)


def markdown(rows: Rows, columns: Sequence[Column]) -> list[str]:
    """A table: what tells the cells apart, then the columns. Without a column of causes, all of them."""
    if rows and "cause" in rows[0] and "cause" not in {column.name for column in columns}:
        rows = [row for row in rows if row["cause"] == "all"]
    parameters = [json.loads(row["parameters"]) for row in rows]
    names = list(dict.fromkeys(name for each in parameters for name in each))
    scenarios = len({row["scenario"] for row in rows}) > 1
    heads = [*(["scenario"] if scenarios else []), *(name.rpartition("config.")[2] for name in names)]
    numbers = [column.unit in _FORMATS for column in columns]
    lines = [
        f"| {' | '.join([*heads, *(column.heading for column in columns)])} |",
        f"|{'---|' * len(heads)}{''.join('--:|' if number else '---|' for number in numbers)}",
    ]
    for row, own in zip(rows, parameters, strict=True):
        cells = [*([row["scenario"]] if scenarios else []), *(own.get(name, "") for name in names)]
        lines.append(f"| {' | '.join([*cells, *(shown(row[each.name], each) for each in columns)])} |")
    return lines


def shown(value: Any, column: Column) -> str:
    """A value as people read it."""
    if value is None:
        return "\N{EN DASH}"
    return _FORMATS[column.unit].format(value) if column.unit in _FORMATS else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
