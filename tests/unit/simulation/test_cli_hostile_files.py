"""Files that no command can make anything of: one line that says so, exit code 2, and no waiting."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

from fencepost import simulation
from fencepost.simulation.cli.entry import main
from fencepost.simulation.scenarios.check import MAX_LISTED
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.scenarios.typed import MAX_TOML_BYTES

STEADY = 'duration = "5m"\n[[topics]]\nname = "t"\npartitions = 1\n'
COMMANDS = [
    ["simulate", "FILE"],
    ["replay", "FILE"],
    ["shrink", "FILE"],
    ["campaign", "FILE"],
    ["campaign", "FILE.toml"],
    ["plan", "FILE"],
    ["chaos", "FILE"],
    ["analyze", "FILE"],
    ["conform", "--vectors", "FILE"],
    ["conform", "--schedules", "FILE", "--cluster", "localhost:1"],
    ["serve", "--port", "0", "--journal", "FILE"],
    ["serve", "--port", "0", "--sasl-users", "FILE"],
    ["serve", "--port", "0", "--tls-cert", "FILE"],
    ["simulate", "steady", "--trace-topic", "h:1/t", "--trace-config", "FILE"],
    ["analyze", "--kafka", "h:1", "--topic", "t", "--kafka-config", "FILE"],
]


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command ends with."""
    code = main(arguments)
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    return shown.err


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_device_or_a_pipe_is_refused_by_each_command(words, kind, tmp_path: Path, capsys):
    for name in ("file", "file.toml"):
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to("/dev/zero")
    arguments = [word.replace("FILE", str(tmp_path / "file")) for word in words]
    told = refusal(arguments, capsys)
    assert "expected a regular file" in told or "has no trace" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"seed = {'9' * 5_000}\n{STEADY}", "f.toml: not TOML: a number has too many digits"),
        (
            f"{STEADY}# {'x' * MAX_TOML_BYTES}",
            f"f.toml: can't be read: it is longer than {MAX_TOML_BYTES} bytes",
        ),
        (
            STEADY + '[[steps]]\nkind = "rolling-restart"\nat = "8%"\n' * (MAX_LISTED + 1),
            "steps: expected at most 10,000, got 10,001",
        ),
        (
            STEADY + "".join(f'[[topics]]\nname = "t{n}"\npartitions = 1\n' for n in range(MAX_LISTED)),
            "topics: expected at most 10,000, got 10,001",
        ),
    ],
    ids=["digits", "bytes", "steps", "topics"],
)
@pytest.mark.parametrize("command", ["simulate", "campaign"])
def test_a_scenario_that_is_too_large_is_refused(command, text, told, tmp_path: Path, capsys):
    file = tmp_path / "f.toml"
    file.write_text(text)
    assert told in refusal([command, str(file)], capsys)


def test_names_of_many_topics_are_compared_once(tmp_path: Path) -> None:
    """Each with each took seconds for some thousand of them."""
    file = tmp_path / "f.toml"
    file.write_text(
        STEADY + "".join(f'[[topics]]\nname = "t.{n}"\npartitions = 1\n' for n in range(MAX_LISTED - 1))
    )
    assert len(load_any(file).topics) == MAX_LISTED  # type: ignore[union-attr]


@pytest.mark.parametrize("words", [["replay"], ["shrink"], ["conform", "--vectors"]])
@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 100_000, '{"fencepost": ' + "9" * 5_000 + "}"])
def test_a_document_that_is_nested_deeply_or_holds_a_long_number_is_refused(words, text, tmp_path, capsys):
    file = tmp_path / "f.json"
    file.write_text(text)
    assert str(file) in refusal([*words, str(file)], capsys)


def test_vectors_that_become_too_long_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gzip

    file = tmp_path / "v.jsonl.gz"
    file.write_bytes(gzip.compress(bytes(65 << 20), 9))
    assert "when it is decompressed, which is the limit" in refusal(
        ["conform", "--vectors", str(file)], capsys
    )


@pytest.mark.parametrize("digits", ["9" * 5_000, "9" * 11])
def test_a_number_of_partitions_with_very_many_digits_is_refused(digits, capsys):
    assert "expected NAME:PARTITIONS" in refusal(["serve", "--port", "0", "--topics", f"t:{digits}"], capsys)


def test_characters_that_steer_a_terminal_are_shown_as_escapes(tmp_path: Path, capsys):
    evil = tmp_path / "evil.toml"
    evil.write_text('name = "evil"\n"k\\u001b[31m\\u202ey" = 1\n')
    assert main(["simulate", str(evil)]) == 2
    assert r"k\x1b[31m\u202ey: unknown key" in capsys.readouterr().err
    ours = (files(simulation) / "scenarios" / "library" / "rolling-deploy.toml").read_text()
    evil.write_text(
        re.sub("(?m)^summary = .*$", r'summary = "red \\u001b[31m and back\\u202e"', ours, count=1)
    )
    assert main(["simulate", str(evil), "--duration", "10s"]) == 0
    told = capsys.readouterr().out
    assert not set("\x1b\u202e") & set(told)
    assert r"red \x1b[31m and back\u202e" in told
