"""KIP848Consumer at a Kafka broker that wants TLS and a password."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fencepost import KIP848Consumer
from fencepost.simulation.lab.clusters import layout
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.ports import free_ports
from fencepost.simulation.lab.clusters.settings import broker_properties

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl"),
]

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Secured(NamedTuple):
    open_servers: str
    servers: str
    certificate: Path


def make_certificate(folder: Path) -> Path:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "both.pem").write_text(key.read_text() + certificate.read_text())
    return certificate


def make_scram_user(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wanted = UserScramCredentialUpsertion(
        "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret"
    )
    admin.alter_user_scram_credentials([wanted])["bob"].result(60)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kafka_installation: object) -> Iterator[Secured]:
    """A node with one more listener: SASL over TLS."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = make_certificate(folder)
    (port,) = free_ports(1)
    own = f"SECURE://127.0.0.1:{port}"

    def properties(*arguments: object, **more: object) -> dict[str, str]:
        found = broker_properties(*arguments, **more)  # type: ignore[arg-type]
        for name in ("listeners", "advertised.listeners"):
            found[name] += f",{own}"
        found["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
        found["listener.name.secure.ssl.keystore.type"] = "PEM"
        found["listener.name.secure.ssl.keystore.location"] = str(folder / "both.pem")
        found["listener.name.secure.sasl.enabled.mechanisms"] = ",".join(MODULES)
        for mechanism, module in MODULES.items():
            known = ' user_alice="secret"' if mechanism == "PLAIN" else ""
            name = f"listener.name.secure.{mechanism.lower()}.sasl.jaas.config"
            found[name] = f"{module} required{known};"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "broker_properties", properties)
        node = RealCluster()
        asyncio.run(node.start())
        try:
            make_scram_user(node.bootstrap_servers)
            yield Secured(node.bootstrap_servers, f"127.0.0.1:{port}", certificate)
        finally:
            node.stop()


async def prepare(secured: Secured, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.open_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=secured.open_servers) as producer:
        await producer.send_and_wait(topic, b"sealed")


def consumer(secured: Secured, topic: str, **settings: object) -> KIP848Consumer:
    return KIP848Consumer(
        topic,
        **{
            "bootstrap_servers": secured.servers,
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=secured.certificate),
            "sasl_plain_username": "alice",
            "sasl_plain_password": "secret",
            **settings,
        },
    )


async def test_it_reads_and_commits_over_tls_with_a_password(secured):
    await prepare(secured, "letters")
    async with consumer(secured, "letters") as reader:
        assert (await asyncio.wait_for(reader.getone(), 60)).value == b"sealed"
        await reader.commit()
        assert await reader.committed(("letters", 0)) == 1


async def test_a_password_can_be_proven_without_being_sent(secured):
    await prepare(secured, "notes")
    settings = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "bob"}
    async with consumer(secured, "notes", **settings) as reader:
        assert (await asyncio.wait_for(reader.getone(), 60)).value == b"sealed"
        await reader.commit()
        assert await reader.committed(("notes", 0)) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "bob",
                "sasl_plain_password": "guess",
            },
            "(?i)authentication failed.*invalid (user )?credentials",
        ),
        ({"sasl_plain_password": "guess"}, "Authentication failed: Invalid username or password"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "(?i)authentication failed.*invalid (user )?credentials"),
        ({"ssl_context": ssl.create_default_context()}, "certificate verify failed"),
    ],
    ids=["wrong SCRAM password", "wrong password", "unknown to SCRAM", "unknown authority"],
)
async def test_who_may_not_is_told_why(secured, settings, reason):
    with pytest.raises(KafkaConnectionError, match=reason):
        await consumer(secured, "letters", **settings).start()
