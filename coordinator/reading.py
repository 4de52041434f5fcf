"""Reads files that a user names: only regular files, and none larger than a limit.

A device or a pipe may never end. A file of gigabytes, taken for a scenario, fills the memory. What is
shown of a stranger's file goes through `visible`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from fencepost.coordinator.protocol.errors import FencepostError

MAX_FILE_BYTES: Final = 16 << 20
"""The size that a file may have which a user names, unless its reader has another limit (16 MiB)."""
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnreadableFile(FencepostError):
    """A file that can't be read; `reason` says why, without the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: can't be read: {reason}")
        self.reason = reason


def read_file(path: Path, max_bytes: int | None = MAX_FILE_BYTES) -> bytes:
    """Return a regular file's content; a `max_bytes` of None is no limit.

    :raises UnreadableFile: if it can't be read, is not a regular file, or exceeds the limit.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for its writer.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(opened)
            _check_regular(path, found.st_mode)
            with open(opened, "rb", closefd=False) as file:
                if max_bytes is None:
                    return file.read()
                data = b"" if found.st_size > max_bytes else file.read(max_bytes + 1)
        finally:
            os.close(opened)
        if found.st_size > max_bytes or len(data) > max_bytes:
            raise UnreadableFile(path, f"it is longer than {max_bytes} bytes, which is the limit")
        return data
    except OSError as error:
        raise UnreadableFile(path, _reason(error)) from None
    except ValueError as error:  # a name with a zero byte in it
        raise UnreadableFile(path, str(error)) from None


def read_text(path: Path, max_bytes: int | None = MAX_FILE_BYTES, *, expected: str | None = None) -> str:
    """Return a regular file's text, which is UTF-8. Line ends become `\\n`; a byte order mark is left out.

    :raises UnreadableFile: as `read_file`, and for another encoding. The message names what was `expected`.
    """
    try:
        text = read_file(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text" if expected is None else f"expected {expected}"
        raise UnreadableFile(path, reason) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Path) -> None:
    """See that a path, if there is anything, is a regular file.

    :raises UnreadableFile: if it is another kind of file, or can't be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        raise UnreadableFile(path, reason) from None
    _check_regular(path, mode)


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    raise UnreadableFile(path, f"it is {kind}, expected a regular file")


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):
        return "expected a regular file"
    return (error.strerror or str(error)).lower()


_HIDDEN: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Characters that steer a terminal, change the direction of text, or can't be written as UTF-8 (unpaired
surrogates), except line feeds and tabs."""


def visible(text: str) -> str:
    """Return text with hidden characters as escapes: files may come from strangers."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
