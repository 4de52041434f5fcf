"""Users of SCRAM that come and go over the wire, and logins that expire, as real clients meet them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from structlog.testing import capture_logs

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.security import bare_token
from fencepost.coordinator.protocol.errors import FencepostError
from tests.unit.coordinator.test_server_login import AUTHENTICATE, METADATA, Client
from tests.unit.simulation.test_embedded_rights import plain

pytestmark = pytest.mark.real
SHA_512 = ScramMechanism.SCRAM_SHA_512


def admin_of(
    kafka: EmbeddedKafka, user: str, password: str = "secret", mechanism: str = "SCRAM-SHA-512"
) -> Any:
    config = plain(kafka, user) | {"sasl.password": password, "sasl.mechanism": mechanism}
    return AdminClient(config)


def may_log_in(kafka: EmbeddedKafka, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    try:
        admin_of(kafka, user, password, mechanism).list_topics(timeout=1.5)
    except KafkaException:
        return False
    return True


def test_a_user_that_confluent_kafka_creates_may_log_in_at_once():
    with EmbeddedKafka(users={"admin": "secret"}) as kafka:
        admin = admin_of(kafka, "admin")
        info = ScramCredentialInfo(SHA_512, 8192)
        upsertion = UserScramCredentialUpsertion("alice", info, b"open sesame", b"0123456789")
        (done,) = admin.alter_user_scram_credentials([upsertion]).values()
        done.result(60)
        found = admin.describe_user_scram_credentials(["alice"])["alice"].result(60)
        assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
            (SHA_512, 8192)
        ]
        everybody = admin.describe_user_scram_credentials().result(60)
        assert set(everybody) == {"admin", "alice"}
        admin_of(kafka, "alice", "open sesame").list_topics(timeout=60)
        assert not may_log_in(kafka, "alice", "wrong")
        assert not may_log_in(kafka, "alice", "open sesame", "SCRAM-SHA-256")
        (done,) = admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", SHA_512)]).values()
        done.result(60)
        assert not may_log_in(kafka, "alice", "open sesame")
        assert kafka.users() == ["admin"]


def test_changes_that_kafka_refuses_are_refused_alike(kafka):
    admin = AdminClient(plain(kafka))
    few, many, enough = (ScramCredentialInfo(SHA_512, each) for each in (4095, 16385, 4096))
    for changes, message in (
        ([UserScramCredentialUpsertion("a", few, b"x")], "Too few iterations"),
        ([UserScramCredentialUpsertion("a", many, b"x")], "Too many iterations"),
        ([UserScramCredentialDeletion("a", SHA_512)], "does not exist"),
        (
            [
                UserScramCredentialUpsertion("a", enough, b"x"),
                UserScramCredentialUpsertion("a", enough, b"y"),
            ],
            "cannot be altered twice",
        ),
    ):
        (done,) = admin.alter_user_scram_credentials(changes).values()
        with pytest.raises(KafkaException, match=message):
            done.result(60)
    found: Any = admin.describe_user_scram_credentials(["a"])
    with pytest.raises(KafkaException, match="credential that does not exist: a"):
        found["a"].result(60)
    assert kafka.users() == []


def test_a_test_adds_and_removes_users():
    with EmbeddedKafka(users={"admin": "secret"}) as kafka:
        kafka.add_user("alice", "one")
        admin_of(kafka, "alice", "one", "PLAIN").list_topics(timeout=60)
        kafka.add_user("alice", "two")
        admin_of(kafka, "alice", "two").list_topics(timeout=60)
        assert not may_log_in(kafka, "alice", "one", "PLAIN")
        kafka.remove_user("alice")
        assert not may_log_in(kafka, "alice", "two", "PLAIN")
        with pytest.raises(FencepostError, match="there is no user 'alice'; there are admin"):
            kafka.remove_user("alice")
        with kafka.scope() as scope, pytest.raises(FencepostError, match="would affect other scopes"):
            scope.add_user("bob", "secret")


# -- logins that expire (KIP-368) --------------------------------------------------------------------------


async def log_in(client: Client, user: str = "alice") -> tuple[int, int]:
    """Log in by PLAIN; the error, and the session's lifetime in ms."""
    await client.shakes("PLAIN")
    token = b"\0" + user.encode() + b"\0secret"
    answer = await client.ask(AUTHENTICATE, 1, len(token).to_bytes(4, "big") + token)
    return int.from_bytes(answer[:2], "big"), int.from_bytes(answer[-8:], "big")


@pytest.fixture
def short():
    config = {"connections.max.reauth.ms": 60_000}
    with EmbeddedKafka(users={"alice": "secret", "bob": "secret"}, config=config) as kafka:
        yield kafka


async def connected(kafka: EmbeddedKafka) -> Client:
    host, port = kafka.bootstrap_servers.rsplit(":", 1)
    return Client(*await asyncio.open_connection(host, int(port)))


async def test_a_session_that_is_over_ends_with_the_next_request(short):
    client = await connected(short)
    assert await log_in(client) == (0, 60_000)
    short.clock.advance(59)
    await client.ask(METADATA, 1, b"\0\0\0\0")
    short.clock.advance(2)
    client.send(METADATA, 1, b"\0\0\0\0")
    with pytest.raises(asyncio.IncompleteReadError):
        await client.frame()
    client.writer.close()


async def test_a_client_that_logs_in_again_stays(short):
    client = await connected(short)
    await log_in(client)
    for _ in range(3):
        short.clock.advance(61)
        assert await log_in(client) == (0, 60_000)
        await client.ask(METADATA, 1, b"\0\0\0\0")
    client.writer.close()


async def test_a_client_that_logs_in_again_has_the_same_user(short):
    client = await connected(short)
    await log_in(client)
    short.clock.advance(1)
    await client.shakes("PLAIN")
    error, rest = await client.says(b"\0bob\0secret")
    assert error == 58
    assert b"Cannot change principals during re-authentication from User.alice: User.bob" in rest
    assert await client.ended()
    client.writer.close()


async def test_a_client_that_logs_in_again_has_the_same_mechanism(short):
    client = await connected(short)
    await log_in(client)
    short.clock.advance(1)
    with capture_logs() as logged:
        assert (await client.shakes("SCRAM-SHA-256"))[0] == 0
        client.send(AUTHENTICATE, 1, bare_token(b"n,,n=alice,r=x"))
        assert await client.ended()
    assert [each["reason"] for each in logged if each["event"] == "connection_closed"] == [
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of "
        "mechanism 'PLAIN'"
    ]
    client.writer.close()


async def test_a_client_logs_in_again_once_a_second(short):
    client = await connected(short)
    await log_in(client)
    assert await log_in(client) == (0, 60_000)
    assert (await client.shakes("PLAIN"))[0] == 34
    assert await client.is_served()
    short.clock.advance(1)
    assert await log_in(client) == (0, 60_000)
    client.writer.close()
