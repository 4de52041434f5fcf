"""The streaming source without Spark: what it reads of a topic, and what it says when it can't."""

from __future__ import annotations

import socket

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.live import reader
from fencepost.simulation.live.reader import TopicPart, TopicReader

pytestmark = pytest.mark.real


def read(source, start, end):
    """Partition, offset, key and value of each record between two offsets."""
    return sorted(
        (each["partition"], each["offset"], each["key"], each["value"])
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for each in batch.to_pylist()
    )


def test_records_come_once_with_all_that_they_have():
    with EmbeddedKafka(topics={"t": 3}) as kafka:
        source = TopicReader(kafka.bootstrap_servers, "t", 10)
        start = source.initialOffset()
        assert start == {"t": {"0": 0, "1": 0, "2": 0}}
        assert source.latestOffset(start, ReadAllAvailable()) == start
        written = [
            *kafka.produce("t", *map(str, range(25)), partition=0),
            *kafka.produce("t", None, "b", key="k", partition=2),
        ]
        found = []
        while (end := source.latestOffset(start, ReadMaxRows(10))) != start:
            found += read(source, start, end)
            start = end
        assert start == {"t": {"0": 25, "1": 0, "2": 2}}
    assert sorted(found) == sorted((each.partition, each.offset, each.key, each.value) for each in written)


def test_records_that_are_gone_are_told():
    with EmbeddedKafka(topics={"t": 1}) as kafka:
        kafka.produce("t", "a", "b")
        source = TopicReader(kafka.bootstrap_servers, "t", 10)
        with pytest.raises(EnvironmentLacks, match="t-0: the records from offset 7 on were deleted"):
            list(source.read(TopicPart(0, 7, 9)))


def test_brokers_that_stay_away_are_told(monkeypatch):
    monkeypatch.setattr(reader, "AWAY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EnvironmentLacks, match=f"no Kafka broker answers at 127.0.0.1:{port}"):
        TopicReader(f"127.0.0.1:{port}", "t", 10).initialOffset()
