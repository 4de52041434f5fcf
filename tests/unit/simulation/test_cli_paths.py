"""Paths that the system refuses, in every option of every command that takes one."""

from __future__ import annotations

import gzip
import importlib
import re
import signal
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from fencepost.simulation.cli.commands import COMMANDS
from fencepost.simulation.cli.entry import main

LONG = "x" * 300
"""Longer than the name of a file may be."""
KAFKA = ["--kafka", "127.0.0.1:9", "--topic", "t"]
TOPIC = ["--trace-topic", "127.0.0.1:9/t"]
FURTHER: dict[tuple[str, str], list[str]] = {
    ("simulate", "--trace-config"): TOPIC,
    ("replay", "--trace"): ["{folder}/failure.json"],
    ("replay", "--report"): ["{folder}/failure.json"],
    ("shrink", "--out"): ["{folder}/failure.json"],
    ("shrink", "--test"): ["{folder}/failure.json"],
    ("plan", "--compare"): [LONG],
    ("analyze", "--kafka-config"): KAFKA,
    ("analyze", "--out"): KAFKA,
    ("proxy", "--config"): ["127.0.0.1:9"],
    ("serve", "--tls-key"): ["--tls-cert", "{folder}/certificate.pem"],
    ("serve", "--trace-config"): TOPIC,
    ("chaos", "--trace-config"): TOPIC,
    ("conform", "--schedules"): ["--cluster", "127.0.0.1:9"],
    ("mutants", "--compare"): ["--matrix", "{folder}/matrix.gz"],
    ("mutants", "--page"): ["--automatic"],
}
"""Words without which the command would complain about something else."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that commands read."""
    folder = tmp_path_factory.mktemp("read")
    words = ["scale-up-and-down", "--mutant", "target-told-early", "--seed", "0"]
    assert main(["simulate", *words, "--failure", str(folder / "failure.json")]) == 1
    (folder / "certificate.pem").write_text("-----BEGIN CERTIFICATE-----")
    (folder / "matrix.gz").write_bytes(gzip.compress(b""))
    return folder


def is_path(hint: Any) -> bool:
    return hint is Path or any(map(is_path, typing.get_args(hint)))


def options() -> Iterator[tuple[str, str]]:
    """Every option that takes a path; an empty name stands for an argument."""
    for command in COMMANDS:
        module, _, name = command.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        for argument in App(default_command=function).assemble_argument_collection():
            if not argument.name.startswith(("-", "*")):
                yield command.name, ""
            elif is_path(argument.hint):
                yield command.name, argument.name


@pytest.mark.parametrize(
    ("path", "reason"),
    [(LONG, "file name too long"), ("circle", "too many levels of symbolic links|file exists")],
    ids=["long", "circle"],
)
@pytest.mark.parametrize(("command", "option"), list(options()))
def test_a_path_that_the_system_refuses_is_refused_in_one_line_and_leaves_nothing(
    command: str,
    option: str,
    path: str,
    reason: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    further = [word.format(folder=folder) for word in FURTHER.get((command, option), ())]
    words = [option, path, *further] if option else [path]
    handler = signal.getsignal(signal.SIGINT)
    assert main([command, *words]) == 2
    assert signal.getsignal(signal.SIGINT) is handler
    said = capsys.readouterr().err
    assert path in said
    assert said.count("\n") == 1
    if option:
        assert re.search(reason, said)
    assert list(tmp_path.iterdir()) == [tmp_path / "circle"]
