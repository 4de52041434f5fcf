"""What the docs say of machines, scenario keys and traces is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # what it imports lies beside it
        specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_fresh(page: str, generator: ModuleType) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert generator.renewed(text) == text, "run: make docs"


def test_every_part_is_in_some_page(generator: ModuleType) -> None:
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    assert sorted(match[2] for match in generator.PART.finditer(text)) == sorted(generator.PARTS)
