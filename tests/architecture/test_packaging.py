"""What is installed is what is in the tree: packages, and the files beside the code."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ("coordinator", "member", "simulation")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def sources(pattern: str = "*") -> Iterator[Path]:
    for top in TOP:
        for path in sorted((ROOT / top).rglob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT)


def package_of(path: Path) -> tuple[str, str]:
    """The innermost package around a file, and the file's path inside it."""
    folder = path.parent
    while not (ROOT / folder / "__init__.py").exists():
        folder = folder.parent
    return "fencepost." + ".".join(folder.parts), path.relative_to(folder).as_posix()


def test_every_package_is_listed_and_exists() -> None:
    packages = sorted("fencepost." + ".".join(path.parent.parts) for path in sources("__init__.py"))
    assert SETUPTOOLS["packages"] == ["fencepost", *packages]


def test_every_module_is_in_a_package() -> None:
    loose = [str(path) for path in sources("*.py") if not (ROOT / path.parent / "__init__.py").exists()]
    assert loose == []


def test_every_file_beside_the_code_is_shipped() -> None:
    data = SETUPTOOLS["package-data"]
    left_behind = []
    for path in sources():
        if path.suffix == ".py":
            continue
        package, inside = package_of(path)
        if not any(fnmatch(inside, pattern) for pattern in (*data.get("*", ()), *data.get(package, ()))):
            left_behind.append(str(path))
    assert left_behind == []


@pytest.mark.parametrize("top", TOP)
def test_every_top_package_tells_type_checkers_that_it_is_typed(top: str) -> None:
    assert (ROOT / top / "py.typed").exists()
    assert SETUPTOOLS["package-dir"][f"fencepost.{top}"] == top


def test_the_package_itself_is_the_public_interface() -> None:
    import fencepost

    assert SETUPTOOLS["package-dir"]["fencepost"] == "public"
    files = {path.name for path in (ROOT / "public").iterdir() if path.name != "__pycache__"}
    assert files == {"__init__.py", "__main__.py", "py.typed"}
    assert fencepost.__version__ == PROJECT["project"]["version"]


def test_the_command_is_there() -> None:
    main = pkgutil.resolve_name(PROJECT["project"]["scripts"]["fencepost"])
    assert main.__module__ == "fencepost.simulation.cli.entry"


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-site.lock"])
def test_the_lock_pins_every_dependency_by_hash_and_names_no_host(file: str) -> None:
    lock = (ROOT / file).read_text()
    assert "://" not in lock
    for block in lock.split("\n\n" if "\n\n" in lock else "\n#\n"):
        assert "--hash=sha256:" in block or "==" not in block
    pinned = {
        line.partition("==")[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")
    }
    groups = dict(PROJECT["dependency-groups"])
    wanted = [*groups.pop("site")]
    if file == "requirements.lock":
        wanted = [*PROJECT["project"]["dependencies"]]
        for names in PROJECT["project"]["optional-dependencies"].values():
            wanted += [name for name in names if not name.startswith("fencepost[")]
        for group in groups.values():
            wanted += [name for name in group if isinstance(name, str)]
    for requirement in wanted:
        name = (
            requirement.replace("[", ">")
            .replace("=", ">")
            .replace("<", ">")
            .replace(";", ">")
            .partition(">")[0]
        )
        assert name.strip() in pinned, requirement


def test_the_workflow_runs_what_anyone_can_run() -> None:
    assert "- run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_uv_sees_new_files_and_links_them() -> None:
    uv = PROJECT["tool"]["uv"]
    assert uv["config-settings"] == {"editable_mode": "strict"}
    assert {"file": "*/**/*.py"} in uv["cache-keys"]
