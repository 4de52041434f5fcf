"""Programs in forks of a process that has imported the project, which takes longer than most of them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
PRELOADED = [
    "aiokafka",
    "confluent_kafka",
    "pytest",
    "fencepost.simulation.cli",
    "fencepost.simulation.embedded.kafka",
    "fencepost.simulation.run",
]
"""No plugin of pytest: it rewrites these when it imports them, and warns if it is too late."""
PLUGIN = "fencepost.simulation.embedded.pytest_plugin"
_INSTALLED = any(each.value == PLUGIN for each in entry_points(group="pytest11"))
PYTEST = (
    *("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
    *(() if _INSTALLED else ("-p", PLUGIN)),
)
"""Words behind `python`: pytest with the plugin. To import hypothesis takes longer than all the rest."""
LOOP_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
"""A setting of pytest-asyncio, which warns while it is unset."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(PRELOADED)


def run_forked(
    words: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` in a folder, and return its exit status with all that it printed.

    The words are options `-W`, then `-m MODULE` or a file, then its arguments.

    :raises subprocess.TimeoutExpired: if it takes longer; it is killed.
    """
    output = folder.with_name(f"{folder.name}.printed")
    variables = dict(os.environ if environment is None else environment)
    process = _FORKS.Process(target=_run, args=(list(words), str(folder), variables, str(output)))
    process.start()
    try:
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout_s, output.read_bytes())
        return subprocess.CompletedProcess(list(words), process.exitcode, output.read_text())
    finally:
        process.close()
        output.unlink(missing_ok=True)


def _run(words: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(printed, stream.fileno())
    while words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        del words[:2]
    # pytest would rewrite the asserts of plugins, and warns because it is too late.
    sys.modules["fencepost"].__doc__ = "PYTEST_DONT_REWRITE"
    # The tests' own modules are no part of what a program finds.
    sys.path[:] = [each for each in sys.path if each not in ("", ROOT)]
    sys.path[:0] = environment.get("PYTHONPATH", "").split(":")
    try:
        if words[0] == "-m":
            sys.path.insert(0, folder)
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
