"""One seed has one digest: in each repeat, in each process, whatever Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost import SimulatedWorld, run_simulated, simulated
from fencepost.simulation.world.spread import HASH_SEED
from tests.unit.simulation.world.programs_of_users import commit_after, produce_orders

TOPICS = {"orders": 4}
REPEATS = 10


@simulated(seeds=3, topics=TOPICS, duration=15, processes=2)
async def orders_are_done(world: SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", commit_after, world.done)
    world.process("shop", produce_orders, 40, 12.0)
    await world.settled()


@simulated(seeds=3, topics=TOPICS, duration=15, processes=1)
async def orders_are_done_in_one_process(world: SimulatedWorld) -> None:
    await orders_are_done.simulated.function(world)


def test_digests_are_equal_whatever_the_processes_and_their_hash_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = []
    for hash_seed in ("1", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        digests.append(orders_are_done.simulated.check().digests)
    digests.append(orders_are_done_in_one_process.simulated.check().digests)
    assert digests[0].keys() == {1, 2, 3}
    assert len(set(digests[0].values())) == 3
    assert all(each == digests[0] for each in digests)


_REPEATED = """
import sys
from tests.unit.simulation.world.test_world_determinism import orders_are_done
run = orders_are_done.simulated.run
for _ in range(int(sys.argv[1])):
    print(run(3).digest, flush=True)
"""


@pytest.mark.parametrize("repeats", [3, pytest.param(REPEATS, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_repeats_in_one_process_have_the_same_digest(repeats: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REPEATED, str(repeats)],
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    digests = done.stdout.split()
    assert len(digests) == repeats
    assert len(set(digests)) == 1


def test_run_before_leaves_nothing_behind() -> None:
    async def other(world: SimulatedWorld) -> None:
        world.process("shop", produce_orders, 5, 1.0)
        await world.faults_over.wait()

    run = orders_are_done.simulated.run
    first = run(2).digest
    run_simulated(other, 9, topics=TOPICS, duration=5)
    assert run(2).digest == first
