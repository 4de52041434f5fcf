"""The archive of Spark's classes in the user's cache (AppCDS): with it a JVM starts with less work.

The first session lists the classes that it loads. When it has ended, a process of its own makes the archive
from that list, at low priority. An archive belongs to one Java and one set of Spark's jars. Java ignores an
archive that does not fit or is damaged: it is deleted then, and the next session makes it again. Making one
deletes those of installations that have other jars now, or are gone. Nothing here is a reason to fail.

Java accepts an archive only for the class path that it was made with, and without duplicates. Spark's own
path begins with a folder that need not exist and names one jar twice, so the wrapper around Java
(`fencepost.simulation.java`) replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fencepost.simulation.java import ARCHIVE_OPTION, CLASS_PATH, cache_directory, wheel_java

_FORMAT: Final = 1
_MAKING_S: Final = 1_800.0
"""Time after which an unfinished archive counts as abandoned, in seconds."""

_DUMP: Final = (
    'nice "$0" -Xshare:dump "$@" && mv "$ARCHIVE.new" "$ARCHIVE"; rm -f "$ARCHIVE.new" "$ARCHIVE".list-*'
)
_BEHIND: Final = f"{{ {_DUMP}; }} &"
"""The same in the background: the process goes on after this one has ended."""


class ClassArchive(msgspec.Struct, frozen=True):
    """The place of the archive for this Java and these jars."""

    java: Path
    path: Path
    class_path: str
    home: str
    """The folder of the installation that it belongs to."""

    @property
    def _list(self) -> Path:
        return self.path.with_name(f"{self.path.name}.list-{os.getpid()}")

    @property
    def environment(self) -> dict[str, str]:
        """The variables for the wrapper: they use the archive, or list classes if there is none."""
        listing = f"-XX:DumpLoadedClassList={self._list}"
        chosen = f"-XX:SharedArchiveFile={self.path}" if self.path.is_file() else listing
        return {CLASS_PATH: self.class_path, ARCHIVE_OPTION: chosen}

    @property
    def _lock(self) -> Path:
        """The file that exists from the begin of making the archive, with the folder of its installation."""
        return _lock_of(self.path)

    def check_used(self, vm_info: str) -> None:
        """Delete the archive if Java, which was given it, says that it shares no classes."""
        with contextlib.suppress(OSError):
            if "sharing" not in vm_info and not self._unfinished.exists():
                _delete(self.path)

    def make(self, *, wait: bool = False) -> None:
        """Make the archive from the list of a session that has ended, unless it exists or is being made."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as unmade:
            unmade.callback(self._list.unlink, missing_ok=True)
            if self.path.exists() or not self._list.is_file():
                return
            if self._lock.exists() and time.time() - self._lock.stat().st_mtime > _MAKING_S:
                self._lock.unlink()
            with self._lock.open("x", encoding="utf-8") as lock:
                lock.write(self.home)
            unmade.pop_all()
            self._delete_others()
            command = [
                *("sh", "-c", _DUMP if wait else _BEHIND, str(self.java)),
                *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                *(f"-XX:SharedClassListFile={self._list}", f"-XX:SharedArchiveFile={self._unfinished}"),
                *("-cp", self.class_path),
            ]
            subprocess.run(
                command,
                check=False,
                env={**os.environ, "ARCHIVE": str(self.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def _delete_others(self) -> None:
        for path in self.path.parent.glob("spark-*.jsa"):
            home = _lock_of(path).read_text(encoding="utf-8") if _lock_of(path).exists() else ""
            if path != self.path and (home in ("", self.home) or not Path(home).exists()):
                _delete(path)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _delete(archive: Path) -> None:
    for path in (archive, _lock_of(archive)):
        path.unlink(missing_ok=True)


def class_archive(environ: Mapping[str, str] = os.environ) -> ClassArchive | None:
    """Return the archive for Spark's JVM; None if another Java or other settings are used."""
    if environ.get("JAVA_HOME") or environ.get("SPARK_CONF_DIR") or environ.get("SPARK_HOME"):
        return None
    java = wheel_java()
    if java is None or os.name == "nt":
        return None
    import pyspark

    home = Path(pyspark.__file__).parent
    if (home / "conf").exists():
        return None
    jars = sorted((home / "jars").glob("*.jar"))
    jars.sort(key=lambda jar: not jar.name.startswith("slf4j-api"))  # Spark has it first, too
    try:
        states = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in [*jars, java]]
        cache = cache_directory(environ)
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    text = json.dumps([_FORMAT, states])
    name = f"spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsa"
    return ClassArchive(java, cache / name, ":".join(map(str, jars)), str(home))
