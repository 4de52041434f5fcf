"""Where the faults of a test are: in an embedded Kafka, or in a proxy before one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import pytest

from fencepost import EmbeddedKafka
from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy

PLACES = ("embedded", "proxy")
EMBEDDED = pytest.mark.parametrize("place", ["embedded"], scope="module")
"""For tests of what only an embedded Kafka has."""


class Through(KafkaProxy):
    """A proxy before an embedded Kafka: it has the faults, and all else is the Kafka's."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        super().__init__(kafka.bootstrap_servers)
        self.behind = kafka

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


@contextlib.contextmanager
def faulty(place: str, **settings: Any) -> Iterator[EmbeddedKafka]:
    """A Kafka with faults in that place."""
    with EmbeddedKafka(**settings) as kafka:
        if place == "embedded":
            yield kafka
        else:
            with Through(kafka) as proxy:
                yield cast("EmbeddedKafka", proxy)
