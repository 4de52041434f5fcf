"""A wrong setting, or a wrong way to run a test again, gets a message of one line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import SimulatedWorld, run_simulated
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.world import spread
from fencepost.simulation.world.failure import explain, read_world_failure

SETTINGS: dict[str, Any] = {"topics": {"orders": 1}, "faults": (), "processes": 1, "seeds": 1}


async def nothing(world: SimulatedWorld) -> None:
    """Do nothing."""


@fencepost.simulated(**SETTINGS)
async def right_test(world: SimulatedWorld) -> None:
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"always": 5}, "always=5: expected a list of seeds"),
        ({"always": ["6"]}, "always='6': expected a whole number, 0 or more"),
        ({"claims": "order"}, "claims='order': expected a list of claims"),
        ({"claims": 5}, "claims=5: expected a list of claims"),
        ({"config": ["a"]}, r"config=\['a'\]: expected values by Kafka's names"),
        ({"deploys": "no"}, "deploys"),
        ({"faults": "loss"}, "faults='loss': expected a mapping, such as"),
        ({"faults": 5}, "faults=5: expected a mapping, such as"),
        ({"faults": ["loss"]}, "faults: 'loss' is no fault of a world, .* give a mapping, such as"),
        ({"faults": {"loss": True}}, "faults: loss: True: expected settings, such as .*, or None"),
        ({"faults": {"loss": {"every": "0s"}}}, "faults: loss: every: expected at least 1ms, got 0s"),
        ({"processes": 0}, "processes=0: expected a whole number, 1 or more"),
        ({"faults": {"member-crush": None}}, "'member-crush' is no fault, .* did you mean member-crash"),
        ({"faults": {"loss": {"every": "soon"}}}, "faults: loss: .*expected a duration"),
        ({"claims": ["twice"]}, "claims: 'twice' is no claim, expected some of at-least-once"),
        ({"seeds": 0}, "seeds"),
        ({"brokers": 0}, "brokers"),
        ({"config": {"group.nonsense": 1}}, "group.nonsense"),
    ],
)
def test_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FencepostError, match=message):
        fencepost.simulated(**settings)(nothing)


def test_function_with_further_parameters_is_refused() -> None:
    async def test(world: SimulatedWorld, tmp_path: Path) -> None:
        """Use a fixture."""

    with pytest.raises(FencepostError, match=r"tmp_path.*takes a world and nothing else"):
        fencepost.simulated()(test)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda world: world.process("kafka", asyncio.Event().wait), "stands for a host already"),
        (lambda world: world.process("localhost", asyncio.Event().wait), "stands for a host already"),
        (lambda world: world.process("10.0.0.9", asyncio.Event().wait), "stands for a host already"),
        (lambda world: world.process("b", asyncio.Event().wait).freeze("x"), "freeze='x': expected seconds"),
        (lambda world: world.process("b", asyncio.Event().wait).slow(-1), "slow=-1: expected seconds"),
        (lambda world: world.process("b", asyncio.Event().wait).stop(grace="x"), "grace='x': expected"),
        (lambda world: world.produce("orders", 5), "'orders', 5.: expected text, bytes, None"),
        (lambda world: world.settled("x"), "timeout='x': expected seconds"),
    ],
)
def test_wrong_argument_is_refused(call: Any, message: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        async def apply() -> None:
            if (waiting := call(world)) is not None:
                await waiting

        with pytest.raises(FencepostError, match=message):
            await apply()
        for program in world.programs.values():
            program.kill()

    result = run_simulated(test, topics={"orders": 1}, faults=())
    assert result.violations == [], result.trouble


@pytest.mark.parametrize("text", ["--5", "²", "x", ""])
def test_seed_of_the_environment_must_be_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SEED", text)
    with pytest.raises(FencepostError, match=r"FENCEPOST_SEED=.*: expected a whole number"):
        right_test()


def _failure_of(test: Any, tmp_path: Path) -> Path:
    result = test.simulated.run(1)
    explain(test.simulated.function, test.simulated.settings, result, command="", folder=tmp_path)
    (document,) = tmp_path.glob("*.json")
    return document


def test_failure_of_another_test_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @fencepost.simulated(**SETTINGS)
    async def wrong_test(world: SimulatedWorld) -> None:
        raise AssertionError("no")

    monkeypatch.setenv("FENCEPOST_FAILURE", str(_failure_of(wrong_test, tmp_path)))
    with pytest.raises(FencepostError, match="is a failure of wrong_test, and this is right_test"):
        right_test()


def test_smaller_failure_is_that_of_the_same_line(tmp_path: Path) -> None:
    @fencepost.simulated(topics={"orders": 1}, faults={"member-crash": {"every": "10s"}})
    async def test_of_two_lines(world: SimulatedWorld) -> None:
        crashing = world.process("a", asyncio.Event().wait)
        await asyncio.sleep(59)
        assert crashing.generation == 0, "it was down"
        raise AssertionError("it was never down")

    document = _failure_of(test_of_two_lines, tmp_path)
    failure = read_world_failure(str(document))
    assert failure.invariant == "raised AssertionError"
    assert len(failure.plan.entries) == 1


@pytest.mark.processes
def test_child_that_ends_without_a_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(EnvironmentLacks, match="ended with status 0 and no result"):
        right_test()


def test_processes_are_counted_where_no_affinity_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert spread.child_count(None, 200) == 3
