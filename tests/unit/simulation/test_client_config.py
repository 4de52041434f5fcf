"""Files of Kafka's client settings: what they say to our clients and to Java's, and mistakes in them."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE
from fencepost.simulation.brokers.blocking import require_topic
from fencepost.simulation.brokers.client_config import client_security
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.cli.entry import main

LOGIN = "sasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\n"


def read(folder: Path, text: str, **environ: str) -> ClientSecurity:
    file = folder / "client.properties"
    file.write_text(text)
    return client_security(file, "--kafka-config", environ)


def test_without_a_file_or_settings_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert client_security(None, "--kafka-config") == OPEN == read(tmp_path, "# nothing\n\nacks=all\n")
    assert OPEN.aiokafka() == {"security_protocol": "PLAINTEXT", "ssl_context": None}
    assert OPEN.java() == {"security.protocol": "PLAINTEXT"}


def test_a_login_in_librdkafka_s_words(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "security.protocol = sasl_plaintext\nsasl.mechanisms: PLAIN\n"
        "sasl.username=alice\nsasl.password=open\\\\se=same #1\n",
    )
    expected = ClientSecurity(mechanism="PLAIN", username="alice", password="open\\se=same #1")
    assert found == expected
    assert found.aiokafka() == {
        "security_protocol": "SASL_PLAINTEXT",
        "ssl_context": None,
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "open\\se=same #1",
    }


def test_a_login_in_java_s_words(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.endpoint.identification.algorithm=\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="alice" \\\n    password="a\\\\"b;c";\n',
    )
    assert (found.username, found.password) == ("alice", 'a"b;c')
    assert found.java() == {
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="a\\"b;c";',
    }
    context = found.context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


def test_the_password_may_be_in_the_environment(tmp_path: Path) -> None:
    text = f"security.protocol=SASL_SSL\n{LOGIN}"
    found = read(tmp_path, text, **{PASSWORD_VARIABLE: "secret"})
    assert found.password == "secret"
    assert "secret" not in repr(found)
    assert "secret" not in str([found])
    assert read(tmp_path, f"{text}sasl.password=own", **{PASSWORD_VARIABLE: "secret"}).password == "own"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("security.protocol=TLS", "security.protocol=TLS: expected PLAINTEXT, SSL,"),
        ("security.protocol=SASL_SSL", r"sasl.mechanism=\(none\): expected PLAIN, SCRAM"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism=GSSAPI: expected PLAIN"),
        (f"security.protocol=SASL_SSL\n{LOGIN}", f"expected sasl.username, and .*{PASSWORD_VARIABLE}"),
        ("security.protocol=SSL\nssl.ca.location=none.pem", "certificates none.pem: can't be read: no such"),
        ("security.protocol=SSL\nssl.truststore.location=a.jks", "ssl.truststore.type=JKS: expected PEM"),
        ("security.protocol=SSL\nssl.truststore.certificates=none", "trusted certificates can't be read"),
        (
            "security.protocol=SSL\nssl.keystore.location=a.jks",
            "ssl.keystore.type=JKS: expected PEM, or ssl.c",
        ),
        (
            "security.protocol=SSL\nssl.certificate.location=a.pem",
            "certificate a.pem: can't be read: no such",
        ),
        ("security.protocol=SSL\nssl.certificate.pem=a", "certificate without its key: expected ssl.key.loc"),
        ("security.protocol=SSL\nssl.key.pem=a", "key without its certificate: ssl.certificate.location"),
        ("security.protocol=SSL\nssl.key.pem=a\nssl.certificate.pem=b", "certificate and key can't be read"),
    ],
)
def test_settings_that_will_not_do(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FencepostError, match=f"^--kafka-config .*client.properties: .*{told}") as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def asks_certificates(pem: tuple[Path, Path]) -> Iterator[EmbeddedKafka]:
    """A Kafka that lets in who shows its certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pem[0]))
    context.load_cert_chain(*pem)
    context.verify_mode = ssl.CERT_REQUIRED
    with EmbeddedKafka(topics={"traces": 1}, tls=context) as kafka:
        yield kafka


def locked(key: Path, folder: Path) -> Path:
    made = folder / "locked.key"
    words = ("openssl", "pkcs8", "-topk8", "-passout", "pass:sesame", "-in", str(key), "-out", str(made))
    subprocess.run(words, check=True, capture_output=True)
    return made


@pytest.mark.parametrize("names", ["librdkafka", "java", "one file", "password"])
def test_a_client_shows_its_certificate(
    asks_certificates: EmbeddedKafka, pem: tuple[Path, Path], tmp_path: Path, names: str
) -> None:
    certificate, key = pem
    both = tmp_path / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    text = {
        "librdkafka": f"ssl.certificate.location={certificate}\nssl.key.location={key}",
        "java": f"ssl.keystore.type=PEM\nssl.keystore.location={both}",
        "one file": f"ssl.certificate.location={both}",
        "password": f"ssl.certificate.location={certificate}\nssl.key.password=sesame\n"
        f"ssl.key.location={locked(key, tmp_path)}",
    }[names]
    security = read(tmp_path, f"security.protocol=SSL\nssl.ca.location={certificate}\n{text}\n")
    assert require_topic(asks_certificates.bootstrap_servers, "traces", "here", security).partitions == 1
    assert security.java()["ssl.keystore.certificate.chain"] == security.certificate
    assert "PRIVATE KEY" in security.java()["ssl.keystore.key"]
    assert msgspec.json.decode(msgspec.json.encode(security), type=ClientSecurity) == security
    assert "PRIVATE" not in repr(security)


def test_without_a_certificate_a_client_stays_out(
    asks_certificates: EmbeddedKafka, pem: tuple[Path, Path], tmp_path: Path
) -> None:
    security = read(tmp_path, f"security.protocol=SSL\nssl.ca.location={pem[0]}\n")
    with pytest.raises(EnvironmentLacks, match=r"no Kafka broker answers .*certificate"):
        require_topic(asks_certificates.bootstrap_servers, "traces", "here", security)


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_broker_that_hangs_up_is_asked_what_it_speaks(
    asks_certificates: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Who wants a certificate may hang up in the handshake, after it, or before the answer."""

    def hangs_up(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", hangs_up)
    with pytest.raises(EnvironmentLacks, match=r"it closed .* SSL, and to clients without a certificate"):
        require_topic(asks_certificates.bootstrap_servers, "traces", "here", ClientSecurity(tls=True))


def test_a_wrong_password_of_a_key_is_told(pem: tuple[Path, Path], tmp_path: Path) -> None:
    text = f"security.protocol=SSL\nssl.certificate.location={pem[0]}\n"
    for given in ("", "ssl.key.password=guess\n"):
        with pytest.raises(FencepostError, match="the password of the client's key is wrong, or") as told:
            read(tmp_path, f"{text}ssl.key.location={locked(pem[1], tmp_path)}\n{given}")
        assert "guess" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["simulate", "--trace-config", "no"], "--trace-config: needs --trace-topic"),
        (["serve", "--trace-config", "no"], "--trace-config: needs --trace-topic"),
        (
            ["serve", "--topics", "t:1", "--trace-topic", "t", "--trace-config", "no"],
            "--trace-config: needs --trace-topic HOST:PORT/TOPIC",
        ),
        (["simulate", "--trace-topic", "h:1/t", "--trace-config", "no"], "--trace-config no: can't be read"),
        (["analyze", "here", "--kafka-config", "no"], "--kafka-config, .*: needs --kafka"),
        (["analyze", "--kafka", "h:1", "--topic", "t", "--kafka-config", "no"], "--kafka-config no: can't"),
    ],
)
def test_options_that_will_not_do(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(told, error), error
