"""An embedded Kafka that others still want something of when it ends, or that is asked in another process."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.embedded.thread import LoopThread
from tests.unit.simulation.wire_member import WireMember

pytestmark = pytest.mark.real


def test_who_waits_is_told_that_it_ended() -> None:
    with ThreadPoolExecutor(1) as threads:
        with EmbeddedKafka() as kafka:
            waiting = threads.submit(kafka.group("g").wait_stable, 1)
            while not len(kafka.endpoint.observer.waiting):
                time.sleep(0.001)
        with pytest.raises(FencepostError, match="this Kafka has stopped: use it before"):
            waiting.result(30)


async def test_who_awaits_is_told_that_it_ended() -> None:
    async with EmbeddedKafka() as kafka:
        waiting = asyncio.create_task(kafka.group("g").wait_stable(1))
        await asyncio.sleep(0.05)
    with pytest.raises(FencepostError, match="this Kafka has stopped: use it before"):
        await asyncio.wait_for(waiting, 30)


def ask_until_it_ends(kafka: EmbeddedKafka, ask: Callable[[], object], *, threads: int) -> None:
    """Threads go on asking while it ends, and each of them is told so."""
    began = threading.Barrier(threads + 1)

    def go_on() -> None:
        began.wait()
        while True:
            ask()

    with ThreadPoolExecutor(threads) as pool:
        with kafka:
            asking = [pool.submit(go_on) for _ in range(threads)]
            began.wait()
        for each in asking:
            with pytest.raises(FencepostError, match="this Kafka has stopped: use it before"):
                each.result(30)


def test_threads_that_ask_while_it_ends_are_told_so() -> None:
    kafka = EmbeddedKafka()
    ask_until_it_ends(kafka, kafka.check, threads=3)


def test_threads_that_produce_while_it_ends_are_told_so() -> None:
    """Those that come when its brokers are closed, and its loop still runs, find none of them half there."""
    for _ in range(20):
        kafka = EmbeddedKafka(topics=["orders"])
        ask_until_it_ends(kafka, functools.partial(kafka.produce, "orders", "x"), threads=2)


def test_no_work_meets_what_its_loop_closes_last() -> None:
    closed: list[str] = []
    met: list[str] = []
    goes_on = threading.Event()

    async def work() -> None:
        while True:
            met.extend(closed)
            goes_on.set()
            await asyncio.sleep(0)

    async def close() -> None:
        closed.append("closed")
        for _ in range(5):
            await asyncio.sleep(0)

    thread = LoopThread("works")
    thread.start()
    future = thread.submit(work())
    assert goes_on.wait(60)
    thread.stop(close)
    with pytest.raises(FencepostError, match="this Kafka has stopped"):
        thread.result(future)
    assert (closed, met) == (["closed"], [])


def test_a_group_and_what_awaits_follow_a_kafka_that_is_started_again(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(topics=["orders"], journal=tmp_path / "kafka.journal")
    with kafka:
        group, awaited = kafka.group("g"), kafka.awaited
    with pytest.raises(FencepostError, match="this Kafka has stopped"):
        kafka.group("g")
    with kafka:
        assert awaited.bootstrap_servers == kafka.bootstrap_servers
        one = WireMember(kafka.bootstrap_servers, "g", "m")
        one.join("orders")
        one.confirm()
        assert [each.member_id for each in group.wait_stable(members=1, timeout=0)] == ["m"]
    WireMember.close_all()


def test_a_journal_is_free_again_when_it_could_not_start(tmp_path: Path) -> None:
    journal = tmp_path / "kafka.journal"
    with EmbeddedKafka(journal=journal, topics={"orders": 3}):
        pass
    with pytest.raises(FencepostError, match="currently has 3 partition") as refused:
        EmbeddedKafka(journal=journal, topics={"orders": 1}).start()
    with EmbeddedKafka(journal=journal) as kafka:
        assert kafka.records("orders") == []
    assert refused.tb is not None, "what holds on to frames holds on to no file"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    "do",
    [
        lambda kafka: kafka.records("orders"),
        lambda kafka: kafka.group("g").wait_stable(1),
        lambda kafka: kafka.close(),
    ],
)
def test_a_forked_process_is_told_where_it_runs(do: Callable[[EmbeddedKafka], object]) -> None:
    with EmbeddedKafka(topics=["orders"]) as kafka:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            signal.alarm(20)
            try:
                do(kafka)
                told = f"{kafka.bootstrap_servers} {kafka.is_running}"
            except FencepostError as error:
                told = str(error)
            os.write(writing, told.encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as answer:
            told = answer.read()
        os.waitpid(child, 0)
        assert told in {
            f"this Kafka runs in process {os.getpid()}: one that was forked from it can only connect to it",
            f"{kafka.bootstrap_servers} False",
        }
        kafka.produce("orders", "x")
        assert len(kafka.records("orders")) == 1


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_keeps_neither_connections_nor_the_port_open() -> None:
    question = bytes.fromhex("0000000b 0012 0000 00000001 0001 61")  # ApiVersions of the client "a"
    with EmbeddedKafka() as kafka, socket.create_connection(_place(kafka), timeout=60) as client:
        client.sendall(question)
        client.recv(1_000)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            kafka.disconnect("a")
            assert client.recv(1) == b""
            place = _place(kafka)
            kafka.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(place, timeout=60)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _place(kafka: EmbeddedKafka) -> tuple[str, int]:
    host, _, port = kafka.bootstrap_servers.partition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("module", "asked"), [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")]
)
def test_where_coroutines_stand_in_for_threads_it_says_so(
    monkeypatch: pytest.MonkeyPatch, module: str, asked: str
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: lambda name: True}))
    library = module.partition(".")[0]
    with pytest.raises(EnvironmentLacks, match=f"this Kafka needs a thread, and {library} has replaced"):
        EmbeddedKafka().start()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: lambda name: False}))
    with EmbeddedKafka() as kafka:
        assert kafka.is_running


@pytest.mark.processes
@pytest.mark.parametrize("what", ['group("g")', "awaited", "bootstrap_servers"])
def test_what_does_not_run_is_refused_without_asserts_too(what: str) -> None:
    code = f"from fencepost import EmbeddedKafka; EmbeddedKafka().{what}"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "FencepostError: this Kafka is not running" in done.stderr
