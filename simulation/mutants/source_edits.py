"""Bugs that are edits of a function's source, and the table that lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Final, NamedTuple

from fencepost.simulation.mutants.automatic import code_in_place, function_of, functions, source_of, with_code
from fencepost.simulation.mutants.mutant import CHURN, LOSSES, UNREPORTED, Mutant

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"CHURN": CHURN, "LOSSES": LOSSES}
"""Scenarios that a row may name together."""


class SourceEdit(NamedTuple):
    """Changes of the source of one function, while a mutant is applied."""

    module: str
    function: str
    changes: tuple[tuple[str, str], ...]
    """Texts, and what replaces each. Any whitespace fits a space; `*` is the whole body."""

    @property
    def original(self) -> CodeType:
        """The code that is replaced.

        :raises KeyError: if there is no such function (any more).
        """
        return _function(self).__code__

    def applied(self) -> AbstractContextManager[None]:
        """Run the block with the changes.

        :raises KeyError: if the function does not have a text, or has it twice.
        """
        return with_code(_function(self), code_in_place(self.module, self.function, self._edited()))

    def _edited(self) -> ast.Module:
        source = source_of(self.module)
        node = dict(functions(ast.parse(source)))[self.function]
        body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
        lines = source.splitlines(keepends=True)
        first, last = body[0].lineno - 1, node.end_lineno
        text = "".join(lines[first:last])
        for before, after in self.changes:
            pattern = r"\s+".join(map(re.escape, before.split()))
            found = list(re.finditer(r"\S.*\S" if before == "*" else pattern, text, re.DOTALL))
            if len(found) != 1:
                raise KeyError(f"{self.module}:{self.function} has {len(found)} times {before}")
            begin, end = found[0].span()
            line = text[text.rfind("\n", 0, begin) + 1 :]
            indent = line[: len(line) - len(line.lstrip())]
            text = text[:begin] + after.replace("\\n", "\n" + indent) + text[end:]
        return ast.parse("".join([*lines[:first], text, *lines[last:]]))


def _function(edit: SourceEdit) -> FunctionType:
    found = function_of(edit.module, edit.function)
    if found is None:
        raise KeyError(f"{edit.module}:{edit.function}")
    return found


def parse_mutants(table: str) -> Iterator[Mutant]:
    """Yield the mutants of a table.

    A row is `name | invariants | scenarios | source`, then lines with the summary, with settings of the
    scenarios (`with `), and with edits: `module:function: before => after`, or `&` in place of the function
    before. Lines that are indented further continue the line before them.
    """
    for row in re.split(r"\n(?=\S)", table.strip()):
        header, summary, *lines = re.sub(r"\n {8,}", " ", row).split("\n")
        name, expected, scenarios, *source = (each.strip() for each in header.split("|"))
        overrides: tuple[str, ...] = ()
        edits: list[SourceEdit] = []
        for line in map(str.strip, lines):
            if line.startswith("with "):
                overrides += (line.removeprefix("with "),)
                continue
            place, _, change = line.partition(" ")
            before, _, after = change.partition("=>")
            if place == "&":
                edit = edits.pop()
                edits.append(edit._replace(changes=(*edit.changes, (before.strip(), after.strip()))))
            else:
                module, function, _ = place.split(":")
                edits.append(SourceEdit(module, function, ((before.strip(), after.strip()),)))
        yield Mutant(
            name=name,
            bug=source[0] if source else UNREPORTED,
            summary=summary.strip(),
            expected=tuple(expected.split()),
            scenarios=tuple(one for each in scenarios.split() for one in _GROUPS.get(each, (each,))),
            replacements=tuple(edits),
            overrides=overrides,
        )
