"""Progress: bars for people, lines for logs that are followed, silence for programs."""

from __future__ import annotations

import io
import random

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.progress import (
    Bars,
    ProgressLines,
    Shares,
    Silent,
    progress_for,
    rough_time,
)


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
    monkeypatch.setenv("FENCEPOST_PROGRESS", "lines")
    assert isinstance(progress_for(json=True, lines=True, stream=Terminal()), Bars)
    assert isinstance(progress_for(json=True, lines=True, stream=io.StringIO()), ProgressLines)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "none")
    assert isinstance(progress_for(json=True, lines=True, stream=io.StringIO()), Silent)
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


def test_lines_come_each_half_a_minute_where_a_tenth_takes_longer() -> None:
    stream, now = io.StringIO(), 0.0
    with ProgressLines(stream, lambda: now).step("running", 8) as advance:
        for _ in range(80):
            now += 1
            advance(0)
        advance(2)
        now += 29
        advance(0)
        now += 1
        advance(0)
    assert stream.getvalue().splitlines() == [
        "running 0/8, 30 s so far",
        "running 0/8, 1 min so far",
        "running 2/8, about 4 min left",
        "running 2/8, about 6 min left",
    ]


@pytest.mark.parametrize("kind", [ProgressLines, Bars])
def test_what_is_said_comes_at_once(kind: type[ProgressLines] | type[Bars]) -> None:
    stream = io.StringIO()
    kind(stream).say("starting Spark [local]…")
    assert stream.getvalue() == "starting Spark [local]…\n"


def test_a_bar_of_at_most_so_many_parts_ends_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Bars(stream).step("states", 2_000_000) as advance:
        advance(1_234)
    assert "1234/1234" in stream.getvalue()


def test_estimates_are_rough() -> None:
    assert [rough_time(each) for each in (2, 44, 58, 150, 3_550, 4_000, 7_190)] == [
        "10 s",
        "40 s",
        "1 min",
        "2 min",
        "59 min",
        "1 h 10 min",
        "2 h",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_estimate_is_right_by_a_factor_of_two_from_the_first_quarter_on(seed: int) -> None:
    """The longest runs go first, two at a time, on a machine on which each takes up to half as long again."""
    draws = random.Random(seed)
    weights = [8.0] * 12 + [3.0] * 12 + [1.0] * 24
    cores = [0.0, 0.0]
    ends = []
    for weight in weights:
        core = cores.index(min(cores))
        cores[core] += 60 * weight * draws.uniform(1, 1.5)
        ends.append(cores[core])
    total = max(ends)
    shares = Shares(weights, 2)
    for now in range(round(total / 4), round(total * 0.9), 30):
        share = shares.of(sum(end <= now for end in ends))
        estimate = now / share * (1 - share)
        assert 0.5 <= estimate / (total - now) <= 2


def test_a_line_weighs_parts_that_differ() -> None:
    stream, now = io.StringIO(), 0.0
    with ProgressLines(stream, lambda: now).step("running", 4) as advance:
        now = 60
        advance(1, 0.5)
    assert stream.getvalue() == "running 1/4, about 1 min left\n"
