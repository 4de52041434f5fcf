"""Progress: bars for people, lines for logs that are followed, silence for programs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.progress import (
    Bars,
    Progress,
    ProgressLines,
    Shares,
    progress_for,
    rough_time,
    time_left,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_gets_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_PROGRESS", raising=False)
    assert isinstance(progress_for(stream=Terminal()), Bars)
    assert type(progress_for(stream=io.StringIO())) is Progress
    assert isinstance(progress_for(stream=io.StringIO(), lines=True), ProgressLines)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "lines")
    assert isinstance(progress_for(stream=Terminal()), Bars)
    assert isinstance(progress_for(stream=io.StringIO()), ProgressLines)
    for stream in (Terminal(), io.StringIO()):
        assert type(progress_for(json=True, stream=stream)) is Progress
    monkeypatch.setenv("FENCEPOST_PROGRESS", "lines")
    assert isinstance(progress_for(json=True, lines=True, stream=Terminal()), Bars)
    assert isinstance(progress_for(json=True, lines=True, stream=io.StringIO()), ProgressLines)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "none")
    assert type(progress_for(json=True, lines=True, stream=io.StringIO())) is Progress
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


class Machine:
    """Does runs on two cores whose speed changes every ten seconds, on a clock of its own."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = speeds
        self._free = [0.0, 0.0]

    def ended_at(self, work_s: float) -> tuple[float, float]:
        """The times at which the next run begins and ends."""
        core = self._free.index(min(self._free))
        begun = now = self._free[core]
        while work_s > 0:
            until = (now // 10 + 1) * 10
            speed = self._speeds[int(now // 10) % len(self._speeds)]
            took = min(until - now, work_s / speed)
            work_s -= took * speed
            now = until if now + took >= until else now + took
        self._free[core] = now
        return begun, now


UNSTEADY: Final = st.lists(st.floats(0.75, 1.4), min_size=1, max_size=40)
"""Any speeds whose highest is less than twice the lowest: what comes later may differ by that much."""
MEASURED: Final = [1.0, 0.4, 0.9, 1.5, 0.5, 1.1, 0.7, 1.6, 0.6, 0.9, 1.3, 0.4, 1.2]
"""Speeds of a machine on which others work, relative to their mean."""


@given(
    speeds=st.one_of(UNSTEADY, st.integers(0, 12).map(lambda at: MEASURED[at:] + MEASURED[:at])),
    really_s=st.lists(st.floats(20, 200), min_size=3, max_size=8),
    wrong=st.lists(st.floats(0.4, 2.5), min_size=8, max_size=8),
    runs=st.integers(3, 24),
)
def test_the_estimate_is_right_by_a_factor_of_two_from_the_first_quarter_on(
    speeds: Sequence[float], really_s: Sequence[float], wrong: Sequence[float], runs: int
) -> None:
    """Kinds of runs take another time than expected. One of each goes first, then the longest."""
    expected = {kind: really * off for kind, (really, off) in enumerate(zip(really_s, wrong, strict=False))}
    longest = sorted(expected, key=expected.__getitem__, reverse=True)
    kinds = longest + [kind for kind in longest for _ in range(runs - 1)]
    machine = Machine(speeds)
    ran = [(kind, *machine.ended_at(really_s[kind])) for kind in kinds]
    total = max(end for _, _, end in ran)
    shares, stream, now = Shares(kinds, expected), io.StringIO(), 0.0
    with ProgressLines(stream, lambda: now).step("running", len(kinds)) as advance:
        for done, (kind, begun, end) in enumerate(sorted(ran, key=lambda each: each[2]), 1):
            now = end
            shares.learn(kind, end - begun)
            advance(1, share := shares.of(done, 1))
            left = total - now
            if total / 4 <= now < total and left > 3 * max(really_s):
                assert 0.5 <= time_left(now, share) / left <= 2
    assert stream.getvalue().endswith(f"running {len(kinds)}/{len(kinds)}\n")


def test_a_line_weighs_parts_that_differ() -> None:
    stream, now = io.StringIO(), 0.0
    with ProgressLines(stream, lambda: now).step("running", 4) as advance:
        now = 60
        advance(1, 0.5)
    assert stream.getvalue() == "running 1/4, about 1 min left\n"


def test_a_part_that_took_no_time_is_a_part():
    shares = Shares([0, 0], {0: 1.0})
    shares.learn(0, 0.0)
    assert shares.of(1, 0) == 0.5
