"""Spark's own Kafka connector, as jars in the user's cache, fetched once with Maven.

It comes in a version of its own for each version of Spark. Where that one is not to be had, an older one that
was tried with this Spark does; where none is, `reader` reads the topic without any jar.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.simulation.environment import cache_directory, find_java

FETCH_SECONDS: Final = 120.0
_TRIED: Final = (("4.2.0", "4.0.0"),)
"""Versions of the connector and of its part for tokens that work with Spark 4.3, the newest first."""
_OF_SPARK: Final = re.compile(r"(scala-library|slf4j-api|jsr305|lz4-java|snappy-java)-")
"""What Spark itself brings along."""

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
    """The connector for this Spark, fetched if need be; None if it is not in the cache, and not to be had."""
    versions = ((spark_version, spark_version), *_TRIED)
    folders = {pair: cache_directory(environ) / f"spark-kafka-{pair[0]}" for pair in versions}
    for pair, folder in folders.items():
        if jars := tuple(sorted(folder.glob("*.jar"))):
            return Connector(pair[0], jars)
    maven = shutil.which("mvn", path=environ.get("PATH"))
    if maven is None:
        return None
    for pair, folder in folders.items():
        if _fetched(maven, pair, folder, environ):
            return Connector(pair[0], tuple(sorted(folder.glob("*.jar"))))
    return None


def _fetched(maven: str, versions: tuple[str, str], folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether the jars are in the folder now: all of them, or none."""
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
                timeout=FETCH_SECONDS,
                check=False,
                env={"JAVA_HOME": str(find_java(environ).parent.parent), **environ},
            )
            if done.returncode:
                return False
            for jar in lib.glob("*.jar"):
                if _OF_SPARK.match(jar.name):
                    jar.unlink()
            lib.rename(folder)
    except (OSError, subprocess.TimeoutExpired):
        return bool(list(folder.glob("*.jar")))  # another process may have been faster
    return True
