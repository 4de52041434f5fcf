"""The campaigns of docs/results load, and its pages ask for tables that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.pipeline.spec import is_campaign_file, read_campaign
from fencepost.simulation.scenarios.load import load_any

RESULTS = Path(__file__).parents[2] / "docs/results"
FILES = sorted(RESULTS.glob("*.toml"))
PAGES = sorted(RESULTS.glob("*.md"))
MARK = re.compile(r"<!-- table: (\S+) (\S+) (.*?) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_of_results_load(file: Path) -> None:
    if is_campaign_file(str(file)):
        assert read_campaign(file).title
    else:
        assert load_any(file).summary


def test_every_campaign_has_its_tables_on_a_page() -> None:
    marks = [mark for page in PAGES for mark in MARK.findall(page.read_text())]
    assert {campaign for campaign, *_ in marks} == {
        file.stem for file in FILES if is_campaign_file(str(file))
    }
    for campaign, table, columns, rows in marks:
        assert set(columns.split()) <= {column.name for column in ANALYSES[table].columns}, (campaign, table)
        assert rows.count("\n|") >= 3, (campaign, table)


def test_every_page_is_in_the_list() -> None:
    listed = set(re.findall(r"\((\S+\.md)\)", (RESULTS / "README.md").read_text()))
    assert listed >= {page.name for page in PAGES} - {"README.md"}
