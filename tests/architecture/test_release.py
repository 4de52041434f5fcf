"""`make release` in its quick form, on a copy of the sources: build, metadata, the wheel with no extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("public", "coordinator", "member", "simulation", ".ci", "pyproject.toml", "README.md", "LICENSE")
UV = Path(sys.executable).parent / "uv"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources, so that a test can change them and `dist/` is not left in the tree."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def release(copy: Path, repository: str) -> subprocess.CompletedProcess[str]:
    version = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return subprocess.run(
        [copy / ".ci" / "venv", version.group(1), "release", "--quick"],
        env={**os.environ, "VENV": sys.prefix, "REPOSITORY": repository},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


pytestmark = [
    pytest.mark.real,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not UV.exists(), reason="no uv next to this Python"),
]


def test_the_wheel_works_with_no_extra(copy: Path) -> None:
    result = release(copy, "git@example.com:fencepost/fencepost.git")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "project URLs: https://example.com/fencepost/fencepost\n" in result.stdout
    assert sorted(path.suffix for path in (copy / "dist").iterdir() if path.name != ".gitignore") == [
        ".gz",
        ".whl",
    ]


@pytest.mark.parametrize("url", ["http://127.0.0.1/a/b", "https://localhost/a/b", "../fencepost"])
def test_a_url_that_names_a_machine_is_refused(copy: Path, url: str) -> None:
    result = release(copy, url)
    assert result.returncode == 1
    assert "is not a public address; expected https://HOST/OWNER/NAME" in result.stderr


def test_a_package_without_authors_is_refused(copy: Path) -> None:
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace("authors = ", "maintainers = "))
    result = release(copy, "https://example.com/fencepost/fencepost")
    assert result.returncode == 1
    assert "has no authors" in result.stderr
