"""A campaign on a standalone Spark cluster: a master, and executors whose Python has nothing installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pyspark
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.cli.campaign import show_campaign
from fencepost.simulation.java import find_java_home
from fencepost.simulation.pipeline.analyze import analyze
from fencepost.simulation.pipeline.campaign import CampaignResult, Lost, LostExecutor
from fencepost.simulation.pipeline.class_archive import class_archive
from fencepost.simulation.pipeline.session import SHORT_JOBS
from fencepost.simulation.pipeline.shipping import LIBRARIES, check_shared, libraries_zip
from fencepost.simulation.pipeline.traces import KEPT
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.trace.parquet import ParquetTrace
from tests.orphans import TOKENS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 240
SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = (
    f"--driver-java-options '{SHORT_JOBS}' --conf spark.executor.extraJavaOptions='{SHORT_JOBS}' "
    "--conf spark.sql.shuffle.partitions=2 --conf spark.executor.cores=1 pyspark-shell"
)


def said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """The first group of what a process wrote, once it has written it."""
    until = time.monotonic() + SECONDS
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < until, log.read_text(errors="replace")
        time.sleep(0.05)
    return found[1]


@contextlib.contextmanager
def daemon(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of Spark's own, which sees nothing of this one: neither its folder nor its paths."""
    folder.mkdir()
    log = folder / "log"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_JOBS,
        TOKENS: os.environ[TOKENS],
    }
    if (archive := class_archive()) is not None and archive.path.is_file():
        environment |= archive.environment  # executors are started with it, too
    command = [str(SPARK_HOME / "bin/spark-class"), *words, "--host", "127.0.0.1", "--webui-port", "0"]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder) as process,
    ):
        try:
            yield process, log
        finally:
            process.kill()


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for it while the process runs."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def tasks_begun(folder: Path) -> int:
    """How many tasks the executor of the worker with this folder has begun."""
    logs = folder.glob("app-*/*/stderr")
    return sum(log.read_text(errors="replace").count("Running task") for log in logs)


class Cluster:
    """A master, and workers of one core each."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0
        master, log = stack.enter_context(daemon(folder / "m", "org.apache.spark.deploy.master.Master"))
        self.url = said(log, r"Starting Spark master at (spark://\S+)", master)
        self.add_worker()

    def add_worker(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Start one, and return it with its folder."""
        self._count += 1
        folder = self._folder / str(self._count)
        worker, log = self._stack.enter_context(
            daemon(
                folder,
                *("org.apache.spark.deploy.worker.Worker", self.url, "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder)),
            )
        )
        said(log, r"(Successfully registered) with master", worker)
        return worker, folder


@pytest.fixture(scope="module")
def one_worker(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one worker, to which each test adds the one that it kills."""
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("spark"), stack)


ON_THIS_PYTHON = {
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_SUBMIT_ARGS": SUBMIT,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_campaign_on_executors_that_have_nothing_of_ours_and_of_which_one_is_killed(
    one_worker: Cluster, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    venv.create(bare, symlinks=True)
    assert subprocess.call([bare / "bin/python", "-c", "import msgspec"], stderr=subprocess.DEVNULL) == 1
    out, seeds = tmp_path / "out", 100
    worker, folder = one_worker.add_worker()
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "fencepost.simulation", "campaign", "steady"]
        command += ["--master", one_worker.url]
        command += ["--seeds", str(seeds), "--grid", "duration=150s", "--traces", "none"]
        campaign = stack.enter_context(
            subprocess.Popen(
                [*command, "--out", str(out), "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | ON_THIS_PYTHON | {"PYSPARK_PYTHON": str(bare / "bin/python")},
            )
        )
        stack.callback(campaign.kill)
        until(lambda: any((out / "runs").glob("*.parquet")), campaign)
        begun = tasks_begun(folder)
        until(lambda: tasks_begun(folder) > begun, campaign)
        worker.kill()
        printed, errors = campaign.communicate(timeout=200)
    assert campaign.returncode == 0, errors
    runs = pq.read_table(out / "runs").sort_by("seed")
    assert runs.column("seed").to_pylist() == list(range(seeds))
    scenario = load("steady", duration="150s")
    assert runs.column("digest").to_pylist()[:8] == [run(scenario, seed).digest for seed in range(8)]
    for each in (folder, folder.parent / "1"):
        assert any(each.glob("app-*/*/fencepost-libraries/msgspec/__init__.py"))
    lost = json.loads(printed)["lost"]
    assert len(lost["executors"]) == 1
    assert lost["executors"][0]["host"] == "127.0.0.1"
    assert lost["executors"][0]["reason"]
    assert 0 < lost["runs_again"] < seeds


ANALYSIS = """
import json, sys
from fencepost.simulation.pipeline import run_files
from fencepost.simulation.pipeline.analyze import analyze
run_files.ROWS_A_TASK = 1
print(json.dumps(analyze(sys.argv[1], master=sys.argv[2])))
"""
"""Each file is a task of its own."""


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_an_analysis_that_loses_a_worker_has_the_same_tables(one_worker: Cluster, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for seed in range(12):
        path = traces / f"run-{seed}.parquet"
        with ParquetTrace(path, path.stem) as trace:
            run(load("rolling-deploy"), seed % 2, trace=trace)
    expected = analyze(traces, tables="driver")
    shutil.rmtree(traces / KEPT)
    worker, folder = one_worker.add_worker()
    with contextlib.ExitStack() as stack:
        analysis = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", ANALYSIS, str(traces), one_worker.url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | ON_THIS_PYTHON,
            )
        )
        stack.callback(analysis.kill)
        until(lambda: any((traces / KEPT).glob("*.parquet")), analysis)
        begun = tasks_begun(folder)
        until(lambda: tasks_begun(folder) > begun, analysis)
        worker.kill()
        printed, errors = analysis.communicate(timeout=3 * SECONDS)
    assert analysis.returncode == 0, errors
    assert json.loads(printed) == json.loads(json.dumps(expected))


ONE = LostExecutor(executor="1", host="h", reason="worker lost")


@pytest.mark.parametrize(
    ("lost", "lines"),
    [
        (Lost(), []),
        (Lost(executors=[ONE]), ["Executor 1 on h was lost: worker lost", "No run had to be done again."]),
        (Lost(runs_again=1_200), ["1,200 runs were done again: each had lost its process."]),
        (
            Lost(executors=[ONE], runs_again=7),
            [
                "Executor 1 on h was lost: worker lost",
                "7 runs were done again: each had lost its executor.",
            ],
        ),
    ],
)
def test_people_read_what_was_lost_in_lines(
    lost: Lost, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = CampaignResult(runs=9, failed=0, violations=0, wall_seconds=1.0, out="o", report="r", lost=lost)
    show_campaign(result)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "lost" in line or "again" in line] == lines


@pytest.mark.real
@pytest.mark.filterwarnings("default")
def test_a_directory_that_executors_do_not_find_is_told(spark: SparkSession, tmp_path: Path) -> None:
    note = tmp_path / "campaign.json"
    with pytest.raises(
        EnvironmentLacks, match=f"--out {tmp_path}: .* does not find it: .* all executors share"
    ):
        check_shared(spark, note)
    note.write_text("{}")
    check_shared(spark, note)


@pytest.mark.processes
def test_libraries_travel_as_one_archive_that_is_made_once(tmp_path: Path) -> None:
    archive = libraries_zip(LIBRARIES, tmp_path / "cache")
    zipfile.ZipFile(archive).extractall(tmp_path / "there")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import msgspec, re2, structlog; print(re2.__file__)"
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "there"))
    made = archive.stat().st_mtime_ns
    assert libraries_zip(LIBRARIES, tmp_path / "cache").stat().st_mtime_ns == made
    with pytest.raises(EnvironmentLacks, match="executors need no-such-library, which is missing here"):
        libraries_zip(["no-such-library"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match="set XDG_CACHE_HOME"):
        libraries_zip(LIBRARIES, tmp_path / "file")
