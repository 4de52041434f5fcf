"""Runs of seeds in processes of their own, each forked from one that no run has touched.

So no seed finds what another one has left in a module, and a failing seed can be repeated from the same
state. A repeat gets other addresses for its objects: a program that depends on them shows it.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest, run_world
from fencepost.simulation.world.shaking import shake
from fencepost.simulation.world.world import SimulatedWorld

R = TypeVar("R")

_MANY: Final = 4
_WARM: Final = "fencepost-warm-up"
_RECORDS: Final = 60
_template: list[bool] = []
"""Not empty in a process whose runs are forked from it."""


def become_template(settings: WorldSettings, seeds: int) -> None:
    """Fork each run from this process from now on, if it has no other threads.

    A small run first loads what all runs need. For several seeds, it also lets Python specialize the code of
    brokers and clients, once for all of them.
    """
    if hasattr(os, "fork") and threading.active_count() == 1:
        known = replace(settings, topics={**settings.topics, _WARM: 2})
        work = _nothing if seeds < _MANY or find_spec("aiokafka") is None else _warm_up
        run_world(work, known, 0, plan=FaultPlan(entries=(), faults_end_us=0, end_us=0, members=1))
        gc.collect()
        gc.freeze()
        _template.append(True)


async def _nothing(_: object) -> None:
    """Do nothing."""


async def _warm_up(world: SimulatedWorld) -> None:
    import aiokafka

    settings: dict[str, Any] = {"bootstrap_servers": "kafka:9092"}

    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            _WARM, **settings, group_id=_WARM, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        async with consumer:
            async for record in consumer:
                world.done(record)
                await consumer.commit()

    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(**settings, enable_idempotence=True) as producer:
            for number in range(_RECORDS):
                await producer.send_and_wait(_WARM, b"%d" % number)

    for number in range(2):
        world.process(f"{_WARM}-{number}", consume)
    world.process(_WARM, produce)
    await world.settled()


def run_apart(
    function: WorldTest, settings: WorldSettings, seed: int, *, shaken: bool = False, **options: Any
) -> WorldResult:
    """Do the same as `run_world`, in a process forked from this one if this is a template."""

    def run() -> WorldResult:
        if shaken:
            shake(random.SystemRandom().getrandbits(64))
        return run_world(function, settings, seed, is_last=is_last, **options)

    is_last = bool(_template)
    return in_fork(run, f"the process that ran seed {seed}") if is_last else run()


def in_fork(work: Callable[[], R], who: str) -> R:
    """Run a function in a forked process, and return its result or raise its exception.

    :raises EnvironmentLacks: if the process dies.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work_here(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not found:
        raise EnvironmentLacks(
            f"{who} ended with status {os.waitstatus_to_exitcode(status)} and no result; what it wrote to "
            "stderr says why"
        )
    is_result, value = pickle.loads(found)
    if not is_result:
        raise value
    result: R = value
    return result


def _work_here(work: Callable[[], Any], pipe: int) -> None:
    """Write the result of a function to a pipe, and end this process."""
    status = 1
    try:
        _template.clear()
        try:
            answer = (True, work())
        except BaseException as error:
            answer = (False, error)
        try:
            found = pickle.dumps(answer)
        except Exception:
            found = pickle.dumps((False, EnvironmentLacks(str(answer[1]))))
        with os.fdopen(pipe, "wb") as out:
            out.write(found)
        atexit._run_exitfuncs()  # a measurement of coverage writes what it has
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)
