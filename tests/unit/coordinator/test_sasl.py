"""Proofs of passwords: published examples, a client's own implementation, and what nobody should say."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.sasl import SaslAuthenticateRequest
from fencepost.coordinator.sasl.client import client_tokens
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.sasl.mechanisms import (
    MECHANISMS,
    AuthenticationFailed,
    SaslExchange,
    ScramExchange,
    exchange_of,
)

SECRET = bytes(32)
USERS = {"alice": "open, sesame=1", "b,o=b": "pass\N{LATIN SMALL LETTER O WITH DIAERESIS}word"}
NOBODY = Credentials({}, SECRET)
SCRAM = [name for name in MECHANISMS if name != "PLAIN"]


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return Credentials(USERS, SECRET)


def test_the_example_of_rfc_7677() -> None:
    class Salted(Credentials):
        def _salt(self, hash_name: str, name: str) -> bytes:
            return base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

    exchange = ScramExchange(Salted({"user": "pencil"}, SECRET), "sha256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.user is None
    assert exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert exchange.user == "user"


def attempt(mechanism: str, credentials: Credentials, name: str, password: str) -> SaslExchange:
    """A login by aiokafka's half of SCRAM, which checks our half too."""
    exchange = exchange_of(mechanism, credentials, "ournonce")
    client: Any = ScramAuthenticator(
        loop=None,
        sasl_plain_password=password,
        sasl_plain_username=name,
        sasl_mechanism=mechanism,
    )
    client.process_server_first_message(exchange.respond(client.first_message().encode()).decode())
    client.process_server_final_message(exchange.respond(client.final_message().encode()).decode())
    return exchange


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("name", USERS)
def test_a_client_s_own_implementation_agrees(mechanism: str, name: str, credentials: Credentials) -> None:
    assert attempt(mechanism, credentials, name, USERS[name]).user == name


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(("name", "password"), [("alice", "guess"), ("nobody", "guess"), ("alice", "")])
def test_a_wrong_proof_is_refused(mechanism: str, name: str, password: str, credentials: Credentials) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        attempt(mechanism, credentials, name, password)
    assert str(refused.value) == "", "the reason tells nothing of users"


def logged_in(mechanism: str, exchange: SaslExchange, name: str, password: str) -> bool:
    """Whether our client got in at our server, each of them convinced of the other."""
    client = client_tokens(mechanism, name, password, "itsnonce")
    token = next(client)
    with contextlib.suppress(StopIteration):
        while True:
            token = client.send(exchange.respond(token))
    return exchange.user == name


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", USERS)
def test_our_client_logs_in(mechanism: str, name: str, credentials: Credentials) -> None:
    assert logged_in(mechanism, exchange_of(mechanism, credentials, "ournonce"), name, USERS[name])
    with pytest.raises(AuthenticationFailed):
        logged_in(mechanism, exchange_of(mechanism, credentials, "ournonce"), name, "guess")


def test_our_client_says_what_rfc_7677_has() -> None:
    client = client_tokens("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert next(client) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.send(first).endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    with pytest.raises(AuthenticationFailed, match="the server does not know the password"):
        client.send(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "not a SCRAM message"),
        (b"r=itsnonce1,s=!,i=4096", "not a SCRAM message"),
        (b"r=itsnonce1,s=aaaa,i=many", "not a SCRAM message"),
        (b"r=itsnonce1,s=aaaa,i=0", "not a SCRAM message"),
        (b"r=another,s=aaaa,i=4096", "another login"),
    ],
)
def test_our_client_believes_no_impostor(answer: bytes, reason: str) -> None:
    client = client_tokens("SCRAM-SHA-512", "alice", "secret", "itsnonce")
    next(client)
    with pytest.raises(AuthenticationFailed, match=reason):
        client.send(answer)


def test_users_that_do_not_exist_look_like_those_that_do(credentials: Credentials) -> None:
    def first(name: str) -> str:
        return exchange_of("SCRAM-SHA-256", credentials, "x").respond(f"n,,n={name},r=y".encode()).decode()

    assert first("nobody") == first("nobody")
    assert first("nobody") != first("anybody")
    assert len(first("nobody")) == len(first("alice"))


@pytest.mark.parametrize(
    "token",
    [
        *(b"", b"n", b"n,,", b"n,,n=alice", b"n,,r=x,n=alice", b"n,,n=alice,r=", b"n,,m=x,n=alice,r=x"),
        *(b"p=tls-unique,,n=alice,r=x", b"n,a=eve,n=alice,r=x", b"n,,n=al=ice,r=x", b"n,,n=,r=x"),
        *(b"\xff\xfe", b"x,,n=alice,r=x"),
    ],
)
def test_first_messages_that_are_none(token: bytes, credentials: Credentials) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange_of("SCRAM-SHA-256", credentials, "x").respond(token)


@pytest.mark.parametrize(
    "token",
    [
        *(b"", b"c=biws", b"c=biws,r=yx", b"c=biws,r=yx,p=", b"c=biws,r=yx,p=!!!!", b"c=biws,r=yx,p=AAAA"),
        *(b"c=biws,r=y,p=" + base64.b64encode(bytes(32)), b"c=cD0s,r=yx,p=" + base64.b64encode(bytes(32))),
        *(b"c=biws,r=yx,p=" + base64.b64encode(bytes(32)), b"n,,n=alice,r=y", b"\xff"),
    ],
)
def test_final_messages_that_are_none(token: bytes, credentials: Credentials) -> None:
    exchange = exchange_of("SCRAM-SHA-256", credentials, "x")
    exchange.respond(b"n,,n=alice,r=y")
    with pytest.raises(AuthenticationFailed):
        exchange.respond(token)
    assert exchange.user is None


@pytest.mark.parametrize("identity", ["", "alice"])
def test_plain_takes_the_right_password(identity: str, credentials: Credentials) -> None:
    exchange = exchange_of("PLAIN", credentials, "")
    assert exchange.respond(f"{identity}\0alice\0{USERS['alice']}".encode()) == b""
    assert exchange.user == "alice"


@pytest.mark.parametrize(
    "token",
    [
        *(b"", b"\0", b"\0alice", b"\0alice\0guess", b"\0nobody\0guess", b"\0\0", b"\xff\0alice\0x"),
        *(b"eve\0alice\0open, sesame=1", b"\0alice\0open, sesame=1\0", b"\0alice\0"),
    ],
)
def test_plain_refuses_all_else(token: bytes, credentials: Credentials) -> None:
    exchange = exchange_of("PLAIN", credentials, "")
    with pytest.raises(AuthenticationFailed):
        exchange.respond(token)
    assert exchange.user is None


@settings(max_examples=2 * settings().max_examples)
@given(
    st.sampled_from(MECHANISMS), st.lists(st.binary(max_size=60) | st.text(alphabet="n,=rpca\0", max_size=30))
)
def test_no_bytes_are_a_proof(mechanism: str, tokens: list[bytes | str]) -> None:
    exchange = exchange_of(mechanism, NOBODY, "x")
    with contextlib.suppress(AuthenticationFailed):
        for token in tokens:
            exchange.respond(token.encode() if isinstance(token, str) else token)
    assert exchange.user is None


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("a\0b", "x"), ("alice", ""), ("alice", "geheim\0")]
)
def test_who_can_be_no_user(name: str, password: str) -> None:
    with pytest.raises(FencepostError, match=r"expected a (name|password)") as refused:
        Credentials({name: password}, SECRET)
    assert "geheim" not in str(refused.value)


def test_nothing_shows_a_password(credentials: Credentials) -> None:
    shown = [repr(credentials), repr(credentials.verifier("sha256", "alice"))]
    shown.append(repr(SaslAuthenticateRequest(token=b"\0alice\0open, sesame=1")))
    shown.append(repr(vars(credentials)))
    assert "sesame" not in "".join(shown)
