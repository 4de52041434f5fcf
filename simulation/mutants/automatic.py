"""Finds the automatic mutants of the cores, and puts one into the running code.

A mutant is named by its function and a number, such as `coordinator.consumer.heartbeat:heartbeat#12`. It is
applied by giving the function another code object, so that every holder of the function runs the mutant.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.mutants.operators import Edit, Function, edits

PACKAGE: Final = "fencepost"

CORES: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer": ("coordinator.consumer", "coordinator.assign"),
    "classic": ("coordinator.classic", "coordinator.migration"),
    "streams": ("coordinator.streams",),
    "sac": ("coordinator.sac", "member.sac"),
    "offsets": ("coordinator.offsets", "coordinator.transactions"),
    "members": ("member.base", "member.consumer", "member.classic", "member.streams"),
}
"""The packages of each part of the score."""

NOT_CORE: Final = (
    "coordinator.assign.registry",
    "member.base.arguments",
    "member.base.clock",
    "member.base.config",
    "member.base.log",
    "member.sac.settings",
)
"""Modules of those packages that check arguments, read a clock, or write a log: unit tests judge them."""

_NOT_JUDGED: Final = ("__repr__", "__str__", "__hash__", "__eq__")


class AutomaticMutant(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One changed place."""

    name: str
    core: str
    """The part of the score that it belongs to, a key of `CORES`."""
    module: str
    function: str
    number: int
    operator: str
    line: int
    statement: int
    """The line of the statement that a run must reach."""
    before: str
    after: str


def core_modules() -> Iterator[tuple[str, str]]:
    """Yield each module of the cores without the project's name, and the core it belongs to."""
    for core, packages in CORES.items():
        for name in packages:
            package = importlib.import_module(f"{PACKAGE}.{name}")
            for found in sorted(
                pkgutil.walk_packages(package.__path__, f"{name}."), key=lambda each: each.name
            ):
                if not found.ispkg and found.name not in NOT_CORE:
                    yield found.name, core


@functools.cache
def _source(module: str) -> tuple[str, str]:
    found = importlib.import_module(f"{PACKAGE}.{module}")
    path = inspect.getsourcefile(found)
    assert path is not None
    return path, inspect.getsource(found)


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and the methods of its classes, by their qualified names."""
    yield from _functions(tree.body, "")


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in _NOT_JUDGED:
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


@functools.cache
def mutants_of(module: str, core: str) -> tuple[AutomaticMutant, ...]:
    """Return every mutant of a module."""
    _, source = _source(module)
    return tuple(
        AutomaticMutant(
            name=f"{module}:{qualified}#{number}",
            core=core,
            module=module,
            function=qualified,
            number=number,
            operator=edit.operator,
            line=edit.line,
            statement=edit.statement,
            before=edit.before,
            after=edit.after,
        )
        for qualified, node in functions(ast.parse(source))
        if function_of(module, qualified) is not None
        for number, edit in enumerate(edits(node))
    )


def all_mutants() -> list[AutomaticMutant]:
    """Return every mutant of the cores, in the order of modules and lines."""
    return [mutant for module, core in core_modules() for mutant in mutants_of(module, core)]


def is_automatic(name: str) -> bool:
    """Return true if the name has the form of automatic mutants, which known bugs do not have."""
    return ":" in name


def mutant_named(name: str) -> AutomaticMutant:
    """Return the mutant of that name.

    :raises FencepostError: if no mutant has it; the text shows the form of a name.
    """
    module = name.partition(":")[0]
    for known, core in core_modules():
        if known == module:
            for mutant in mutants_of(module, core):
                if mutant.name == name:
                    return mutant
            break
    raise FencepostError(
        f"there is no automatic mutant {name}; expected a name such as"
        " coordinator.consumer.heartbeat:heartbeat#12, as `fencepost mutants --automatic --list` lists them"
    )


def function_of(module: str, qualified: str) -> FunctionType | None:
    """Return the function that runs under that name; None if it can't be reached by its name."""
    found: Any = importlib.import_module(f"{PACKAGE}.{module}")
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
    return _plain(found)


def _plain(found: Any) -> FunctionType | None:
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, FunctionType) else None


def _compiled(module: str, tree: ast.Module, qualified: str, line: int) -> CodeType | None:
    path, _ = _source(module)
    code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    return _find(code, qualified, line)


def _find(code: CodeType, qualified: str, line: int) -> CodeType | None:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_qualname == qualified and each.co_firstlineno == line:
                return each
            if (found := _find(each, qualified, line)) is not None:
                return found
    return None


def mutated_code(mutant: AutomaticMutant) -> CodeType:
    """Return the code of the function with the change.

    :raises FencepostError: if it cannot take the place of the function's own code.
    """
    tree = ast.parse(source_of(mutant.module))
    chosen: Edit = list(edits(dict(functions(tree))[mutant.function]))[mutant.number]
    chosen.make()
    return code_in_place(mutant.module, mutant.function, tree)


def source_of(module: str) -> str:
    """Return the source of a module."""
    return _source(module)[1]


def code_in_place(module: str, qualified: str, tree: ast.Module) -> CodeType:
    """Return the code that the function has in another tree of its module.

    :raises FencepostError: if it cannot take the place of the function's own code.
    """
    function = function_of(module, qualified)
    assert function is not None
    if free := function.__code__.co_freevars:
        # Without `super().__init__()` a free variable would be missing: this names them all, and never runs.
        dict(functions(tree))[qualified].body += ast.parse("if False: " + "; ".join(free)).body
    code = _compiled(module, tree, qualified, function.__code__.co_firstlineno)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        raise FencepostError(
            f"{module}:{qualified}: its changed code cannot take the place of the function's own"
        )
    return code


@contextmanager
def with_code(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Run the block with that code in the function."""
    own = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = own


@contextmanager
def with_automatic_mutant(name: str) -> Iterator[None]:
    """Run the block with the mutant of that name.

    :raises FencepostError: if there is no such mutant, or it cannot be applied.
    """
    mutant = mutant_named(name)
    function = function_of(mutant.module, mutant.function)
    assert function is not None
    with with_code(function, mutated_code(mutant)):
        yield


class ReachedStatements:
    """Notes which statements of the cores run. It stays in the code of this process forever."""

    def __init__(self) -> None:
        self.reached: set[tuple[str, int]] = set()
        """Modules and the first lines of statements, since the last `clear`."""
        for module, _ in core_modules():
            self._instrument(module)

    def clear(self) -> None:
        """Forget what was reached."""
        self.reached.clear()

    def _instrument(self, module: str) -> None:
        _, source = _source(module)
        tree = ast.parse(source)
        nodes = dict(functions(tree))
        for node in nodes.values():
            _Notes(module).visit(node)
        found = importlib.import_module(f"{PACKAGE}.{module}")
        vars(found)[_NOTE] = self.reached.add
        path, _ = _source(module)
        compiled = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        for qualified in nodes:
            function = function_of(module, qualified)
            if function is None:
                continue
            code = _find(compiled, qualified, function.__code__.co_firstlineno)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                function.__code__ = code


_NOTE: Final = "__reached_statement__"


class _Notes(ast.NodeTransformer):
    """Puts a call before each statement that notes its line."""

    def __init__(self, module: str) -> None:
        self._module = module

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, name, [each for statement in body for each in self._noted(statement)])
        for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.generic_visit(handler)
        return node

    def _noted(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        self.generic_visit(statement)
        plain = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not plain and not isinstance(statement, ast.Global | ast.Nonlocal):
            place = ast.Tuple([ast.Constant(self._module), ast.Constant(statement.lineno)], ast.Load())
            note = ast.Expr(ast.Call(ast.Name(_NOTE, ast.Load()), [place], []))
            yield ast.copy_location(note, statement)
        yield statement
