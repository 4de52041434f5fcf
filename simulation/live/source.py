"""The reader of a topic in Spark: Spark's own connector if it is available, else our own source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.brokers.security import ClientSecurity
from fencepost.simulation.java import cache_directory, find_java
from fencepost.simulation.live.records import GROUP_LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_RECORDS: Final = 200_000
"""The limit on records in one batch, so that a batch fits into memory."""


_LIBRARIES: Final = {"pyspark": "spark", "pandas": "spark", "aiokafka": "kafka", "kio": "kafka"}
"""Libraries that are needed, each with the extra that installs it."""


class SourceReader(NamedTuple):
    """The reader of a topic from its first record on: Spark's own connector, or our own source without jars.

    Both have the same columns and the same format of offsets.
    """

    connector: Connector | None = None

    @property
    def name(self) -> str:
        """The name for people."""
        return f"Spark's connector {self.connector.version}" if self.connector else "Python, without jars"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that the session must be started with."""
        return {"spark.jars": ",".join(map(str, self.connector.jars))} if self.connector else {}

    def load(self, spark: SparkSession, servers: str, topic: str, security: ClientSecurity) -> DataFrame:
        """Return the records as a streaming source."""
        if self.connector:
            source = "kafka"
            options = {
                "kafka.bootstrap.servers": servers,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(MOST_RECORDS),
                **{f"kafka.{name}": value for name, value in security.java().items()},
            }
        else:
            from fencepost.simulation.live.reader import FORMAT, TopicSource

            spark.dataSource.register(TopicSource)
            source = FORMAT
            options = {
                "servers": servers,
                "topic": topic,
                "most": str(MOST_RECORDS),
                "secret": msgspec.json.encode(security).decode(),
            }
        return spark.readStream.format(source).options(**options).load()


def choose_reader(topic: str) -> SourceReader:
    """Return the connector if it is available and a session can be started with it, else our own source.

    Spark's connector leaves out Kafka's internal topics, so our own source always reads the group log.

    :raises EnvironmentLacks: if a library is missing.
    """
    for library, extra in _LIBRARIES.items():
        if find_spec(library) is None:
            raise EnvironmentLacks(
                f"following a topic needs {library}, which is missing: pip install 'fencepost[{extra}]'"
            )
    from pyspark import SparkContext, __version__

    if topic == GROUP_LOG or SparkContext._active_spark_context is not None:
        return SourceReader()
    return SourceReader(find_connector(__version__))


FETCH_SECONDS: Final = 60.0
"""Time that Maven may take for all versions together, in seconds: the user waits for the first rows."""
_TRIED: Final = (("4.2.0", "4.0.0"),)
"""Versions of the connector and of its token provider that work with Spark 4.3, the newest first."""
_TOO_SLOW: Final = "Maven took too long"
_OF_SPARK: Final = re.compile(r"(scala-library|slf4j-api|jsr305|lz4-java|snappy-java)-")
"""Libraries that Spark itself includes."""

_log = structlog.get_logger(__name__)

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fencepost</groupId>
  <artifactId>connector</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{connector}</version>
      <exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
      <version>{tokens}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
"""


class Connector(NamedTuple):
    """Jars for `spark.jars`, and the version of the connector among them."""

    version: str
    jars: tuple[Path, ...]


def find_connector(spark_version: str, environ: Mapping[str, str] = os.environ) -> Connector | None:
    """Return the connector for this Spark, fetched if needed; None if it is neither in the cache nor
    available.

    It logs what it fetches beforehand, and the reason if that fails.
    """
    versions = ((spark_version, spark_version), *_TRIED)
    folders = {pair: cache_directory(environ) / f"spark-kafka-{pair[0]}" for pair in versions}
    for pair, folder in folders.items():
        if jars := tuple(sorted(folder.glob("*.jar"))):
            return Connector(pair[0], jars)
    maven = shutil.which("mvn", path=environ.get("PATH"))
    if maven is None:
        _log.info("connector_missing", why="there is no Maven to fetch it with")
        return None
    until = time.monotonic() + FETCH_SECONDS
    for pair, folder in folders.items():
        seconds = max(until - time.monotonic(), 0)
        _log.info("connector_fetching", version=pair[0], by=maven, seconds_at_most=round(seconds))
        why = _fetch(maven, pair, folder, environ, seconds)
        if jars := tuple(sorted(folder.glob("*.jar"))):  # another process may have been faster
            return Connector(pair[0], jars)
        _log.warning("connector_missing", version=pair[0], why=why)
        if why == _TOO_SLOW:
            return None
    return None


def _fetch(
    maven: str, versions: tuple[str, str], folder: Path, environ: Mapping[str, str], seconds: float
) -> str:
    """Put the jars into the folder, all of them or none; return the reason if they are missing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".connector-", dir=folder.parent) as scratch:
            pom, lib = Path(scratch) / "pom.xml", Path(scratch) / "lib"
            pom.write_text(_POM.format(connector=versions[0], tokens=versions[1]), encoding="utf-8")
            words = [maven, "--quiet", "--batch-mode", "--file", str(pom)]
            words += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                env={"JAVA_HOME": str(find_java(environ).parent.parent), **environ},
            )
            if done.returncode:
                return "Maven did not find it"
            for jar in lib.glob("*.jar"):
                if _OF_SPARK.match(jar.name):
                    jar.unlink()
            lib.rename(folder)
    except subprocess.TimeoutExpired:
        return _TOO_SLOW
    except EnvironmentLacks as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return ""
