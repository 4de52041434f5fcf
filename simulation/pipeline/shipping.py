"""The project's own code as a zip, for executors of a cluster that do not have it installed."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path

PACKAGES = ("fencepost.coordinator", "fencepost.member", "fencepost.simulation")

_MOMENT = (2020, 1, 1, 0, 0, 0)
"""One time stamp for all files: equal code makes an equal zip."""


def project_zip(folder: Path) -> Path:
    """Write fencepost.zip into `folder` and answer its path. Package data goes along."""
    target = folder / "fencepost.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        # `fencepost` is a namespace: Python finds it in a zip only where the zip lists the folder itself.
        archive.writestr(zipfile.ZipInfo("fencepost/", _MOMENT), b"")
        for package in PACKAGES:
            for root in importlib.import_module(package).__path__:
                _add(archive, Path(root), package.replace(".", "/"))
    return target


def _add(archive: zipfile.ZipFile, root: Path, prefix: str) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            entry = zipfile.ZipInfo(f"{prefix}/{path.relative_to(root).as_posix()}", _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
