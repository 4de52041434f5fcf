"""Shipping to the executors of a cluster: the project's own code, and the libraries of a run.

The code is shipped as a zip by `addPyFile`, together with its compiled modules: each process of an executor
imports it, and would otherwise compile all of it. Compiled libraries can't be imported from a zip. They are
shipped by `addArchive`, which executors unpack into a folder on the path of their Pythons. So a bare Python
is enough, if its version and machine match the driver's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import marshal
import shutil
import tempfile
import time
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.java import cache_directory
from fencepost.simulation.pipeline.executors import ExecutorReport, look, machine
from fencepost.simulation.pipeline.jobs import run_job
from fencepost.simulation.pipeline.session import error_text, first_line, raised_by_spark
from fencepost.simulation.pipeline.whole_files import whole_file

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LIBRARIES: Final = ("msgspec", "structlog", "google-re2")
"""Libraries that a run imports: they are small, so they are always shipped, in the driver's versions."""
LARGE: Final = ("pyarrow", "duckdb")
"""Further libraries that workers need, 240 MB: they are shipped only if they are missing."""

EXECUTOR_SECONDS: Final = 300.0
"""Time that a cluster may take to give us an executor, in seconds."""

_FOLDER: Final = "fencepost-libraries"
_MOMENT: Final = (2020, 1, 1, 0, 0, 0)
"""One time stamp for all files: their own would mean nothing on the executors."""
_LEFT_OUT: Final = ("tests", "include", "__pycache__")
_EXECUTABLE: Final = 0o755 << 16

_EQUIPPED: Final[weakref.WeakSet[SparkContext]] = weakref.WeakSet()
"""The contexts that have the files: a context takes a file of one name from one folder only."""


def equip(spark: SparkSession) -> None:
    """Ship to the session's executors what they lack, once for all sessions of its context.

    :raises EnvironmentLacks: if there is no executor within `EXECUTOR_SECONDS`, or it can't run our code.
    """
    context = spark.sparkContext
    if context in _EQUIPPED:
        return
    folder = tempfile.mkdtemp(prefix="fencepost-code-")  # new executors may fetch from it later
    weakref.finalize(context, shutil.rmtree, folder, ignore_errors=True)
    context.addPyFile(str(project_zip(Path(folder))))
    found = ask_executors(spark, libraries=LARGE)
    for each in found:
        if each.machine != machine():
            raise EnvironmentLacks(
                f"--master {context.master}: {each.host} is {each.machine}, this machine is {machine()}:"
                " compiled libraries must fit both; start fencepost on a machine like the executors"
            )
    missing = tuple(name for name in LARGE if any(name not in each.versions for each in found))
    archive = libraries_zip((*LIBRARIES, *missing), cache_directory())
    context.addArchive(f"{archive}#{_FOLDER}")
    # A changed environment makes Spark start new Pythons: those that ran `look` do not know the folder.
    context.environment["PYTHONPATH"] = f"./{_FOLDER}"
    _EQUIPPED.add(context)


def check_shared(spark: SparkSession, file: Path) -> None:
    """Check that executors find a file that this process has written.

    :raises EnvironmentLacks: if an executor does not.
    """
    for each in ask_executors(spark, files=[str(file)]):
        if not each.files[str(file)]:
            raise EnvironmentLacks(
                f"--out {file.parent}: {each.host} does not find it:"
                " it must be on a file system that all executors share"
            )


def ask_executors(
    spark: SparkSession, *, libraries: Sequence[str] = (), files: Sequence[str] = ()
) -> list[ExecutorReport]:
    """Return the reports of the executors that exist.

    :raises EnvironmentLacks: if they can't run Python, or there are no executors.
    """
    context = spark.sparkContext
    began = time.monotonic()

    def watch(done: int, total: int) -> None:
        if not done and time.monotonic() - began > EXECUTOR_SECONDS and _executors(spark) == 0:
            raise EnvironmentLacks(
                f"--master {context.master}: it provided no executor within {EXECUTOR_SECONDS:g} s;"
                " are there workers with free cores and memory?"
            )

    def action() -> list[ExecutorReport]:
        slices = max(2, 2 * context.defaultParallelism)
        rows = context.parallelize(range(slices), slices)
        return rows.mapPartitions(functools.partial(look, libraries, files)).collect()

    try:
        return run_job(spark, "executors", action, watch)
    except Exception as error:
        if raised_by_spark(error):
            why = error_text(error) if "Traceback" in str(error) else first_line(error)
            raise EnvironmentLacks(
                f"--master {context.master}: executors can't run our code: {why}"
                " (PYSPARK_PYTHON names the Python that they start)"
            ) from error
        raise


def _executors(spark: SparkSession) -> int:
    scala: Any = spark.sparkContext._jsc
    return len(scala.sc().statusTracker().getExecutorInfos()) - 1  # the driver counts itself


def project_zip(folder: Path) -> Path:
    """Write fencepost.zip into `folder`, and return its path. It includes package data and compiled
    modules."""
    target = folder / "fencepost.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for root in importlib.import_module("fencepost").__path__:
            files = {f"fencepost/{name}": path for name, path in _files_below(Path(root))}
            _add(archive, files)
            for name, path in sorted(files.items()):
                if path.suffix == ".py":
                    _write(archive, f"{name}c", _compiled(path))
    return target


def _compiled(module: Path) -> bytes:
    """Return a `.pyc` that is not compared with its source (PEP 552); another version of Python ignores
    it."""
    code = SourceFileLoader(module.stem, str(module)).get_code(module.stem)  # kept, if it was compiled before
    unchecked = (0b01).to_bytes(4, "little")
    return MAGIC_NUMBER + unchecked + source_hash(module.read_bytes()) + marshal.dumps(code)


def libraries_zip(names: Sequence[str], cache: Path) -> Path:
    """Return an archive of these installed libraries for machines like this one; it is made once for each set
    of versions.

    :raises EnvironmentLacks: if one is not installed here, or the cache cannot be written.
    """
    try:
        found = {name: distribution(name) for name in names}
    except PackageNotFoundError as error:
        raise EnvironmentLacks(
            f"executors need {error.name}, which is missing here: pip install 'fencepost[spark]'"
        ) from error
    text = " ".join([machine(), *(f"{name}={each.version}" for name, each in sorted(found.items()))])
    target = cache / f"libraries-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.zip"
    if target.is_file():
        return target
    files: dict[str, Path] = {}
    for each in found.values():
        for file in each.files or ():
            if ".." not in file.parts and not any(part in _LEFT_OUT for part in file.parts):
                files[file.as_posix()] = Path(str(each.locate_file(file)))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as path, zipfile.ZipFile(path, "w") as zipped:
            _add(zipped, files)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot prepare libraries for executors in the cache folder {cache}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return target


def _files_below(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path


def _add(archive: zipfile.ZipFile, files: Mapping[str, Path]) -> None:
    for name, path in sorted(files.items()):
        _write(archive, name, path.read_bytes())


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _MOMENT)
    entry.external_attr = _EXECUTABLE
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=1)
