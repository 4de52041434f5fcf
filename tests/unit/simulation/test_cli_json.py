"""docs/command-line.md names the keys of every JSON document, and none that is not there."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from fencepost.simulation.cli.analyze import Analyzed
from fencepost.simulation.cli.cluster import ClusterReport
from fencepost.simulation.cli.commands import COMMANDS
from fencepost.simulation.cli.entry import main
from fencepost.simulation.cli.failures import ShrinkResult
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.cli.plan import ComparedPlans, PlanResult
from fencepost.simulation.cli.proxy import ProxyReady
from fencepost.simulation.cli.serve import ServeReady
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.conform.suite import Report
from fencepost.simulation.lab.conform.vectors import VectorReport
from fencepost.simulation.lab.explorer.explore import Exploration
from fencepost.simulation.lab.fidelity.compare import FidelityComparison
from fencepost.simulation.lab.hunt import MutantResult
from fencepost.simulation.live.follow import Followed
from fencepost.simulation.machines import MachineDocument
from fencepost.simulation.pipeline.campaign import CampaignResult
from fencepost.simulation.run import RunResult

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
DOCUMENTS: dict[str, Any] = {
    "simulate": RunResult,
    "replay": RunResult,
    "shrink": ShrinkResult,
    "states": dict[str, MachineDocument],
    "campaign": CampaignResult,
    "plan": PlanResult,
    "plan --compare": ComparedPlans,
    "analyze": Analyzed,
    "analyze --kafka": Followed,
    "serve": ServeReady,
    "proxy": ProxyReady,
    "cluster": ClusterReport,
    "chaos": ChaosResult,
    "compare": FidelityComparison,
    "conform --cluster": Report,
    "conform --vectors": VectorReport,
    "explore": Exploration,
    "mutants": dict[str, MutantResult],
}
SCENARIOS = "scenarios"
"""The document is a list of what is no struct."""
PROSE = {
    "as of `simulate`, and ": ", ".join(RunResult.__struct_fields__) + ", ",
    "with --rabbit-stream also ": "",
    ": once, when it accepts connections": "",
}

Keys = dict[str, Any]


def described() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8").partition("## JSON documents")[2]
    found = {}
    for line in re.findall(r"^\| (`.+`) \| (.+) \|$", text, re.MULTILINE):
        keys = line[1]
        for words, instead in PROSE.items():
            keys = keys.replace(words, instead)
        for command in re.findall(r"`([^`]+)`", line[0]):
            found[command] = keys
    return found


def parsed(text: str) -> Keys:
    """`a, b {c, d}, e [{f}], g {name: h}` as keys with what is inside, None where nothing is said."""
    found: Keys = {}
    for name, inside in re.findall(r"(\w+)(?: (\[?\{(?:[^{}]|\{[^{}]*\})*\}\]?))?(?:, |$)", text):
        told = inside.strip("[]")[1:-1]
        found[name] = parsed(told) if told and ": " not in told else None
    return found


def keys_of(kind: inspect.Type) -> Keys | None:
    """The keys of a struct, in lists, tuples and mappings too; None for what has none of its own."""
    match kind:
        case inspect.StructType(fields=fields):
            return {field.encode_name: keys_of(field.type) for field in fields}
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return keys_of(inner)
        case inspect.CollectionType(item_type=inner) | inspect.DictType(value_type=inner):
            return keys_of(inner)
        case inspect.TupleType(item_types=inners) | inspect.UnionType(types=inners):
            return next((keys for each in inners if (keys := keys_of(each))), None)
    return None


def assert_same(told: Keys, real: Keys | None, where: str) -> None:
    assert real is not None, where
    assert sorted(told) == sorted(real), where
    for name, inside in told.items():
        if inside is not None:
            assert_same(inside, real[name], f"{where}: {name}")


def test_every_command_is_described() -> None:
    found = described()
    assert {name.partition(" ")[0] for name in found} == {command.name for command in COMMANDS}
    assert found.keys() == {*DOCUMENTS, SCENARIOS}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_the_described_keys_are_those_of_the_document(command: str) -> None:
    text = described()[command]
    if text.startswith("{"):
        text = text.partition(": ")[2].removesuffix("}")[1:-1]
    told = parsed(text)
    assert len(told) > 1
    assert_same(told, keys_of(msgspec.inspect.type_info(DOCUMENTS[command])), command)


def test_the_described_keys_are_those_of_the_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(parsed(described()[SCENARIOS].strip("[]{}"))) == list(document[0])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_document_is_utf_8_whatever_the_locale(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, errors="replace"))
    document = {"out": "größer ☃", "runs": 1, "share": 0.1}
    print_json(document)
    assert json.loads(written.getvalue().decode("utf-8")) == document
