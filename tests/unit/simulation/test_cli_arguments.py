"""What subcommands share: KEY=VALUE words, and paths that are refused before a long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import key_values, writable_file, writable_folder, writable_results


def test_key_values() -> None:
    assert key_values(["a.b=1", "c = x=y", "a.b=2"], "--config") == {"a.b": "2", "c": "x=y"}


@pytest.mark.parametrize("word", ["a", "=1", " =1", ""])
def test_key_values_refuse_words_without_a_key(word: str) -> None:
    with pytest.raises(FencepostError, match=r"--config .*expected KEY=VALUE"):
        key_values([word], "--config")


def test_a_writable_file_is_left_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    assert writable_file(old, "--trace") == old
    assert writable_file(new, "--trace") == new
    assert writable_file(None, "--trace") is None
    assert old.read_text() == "kept"
    assert not new.exists()


def test_files_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "no" / "such", tmp_path / "file" / "below", Path("/dev/null")):
        with pytest.raises(FencepostError, match=f"--trace {path}: cannot be written"):
            writable_file(path, "--trace")


def test_a_folder_is_made(tmp_path: Path) -> None:
    assert writable_folder(tmp_path / "a" / "b", "--out").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_folders_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FencepostError, match=r"--out .*cannot be written"):
            writable_folder(path, "--out")


def test_a_report_may_be_in_the_folder_of_all_results(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    writable_results(out, out / "report.html")
    assert list(out.iterdir()) == []


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    with pytest.raises(FencepostError, match="--report"):
        writable_results(tmp_path, tmp_path / "no" / "report.html")
    assert tmp_path.is_dir()
