"""Runs of pytest with the plugin, on files of tests that tests write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

PLUGIN = "fencepost.simulation.embedded.pytest_plugin"
INSTALLED = any(each.value == PLUGIN for each in entry_points(group="pytest11"))


class Runs:
    """Runs pytest on a file of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, tests: str, *options: str, conftest: str = "") -> str:
        """What pytest prints."""
        (self.folder / "test_it.py").write_text(textwrap.dedent(tests))
        (self.folder / "conftest.py").write_text(textwrap.dedent(conftest))
        named = [] if INSTALLED else ["-p", PLUGIN]
        loops = ["-o", "asyncio_default_fixture_loop_scope=function"]
        command = [sys.executable, "-m", "pytest", *named, "-p", "no:cacheprovider", "-rA", *loops, *options]
        done = subprocess.run(
            [*command, "test_it.py"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        )
        return done.stdout + done.stderr


def outcomes(printed: str) -> dict[str, int]:
    """The counts of the last line that pytest itself prints."""
    (*_, last) = re.findall(r"^=+ (.* in [\d.]+s.*) =+$", printed, re.MULTILINE)
    return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error)", last)}
