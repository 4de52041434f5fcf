"""The working directory of a run: what programs write there is removed after the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

_COPIED_BYTES: Final = 1_000_000
"""Files up to this size are copied, so that a run may change them."""
_LEFT: Final[list[str]] = []
"""The working directories that runs have left for their own, outermost first."""


def started_in() -> str:
    """Return the working directory outside of runs."""
    return _LEFT[0] if _LEFT else os.getcwd()


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Let the working directory be a new one, with the files of the real one.

    Small files are copies, large ones and folders are links. So programs find what they read by relative
    names, and what they write is not there in the next run.
    """
    before = os.getcwd()
    path = sys.path[:]
    with tempfile.TemporaryDirectory(prefix="fencepost-world-", ignore_cleanup_errors=True) as folder:
        for entry in os.scandir(before):
            with contextlib.suppress(OSError):  # it is gone by now, or may not be read
                _show(entry, os.path.join(folder, entry.name))
        sys.path[:] = [each or before for each in path]
        _LEFT.append(before)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            _LEFT.pop()
            sys.path[:] = path


def _show(entry: os.DirEntry[str], place: str) -> None:
    if entry.is_file() and entry.stat().st_size <= _COPIED_BYTES:
        shutil.copy2(entry.path, place)
    else:
        os.symlink(entry.path, place)
