"""The working directory of a run: what programs write there is removed after the run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

_PREFIX: Final = "fencepost-world-"
_LEFT_AFTER_S: Final = 60.0
"""The age from which a folder may be one that a killed run has left."""
_CLEANED: Final[list[bool]] = []
"""Not empty once this process has looked for such folders."""
_COPIED_BYTES: Final = 1_000_000
"""Files up to this size are copied, so that a run may change them."""
_LEFT: Final[list[str]] = []
"""The working directories that runs have left for their own, outermost first."""


_HOSTS: Final[list[str]] = []
"""The folders for those of hosts, innermost run last."""


def host_folder(name: str) -> str:
    """Return the folder of a host, made when it is first asked for, with the files of the real one."""
    folder = os.path.join(_HOSTS[-1], name)
    if not os.path.exists(folder):
        os.makedirs(os.path.join(folder, "tmp"))
        _show_all(started_in(), folder)
    return folder


def import_folder(host: str, real: str) -> str:
    """Return a new folder for the import of a program, near that of a host, with the files of `real`.

    It is removed with the host's, so an import may do with it what it likes.
    """
    run = os.path.dirname(os.path.dirname(host))
    folder = os.path.join(run, f"import-{len(os.listdir(run))}")
    os.mkdir(folder)
    with contextlib.suppress(FileNotFoundError):  # the real one is gone
        _show_all(real, folder)
    return folder


def started_in() -> str:
    """Return the working directory outside of runs."""
    return _LEFT[0] if _LEFT else os.getcwd()


def say_started_in(folder: str) -> None:
    """Take a folder for the working directory outside of runs: this process has been forked for one."""
    _LEFT[:] = [folder]


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Let the working directory be a new one, with the files of the real one.

    Small files are copies, large ones and folders are links. So programs find what they read by relative
    names, and what they write is not there in the next run.
    """
    before = os.getcwd()
    path = sys.path[:]
    if not _CLEANED:
        _CLEANED.append(True)
        _remove_left_folders()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        _in_use(folder),
    ):
        own, hosts = os.path.join(folder, "test"), os.path.join(folder, "hosts")
        for each in (own, hosts):
            os.mkdir(each)
        _show_all(before, own)
        sys.path[:] = [each or before for each in path]
        _LEFT.append(before)
        _HOSTS.append(hosts)
        os.chdir(own)
        try:
            yield
        finally:
            os.chdir(before)
            _LEFT.pop()
            _HOSTS.pop()
            sys.path[:] = path


@contextlib.contextmanager
def _in_use(folder: str) -> Iterator[bool]:
    """Lock a folder; yield false if another run has. A lock ends with the processes that hold it."""
    fd = os.open(folder, os.O_RDONLY)
    is_locked = False
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    try:
        yield is_locked
    finally:
        os.close(fd)


def _remove_left_folders() -> None:
    """Remove the folders of runs that were killed."""
    for entry in os.scandir(tempfile.gettempdir()):
        with contextlib.suppress(OSError):  # it is gone by now, or another user's
            if entry.name.startswith(_PREFIX) and time.time() - entry.stat().st_mtime > _LEFT_AFTER_S:
                with _in_use(entry.path) as is_left:
                    if is_left:
                        shutil.rmtree(entry.path, ignore_errors=True)


def _show_all(folder: str, place: str) -> None:
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # it is gone by now, may not be read, or is there already
            _show(entry, os.path.join(place, entry.name))


def _show(entry: os.DirEntry[str], place: str) -> None:
    if entry.is_file() and entry.stat().st_size <= _COPIED_BYTES:
        shutil.copy2(entry.path, place)
    else:
        os.symlink(entry.path, place)
