"""Starting Spark: masters that are none, masters that are away, Ctrl-C at a bad moment."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.pipeline import session


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
