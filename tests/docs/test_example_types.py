"""The Python of the README and of the docs passes mypy and pyright, and imports from `fencepost` only."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_examples import examples, file_of, name_of

ROOT = Path(__file__).parents[2]
PROJECTS = sorted((ROOT / "examples").glob("*/*.py"))
"""The modules of the example projects; each has a name of its own."""

ABOUT_INTERNALS = {"analyses.md", "chaos.md", "coverage.md", "live.md"}
"""Pages with examples of parts that are not the public interface."""

USAGE = """
from fencepost import AsyncEmbeddedKafka, EmbeddedKafka, ReadRecord, StreamsApp, __version__, load, simulate

print(__version__.upper(), StreamsApp.__doc__)
with EmbeddedKafka(topics={"orders": 12}) as kafka:
    records: list[ReadRecord] = kafka.produce("orders", "one", key="k")
    offset: int = kafka.group("g").offsets()["orders", 0]
    kafka.lose_next_response("ConsumerGroupHeartbeat")
    kafka.fail_next("OffsetCommit", "NOT_COORDINATOR", times=2)
    (member,) = kafka.group("g").wait_stable(members=1)
    topic: str = member.assignment[0].topic
    kafka.delay("OffsetComit", 0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kafka.fail_next("Fetch", "NOT_LEADER")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kafka.group("g").offsets()["orders"]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
digest: str = simulate(load("steady", members=3), seed=1).digest


async def awaited(kafka: AsyncEmbeddedKafka) -> None:
    await kafka.group("g").wait_stable(members=1)
    async with EmbeddedKafka() as other:
        await other.group("g").wait_stable(members=0)
"""
"""What a type checker must accept of the public interface, and what it must refuse."""

UNTYPED_LIBRARIES = dict.fromkeys(
    (
        "reportMissingTypeArgument",
        "reportMissingTypeStubs",
        "reportUnknownArgumentType",
        "reportUnknownMemberType",
        "reportUnknownParameterType",
        "reportUnknownVariableType",
    ),
    False,
)
"""Rules of pyright that examples break because aiokafka, pyarrow and others have no types."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples as files, and `USAGE` in a folder of its own."""
    made = tmp_path_factory.mktemp("typed")
    (made / "usage").mkdir()
    (made / "usage" / "usage.py").write_text(USAGE)
    (made / "examples").mkdir()
    for example in examples("python"):
        name = f"{name_of(example).replace('.md', '').replace('-', '_')}.py"
        (made / "examples" / (file_of(example) or name)).write_text(example.text)
    for file in PROJECTS:
        (made / "projects" / file.name).parent.mkdir(exist_ok=True)
        (made / "projects" / file.name).write_text(file.read_text())
    return made


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_mypy_accepts_them(folder: Path) -> None:
    """With the product's settings, with which mypy has read the product before."""
    files = sorted(map(str, folder.glob("*/*.py")))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"]
    done = subprocess.run(
        [*command, *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_pyright_accepts_them(folder: Path) -> None:
    parts: dict[str, dict[str, object]] = {
        # pyright reads in aiokafka that a key or a value may be None. mypy checks arguments, too.
        "examples": {**UNTYPED_LIBRARIES, "reportArgumentType": False, "reportOptionalMemberAccess": False},
        # pyright reads aiokafka's source, mypy does not.
        "projects": {
            **UNTYPED_LIBRARIES,
            "reportIncompatibleMethodOverride": False,
            "reportUnnecessaryTypeIgnoreComment": False,
        },
        "usage": {"enableTypeIgnoreComments": False, "reportUnusedExpression": False},
    }
    settings = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "executionEnvironments": [{"root": part, **rules} for part, rules in parts.items()],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        str(Path(sys.executable).with_name("basedpyright")),
        *("-p", str(folder), "--pythonpath", sys.executable),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_examples_import_from_the_public_interface() -> None:
    found = set()
    for example in examples("python"):
        for node in ast.walk(ast.parse(example.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fencepost."):
                found.add(example.page)
    assert found == ABOUT_INTERNALS
    assert [file.name for file in PROJECTS if "fencepost." in file.read_text()] == []


def test_modules_of_projects_have_names_of_their_own() -> None:
    names = [file.name for file in PROJECTS]
    assert len(names) == len({*names}) >= 6
