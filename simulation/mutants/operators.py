"""Mutation operators: all the small changes that can be made to one function, as edits of its syntax tree.

They are chosen for group coordinators and members. Besides comparisons, constants and branches, operators
skip records and effects, keep the old value of a changed field, and ignore a refusal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Edit(NamedTuple):
    """One change. `make` carries it out in the tree that the edit was found in."""

    operator: str
    line: int
    """The line of the source, from 1 on."""
    statement: int
    """The line of the innermost statement that contains it: a run that reaches it may show the edit."""
    before: str
    after: str
    make: Callable[[], None]


_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BOUNDS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Comparisons whose negation differs from the edit of their operator."""

_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COPIES: Final = ("replace", "_replace", "__replace__")
"""Functions that return a copy with some fields changed."""

_KEPT: Final = (
    ast.Assert,
    ast.ClassDef,
    ast.Global,
    ast.Import,
    ast.ImportFrom,
    ast.Nonlocal,
    ast.Pass,
)

_RETURNS: Final[dict[str, Callable[[], ast.expr]]] = {
    "tuple": lambda: ast.Tuple([], ast.Load()),
    "list": lambda: ast.List([], ast.Load()),
    "dict": lambda: ast.Dict([], []),
    "set": lambda: ast.Call(ast.Name("set", ast.Load()), [], []),
    "frozenset": lambda: ast.Call(ast.Name("frozenset", ast.Load()), [], []),
    "Sequence": lambda: ast.Tuple([], ast.Load()),
    "Iterable": lambda: ast.Tuple([], ast.Load()),
    "Iterator": lambda: ast.Call(ast.Name("iter", ast.Load()), [ast.Tuple([], ast.Load())], []),
    "Mapping": lambda: ast.Dict([], []),
    "int": lambda: ast.Constant(0),
    "None": lambda: ast.Constant(None),
}
"""Values that a function returns early, by the name of its annotation."""


def edits(function: Function) -> Iterator[Edit]:
    """Yield every edit of the function, in an order that depends on its source alone.

    Make at most one of them: the others refer to nodes that may be gone.
    """
    yield from _early_returns(function)
    yield from _block(function.body, docstring=True)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


class _Place(NamedTuple):
    """The place of an expression, so that another one can replace it."""

    statement: int
    put: Callable[[ast.expr], None]


def _replacing(operator: str, place: _Place, before: ast.expr, after: ast.expr) -> Edit:
    ast.copy_location(after, before)
    return Edit(
        operator, before.lineno, place.statement, _text(before), _text(after), lambda: place.put(after)
    )


def _early_returns(function: Function) -> Iterator[Edit]:
    body = function.body
    first = _after_docstring(body)
    rest = body[first:]
    if not rest or any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
        return
    for value in _early_values(function.returns):
        if len(rest) == 1 and isinstance(rest[0], ast.Return) and _same(rest[0].value, value):
            continue
        early = ast.copy_location(ast.Return(value), rest[0])

        def make(early: ast.Return = early) -> None:
            body.insert(first, early)

        yield Edit("early-return", rest[0].lineno, rest[0].lineno, function.name, _text(early), make)


def _early_values(annotation: ast.expr | None) -> Iterator[ast.expr]:
    if annotation is None:
        return
    if isinstance(annotation, ast.BinOp):  # `X | None`: None is the simpler value
        if _name(annotation.right) == "None":
            yield ast.Constant(None)
        return
    name = _name(annotation)
    if name == "bool":
        yield ast.Constant(True)
        yield ast.Constant(False)
    elif name == "tuple":
        if isinstance(annotation, ast.Subscript) and _is_of_any_length(annotation):
            yield ast.Tuple([], ast.Load())
    elif name in _RETURNS:
        yield _RETURNS[name]()


def _is_of_any_length(annotation: ast.Subscript) -> bool:
    inner = annotation.slice
    return isinstance(inner, ast.Tuple) and _text(inner.elts[-1]) == "..."


def _name(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript):
        return _name(annotation.value)
    if isinstance(annotation, ast.Constant):
        return str(annotation.value)
    return annotation.id if isinstance(annotation, ast.Name) else ""


def _same(one: ast.expr | None, other: ast.expr) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def _after_docstring(body: Sequence[ast.stmt]) -> int:
    first = body[0]
    return int(
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _block(body: list[ast.stmt], *, docstring: bool = False) -> Iterator[Edit]:
    for index, statement in enumerate(body):
        if docstring and index < _after_docstring(body):
            continue
        yield from _statement(body, index, statement)


def _statement(body: list[ast.stmt], index: int, statement: ast.stmt) -> Iterator[Edit]:
    if isinstance(statement, _KEPT):
        return
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _block(statement.body, docstring=True)
        return
    yield from _whole_statement(body, index, statement)
    if isinstance(statement, ast.Raise):
        return  # the text of a refusal is not behaviour
    yield from _expressions(statement, statement.lineno)
    yield from _blocks(statement)


def _blocks(statement: ast.stmt) -> Iterator[Edit]:
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if isinstance(inner, list):
            yield from _block(inner)
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield from _block(part.body)


def _whole_statement(body: list[ast.stmt], index: int, statement: ast.stmt) -> Iterator[Edit]:
    line = statement.lineno
    if _may_be_dropped(statement):

        def drop() -> None:
            body[index] = ast.copy_location(ast.Pass(), statement)

        yield Edit("drop-statement", line, line, _text(statement), "pass", drop)
    if isinstance(statement, ast.If):
        yield from _negated(statement)
    if isinstance(statement, ast.For):

        def skip() -> None:
            statement.iter = ast.copy_location(ast.Tuple([], ast.Load()), statement.iter)

        yield Edit("skip-loop", line, line, f"for … in {_text(statement.iter)}", "for … in ()", skip)


def _may_be_dropped(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break)


def _negated(statement: ast.If) -> Iterator[Edit]:
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and not isinstance(test.ops[0], _BOUNDS):
        return  # the operator of the comparison does the same
    if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
        return

    def put(node: ast.expr) -> None:
        statement.test = node

    negated = (
        test.operand
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        else ast.UnaryOp(ast.Not(), test)
    )
    yield _replacing("swap-branches", _Place(statement.lineno, put), test, negated)


def _expressions(statement: ast.stmt, line: int) -> Iterator[Edit]:
    for field, value in ast.iter_fields(statement):
        if field in ("annotation", "targets", "target", "names"):
            continue
        if isinstance(value, ast.expr):
            yield from _expression(
                value, _Place(line, _setter(statement, field)), negated=isinstance(statement, ast.If)
            )
        elif isinstance(value, list) and field == "items":
            for item in value:
                yield from _expression(item.context_expr, _Place(line, _setter(item, "context_expr")))
        elif isinstance(value, list) and field == "cases":
            for case in value:
                if case.guard is not None:
                    yield from _expression(case.guard, _Place(line, _setter(case, "guard")))


def _setter(owner: Any, field: str) -> Callable[[ast.expr], None]:
    return lambda node: setattr(owner, field, node)


def _item_setter(items: list[Any], index: int) -> Callable[[ast.expr], None]:
    def put(node: ast.expr) -> None:
        items[index] = node

    return put


def _expression(node: ast.expr, place: _Place, *, negated: bool = False) -> Iterator[Edit]:
    """Yield the edits below; an expression whose statement is `negated` as a whole is not negated again."""
    match node:
        case ast.JoinedStr() | ast.Lambda(args=ast.arguments(), body=ast.Constant()):
            return
        case ast.Compare():
            yield from _comparison(node, place)
        case ast.BoolOp():
            yield from _boolean(node, place)
        case ast.UnaryOp(op=ast.Not()) if not negated:
            yield _replacing("drop-not", place, node, node.operand)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return
        case ast.IfExp():
            swapped = ast.IfExp(node.test, node.orelse, node.body)
            yield _replacing("swap-branches", place, node, swapped)
        case ast.BinOp():
            yield from _arithmetic(node, place)
        case ast.Constant():
            yield from _constant(node, place)
        case ast.Call():
            yield from _call(node, place)
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()):
            yield from _elements(node, place)
        case _:
            pass
    yield from _children(node, place.statement)


def _children(node: ast.AST, statement: int) -> Iterator[Edit]:
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.Subscript) and field == "slice" and isinstance(value, ast.Constant):
            continue
        if isinstance(value, ast.expr):
            yield from _expression(value, _Place(statement, _setter(node, field)))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.expr):
                    yield from _expression(item, _Place(statement, _item_setter(value, index)))
                elif isinstance(item, ast.keyword | ast.comprehension):
                    yield from _children(item, statement)


def _comparison(node: ast.Compare, place: _Place) -> Iterator[Edit]:
    for index, operator in enumerate(node.ops):
        ops = list(node.ops)
        ops[index] = _COMPARISONS[type(operator)]()
        yield _replacing("compare", place, node, ast.Compare(node.left, ops, node.comparators))


def _boolean(node: ast.BoolOp, place: _Place) -> Iterator[Edit]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield _replacing("and-or", place, node, ast.BoolOp(other, node.values))
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        yield _replacing(
            "drop-condition", place, node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        )


def _arithmetic(node: ast.BinOp, place: _Place) -> Iterator[Edit]:
    if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant | ast.JoinedStr):
        return
    sides = [each.value if isinstance(each, ast.Constant) else each for each in (node.left, node.right)]
    if any(isinstance(side, ast.JoinedStr | str | bytes) for side in sides):
        return
    yield _replacing("drop-operand", place, node, node.left)
    if _is_number(node.left) or _is_number(node.right):
        if isinstance(node.op, ast.Add):
            yield _replacing("plus-minus", place, node, ast.BinOp(node.left, ast.Sub(), node.right))
        elif isinstance(node.op, ast.Sub):
            yield _replacing("plus-minus", place, node, ast.BinOp(node.left, ast.Add(), node.right))


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith(("_ms", "_us", "_s", "epoch", "offset", "count", "version"))


def _constant(node: ast.Constant, place: _Place) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield _replacing("constant", place, node, ast.Constant(not value))
    elif isinstance(value, int | float):
        others: tuple[int | float, ...] = (value // 2, value * 2)
        if value in (0, 1):
            others = (1,) if value == 0 else (0, 2)
        for other in others:
            yield _replacing("constant", place, node, ast.Constant(other))


def _call(node: ast.Call, place: _Place) -> Iterator[Edit]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
    elif name in _CALLS:
        other = ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, node.keywords)
        yield _replacing("min-max", place, node, other)
    if name in _COPIES or name.startswith("with_"):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                rest = node.keywords[:index] + node.keywords[index + 1 :]
                yield _replacing("keep-field", place, node, ast.Call(node.func, node.args, rest))


def _elements(node: ast.Tuple | ast.List, place: _Place) -> Iterator[Edit]:
    """Drop one element, such as a record or an effect, where any number of them is allowed."""
    unpacks = any(isinstance(each, ast.Starred) for each in node.elts)
    if not (unpacks or isinstance(node, ast.List) or len(node.elts) == 1):
        return
    for index in range(len(node.elts)):
        rest = node.elts[:index] + node.elts[index + 1 :]
        yield _replacing("drop-element", place, node, type(node)(rest, ast.Load()))
