"""An interrupt is answered with a line at once, then it does what it always did."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.interrupts import told_at_once


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    before = signal.signal(request.param, interrupted)
    yield request.param
    signal.signal(request.param, before)


def interrupt(number: signal.Signals) -> None:
    with told_at_once("stopping"):
        signal.raise_signal(number)


def test_an_interrupt_is_told_at_once_and_the_next_one_is_not(number, capfd):
    with pytest.raises(KeyboardInterrupt):
        interrupt(number)
    assert signal.getsignal(number) is interrupted
    assert capfd.readouterr().err == "stopping\n"


def test_an_interrupt_that_something_else_holds_is_told_once(number, capfd):
    def hold(of: int, frame: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            tell(of, frame)

    with told_at_once("stopping"):
        tell: Any = signal.signal(number, hold)
        for _ in range(2):
            signal.raise_signal(number)
        assert capfd.readouterr().err == "stopping\n"


def test_without_an_interrupt_everything_is_as_it_was(number, capfd):
    with told_at_once("stopping"):
        assert signal.getsignal(number) is not interrupted
    assert signal.getsignal(number) is interrupted
    assert capfd.readouterr().err == ""


def test_an_ignored_interrupt_stays_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


def test_an_interrupted_walk_tells_what_it_had_found(number, capsys, monkeypatch):
    from fencepost.simulation.lab.explorer.reduced import ReducedGroup

    has_settled, seen = ReducedGroup.has_settled, 0

    def interrupting(self: Any, state: Any) -> bool:
        nonlocal seen
        seen += 1
        if seen == 200:
            signal.raise_signal(number)
        return has_settled(self, state)

    monkeypatch.setattr(ReducedGroup, "has_settled", interrupting)
    assert main(["explore", "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"]
    assert not found["complete"]
    assert found["states"] == 200
    seen = 0
    assert main(["explore"]) == 130
    assert "interrupted: there are more states" in capsys.readouterr().out


def test_an_interrupted_hunt_tells_which_mutants_it_had_hunted(number, capsys, monkeypatch):
    from fencepost.simulation.lab import hunt
    from fencepost.simulation.mutants.registry import MUTANTS

    first, second = list(MUTANTS)[:2]

    def hunt_all(*_: Any, hunted: Any, **more: Any) -> None:
        hunted(
            hunt.MutantResult(
                mutant=first, caught=True, seeds=1, hits=1, share=1.0, share_low=0.2, share_high=1.0
            )
        )
        signal.raise_signal(number)

    monkeypatch.setattr(hunt, "hunt_all", hunt_all)
    assert main(["mutants", first, second, "--json"]) == 130
    told = capsys.readouterr()
    assert list(json.loads(told.out)) == [first]
    assert told.err.endswith("interrupted: 1 of 2 mutants were hunted\n")


def test_an_interrupted_score_counts_the_batches_that_were_judged(number, capsys, monkeypatch, tmp_path):
    from fencepost.simulation.lab.mutation import score
    from fencepost.simulation.lab.mutation.judge import Judgement

    def job(spark: object, name: str, function: object, items: Any, *more: Any, **options: Any) -> list[Any]:
        if name == "healthy runs":
            return []
        if job_names.append(name) or len(job_names) > 1:
            signal.raise_signal(number)
        return [Judgement(mutant=mutant, verdict="unreached") for mutant, _ in items]

    job_names: list[str] = []
    page = tmp_path / "mutation.md"
    page.write_text("as it was")
    monkeypatch.setattr(score, "_job", job)
    monkeypatch.setattr(score, "_A_BATCH", 2)
    monkeypatch.setattr(score, "check_can_start", lambda master: None)
    monkeypatch.setattr(score, "spark_session", lambda *_, **__: contextlib.nullcontext())
    words = ["mutants", "--automatic", "--sample", "1", "--seeds", "1", "--page", str(page)]
    assert main([*words, "--json"]) == 130
    printed = capsys.readouterr()
    assert sum(core["judged"] for core in json.loads(printed.out)["cores"]) == 2
    assert "interrupted: 2 of " in printed.err
    assert page.read_text() == "as it was"
