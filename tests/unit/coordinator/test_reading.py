"""Files that a user names: a device or a pipe that never ends is refused, and so is one that is too long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.coordinator.journal.sqlite import SqliteJournal
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, check_regular, read_file, read_text


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert read_text(file) == "a\nb\nc"
    assert read_file(file, 9) == read_file(file, None)
    with pytest.raises(
        UnreadableFile, match=r"f: can't be read: it is longer than 8 bytes, which is the limit$"
    ):
        read_file(file, 8)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/dev/zero", "it is a device, expected a regular file"),
        ("/dev/null", "it is a device, expected a regular file"),
        ("pipe", "it is a pipe, expected a regular file"),
        (".", "it is a directory, expected a regular file"),
        ("none", "no such file or directory"),
        ("with\0zero", "embedded null byte"),
        ("latin", "it is not UTF-8 text"),
    ],
)
def test_what_is_no_file_of_text_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("latin").write_bytes(b"\xff")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UnreadableFile) as refused:
        read_text(Path(path))
    assert refused.value.reason == reason
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_says_that_it_is_empty_is_read_up_to_the_limit() -> None:
    """Files of /proc have a size of 0."""
    assert b"MemTotal" in read_file(Path("/proc/meminfo"))
    with pytest.raises(UnreadableFile, match="longer than 10 bytes"):
        read_file(Path("/proc/meminfo"), 10)


def test_only_other_kinds_of_files_are_complained_about(tmp_path: Path) -> None:
    check_regular(tmp_path / "none")
    check_regular(Path(__file__))
    with pytest.raises(UnreadableFile, match="it is a directory"):
        check_regular(tmp_path)


@pytest.mark.parametrize("name", ["journal", "journal-wal"])
def test_a_journal_is_no_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(FencepostError, match=f"^journal .*{name}: it is a pipe, expected a regular file$"):
        SqliteJournal(tmp_path / "journal")
    with pytest.raises(FencepostError, match=r"^journal /dev/zero: it is a device, expected a regular file$"):
        SqliteJournal(Path("/dev/zero"))
