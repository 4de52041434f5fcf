"""Files that a user names are read by one function, which refuses devices, pipes and what is too long."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.sources import ROOT, files, nodes

READS = {"read_text", "read_bytes", "load"}
NOT_THE_USER_S = {
    "coordinator/journal/repair.py": "a journal may have any size, and was seen to be a regular file",
    "coordinator/journal/wal.py": "the same",
    "coordinator/reading.py": "the function itself",
    "member/machines/__init__.py": "a file of the package",
    "simulation/analyses/queries.py": "a file of the package",
    "simulation/analyses/run_views.py": "a file of the package",
    "simulation/lab/clusters/artifacts.py": "a file of the package",
    "simulation/lab/clusters/classes.py": "a log that a child wrote",
    "simulation/lab/clusters/ports.py": "/proc",
    "simulation/lab/clusters/processes.py": "/proc",
    "simulation/java.py": "a script that we wrote",
    "simulation/pipeline/class_archive.py": "a file that we wrote",
    "simulation/pipeline/kept_tables.py": "files of the package",
    "simulation/pipeline/session.py": "a log that a child wrote",
    "simulation/pipeline/shipping.py": "modules of the package",
    "simulation/report/page.py": "files of the package",
    "simulation/world/outer.py": "/proc",
}


def reads(file: Path) -> list[str]:
    """The calls in a file that read a file whole."""
    found = []
    for node in nodes(file):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if (name := node.func.attr) in READS:
            owner = ast.unparse(node.func.value)
            if owner != "reading" and (name != "load" or owner in {"tomllib", "json"}):
                found.append(f"{owner}.{name}")
    return found


def test_files_are_read_in_one_place() -> None:
    found = {file.relative_to(ROOT).as_posix(): calls for file in files() if (calls := reads(file))}
    assert {name: calls for name, calls in found.items() if name not in NOT_THE_USER_S} == {}
    assert NOT_THE_USER_S.keys() - found.keys() <= {"coordinator/reading.py"}, "an exception is not needed"


def test_a_call_that_reads_a_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("path.read_text()\nPath(path).read_bytes()\ntomllib.load(file)\nx.load()\n")
    assert reads(file) == ["path.read_text", "Path(path).read_bytes", "tomllib.load"]
