"""Style that tools do not check: what cores may call, how long files get, which words do not belong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture import sources
from tests.architecture.sources import PACKAGES, ROOT

CORES = (
    "coordinator/assign",
    "coordinator/config.py",
    "coordinator/consumer",
    "coordinator/coordinator.py",
    "coordinator/journal/encoding.py",
    "coordinator/journal/memory.py",
    "coordinator/offsets",
    "coordinator/protocol",
    "coordinator/sac",
    "coordinator/streams",
    "member/consumer",
)
LONGEST_FILE = 700

BANNED_CALLS = {
    "print": "return a value, or let the shell log",
    "input": "take an argument",
    "open": "cores do no I/O",
    "id": "addresses differ between runs; use a name or a counter",
    "hash": "hashes of text differ between runs; use zlib.crc32 or the digest of the specification",
    "breakpoint": "left over",
}
BANNED_METHODS = {
    ("datetime", "now"): "take now_ms",
    ("datetime", "utcnow"): "take now_ms",
    ("uuid", "uuid1"): "take the id as an argument",
    ("uuid", "uuid4"): "take the id as an argument",
}
UNWANTED_WORDS = {
    r"(?<![\w.])/(?:work|root|home|Users)/": "a path of somebody's machine",
    r"\bissue \d|\bissues? (?:tracker|show)": "the project speaks of itself only",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "do it, or leave it out",
    r"NotImplementedError": "do it, or leave it out",
    r"\b(?:LLM|language model|AI agent)\b": "the project speaks of itself only",
}


def files_of(*folders: str) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        found = [path] if path.is_file() else sorted(path.rglob("*.py"))
        yield from (file for file in found if "__pycache__" not in file.parts)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def banned(tree: ast.Module) -> Iterator[str]:
    """What a core calls that it must not, and where."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield f"line {node.lineno}: {name}(): {BANNED_CALLS[name]}"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in BANNED_METHODS:
                yield f"line {node.lineno}: {module}.{name}: {BANNED_METHODS[module, name]}"
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                yield f"line {node.lineno}: random.{name}: take a random.Random as an argument"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr="Random")):
                yield f"line {node.lineno}: random.Random(): take it as an argument"
            case ast.ImportFrom(module="random"):
                yield f"line {node.lineno}: import the module, and only for random.Random"
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield f"line {node.lineno}: cores do not await"
            case ast.For(iter=source) | ast.comprehension(iter=source) if is_set(source):
                yield f"line {source.lineno}: the order of a set is not the same in every run: sort it"
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "next" | "iter" | "enumerate"), args=[first, *_]
            ) if is_set(first):
                yield f"line {first.lineno}: the order of a set is not the same in every run: sort it"


def is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return is_set(left) or is_set(right)
    return False


@pytest.mark.parametrize("file", list(files_of(*CORES)), ids=name_of)
def test_cores_call_nothing_that_differs_between_runs(file: Path) -> None:
    assert list(banned(sources.tree(file))) == []


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "x = id(y)",
        "import random\nrandom.choice(x)",
        "import random\nrandom.Random(3)",
        "from random import choice",
        "import uuid\nuuid.uuid4()",
        "async def f(): ...",
        "for x in {1, 2}: ...",
        "[x for x in set(y)]",
        "for x in set(a) - b: ...",
        "list(frozenset(x))",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_what_is_banned_is_seen(code: str) -> None:
    assert list(banned(ast.parse(code))) != []


@pytest.mark.parametrize(
    "code",
    ["sorted(set(x))", "for x in sorted({1}): ...", "def f(rng: random.Random): rng.random()", "len(set(x))"],
)
def test_what_is_allowed_is_not_complained_about(code: str) -> None:
    assert list(banned(ast.parse(code))) == []


def test_files_stay_short() -> None:
    files = files_of(*PACKAGES, "tests", "benchmarks", "docs", "examples")
    lengths = {name_of(file): file.read_text().count("\n") for file in files}
    assert {file: length for file, length in lengths.items() if length > LONGEST_FILE} == {}


@pytest.mark.parametrize("folder", [*PACKAGES, "docs", "benchmarks", "examples", ".ci", "tests"])
def test_no_word_that_belongs_elsewhere(folder: str) -> None:
    found = []
    for file in sorted((ROOT / folder).rglob("*")):
        readable = file.suffix in {".py", ".md", ".toml", ".sql", ".j2", ".js", ".css", ".html", ""}
        if not file.is_file() or not readable or "__pycache__" in file.parts or file == Path(__file__):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        for pattern, reason in UNWANTED_WORDS.items():
            found += [f"{name_of(file)}: {match[0]!r}: {reason}" for match in re.finditer(pattern, text)]
    assert found == []


def test_modules_are_named_for_what_they_hold() -> None:
    vague = {"utils", "util", "helper", "helpers", "manager", "common", "misc"}
    assert [name_of(file) for file in files_of(*PACKAGES) if file.stem in vague] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [file.name for file in files_of("tests") if file.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
    assert [name_of(file) for file in files_of("tests") if file.name == "__init__.py"] == []
