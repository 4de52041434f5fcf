"""How Spark reads a topic here: by its own connector where that is to be had, else by ours."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.brokers.security import ClientSecurity
from fencepost.simulation.live.connector import Connector, find_connector
from fencepost.simulation.live.documents import GROUP_LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_RECORDS: Final = 200_000
"""How many records one batch may have, so that it fits into memory."""


_LIBRARIES: Final = {"pyspark": "spark", "pandas": "spark", "aiokafka": "kafka", "kio": "kafka"}
"""What is needed, and which extra brings it."""


class SourceReader(Protocol):
    """A way to read a topic from its first record on. All have the same columns and forms of offsets."""

    @property
    def name(self) -> str:
        """What people are told."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What the session must be started with."""

    def load(self, spark: SparkSession, servers: str, topic: str, security: ClientSecurity) -> DataFrame:
        """The records, as a streaming source."""


class ConnectorReader:
    """Spark's own connector."""

    def __init__(self, connector: Connector) -> None:
        self.name = f"Spark's connector {connector.version}"
        self.settings = {"spark.jars": ",".join(map(str, connector.jars))}

    def load(self, spark: SparkSession, servers: str, topic: str, security: ClientSecurity) -> DataFrame:
        """See `SourceReader.load`."""
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(MOST_RECORDS),
            **{f"kafka.{name}": value for name, value in security.java().items()},
        }
        return spark.readStream.format("kafka").options(**options).load()


class PythonReader:
    """Our own source, which needs no jars."""

    name = "Python, without jars"
    settings: Mapping[str, str] = {}

    def load(self, spark: SparkSession, servers: str, topic: str, security: ClientSecurity) -> DataFrame:
        """See `SourceReader.load`."""
        from fencepost.simulation.live.reader import FORMAT, TopicSource

        spark.dataSource.register(TopicSource)
        options = {
            "servers": servers,
            "topic": topic,
            "most": str(MOST_RECORDS),
            "secret": msgspec.json.encode(security).decode(),
        }
        return spark.readStream.format(FORMAT).options(**options).load()


def choose_reader(topic: str) -> SourceReader:
    """The connector if there is one and a session can be started with it, else our own source.

    Spark's connector leaves Kafka's internal topics out, so the group log is always read by ours.

    :raises EnvironmentLacks: if a library is missing.
    """
    for library, extra in _LIBRARIES.items():
        if find_spec(library) is None:
            raise EnvironmentLacks(
                f"following a topic needs {library}, which is missing: pip install 'fencepost[{extra}]'"
            )
    from pyspark import SparkContext, __version__

    if topic != GROUP_LOG and SparkContext._active_spark_context is None:
        connector = find_connector(__version__)
        if connector is not None:
            return ConnectorReader(connector)
    return PythonReader()
