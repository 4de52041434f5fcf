"""Starting Spark: masters that are none, masters that are away, Ctrl-C at a bad moment."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.cli import main
from fencepost.simulation.interrupts import STOPPING, interrupts_held
from fencepost.simulation.pipeline import session
from fencepost.simulation.pipeline.session import end_unsaid, silence_accumulators


@pytest.mark.parametrize(
    "master",
    [
        *("", "nonsense", "local[x]", "local[0]", "local[100000]", "local[999999999999]"),
        *("spark://", "spark://host", "spark://host:x"),
    ],
)
def test_what_is_no_master_is_told_what_would_be_one(master: str) -> None:
    with pytest.raises(FencepostError, match=r"--master .*expected local"), session.spark_session(master):
        pass


@pytest.mark.parametrize("words", [["campaign", "steady", "--seeds", "1"], ["plan", "--runs", "1"]])
def test_a_master_that_is_none_leaves_nothing_behind(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the next call, with another master, would find that its directory is taken."""
    assert main([*words, "--master", "nonsense", "--out", str(tmp_path / "out")]) == 2
    assert "--master nonsense: expected local[N]" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


def test_a_master_that_is_away_is_told_at_once() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        port = silent.getsockname()[1]
        master = f"spark://127.0.0.1:{port},127.0.0.1:{port}"
        with pytest.raises(EnvironmentLacks, match="no Spark master can be reached"):
            session._check_reachable(master)  # a session of other tests would be taken as it is


def test_an_interrupt_waits_for_its_release() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held() as release:
        release()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        release()


def test_an_interrupt_while_a_session_starts_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def opening(*_: object, **__: object) -> Iterator[str]:
        while getattr(signal.getsignal(signal.SIGINT), "__name__", "") != "hold":
            os.sched_yield()  # until the program waits for it
        os.kill(os.getpid(), signal.SIGINT)
        told.append("open")
        yield "session"
        told.append("closed")

    monkeypatch.setattr(session, "spark_session", opening)
    with pytest.raises(KeyboardInterrupt), session.SessionWhenNeeded("local", None, print) as needed:
        needed.begin()
    assert told == ["open", "closed"]


def test_an_interrupt_that_is_held_is_heard_at_once() -> None:
    heard: list[int] = []

    def ask_to_stop(number: int, frame: object) -> None:
        heard.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask_to_stop)
    try:
        with interrupts_held() as release:
            signal.raise_signal(signal.SIGINT)
            release()  # whoever listened had no exception to raise
            assert len(heard) == 1
            signal.raise_signal(signal.SIGINT)
        assert len(heard) == 1
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            release()
    finally:
        signal.signal(signal.SIGINT, before)


INTERRUPTED = """
import os, signal, sys
from pyspark import java_gateway
from fencepost.simulation.cli import main
from fencepost.simulation.pipeline import analyze, session

launch, stop = java_gateway.launch_gateway, session._stop
when, number = sys.argv[1], int(sys.argv[2])

def launch_gateway(*args, **named):
    gateway = launch(*args, **named)
    print(gateway.proc.pid)
    if when == "start":
        os.kill(os.getpid(), number)
    elif when == "failed start":
        os.kill(os.getpid(), number)
        gateway.proc.kill()
    return gateway

def interrupted_stop(gateway):
    if when == "end":
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    stop(gateway)

def nothing(*args, **named):
    with session.spark_session():
        return {}

java_gateway.launch_gateway, session._stop, analyze.analyze = launch_gateway, interrupted_stop, nothing
sys.exit(main(["analyze", "trace.parquet", "--json"]))
"""


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize(
    ("when", "number", "code"),
    [
        pytest.param("start", signal.SIGINT, 130, marks=pytest.mark.long),
        ("failed start", signal.SIGTERM, 143),
        pytest.param("end", signal.SIGINT, 130, marks=pytest.mark.long),
    ],
)
def test_an_interrupt_while_spark_starts_or_ends_is_told(
    when: str, number: signal.Signals, code: int
) -> None:
    words = [sys.executable, "-c", INTERRUPTED, when, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (code, f"{STOPPING}\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


GROUP_TERMINATED = """
import os, signal
from fencepost.simulation.pipeline import session

with session.spark_session("local[1]") as spark:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    print(spark.range(3).selectExpr("sum(id)").first()[0])
"""


@pytest.mark.real
@pytest.mark.processes
def test_sigterm_of_the_process_group_leaves_the_jvm_to_this_process() -> None:
    command = [sys.executable, "-c", GROUP_TERMINATED]
    ended = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
    assert (ended.stdout, ended.returncode) == ("3\n", 0), ended.stderr


JVM_ENDS = """
import contextlib, os, signal, sys
from pyspark import SparkContext
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.trace.schema import TRACE_DDL
from fencepost.simulation.cli import main
from fencepost.simulation.pipeline import analyze, jobs, session

def end_together():
    process = SparkContext._gateway.proc
    process.kill()
    process.wait()
    if sys.argv[1] == "interrupted":
        os.kill(os.getpid(), signal.SIGTERM)
    SparkContext._active_spark_context.statusTracker().getActiveJobsIds()

def analyse(*args, **named):
    with session.spark_session() as spark, jobs.settings_for(spark, 1):
        views = Views(spark.createDataFrame([], TRACE_DDL), cached=True)
        with contextlib.ExitStack() as after:
            after.callback(views.release)
            views.view("run")
            jobs.run_job(spark, "ends", end_together)

analyze.analyze = analyse
sys.exit(main(["analyze", "trace.parquet", "--json"]))
"""


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("interrupted", 143, STOPPING),  # as a system does that stops all processes of a service
        (
            "alone",
            3,
            "fencepost analyze: Spark's JVM stopped on the way, killed by SIGKILL, as systems do that run out"
            " of memory: make room, and run again",
        ),
    ],
)
def test_a_jvm_that_ends_on_the_way_is_told_in_a_line(how: str, code: int, told: str) -> None:
    words = [sys.executable, "-c", JVM_ENDS, how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (code, f"{told}\n", "")


@pytest.mark.parametrize("error", [Py4JNetworkError("empty"), ConnectionRefusedError(111, "refused")])
def test_what_a_jvm_that_is_gone_does_not_answer_is_of_spark(error: Exception) -> None:
    assert session.is_of_spark(error)
    assert session.first_line(error) == "its JVM stopped"
    told = FencepostError("Spark could not analyse the traces")
    assert not session.is_of_spark(told)
    told.__cause__ = error
    assert session.is_of_spark(told)


def test_an_exception_of_a_jvm_that_is_gone_still_says_something() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionError

    assert session.first_line(Gone()) == session.error_text(Gone()) == "its JVM stopped"
    assert session.first_line(ValueError("\n\nthis\nthat")) == "this"


def test_the_cause_of_an_awaited_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = [
        "Exception thrown in awaitResult: ",
        "EOFException while reading the port number from X's stdout.",
    ]
    monkeypatch.setattr(session, "_messages", lambda error: causes)
    assert session.error_text(ValueError()).startswith(
        "Spark could not start a Python worker (EOFException while reading the port number from X's stdout): "
    )
    monkeypatch.setattr(session, "_messages", lambda error: causes[:1])
    assert session.error_text(ValueError()) == "Exception thrown in awaitResult:"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), 0),
        (Py4JNetworkError("empty"), 0),
        (BrokenPipeError(), 0),
        (ValueError("news"), 1),
        (None, 1),
    ],
)
@pytest.mark.parametrize("logger", ["py4j.clientserver", "py4j.java_gateway", "root"])
def test_what_py4j_logs_of_its_jvm_s_end_is_not_said(
    error: BaseException | None, said: int, logger: str, caplog: pytest.LogCaptureFixture
) -> None:
    with end_unsaid():
        logging.getLogger(logger).error("Exception while sending command.", exc_info=error)
    ours = logger == "root" and isinstance(error, OSError)  # an application's may log it too
    assert len(caplog.records) == (said or ours)


def test_py4j_logs_again_once_no_session_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with end_unsaid():
        pass
    logging.getLogger("py4j.clientserver").error("Exception", exc_info=BrokenPipeError())
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("error", "said"), [(EOFError(), 0), (ConnectionResetError(), 0), (ValueError(), 1)])
def test_what_ends_the_connection_of_accumulators_is_not_said(error: Exception, said: int) -> None:
    told: list[object] = []
    server = SimpleNamespace(handle_error=lambda request, address: told.append(request))
    context: Any = SimpleNamespace(_accumulatorServer=server)
    silence_accumulators(context)
    try:
        raise error
    except type(error):
        server.handle_error("request", "address")
    assert len(told) == said
