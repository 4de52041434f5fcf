"""Files of Kafka's client settings: what they say to our clients and to Java's, and mistakes in them."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.client_config import client_security
from fencepost.simulation.cli.entry import main
from fencepost.simulation.cli.security import PASSWORD_VARIABLE
from fencepost.simulation.trace.security import OPEN, ClientSecurity

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
        ("security.protocol=SSL\nssl.keystore.location=a.pem", "certificates of clients are not supported"),
    ],
)
def test_settings_that_will_not_do(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FencepostError, match=f"^--kafka-config .*client.properties: .*{told}") as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["simulate", "--trace-config", "no"], "--trace-config: expected with --trace-topic"),
        (["serve", "--trace-config", "no"], "--trace-config: expected with --trace-topic"),
        (
            ["serve", "--topics", "t:1", "--trace-topic", "t", "--trace-config", "no"],
            "--trace-config: expected with --trace-topic HOST:PORT/TOPIC",
        ),
        (["simulate", "--trace-topic", "h:1/t", "--trace-config", "no"], "--trace-config no: can't be read"),
        (["analyze", "here", "--kafka-config", "no"], "--kafka-config, .*: expected with --kafka"),
        (["analyze", "--kafka", "h:1", "--topic", "t", "--kafka-config", "no"], "--kafka-config no: can't"),
    ],
)
def test_options_that_will_not_do(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(told, error), error
