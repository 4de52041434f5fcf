"""The examples of the README and of the docs run, and print what the page says, numbers aside."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.pipeline.question import ask, read_question
from fencepost.simulation.pipeline.spec import is_campaign_file, read_campaign
from fencepost.simulation.scenarios.load import loads
from tests.forks import LOOP_SCOPE, PYTEST, run_forked

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
BLOCK = re.compile(r"^(<!-- rows vary -->\n)?( *)```(\w+)\n(.*?)^\2```$", re.DOTALL | re.MULTILINE)
SERVED = "127.0.0.1:9092"
"""The address that examples use; each test gives them a server of its own."""

NAMED = re.compile(r"# ([\w-]+\.(?:toml|py|ini))\n")
"""The first line of a file that the commands, tests and programs below it on its page use."""

RULER = re.compile(r"([=_])\1{2,}")
"""A line across the terminal, around a title of pytest."""

REAL_BROKERS = {"chaos", "cluster", "compare"}
"""Commands that start a Kafka, which takes half a minute: they are left to CI."""

CHANGES_OUTPUT = {"COLUMNS", "CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"}
"""Variables that change what commands print: pytest shortens no line of its summary where CI is set."""

SHORTER = {
    "seeds=20": "seeds=[3]",
    "seeds=10": "seeds=2",
    "seeds=2,": "seeds=1,",
    "churn --seed 1 --duration 30s\n": "churn --seed 1 --duration 30s --nodes 1\n",
    "on 3 brokers (jvm)": "on one broker (jvm)",
}
"""Words on a page, and those that show the same sooner: the seed that fails there, one or two, one broker."""

NUMBER = re.compile(r"(?<![\w-])[0-9][0-9.,]*")
DIGEST = re.compile(r"\b[0-9a-f]{32}\b")


FACT = re.compile(
    r"^(?:members|partitions|events|heartbeats|rebalances|violations|digest) +\S+$", re.MULTILINE
)
"""What is the same in each run of a seed, on any machine."""


class Example(NamedTuple):
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    rows_vary: bool
    """Which rows there are depends on what happens in the run; headings and sentences do not."""


def examples(language: str) -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(3)) + 1
            name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name
            found.append(Example(name, line, block[3], dedent(block[4]), block[1] is not None))
    return [example for example in found if example.language == language]


def name_of(example: Example) -> str:
    return f"{example.page.replace('/', '-')}-{example.line}"


def file_of(example: Example) -> str | None:
    """The name of the file that an example is, if its first line says it."""
    named = NAMED.match(example.text)
    return named[1] if named else None


def program_of(example: Example) -> str:
    """The example as it runs here."""
    return re.sub("|".join(map(re.escape, SHORTER)), lambda found: SHORTER[found[0]], example.text)


def is_run_by_a_command(example: Example) -> bool:
    """Whether pytest runs it from a console block further down, which shows how it ends."""
    name = file_of(example)
    return name is not None and any(
        each.page == example.page and each.line > example.line and f"pytest {name}" in each.text
        for each in examples("console")
    )


@contextlib.contextmanager
def server() -> Iterator[str]:
    """`fencepost serve` with the topics of the examples, at an address of its own."""
    command = [sys.executable, "-m", "fencepost.simulation", "serve", "--port", "0", "--topics", "orders:12"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(timeout=60)


def how_to_run(text: str) -> list[str]:
    """What stands between Python and the file: nothing, or pytest for an example that is a test."""
    if not re.search(r"^(async )?def test_", text, re.MULTILINE):
        return []
    return [*PYTEST, *LOOP_SCOPE]


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "example", [each for each in examples("python") if not is_run_by_a_command(each)], ids=name_of
)
def test_python_examples_run(example: Example, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "RealCluster" in example.text:
        request.getfixturevalue("kafka_installation")
    with server() if SERVED in example.text else contextlib.nullcontext(SERVED) as address:
        lay_out(example, tmp_path)
        script = tmp_path / (file_of(example) or "example.py")
        script.write_text(program_of(example).replace(SERVED, address))
        result = run_forked(["-W", "error", *how_to_run(example.text), str(script)], tmp_path)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("example", examples("toml"), ids=name_of)
def test_toml_examples_load(example: Example, tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    file.write_text(example.text)
    if is_campaign_file(str(file)):
        read_campaign(file)
    elif example.page == "plan.md":
        ask(*read_question(file))
    else:
        loads(example.text, source=example.page)


def sessions(example: Example) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it prints."""
    command, lines = "", []
    for line in program_of(example).splitlines():
        if line.startswith("$ "):
            if command:
                yield command, lines
            command, lines = line[2:], []
        else:
            lines.append(line)
    yield command, lines


def shape(lines: list[str]) -> list[str]:
    """Lines without what differs between runs: numbers, digests, the width of columns."""
    plain = (RULER.sub(r"\1\1\1", NUMBER.sub("0", DIGEST.sub("0", line))) for line in lines)
    return [" ".join(line.split()) for line in plain]


def constant(lines: list[str]) -> list[str]:
    """The lines without those that hold figures, and without empty ones."""
    return [line for line in lines if line and not NUMBER.search(line)]


def agrees(said: list[str], printed: list[str]) -> bool:
    """Whether the output has the shape that the page shows; a line `…` stands for any number of lines."""
    if not said:
        return not printed
    if said[0] == "…":
        return any(agrees(said[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and said[0] == printed[0] and agrees(said[1:], printed[1:])


def words_of(example: Example) -> Iterator[tuple[list[str], list[str]]]:
    """Each command of ours, or of pytest, that ends, with the lines that it prints."""
    for command, said in sessions(example):
        words = shlex.split(command)
        if words[0] == "pytest" or (words[0] == "fencepost" and words[1] not in ("serve", "proxy")):
            yield words, said


def argv(words: list[str], folder: Path) -> list[str]:
    """The words behind `python` of a command, in a folder with the files of its page."""
    if words[0] == "fencepost":
        return ["-m", "fencepost.simulation", *words[1:]]
    # A page without settings has sync tests only; pytest-asyncio, which is installed here, would warn.
    scope = () if (folder / "pytest.ini").exists() else LOOP_SCOPE
    return [*PYTEST, *scope, *words[1:]]


def is_campaign(example: Example) -> bool:
    """True if its commands do many runs: such commands share a Spark session with the tests."""
    return any(words[1] in ("campaign", "plan") for words, _ in words_of(example))


def on_real_brokers(example: Example) -> bool:
    """Whether its commands start a Kafka."""
    return any(words[1] in REAL_BROKERS for words, _ in words_of(example))


def lay_out(example: Example, folder: Path) -> None:
    """Give an example the files that it uses: those above it on its page, and all TOML files of the page."""
    for each in (*examples("toml"), *examples("ini"), *examples("python")):
        if each.page == "scenarios.md" and each.language == "toml":
            (folder / "mine.toml").write_text(each.text)
        name = file_of(each)
        if each.page == example.page and name and (each.line < example.line or each.language == "toml"):
            (folder / name).write_text(program_of(each))


def is_as_said(example: Example, said: list[str], output: str) -> bool:
    """Whether a command printed what the page says."""
    printed = shape(output.rstrip("\n").splitlines())
    if example.rows_vary:
        return constant(shape(said)) == constant(printed)
    return agrees(shape(said), printed)


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "example",
    [each for each in examples("console") if not is_campaign(each)],
    ids=name_of,
)
def test_commands_print_what_the_page_says(
    example: Example, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if on_real_brokers(example):
        request.getfixturevalue("kafka_installation")
    lay_out(example, tmp_path)
    for words, said in words_of(example):
        environment = {name: value for name, value in os.environ.items() if name not in CHANGES_OUTPUT}
        result = run_forked(argv(words, tmp_path), tmp_path, environment=environment, timeout_s=280)
        assert is_as_said(example, said, result.stdout), f"$ {shlex.join(words)}\n{result.stdout}"
        if words[1] == "simulate":
            assert {*FACT.findall("\n".join(said))} <= {*FACT.findall(result.stdout)}


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("example", [each for each in examples("console") if is_campaign(each)], ids=name_of)
def test_campaigns_print_what_the_page_says(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in CHANGES_OUTPUT:
        monkeypatch.delenv(name, raising=False)
    for words, said in words_of(example):
        assert main(words[1:]) == 0
        printed = capsys.readouterr()
        output = printed.err + printed.out
        assert is_as_said(example, said, output), f"$ {shlex.join(words)}\n{output}"


def test_shapes() -> None:
    assert shape(["events   12,345", "0123456789abcdef0123456789abcdef"]) == ["events 0", "0"]
    assert shape(["KIP-848 in 2.5 s"]) == ["KIP-848 in 0 s"]
    assert agrees(["a", "…", "d"], ["a", "b", "c", "d"])
    assert agrees(["a", "…"], ["a"])
    assert not agrees(["a", "…", "d"], ["a", "b", "c"])
    assert not agrees(["a"], ["a", "b"])
    assert constant(["runs", "", "steady 0 0"]) == ["runs"]


def test_the_pages_have_examples() -> None:
    assert {example.page for example in examples("console")} >= {"README.md"}
    assert {example.page for example in examples("console") if is_campaign(example)} == {
        "README.md",
        "plan.md",
        "guides/simulate-a-rollout.md",
    }
    assert {example.page for example in examples("python")} >= {"README.md", "traces.md"}
    assert examples("toml")
