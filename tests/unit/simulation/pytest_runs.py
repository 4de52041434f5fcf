"""Runs of pytest with the plugin, on files of tests that tests write."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

from tests.forks import LOOP_SCOPE, PYTEST, run_forked


class Runs:
    """Runs pytest on a file of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, tests: str, *options: str, conftest: str = "") -> str:
        """What pytest prints."""
        (self.folder / "test_it.py").write_text(textwrap.dedent(tests))
        (self.folder / "conftest.py").write_text(textwrap.dedent(conftest))
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        words = [*PYTEST, "-rA", *LOOP_SCOPE, *options, "test_it.py"]
        return run_forked(words, self.folder, environment=plain).stdout


def outcomes(printed: str) -> dict[str, int]:
    """The counts of the last line that pytest itself prints."""
    (*_, last) = re.findall(r"^=+ (.* in [\d.]+s.*) =+$", printed, re.MULTILINE)
    return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error)", last)}
