"""Links between pages, and to files of the repository, lead somewhere; `make site` checks the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def dead(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[a](page.md#a-page) [b](page.md#b) [c](other.md) [d](https://example.org)\n")
    assert dead(page) == ["page.md#b", "other.md"]


@pytest.mark.parametrize("folder", ["cli", "failures"])
def test_what_an_installed_user_reads_names_no_page_of_the_repository(folder: str) -> None:
    assert list((ROOT / "simulation" / folder).rglob("*.py"))
    files = (ROOT / "simulation" / folder).rglob("*.py")
    assert [file.name for file in files if "docs/" in file.read_text(encoding="utf-8")] == []
