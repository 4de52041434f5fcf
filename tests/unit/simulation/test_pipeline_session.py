"""Starting Spark: masters that are none, masters that are away, Ctrl-C at a bad moment."""

from __future__ import annotations

import logging
import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.pipeline import session
from fencepost.simulation.pipeline.last_words import is_worth_saying, silence_accumulators


@pytest.mark.parametrize("master", ["", "nonsense", "local[x]", "spark://", "spark://host", "spark://host:x"])
def test_what_is_no_master_is_told_what_would_be_one(master: str) -> None:
    with pytest.raises(FencepostError, match=r"--master .*expected local"), session.spark_session(master):
        pass


def test_a_master_that_is_away_is_told_at_once() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        port = silent.getsockname()[1]
        master = f"spark://127.0.0.1:{port},127.0.0.1:{port}"
        with pytest.raises(EnvironmentLacks, match="no Spark master can be reached"):
            session._check_reachable(master)  # a session of other tests would be taken as it is


def test_an_interrupt_waits_for_its_release() -> None:
    before = signal.getsignal(signal.SIGINT)
    with session._interrupts_held() as release:
        release()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        release()


def test_an_exception_of_a_jvm_that_is_gone_still_says_something() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionError

    assert session.first_line(Gone()) == "its JVM stopped"
    assert session.first_line(ValueError("\n\nthis\nthat")) == "this"


@pytest.mark.parametrize(
    ("error", "said"),
    [(KeyboardInterrupt(), 0), (Py4JNetworkError("empty"), 0), (ValueError("news"), 1), (None, 1)],
)
def test_what_py4j_logs_of_its_jvm_s_end_is_not_said(error: BaseException | None, said: int) -> None:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord(
        "root", logging.ERROR, "", 0, "Exception while sending command.", None, exc_info
    )
    assert is_worth_saying(record) == bool(said)


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
