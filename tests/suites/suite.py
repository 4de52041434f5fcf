"""What the suites of others have in common."""

from __future__ import annotations

import abc
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple


class Missing(Exception):
    """A program that builds a suite is not here."""


class Outcome(NamedTuple):
    """What came of one test, or of a part of it."""

    shown: str
    test: str
    """By which `expected` names it."""
    passed: bool
    log: Path


class Suite(abc.ABC):
    """Somebody's tests of a broker. `expected` fail on ours, or on any Kafka of today, and why."""

    name: ClassVar[str]
    expected: Mapping[str, str]
    config: Mapping[str, int] = {}
    """Settings of the brokers that it counts on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abc.abstractmethod
    def build(self) -> None:
        """Make them ready to run.

        :raises Missing: if a program is missing.
        """

    @abc.abstractmethod
    def run(self, servers: str) -> Iterator[Outcome]:
        """Run them all on these brokers."""


def need(*programs: str) -> None:
    """Refuse to go on without them.

    :raises Missing: with what to install.
    """
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        raise Missing(f"{', '.join(missing)}: not installed")


def called(*words: str, cwd: Path) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
