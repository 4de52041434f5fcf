"""Kafka's own jars, fetched once with Maven into the user's cache, and a Java to run them.

<cache>/fencepost/kafka-4.3.1/lib/*.jar            the broker and what it needs, 44 MB
<cache>/fencepost/kafka-4.3.1/formatted/           what formatting writes for every node alike
<cache>/fencepost/kafka-4.3.1/classes-*.jsa        classes as this Java keeps them, 48 MB: nodes start sooner
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.java import cache_directory, find_java
from fencepost.simulation.lab.clusters.classes import classes_file, is_wanted, options, record
from fencepost.simulation.lab.clusters.layout import META
from fencepost.simulation.lab.clusters.processes import run_program, telling_line
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    KafkaVersion,
    NodeState,
    broker_properties,
    properties_text,
)

FETCH_SECONDS = 900.0
FORMAT_SECONDS = 120.0
FORMATTED = "formatted"

# Starts should be short, and nodes of a test share few cores: one fast compiler, one simple collector.
JAVA_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

_LACKING: Mapping[KafkaVersion, str] = {"4.4.0": "kafka-tools-api"}
"""Artifacts that repositories lack of a version; brokers do without them."""


def _pom(version: KafkaVersion) -> str:
    lacking = _LACKING.get(version)
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fencepost</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
{_EXCLUSION.format(lacking) if lacking else ""}\
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


_EXCLUSION = """\
      <exclusions>
        <exclusion>
          <groupId>org.apache.kafka</groupId>
          <artifactId>{}</artifactId>
        </exclusion>
      </exclusions>
"""


class Installation(NamedTuple):
    """Everything that it takes to run a node."""

    version: KafkaVersion
    java: Path
    jars: tuple[Path, ...]
    formatted: Path
    """The folder whose files go into the log folder of each new node, next to its meta.properties."""
    classes: Path
    """The classes that each node maps, so that it starts sooner; empty if this Java keeps no classes."""

    def command(self, main: str, *arguments: str) -> list[str]:
        """Return the words that run a class of Kafka's."""
        class_path = os.pathsep.join(map(str, self.jars))
        return [str(self.java), *JAVA_OPTIONS, *options(self.classes), "-cp", class_path, main, *arguments]


async def prepare(
    version: KafkaVersion = KAFKA_VERSION, environ: Mapping[str, str] = os.environ
) -> Installation:
    """Return a complete installation; what the cache lacks is fetched or made.

    :raises EnvironmentLacks: if there is no Java, or something that is missing can't be had.
    """
    java = find_java(environ)
    folder = cache_directory(environ) / f"kafka-{version}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _alone(folder):
            if not _main_jar(folder, version).is_file():
                await _fetch(version, folder, environ)
            jars = _jars(folder)
            classes = classes_file(folder, java, jars)
            installation = Installation(version, java, jars, folder / FORMATTED, classes)
            if not installation.formatted.is_dir():
                await _format(installation)
            if is_wanted(installation.classes):
                await record(installation.command, installation.formatted, installation.classes)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot keep Kafka in the cache folder {folder}: {(error.strerror or str(error)).lower()}; "
            "make room, or set XDG_CACHE_HOME to another folder"
        ) from error
    return installation


def _main_jar(folder: Path, version: KafkaVersion) -> Path:
    return folder / "lib" / f"kafka_2.13-{version}.jar"


def _jars(folder: Path) -> tuple[Path, ...]:
    """Return the jars in the same order each time."""
    return tuple(sorted((folder / "lib").glob("*.jar")))


@contextlib.asynccontextmanager
async def _alone(folder: Path) -> AsyncIterator[None]:
    """Keep other processes of this user out meanwhile."""
    if os.name == "nt":
        raise EnvironmentLacks("nodes as JVM processes need a POSIX system: use --runner docker")
    import fcntl

    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
        yield


async def _fetch(version: KafkaVersion, folder: Path, environ: Mapping[str, str]) -> None:
    """Fetch the jars, all of them or none, and compare their checksums."""
    maven = shutil.which("mvn", path=environ.get("PATH"))
    if maven is None:
        raise EnvironmentLacks(
            f"Kafka {version} is not in the cache, and Maven, which fetches it, is not installed: "
            f"install Maven (mvn), or copy the jars of a Kafka {version} download into {folder / 'lib'}"
        )
    (folder / "pom.xml").write_text(_pom(version), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch:
        lib = Path(scratch) / "lib"
        words = [maven, "--quiet", "--batch-mode", "--file", str(folder / "pom.xml")]
        words += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
        try:
            done = await run_program(words, seconds=FETCH_SECONDS, environ=_with_java(environ))
        except TimeoutError as error:
            raise EnvironmentLacks(
                f"Maven did not fetch Kafka {version} within {FETCH_SECONDS:.0f} s: "
                "check the connection and run again"
            ) from error
        if done.code or not (lib / _main_jar(folder, version).name).is_file():
            raise EnvironmentLacks(
                f"Maven cannot fetch Kafka {version}: {telling_line(done.output)}; "
                "check the connection, or Maven's settings.xml if there is a mirror"
            )
        check_jars(lib, version)
        shutil.rmtree(folder / "lib", ignore_errors=True)
        lib.rename(folder / "lib")


def _with_java(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a Java. Maven's launcher wants JAVA_HOME or a java on PATH; the wheel's Java
    is neither."""
    if environ.get("JAVA_HOME") or shutil.which("java", path=environ.get("PATH")):
        return dict(environ)
    return {**environ, "JAVA_HOME": str(find_java(environ).parent.parent)}


async def _format(installation: Installation) -> None:
    """Let Kafka format a folder, and keep the part that is the same for all nodes.

    It holds the level of each feature; a folder without it has no feature that came after Kafka 3.
    """
    with tempfile.TemporaryDirectory(prefix=".formatting-", dir=installation.formatted.parent) as scratch:
        node = NodeState.on_loopback(1, (9092, 9093, 9094))
        data = Path(scratch) / "data"
        properties = Path(scratch) / "server.properties"
        properties.write_text(properties_text(broker_properties(node, [node], "stock", str(data))))
        words = installation.command("kafka.tools.StorageTool", "format")
        words += ["--cluster-id", "fencepost-made-a-model", "--config", str(properties)]
        try:
            done = await run_program(words, seconds=FORMAT_SECONDS)
        except TimeoutError as error:
            raise EnvironmentLacks(
                f"Kafka did not format a folder within {FORMAT_SECONDS:.0f} s: the machine is too busy"
            ) from error
        if done.code or not (data / META).is_file():
            raise EnvironmentLacks(
                f"Kafka {installation.version} cannot format a folder: {telling_line(done.output)}; "
                f"if its jars are damaged, delete {installation.formatted.parent} and run again"
            )
        (data / META).unlink()
        data.replace(installation.formatted)


def pinned(version: KafkaVersion) -> Mapping[str, str]:
    """Return the SHA-256 of each jar of a version, by its name."""
    text = resources.files(__package__).joinpath("jars", f"kafka-{version}.sha256").read_text("ascii")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def check_jars(folder: Path, version: KafkaVersion) -> None:
    """Check that a folder has exactly the jars of a version.

    :raises EnvironmentLacks: if a jar is missing, is a different one, or should not be there.
    """
    expected = pinned(version)
    found = {path.name: path for path in folder.iterdir()}
    for name in sorted(expected.keys() ^ found.keys()):
        what = "is missing among" if name in expected else "is not expected among"
        raise EnvironmentLacks(f"{name} {what} the jars that Maven fetched for Kafka {version}: {_ADVICE}")
    for name, path in sorted(found.items()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected[name]:
            raise EnvironmentLacks(
                f"{name}, which Maven fetched for Kafka {version}, has the SHA-256 {digest}, "
                f"expected {expected[name]}: {_ADVICE}"
            )


_ADVICE = (
    "delete it in Maven's local repository and run again, or check where Maven's settings.xml fetches from"
)
