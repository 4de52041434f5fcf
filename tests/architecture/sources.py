"""The product's sources, each read and parsed once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("public", "coordinator", "member", "simulation")


def files(*packages: str) -> Iterator[Path]:
    """Yield the files of some packages, or of all."""
    for package in packages or PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(file)))
