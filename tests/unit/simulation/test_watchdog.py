"""The limits of one test, in pytest runs of their own: a test that spins is ended, a process needs a mark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.simulation.pytest_runs import Runs, outcomes

ROOT = Path(__file__).parents[3]
CONFTEST = """
    from tests import watchdog
    from tests.conftest import processes, pytest_asyncio_loop_factories, pytest_configure

    watchdog.REPEAT_S, watchdog.GRACE_S = 0.5, 3
"""
SPINS = """
    import asyncio, threading, pytest

    pytestmark = pytest.mark.timeout(1)

    def test_plain():
        while True:
            pass

    def test_swallowed():
        try:
            while True:
                pass
        except KeyboardInterrupt:
            pass

    def test_in_a_thread():
        thread = threading.Thread(target=threading.Event().wait, name="waits-forever", daemon=True)
        thread.start()
        thread.join()

    async def in_its_own_task():
        while not asyncio.get_running_loop().is_closed():
            await asyncio.sleep(0)

    async def in_another_task():
        await asyncio.create_task(in_its_own_task(), name="never-done")

    async def in_a_callback():
        def spin():
            while True:
                pass
        asyncio.get_running_loop().call_soon(spin)
        await asyncio.Event().wait()

    SPINS = pytest.mark.parametrize("spins", [in_its_own_task, in_another_task, in_a_callback])

    @SPINS
    @pytest.mark.real
    async def test_on_a_real_loop(spins):
        await spins()

    @SPINS
    async def test_on_the_virtual_loop(spins):
        await spins()

    @pytest.mark.timeout(100)
    def test_after_them():
        pass
"""


@pytest.fixture
def limited(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Runs(tmp_path)


def test_a_test_that_spins_is_ended_with_all_stacks(limited: Runs) -> None:
    printed = limited(SPINS, "-o", "asyncio_mode=auto", conftest=CONFTEST)
    assert outcomes(printed) == {"failed": 9, "passed": 1}, printed
    assert printed.count("takes more than 1 s.") >= 9
    assert "Thread waits-forever:" in printed
    for task in ("Task", "VirtualTask"):
        assert f"Stack for <{task} pending name='never-done'" in printed
    assert "in in_its_own_task" in printed


def test_a_test_that_catches_everything_is_ended_with_its_process(limited: Runs) -> None:
    tests = """
        import pytest

        @pytest.mark.timeout(1)
        def test_that_never_ends():
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass

        def test_after_it():
            pass
        """
    printed = limited(tests, "-n1", conftest=CONFTEST)
    assert outcomes(printed) == {"failed": 1, "passed": 1}, printed
    assert "crashed while running 'test_it.py::test_that_never_ends'" in printed
    assert "Timeout (0:00:0" in printed
    assert "in test_that_never_ends" in printed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such waiting is not known")
def test_a_test_that_waits_for_a_processor_has_more_time(limited: Runs) -> None:
    tests = """
        import os, subprocess, sys, pytest
        from time import process_time
        from fencepost import simulated
        from fencepost.simulation.world.run import run_world

        CLOCK = (process_time,)  # a simulated world does not find it here

        def spin(seconds):
            began = CLOCK[0]()
            while CLOCK[0]() < began + seconds:
                pass

        @pytest.fixture(scope="module", autouse=True)
        def busy(processes):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
            yield
            for each in others:
                each.kill()
                each.wait()

        @pytest.mark.timeout(2)
        def test_that_computes():
            spin(1)

        @simulated(seeds=1)
        async def spins(world):
            spin(1)

        @pytest.mark.timeout(4)
        def test_in_a_world():
            made = spins.simulated
            assert not run_world(made.function, made.settings, 1).failed

        @pytest.mark.timeout(0.5)
        def test_that_takes_too_long():
            spin(1)
        """
    printed = limited(tests, conftest=CONFTEST)
    assert outcomes(printed) == {"passed": 2, "failed": 1}, printed
    assert "test_that_takes_too_long takes more than 0.5 s." in printed


def test_tests_that_share_a_fixture_tell_where_it_ran_out_of_time(limited: Runs) -> None:
    tests = """
        import pytest

        pytestmark = pytest.mark.timeout(0.5)

        @pytest.fixture(scope="module")
        def shared():
            while True:
                pass

        def test_first(shared):
            pass

        def test_second(shared):
            pass
        """
    printed = limited(tests, conftest=CONFTEST)
    assert outcomes(printed) == {"error": 2}, printed
    assert printed.count("Fixture shared: test_it.py::test_first takes more than 0.5 s.") >= 2


def test_a_process_wants_the_mark_or_the_fixture(limited: Runs) -> None:
    tests = """
        import contextlib, os, subprocess, sys, pytest

        def test_unasked():
            subprocess.run([sys.executable, "-c", ""], check=True)

        def test_unasked_and_swallowed():
            with contextlib.suppress(BaseException):
                os.fork()

        @pytest.mark.processes
        def test_marked():
            subprocess.run([sys.executable, "-c", ""], check=True)

        @pytest.fixture
        def child(processes):
            return subprocess.run([sys.executable, "-c", ""], check=True)

        def test_with_a_fixture(child):
            pass
        """
    printed = limited(tests, conftest=CONFTEST)
    assert outcomes(printed) == {"failed": 2, "passed": 2}, printed
    assert "starts a process (subprocess.Popen" in printed
    assert "starts a process (os.fork)" in printed
    assert "Mark it `processes`" in printed
