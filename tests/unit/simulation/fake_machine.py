"""A machine with a Java that `fake_java.py` plays, and with Kafka in its cache."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION

FAKE_JAVA = Path(__file__).with_name("fake_java.py")
MAIN_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def prepare_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python, fake = shlex.quote(sys.executable), shlex.quote(str(FAKE_JAVA))
    script(folder / "jdk/bin/java", f'exec {python} -S -E {fake} "$@"')
    lib = folder / f"cache/fencepost/kafka-{KAFKA_VERSION}/lib"
    lib.mkdir(parents=True)
    (lib / MAIN_JAR).touch()
    monkeypatch.setenv("JAVA_HOME", str(folder / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("FAKE_KAFKA", raising=False)
    return folder
