"""The parts that subcommands share: KEY=VALUE words, and paths that are checked before a long run."""

from __future__ import annotations

from pathlib import Path

from fencepost.simulation.cli.arguments import key_values, writable_file, writable_results


def test_key_values() -> None:
    assert key_values(["a.b=1", "c = x=y", "a.b=2"], "--config") == {"a.b": "2", "c": "x=y"}


def test_a_writable_file_is_left_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    assert writable_file(old, "--trace") == old
    assert writable_file(new, "--trace") == new
    assert writable_file(None, "--trace") is None
    assert old.read_text() == "kept"
    assert not new.exists()


def test_a_report_may_be_in_the_folder_of_all_results(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    writable_results(out, out / "report.html")
    assert list(out.iterdir()) == []
