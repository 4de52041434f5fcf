"""How docstrings begin: with a verb or with a noun phrase, and never with a bare relative clause."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import ROOT, files, tree

RELATIVE = re.compile(r"\s*(Who|What|Whether|Where|How|Whose|Which|When)\b")


def docstrings(node: ast.AST, outer: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield the name, line and text of each docstring of the node and of everything defined in it."""
    before: ast.stmt | None = None
    for statement in getattr(node, "body", []):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            if isinstance(text, str) and before is None:
                yield outer, statement.lineno, text
            elif isinstance(text, str) and isinstance(before, ast.Assign | ast.AnnAssign):
                target = before.targets[0] if isinstance(before, ast.Assign) else before.target
                yield f"{outer}.{ast.unparse(target)}", statement.lineno, text
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstrings(statement, f"{outer}.{statement.name}")
        elif isinstance(statement, ast.stmt):
            yield from docstrings(statement, outer)
        before = statement


def relative_clauses(source: ast.Module) -> list[tuple[str, int]]:
    """Return the name and line of each docstring in a module that opens with a relative clause."""
    return [(name, line) for name, line, text in docstrings(source) if RELATIVE.match(text)]


def test_no_docstring_opens_with_a_relative_clause() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in files()
        for name, line in relative_clauses(tree(file))
    ]
    assert found == [], "\n".join(found)


def test_every_kind_of_docstring_is_looked_at() -> None:
    source = '''"""What a module holds."""
LIMIT = 1
"""How many there are at most."""
class Member:
    """Who is in a group."""
    epoch: int
    """Which epoch it has."""
    _held: int
    """The partitions that it holds."""
    def __init__(self):
        self.offset = 0
        """Where it reads on."""
    def is_stable(self):
        """Whether it is stable."""
    def fence(self):
        """Fence the member."""
'''
    assert [name for name, _line in relative_clauses(ast.parse(source))] == [
        "",
        ".LIMIT",
        ".Member",
        ".Member.epoch",
        ".Member.__init__.self.offset",
        ".Member.is_stable",
    ]
