"""The product's sources, each read and parsed once."""

from __future__ import annotations

import ast
import functools
import gc
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
    gc.disable()
    try:
        return ast.parse(file.read_text())
    finally:
        gc.freeze()  # or else garbage collections look through all trees again and again
        gc.enable()


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(file)))
