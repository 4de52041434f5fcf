"""Completion in shells: what the command offers, and what bash makes of its script."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.cli.commands import COMMANDS
from fencepost.simulation.cli.completion import SHELLS
from fencepost.simulation.machines import TABLES
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.scenarios.load import library_names


def offered(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["__complete", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("\t")[0] for line in lines if line and not line.startswith("\x1f")]


@pytest.mark.parametrize("command", ["simulate", "campaign", "chaos", "compare"])
def test_scenarios_and_files_are_offered(command, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    assert {*library_names(), "mine.toml"} <= {*offered(capsys, command, "")}


def test_machines_and_mutants_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert {table.name for table in TABLES} <= {*offered(capsys, "states", "")}
    for words in (("mutants", ""), ("simulate", "--mutant", ""), ("explore", "--mutant", "")):
        assert {*MUTANTS} <= {*offered(capsys, *words)}, words


@pytest.mark.processes
@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_all_commands_and_is_one_of_that_shell(shell, capsys):
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.name in script for command in COMMANDS)
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.processes
def test_bash_completes_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--completion", "bash"])
    script = capsys.readouterr().out
    function = re.search(r"^complete .*-F (\w+) ", script, re.MULTILINE)
    assert function is not None
    command = f'fencepost() {{ "{sys.executable}" -m fencepost "$@"; }}\n'
    press = (
        f'COMP_WORDS=(fencepost simulate rolling-d); COMP_CWORD=2; {function[1]}; echo "${{COMPREPLY[@]}}"\n'
    )
    done = subprocess.run(
        ["bash"], input=command + script + press, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["rolling-deploy"]


def command_in(folder: Path) -> str:
    """Put a `fencepost` of this Python into the folder, and return the search path that begins with it."""
    program = folder / "fencepost"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fencepost.simulation "$@"\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--completion", "fish"])
    file = tmp_path / "fencepost.fish"
    file.write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {file}; complete -C 'fencepost states clas'"],
        env={**os.environ, "PATH": command_in(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    offers = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert any(offer.startswith("classic") for offer in offers), done.stdout


ZSH_SECONDS = 60


def typed_in_zsh(begin: str, typed: str, wanted: str, environment: dict[str, str]) -> str:
    """Type words and Tab in an interactive zsh; return what its terminal shows once it has `wanted`."""
    ours, its = pty.openpty()
    program = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    shown = ""
    try:
        os.write(ours, f"{begin}\n{typed}\t".encode())
        until = time.monotonic() + ZSH_SECONDS
        while wanted not in shown and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65536).decode(errors="replace")
        return shown
    finally:
        program.kill()
        program.wait()
        os.close(ours)


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(
    ("begin", "typed", "wanted"),
    [
        pytest.param(
            "fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u",
            "simulate rolling-d",
            "rolling-deploy",
            id="from-fpath",
        ),
        pytest.param(
            "autoload -Uz compinit; compinit -D -u; source ./_fencepost",
            "mutants sessions-n",
            "sessions-never-end",
            id="sourced",
        ),
    ],
)
def test_zsh_completes_names(begin, typed, wanted, tmp_path: Path, capsys, monkeypatch):
    main(["--completion", "zsh"])
    (tmp_path / "_fencepost").write_text(capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": command_in(tmp_path), "HOME": str(tmp_path), "TERM": "dumb"}
    shown = typed_in_zsh(begin, f"fencepost {typed}", wanted, environment)
    assert wanted in shown, shown
