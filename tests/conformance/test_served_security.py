"""Real clients that log in and speak TLS, at `fencepost serve` and an embedded Kafka, or do not."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import pytest
import rstream
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from rstream.exceptions import AuthenticationFailure

from fencepost import EmbeddedKafka, EmbeddedRabbitStream, KIP848Consumer
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

USERS = {"alice": "open,sesame=1", "bob": "secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WRONG = (("alice", "guess"), ("nobody", "open,sesame=1"))
LIMIT_S = 60.0


class Endpoint(NamedTuple):
    servers: str
    certificate: Path | None

    def aiokafka(self, mechanism: str, name: str, password: str) -> dict[str, Any]:
        context = None
        if self.certificate is not None:
            context = ssl.create_default_context(cafile=self.certificate)
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_PLAINTEXT" if context is None else "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }

    def confluent(self, mechanism: str, name: str, password: str, **more: Any) -> dict[str, Any]:
        trust = {} if self.certificate is None else {"ssl.ca.location": str(self.certificate)}
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_SSL" if trust else "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "log_level": 0,
            **trust,
            **more,
        }


@pytest.fixture(scope="module", params=["plain", "tls"])
def endpoint(request: pytest.FixtureRequest, pem: tuple[Path, Path]) -> Iterator[Endpoint]:
    """An embedded Kafka of two brokers with users."""
    tls = pem if request.param == "tls" else None
    with EmbeddedKafka(brokers=2, topics={"orders": 4}, users=USERS, tls=tls) as kafka:
        yield Endpoint(kafka.bootstrap_servers, pem[0] if tls else None)


@pytest.fixture(autouse=True)
async def connections_closed() -> AsyncIterator[None]:
    """aiokafka leaves refused connections to be closed in their own time; the loop must not end before."""
    yield
    loop: Any = asyncio.get_running_loop()
    for transport in tuple(loop._transports.values()):
        transport.abort()
    for _ in range(5):
        await asyncio.sleep(0)


def settled(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline


def refused(settings: dict[str, Any]) -> list[bool]:
    """Whether each record was taken of a producer that has heard that it is not let in."""
    errors: list[str] = []
    taken: list[bool] = []
    producer = Producer({**settings, "error_cb": lambda error: errors.append(str(error))})
    producer.produce("orders", b"forged", on_delivery=lambda error, _: taken.append(error is None))
    settled(lambda: producer.poll(0.05) >= 0 and any("uthentication" in each for each in errors))
    producer.purge()
    producer.flush(LIMIT_S)
    return taken


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_let_in_with_the_right_password_only(endpoint: Endpoint, mechanism: str) -> None:
    for name, password in USERS.items():
        admin = AdminClient(endpoint.confluent(mechanism, name, password))
        assert "orders" in admin.list_topics(timeout=LIMIT_S).topics
    for name, password in WRONG:
        assert refused(endpoint.confluent(mechanism, name, password)) == [False]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_is_let_in_with_the_right_password_only(endpoint: Endpoint, mechanism: str) -> None:
    for name, password in USERS.items():
        producer = aiokafka.AIOKafkaProducer(**endpoint.aiokafka(mechanism, name, password))
        async with producer:
            await asyncio.wait_for(producer.send_and_wait("orders", b"letter"), LIMIT_S)
    for name, password in WRONG:
        producer = aiokafka.AIOKafkaProducer(**endpoint.aiokafka(mechanism, name, password))
        with pytest.raises(KafkaError):
            await asyncio.wait_for(producer.start(), LIMIT_S)
        await producer.stop()


def test_a_group_of_confluent_kafka_s_consumers_forms_and_reads(endpoint: Endpoint) -> None:
    more = {"group.id": "readers", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer(endpoint.confluent("SCRAM-SHA-512", "alice", USERS["alice"], **more))
    producer = Producer(endpoint.confluent("PLAIN", "bob", USERS["bob"]))
    producer.produce("orders", b"sealed")
    assert producer.flush(LIMIT_S) == 0
    consumer.subscribe(["orders"])
    found = []

    def reads() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return b"sealed" in found

    settled(reads)
    consumer.commit(asynchronous=False)
    consumer.close()


async def test_our_own_consumer_reads(endpoint: Endpoint) -> None:
    settings = endpoint.aiokafka("SCRAM-SHA-256", "alice", USERS["alice"])
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("orders", b"ours")
    async with KIP848Consumer("orders", group_id="own", auto_offset_reset="earliest", **settings) as consumer:
        async with asyncio.timeout(LIMIT_S):
            while (await consumer.getone()).value != b"ours":
                pass


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_who_does_not_log_in_gets_nothing(endpoint: Endpoint, protocol: str) -> None:
    settings = {**endpoint.aiokafka("PLAIN", "x", "x"), "security_protocol": protocol}
    if settings["ssl_context"] is None:
        settings["ssl_context"] = ssl.create_default_context()
    consumer = aiokafka.AIOKafkaConsumer("orders", request_timeout_ms=2000, **settings)
    with pytest.raises(KafkaError):
        await asyncio.wait_for(consumer.start(), LIMIT_S)
    await consumer.stop()


async def test_an_embedded_kafka_fails_a_login_on_demand(pem: tuple[Path, Path]) -> None:
    async with EmbeddedKafka(users=USERS, tls=pem) as kafka:
        kafka.fail_next("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED")
        settings = Endpoint(kafka.bootstrap_servers, pem[0]).aiokafka("PLAIN", "bob", "secret")
        producer = aiokafka.AIOKafkaProducer(**settings)
        with pytest.raises(KafkaError):
            await asyncio.wait_for(producer.start(), LIMIT_S)
        await producer.stop()
        async with aiokafka.AIOKafkaProducer(**settings):
            pass


def test_fencepost_serve_lets_users_in_whose_passwords_are_in_no_process_list(
    pem: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    users.write_text("bob:secret\n")
    monkeypatch.setenv(PASSWORD_VARIABLE, USERS["alice"])
    command = [sys.executable, "-m", "fencepost.simulation", "serve", "--port", "0", "--topics", "orders:1"]
    command += ["--sasl-user", "alice", "--sasl-users", str(users)]
    command += ["--tls-cert", str(pem[0]), "--tls-key", str(pem[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            ready = re.fullmatch(r"fencepost ready (.+)\n", process.stdout.readline())
            assert ready is not None
            endpoint = Endpoint(ready[1], pem[0])
            for name, password in USERS.items():
                admin = AdminClient(endpoint.confluent("SCRAM-SHA-256", name, password))
                assert "orders" in admin.list_topics(timeout=LIMIT_S).topics
            assert refused(endpoint.confluent("PLAIN", "alice", "geheim")) == [False]
        finally:
            process.terminate()
        told = process.stderr.read()
        assert process.wait(timeout=60) == 0
    assert "the login by PLAIN failed" in told
    for secret in (*USERS.values(), "geheim"):
        assert secret not in told


async def test_rstream_is_let_in_with_the_right_password_only(pem: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=pem[0])
    with EmbeddedRabbitStream(users=USERS, tls=pem) as rabbit:
        settings: dict[str, Any] = {"host": rabbit.host, "port": rabbit.port, "ssl_context": context}
        async with rstream.Producer(**settings, username="bob", password=USERS["bob"]) as producer:
            await producer.create_stream("letters")
            await asyncio.wait_for(producer.send_wait("letters", b"sealed"), LIMIT_S)
        assert [each.value for each in rabbit.messages("letters")] == [b"sealed"]
        with pytest.raises(AuthenticationFailure):
            await rstream.Producer(**settings, username="guest", password="guest").start()
