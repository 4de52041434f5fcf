"""What an embedded Kafka makes of records that nobody can read, as journals of older versions may hold."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import confluent_kafka.admin
import pytest
from aiokafka.record.util import calc_crc32c

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.batches import placed
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.logs import PartitionLog
from tests.batches import batch_of

pytestmark = pytest.mark.real


def garbage(compression: int, offset: int) -> bytes:
    """A stored batch of one record; compression 0 leaves bytes that are no records."""
    batch = bytearray(batch_of([(1_000, b"k", b"v", [])]))
    batch[22] = compression
    if compression == 0:
        batch[61:] = b"\xff" * (len(batch) - 61)
    struct.pack_into(">I", batch, 17, calc_crc32c(bytes(batch[21:])))
    return placed(bytes(batch), offset, 0)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    topics = ("none", "gzip", "snappy", "lz4", "zstd", "poisoned", "old")
    with EmbeddedKafka(topics=dict.fromkeys(topics, 1)) as kafka:
        yield kafka


def log_of(kafka: EmbeddedKafka, topic: str) -> PartitionLog:
    cluster = kafka.endpoint.brokers.cluster
    return cluster.log(cluster.image.by_name[topic], 0)


@pytest.mark.parametrize(
    ("topic", "compression"), [("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_stored_garbage_is_told_in_one_line(kafka: EmbeddedKafka, topic: str, compression: int) -> None:
    kafka.produce(topic, "a", "b", key="k")
    log_of(kafka, topic).restore(garbage(compression, 2))
    kafka.produce(topic, "c", key="k")
    with pytest.raises(FencepostError, match=rf"^{topic}-0: the batch at offset 2 can't be read: ") as told:
        kafka.records(topic)
    assert "\n" not in str(told.value)


def test_the_clock_goes_on_over_it(kafka: EmbeddedKafka) -> None:
    """Retention and compaction of all other topics too."""
    kafka.produce("poisoned", "a", key="k")
    log_of(kafka, "poisoned").restore(garbage(4, 1))
    kafka.produce("poisoned", "b", "c", key="k")
    kafka.produce("old", "a")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for topic, name, value in (("poisoned", "cleanup.policy", "compact"), ("old", "retention.ms", "60000")):
        entry = confluent_kafka.admin.ConfigEntry(
            name, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
        )
        resource = confluent_kafka.admin.ConfigResource(
            confluent_kafka.admin.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry]
        )
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)
    kafka.clock.advance(120)
    assert kafka.records("old") == []
    kafka.clock.advance(120)
    with pytest.raises(FencepostError, match="poisoned-0: the batch at offset 1"):
        kafka.records("poisoned")
