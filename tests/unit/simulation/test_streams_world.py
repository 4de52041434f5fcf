"""Streams applications in virtual time: nothing breaks, and everything ends as it was decided."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from fencepost.member.application.worker import Worker
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import library, load_any
from fencepost.simulation.trace.schema import Kind, Row

NAMES = [entry.name for entry in library() if entry.protocol == "streams"]


class Kept:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        self.rows += [Row(*row) for row in rows]

    def of(self, kind: Kind) -> list[Row]:
        return [row for row in self.rows if row.kind == kind]


def played(name: str, seed: int, *overrides: str, duration: str | None = None) -> tuple[RunResult, Kept]:
    kept = Kept()
    return run(load_any(name, overrides=overrides, duration=duration), seed, trace=kept), kept


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_breaks_and_all_settles(name: str, seed: int) -> None:
    result, kept = played(name, seed, duration="6m")
    assert result.violations == []
    assert result.converged
    assert kept.of(Kind.THREAD_FAILED)
    assert kept.of(Kind.THREAD_STATE)
    again, _ = played(name, seed, duration="6m")
    assert again.digest == result.digest


def test_failures_come_with_every_answer_and_in_every_place() -> None:
    said = set()
    for seed in range(2):
        _, kept = played("streams-failures", seed)
        said |= {word for row in kept.of(Kind.THREAD_FAILED) for word in row.detail.split()}
    assert said >= {"REPLACE_THREAD", "SHUTDOWN_CLIENT", "raises", "nonsense"}
    assert said >= {"processing", "poll", "callback"}


@pytest.mark.parametrize("name", ["streams-shutdown", "streams-single-threads"])
def test_a_shutdown_brings_every_client_to_error_for_ever(name: str) -> None:
    result, kept = played(name, 5)
    clients = load_any(name).group.members
    assert result.figures["clients_shut_down"] == clients
    assert result.figures["shutdown_s"] < 60
    last = {row.actor: row.state_to for row in kept.of(Kind.CLIENT_STATE)}
    assert last == {f"client-{number}": "ERROR" for number in range(1, clients + 1)}


def test_a_thread_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that nobody planned: a thread does not look at its member's state."""

    async def nothing(self: Any) -> None:
        return None

    monkeypatch.setattr(Worker, "_note_state", nothing)
    result, _ = played("streams-failures", 0, duration="4m")
    assert not result.converged
    assert {violation.invariant for violation in result.violations} >= {"streams-settles"}


def test_what_is_simulated_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word on where logs go they take the standard library; a run has its trace for that."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    try:
        with caplog.at_level(logging.DEBUG):
            run(load_any("streams-failures"), 1)
    finally:
        if before is not None:
            structlog.configure(**before)
    assert caplog.records == []
