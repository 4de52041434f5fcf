"""The command line as a whole: help, wrong usage, exit codes, pipes and interrupts."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.cli import commands, main
from fencepost.simulation.cli.commands import COMMANDS, Command
from fencepost.simulation.cli.live import _stop_requested
from fencepost.simulation.interrupts import told_at_once

FENCEPOST = (sys.executable, "-m", "fencepost.simulation")


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Puts a function in the table of commands, under the name `probe`."""

    def _register(function: Callable[..., int]) -> None:
        module = type(sys)("probe_module")
        module.probe = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_module", module)
        monkeypatch.setitem(commands.BY_NAME, "probe", Command("probe", "", "probe_module:probe"))

    return _register


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in out
        assert command.summary in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_and_takes_json(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command.name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: fencepost {command.name}" in shown
    assert "--json" in shown
    for line, next_line in pairwise(shown.partition("╭")[0].splitlines()):
        if line.strip() and next_line.strip():
            assert len(line.strip()) + 1 + len(next_line.split()[0]) > 80, (
                "it breaks lines before they are full"
            )
    assert main(["help", command.name]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.processes
def test_help_of_the_command_comes_quickly() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*FENCEPOST, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.3


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fencepost ")


@pytest.mark.parametrize(
    ("error", "code"), [(FencepostError("line 3: no such key"), 2), (EnvironmentLacks("no Java"), 3)]
)
def test_what_a_user_can_mend_is_one_line(error, code, register, capsys):
    def probe() -> int:
        raise error

    register(probe)
    assert main(["probe"]) == code
    assert capsys.readouterr().err == f"fencepost probe: {error}\n"


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyspark", "spark"), ("pyarrow.parquet", "spark"), ("kio", "embedded"), ("aiokafka", "kafka")],
)
def test_a_missing_extra_is_named(module, extra, register, capsys):
    def probe() -> int:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    register(probe)
    assert main(["probe"]) == 3
    assert f"pip install 'fencepost[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "extra"), [("proxy 127.0.0.1:1", "control"), ("conform", "kafka")])
def test_the_extra_of_a_command_brings_all_that_it_needs(
    words: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'kio'", name="kio")

    monkeypatch.setattr("fencepost.simulation.cli.arguments.call", lacking)
    assert main(words.split()) == 3
    assert f"needs kio, which is not installed: pip install 'fencepost[{extra}]'" in capsys.readouterr().err


def test_a_module_of_ours_that_is_missing_is_a_defect(register: Callable[[Callable[..., int]], None]) -> None:
    def probe() -> int:
        raise ModuleNotFoundError("No module named 'fencepost.x'", name="fencepost.x")

    register(probe)
    with pytest.raises(ModuleNotFoundError):
        main(["probe"])


def test_ctrl_c_ends_with_130_and_no_traceback(register, capsys):
    def probe() -> int:
        raise KeyboardInterrupt

    register(probe)
    assert main(["probe"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("ignored", [False, True])
def test_other_signals_end_as_ctrl_c_does(
    ignored: bool, number: signal.Signals, code: int, register: Callable[[Callable[..., int]], None]
) -> None:
    cleaned: list[str] = []

    def probe() -> int:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append("up")
        return 0

    register(probe)
    before = signal.getsignal(signal.SIGINT)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["probe"]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned == ["up"]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_hangup_that_nohup_ignores_ends_nothing(register: Callable[[Callable[..., int]], None]) -> None:
    def probe() -> int:
        with told_at_once("stopping"), _stop_requested() as stop:
            signal.raise_signal(signal.SIGHUP)
        return int(stop.is_set())

    register(probe)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["probe"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--help"], ["states", "--json"], ["states"], ["states", "--help"]])
def test_a_reader_that_went_away_is_no_error(words: list[str]) -> None:
    with subprocess.Popen([*FENCEPOST, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert told == b""


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["states"], 0), (["states", "--help"], 0), (["nonsense"], 2)]
)
def test_closed_streams_change_no_exit_code(words, code, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(words) == code
    sys.stdout.close()
    sys.stderr.close()


def test_an_encoding_without_an_ellipsis_shows_it_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))
    assert main(["plan", "--help"]) == 0
    assert b"Usage: fencepost plan" in shown.getvalue()


SWALLOWED = """
import signal, sys, threading, weakref
from fencepost.simulation.cli import entry

class Thing:
    pass

def interrupted_in_a_callback(words):
    thing = Thing()
    watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.{name}))
    del thing
    threading.Event().wait(20)
    return 0

signal.signal(signal.SIGINT, {handler})
entry._run_words = interrupted_in_a_callback
sys.exit(entry.main(["mutants"]))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "handler", "code"),
    [
        ("SIGINT", "signal.default_int_handler", 130),
        ("SIGTERM", "signal.default_int_handler", 143),
        ("SIGTERM", "signal.SIG_IGN", 143),
    ],
)
def test_an_interrupt_that_python_swallows_comes_again(name: str, handler: str, code: int) -> None:
    script = SWALLOWED.format(name=name, handler=handler)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (code, "")


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["states"], ["states", "--json"]])
def test_a_full_disk_is_told_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*FENCEPOST, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert result.returncode == 3
    assert result.stderr == "fencepost: no space left on device: make room and run again\n"


def test_colours_only_on_a_terminal_and_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for words in (["--help"], ["states"]):
        coloured, plain = Terminal(), Terminal()
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr(sys, "stdout", coloured)
        assert main(words) == 0
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys, "stdout", plain)
        assert main(words) == 0
        assert "\x1b[" in coloured.getvalue()
        assert not any(code in plain.getvalue() for code in ("\x1b[3", "\x1b[36", "\x1b[31"))


@pytest.mark.processes
def test_json_is_one_document_and_logs_stay_off_stdout() -> None:
    environment = {**os.environ, "FENCEPOST_LOG": "debug"}
    result = subprocess.run(
        [*FENCEPOST, "states", "--json"], capture_output=True, text=True, check=True, env=environment
    )
    assert "consumer-member" in json.loads(result.stdout)
