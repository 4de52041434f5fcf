"""A client's program: what its checks look at, and when."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencepost.simulation.lab.chaos import client as program
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.event_channel import EventChannel


class App:
    """Three threads, one of which ends, or a fourth one begins, when it is told to."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(is_running=True, live=["1", "2", "3"])
        self.engine = SimpleNamespace(client=self.client)

    def add_thread(self) -> None:
        self.client.live.append("4")

    async def remove_thread(self) -> None:
        self.client.live.pop()


@pytest.mark.parametrize(("adds", "expected"), [(True, 4), (False, 2)])
async def test_a_change_of_threads_is_expected_when_it_happens(
    adds: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, looks = App(), []
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)
    monkeypatch.setattr(program, "Behaviour", lambda terms: None)
    monkeypatch.setattr(program.StreamsProcess, "_make", lambda self, terms: app)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        terms = cast("Any", SimpleNamespace(name="client-1", threads=3))
        process = program.StreamsProcess(terms, EventChannel(ours, 0), ours)
        judge = process.judge
        monkeypatch.setattr(judge, "look", lambda: looks.append((judge.live, len(app.client.live))))
        theirs.sendall(m.frame(m.ChangeThreads(adds=adds)))
        process._look_later()  # of a step before the order
        process._heed()
        for _ in range(3):
            await asyncio.sleep(0)
    assert looks == [(expected if adds else 3, expected if adds else 3), (expected, expected)]
