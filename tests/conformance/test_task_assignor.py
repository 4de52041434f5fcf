"""Kafka's own task assignor as a judge: the same tasks for the same members, ties included."""

from __future__ import annotations

import subprocess

import msgspec
import pytest

from fencepost.coordinator.assign.tasks import TaskGroupSpec, TaskMember, sticky
from fencepost.coordinator.protocol.streams import NO_TASKS, Tasks

pytestmark = pytest.mark.real

SEQUENCES = 300
Assignment = tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]


class Step(msgspec.Struct):
    tasks: dict[str, int]
    stateful: list[str]
    standbys: int
    members: dict[str, str]
    current: dict[str, Assignment]
    target: dict[str, Assignment]

    def spec(self) -> TaskGroupSpec:
        current = {member: Tasks(*tasks) for member, tasks in self.current.items()}
        return TaskGroupSpec(
            members={
                member: TaskMember(process, current.get(member, NO_TASKS))
                for member, process in self.members.items()
            },
            tasks=self.tasks,
            stateful=frozenset(self.stateful),
            num_standby_replicas=self.standbys,
        )


class Sequence(msgspec.Struct):
    seed: int
    steps: list[Step]


def test_it_gives_the_same_tasks_to_the_same_members(java_programs):
    command = [*java_programs.command("TaskAssignorJudge"), "1", str(SEQUENCES)]
    lines = subprocess.run(command, check=True, capture_output=True, timeout=100).stdout.splitlines()
    assert len(lines) == SEQUENCES
    for line in lines:
        sequence = msgspec.json.decode(line, type=Sequence)
        for number, step in enumerate(sequence.steps):
            expected = {member: Tasks(*tasks) for member, tasks in step.target.items()}
            assert sticky(step.spec()) == expected, f"seed {sequence.seed}, step {number}"
