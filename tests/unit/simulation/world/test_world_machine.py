"""What a program sees of the machine in a world: clocks, randomness, and refusals."""

from __future__ import annotations

import asyncio
import datetime
import os
import pickle
import random
import resource
import secrets
import select
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka
import numpy
import pytest

from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.world.substitutes import EPOCH_S
from tests.unit.simulation.world.test_world_network import virtually


async def _seen() -> list[Any]:
    before = time.monotonic(), time.perf_counter_ns(), time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
    await asyncio.sleep(3.5)
    after = time.monotonic(), time.perf_counter_ns(), time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
    times = [round(b - a, 6) for a, b in zip(before, after, strict=True)]
    now = datetime.datetime.now(datetime.UTC).isoformat(), time.strftime("%Y", time.gmtime()), time.time_ns()
    draws = (
        random.random(),
        random.Random().random(),
        random.SystemRandom().random(),
        uuid.uuid4(),
        uuid.uuid1(),
        os.urandom(8),
        os.getrandom(8),
        secrets.token_hex(8),
        ssl.RAND_bytes(8),
        numpy.random.rand(),  # programs have it
        next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
    )
    texts = time.ctime(), time.asctime(), time.ctime(0), time.asctime(time.gmtime(0))
    return [times, (*now, *texts), draws, os.getpid(), socket.gethostname()]


async def _imports_and_draws() -> float:
    import numpy.random

    return float(numpy.random.rand())


def test_numpy_follows_the_seed_also_if_a_program_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = virtually(_imports_and_draws, seed=7)
    for name in [each for each in sys.modules if each.startswith("numpy.random")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(numpy, "random")
    assert virtually(_imports_and_draws, seed=7) == known


def test_clocks_and_randomness_are_those_of_the_seed() -> None:
    first = virtually(_seen, seed=7)
    assert first == virtually(_seen, seed=7)
    assert first[0] == [3.5, 3_500_000_000, 3.5, 3.5]
    today, begin = "Thu Jan  1 00:00:03 2026", "Thu Jan  1 00:00:00 1970"
    assert first[1][:3] == ("2026-01-01T00:00:03.500000+00:00", "2026", (EPOCH_S * 10 + 35) * 10**8)
    assert first[1][3:] == (today, today, begin, begin)
    others = virtually(_seen, seed=8)[2]
    assert all(mine != other for mine, other in zip(first[2], others, strict=True))


def test_machine_is_restored_after_a_run() -> None:
    random.seed(5)
    numpy.random.seed(5)  # programs have it
    expected = random.Random(5).random(), numpy.random.RandomState(5).rand()

    def names() -> list[Any]:
        kept = [time.monotonic, time.sleep, os.urandom, socket.socket]
        return [*kept, threading.Thread.start, random.Random.seed]

    before = names()
    virtually(_seen)
    assert (random.random(), numpy.random.rand()) == expected
    assert names() == before
    assert abs(time.time() - datetime.datetime.now(datetime.UTC).timestamp()) < 5
    assert time.time() > EPOCH_S


def test_functions_of_the_machine_are_pickled_by_their_names() -> None:
    async def kept() -> list[Any]:
        calls: list[Any] = [
            time.sleep,
            time.clock_gettime,
            os.urandom,
            os.getrandom,
            os.getpid,
            socket.gethostname,
        ]
        calls += [select.select, select.poll, select.epoll, asyncio.all_tasks, signal.signal, sqlite3.connect]
        assert pickle.loads(pickle.dumps(calls)) == calls
        return calls

    calls = virtually(kept)
    assert pickle.loads(pickle.dumps(calls)) == calls, "and after the run"


def test_another_thread_keeps_the_real_machine() -> None:
    seen: list[float] = []
    ready, go = threading.Event(), threading.Event()

    def look() -> None:
        ready.set()
        go.wait()
        seen.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    ready.wait()

    async def main() -> None:
        go.set()
        while thread.is_alive():  # noqa: ASYNC110  # it ends once it has seen the time
            await asyncio.sleep(0.001)

    before = time.monotonic()
    virtually(main)
    thread.join()
    assert before <= seen[0] <= time.monotonic()


@pytest.mark.parametrize(
    ("call", "name", "instead"),
    [
        (lambda: threading.Thread(target=print).start(), "threading.Thread.start()", "asyncio.to_thread()"),
        (lambda: subprocess.run(["true"], check=True), "subprocess.Popen()", "world.process()"),
        (lambda: os.fork(), "os.fork()", "world.process()"),  # noqa: PLW0108  # looked up in the run
        (lambda: os._exit(3), "os._exit()", "sys.exit()"),
        (lambda: select.select([], [], [], 1), "select.select()", "asyncio's streams, or a timeout of 0"),
        (lambda: threading.Event().wait(1), "a wait for another thread (threading, queue", "asyncio"),
        (lambda: os.kill(os.getpid(), 0), "os.kill()", "program.stop()"),
        (lambda: asyncio.new_event_loop(), "asyncio.new_event_loop()", "the loop that runs"),  # noqa: PLW0108
        (lambda: time.sleep(1), "time.sleep()", "await asyncio.sleep()"),
        (lambda: confluent_kafka.Consumer({}), "confluent_kafka.Consumer()", "aiokafka"),
        (
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "socket.socket(AF_INET, SOCK_DGRAM)",
            "a TCP",
        ),
    ],
)
def test_refusal_names_the_call_the_reason_and_what_to_use(
    call: Callable[[], object], name: str, instead: str
) -> None:
    async def main() -> None:
        with pytest.raises(OutsideWorld) as refused:
            call()
        text = str(refused.value)
        assert text.startswith(name)
        assert " can't run in a simulated world: " in text
        assert f"Use {instead}" in text
        assert "test_world_machine.py:" in text

    virtually(main)


def test_worker_threads_run_their_function_at_once() -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(max, 3, 4) + await loop.run_in_executor(None, min, 1, 2), loop.time()

    assert virtually(main) == (5, 0.0)


def test_names_and_addresses_are_looked_up_in_the_world() -> None:
    async def main() -> list[Any]:
        host = asyncio.get_running_loop().network.add_host("prices")  # type: ignore[attr-defined]
        return [
            host.address,
            socket.gethostbyname_ex("prices"),
            socket.gethostbyaddr("prices"),
            socket.getnameinfo((host.address, 80), 0),
        ]

    address, *found = virtually(main)
    assert found == [("prices", [], [address]), ("prices", [], [address]), ("prices", "80")]


def test_virtual_descriptor_is_none_of_the_machine() -> None:
    async def main() -> None:
        with socket.socket() as sock, pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sock.fileno())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == resource.RLIM_INFINITY

    virtually(main)
