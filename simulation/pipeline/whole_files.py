"""Files that appear whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success the file appears at `path`, otherwise nothing is left.

    A link stays a link. A device or a pipe, such as `/dev/null`, is written to, not replaced.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))  # `resolve` fails for links in a circle
    hidden = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        yield hidden
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all: an existing file stays until then.

    :raises EnvironmentLacks: if it cannot be written.
    """
    try:
        with whole_file(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EnvironmentLacks(f"{path}: cannot be written: {reason}") from error
