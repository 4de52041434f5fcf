"""What is public: every module imports, says its names, and drags nothing heavy in."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    "fencepost." + ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for top in ("coordinator", "member", "simulation")
    for file in (ROOT / top).rglob("*.py")
    if "__pycache__" not in file.parts and file.name != "__main__.py"
)
PACKAGES = [name for name in MODULES if (ROOT / name.removeprefix("fencepost.").replace(".", "/")).is_dir()]
HEAVY = ("aiokafka", "cyclopts", "jinja2", "kio", "numpy", "pandas", "plotly", "pyarrow", "pyspark", "rich")
SHELLS = (
    *(f"fencepost.coordinator.{name}" for name in ("codec", "rabbit_server", "server")),
    "fencepost.member.consumer.driver",
)


def test_every_module_imports_and_says_what_it_is() -> None:
    for name in MODULES:
        said = (importlib.import_module(name).__doc__ or "").strip()
        assert said, name
        assert said.endswith((".", ":", "!", ")")) or "\n" in said, name


def test_names_that_are_declared_public_exist() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [])
        assert sorted(public) == sorted(set(public)), name
        assert [each for each in public if not hasattr(module, each)] == [], name


def loaded_after(statement: str) -> set[str]:
    """The libraries that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nsys.stderr.write(' '.join(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in result.stderr.split()}


@pytest.mark.processes
def test_packages_and_the_help_load_nothing_heavy() -> None:
    lines = [f"import {name}" for name in ("fencepost", *PACKAGES)]
    lines.append("from fencepost.simulation.cli import main\nassert main(['--help']) == 0")
    assert loaded_after("\n".join(lines)) & {*HEAVY, "structlog", "asyncio"} == set()


@pytest.mark.processes
def test_cores_load_nothing_heavy() -> None:
    lines = [
        f"import {name}"
        for name in MODULES
        if name.startswith(("fencepost.coordinator.", "fencepost.member.consumer"))
        and not name.startswith(SHELLS)
    ]
    assert loaded_after("\n".join(lines)) & {*HEAVY, "structlog", "asyncio"} == set()
