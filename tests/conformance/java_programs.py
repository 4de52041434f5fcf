"""Programs in Java: compiled, started, and told what to do; and the jars that they need."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable

import pytest

from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.classes import options

JAVA_SECONDS = 60
"""How long a Java program may take to say what it is waited for."""

_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx192m", "-Xlog:disable")
_COMPILING = ("-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-proc:none", "--release", "17")
_SILENT = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fencepost</groupId>
  <artifactId>judge</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def java_command(kafka: Installation, main: str, *more: pathlib.Path) -> list[str]:
    """The words that run a class of Kafka's, or of the jars and folders that are named after it."""
    # Kafka's jars come first, as when their classes were kept: else those are of no use.
    class_path = os.pathsep.join(map(str, (*kafka.jars, *more)))
    return [str(kafka.java), *_QUICK, *options(kafka.classes), _SILENT, "-cp", class_path, main]


class JavaProcess:
    """A Java process that is told what to do on standard input, and the lines that it says."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def wait(self, condition: Callable[[str], object]) -> str:
        """The next line for which the condition holds."""
        while True:
            try:
                line = self._lines.get(timeout=JAVA_SECONDS)
            except queue.Empty:
                pytest.fail(f"it only said {self.said[-20:]}")
            self.said.append(line)
            if condition(line):
                return line

    def listen(self, seconds: float) -> None:
        """Take in what it says, until it has said nothing for so long."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.said.append(self._lines.get(timeout=seconds))

    def tell(self, line: str) -> None:
        """A line for its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End its input, on which it closes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait(lambda one: one == "CLOSED")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._listener.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class JavaPrograms:
    """Programs of the folder java/, compiled when they are started first, for all of pytest's workers."""

    def __init__(self, folder: pathlib.Path, java_words: Callable[..., list[str]]) -> None:
        self._folder = folder
        self._java_words = java_words

    def command(self, name: str, *jars: pathlib.Path, **kafka: Installation) -> list[str]:
        """The words that run a program, with these jars besides Kafka's; `kafka` may be another one."""
        compiler = shutil.which("javac")
        if compiler is None:
            pytest.skip("javac is not installed")
        source = pathlib.Path(__file__).with_name("java") / f"{name}.java"
        made = self._folder / f"{name}.class"
        command = self._java_words(name, *jars, self._folder, **kafka)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists() or made.stat().st_mtime <= source.stat().st_mtime:
                words = [compiler, *_COMPILING, *command[-3:-1], "-d", self._folder, source]
                subprocess.run(words, check=True, timeout=120)
        return command


def jars_of(cache: pathlib.Path, group: str, artifact: str, version: str, *only: str) -> list[pathlib.Path]:
    """An artifact with what it needs, or of that what Maven is told to take; fetched once into the cache."""
    folder = cache / artifact / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (jars := sorted(folder.glob("*.jar"))):
            maven = shutil.which("mvn")
            if maven is None:
                pytest.skip(f"{artifact} is not in the cache, and Maven is not installed")
            pom = _POM.format(group=group, artifact=artifact, version=version)
            (folder / "pom.xml").write_text(pom, encoding="utf-8")
            words = [maven, "--quiet", "--batch-mode", "--file", str(folder / "pom.xml")]
            words += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'fetched'}", *only]
            try:
                subprocess.run(words, check=True, timeout=240, capture_output=True)
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"Maven does not fetch {artifact}: {error}")
            for jar in sorted((folder / "fetched").glob("*.jar")):
                jar.rename(folder / jar.name)
            jars = sorted(folder.glob("*.jar"))
    return jars
