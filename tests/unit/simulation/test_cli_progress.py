"""Progress: bars for people, lines for logs that are followed, silence for programs."""

from __future__ import annotations

import io

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.progress import Bars, ProgressLines, Silent, progress_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_gets_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_PROGRESS", raising=False)
    assert isinstance(progress_for(stream=Terminal()), Bars)
    assert isinstance(progress_for(stream=io.StringIO()), Silent)
    assert isinstance(progress_for(stream=io.StringIO(), lines=True), ProgressLines)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "lines")
    assert isinstance(progress_for(stream=Terminal()), Bars)
    assert isinstance(progress_for(stream=io.StringIO()), ProgressLines)
    for stream in (Terminal(), io.StringIO()):
        assert isinstance(progress_for(json=True, stream=stream), Silent)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "line")
    with pytest.raises(FencepostError, match="FENCEPOST_PROGRESS=line: expected lines or none"):
        progress_for(stream=io.StringIO())


def test_lines_come_each_tenth() -> None:
    stream = io.StringIO()
    with ProgressLines(stream).step("running", 45) as advance:
        for _ in range(45):
            advance(1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "running 5/45"
    assert lines[-1] == "running 45/45"
    assert len(lines) == 10


def test_lines_of_an_empty_step_are_none() -> None:
    stream = io.StringIO()
    with ProgressLines(stream).step("running", 0) as advance:
        advance(0)
    assert stream.getvalue() == ""
