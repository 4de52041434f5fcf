"""RabbitMQ's own coordinator of single active consumers, out of its package, answers as ours does.

Commands are drawn by a seed; `sac_judge.escript` has them answered, and that is replayed as vectors are.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fencepost.simulation.lab.conform.vectors import replay_vectors

pytestmark = pytest.mark.real

RABBITMQ: Final = Path(__file__).parents[2] / ".ci" / "rabbitmq"
JUDGE: Final = Path(__file__).with_name("sac_judge.escript")
NODES: Final = ("n0", "n1", "n2")
COMMANDS: Final = 60


def drawn(seed: int) -> Iterator[dict[str, Any]]:
    """Commands about a few connections on a few nodes; how often each comes goes by the seed too."""
    rng = random.Random(seed)
    nodes = NODES[: rng.randint(1, 3)]
    connections = [f"k{number}@{nodes[number % len(nodes)]}" for number in range(rng.choice([2, 3, 5]))]
    groups = [
        {"stream": f"s{rng.randrange(3)}", "name": rng.choice(["app", "other"])}
        for _ in range(rng.randint(1, 3))
    ]
    index = {f"s{number}": rng.choice([-1, 0, 1, 2]) for number in range(3)}
    weights = {
        "register": rng.choice([4, 8]),
        "unregister": rng.choice([1, 4]),
        "activate": rng.choice([1, 4]),
        "down": rng.choice([0.5, 3]),
        "timeout": rng.choice([0.3, 3]),
        "reconnected": rng.choice([0.5, 3]),
        "nodeup": rng.choice([0.3, 2]),
        "evaluate": rng.choice([0.2, 2]),
        "purge": rng.choice([0, 0.5]),
        "conf": 0.1,
    }
    for op in rng.choices([*weights], [*weights.values()], k=COMMANDS):
        connection, group, sub = rng.choice(connections), rng.choice(groups), rng.randrange(3)
        wrong = rng.random() < 0.1
        fields: dict[str, dict[str, Any]] = {
            "register": {
                "pi": rng.choice([-1, 0, 1, 2]) if wrong else index[group["stream"]],
                "conn": connection,
                "sub": sub,
                **group,
            },
            "unregister": {"conn": connection, "sub": sub, **group},
            "activate": group,
            "down": {
                "conn": connection,
                "reason": rng.choice(["normal", "noconnection", "noconnection", "noproc"]),
            },
            "timeout": {"conn": connection},
            "reconnected": {"conn": connection},
            "nodeup": {"node": rng.choice(NODES)},
            "evaluate": {**group, "dead": [each for each in connections if rng.random() < 0.3]},
            "purge": {"nodes": [rng.choice(NODES)]},
            "conf": {"conf": {"disconnected_timeout": rng.choice([1_000, 60_000])}},
        }
        yield {"op": op, **fields[op]}


def judged(sequences: str) -> str:
    """What RabbitMQ answers, a sequence a line."""
    run = """judge=$(mktemp); trap 'rm -f "$judge"' EXIT; printf %s "$0" >"$judge"; escript "$judge" """
    done = subprocess.run(
        [RABBITMQ, "run", "sh", "-c", run, JUDGE.read_text()],
        input=sequences,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_each_command_is_answered_as_by_rabbitmq(tmp_path: Path) -> None:
    sequences = 500
    lines = (
        json.dumps({"seed": seed, "steps": [{"command": command} for command in drawn(seed)]})
        for seed in range(sequences)
    )
    answers = tmp_path / "answers.jsonl"
    answers.write_text(judged("\n".join(lines) + "\n"))
    report = replay_vectors(answers)
    assert report.differences == []
    assert report.requests == sequences * COMMANDS
