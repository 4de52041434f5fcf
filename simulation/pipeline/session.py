"""A Spark session that needs no setup, prints nothing on the terminal, and stops at once."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.interrupts import interrupt_handler_kept, interrupts_held
from fencepost.simulation.java import find_java_home
from fencepost.simulation.pipeline.class_archive import ClassArchive, class_archive

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
STARTING = "starting Spark…"

STOP_SECONDS = 5.0
"""Time that a JVM may take to end before it is killed, in seconds; it takes about one."""

_GONE_SECONDS = 1.0
"""Time that a JVM's process may take to end after its connections have, in seconds."""

CONNECT_SECONDS = 5.0
"""Time that a Spark master may take to accept a connection, in seconds."""

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d{0,4})(,\d{1,4})?\])?|local-cluster\[\d+,\d+,\d+\]"
    r"|spark://.+:\d+(,.+:\d+)*|k8s://.+|yarn"
)

_NO_JVM = "its JVM stopped"

_RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b: ")

NO_WORKER: Final = re.compile(
    "Python worker failed to connect back|Timed out while waiting for the Python worker to connect back"
    "|Python worker exited unexpectedly"
)
"""Spark's message if a Python worker takes more than ten seconds to start, which no setting of Spark changes:
the machine is busy, and nothing is broken."""
_NO_DAEMON: Final = re.compile("port number from .+'s stdout")
"""Spark's message if the process that starts Python workers ends as soon as it starts."""
_ONLY_AWAITED: Final = "Exception thrown in awaitResult"
"""Spark's message of an exception whose cause is the reason."""

SHORT_JOBS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:ReservedCodeCacheSize=240m"
    " -XX:MetaspaceSize=256m"
)
"""A JVM's options for short jobs. The time to the first result counts, and the second compiler and a
concurrent collector would only take cores from the simulation. Without the second compiler, Java reserves so
little room for compiled code and classes that it needs repeated full collections, so the options reserve
more."""

_ANYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

_LOCALLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": SHORT_JOBS,
}


TASK_TRIES: Final = 4
"""The number of times that a task is tried: on a busy machine its Python worker may not start in time. It is
Spark's default on clusters."""


def retrying(master: str) -> str:
    """Return a local master that tries tasks again, which Spark does by itself on clusters only."""
    found = re.fullmatch(r"local(?:\[([^],]+)\])?", master)
    return f"local[{found[1] or 1},{TASK_TRIES}]" if found else master


def is_local(master: str | None) -> bool:
    """Return true if executors run in the driver's own process."""
    return master is None or (master.startswith("local") and not master.startswith("local-cluster"))


@contextlib.contextmanager
def spark_session(
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[SparkSession]:
    """Yield a session on `master`, and stop it on exit. `settings` override the defaults; `say` reports that
    it starts.

    A session that this process already runs is used unchanged, and left running.

    :raises FencepostError: if `master` is not a master URL.
    :raises EnvironmentLacks: if PySpark or Java is missing, or Spark does not start.
    """
    check_can_start(master)
    if session_runs():
        from pyspark.sql import SparkSession

        session = SparkSession.builder.getOrCreate()
        _equip(session)
        yield session
        return
    archive = class_archive()
    with tempfile.TemporaryDirectory(prefix="fencepost-spark-") as scratch, end_unsaid():
        with interrupts_held() as release:
            say(STARTING)
            try:
                session, gateway = _start(master, Path(scratch), settings or {}, archive)
            except EnvironmentLacks:
                release()  # a system that stops all processes of a service also ends the JVM
                raise
        try:
            release()
            _equip(session)
            yield session
        except EnvironmentLacks:
            raise
        except Exception as error:
            if is_of_spark(error) and (end := _how_it_ended(gateway)):
                raise EnvironmentLacks(f"Spark's JVM stopped on the way{end}") from error
            raise
        finally:
            with interrupts_held() as release:
                _stop(gateway)
            release()
            if archive is not None:
                archive.make()


class SessionWhenNeeded:
    """A session that starts on first use, or earlier in a thread while other work goes on."""

    def __init__(self, master: str, settings: Mapping[str, str] | None, say: Callable[[str], None]) -> None:
        self._open = functools.partial(spark_session, master, settings, say=say)
        self._stack = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._session: SparkSession | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> SessionWhenNeeded:
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        try:
            if self._thread is not None:
                with interrupts_held() as release:
                    self._thread.join()
                release()
        finally:
            kept = self._stack.__exit__(*raised)
        return kept

    def begin(self) -> None:
        """Start it in a thread, unless it has been started."""
        if self._thread is None and self._session is None:
            self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
            self._thread.start()

    @property
    def is_up(self) -> bool:
        """True if it has started. If it has failed to, the caller goes on without it, or `get` says why."""
        return self._session is not None

    def get(self) -> SparkSession:
        """Return the session, once it has started.

        :raises FencepostError: as `spark_session` does.
        """
        if self._thread is None:
            if self._session is None:
                self._session = self._stack.enter_context(self._open())
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session

    def _start(self) -> None:
        try:
            self._session = self._stack.enter_context(self._open())
        except BaseException as error:
            self._error = error


def local_cores(master: str) -> int:
    """Return the number of tasks that a local master runs at the same time."""
    found = re.fullmatch(r"local(?:\[([^],]+).*)?", master)
    wanted = (found[1] or "1") if found else "*"
    if wanted != "*":
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def session_runs() -> bool:
    """Return true if this process has a session."""
    if (pyspark := sys.modules.get("pyspark")) is None:
        return False
    return pyspark.SparkContext._active_spark_context is not None


def check_can_start(master: str) -> None:
    """Check what can be checked before Spark is started, for callers that write something before that.

    :raises FencepostError: if `master` is not a master URL.
    :raises EnvironmentLacks: if PySpark or Java is missing, or no master listens at the address.
    """
    check_master(master)
    for needed in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(needed) is None:
            raise EnvironmentLacks(
                f"campaigns and analyses need {needed}, which is missing: pip install 'fencepost[spark]'"
            )
    if not session_runs():
        find_java_home()
        _check_reachable(master)


def check_master(master: object, shown: str = "--master ") -> None:
    """Accept a master URL; `shown` precedes it in error messages.

    :raises FencepostError: if it is not a master URL.
    """
    if not isinstance(master, str) or not _MASTER.fullmatch(master):
        raise FencepostError(
            f"{shown}{master}: expected local[N], local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )


def _equip(spark: SparkSession) -> None:
    """Send our code to executors that run in other processes."""
    from fencepost.simulation.pipeline.shipping import equip

    if not is_local(spark.sparkContext.master):
        equip(spark)


def _check_reachable(master: str) -> None:
    """Check the addresses first: Spark takes more than a minute to notice that no master is there."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise EnvironmentLacks(
        f"--master {master}: no Spark master can be reached ({'; '.join(reasons)}): start one,"
        " or leave --master out"
    )


def _start(
    master: str, scratch: Path, settings: Mapping[str, str], archive: ClassArchive | None
) -> tuple[SparkSession, Any]:
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("fencepost")
    conf.setAll(list(_ANYWHERE.items()))
    conf.set("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    if is_local(master):
        conf.setAll(list(_LOCALLY.items()))
    conf.setAll(list(settings.items()))

    log = scratch / "spark.log"
    uses = archive is not None and archive.path.is_file()
    with _environment(master, archive), log.open("wb") as output:
        try:
            # A process group of its own: SIGTERM to ours is for us to handle. Its stdin ends it with us.
            gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
                conf, popen_kwargs={"stdout": output, "stderr": output, "process_group": 0}
            )
        except PySparkRuntimeError as error:
            raise EnvironmentLacks(f"Spark did not start: {_reason(log)}") from error
        try:
            # Spark's own handler of SIGINT would outlive it; `run_job` has a better way.
            with interrupt_handler_kept():
                silence_accumulators(SparkContext(gateway=gateway, conf=conf))
            if archive is not None and uses:
                archive.check_used(gateway.jvm.java.lang.System.getProperty("java.vm.info"))
            return SparkSession.builder.getOrCreate(), gateway
        except BaseException as error:
            _stop(gateway)
            if isinstance(error, Exception):
                hint = "" if is_local(master) else f"; is that a master of Spark {pyspark.__version__}?"
                raise EnvironmentLacks(
                    f"Spark did not start on {master}: {first_line(error)}{hint}"
                ) from error
            raise


@contextlib.contextmanager
def _environment(master: str, archive: ClassArchive | None) -> Iterator[None]:
    """Set the variables that Spark's launcher and its Python workers read, while it starts."""
    wanted = {"JAVA_HOME": str(find_java_home())}
    if archive is not None:
        wanted |= archive.environment
    if is_local(master):
        wanted |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stop(gateway: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    try:
        # After an interrupted call the JVM may not respond, and a killed one never does. It is ended next in
        # any case.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # its process has ended already
            running = SparkSession._instantiatedSession or SparkContext._active_spark_context
            if running is not None:
                running.stop()
    finally:
        _end_process(gateway)
        SparkContext._gateway = None
        SparkContext._jvm = None


def _end_process(gateway: Any) -> None:
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _how_it_ended(gateway: Any) -> str:
    """Describe how the JVM ended; empty if it runs."""
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        code = process.wait(_GONE_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    if code == -signal.SIGKILL:
        return ", killed by SIGKILL, as systems do that run out of memory: make room, and run again"
    return f", with exit code {code}: run again"


def raised_by_spark(error: BaseException) -> bool:
    """Return true if the exception is PySpark's own, or comes from its connection to the JVM."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def is_of_spark(error: BaseException | None) -> bool:
    """Return true if Spark raised it, or if it follows from that or from a call to a JVM that has ended."""
    while error is not None:
        if isinstance(error, ConnectionError) or raised_by_spark(error):
            return True
        error = error.__cause__
    return False


def _reason(log: Path) -> str:
    """Return the line of Spark's output that most likely has the reason."""
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line for line in lines if "rror" in line or "xception" in line]
    return (errors or lines or ["it printed nothing"])[0]


def first_line(error: BaseException) -> str:
    """Return the message of a Java or Spark exception, without its stack."""
    messages = _messages(error)
    if (
        not messages
        or isinstance(error, ConnectionError)
        or type(error).__name__ in ("Py4JNetworkError", "Py4JError")
    ):
        return _NO_JVM
    said = next((each for each in messages if not each.startswith(_ONLY_AWAITED)), messages[0])
    line = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    if _NO_DAEMON.search(line) or NO_WORKER.search(line):
        return (
            f"Spark could not start a Python worker ({line.rstrip('.')}): is the machine too busy, or out of"
            " memory?"
        )
    return line


def error_text(error: BaseException) -> str:
    """Return the message of a worker's or Spark's exception; for a Python traceback, its last line.

    The innermost cause counts: the outer ones may only say that a wait has failed.
    """
    lines = [line.strip() for text in _messages(error)[-1:] for line in text.splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[-1]
    return first_line(error)


def _messages(error: BaseException) -> list[str]:
    """Return the message of an exception; of one from Java, also those of its causes, outermost first."""
    java = getattr(error, "java_exception", None)
    try:
        if java is None:
            return [str(error)]
        messages = []
        while java is not None:
            messages.append(str(java.getMessage() or java.getClass().getName()))
            java = java.getCause()
    except Exception:  # the JVM has ended, and its message is lost
        return []
    return messages


def wall_clock() -> float:
    """Return the seconds of a clock that does not go back, for durations."""
    return time.monotonic()


_OF_PY4J = ("", "py4j.clientserver", "py4j.java_gateway")
"""The loggers of py4j: a filter sees only lines of its own logger, and some of py4j logs to the root
logger."""


@contextlib.contextmanager
def end_unsaid() -> Iterator[None]:
    """Log nothing about the end of a JVM inside the block, whatever ends it."""
    loggers = [logging.getLogger(name) for name in _OF_PY4J]
    for each in loggers:
        each.addFilter(_is_worth_saying)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(_is_worth_saying)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Filter py4j's lines about Ctrl-C during a wait, or about the end of the JVM."""
    error = None if record.exc_info is None else record.exc_info[1]
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Py4JNetworkError":
        return False
    of_py4j = record.name.startswith("py4j.") or "/py4j/" in record.pathname
    return not (isinstance(error, OSError) and of_py4j)


def silence_accumulators(context: SparkContext) -> None:
    """Silence the server of accumulators, which prints any error that ends its connection, even at the JVM's
    end.

    `timeout`, or Ctrl-C in a terminal, ends this process together with the JVM.
    """
    server: Any = context._accumulatorServer
    if server is not None:
        server.handle_error = _but_of_ends(server.handle_error)


def _but_of_ends(report: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    from pyspark.errors import PySparkRuntimeError

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError | PySparkRuntimeError):
            report(request, client_address)

    return handle_error
