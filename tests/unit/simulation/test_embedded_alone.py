"""An embedded Kafka next to any aiokafka: it never imports it, and picks partitions as Kafka does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulation.embedded.logs import _murmur2

SCRIPT = """
import sys
sys.modules["aiokafka"] = None
from confluent_kafka import Consumer, Producer
from fencepost import EmbeddedKafka

with EmbeddedKafka(topics={"orders": 3}, config={"group.initial.rebalance.delay.ms": 0}) as kafka:
    kafka.produce("orders", "first", key="k", headers={"h": "1"})
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": compression})
        producer.produce("orders", compression * 100, key="k")
        assert producer.flush(20) == 0
    assert len(kafka.records("orders")) == 6
    consumer = Consumer({
        "bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    })
    consumer.subscribe(["orders"])
    read = []
    while len(read) < 6:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            read.append(message.value())
    assert b"first" in read
    kafka.group("g").wait_stable(members=1)
    consumer.close()
    kafka.restart()
    assert kafka.check() == []
assert not any(name.startswith("aiokafka.") for name in sys.modules)
"""


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(120)
def test_it_runs_where_aiokafka_is_missing() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], check=True, timeout=100)


@given(st.binary(max_size=40))
def test_keys_go_to_the_partitions_that_a_producer_takes(key: bytes) -> None:
    assert _murmur2(key) == murmur2(key)
