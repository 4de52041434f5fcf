"""Spreads the seeds of a test over child processes with a fixed hash seed, and collects their results.

Libraries such as aiokafka iterate over sets of strings, whose order depends on the hash seed of the process.
A child has `PYTHONHASHSEED=0`, so that a seed gives the same run in every child and on every machine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.reading import visible
from fencepost.simulation.world.apart import become_template
from fencepost.simulation.world.crashes import Crash
from fencepost.simulation.world.sweep import Sweep
from fencepost.simulation.world.template import fork_first

HASH_SEED: Final = "0"
_PASSED: Final = b"passed\n"
"""The line that a child writes after each seed that passes."""
_SHOW_S: Final = 0.5


class Shrinking(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for making a kept failure smaller."""

    out: str
    """The file for the small failure."""
    tries: int
    """The limit on runs."""


class SeedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a child process: run seeds of a test until one fails, and explain that one."""

    path: list[str]
    """The parent's `sys.path`."""
    module: str
    file: str
    name: str
    """The test function's qualified name in its module."""
    seeds: list[int]
    failure: str = ""
    """The file of a failure that is to be run instead."""
    command: str = ""
    logs: bool = False
    shrinks: Shrinking | None = None
    """If it is set, the failure is made smaller, and not only run."""


class SeedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a child process. The first seed that failed has a text."""

    digests: dict[int, str] = {}
    virtual_seconds: float = 0.0
    records_done: int = 0
    crashes: dict[int, list[Crash]] = {}
    """Programs that an exception has ended, by seed."""
    is_whole: bool = True
    """False if a failure might become smaller with more runs."""
    failed_seed: int | None = None
    text: str = ""
    problem: str = ""
    """The reason why the test could not be run at all."""


def child_count(wanted: int | None, seeds: int) -> int:
    """Return the number of children: one for each core, or a single one under pytest-xdist."""
    if wanted is None:
        wanted = 1 if "PYTEST_XDIST_WORKER" in os.environ else _cores()
    return max(1, min(wanted, seeds))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(job: SeedJob, children: int, sweep: Sweep) -> list[SeedAnswer]:
    """Run the seeds of a job in several children. None of them outlives this call.

    :raises EnvironmentLacks: if a child dies, or the name of a file is not UTF-8.
    """
    try:
        msgspec.json.encode(job)
    except UnicodeEncodeError:
        words = (*job.path, job.file, job.failure, job.command)
        wrong = next((each for each in words if each.encode(errors="replace").decode() != each), job.name)
        raise EnvironmentLacks(f"{visible(wrong)}: expected names of files in UTF-8") from None
    parts = [msgspec.structs.replace(job, seeds=job.seeds[nth::children]) for nth in range(children)]
    running: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)  # with what it has forked

    sweep.on_end = end
    with ThreadPoolExecutor(children) as pool:
        try:
            running += [_start_child() for _ in parts]
            answers = [pool.submit(_follow, *each, sweep) for each in zip(running, parts, strict=True)]
            while wait(answers, timeout=_SHOW_S).not_done:
                sweep.show()
            return [each.result() for each in answers]
        finally:
            end()


def _start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        process_group=0,
    )


def _follow(child: subprocess.Popen[bytes], job: SeedJob, sweep: Sweep) -> SeedAnswer:
    """Give a child its job, count the seeds that pass, and return the result."""
    assert child.stdin is not None
    assert child.stdout is not None
    last = b""
    with contextlib.suppress(BrokenPipeError), child:  # to leave it closes its stdin once more
        child.stdin.write(msgspec.json.encode(job))
        child.stdin.close()
        for line in child.stdout:
            sweep.passed += line == _PASSED
            last = line
    if child.returncode or last in (b"", _PASSED):
        raise EnvironmentLacks(
            f"the process that ran seeds {job.seeds[:3]}... of {job.name} ended with status "
            f"{child.returncode} and no result; what it wrote to stderr says why"
        )
    return msgspec.json.decode(last, type=SeedAnswer)


def load_test(job: SeedJob) -> Any:
    """Return the test of a job: what `simulated` made of its function.

    :raises FencepostError: if it can't be found.
    """
    root = Path(job.file).with_suffix("")
    for _ in job.module.split("."):
        root = root.parent
    path = [*job.path, str(root)]
    sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
    spec = None
    with contextlib.suppress(ImportError, ValueError):  # a module that pytest has loaded from its file
        spec = importlib.util.find_spec(job.module)
    if spec is not None and spec.origin is not None and Path(spec.origin) == Path(job.file):
        module = importlib.import_module(job.module)
    else:
        name = job.module if job.module != "__main__" else "fencepost_simulated_main"
        spec = importlib.util.spec_from_file_location(name, job.file)
        if spec is None or spec.loader is None:
            raise FencepostError(f"{job.file}: expected a module of Python with {job.name}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in job.name.split("."):
        found = getattr(found, part)
    return found.simulated


def main() -> None:
    """Run the job on stdin, and write the result to stdout; what the test prints goes to stderr.

    Ctrl-C reaches the parent, too, which ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.dup(1)
    os.set_inheritable(out, False)
    os.dup2(2, 1)
    if hasattr(os, "fork"):
        fork_first(closes=out)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SeedJob)
    try:
        test = load_test(job)
        become_template(test.settings, len(job.seeds))
        answer = test.answer(job, partial(os.write, out, _PASSED))
    except BrokenPipeError:
        os._exit(1)  # the parent is dead
    except FencepostError as error:
        answer = SeedAnswer(problem=visible(str(error)))
    sys.stdout.flush()
    os.write(out, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
