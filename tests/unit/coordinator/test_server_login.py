"""Before a client is served: logins and TLS at the level of frames, and what is refused without an answer."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka.conn import ScramAuthenticator

from fencepost.coordinator.codec.registry import codec_of
from fencepost.coordinator.codec.security import bare_token
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server import accepting
from fencepost.coordinator.server import connection as connections
from fencepost.coordinator.server.access import tls_context
from fencepost.coordinator.server.brokers import Broker
from fencepost.coordinator.server.login import MAX_LOGIN_FRAME_BYTES
from tests.waiting import until

pytestmark = pytest.mark.real

API_VERSIONS, METADATA, HANDSHAKE, AUTHENTICATE = 18, 3, 17, 36
USERS = {"alice": "open sesame"}
RIGHT = b"\0alice\0open sesame"


class Client:
    """One connection that sends bodies and reads the start of answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, key: int, version: int, body: bytes = b"") -> None:
        codec = codec_of(key, version)
        tags = b"\0" if codec is not None and codec.flexible else b""
        self.raw(struct.pack(">hhih", key, version, 7, -1) + tags + body)

    def raw(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 10))
        return await asyncio.wait_for(self.reader.readexactly(size), 10)

    async def ask(self, key: int, version: int, body: bytes = b"") -> bytes:
        """The answer behind its number."""
        self.send(key, version, body)
        return (await self.frame())[4:]

    async def shakes(self, mechanism: str, version: int = 1) -> tuple[int, set[str]]:
        """The error, and which mechanisms there are."""
        name = mechanism.encode()
        answer = await self.ask(HANDSHAKE, version, struct.pack(">h", len(name)) + name)
        code, count = struct.unpack(">hi", answer[:6])
        at, found = 6, set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, at)
            found.add(answer[at + 2 : at + 2 + length].decode())
            at += 2 + length
        return code, found

    async def says(self, token: bytes) -> tuple[int, bytes]:
        """The error, and what comes behind it."""
        answer = await self.ask(AUTHENTICATE, 1, bare_token(token))
        return struct.unpack(">h", answer[:2])[0], answer[2:]

    async def is_served(self) -> bool:
        return len(await self.ask(METADATA, 1, struct.pack(">i", 0))) > 4

    async def ended(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 10) == b""
        except ConnectionError:
            return True


Connect = Callable[..., Any]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    writers = []

    async def connected(broker: Broker, **settings: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, **settings)
        writers.append(writer)
        return Client(reader, writer)

    yield connected
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker({"orders": 3}, users=USERS) as running:
        yield running


async def test_a_client_logs_in_as_kafka_s_do(broker, connect):
    client = await connect(broker)
    assert (await client.ask(API_VERSIONS, 0))[:2] == b"\0\0"
    assert await client.shakes("PLAIN") == (0, {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
    assert await client.says(RIGHT) == (0, b"\xff\xff" + bytes(4) + bytes(8))
    assert await client.is_served()


async def test_a_version_of_apiversions_that_is_not_spoken_may_be_followed_by_one_that_is(broker, connect):
    client = await connect(broker)
    assert (await client.ask(API_VERSIONS, 99))[:2] == struct.pack(">h", 35)
    assert (await client.ask(API_VERSIONS, 0))[:2] == b"\0\0"
    assert (await client.shakes("PLAIN"))[0] == 0


@pytest.mark.parametrize(
    "before",
    [
        [],
        [(API_VERSIONS, 0, b"")],
        [(HANDSHAKE, 1, b"\0\5PLAIN")],
        [(HANDSHAKE, 1, b"\0\5PLAIN"), (AUTHENTICATE, 1, None)],
    ],
    ids=["at once", "after ApiVersions", "after the handshake", "within SCRAM"],
)
@pytest.mark.parametrize("asked", [METADATA, 0, 68, 11, 22], ids=str)
async def test_nothing_is_answered_before_the_login_is_over(broker, connect, before, asked):
    client = await connect(broker)
    for key, version, body in before:
        if body is None:
            client = await connect(broker)
            await client.shakes("SCRAM-SHA-256")
            assert (await client.says(b"n,,n=alice,r=x"))[0] == 0
        else:
            await client.ask(key, version, body)
    with structlog.testing.capture_logs():
        client.send(asked, 0 if asked in {68, 11, 22} else 3, bytes(64))
        assert await client.ended()


@pytest.mark.parametrize(
    "steps",
    [[API_VERSIONS, API_VERSIONS], [AUTHENTICATE], [HANDSHAKE, HANDSHAKE], [HANDSHAKE, API_VERSIONS]],
    ids=str,
)
async def test_the_steps_of_a_login_have_one_order(broker, connect, steps):
    client = await connect(broker)
    bodies = {API_VERSIONS: b"", HANDSHAKE: b"\0\5PLAIN", AUTHENTICATE: bare_token(RIGHT)}
    for step in steps[:-1]:
        await client.ask(step, 0 if step == API_VERSIONS else 1, bodies[step])
    client.send(steps[-1], 0 if steps[-1] == API_VERSIONS else 1, bodies[steps[-1]])
    assert await client.ended()


async def test_what_comes_right_behind_a_wrong_password_is_not_answered(broker, connect):
    client = await connect(broker)
    await client.shakes("PLAIN")
    client.send(AUTHENTICATE, 1, bare_token(b"\0alice\0guess"))
    client.send(AUTHENTICATE, 1, bare_token(RIGHT))
    client.send(METADATA, 1, struct.pack(">i", 0))
    answer = await client.frame()
    assert answer[4:6] == struct.pack(">h", 58)
    assert b"Authentication failed: Invalid username or password" in answer
    assert await client.ended()


async def test_a_mechanism_that_there_is_not(broker, connect):
    client = await connect(broker)
    assert await client.shakes("GSSAPI") == (33, {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
    assert await client.ended()


async def test_who_is_logged_in_does_not_log_in_again(broker, connect):
    """As with Kafka's default of connections.max.reauth.ms, 0."""
    client = await connect(broker)
    await client.shakes("PLAIN")
    await client.says(RIGHT)
    assert await client.shakes("PLAIN") == (34, set())
    assert (await client.says(b"\0alice\0guess"))[0] == 34
    assert await client.is_served()


async def test_without_users_a_login_is_refused_and_everybody_is_served(connect):
    async with Broker() as running:
        client = await connect(running)
        assert (await client.shakes("PLAIN"))[0] == 34
        assert (await client.says(RIGHT))[0] == 34
        assert await client.is_served()


@pytest.mark.parametrize("password", ["open sesame", "guess"])
async def test_after_a_handshake_of_version_0_tokens_come_bare(broker, connect, password):
    client = await connect(broker)
    assert (await client.shakes("SCRAM-SHA-256", version=0))[0] == 0
    scram: Any = ScramAuthenticator(
        loop=None, sasl_plain_password=password, sasl_plain_username="alice", sasl_mechanism="SCRAM-SHA-256"
    )
    client.raw(scram.first_message().encode())
    scram.process_server_first_message((await client.frame()).decode())
    client.raw(scram.final_message().encode())
    if password == "guess":
        assert await client.ended()
        return
    scram.process_server_final_message((await client.frame()).decode())
    assert await client.is_served()


async def test_frames_are_short_until_the_login_is_over(broker, connect):
    client = await connect(broker)
    client.writer.write(struct.pack(">i", MAX_LOGIN_FRAME_BYTES + 1))
    assert await client.ended()
    client = await connect(broker)
    await client.shakes("PLAIN")
    await client.says(RIGHT)
    client.raw(struct.pack(">hhih", API_VERSIONS, 0, 7, -1) + bytes(MAX_LOGIN_FRAME_BYTES))
    assert (await client.frame())[4:6] == b"\0\0"


async def test_who_does_not_log_in_in_time_is_sent_away(connect, monkeypatch):
    monkeypatch.setattr(connections, "LOGIN_S", 0.01)
    async with Broker(users=USERS) as running:
        client = await connect(running)
        assert await client.ended()


@pytest.mark.parametrize("version", [0, 1])
async def test_who_hangs_up_before_being_refused_is_in_the_log_too(connect, version):
    with structlog.testing.capture_logs() as logs:
        structlog.configure(processors=structlog.get_config()["processors"])
        async with Broker(users=USERS) as running:
            client = await connect(running)
            await client.shakes("PLAIN", version=version)
            if version:
                client.send(AUTHENTICATE, 1, bare_token(b"\0alice\0guess"))
            else:
                client.raw(b"\0alice\0guess")
            client.writer.close()
            await until(lambda: not running.connections)
        structlog.reset_defaults()
    (line,) = logs
    assert (line["event"], line["reason"]) == ("connection_closed", "the login by PLAIN failed")


async def test_nothing_in_the_log_tells_a_secret(connect, monkeypatch):
    with structlog.testing.capture_logs() as logs:
        structlog.configure(processors=structlog.get_config()["processors"])
        async with Broker(users=USERS) as running:
            for token in (b"\0alice\0geheim", b"geheim", b"\0alice\0geheim\0\0"):
                client = await connect(running)
                await client.shakes("PLAIN")
                assert (await client.says(token))[0] == 58
                assert await client.ended()
            client = await connect(running)
            await client.shakes("PLAIN")
            client.send(AUTHENTICATE, 1, struct.pack(">i", 100) + b"geheim")
            assert await client.ended()

            def fails(*arguments: object) -> bool:
                raise RuntimeError("geheim")

            monkeypatch.setattr("fencepost.coordinator.sasl.credentials.Credentials.is_password", fails)
            client = await connect(running)
            await client.shakes("PLAIN")
            client.send(AUTHENTICATE, 1, bare_token(b"\0alice\0geheim"))
            assert await client.ended()
        structlog.reset_defaults()
    assert {line["event"] for line in logs} == {"connection_closed", "request_failed"}
    assert "geheim" not in repr(logs)
    assert "exc_info" not in repr(logs)


# -- TLS ------------------------------------------------------------------------------------------------

with_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificate with openssl"
)


@pytest.fixture(scope="module")
def pem(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and keys."""
    folder = tmp_path_factory.mktemp("pem")
    make = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker")
    for name in ("broker", "other"):
        subprocess.run(
            [
                *make,
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
            ],
            check=True,
            capture_output=True,
        )
    (folder / "both.pem").write_text(
        (folder / "broker.key").read_text() + (folder / "broker.pem").read_text()
    )
    subprocess.run(
        [
            *("openssl", "rsa", "-aes256", "-passout", "pass:geheim"),
            *("-in", folder / "broker.key", "-out", folder / "locked.key"),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "broken.pem").write_text("-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n")
    return folder


@with_openssl
async def test_tls_and_what_comes_in_plain(pem, connect):
    async with Broker(tls=tls_context(pem / "both.pem"), users=USERS) as running:
        trust = ssl.create_default_context(cafile=pem / "broker.pem")
        client = await connect(running, ssl=trust)
        await client.shakes("PLAIN")
        assert (await client.says(RIGHT))[0] == 0
        assert await client.is_served()
        plain = await connect(running)
        plain.send(API_VERSIONS, 0)
        await asyncio.wait_for(plain.reader.read(), 10)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(running, ssl=ssl.create_default_context(cafile=pem / "other.pem"))
        assert await client.is_served()
        silent = await connect(running)
        assert not silent.reader.at_eof()
    assert await client.ended()


@with_openssl
async def test_of_many_at_once_as_many_are_let_in_as_there_is_room_for(pem, connect):
    async with Broker(tls=tls_context(pem / "both.pem"), max_connections=3) as running:
        trust = ssl.create_default_context(cafile=pem / "broker.pem")
        raw = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(5)]
        let_in = 0
        for each in raw:
            each.setblocking(False)
            try:
                _, writer = await asyncio.open_connection(sock=each, ssl=trust, server_hostname="127.0.0.1")
            except OSError:
                each.close()
            else:
                let_in += 1
                writer.close()
        assert let_in == 3


@with_openssl
async def test_connections_that_shake_hands_for_ever_count_and_end(pem, connect, monkeypatch):
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.2)
    async with Broker(tls=tls_context(pem / "both.pem"), max_connections=2) as running:
        silent = [await connect(running) for _ in range(3)]
        assert all([await each.ended() for each in silent])
        trust = ssl.create_default_context(cafile=pem / "broker.pem")
        client = await connect(running, ssl=trust)
        assert await client.is_served()


@with_openssl
@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("none.pem", None, "TLS certificate .*none.pem: no such file"),
        ("broker.pem", "none.key", "TLS key .*none.key: no such file"),
        ("broker.pem", None, "broker.pem: there is no PEM key in it: expected one, or another file with it"),
        ("broker.pem", "broker.pem", "TLS key .*broker.pem: there is no PEM key in it"),
        ("broker.pem", "other.key", "with key .*other.key: the key belongs to another certificate"),
        ("broker.key", "broker.key", "TLS certificate .*broker.key: there is no PEM certificate in it"),
        ("broken.pem", None, "expected a PEM certificate, and the PEM key that belongs to it"),
        ("broker.pem", "locked.key", "the key needs a password, expected one without"),
        (".", None, "is a directory"),
    ],
)
def test_files_that_are_no_certificate(pem, certificate, key, told):
    with pytest.raises(FencepostError, match=told):
        tls_context(pem / certificate, None if key is None else pem / key)
