"""Recorded answers: 400 sequences of Kafka 4.3.1's assignors, 300 of RabbitMQ's single active consumers."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from fencepost.coordinator.assign import registry
from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.assign.uniform import uniform
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.sac.draft import GroupDraft
from fencepost.simulation.lab.conform import vectors
from fencepost.simulation.lab.conform.sac_vectors import SacSequence, in_words, recorded
from fencepost.simulation.lab.conform.vectors import replay_vectors
from fencepost.simulation.sac import model

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
ASSIGNORS = VECTORS / "assignors.jsonl.gz"

STEP = {
    "topics": {"t": 3},
    "members": {"m0": {"topics": ["t"], "instance": None}, "m1": {"topics": ["t"], "instance": None}},
    "current": {},
    "target": {"m0": {"t": [0, 1]}, "m1": {"t": [2]}},
}


def written(path: Path, **changes: object) -> Path:
    sequence = {"seed": 7, "assignor": "range", "steps": [{**STEP, **changes}]}
    path.write_bytes(msgspec.json.encode(sequence) + b"\n")
    return path


def test_every_answer_of_kafka_is_met() -> None:
    report = replay_vectors(ASSIGNORS)
    assert report.requests == 2400
    assert report.differences == []
    assert {rule.rule: rule.verdict for rule in report.rules} == {
        "range.target": "equal",
        "uniform.moves": "equal",
        "uniform.sizes": "equal",
        "uniform.valid": "equal",
    }


def test_every_answer_of_rabbitmq_is_met() -> None:
    report = replay_vectors(VECTORS / "sac.jsonl.gz")
    assert report.requests == 300 * 30
    assert report.differences == []
    assert {rule.rule: rule.verdict for rule in report.rules} == {
        "sac.effects": "equal",
        "sac.reply": "equal",
        "sac.state": "equal",
    }


def test_the_model_of_the_judge_gives_every_answer_of_rabbitmq() -> None:
    for line in gzip.decompress((VECTORS / "sac.jsonl.gz").read_bytes()).splitlines():
        known = model.NOTHING
        for step in msgspec.json.decode(line, type=SacSequence).steps:
            known, reply, effects = model.expect(known, step.event(), None, 0)
            assert in_words(reply, effects, known.groups, known.connections, known.conf) == recorded(step)


def test_a_coordinator_that_never_steps_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: GroupDraft, current: int) -> None:
        return None

    monkeypatch.setattr(GroupDraft, "_step_down_if_wrong", careless)
    report = replay_vectors(VECTORS / "sac.jsonl.gz")
    assert {rule.rule for rule in report.rules if rule.verdict == "different"} >= {"sac.effects", "sac.state"}


def test_an_assignor_that_forgets_its_target_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(spec: GroupSpec) -> object:
        return uniform(msgspec.structs.replace(spec, targets={}))

    monkeypatch.setattr(vectors, "BUILT_IN", {**registry.BUILT_IN, "uniform": forgetful})
    report = replay_vectors(ASSIGNORS)
    assert {rule.rule for rule in report.rules if rule.verdict == "different"} >= {"uniform.moves"}
    assert all(difference.schedule.startswith("seed ") for difference in report.differences)


def test_a_wrong_answer_is_named_by_rule_seed_and_step(tmp_path: Path) -> None:
    path = written(tmp_path / "v.jsonl", target={"m0": {"t": [0]}, "m1": {"t": [1, 2]}})
    report = replay_vectors(path)
    assert [(d.rule, d.schedule) for d in report.differences] == [("range.target", "seed 7 step 0")]
    assert [(r.rule, r.verdict) for r in report.rules] == [("range.target", "different")]


def test_a_file_that_is_not_compressed_is_read_too(tmp_path: Path) -> None:
    assert replay_vectors(written(tmp_path / "v.jsonl")).differences == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topics": {"t": "3"}}, r"line 1 .*Expected `int`, got `str`"),
        ({"topics": {}}, r"line 1, step 0: m0 subscribes to t, which is no topic there"),
        ({"current": {"m9": {"t": [0]}}}, r"m9 has partitions and is no member"),
        ({"current": {"m0": {"t": [3]}}}, r"m0 has partition 3 of t, which does not exist"),
        ({"command": 1}, r"unknown field `command`"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(FencepostError, match=message):
        replay_vectors(written(tmp_path / "v.jsonl", **changes))


def sac_step(command: dict[str, object]) -> bytes:
    """A file with that one command."""
    step = {"command": command, "reply": "ok", "effects": [], "state": {}}
    return msgspec.json.encode({"seed": 1, "steps": [step]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no vectors"),
        (b"\xff\xfe{}\n", "line 1 is not an assignor sequence"),
        (gzip.compress(b'{"seed"' * 100, mtime=0)[:-12], "damaged gzip file"),
        (b'{"seed": 1, "assignor": "sticky", "steps": []}\n', "'sticky' is not one of uniform, range"),
        (sac_step({"op": "vote"}), "no such command: {'op': 'vote'}"),
        (sac_step({"op": "activate", "stream": "s"}), "no such command"),
        (sac_step({"op": "nodeup", "node": "n", "colour": "red"}), "no such command"),
        (sac_step({"op": "nodeup", "node": 1}), "Expected `str`, got `int`"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "v.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(FencepostError, match=message):
        replay_vectors(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FencepostError, match="no such file"):
        replay_vectors(tmp_path / "absent")
