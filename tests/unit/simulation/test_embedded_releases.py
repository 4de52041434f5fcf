"""Brokers that look like those of an older Kafka, by the versions that they speak."""

from __future__ import annotations

import aiokafka
import pytest
from confluent_kafka import Producer

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey
from fencepost.coordinator.codec.releases import RELEASES, max_versions
from fencepost.coordinator.protocol.cluster import ApiVersionsRequest, FindCoordinatorRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from tests.unit.simulation.wire_member import WireMember

pytestmark = pytest.mark.real


def spoken(kafka: EmbeddedKafka) -> dict[int, int]:
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    found = one.ask(ApiKey.API_VERSIONS, asked, 3).api_versions
    return {key: each.max_version for key, each in found.items()}


def test_versions_rise_from_release_to_release() -> None:
    before: dict[int, int] = {}
    for release in RELEASES:
        found = dict(max_versions(release))
        assert all(found[key] >= version for key, version in before.items())
        assert all(version <= REGISTRY[key].max_version for key, version in found.items())
        before = found


@pytest.mark.parametrize(
    ("release", "api", "version"),
    [
        ("2.4", ApiKey.PRODUCE, 8),
        ("2.4", ApiKey.FETCH, 11),
        ("2.8", ApiKey.FETCH, 12),
        ("2.8", ApiKey.OFFSET_FETCH, 7),
        ("3.6", ApiKey.CONSUMER_GROUP_HEARTBEAT, -1),
        ("4.0", ApiKey.CONSUMER_GROUP_HEARTBEAT, 1),
        ("4.0", ApiKey.PRODUCE, 12),
    ],
)
def test_a_release_speaks_its_versions(release: str, api: ApiKey, version: int) -> None:
    with EmbeddedKafka(as_release=release) as kafka:
        assert spoken(kafka).get(api, -1) == version


def test_newer_versions_are_refused_as_by_that_release() -> None:
    with EmbeddedKafka(as_release="2.8") as kafka:
        one = WireMember(kafka.bootstrap_servers, "g", "m")
        asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        one.socket.sendall(request_frame(ApiKey.API_VERSIONS, 4, 7, "m", asked))
        reply = read_response(ApiKey.API_VERSIONS, 0, one.socket.recv(4096)[4:])[1]
        assert reply.error_code is ErrorCode.UNSUPPORTED_VERSION
        assert [each.max_version for each in reply.api_versions.values()] == [3]
        one.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=("g",)), 3)
        with pytest.raises(EOFError):
            one.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=("g",)), 4)


@pytest.mark.parametrize("release", ["2.1", "2.4", "2.8", "3.3", "4.1"])
async def test_clients_work_with_an_older_kafka(release: str) -> None:
    async with EmbeddedKafka(topics={"orders": 2}, as_release=release) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
        for number in range(4):
            producer.produce("orders", str(number), partition=number % 2)
        assert producer.flush(30) == 0
        consumer = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        read = [(await consumer.getone()).value for _ in range(4)]
        await consumer.stop()
        assert sorted(read) == [b"0", b"1", b"2", b"3"]
        assert kafka.check() == []


@pytest.mark.parametrize("release", ["4.9", "two", 2.8])
def test_a_release_that_there_is_not(release: str) -> None:
    with pytest.raises(FencepostError, match=r"^as_release=.*: expected 2\.1 to 4\.1$"):
        EmbeddedKafka(as_release=release)
