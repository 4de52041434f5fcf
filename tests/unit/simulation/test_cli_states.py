"""`fencepost states`."""

from __future__ import annotations

import json

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.machines import TABLES, markdown


def test_json_has_every_machine_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["states", "--json"]) == 0
    machines = json.loads(capsys.readouterr().out)
    assert list(machines) == [table.name for table in TABLES]
    for table in TABLES:
        machine = machines[table.name]
        assert machine["initial"] == table.initial
        assert machine["terminal"] == list(table.terminal)
        assert {(t["from"], t["event"], t["to"]) for t in machine["transitions"]} == set(table.transitions)
        assert [(r["from"], r["to"]) for r in machine["refused"]] == list(table.refused)


def test_mermaid_of_one_machine_is_a_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["states", "consumer-member", "--format", "mermaid"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("stateDiagram-v2\n    [*] --> UNSUBSCRIBED\n")
    assert "    FATAL --> [*]\n" in out


def test_mermaid_of_all_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["states", "--format", "mermaid"]) == 0
    assert capsys.readouterr().out == markdown()


def test_the_table_lists_every_arrow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["states"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for table in TABLES:
        for arrow in table.transitions:
            assert f"{arrow.source} {arrow.event} {arrow.target}" in lines


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("consumer-group --json", "consumer-group"),
        ("consumer-group --format json", "consumer-group"),
        ("stream-thread --as kafka-4 --json", "stream-thread-kafka-4"),
        ("stream-client --as kafka-4 --json", "stream-client-kafka-4"),
        ("consumer-member --as kip848-draft1 --json", "consumer-member-kip848-draft1"),
    ],
)
def test_one_machine_also_as_others_have_it(
    words: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["states", *words.split()]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [name]
