"""Real clients behind proxies that know nothing of Kafka: they must not leave them for the brokers' ports."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from fencepost import EmbeddedKafka
from fencepost.coordinator.server.connection import KafkaServerConnection

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

BROKERS = 3
VALUES = {b"value %d" % number for number in range(30)}
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
LIMIT_S = 60.0


class PlainProxy:
    """Forwards bytes of a port to another one. `outgoing` has the ports from which it connects."""

    def __init__(self) -> None:
        self.upstream = ""
        self.outgoing: set[int] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self._listening.getsockname())
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            host, _, port = self.upstream.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:  # the broker has ended before its client
                client.close()
                continue
            self.outgoing.add(server.getsockname()[1])
            self._sockets += client, server
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one end is gone

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            each.close()


@pytest.fixture
def proxies() -> Iterator[list[PlainProxy]]:
    """A proxy for each broker."""
    made = [PlainProxy() for _ in range(BROKERS)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports from which connections came to the brokers."""
    ports: set[int] = set()
    connection_made = KafkaServerConnection.connection_made

    def made(self: KafkaServerConnection, transport: Any) -> None:
        ports.add(transport.get_extra_info("peername")[1])
        connection_made(self, transport)

    monkeypatch.setattr(KafkaServerConnection, "connection_made", made)
    return ports


@pytest.fixture
def kafka(proxies: list[PlainProxy], arrivals: set[int]) -> Iterator[EmbeddedKafka]:
    config = {"advertised.listeners": [f"PLAINTEXT://{each.address}" for each in proxies], "node.id": 11}
    with EmbeddedKafka(brokers=BROKERS, topics={"orders": 6}, config=config) as running:
        for proxy, upstream in zip(proxies, running.listening["PLAINTEXT"].split(","), strict=True):
            proxy.upstream = upstream
        assert running.bootstrap_servers == ",".join(each.address for each in proxies)
        yield running


def came_through(proxies: list[PlainProxy], arrivals: set[int]) -> None:
    """Each broker was reached, and only through its proxy."""
    assert all(each.outgoing for each in proxies)
    assert arrivals == {port for each in proxies for port in each.outgoing}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_stays_behind_the_proxies(
    kafka: EmbeddedKafka, proxies: list[PlainProxy], arrivals: set[int], protocol: str
) -> None:
    address = {"bootstrap.servers": proxies[0].address}
    admin = AdminClient(address)
    assert {node.id for node in admin.describe_cluster().result(LIMIT_S).nodes} == {11, 12, 13}
    producer = Producer(address)
    for number, value in enumerate(sorted(VALUES)):
        producer.produce("orders", value, partition=number % 6)
    assert producer.flush(LIMIT_S) == 0
    group = {"group.id": "g", "group.protocol": protocol, "auto.offset.reset": "earliest"}
    with closing(Consumer({**address, **group})) as consumer:
        consumer.subscribe(["orders"])
        missing = set(VALUES)
        while missing:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"{len(missing)} records did not arrive"
            missing.discard(message.value())
        consumer.commit(asynchronous=False)
    assert sum(kafka.group("g").offsets().values()) == len(VALUES)
    came_through(proxies, arrivals)


def test_kafka_python_stays_behind_the_proxies(
    kafka: EmbeddedKafka, proxies: list[PlainProxy], arrivals: set[int]
) -> None:
    with closing(kafka_python.KafkaProducer(bootstrap_servers=proxies[0].address)) as producer:
        for number, value in enumerate(sorted(VALUES)):
            producer.send("orders", value, partition=number % 6).get(LIMIT_S)
    consumer = kafka_python.KafkaConsumer(
        "orders",
        bootstrap_servers=proxies[0].address,
        group_id="g",
        auto_offset_reset="earliest",
        consumer_timeout_ms=LIMIT_S * 1000,
    )
    with closing(consumer):
        missing = set(VALUES)
        for message in consumer:
            missing.discard(message.value)
            if not missing:
                break
    assert not missing
    came_through(proxies, arrivals)


async def test_aiokafka_stays_behind_the_proxies(
    kafka: EmbeddedKafka, proxies: list[PlainProxy], arrivals: set[int]
) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=proxies[0].address) as producer:
        for number, value in enumerate(sorted(VALUES)):
            await producer.send_and_wait("orders", value, partition=number % 6)
    async with aiokafka.AIOKafkaConsumer(
        "orders", bootstrap_servers=proxies[0].address, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        missing = set(VALUES)
        while missing:
            missing.discard((await consumer.getone()).value)
    came_through(proxies, arrivals)


@pytest.mark.processes
def test_serve_advertises_what_its_settings_say(proxies: list[PlainProxy]) -> None:
    command = [sys.executable, "-m", "fencepost.simulation", "serve", "--topics", "orders:1"]
    for setting in (
        "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        f"advertised.listeners=INSIDE://127.0.0.1:0,OUTSIDE://{proxies[0].address}",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "node.id=7",
    ):
        command += "--config", setting
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        try:
            inside = re.fullmatch(r"fencepost ready (127\.0\.0\.1:\d+)\n", lines[0])
            assert inside is not None, lines
            assert lines[1] == f"fencepost listener INSIDE {inside[1]} advertises {inside[1]}\n"
            outside = re.fullmatch(r"fencepost listener OUTSIDE (\S+) advertises (\S+)\n", lines[2])
            assert outside is not None, lines
            assert outside[2] == proxies[0].address
            proxies[0].upstream = outside[1]
            for bootstrap, expected in ((inside[1], inside[1]), (proxies[0].address, proxies[0].address)):
                admin = AdminClient({"bootstrap.servers": bootstrap})
                (node,) = admin.describe_cluster().result(LIMIT_S).nodes
                assert (node.id, f"{node.host}:{node.port}") == (7, expected)
        finally:
            process.terminate()
            assert process.wait(timeout=LIMIT_S) == 0


class Toxiproxy:
    """Shopify's proxy, driven by its HTTP API."""

    def __init__(self, binary: pathlib.Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [str(binary), "-host", "127.0.0.1", "-port", str(self._port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        while "Starting Toxiproxy HTTP server" not in self.process.stdout.readline():
            assert self.process.poll() is None, "it ended"
        while not self._is_listening():
            assert self.process.poll() is None, "it ended"

    def _is_listening(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self._port)) == 0

    def ask(self, path: str, document: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            json.dumps(document).encode(),
            {"Content-Type": "application/json", "User-Agent": "tests"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            return json.load(response)


@pytest.fixture
def toxiproxy(tmp_path: pathlib.Path, processes: None) -> Iterator[Toxiproxy]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: Toxiproxy can't be built")
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    binary = folder / "fencepost" / "toxiproxy-2.12.0" / "server"
    if not binary.exists():
        built = subprocess.run(
            [go, "install", TOXIPROXY],
            env={**os.environ, "GOBIN": str(tmp_path), "GOTOOLCHAIN": "local"},
            check=False,
            capture_output=True,
            text=True,
            timeout=220,
        )
        if built.returncode:
            pytest.skip(f"Toxiproxy can't be built here: {built.stderr[-300:]}")
        binary.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "server", binary)
    proxy = Toxiproxy(binary)
    yield proxy
    proxy.process.terminate()
    proxy.process.communicate()


@pytest.mark.long
def test_toxiproxy_stands_between(toxiproxy: Toxiproxy, arrivals: set[int]) -> None:
    """A disabled proxy cuts the consumer off, although the broker's port is open; then it goes on."""
    front = toxiproxy.ask(
        "/proxies", {"name": "kafka", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:1", "enabled": True}
    )["listen"]
    config = {"advertised.listeners": f"PLAINTEXT://{front}"}
    with EmbeddedKafka(topics={"orders": 1}, config=config) as kafka:
        toxiproxy.ask("/proxies/kafka", {"listen": front, "upstream": kafka.listening["PLAINTEXT"]})
        settings = {"group.id": "g", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        errors: list[int] = []
        quick = {
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda error: errors.append(error.code()),
        }
        with closing(Consumer({"bootstrap.servers": front, **settings, **quick})) as consumer:
            consumer.subscribe(["orders"])
            kafka.produce("orders", "before")
            message = consumer.poll(LIMIT_S)
            assert message is not None
            assert message.value() == b"before"
            before = set(arrivals)
            assert before

            toxiproxy.ask("/proxies/kafka", {"enabled": False})
            kafka.produce("orders", "after")
            patience = time.monotonic() + LIMIT_S
            while KafkaError._ALL_BROKERS_DOWN not in errors:
                assert consumer.poll(0.1) is None, "it left the proxy"
                assert time.monotonic() < patience, "it did not notice"
            assert arrivals == before

            toxiproxy.ask("/proxies/kafka", {"enabled": True})
            message = consumer.poll(LIMIT_S)
            assert message is not None, "it did not come back"
            assert message.value() == b"after"
            assert arrivals > before
