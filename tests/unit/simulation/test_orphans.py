"""Programs that tests have started end when a process of pytest is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fencepost.simulation.lab.clusters.processes import look_at
from tests.forks import LOOP_SCOPE, PYTEST
from tests.waiting import until

ROOT = Path(__file__).parents[3]
CONFTEST = "from tests.conftest import processes, pytest_configure"
TEST = """
    import json, os, pathlib, subprocess, sys, time
    from tests.orphans import shared_by_the_run

    SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
    STARTS = f"import subprocess; print(subprocess.Popen({SLEEPS}).pid, flush=True); {SLEEPS[2]}"

    def test_that_never_ends(processes):
        own = subprocess.Popen([*SLEEPS[:2], STARTS], stdout=subprocess.PIPE, start_new_session=True)
        with shared_by_the_run():
            shared = subprocess.Popen(SLEEPS)
        pids = {"run": os.getppid(), "worker": os.getpid(), "own": own.pid}
        pids |= {"grandchild": int(own.stdout.readline()), "shared": shared.pid}
        written = pathlib.Path("written")
        written.write_text(json.dumps(pids))
        written.rename("pids")
        while True:
            time.sleep(1)
    """


@pytest.fixture
async def pids(processes: None, tmp_path: Path) -> AsyncIterator[dict[str, int]]:
    """The processes of a run with one worker, whose test has started some."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TEST))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    words = [sys.executable, *PYTEST, *LOOP_SCOPE, "-n1", "test_it.py"]
    environment = plain | {"PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    run = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=environment, stdout=quiet)
    file = tmp_path / "pids"
    await until(file.exists)
    found = json.loads(file.read_text())
    yield found
    with contextlib.suppress(ProcessLookupError):
        run.kill()
    await run.wait()
    await until(lambda: not any(map(look_at, found.values())))


@pytest.mark.real
async def test_of_a_killed_worker(pids: dict[str, int]) -> None:
    os.kill(pids["run"], signal.SIGSTOP)  # it would begin with another worker
    os.kill(pids["worker"], signal.SIGKILL)
    await until(lambda: not look_at(pids["own"]) and not look_at(pids["grandchild"]))
    assert look_at(pids["shared"])


@pytest.mark.real
async def test_of_a_killed_run(pids: dict[str, int]) -> None:
    os.kill(pids["run"], signal.SIGKILL)
    await until(lambda: not any(map(look_at, pids.values())))
